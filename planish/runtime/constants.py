"""The arrays of a program's constants, made from what they are derived from.

In: contents. Out: their arrays, each starting on a cache line, as native code wants them. They are laid out a
few megabytes at a time: panels are packed by native code, any other derivation runs as NumPy has it. Weights
in mapped files are in memory only while they are read. Those of a large model are mapped from the cache's
file where an earlier process has kept them (`kept.py`).
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    rows_of,
    whole_lines,
    zeroed,
)
from planish.runtime.resident import copy_and_leave, leave
from planish.types import FLOAT32

BATCH = 8 << 20   # bytes that are laid out at once
READ = 16 << 20   # bytes of one constant that are laid out before what was read for them is given back
SMALL = 2 << 20   # bytes up to which an array is kept, wherever it lies: that is chance


def arrays_of(contents: Sequence[Content], threads: int, *, keep: bool = True) -> tuple[np.ndarray, ...]:
    """The arrays, which derived contents then have as their values. What was laid out for them is kept on
    disk for later processes, unless `keep` is False, and found there."""
    leave_sources(contents)
    packs = list(dict.fromkeys(c for c in contents if _is_packed(c)))
    values = {c: c.value for c in contents if c not in packs}
    keep = keep and sum(c.nbytes for c in contents) >= SMALLEST
    moved = [c for c, v in values.items()
             if not _is_aligned(v) or _is_lent(c, v) or (keep and v.nbytes < SMALL)]
    made = [*packs, *moved]
    values.update(zip(made, _made(made, threads, place_for(made, threads) if keep else None)))
    for content in made:
        if content.derivation is not None:
            content.settle(values[content])
    return tuple(values[c] for c in contents)


def _made(contents: Sequence[Content], threads: int, place: Place | None) -> list[np.ndarray]:
    """The arrays of contents that are packed or copied: kept before, or laid out now."""
    found = None if place is None else place.find(threads)
    if found is not None:
        return found
    wanted = [shape_and_dtype(c) for c in contents]
    memory, work = zeroed(bytes_of(wanted)), _Laying(contents, threads)
    for parts in work.batches():
        work.lay(parts, memory[parts[0].at:])
    arrays = arrays_over(memory, wanted)
    for array in arrays:
        array.flags.writeable = False
    if place is not None:
        place.keep(arrays)
    return arrays


@dataclass(frozen=True)
class _Part:
    """Rows `first` to `last` of a content's array, panels of one that is packed, which begin at byte `at` of
    the memory of all. `end` is where what follows them begins; `is_last`: nothing of the content does."""

    content: Content
    first: int
    last: int
    at: int
    end: int
    is_last: bool


class _Laying:
    """Lays contents out one behind the other, each on lines of its own."""

    def __init__(self, contents: Sequence[Content], threads: int):
        self.contents, self.threads = contents, threads
        self.sources: dict[Content, list[np.ndarray]] = {}  # of what is being packed
        self.read: dict[Content, None] = {}                 # whose sources are not given back yet
        self.bytes = 0                                      # laid out of them

    def batches(self) -> Iterator[list[_Part]]:
        """All parts, in runs of neighbours of at most BATCH bytes, or of one row."""
        parts: list[_Part] = []
        for part in self._parts():
            if parts and part.end - parts[0].at > BATCH:
                yield parts
                parts = []
            parts.append(part)
        if parts:
            yield parts

    def _parts(self) -> Iterator[_Part]:
        start = 0
        for content in self.contents:
            rows, size, stop = _shape(content)[0], content.nbytes, start + whole_lines(content.nbytes)
            step = max(1, rows * BATCH // max(size, BATCH))
            for first in range(0, rows, step):
                last = min(first + step, rows)
                at, end = (start + row * size // rows for row in (first, last))
                yield _Part(content, first, last, at, stop if last == rows else end, last == rows)
            start = stop

    def lay(self, parts: Sequence[_Part], memory: np.ndarray) -> None:
        """Fill zeroed memory, which begins where the first part does."""
        contents = dict.fromkeys(p.content for p in parts)
        self.sources = {c: self.sources.get(c) or _sources(c) for c in contents if _is_packed(c)}
        packs = [p for p in parts if p.content in self.sources]
        places = {p: _place(p, memory[p.at - parts[0].at:]) for p in parts}
        if packs:
            pack_into([places[p] for p in packs], [self._job(p) for p in packs], self.threads)
        for part in parts:
            if part.content not in self.sources:
                value = part.content.value.reshape(_shape(part.content))
                copy_and_leave(value[part.first:part.last], places[part])
        self.read.update(contents)
        self.bytes += parts[-1].end - parts[0].at
        if parts[-1].is_last or self.bytes >= READ:
            leave_sources(list(self.read))
            self.read, self.bytes = {}, 0

    def _job(self, part: _Part) -> tuple[object, ...]:
        assert part.content.derivation is not None
        parameters = part.content.derivation.parameters
        weights, *scales = self.sources[part.content]
        width = parameters[3]
        return (rows_of(parameters, part.first, part.last), weights,
                *(s.reshape(-1)[part.first * width:] for s in scales))


def _sources(content: Content) -> list[np.ndarray]:
    assert content.derivation is not None
    return [evaluate(s) for s in content.derivation.sources]


def _shape(content: Content) -> tuple[int, ...]:
    """That of an array, of one row where it has no axis."""
    return shape_and_dtype(content)[0] or (1,)


def _place(part: _Part, memory: np.ndarray) -> np.ndarray:
    """The rows of a part, at the beginning of memory."""
    shape, dtype = (part.last - part.first, *_shape(part.content)[1:]), shape_and_dtype(part.content)[1]
    return arrays_over(memory, [(shape, dtype)])[0]


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
