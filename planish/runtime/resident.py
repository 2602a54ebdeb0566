"""Memory that mirrors a file is given back once it has been read.

What is mapped and only read can be dropped at any time: the system reads it again should it be needed, mostly
from its own cache of the file. So weights in a model's file are in memory only while they are packed, and
LLVM, some 45 MB of code, only while it compiles. On systems without /proc or madvise nothing is given back.
"""
from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_MAPPINGS = Path("/proc/self/smaps")
_CHUNK = 16 << 20


def leave(array: np.ndarray) -> None:
    """Give back the pages of an array that lies in a mapped file."""
    mapping = _mapping(array)
    if mapping is not None and array.nbytes and hasattr(mapping, "madvise"):
        base = np.frombuffer(mapping, np.uint8).ctypes.data
        first = (array.ctypes.data - base) // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.madvise(mmap.MADV_DONTNEED, first, array.ctypes.data - base + array.nbytes - first)


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


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The mapping that a contiguous array lies in, where it can only be read."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    is_read = isinstance(base, mmap.mmap) and memoryview(base).readonly and array.flags.c_contiguous
    return base if is_read else None  # type: ignore[return-value]


def leave_freed() -> None:
    """Give back what the C library keeps of memory that was freed (malloc_trim(3), where there is one)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def leave_libraries(name: str) -> None:
    """Give back the pages of loaded libraries whose file's name has this in it: code and constants, nothing
    that was written to. The system maps sixteen around each page that is touched (mm/memory.c,
    fault_around_bytes), so two thirds of what stays of a library have never been read."""
    if not (hasattr(mmap, "MADV_DONTNEED") and _MAPPINGS.exists()):
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, size in _read_only(name):
        madvise(start, size, mmap.MADV_DONTNEED)


def _read_only(name: str) -> Iterator[tuple[int, int]]:
    """Where mappings of a file lie that are as the file is (Linux, proc_pid_smaps(5)): not writable, and
    without a page of the process's own, as those are that the loader has relocated."""
    start = size = 0
    for line in _MAPPINGS.read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            low, high = (int(end, 16) for end in words[0].split("-"))
            is_ours = "w" not in words[1] and name in Path(words[-1]).name
            start, size = (low, high - low) if is_ours else (0, 0)
        elif words[0] == "Anonymous:" and words[1] == "0" and size:
            yield start, size
