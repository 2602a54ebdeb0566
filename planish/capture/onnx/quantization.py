"""Quantised tensors of 8 and 16 bits: QuantizeLinear, DequantizeLinear, MatMulInteger, ConvInteger.

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
from planish.types import INT32, UINT8, DType


@translates("QuantizeLinear")
def quantize_linear(call: Call) -> Node:
    """saturate(round(x / scale) + zero point), half to even."""
    scale = _along_axis(call, call[1])
    x = cast(call[0], scale.dtype)
    dtype = _quantized_dtype(call)
    steps = cast(ops.round(x / scale), scale.dtype.accumulator)
    if call.has(2):
        steps = steps + cast(_along_axis(call, call[2]), steps.dtype)
    limits = np.iinfo(dtype.numpy)
    return cast(ops.minimum(ops.maximum(steps, float(limits.min)), float(limits.max)), dtype)


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


@translates("ConvInteger")
def conv_integer(call: Call) -> Node:
    """The convolution of x and w less their zero points, summed in int32."""
    x, w = cast(call[0], INT32), cast(call[1], INT32)
    rank = x.ndim - 2
    kernel = static_kernel(call, w.shape[2:])
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, x.shape[2:], kernel, strides, dilations)
    x = x - reshaped(cast(call[2], INT32), ()) if call.has(2) else x
    if call.has(3):
        zero = cast(call[3], INT32)
        w = w - (reshaped(zero, (zero.shape[0], *[1] * (rank + 1))) if zero.ndim == 1 else zero)
    return ops.conv(x, w, strides=strides, padding=padding, lhs_dilation=(1,) * rank, rhs_dilation=dilations,
                    groups=call.attribute("group", 1))
