"""The arrays of a program's constants, made from what they are derived from.

In: contents. Out: their arrays, each starting on a cache line, as native code wants them. Panels are packed
by native code, all at once; any other derivation runs as NumPy has it.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planish.ops.content import Content, evaluate
from planish.runtime.packing import ITEMS, pack_all
from planish.types import FLOAT32


def arrays_of(contents: Sequence[Content], threads: int) -> tuple[np.ndarray, ...]:
    """The arrays, which the contents then have as their values."""
    packs = {c: c.derivation for c in contents if _is_packed(c)}
    jobs = [(d.parameters, *map(evaluate, d.sources)) for d in packs.values() if d is not None]
    for content, panels in zip(packs, pack_all(jobs, threads) if jobs else ()):
        content.settle(panels)
    return tuple(c.value for c in contents)


def _is_packed(content: Content) -> bool:
    made = content.derivation
    if made is None or made.function != "packed" or content.has_value:
        return False
    return content.type.dtype.itemsize in ITEMS and (len(made.sources) == 1 or content.type.dtype is FLOAT32)
