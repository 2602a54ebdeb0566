"""Digests of files, remembered: whatever changes a file is noticed, and a file that may change unseen is read
each time."""
from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import sys
import threading
import time

import numpy as np
import pytest

import planish
from planish import knobs
from planish.ops.mapped import map_file
from planish.runtime import cache, constants, kept, unchanged
from planish.runtime.digest import digests_in_windows
from planish.runtime.unchanged import FILESYSTEMS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="remembered on Linux alone")

SIZE = 40_000


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(unchanged, "_filesystem", lambda handle: min(FILESYSTEMS))
    monkeypatch.setattr(unchanged, "MARGIN", 0.03)
    with knobs.override(cache_dir=str(tmp_path / "cache"), disable_cache=False):
        yield tmp_path


@pytest.fixture
def reads(monkeypatch):
    """The number of arrays of each reading."""
    seen, read = [], unchanged.digests_in_windows
    monkeypatch.setattr(unchanged, "digests_in_windows", lambda a, n: (seen.append(len(a)), read(a, n))[1])
    return seen


@pytest.fixture
def file(folder):
    path = folder / "weights"
    path.write_bytes(np.random.default_rng().bytes(SIZE))
    settle()
    return path


def settle():
    time.sleep(0.06)


def arrays_in(path, *ranges):
    mapping, _ = map_file(path)
    return [np.frombuffer(mapping, np.uint8, last - first, first) for first, last in ranges or ((0, SIZE),)]


def digests_of(arrays, threads):
    return unchanged.digests_of(arrays, threads, cache.default_cache())


def digest(path):
    """Of a whole file, as a new process has it; never another than that of its bytes now."""
    cache._cache_at.cache_clear()
    found, = digests_of(arrays_in(path), 2)
    assert found == digests_in_windows([np.frombuffer(path.read_bytes(), np.uint8)], 1)[0]
    return found


def write(path, at=SIZE // 2):
    """Change one byte in place; the time of writing is as it was."""
    before = os.stat(path)
    with open(path, "r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = os.stat(path)
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def is_remembered(path, reads):
    digest(path)
    before = len(reads)
    digest(path)
    return len(reads) == before


def test_read_once(file, reads):
    found = {digest(file) for _ in range(4)}
    assert len(found) == 1 and reads == [1]


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
def test_a_byte_written_in_place_with_its_time_put_back(file, reads, at):
    assert is_remembered(file, reads)
    before = digest(file)
    write(file, at)
    assert digest(file) != before
    settle()
    assert is_remembered(file, reads)


def test_what_has_just_been_written_is_not_remembered(file, reads, monkeypatch):
    monkeypatch.setattr(unchanged, "MARGIN", 3.0)
    found = set()
    for _ in range(5):
        write(file)
        found |= {digest(file), digest(file)}
    assert len(reads) == 10 and len(found) == 2


def test_another_name_of_the_file(file, reads):
    other = file.with_name("link")
    os.link(file, other)
    settle()
    before = digest(file)
    assert digest(other) == before and len(reads) == 1  # wherever it is mapped, it is the same file
    write(other)
    assert digest(file) != before


@pytest.mark.parametrize("copy", [shutil.copy2, shutil.move])
def test_a_file_of_another_content_in_its_place(file, reads, copy):
    other = file.with_name("other")
    shutil.copy2(file, other)
    write(other)
    settle()
    before = digest(file)
    mapped = arrays_in(file)
    if copy is shutil.move:
        os.replace(other, file)
        assert digests_of(mapped, 1) == [before]  # what is mapped is the file there was
    else:
        copy(other, file)
    assert digest(file) != before


def test_removed_while_mapped(file, reads):
    mapped = arrays_in(file)
    before = digests_of(mapped, 1)
    file.unlink()
    assert digests_of(mapped, 1) == before and len(reads) == 2


def test_not_remembered_while_open_for_writing(file, reads):
    with open(file, "r+b"):
        assert not is_remembered(file, reads)
    assert is_remembered(file, reads)


def test_written_through_a_mapping(file, reads):
    """Times move with the first write to a page, and not with the next."""
    with open(file, "r+b") as handle:
        writer = mmap.mmap(handle.fileno(), 0)
    writer[100] ^= 1
    settle()
    before, status = digest(file), os.stat(file)
    writer[100] ^= 1
    assert digest(file) != before
    assert os.stat(file).st_ctime_ns == status.st_ctime_ns or not is_local(file)
    writer.close()
    settle()
    assert is_remembered(file, reads)


def test_mapped_for_writing_later(file, reads, monkeypatch):
    if not is_local(file):
        pytest.skip("a filesystem that does not see writes through mappings")
    before = digest(file)
    with open(file, "r+b") as handle:
        writer = mmap.mmap(handle.fileno(), 0)
    for _ in range(2):
        writer[100] ^= 1
        after = digest(file)
        assert after != before
        before = after


def is_local(path):
    with open(path, "rb") as handle:
        status = unchanged.ctypes.create_string_buffer(512)
        assert unchanged.ctypes.CDLL(None).fstatfs(handle.fileno(), status) == 0
    return int.from_bytes(status.raw[:8], sys.byteorder) in FILESYSTEMS


def test_the_kind_of_filesystem_is_asked_for(file, reads, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(unchanged, "MARGIN", 0.03)
    for path, is_one in ((file, is_local(file)), ("/proc/self/stat", False)):
        with open(path, "rb") as handle:
            assert (unchanged._filesystem(handle.fileno()) in FILESYSTEMS) == is_one


def test_other_filesystems_are_read_each_time(file, reads, monkeypatch):
    monkeypatch.setattr(unchanged, "_filesystem", lambda handle: 0x01021994)  # tmpfs
    assert not is_remembered(file, reads)


def test_where_there_is_no_lease_it_is_read_each_time(file, reads, monkeypatch):
    def refused(handle, what, value):
        raise PermissionError

    monkeypatch.setattr(fcntl, "fcntl", refused)
    assert not is_remembered(file, reads)


@pytest.mark.parametrize("seconds", [-3600, -1.5, 1.5, 1e6])
def test_not_believed_once_the_clock_has_been_set(file, reads, monkeypatch, seconds):
    assert is_remembered(file, reads)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    before = len(reads)
    digest(file)
    assert len(reads) == before + 1
    assert is_remembered(file, reads) == (seconds > 0)  # to a clock that was set back the file is of tomorrow


def test_not_believed_by_another_run_of_the_system(file, reads, monkeypatch):
    assert is_remembered(file, reads)
    monkeypatch.setattr(unchanged, "boot", lambda: b"b" * 36)
    before = len(reads)
    digest(file)
    assert len(reads) == before + 1 and is_remembered(file, reads)
    monkeypatch.setattr(unchanged, "boot", lambda: unchanged.UNKNOWN)
    assert not is_remembered(file, reads)


def test_written_while_it_is_read(file, reads, monkeypatch):
    read = unchanged.digests_in_windows
    monkeypatch.setattr(unchanged, "digests_in_windows", lambda a, n: (read(a, n), write(file))[0])
    digests_of(arrays_in(file), 1)
    monkeypatch.setattr(unchanged, "digests_in_windows", read)
    digest(file)


def test_arrays_here_and_there(folder, file, reads):
    """The digest of an array does not depend on where it lies, nor on its neighbours."""
    other = folder / "more"
    other.write_bytes(np.random.default_rng().bytes(SIZE))
    settle()
    some, more = arrays_in(file, (0, 100), (100, 30_000), (30_000, SIZE)), arrays_in(other, (0, 7), (7, SIZE))
    moved = some[1][:29_000].view(np.float32).reshape(50, -1).T
    arrays = [some[0], more[0], np.arange(9.0), some[1], moved, more[1], some[2]]
    expected = digests_in_windows([a.copy() for a in arrays], 1)
    assert digests_of(arrays, 2) == expected and sorted(reads) == [2, 2, 3]
    assert digests_of(arrays, 2) == expected and sorted(reads) == [2, 2, 2, 3]  # what lies in no file
    assert digests_of(arrays[::-1], 2) == expected[::-1]


def test_opened_for_writing_at_the_very_moment(file, reads, monkeypatch):
    """The signal that says so does nothing to a program that does not ask for it."""
    signals, control = [], fcntl.fcntl

    def opened_meanwhile(handle, what, value):
        control(handle, what, value)
        if value == fcntl.F_RDLCK and what == fcntl.F_SETLEASE:
            with pytest.raises(BlockingIOError):
                os.open(file, os.O_WRONLY | os.O_NONBLOCK)

    monkeypatch.setattr(fcntl, "fcntl", opened_meanwhile)
    was = {number: signal.signal(number, lambda n, _: signals.append(n))
           for number in (signal.SIGIO, signal.SIGURG)}
    try:
        assert is_remembered(file, reads)
    finally:
        for number, handler in was.items():
            signal.signal(number, handler)
    assert signals == [signal.SIGURG] and was[signal.SIGURG] is signal.SIG_DFL
    with open(file, "r+b"):
        pass  # nobody waits for us


def nothing(path):
    pass


@pytest.mark.parametrize("change", [nothing, write, os.remove, os.utime])
def test_a_witness(folder, file, reads, change):
    """Arrays of settled files are not read for one; what is done to a file meanwhile is seen."""
    other = np.arange(9.0)
    arrays = [other, *arrays_in(file, (0, 100), (200, SIZE))]
    before = unchanged.witness(arrays, 2)
    digests = digests_in_windows(arrays, 1)
    assert reads == [1] and [type(one) for one in before] == [bytes, unchanged.State, unchanged.State]
    assert unchanged.are_still(arrays, before, digests)
    assert unchanged.are_still(arrays, digests, digests)
    settle()
    change(file)
    assert unchanged.are_still(arrays, before, digests) == (change is nothing)
    other[3] = 0
    assert not unchanged.are_still(arrays, before, digests_in_windows(arrays[:1], 1) + digests[1:])


def test_a_witness_of_what_may_change_unseen(folder, file, reads):
    with open(file, "r+b"):
        before = unchanged.witness(arrays_in(file), 2)
    assert reads == [1] and before == digests_in_windows(arrays_in(file), 1)


@pytest.mark.parametrize("is_external", [False, True])
def test_a_model_is_read_once(folder, reads, monkeypatch, is_external):
    onnx = pytest.importorskip("onnx")
    for module in (kept, constants):
        monkeypatch.setattr(module, "SMALLEST", 1 << 10)
    rng, path = np.random.default_rng(), folder / "model.onnx"
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 300), (300, 400)))
    ends = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", (3, 300)),
                                                                                   ("y", (3, 400)))]
    for _ in range(2):
        weights = onnx.numpy_helper.from_array(w, "w")
        nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
        graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
        onnx.save(model, path, save_as_external_data=is_external, location="weights", size_threshold=0)
        settle()
        del reads[:]
        monkeypatch.setattr(kept, "_written", set())
        for _ in range(3):
            cache._cache_at.cache_clear()
            got, = planish.load_onnx(path)(x)
            np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-4)
            wait()
        assert sum(reads) == 1
        w = w[::-1].copy()


def wait():
    for thread in threading.enumerate():
        if thread.name == "planish keeps constants":
            thread.join()
