"""The thread pool: each thread runs once, barriers hold, any caller may come, a fork starts anew."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from planish import knobs
from planish.runtime import native, threads
from planish.runtime.pool import MAX_THREADS
from tests.runtime.programs import compile_ir, reverse_program

# frame: i64 counts per thread id, each 64 bytes apart; slot 63 holds the thread count seen
_COUNT = """
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
  %offset = mul i64 %tid, 64
  %at = getelementptr i8, ptr %frame, i64 %offset
  %old = atomicrmw add ptr %at, i64 1 seq_cst
  %seen = getelementptr i8, ptr %frame, i64 16320
  store atomic i64 %threads, ptr %seen monotonic, align 8
  ret void
}
"""
# for r in 0..rounds: all add 1 to a shared sum; barrier; a sum that is not threads * (r+1) is a fault;
# barrier
_ROUNDS = """
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
entry:
  %rounds = load i64, ptr %frame
  %sum = getelementptr i8, ptr %frame, i64 64
  %faults = getelementptr i8, ptr %frame, i64 128
  %pool_at = getelementptr i8, ptr %frame, i64 8
  %pool = load ptr, ptr %pool_at
  br label %head
head:
  %r = phi i64 [0, %entry], [%next, %after]
  %go = icmp slt i64 %r, %rounds
  br i1 %go, label %body, label %end
body:
  %old = atomicrmw add ptr %sum, i64 1 monotonic
  call void @planish_barrier(ptr %pool, i64 %tid, i64 %threads)
  %next = add i64 %r, 1
  %want = mul i64 %next, %threads
  %got = load atomic i64, ptr %sum monotonic, align 8
  %wrong = icmp ne i64 %want, %got
  br i1 %wrong, label %fault, label %after
fault:
  %f = atomicrmw add ptr %faults, i64 1 monotonic
  br label %after
after:
  call void @planish_barrier(ptr %pool, i64 %tid, i64 %threads)
  br label %head
end:
  ret void
}
"""
# the body starts another region on the same pool: it must run serially, on every thread
_NESTED = """
declare void @planish_parallel(ptr, ptr, ptr, i64)
define internal void @inner(ptr %count, i64 %tid, i64 %threads) {
  %one = icmp eq i64 %threads, 1
  %by = select i1 %one, i64 1, i64 1000000
  %old = atomicrmw add ptr %count, i64 %by seq_cst
  ret void
}
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
  %pool_at = getelementptr i8, ptr %frame, i64 8
  %pool = load ptr, ptr %pool_at
  call void @planish_parallel(ptr %pool, ptr @inner, ptr %frame, i64 4)
  ret void
}
"""
# Every thread takes its own 5 units of a launch from the front, then the others' from the back, and counts
# each one that it gets. In the first launch the last thread begins only when all units are done. After a
# barrier the same launch again, and another one with no barrier between.
_CLAIMS = """
declare i64 @planish_claim(ptr, i64, i64, i64, i1)
define internal void @launch(ptr %frame, ptr %counts, i64 %number, i64 %tid, i64 %threads) {
entry:
  %pool_at = getelementptr i8, ptr %frame, i64 8
  %pool = load ptr, ptr %pool_at
  br label %others
others:
  %i = phi i64 [0, %entry], [%i1, %next]
  %far = add i64 %tid, %i
  %owner = urem i64 %far, %threads
  %own = icmp eq i64 %i, 0
  br label %claim
claim:
  %unit = call i64 @planish_claim(ptr %pool, i64 %number, i64 %owner, i64 5, i1 %own)
  %got = icmp slt i64 %unit, 5
  br i1 %got, label %count, label %next
count:
  %row = mul i64 %owner, 5
  %place = add i64 %row, %unit
  %at = getelementptr i64, ptr %counts, i64 %place
  %old = atomicrmw add ptr %at, i64 1 seq_cst
  %done = atomicrmw add ptr %frame, i64 1 seq_cst
  br label %claim
next:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %threads
  br i1 %more, label %others, label %end
end:
  ret void
}
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
entry:
  %pool_at = getelementptr i8, ptr %frame, i64 8
  %pool = load ptr, ptr %pool_at
  %first = getelementptr i64, ptr %frame, i64 64
  %second = getelementptr i64, ptr %frame, i64 128
  %third = getelementptr i64, ptr %frame, i64 192
  %all = mul i64 %threads, 5
  %last = sub i64 %threads, 1
  %is_late = icmp eq i64 %tid, %last
  br i1 %is_late, label %wait, label %work
wait:
  %done = load atomic i64, ptr %frame seq_cst, align 8
  %is_done = icmp eq i64 %done, %all
  br i1 %is_done, label %work, label %wait
work:
  call void @launch(ptr %frame, ptr %first, i64 1, i64 %tid, i64 %threads)
  call void @planish_barrier(ptr %pool, i64 %tid, i64 %threads)
  call void @launch(ptr %frame, ptr %second, i64 1, i64 %tid, i64 %threads)
  call void @launch(ptr %frame, ptr %third, i64 2, i64 %tid, i64 %threads)
  ret void
}
"""


@pytest.fixture(scope="module")
def counting():
    return native.load(compile_ir(_COUNT))


def _counts(code, count):
    frame = np.zeros(2048, np.int64)
    native.runtime().parallel(code.address("planish_body"), frame.ctypes.data, count)
    return frame[::8][:255], int(frame[2040])


@pytest.mark.parametrize("count", [1, 2, 3, 8, 40, 3, 1, 2])
def test_each_thread_runs_the_body_once(counting, count):
    for _ in range(20):
        counts, seen = _counts(counting, count)
        assert seen == count
        assert counts.tolist() == [1] * count + [0] * (255 - count)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_thread_passes_a_barrier_early(count):
    code = native.load(compile_ir(_ROUNDS))
    frame = np.zeros(64, np.int64)
    frame[0], frame[1] = 300, native.runtime().pool
    native.runtime().parallel(code.address("planish_body"), frame.ctypes.data, count)
    assert frame[16] == 0 and frame[8] == 300 * count


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_unit_is_claimed_once_also_of_a_late_thread(count):
    code = native.load(compile_ir(_CLAIMS))
    for _ in range(20):
        frame = np.zeros(256, np.int64)
        frame[1] = native.runtime().pool
        native.runtime().parallel(code.address("planish_body"), frame.ctypes.data, count)
        want = [1] * (5 * count) + [0] * (64 - 5 * count)
        assert [frame[at:at + 64].tolist() for at in (64, 128, 192)] == [want] * 3


def test_a_region_in_a_region_is_serial():
    code = native.load(compile_ir(_NESTED))
    frame = np.zeros(64, np.int64)
    frame[1] = native.runtime().pool
    native.runtime().parallel(code.address("planish_body"), frame.ctypes.data, 3)
    assert frame[0] == 3


def test_callers_at_once_all_get_their_work_done(counting):
    totals = []
    def caller():
        mine = 0
        for _ in range(300):
            counts, seen = _counts(counting, 3)
            mine += int(counts.sum()) == seen and seen in (1, 3)
        totals.append(mine)
    callers = [threading.Thread(target=caller) for _ in range(5)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert totals == [300] * 5


def _status(name):
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith(name)))


def test_idle_workers_sleep(counting):
    """The process's own CPU time does not grow while nobody calls: nobody spins beyond half a millisecond."""
    _counts(counting, 2)
    waiting = threading.Event()
    waiting.wait(0.05)
    before = os.times()
    waiting.wait(0.5)
    after = os.times()
    assert (after.user + after.system) - (before.user + before.system) < 0.25


_FORK = """
import os, sys
import numpy as np
from planish.runtime import threads
from tests.runtime.programs import reverse_program
threads.set_num_threads(3)
program = reverse_program(release_gil=True)
a = np.arange(5000, dtype=np.float32)
def good():
    return all(np.array_equal(program(a), 2 * a[::-1]) for _ in range(50))
assert good()
pid = os.fork()
if pid == 0:
    os._exit(0 if good() else 1)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert good()
print("fine")
"""


def test_a_forked_child_starts_its_own_workers():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "ignore", "-c", _FORK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_set_num_threads():
    before = threads.get_num_threads()
    program = reverse_program()
    a = np.arange(1000, dtype=np.float32)
    try:
        for count in (1, 2, 5):
            threads.set_num_threads(count)
            assert threads.get_num_threads() == count
            np.testing.assert_array_equal(program(a), 2 * a[::-1])
        started = _status("Threads:")
        threads.set_num_threads(1)
        program(a)
        assert _status("Threads:") == started
    finally:
        threads.set_num_threads(before)
    for wrong in (0, -1, MAX_THREADS + 1, 2.0):
        with pytest.raises(ValueError, match="from 1 to"):
            threads.set_num_threads(wrong)


def test_more_threads_than_cpus_do_not_spin():
    before = threads.get_num_threads()
    runtime = native.runtime()
    spins = ctypes.c_int32.from_address(runtime.pool + 512)
    try:
        threads.set_num_threads(threads.available_cpus() + 1)
        assert spins.value == 0
        threads.set_num_threads(1)
        assert spins.value > 0
    finally:
        threads.set_num_threads(before)


def test_thread_count_follows_the_environment(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "available_cpus", lambda: 8)
    monkeypatch.delenv("PLANISH_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads.get_num_threads() == 3
    with knobs.override(num_threads=5):
        assert threads.get_num_threads() == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads.get_num_threads() == 8


@pytest.mark.parametrize(("text", "cpus"), [
    ("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), ("?", None)])
def test_cgroup_quota(tmp_path, text, cpus):
    (tmp_path / "cpu.max").write_text(text)
    everything = len(os.sched_getaffinity(0))
    assert threads.available_cpus(tmp_path) == (everything if cpus is None else min(everything, cpus))
