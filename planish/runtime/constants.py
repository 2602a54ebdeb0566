"""The arrays of a program's constants, made from what they are derived from.

In: contents. Out: their arrays, each starting on a cache line, as native code wants them. They are laid out a
few megabytes at a time: panels are packed by native code, any other derivation runs as NumPy has it. Weights
in mapped files are in memory only while they are read. Those of a large model are mapped from the cache's
file where an earlier process has kept them (`kept.py`).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planish.ops.content import Content, evaluate, leaves
from planish.runtime.kept import SMALLEST, Place, place_for, shape_and_dtype
from planish.runtime.packing import (
    ITEMS,
    LINE,
    arrays_over,
    bytes_of,
    pack_into,
    units_of,
    zeroed,
)
from planish.runtime.resident import copy_and_leave, leave
from planish.runtime.room import Room
from planish.types import FLOAT32

BATCH = 8 << 20   # bytes that are laid out at once
READ = 16 << 20   # bytes of one constant that are laid out before what was read for them is given back
SMALL = 2 << 20   # bytes up to which an array is kept, wherever it lies: that is chance


def arrays_of(contents: Sequence[Content], threads: int, *, keep: bool = True,
              room: Room | None = None) -> tuple[np.ndarray, ...]:
    """The arrays, which derived contents then have as their values. What was laid out for them is kept on
    disk for later processes, unless `keep` is False, and found there. They are laid out in `room`, if there
    is one."""
    leave_sources(contents)
    packs = dict.fromkeys(c for c in contents if _is_packed(c))
    values = {c: c.value for c in contents if c not in packs}
    keep = keep and sum(c.nbytes for c in contents) >= SMALLEST
    moved = [c for c, v in values.items()
             if not _is_aligned(v) or _is_lent(c, v) or (keep and v.nbytes < SMALL)]
    made = [*packs, *moved]
    values.update(zip(made, _made(made, threads, place_for(made, threads) if keep else None, room)))
    for content in made:
        if content.derivation is not None:
            content.settle(values[content])
    return tuple(values[c] for c in contents)


def _made(contents: Sequence[Content], threads: int, place: Place | None,
          room: Room | None) -> list[np.ndarray]:
    """The arrays of contents that are packed or copied: kept before, or laid out now."""
    found = None if place is None else place.find(threads)
    if found is not None:
        if room is not None:
            room.leave()
        return found
    wanted = [shape_and_dtype(c) for c in contents]
    total = bytes_of(wanted)
    memory = None if room is None else room.zeroed(total)
    arrays = arrays_over(zeroed(total) if memory is None else memory, wanted)
    work = _Laying(dict(zip(contents, arrays)), threads)
    for parts in work.batches():
        work.lay(parts)
    for array in arrays:
        array.flags.writeable = False
    if place is not None:
        place.keep(arrays)
    return arrays


@dataclass(frozen=True)
class _Part:
    """Units `first` to `last` of a content: of a packing, rows of an array that is copied."""

    content: Content
    first: int
    last: int
    nbytes: int
    is_last: bool


class _Laying:
    """Fills zeroed arrays with what their contents are."""

    def __init__(self, arrays: Mapping[Content, np.ndarray], threads: int):
        self.arrays, self.threads = arrays, threads
        self.packed = {c for c in arrays if _is_packed(c)}
        self.sources: dict[Content, list[np.ndarray]] = {}  # of what is being packed
        self.read: dict[Content, None] = {}                 # whose sources are not given back yet
        self.bytes = 0                                      # laid out of them

    def batches(self) -> Iterator[list[_Part]]:
        """All parts, in runs of neighbours of at most BATCH bytes, or of one unit."""
        parts: list[_Part] = []
        size = 0
        for part in (p for content in self.arrays for p in self._parts(content)):
            if parts and size + part.nbytes > BATCH:
                yield parts
                parts, size = [], 0
            parts.append(part)
            size += part.nbytes
        if parts:
            yield parts

    def _parts(self, content: Content) -> Iterator[_Part]:
        units, size = self._units(content), content.nbytes
        step = max(1, units * BATCH // max(size, BATCH))
        for first in range(0, units, step):
            last = min(first + step, units)
            yield _Part(content, first, last, size * (last - first) // units, last == units)

    def _units(self, content: Content) -> int:
        if content not in self.packed:
            return len(np.atleast_1d(self.arrays[content]))
        assert content.derivation is not None
        return units_of(content.derivation.parameters, is_scaled=len(content.derivation.sources) > 1)

    def lay(self, parts: Sequence[_Part]) -> None:
        """Fill in parts. What was read is given back, of a large content some megabytes at a time."""
        contents = dict.fromkeys(p.content for p in parts)
        self.sources = {c: self.sources.get(c) or _sources(c) for c in contents if c in self.packed}
        packs = [p for p in parts if p.content in self.packed]
        if packs:
            jobs = [(p.content.derivation.parameters, *self.sources[p.content])  # type: ignore[union-attr]
                    for p in packs]
            shares = [(p.first, p.last) for p in packs]
            pack_into([self.arrays[p.content] for p in packs], jobs, self.threads, shares)
        for part in parts:
            if part.content not in self.packed:
                value, target = map(np.atleast_1d, (part.content.value, self.arrays[part.content]))
                copy_and_leave(value[part.first:part.last], target[part.first:part.last])
        self.read.update(contents)
        self.bytes += sum(p.nbytes for p in parts)
        if parts[-1].is_last or self.bytes >= READ:
            leave_sources(list(self.read))
            self.read, self.bytes = {}, 0


def _sources(content: Content) -> list[np.ndarray]:
    assert content.derivation is not None
    return [evaluate(s) for s in content.derivation.sources]


def _is_aligned(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and array.ctypes.data % LINE == 0


def _is_lent(content: Content, value: np.ndarray) -> bool:
    """Whether a value lies in memory that is lent."""
    return any(c.is_lent and np.may_share_memory(c.value, value) for c in leaves([content]))


def _is_packed(content: Content) -> bool:
    made = content.derivation
    if made is None or made.function != "packed" or content.has_value:
        return False
    return content.type.dtype.itemsize in ITEMS and (len(made.sources) == 1 or content.type.dtype is FLOAT32)


def leave_sources(contents: Sequence[Content]) -> None:
    """Give back what a compile, or packing, has looked at in mapped files."""
    for content in leaves(contents):
        leave(content.value)
