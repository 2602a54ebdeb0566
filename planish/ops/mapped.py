"""Files that are mapped, so that what lies in them is read where it lies.

In: a path. Out: a mapping that knows its file; and of an array, which file it lies in. A file is mapped once
for all who read it at the same time.
"""
from __future__ import annotations

import mmap
import os
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

_mapped: WeakValueDictionary[tuple[int, ...], FileMapping] = WeakValueDictionary()


class FileMapping(mmap.mmap):
    """A whole file of one byte or more, to be read. `identity` is its device and inode, which no other file
    has as long as this one is mapped, whatever becomes of its path; `address` is where it starts."""

    path: Path
    identity: tuple[int, int]
    address: int


def map_file(path: Path) -> tuple[FileMapping, os.stat_result]:
    """The file mapped, and what its status was then. OSError for one that is not there; ValueError for an
    empty one."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        key = (status.st_dev, status.st_ino, status.st_size)
        made = _mapped.get(key)
        if made is None or made.path != path.absolute():
            made = _mapped[key] = FileMapping(file.fileno(), 0, access=mmap.ACCESS_READ)
            made.path, made.identity = path.absolute(), key[:2]
            made.address = np.frombuffer(made, np.uint8).ctypes.data
    return made, status


def mapping_under(array: np.ndarray) -> mmap.mmap | None:
    """The mapping that an array is a view of, if it is one."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def file_under(array: np.ndarray) -> FileMapping | None:
    """The file that an array, its elements side by side, lies in, if it does."""
    under = mapping_under(array)
    return under if isinstance(under, FileMapping) and array.flags.c_contiguous else None
