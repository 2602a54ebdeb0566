"""Quantised tensors: QuantizeLinear, DequantizeLinear, and the products and convolutions of them.

A real number is (q - zero point) * scale, with one scale per tensor, per element of an axis, or per block.
"""
from __future__ import annotations

import ml_dtypes
import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.contractions import per_axis, static_kernel, window_padding
from planish.capture.onnx.movement import reshaped, sliced
from planish.capture.onnx.narrow import FLOATS8, saturated
from planish.capture.onnx.pointwise import cast
from planish.capture.onnx.sizes import computed
from planish.ir import Node
from planish.ops.linear import matrix_product
from planish.ops.rules import FLOATS, ops
from planish.types import FLOAT32, INT16, INT32, UINT8, DType


@translates("QuantizeLinear")
def quantize_linear(call: Call) -> Node:
    """saturate(round(x / scale) + zero point), half to even; `precision`, or the scale's dtype, is the
    quotient's."""
    dtype, scale = _quantized_dtype(call), _along_axis(call, call[1])
    if call.attribute("precision"):
        wide = call.dtype_attribute("precision")
    else:
        wide = scale.dtype if scale.dtype in FLOATS else FLOAT32
    quotient = cast(call[0], wide) / cast(scale, wide)
    if dtype in FLOATS8:
        _require_no_zero_point(call)
        return saturated(quotient, dtype) if call.flag("saturate", True) else cast(quotient, dtype)
    steps = quotient if dtype.is_float else cast(ops.round(quotient), wide.accumulator)
    if call.has(2):
        steps = steps + cast(_along_axis(call, call[2]), steps.dtype)
    return cast(steps, dtype) if dtype.is_float else _saturated(steps, dtype)


def _quantized_dtype(call: Call) -> DType:
    if call.has(2):
        return call.dtype(2)
    return call.dtype_attribute("output_dtype") if call.attribute("output_dtype") else UINT8


def _require_no_zero_point(call: Call) -> None:
    """A zero point of floats of 8 bits says their dtype; it is 0."""
    zero = computed(call[2]) if call.has(2) else None
    if zero is not None and np.any(zero.astype(np.float32)):
        call.invalid("the zero point of floats of 8 bits is to be 0")


@translates("DequantizeLinear")
def dequantize_linear(call: Call) -> Node:
    """(x - zero point) * scale, computed in float32 and rounded once."""
    x, scale = _exact(call[0]), _along_axis(call, call[1])
    dtype = call.dtype_attribute("output_dtype") if call.attribute("output_dtype") else scale.dtype
    if dtype not in FLOATS:
        call.invalid(f"its result can't be {dtype.name}; output_dtype is to say what it is")
    if call.has(2) and call.dtype(2) in FLOATS8:
        _require_no_zero_point(call)
    elif call.has(2):
        x = x - _exact(_along_axis(call, call[2]))
    return cast(cast(x, FLOAT32) * cast(scale, FLOAT32), dtype)


def _exact(x: Node) -> Node:
    """In a dtype that holds every value of a quantised one, and every difference of two."""
    return cast(x, FLOAT32 if x.dtype.is_float else INT32)


def _along_axis(call: Call, x: Node) -> Node:
    """A scale or zero point, ready to broadcast: of the tensor, of each element of the axis, or of blocks of
    them."""
    if x.ndim == 0 or x.shape == (1,):
        return reshaped(x, ())
    axis, size = call.axis(default=1), call.attribute("block_size", 0)
    if not size:
        if x.ndim != 1:
            call.invalid(f"scales of shape {x.shape} are per block, and there is no block_size")
        return reshaped(x, tuple(x.shape[0] if i == axis else 1 for i in range(call.rank())))
    if size < 0 or x.ndim != call.rank():
        call.invalid(f"blocks of {size} elements can't have scales of shape {x.shape}")
    before, blocks, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
    each = ops.broadcast_to(reshaped(x, (*before, blocks, 1, *after)), shape=(*before, blocks, size, *after))
    return sliced(reshaped(each, (*before, blocks * size, *after)), axis, 0, call.shape()[axis])


# --- products: of bytes less their zero points, which are int16, summed in int32

def _less_zero_point(x: Node, zero: Node | None) -> Node:
    if x.dtype.is_float:
        return cast(x, FLOAT32)
    return cast(x, INT16) if zero is None else cast(x, INT16) - cast(zero, INT16)


@translates("MatMulInteger")
def matmul_integer(call: Call) -> Node:
    """(A - a's zero points) (B - b's), summed in int32; zero points per row of A and per column of B."""
    a, b = call[0], call[1]
    a_zero = _rows_or_columns(call[2], a, 0) if call.has(2) else None
    b_zero = _rows_or_columns(call[3], b, 1) if call.has(3) else None
    return matrix_product(_less_zero_point(a, a_zero), _less_zero_point(b, b_zero), INT32)


@translates("QLinearMatMul")
def qlinear_matmul(call: Call) -> Node:
    """Operands a, its scale and zero point, b and its, and those of the result."""
    a, b = (_less_zero_point(call[i], _rows_or_columns(call[i + 2], call[i], i)) for i in (0, 3))
    a_scale, b_scale = (_rows_or_columns(cast(call[i + 1], FLOAT32), call[i], i) for i in (0, 3))
    scale, zero = (reshaped(x, ()) if x.shape == (1,) else x for x in (cast(call[6], FLOAT32), call[7]))
    total = matrix_product(a, b, FLOAT32 if a.dtype.is_float else INT32)
    return _requantized(total, a_scale * b_scale / scale, zero)


def _rows_or_columns(x: Node, beside: Node, operand: int) -> Node:
    """A vector along the rows of the first operand; as it is along the columns of the second."""
    if x.shape in ((), (1,)):
        return reshaped(x, ())
    return reshaped(x, (*x.shape, 1)) if operand == 0 and x.ndim == 1 and beside.ndim > 1 else x


@translates("QLinearConv")
def qlinear_conv(call: Call) -> Node:
    """Operands x, its scale and zero point, w and its (also per channel), those of the result, bias."""
    x = _less_zero_point(call[0], reshaped(call[2], ()))
    w = _less_zero_point(call[3], _per_filter(call[5], call.rank()))
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
    if zero.dtype.is_float:
        return saturated(cast(total, FLOAT32) * scale, zero.dtype)
    steps = ops.round(cast(total, FLOAT32) * scale) + cast(zero, FLOAT32)
    return _saturated(steps, zero.dtype)


def _saturated(steps: Node, dtype: DType) -> Node:
    limits = ml_dtypes.iinfo(dtype.numpy)
    return cast(ops.minimum(ops.maximum(steps, float(limits.min)), float(limits.max)), dtype)


@translates("ConvInteger")
def conv_integer(call: Call) -> Node:
    """The convolution of x and w less their zero points, summed in int32."""
    x = _less_zero_point(call[0], reshaped(call[2], ()) if call.has(2) else None)
    w = _less_zero_point(call[1], _per_filter(call[3], call.rank()) if call.has(3) else None)
    return _int_conv(call, x, w)


def _int_conv(call: Call, x: Node, w: Node) -> Node:
    rank = x.ndim - 2
    kernel = static_kernel(call, w.shape[2:])
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, x.shape[2:], kernel, strides, dilations)
    return ops.conv(x, w, strides=strides, padding=padding, lhs_dilation=(1,) * rank, rhs_dilation=dilations,
                    groups=call.attribute("group", 1), result=INT32)
