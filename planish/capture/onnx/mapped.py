"""A model's file, and an error where somebody has written to it since.

In: a path. Out: its content as a view. (A file that was removed, or replaced by another of its name, is still
there for who has it mapped.)
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from planish.errors import ModelError
from planish.ops.mapped import map_file


@dataclass(frozen=True)
class MappedFile:
    """A file of one byte or more. `stamp` is what tells that it has changed."""

    path: Path
    data: memoryview
    stamp: tuple[int, ...]

    @staticmethod
    def of(path: Path) -> MappedFile:
        mapping, status = map_file(path)
        return MappedFile(mapping.path, memoryview(mapping), _stamp(status))

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
