"""Constants kept on disk: the same arrays come back; other weights, damage and full disks do no harm."""
from __future__ import annotations

import errno
import os
import sys
import threading
import time

import numpy as np
import pytest

from planish import knobs
from planish.ops.content import Content
from planish.ops.mapped import map_file
from planish.runtime import constants, kept, unchanged
from planish.runtime.cache import default_cache
from planish.runtime.constants import arrays_of
from planish.schedule.packing import pack, packed

VIEW = (0, (96, 64), (1, 96), 16, 1, 1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for module in (kept, constants):
        monkeypatch.setattr(module, "SMALLEST", 1 << 10)
    monkeypatch.setattr(kept, "_written", set())
    with knobs.override(cache_dir=str(tmp_path / "cache"), disable_cache=False):
        yield tmp_path / "cache"


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((64, 96), (64, 96), (50, 33))]


def wait():
    for thread in threading.enumerate():
        if thread.name == "planish keeps constants":
            thread.join()


def laid_out(arrays, **options):
    """What a process gets of two weights in panels and a table that is lent; all is written then."""
    *matrices, table = arrays
    contents = [packed(Content.of(m), *VIEW) for m in matrices] + [Content.of(table, is_lent=True)]
    found = arrays_of(contents, 2, **options)
    wait()
    for one, matrix in zip(found, matrices):
        np.testing.assert_array_equal(one, pack(VIEW, matrix))
    np.testing.assert_array_equal(found[-1], table)
    assert all(a.ctypes.data % 64 == 0 and not a.flags.writeable for a in found)
    assert not np.may_share_memory(found[-1], table)
    return found


@pytest.fixture
def packings(monkeypatch):
    """An entry for each packing."""
    counted, pack_into = [], constants.pack_into
    monkeypatch.setattr(constants, "pack_into", lambda *a: (counted.append(1), pack_into(*a)))
    return counted


def files(folder):
    return [p for p in folder.rglob("*") if p.is_file() and p.read_bytes()[:8] != b"PLCACHE1"]


def test_laid_out_once_then_mapped(folder, packings):
    laid_out(weights())
    file, = files(folder)
    assert len(packings) == 1 and file.stat().st_mode & 0o077 == 0
    os.utime(file, (1, 1))
    found = laid_out(weights())  # the same bytes in other arrays
    assert len(packings) == 1 and file.stat().st_mtime > 1
    file.unlink()  # swept by another process: what is mapped stays
    np.testing.assert_array_equal(found[0], pack(VIEW, weights()[0]))


def test_found_whatever_has_been_computed_and_wherever_it_lies(folder, packings):
    for k in range(4):
        source, bias = Content.of(weights()[0]), Content.of(np.full((1, 96), 2, np.float32))
        moved = Content.derived("transposed", (1, 0), (source,), source.type.with_shape((96, 64)))
        column = Content.derived("transposed", (1, 0), (bias,), bias.type.with_shape((96, 1)))
        if k % 2:
            assert moved.value.shape == (96, 64)  # as a pass does that looks at it
        memory = np.zeros(96 * 4 + 128, np.uint8)
        at = -memory.ctypes.data % 64 + 16 * k
        place = memory[at:at + 96 * 4].view(np.float32).reshape(96, 1)
        place[...] = 2
        column.settle(place)
        found = arrays_of([packed(moved, 0, (96, 64), (64, 1), 16), column], 2)
        np.testing.assert_array_equal(found[1], 2)
        wait()
    assert len(packings) == 1 and len(files(folder)) == 1


def test_other_weights_are_other_constants(folder, packings):
    laid_out(weights())
    for k, array in enumerate(changed := weights()):
        array.reshape(-1)[-1 - k] += 1
        laid_out(changed)
        assert len(packings) == k + 2
    laid_out(weights()[1::-1] + weights()[2:])
    assert len(packings) == 5 and len(files(folder)) == 1  # one for each form in a process


@pytest.mark.parametrize("damage", [
    lambda d: d[:-1], lambda d: d[:100], lambda d: d + b"x", lambda d: b"",
    lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: bytes([d[0] ^ 1]) + d[1:]])
def test_after_a_crash_damage_is_seen(folder, packings, monkeypatch, damage):
    laid_out(weights())
    file, = files(folder)
    monkeypatch.setattr(kept, "boot", lambda: b"b" * 36)
    laid_out(weights())
    assert len(packings) == 1  # whole after all
    monkeypatch.setattr(kept, "boot", lambda: b"c" * 36)
    file.write_bytes(damage(file.read_bytes()))
    laid_out(weights())
    assert len(packings) == 2 and not files(folder)


def test_checked_once_in_a_run_of_the_system(folder, packings, monkeypatch):
    laid_out(weights())
    read, digests = [], kept.digests_in_windows
    monkeypatch.setattr(kept, "digests_in_windows", lambda *a: (read.append(1), digests(*a))[1])
    for name in b"aabbaa":
        monkeypatch.setattr(kept, "boot", lambda name=name: bytes([name]) * 36)
        laid_out(weights())
    assert len(packings) == 1 and len(read) == 3


def test_where_nothing_names_the_boot_all_is_checked(folder, packings, monkeypatch):
    monkeypatch.setattr(kept, "boot", lambda: bytes(36))
    laid_out(weights())
    laid_out(weights())
    assert len(packings) == 1
    file, = files(folder)
    data = bytearray(file.read_bytes())
    data[5000] ^= 4
    file.write_bytes(data)
    laid_out(weights())
    assert len(packings) == 2


def test_another_keys_file_is_not_taken(folder, packings, monkeypatch):
    laid_out(weights())
    file, = files(folder)
    monkeypatch.setattr(kept, "_written", set())
    laid_out(weights(1))
    other, = set(files(folder)) - {file}
    file.replace(other)
    laid_out(weights(1))
    assert len(packings) == 3


def test_not_kept_where_weights_change_meanwhile(folder, monkeypatch):
    arrays, pack_into = weights(), constants.pack_into

    def changing(*arguments):
        arrays[0][-1, -1] += 1
        pack_into(*arguments)

    monkeypatch.setattr(constants, "pack_into", changing)
    laid_out(arrays)
    assert not files(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="files are known by their status on Linux alone")
def test_not_kept_where_a_file_changes_meanwhile(folder, tmp_path, monkeypatch):
    """Its weights are not read before they are packed."""
    monkeypatch.setattr(unchanged, "_settled", unchanged._state)
    matrix, *_ = weights()
    path, pack_into, reads = tmp_path / "file", constants.pack_into, []
    matrix.tofile(path)
    mapping, _ = map_file(path)
    source = np.frombuffer(mapping, np.float32).reshape(matrix.shape)
    read = unchanged.digests_in_windows
    monkeypatch.setattr(unchanged, "digests_in_windows", lambda a, n: (reads.append(len(a)), read(a, n))[1])

    def changing(*arguments):
        pack_into(*arguments)
        assert sum(reads) == 0
        time.sleep(0.03)  # the clock of files goes by steps
        with open(path, "r+b") as file:
            file.write(b"new")

    with monkeypatch.context() as patched:
        patched.setattr(constants, "pack_into", changing)
        found, = arrays_of([packed(Content.of(source), *VIEW)], 2)
        wait()
    np.testing.assert_array_equal(found, pack(VIEW, matrix))
    assert not files(folder)
    monkeypatch.setattr(kept, "_written", set())
    for _ in range(2):
        found, = arrays_of([packed(Content.of(source), *VIEW)], 2)
        wait()
        np.testing.assert_array_equal(found, pack(VIEW, source))
    assert len(files(folder)) == 1


def test_a_full_disk_leaves_nothing_behind(folder, packings, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    laid_out(weights())
    assert not files(folder)
    laid_out(weights())
    assert len(packings) == 2


@pytest.mark.parametrize("setting", [{"disable_cache": True}, {"cache_bytes": 80 << 10}])
def test_kept_only_where_there_is_room(folder, packings, setting):
    with knobs.override(**setting):
        laid_out(weights())
        laid_out(weights())
    assert len(packings) == 2 and not files(folder)


def test_not_kept_for_a_trial(folder, packings):
    laid_out(weights(), keep=False)
    assert not files(folder)


def test_bounded_with_the_rest_of_the_cache(folder, monkeypatch):
    with knobs.override(cache_bytes=150 << 10):
        for seed in range(3):
            monkeypatch.setattr(kept, "_written", set())
            laid_out(weights(seed))
        _, size = default_cache().usage()
    assert len(files(folder)) == 2 and size <= 150 << 10
    assert default_cache().clear() == 0 and not files(folder)


@pytest.mark.parametrize("is_kept", [True, False])
def test_large_constants_are_laid_out_in_parts(folder, packings, monkeypatch, is_kept):
    """Panels, with and without a scale, and copies, cut anywhere: a few rows at a time."""
    monkeypatch.setattr(constants, "BATCH", 4 << 10)
    rng = np.random.default_rng()
    kernel, scale = rng.normal(size=(50, 12, 3, 3)), rng.normal(size=(50, 1, 1, 1))
    kernel, scale, table = (a.astype(np.float32) for a in (kernel, scale, rng.normal(size=(700, 5))))
    number, nothing = np.array(3, np.int64), np.zeros((4, 0), np.float32)
    view, rows = (0, (50, 3, 3, 12), (108, 3, 1, 9), 16, 1, 1), (0, (70, 40), (5, 70), 16, 2, 1)
    for _ in range(2):
        sources = [Content.of(kernel), Content.of(scale)]
        product = Content.derived("op", ("mul",), sources, sources[0].type)
        lent = [Content.of(a, is_lent=True) for a in (table, kernel, number, nothing)]
        found = arrays_of([packed(product, *view), packed(Content.of(table), *rows), *lent], 2, keep=is_kept)
        wait()
        expected = [pack(view, kernel * scale), pack(rows, table), table, kernel, number, nothing]
        for one, other in zip(found, expected, strict=True):
            assert one.tobytes() == other.tobytes() and one.shape == other.shape and one.dtype == other.dtype
    assert len(files(folder)) == is_kept and len(packings) > (8 if is_kept else 16)


def test_a_disk_that_fills_up_meanwhile(folder, monkeypatch):
    def full(handle, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept, "_write_all", full)
    laid_out(weights())
    assert not files(folder)


def test_a_file_without_a_name_is_not_taken(folder, packings, monkeypatch):
    """What a process leaves that dies before its constants are whole."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda temporary, path: None)
        laid_out(weights())
    left, = files(folder)
    assert left.name.startswith("tmp-")
    monkeypatch.setattr(kept, "_written", set())
    laid_out(weights())
    assert len(packings) == 2 and len(files(folder)) == 2
    laid_out(weights())
    assert len(packings) == 2


def test_a_file_that_is_swept_before_it_has_its_name(folder, monkeypatch):
    replace = os.replace

    def swept(temporary, path):
        os.unlink(temporary)
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", swept)
    laid_out(weights())
    assert not files(folder)
