"""The recycling memory pool: warm blocks come back, live ones are left alone, memory stays bounded."""
from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planish.runtime import memory, native
from planish.runtime.program import NativeProgram
from planish.runtime.spec import ArraySpec
from planish.runtime.tables import LARGE
from tests.runtime.programs import add_program, reverse_program

MB = 1 << 20


@pytest.fixture(autouse=True)
def fresh_pool():
    memory.set_limit(256 * MB)
    memory.trim()
    yield
    memory.set_limit(memory.default_limit())


@pytest.fixture(scope="module")
def add():
    return add_program()


def _alloc(size):
    alloc = native.runtime().code.address("planish_alloc")
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(alloc)(size)


def _free(address):
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.runtime().code.address("planish_free"))(address)


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("size", [1, 4000, 5000, LARGE, 1_046_527, 1_046_528, MB, 2 * MB, 5 * MB + 3])
def test_blocks_are_aligned_writable_and_their_own(size):
    before = memory.stats().live_blocks
    blocks = [_alloc(size) for _ in range(20)]
    assert all(b % 64 == 0 for b in blocks)
    for number, block in enumerate(blocks):
        ctypes.memset(block, number + 1, size)
    for number, block in enumerate(blocks):
        seen = np.frombuffer((ctypes.c_uint8 * size).from_address(block), np.uint8)
        assert seen[0] == seen[-1] == number + 1
        assert (seen == number + 1).all()
    for block in blocks:
        _free(block)
    assert memory.stats().live_blocks == before
    again = [_alloc(size) for _ in range(20)]
    assert set(again) == set(blocks)
    for block in again:
        _free(block)


def test_a_recycled_block_is_large_enough():
    """Random sizes, all freed and handed out again: by its header, a block's mapping reaches past its end."""
    source = np.random.default_rng()
    for _ in range(3):
        sizes = [int(s) for s in 2.0 ** source.uniform(0, 23, 200)]
        blocks = [(_alloc(size), size) for size in sizes]
        for block, size in blocks:
            mapping, total = (ctypes.c_int64 * 2).from_address(block - 32)
            assert mapping + total - block >= size and block - mapping >= 64
        for block, _ in blocks:
            _free(block)


def test_large_blocks_start_at_places_of_a_page_that_lie_apart():
    """Also from the beginning of a page, where arrays of NumPy and torch start."""
    blocks = [_alloc(4 * MB) for _ in range(16)]
    places = sorted({0, *(b % 4096 for b in blocks), 4096})
    assert len(places) == 8 + 2
    assert min(after - before for before, after in pairwise(places)) >= 384
    for block in blocks:
        _free(block)


def test_no_memory_is_an_answer_not_a_crash():
    assert _alloc(1 << 60) is None
    assert _alloc(1 << 46) is None
    before = memory.stats()
    a = np.ones(4, np.float32)
    for program in (_with_arena(1 << 60), _with_output(1 << 50)):
        with pytest.raises(MemoryError):
            program(a, a)
    assert memory.stats().live_blocks == before.live_blocks


def _with_arena(size):
    program = add_program(shape=(4,))
    return NativeProgram(program._core.code, replace(program.spec, arena=size))


def _with_output(size):
    program = add_program(shape=(4,))
    outputs = (*program.spec.outputs, ArraySpec("d", "int8", (size,)))
    spec = replace(program.spec, outputs=outputs, unwrap_single=False)
    return NativeProgram(program._core.code, spec)


def test_a_dead_result_is_reused_and_a_live_one_is_not(add):
    n = 4 * LARGE
    a, b = np.ones(n, np.float32), np.ones(n, np.float32)
    first = add(a, b)
    place = first.ctypes.data
    second = add(a, 2 * b)
    assert second.ctypes.data != place
    view = first[5:7]
    del first
    third = add(a, 3 * b)
    assert third.ctypes.data != place  # the view keeps it
    assert view.tolist() == [2, 2]
    del view
    fourth = add(a, 4 * b)
    assert fourth.ctypes.data == place
    assert second[0] == 3 and third[0] == 4 and fourth[0] == 5


def test_counters_balance(add):
    n = 2 * LARGE
    a = np.ones(n, np.float32)
    before = memory.stats()
    results = [add(a, a) for _ in range(5)]
    during = memory.stats()
    assert during.live_blocks == before.live_blocks + 5
    assert during.live_bytes >= before.live_bytes + 5 * a.nbytes
    del results
    after = memory.stats()
    assert (after.live_blocks, after.live_bytes) == (before.live_blocks, before.live_bytes)
    assert after.free_blocks == before.free_blocks + 5
    memory.trim()
    assert memory.stats().free_bytes == 0 and memory.stats().free_blocks == 0


def test_free_memory_stays_under_the_limit_and_the_oldest_goes_first(add):
    memory.set_limit(8 * MB)
    a = np.ones(MB // 2, np.float32)  # 2 MiB each
    results = [add(a, a) for _ in range(8)]
    newest = results[-1].ctypes.data
    while results:
        del results[0]
        assert memory.stats().free_bytes <= 8 * MB
    assert memory.stats().free_blocks == 3
    assert add(a, a).ctypes.data == newest
    memory.set_limit(0)
    assert memory.stats().free_blocks == 0
    with pytest.raises(ValueError, match="from 0 up"):
        memory.set_limit(-1)


def test_memory_is_flat_over_many_calls():
    small, large, scratch = add_program(shape=(8,)), add_program(), reverse_program()
    a, b, c = np.ones(8, np.float32), np.ones(LARGE // 2, np.float32), np.ones(3000, np.float32)
    def calls(count):
        for _ in range(count):
            small(a, a)
        for _ in range(count // 10):
            large(b, b)
            scratch(c)
    calls(2000)
    before = _resident()
    calls(40_000)
    assert _resident() - before < 3 * MB


def test_destructors_on_other_threads():
    program = add_program(release_gil=True)
    a = np.ones(LARGE, np.float32)
    faults = []
    def caller(value):
        b = np.full(LARGE, value, np.float32)
        kept = []
        for _ in range(60):
            kept.append(program(a, b))
            if len(kept) > 3:
                del kept[0]
            if not all((k == value + 1).all() for k in kept):
                faults.append(value)
    before = memory.stats().live_blocks
    callers = [threading.Thread(target=caller, args=(v,)) for v in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not faults
    assert memory.stats().live_blocks == before
