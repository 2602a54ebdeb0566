"""Memory for the constants of a program that is about to be compiled, taken from the system meanwhile.

In: how many bytes the constants have. Out: memory in which they can be laid out. Most of the cost of laying
them out is the first touch of its pages, and a compile works on one CPU for most of its time: another one has
the system make the pages until then, many at a time (madvise(2), MADV_POPULATE_WRITE of Linux 5.14), which
takes two thirds of the time of touching them. The last of them are left to whoever lays the constants out, so
that they and the compiler are not in memory at the same time.
"""
from __future__ import annotations

import mmap
from threading import Lock

import numpy as np

from planish.runtime.packing import LINE
from planish.runtime.resident import advise

COMPILER = 96 << 20   # bytes in memory that a compile has and its program has not
STEP = 8 << 20        # bytes that are taken at once
FILLED_UP = 16        # laid out, constants are larger by such a part at most
POPULATE_WRITE = 23   # <asm-generic/mman-common.h>


class Room:
    """Zeroed memory for one program's constants, of so many bytes before they are laid out."""

    def __init__(self, constants: int):
        self.size = constants - COMPILER   # of what is taken ahead
        self.mapping = mmap.mmap(-1, constants + constants // FILLED_UP + LINE,
                                 flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory = np.frombuffer(self.mapping, np.uint8)
        self.is_given = False
        self.taking = Lock()

    def take(self) -> None:
        """Have the system make the pages, until the memory is given."""
        for at in range(0, self.size, STEP):
            with self.taking:
                if self.is_given or not advise(self.memory.ctypes.data + at, STEP, POPULATE_WRITE):
                    return

    def zeroed(self, total: int) -> np.ndarray | None:
        """The memory, from its start, once: so many bytes; None where there are not as many. The system gets
        back what is not given."""
        if self.is_given:
            return None
        fits = total <= len(self.memory)
        self._end(total if fits else 0)
        return self.memory[:total] if fits else None

    def leave(self) -> None:
        """None of it is wanted."""
        if not self.is_given:
            self._end(0)

    def _end(self, used: int) -> None:
        self.is_given = True
        with self.taking:  # the step under way comes to its end
            end = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
            advise(self.memory.ctypes.data + end, max(len(self.memory) - end, 0), mmap.MADV_DONTNEED)
