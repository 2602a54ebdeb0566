"""DFT, STFT, MelWeightMatrix. Complex numbers are a last axis of size 2.

A transform is one contraction with a matrix of sines and cosines, over the transformed axis and the last one
at once. The matrix is a constant where the sizes are known, else computed in float64 at run time.
"""
from __future__ import annotations

from math import pi

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import MOST_COMPUTED, make_source, size_node
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT32, FLOAT64, INT64, Dim, DType
from planish.types.dim import minimum


@translates("DFT", since=17)
def dft_by_attribute(call: Call) -> Node:
    return _dft(call, call.axis(default=1))


@translates("DFT", since=20)
def dft(call: Call) -> Node:
    axis = call.integer(2, "axis") if call.has(2) else -2
    return _dft(call, call.as_axis(axis, call.rank()))


def _dft(call: Call, axis: int) -> Node:
    x, inverse, onesided = call[0], call.flag("inverse"), call.flag("onesided")
    size = x.shape[axis]
    if axis == x.ndim - 1:
        call.invalid(f"axis {axis} is the one that holds real and imaginary parts")
    if call.has(1):
        length, = call.sizes(1, "dft_length")
    else:
        length = (size - 1) * 2 if inverse and onesided else size
    if inverse and onesided:
        used = minimum(size, length // 2 + 1)
        return _contracted(x, axis, _real_inverse(length, used, x.shape[-1], x.dtype))
    bins, used = length // 2 + 1 if onesided else length, minimum(size, length)
    return _contracted(x, axis, _transform(length, used, bins, x.shape[-1], inverse, x.dtype))


def _contracted(x: Node, axis: int, matrix: Node) -> Node:
    """matrix [from, real or imaginary, to, real or imaginary] applied along `axis` and the last axis."""
    wide = x.dtype.accumulator
    used = cast(sliced(x, axis, 0, matrix.shape[0]), wide)
    result = ops.dot_general(used, cast(matrix, wide), lhs_contract=(axis, x.ndim - 1), rhs_contract=(0, 1),
                             lhs_batch=(), rhs_batch=())
    order = (*range(axis), x.ndim - 2, *range(axis, x.ndim - 2), x.ndim - 1)
    return cast(ops.transpose(result, axes=order), x.dtype)


def _transform(length: Dim, size: Dim, bins: Dim, parts: Dim, inverse: bool, dtype: DType) -> Node:
    """exp(-2 pi i n k / length), or its conjugate / length, of n < size and k < bins."""
    cos, sin = _circle(length, size, bins, dtype)
    if inverse:
        scale = 1 / cast(size_node(length, FLOAT64), FLOAT64)
        cos, sin = cos * cast(scale, cos.dtype), -sin * cast(scale, cos.dtype)
    of_real = _pair(cos, -sin)
    return of_real if parts == 1 else ops.concat(of_real, _pair(sin, cos), axis=1)


def _pair(real: Node, imaginary: Node) -> Node:
    """[n, k], [n, k] -> [n, 1, k, 2]"""
    n, k = real.shape
    return ops.concat(*(reshaped(part, (n, 1, k, 1)) for part in (real, imaginary)), axis=3)


def _real_inverse(length: Dim, bins: Dim, parts: Dim, dtype: DType) -> Node:
    """[bins, parts, length, 1]: all bins but 0 and length / 2 stand for their conjugates too."""
    cos, sin = _circle(length, bins, length, dtype)
    k = make_source("iota", shape=(bins, 1), axis=0, dtype=INT64)
    n = size_node(length, INT64)
    alone = ops.bitwise_or(ops.eq(k, number(0, INT64)), ops.eq(k * 2, n))
    times = ops.select(alone, number(1, FLOAT64), number(2, FLOAT64))
    weight = cast(times / cast(n, FLOAT64), cos.dtype)
    shape = (bins, 1, length, 1)
    real = reshaped(cos * weight, shape)
    return real if parts == 1 else ops.concat(real, reshaped(-sin * weight, shape), axis=1)


def _circle(length: Dim, rows: Dim, columns: Dim, dtype: DType) -> tuple[Node, Node]:
    """cos and sin of 2 pi (i j mod length) / length: the product is reduced while it is a whole number."""
    wide = dtype.accumulator
    if (isinstance(length, int) and isinstance(rows, int) and isinstance(columns, int)
            and rows * columns <= 4 * MOST_COMPUTED):
        angles = np.outer(np.arange(rows), np.arange(columns)) % length * (2 * pi / length)
        return constant(np.cos(angles).astype(wide.numpy)), constant(np.sin(angles).astype(wide.numpy))
    i, j = (make_source("iota", shape=(rows, columns), axis=a, dtype=INT64) for a in (0, 1))
    turns = cast(ops.rem(i * j, size_node(length, INT64)), FLOAT64) / size_node(length, FLOAT64)
    return cast(ops.cos(turns * (2 * pi)), wide), cast(ops.sin(turns * (2 * pi)), wide)


@translates("STFT", since=17)
def stft(call: Call) -> Node:
    """The transform of frames of the signal [batch, length, parts], each times the window."""
    x = call[0]
    step, = call.sizes(1, "frame_step")
    length: Dim = x.shape[1]
    if call.has(3):
        length, = call.sizes(3, "frame_length")
    elif call.has(2):
        length = call.shape(2)[0]
    frames = (x.shape[1] - length) // step + 1
    start, place = (make_source("iota", shape=(frames, length), axis=a, dtype=INT64) for a in (0, 1))
    rows = ops.take(x, start * size_node(step, INT64) + place, axis=1)
    if call.has(2):
        rows = rows * reshaped(call[2], (length, 1))
    bins = length // 2 + 1 if call.flag("onesided", True) else length
    return _contracted(rows, 2, _transform(length, length, bins, x.shape[2], False, x.dtype))


@translates("MelWeightMatrix", since=17)
def mel_weight_matrix(call: Call) -> Node:
    """Triangles between bins evenly spaced on the mel scale, [dft_length / 2 + 1, num_mel_bins]."""
    count, length = call.integer(0, "num_mel_bins"), call.integer(1, "dft_length")
    rate, low, high = (cast(reshaped(call[i], ()), FLOAT64) for i in (2, 3, 4))
    low, high = (ops.log1p(edge / 700) * (2595 / np.log(10)) for edge in (low, high))
    mel = make_source("iota", shape=(count + 2,), axis=0, dtype=FLOAT64) * ((high - low) / (count + 2)) + low
    hertz = 700 * ops.expm1(mel * (np.log(10) / 2595))
    bins = ops.floor((length + 1) * hertz / rate)
    left, centre, right = (sliced(bins, 0, i, i + count) for i in range(3))
    at = make_source("iota", shape=(length // 2 + 1, count), axis=0, dtype=FLOAT64)
    rise, fall = centre - left, right - centre
    rising = ops.select(ops.eq(rise, number(0, FLOAT64)), number(1, FLOAT64), (at - left) / rise)
    after = ops.bitwise_and(ops.gt(at, centre), ops.lt(at, right))
    falling = ops.select(after, (right - at) / fall, number(0, FLOAT64))
    below = ops.bitwise_and(ops.ge(at, left), ops.le(at, centre))
    dtype = call.dtype_attribute("output_datatype") if call.attribute("output_datatype") else FLOAT32
    return cast(ops.select(below, rising, falling), dtype)
