"""LLVM in little memory, for programs with weights, whose peak it would be.

In: nothing; LLVM loaded or not. Out: it is loaded, and a third of the 45 MB of it that a compile would have
in memory is not; nor is the rest once it has compiled. The system maps sixteen pages around each that is
touched (mm/memory.c, fault_around_bytes), but none beyond the mapping it lies in: so the code is cut into
mappings of WINDOW bytes.
"""
from __future__ import annotations

import mmap
import os
import threading

from planish.codegen.llvm.emit import start_llvm
from planish.runtime.resident import Library, advise, leave_freed, leave_libraries, loaded_libraries

WINDOW = 16 << 10

_llvm: list[Library] = []   # what of it can be given back, once that is known
_loading = threading.Lock()


def load_llvm() -> None:
    """Load LLVM, if it is not loaded yet. What loading it and all else has touched is given back: most of it
    is not needed again."""
    with _loading:
        if not _llvm:
            leave_libraries(loaded_libraries())
            start_llvm()
            _llvm.extend(loaded_libraries("libllvmlite"))
            leave_libraries(_llvm)
            for library in _llvm:
                if library.is_code:
                    _narrow(library)


def leave_llvm() -> None:
    """Give back what LLVM has touched, and what the C library keeps of its memory."""
    leave_libraries(_llvm)
    leave_freed()


def _narrow(library: Library) -> None:
    """Make many mappings of one. Neighbours must differ in something, or they are one again: every other one
    is to be left out of core dumps, in which there is no library's code anyway."""
    for start in range(library.start, library.start + library.size - WINDOW, 2 * WINDOW):
        advise(start, WINDOW, mmap.MADV_DONTDUMP)


def _forget_loading() -> None:
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_forget_loading)
