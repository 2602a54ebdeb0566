"""A file that is mapped, so that what lies in it is read where it lies.

In: a path. Out: its content as a view, and an error where somebody has written to the file since. (One that
was removed, or replaced by another of its name, is still there for who has it mapped.)
"""
from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from planish.errors import ModelError


@dataclass(frozen=True)
class MappedFile:
    """A file of one byte or more. `stamp` is what tells that it has changed."""

    path: Path
    data: memoryview
    stamp: tuple[int, ...]

    @staticmethod
    def of(path: Path) -> MappedFile:
        with path.open("rb") as file:
            stamp = _stamp(os.fstat(file.fileno()))
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return MappedFile(path.absolute(), data, stamp)

    def check_unchanged(self) -> None:
        """Raises ModelError for a file that was written to."""
        try:
            now = _stamp(os.stat(self.path))
        except OSError:
            return
        if now[:2] == self.stamp[:2] and now != self.stamp:
            raise ModelError(f"{self.path} was written to after it was loaded: load it anew, and replace a "
                             "model that is in use by renaming the new one, not by writing into it")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
