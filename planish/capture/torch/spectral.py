"""Fourier transforms of short axes, as products with matrices of sines and cosines, summed in float64.

Up to LONGEST elements the product is about as fast as a fast transform, and is joined with what stands around
it. Longer ones are torch's, as host ops. A multi-dimensional transform is one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod

import numpy as np

from planish.capture.torch.call import Call, axis_of, cast
from planish.capture.torch.complex import Complex, on_complex
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT16, FLOAT64, is_static

LONGEST = 64
SCALES = {0: 0.0, 1: -0.5, 2: -1.0}  # torch's normalization -> the power of the number of elements


@on_complex("aten._fft_r2c.default")
def real_to_complex(call: Call, x: Node, axes: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *others, last = _axes(call, axes, x.ndim)
    length = _length(call, x.shape[last])
    pairs = ops.reshape(cast(x, FLOAT64), shape=(*x.shape, 1))
    bins = length // 2 + 1 if onesided else length
    pairs = _applied(pairs, last, _turns(length, length, bins, forward=True)[:, :1])
    for axis in others:
        pairs = _along(call, pairs, axis, forward=True)
    return Complex(_scaled(call, pairs, [x.shape[a] for a in (*others, last)], normalization))


@on_complex("aten._fft_c2c.default")
def complex_to_complex(
    call: Call, x: Complex, axes: Sequence[int], normalization: int, forward: bool
) -> Complex:
    pairs, given = cast(x.node, FLOAT64), _axes(call, axes, x.ndim)
    for axis in given:
        pairs = _along(call, pairs, axis, forward)
    return Complex(_scaled(call, pairs, [x.shape[a] for a in given], normalization))


@on_complex("aten._fft_c2r.default")
def complex_to_real(call: Call, x: Complex, axes: Sequence[int], normalization: int, length: int) -> Node:
    """Of the last axis only the first half is there: all but its ends stand for their conjugates too."""
    *others, last = _axes(call, axes, x.ndim)
    size, bins = _length(call, length), _length(call, x.shape[last])
    if bins != size // 2 + 1:
        call.refuse("half a spectrum of another length")
    pairs = cast(x.node, FLOAT64)
    for axis in others:
        pairs = _along(call, pairs, axis, forward=False)
    twice = np.full((bins, 1, 1, 1), 2.0)
    twice[0] = 1
    if size % 2 == 0:
        twice[-1] = 1
    pairs = _applied(pairs, last, (_turns(size, bins, size, forward=False) * twice)[..., :1])
    scaled = _scaled(call, pairs, [*(x.shape[a] for a in others), size], normalization)
    return ops.reshape(scaled, shape=call.shape)


def _axes(call: Call, axes: Sequence[int], rank: int) -> list[int]:
    if call.dtype is FLOAT16 or not axes:
        call.refuse("a transform of halves, or of no axis")
    return [axis_of(a, rank) for a in axes]


def _length(call: Call, size: object) -> int:
    if not isinstance(size, int) or not is_static(size) or not 0 < size <= LONGEST:
        call.refuse(f"a transform of {size} elements; up to {LONGEST} are native")
    return size


def _along(call: Call, pairs: Node, axis: int, forward: bool) -> Node:
    length = _length(call, pairs.shape[axis])
    return _applied(pairs, axis, _turns(length, length, length, forward))


def _applied(pairs: Node, axis: int, matrix: np.ndarray) -> Node:
    """A matrix [from, part, to, part] applied along `axis` and the last one."""
    last = pairs.ndim - 1
    result = ops.dot_general(
        pairs, constant(matrix), lhs_contract=(axis, last), rhs_contract=(0, 1), lhs_batch=(), rhs_batch=()
    )
    return ops.transpose(result, axes=(*range(axis), last - 1, *range(axis, last - 1), last))


def _turns(length: int, rows: int, columns: int, forward: bool) -> np.ndarray:
    """exp(-2 pi i n k / length), or its conjugate, as real matrices: [n, part, k, part]."""
    angles = np.outer(np.arange(rows), np.arange(columns)) % length * (2 * pi / length)
    cos, sin = np.cos(angles), np.sin(angles) * (-1 if forward else 1)
    return np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], axis=1)


def _scaled(call: Call, pairs: Node, lengths: Sequence[object], normalization: int) -> Node:
    count = prod(n for n in lengths if isinstance(n, int))
    scale = float(count) ** SCALES[normalization]
    return cast(pairs if scale == 1 else pairs * scale, call.dtype)
