"""Mapped files: one mapping for all who read a file, and of an array the file it lies in."""
from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from planish.ops.mapped import file_under, map_file, mapping_under


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(200)))
    return tmp_path / "file"


def test_mapped_once_as_long_as_it_is_the_same_file(path):
    one, status = map_file(path)
    assert map_file(path)[0] is one and one.identity == (status.st_dev, status.st_ino)
    other = path.with_name("other")
    other.write_bytes(bytes(200))
    os.replace(other, path)
    new, _ = map_file(path)
    assert new is not one and new.identity != one.identity and (new[5], one[5]) == (0, 5)
    path.write_bytes(bytes(300))
    assert len(map_file(path)[0]) == 300


def test_what_cannot_be_mapped(path):
    with pytest.raises(FileNotFoundError):
        map_file(path.with_name("none"))
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        map_file(path)


def test_views_know_their_file(path):
    mapping, _ = map_file(path)
    whole = np.frombuffer(mapping, np.uint8)
    parts = [whole[3:50], np.frombuffer(memoryview(mapping)[8:], np.float32).reshape(4, -1), whole[:0]]
    for part in parts:
        assert file_under(part) is mapping is mapping_under(part)
    assert parts[0].ctypes.data - mapping.address == 3 and parts[1].ctypes.data - mapping.address == 8
    for other in (whole[::2], parts[1].T, whole.copy(), np.arange(3)):
        assert file_under(other) is None
    with open(path, "rb") as file:
        plain = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert file_under(np.frombuffer(plain, np.uint8)) is None
    assert mapping_under(np.frombuffer(plain, np.uint8)) is plain
