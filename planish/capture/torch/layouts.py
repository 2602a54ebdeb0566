"""How a tensor lies in memory: the order of its axes, where they fill a block without gaps.

A compiled program takes and gives contiguous arrays. A tensor whose axes lie in another order (a transposed
weight, channels_last) is contiguous once its axes are permuted: the graph takes it so and transposes it back,
which costs nothing at a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planish.capture.torch.sizes import Sizes
from planish.types import evaluate_dim, is_static
from planish.types.dim import Dim


def memory_order(tensor: Any, sizes: Sizes) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest of a (fake) tensor that fills a block without gaps; None for
    any other (slices with steps, expanded axes)."""
    shape, strides = ([sizes.dim(d) for d in dims] for dims in (tensor.shape, tensor.stride()))
    hints = [_hinted(s, sizes) for s in strides]
    lengths = [_hinted(d, sizes) for d in shape]
    order = sorted(range(len(shape)), key=lambda i: (-hints[i], -lengths[i], i))
    expected: Dim = 1
    for axis in reversed(order):
        if shape[axis] == 1:
            continue
        if strides[axis] != expected:
            return None
        expected = expected * shape[axis]
    return _plain(order, shape)


def _plain(order: Sequence[int], shape: Sequence[Dim]) -> tuple[int, ...]:
    """In their own order where axes of size 1 do not tell."""
    moved = [i for i in order if shape[i] != 1]
    return tuple(range(len(shape))) if moved == sorted(moved) else tuple(order)


def _hinted(dim: Dim, sizes: Sizes) -> int:
    return dim if is_static(dim) else evaluate_dim(dim, sizes.hints)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def is_identity(order: Sequence[int]) -> bool:
    return tuple(order) == tuple(range(len(order)))
