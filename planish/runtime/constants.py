"""The arrays of a program's constants, made from what they are derived from.

In: contents. Out: their arrays, each starting on a cache line, as native code wants them. Panels are packed
by native code, some megabytes of weights at a time; any other derivation runs as NumPy has it. Weights in
mapped files are in memory only while they are read. Those of a large model are mapped from the cache's file
where an earlier process has kept them (`kept.py`).
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planish.ops.content import Content, evaluate, leaves
from planish.runtime.kept import SMALLEST, Place, place_for, shape_and_dtype
from planish.runtime.packing import ITEMS, LINE, fresh, pack_into
from planish.runtime.resident import copy_and_leave, leave
from planish.types import FLOAT32

BATCH = 16 << 20  # bytes of panels that are packed at once
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
    values.update(zip(made, _made(packs, moved, threads, place_for(made, threads) if keep else None)))
    for content in made:
        if content.derivation is not None:
            content.settle(values[content])
    return tuple(values[c] for c in contents)


def _made(packs: Sequence[Content], moved: Sequence[Content], threads: int,
          place: Place | None) -> Sequence[np.ndarray]:
    """The arrays of contents that are packed and of those that are copied."""
    found = None if place is None else place.find(threads)
    if found is not None:
        return found
    arrays = fresh([*map(shape_and_dtype, packs), *((c.value.shape, c.value.dtype) for c in moved)])
    _pack(packs, arrays[:len(packs)], threads)
    for content, copy in zip(moved, arrays[len(packs):]):
        copy_and_leave(content.value, copy)
        copy.flags.writeable = False
    if place is not None:
        place.keep(arrays)
    return arrays


def _is_aligned(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and array.ctypes.data % LINE == 0


def _is_lent(content: Content, value: np.ndarray) -> bool:
    """Whether a value lies in memory that is lent."""
    return any(c.is_lent and np.may_share_memory(c.value, value) for c in leaves([content]))


def _pack(packs: Sequence[Content], targets: Sequence[np.ndarray], threads: int) -> None:
    """Fill the panels of all contents, some megabytes at a time."""
    for some in _batches(targets):
        jobs = [(d.parameters, *map(evaluate, d.sources)) for c in packs[some] if (d := c.derivation)]
        pack_into(targets[some], jobs, threads)
        leave_sources(packs[some])


def _is_packed(content: Content) -> bool:
    made = content.derivation
    if made is None or made.function != "packed" or content.has_value:
        return False
    return content.type.dtype.itemsize in ITEMS and (len(made.sources) == 1 or content.type.dtype is FLOAT32)


def _batches(targets: Sequence[np.ndarray]) -> Iterator[slice]:
    """Runs of neighbours of at most so many bytes, or of one."""
    start = size = 0
    for k, target in enumerate(targets):
        if k > start and size + target.nbytes > BATCH:
            yield slice(start, k)
            start, size = k, 0
        size += target.nbytes
    if targets:
        yield slice(start, len(targets))


def leave_sources(contents: Sequence[Content]) -> None:
    """Give back what a compile, or packing, has looked at in mapped files."""
    for content in leaves(contents):
        leave(content.value)
