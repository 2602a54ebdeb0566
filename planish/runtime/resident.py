"""Memory that mirrors a file is given back once it has been read.

What is mapped and only read can be dropped at any time: the system reads it again should it be needed, mostly
from its own cache of the file. So weights in a model's file are in memory only while they are packed, and
LLVM, some 45 MB of code, only while it compiles (compiler_memory.py). On systems without madvise nothing is
given back.
"""
from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.mapped import mapping_under

_CHUNK = 16 << 20


def leave(array: np.ndarray) -> None:
    """Give back the pages of an array that lies in a mapped file."""
    if array.nbytes and hasattr(mmap, "MADV_DONTNEED") and _is_mapped(array):
        first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        advise(first, array.ctypes.data + array.nbytes - first, mmap.MADV_DONTNEED)


def copy_and_leave(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array that may lie in a mapped file, some megabytes at a time."""
    if not source.flags.c_contiguous:
        target[...] = source
        return
    old, new = source.reshape(-1), target.reshape(-1)
    step = max(_CHUNK // max(source.itemsize, 1), 1)
    for start in range(0, old.size, step):
        new[start:start + step] = old[start:start + step]
        leave(old[start:start + step])


def _is_mapped(array: np.ndarray) -> bool:
    """Whether a contiguous array lies in a mapping that can only be read."""
    under = mapping_under(array)
    return under is not None and memoryview(under).readonly and array.flags.c_contiguous


def leave_freed() -> None:
    """Give back what the C library keeps of memory that was freed (malloc_trim(3), where there is one)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@dataclass(frozen=True)
class Library:
    """A part of a loaded library that is as its file is: the file's path, and where it is mapped."""

    path: str
    start: int
    size: int
    is_code: bool


def leave_libraries(libraries: Iterable[Library]) -> None:
    """Give back the pages of libraries."""
    for library in libraries:
        advise(library.start, library.size, mmap.MADV_DONTNEED)


def loaded_libraries(name: str = "") -> list[Library]:
    """The parts of loaded libraries, of all or of those whose path has this in it, that are mapped to be read
    alone: the linker, which relocates what lies in the others, leaves these as they are. None on systems that
    do not tell (dl_iterate_phdr(3))."""
    found: list[Library] = []
    if not (sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")):
        return found

    def look(info: Any, size: int, _: Any) -> int:
        library = info.contents
        path = os.fsdecode(library.name or b"")
        if os.path.isabs(path) and name in path:
            for k in range(library.count):
                part = library.parts[k]
                if part.kind == _LOAD and not part.flags & _WRITE:
                    start = (library.base + part.address) // mmap.PAGESIZE * mmap.PAGESIZE
                    end = -(-(library.base + part.address + part.size) // mmap.PAGESIZE) * mmap.PAGESIZE
                    found.append(Library(path, start, end - start, bool(part.flags & _EXECUTE)))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_LOOK(look), None)
    return found


class _Part(ctypes.Structure):
    """Elf64_Phdr"""

    _fields_ = [("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("offset", ctypes.c_uint64),
                ("address", ctypes.c_uint64), ("physical", ctypes.c_uint64), ("in_file", ctypes.c_uint64),
                ("size", ctypes.c_uint64), ("align", ctypes.c_uint64)]


class _Loaded(ctypes.Structure):
    """struct dl_phdr_info, as far as it is needed"""

    _fields_ = [("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("parts", ctypes.POINTER(_Part)),
                ("count", ctypes.c_uint16)]


_LOAD, _EXECUTE, _WRITE = 1, 1, 2  # PT_LOAD, PF_X, PF_W of elf.h
_LOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)


def advise(start: int, size: int, advice: int) -> bool:
    """madvise(2) of memory at an address; whether the system took it."""
    return _madvise()(start, size, advice) == 0


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
        ("madvise", ctypes.CDLL(None)))
