"""Gather and Scatter families, OneHot, ReverseSequence, TensorScatter. Negative indices are from the end."""
from __future__ import annotations

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import make_source, size_node
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT64


@translates("Gather")
def gather(call: Call) -> Node:
    return ops.take(call[0], call[1], axis=call.axis())


@translates("GatherElements")
def gather_elements(call: Call) -> Node:
    return ops.take_along(call[0], call[1], axis=call.axis())


@translates("GatherND")
def gather_nd(call: Call) -> Node:
    return ops.gather_nd(call[0], call[1], batch_dims=call.attribute("batch_dims", 0))


@translates("ScatterElements", "Scatter")
def scatter_elements(call: Call) -> Node:
    return ops.scatter_along(
        call[0], call[1], call[2], axis=call.axis(), reduction=call.attribute("reduction", "none")
    )


@translates("ScatterND")
def scatter_nd(call: Call) -> Node:
    return ops.scatter_nd(call[0], call[1], call[2], reduction=call.attribute("reduction", "none"))


@translates("OneHot")
def one_hot(call: Call) -> Node:
    """off everywhere, on at the index; indices out of [-depth, depth) give rows of off."""
    (depth,) = call.sizes_at_run_time(1, "depth")
    rank = call.rank() + 1
    axis = call.axis(default=-1, rank=rank)
    indices = cast(call[0], INT64)
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    wrapped = ops.select(ops.lt(indices, number(0, INT64)), indices + size_node(depth, INT64), indices)
    place = make_source(
        "iota", shape=tuple(depth if i == axis else 1 for i in range(rank)), axis=axis, dtype=INT64
    )
    off, on = (reshaped(part, ()) for part in (_element(call[2], 0), _element(call[2], 1)))
    return ops.select(ops.eq(reshaped(wrapped, shape), place), on, off)


def _element(x: Node, i: int) -> Node:
    return ops.slice(x, starts=(i,), stops=(i + 1,), steps=(1,))


@translates("ReverseSequence")
def reverse_sequence(call: Call) -> Node:
    """Along the time axis, element i of a sequence of length n comes from n - 1 - i where i < n."""
    x, batch, time = call[0], call.axis("batch_axis", 1), call.axis("time_axis", 0)
    lengths = cast(call[1], INT64)
    at = make_source("iota", shape=x.shape, axis=time, dtype=INT64)
    n = reshaped(lengths, tuple(d if i == batch else 1 for i, d in enumerate(x.shape)))
    source = ops.select(ops.lt(at, n), n - 1 - at, at)
    return ops.take_along(x, source, axis=time)


@translates("TensorScatter", since=24)
def tensor_scatter(call: Call) -> Node:
    """The cache with the update in it, per batch from its write index on; circular: modulo its length."""
    cache, update, axis = call[0], call[1], call.axis(default=-2)
    length, count = cache.shape[axis], update.shape[axis]
    batch = (cache.shape[0], *[1] * (cache.ndim - 1))
    start = reshaped(cast(call[2], INT64), batch) if call.has(2) else number(0, INT64)
    at = make_source("iota", shape=cache.shape, axis=axis, dtype=INT64) - start
    if call.attribute("mode", "linear") == "circular":
        at = ops.mod(at, size_node(length, INT64))
    new = ops.bitwise_and(ops.ge(at, number(0, INT64)), ops.lt(at, size_node(count, INT64)))
    source = ops.select(new, at, number(0, INT64))
    return ops.select(new, ops.take_along(update, source, axis=axis), cache)
