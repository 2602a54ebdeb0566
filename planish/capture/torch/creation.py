"""ATen that makes tensors of sizes and numbers."""

from __future__ import annotations

from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, number, translates
from planish.capture.torch.movement import positions
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import FLOAT64, INT64, DType


@translates("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(call: Call, first: Any, *arguments: Any) -> Node:
    value = arguments[0] if call.overload != "aten.new_full.default" else arguments[1]
    return broadcast(as_node(value, call.dtype), call.shape)


@translates("aten.scalar_tensor.default")
def scalar_tensor(call: Call, value: Any, *options: Any) -> Node:
    return as_node(value, call.dtype)


@translates(
    "aten.zeros.default",
    "aten._efficientzerotensor.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
    "aten.zero.default",
)
def zeros(call: Call, *arguments: Any) -> Node:
    """Also what torch leaves uninitialised."""
    return broadcast(number(0, call.dtype), call.shape)


@translates("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(call: Call, *arguments: Any) -> Node:
    return broadcast(number(1, call.dtype), call.shape)


@translates("aten.arange.start_step")
def arange(call: Call, start: Any, stop: Any, step: Any, *options: Any) -> Node:
    """start + i step, computed in the widest integer or float; for whole results torch cuts the fractions of
    start and step off before."""
    dtype = INT64 if call.dtype.is_integer else FLOAT64
    place = positions(call, call.shape, 0)
    index = ops.cast(place, dtype=dtype) if dtype is FLOAT64 else place
    if dtype is INT64:
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    result = as_node(start, dtype) + index * as_node(step, dtype)
    return result if dtype is call.dtype else ops.cast(result, dtype=call.dtype)


@translates("prims.iota.default")
def iota(call: Call, length: Any, start: Any, step: Any, dtype: DType, *options: Any) -> Node:
    result = as_node(start, INT64) + positions(call, call.shape, 0) * as_node(step, INT64)
    return result if call.dtype is INT64 else ops.cast(result, dtype=call.dtype)
