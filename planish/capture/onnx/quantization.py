"""Quantised tensors of 8 and 16 bits: QuantizeLinear, DequantizeLinear, MatMulInteger,
ConvInteger, QLinearMatMul, QLinearConv.

A real number is (q - zero point) * scale, with one scale per tensor or one per element of an axis.
"""
from __future__ import annotations

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.contractions import per_axis, static_kernel, window_padding
from planish.capture.onnx.movement import reshaped
from planish.capture.onnx.pointwise import cast
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import FLOAT32, INT32, UINT8, DType


@translates("QuantizeLinear")
def quantize_linear(call: Call) -> Node:
    """saturate(round(x / scale) + zero point), half to even."""
    scale = _along_axis(call, call[1])
    x = cast(call[0], scale.dtype)
    dtype = _quantized_dtype(call)
    steps = cast(ops.round(x / scale), scale.dtype.accumulator)
    if call.has(2):
        steps = steps + cast(_along_axis(call, call[2]), steps.dtype)
    return _saturated(steps, dtype)


def _quantized_dtype(call: Call) -> DType:
    if call.has(2):
        return call.dtype(2)
    return call.dtype_attribute("output_dtype") if call.attribute("output_dtype") else UINT8


@translates("DequantizeLinear")
def dequantize_linear(call: Call) -> Node:
    x, scale = cast(call[0], INT32), _along_axis(call, call[1])
    if call.has(2):
        x = x - cast(_along_axis(call, call[2]), INT32)
    return cast(x, scale.dtype) * scale


def _along_axis(call: Call, x: Node) -> Node:
    """A vector along the axis, ready to broadcast. Blocks are not supported."""
    if call.attribute("block_size", 0):
        call.refuse("scales per block are not supported", "quantise per tensor or per axis")
    if x.ndim == 0 or x.shape == (1,):
        return reshaped(x, ())
    axis = call.axis(default=1)
    return reshaped(x, tuple(x.shape[0] if i == axis else 1 for i in range(call.rank())))


@translates("MatMulInteger")
def matmul_integer(call: Call) -> Node:
    """(A - a's zero points) (B - b's), summed in int32; zero points per row of A and per column of B."""
    a, b = cast(call[0], INT32), cast(call[1], INT32)
    if call.has(2):
        zero = cast(call[2], INT32)
        a = a - (reshaped(zero, (*zero.shape, 1)) if zero.ndim == 1 and zero.shape != (1,) else zero)
    if call.has(3):
        b = b - cast(call[3], INT32)
    return ops.matmul(a, b)


@translates("QLinearMatMul")
def qlinear_matmul(call: Call) -> Node:
    """Operands a, its scale and zero point, b and its, and those of the result."""
    a, b = (cast(call[i], INT32) - _rows_or_columns(cast(call[i + 2], INT32), call[i], i) for i in (0, 3))
    a_scale, b_scale = (_rows_or_columns(cast(call[i + 1], FLOAT32), call[i], i) for i in (0, 3))
    return _requantized(ops.matmul(a, b), a_scale * b_scale / cast(call[6], FLOAT32), call[7])


def _rows_or_columns(x: Node, beside: Node, operand: int) -> Node:
    """A vector along the rows of the first operand; as it is along the columns of the second."""
    if x.shape in ((), (1,)):
        return reshaped(x, ())
    return reshaped(x, (*x.shape, 1)) if operand == 0 and x.ndim == 1 and beside.ndim > 1 else x


@translates("QLinearConv")
def qlinear_conv(call: Call) -> Node:
    """Operands x, its scale and zero point, w and its (also per channel), those of the result, bias."""
    x = cast(call[0], INT32) - reshaped(cast(call[2], INT32), ())
    w = cast(call[3], INT32) - _per_filter(cast(call[5], INT32), call.rank())
    total = _int_conv(call, x, w)
    total = total + _per_channel(call[8], call.rank()) if call.has(8) else total
    scale = reshaped(call[1], ()) * _per_channel(call[4], call.rank()) / reshaped(call[6], ())
    return _requantized(total, scale, reshaped(call[7], ()))


def _per_filter(x: Node, rank: int) -> Node:
    return reshaped(x, ()) if x.shape in ((), (1,)) else reshaped(x, (x.shape[0], *[1] * (rank - 1)))


def _per_channel(x: Node, rank: int) -> Node:
    return reshaped(x, ()) if x.shape in ((), (1,)) else reshaped(x, (1, x.shape[0], *[1] * (rank - 2)))


def _requantized(total: Node, scale: Node, zero: Node) -> Node:
    """saturate(round(total * scale) + zero point), of the zero point's dtype."""
    steps = ops.round(cast(total, FLOAT32) * scale) + cast(zero, FLOAT32)
    return _saturated(steps, zero.dtype)


def _saturated(steps: Node, dtype: DType) -> Node:
    limits = np.iinfo(dtype.numpy)
    return cast(ops.minimum(ops.maximum(steps, float(limits.min)), float(limits.max)), dtype)


@translates("ConvInteger")
def conv_integer(call: Call) -> Node:
    """The convolution of x and w less their zero points, summed in int32."""
    x, w = cast(call[0], INT32), cast(call[1], INT32)
    x = x - reshaped(cast(call[2], INT32), ()) if call.has(2) else x
    w = w - _per_filter(cast(call[3], INT32), call.rank()) if call.has(3) else w
    return _int_conv(call, x, w)


def _int_conv(call: Call, x: Node, w: Node) -> Node:
    rank = x.ndim - 2
    kernel = static_kernel(call, w.shape[2:])
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, x.shape[2:], kernel, strides, dilations)
    return ops.conv(x, w, strides=strides, padding=padding, lhs_dilation=(1,) * rank, rhs_dilation=dilations,
                    groups=call.attribute("group", 1))
