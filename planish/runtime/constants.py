"""The arrays of a program's constants, made from what they are derived from.

In: contents. Out: their arrays, each starting on a cache line, as native code wants them. Panels are packed
by native code, some megabytes of weights at a time; any other derivation runs as NumPy has it. Weights in
mapped files are in memory only while they are read.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from planish.ops.content import Content, evaluate, leaves
from planish.runtime.packing import ITEMS, LINE, empty_panels, fresh, pack_into
from planish.runtime.resident import copy_and_leave, leave
from planish.types import FLOAT32

BATCH = 16 << 20  # bytes of panels that are packed at once


def arrays_of(contents: Sequence[Content], threads: int) -> tuple[np.ndarray, ...]:
    """The arrays, which derived contents then have as their values."""
    _leave(leaves(contents))  # what a compile has looked at
    _pack(contents, threads)
    values = {c: c.value for c in contents}
    moved = [c for c, value in values.items() if not _is_aligned(value) or _is_lent(c, value)]
    for content, copy in zip(moved, fresh([(values[c].shape, values[c].dtype) for c in moved])):
        copy_and_leave(values[content], copy)
        copy.flags.writeable = False
        values[content] = copy
        if content.derivation is not None:
            content.settle(copy)
    return tuple(values[c] for c in contents)


def _is_aligned(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and array.ctypes.data % LINE == 0


def _is_lent(content: Content, value: np.ndarray) -> bool:
    """Whether a value lies in memory that is lent."""
    return any(c.is_lent and np.may_share_memory(c.value, value) for c in leaves([content]))


def _pack(contents: Sequence[Content], threads: int) -> None:
    """Settle the contents that are panels."""
    packs = list(dict.fromkeys(c for c in contents if _is_packed(c)))
    targets = empty_panels([(c.derivation.parameters, c.type.dtype.numpy) for c in packs if c.derivation])
    for some in _batches(targets):
        jobs = [(d.parameters, *map(evaluate, d.sources)) for c in packs[some] if (d := c.derivation)]
        pack_into(targets[some], jobs, threads)
        _leave(leaves(packs[some]))
    for content, panels in zip(packs, targets):
        content.settle(panels)


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


def _leave(contents: Iterable[Content]) -> None:
    for content in contents:
        leave(content.value)
