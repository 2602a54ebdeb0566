"""ATen views by strides: elements by their places in a tensor's memory."""

from __future__ import annotations

from collections.abc import Sequence

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped, translates, transposed
from planish.capture.torch.layouts import inverse
from planish.capture.torch.movement import positions
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT64, Dim, element_count, is_static


@translates("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(call: Call, x: Node, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim | None) -> Node:
    """The elements at offset + i . strides of x's memory."""
    flat, places = _memory(call, x, shape, strides, offset)
    return reshaped(flat, call.shape) if places is None else ops.take(flat, places, axis=0)


@translates("aten.as_strided_scatter.default", "prims.as_strided_scatter.default")
def as_strided_scatter(call: Call, x: Node, source: Node, shape: Sequence[Dim], strides: Sequence[Dim],
                       offset: Dim | None) -> Node:
    """x with those elements replaced."""
    flat, places = _memory(call, x, shape, strides, offset)
    source = cast(source, x.dtype)
    if places is None:
        written = reshaped(source, flat.shape)
    else:
        written = ops.scatter_nd(flat, reshaped(places, (*places.shape, 1)), source, reduction="none")
    order = call.memory_order(0) or ()
    return transposed(reshaped(written, [x.shape[i] for i in order]), inverse(order))


def _memory(call: Call, x: Node, shape: Sequence[Dim], strides: Sequence[Dim],
            offset: Dim | None) -> tuple[Node, Node | None]:
    """x's elements as they lie in memory, and the places of a view there; None: all of them, in order."""
    order = call.memory_order(0)
    if order is None:
        call.refuse("a view of memory with gaps is not supported")
    flat = reshaped(transposed(x, order), (element_count(x.shape),))
    expected: Dim = 1
    in_order = not offset and element_count(shape) == flat.shape[0]
    for size, stride in zip(reversed(shape), reversed(strides)):
        in_order = in_order and (stride == expected or size == 1)
        expected = expected * size
    if in_order:
        return flat, None
    if not all(map(is_static, (*shape, *strides, offset or 0))):
        call.refuse("a view of memory by symbolic strides is not supported")
    places = broadcast(number(offset or 0, INT64), shape)
    for axis, stride in enumerate(strides):
        places = places + positions(call, shape, axis) * number(stride, INT64)
    return flat, places
