"""ATen that reads and writes at indices. Indices out of range raise, as in eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planish.capture.torch.call import (
    Call,
    as_node,
    axis_of,
    broadcast,
    cast,
    number,
    reshaped,
    translates,
    transposed,
)
from planish.capture.torch.distances import norm_along
from planish.capture.torch.layouts import inverse
from planish.capture.torch.movement import sliced
from planish.capture.torch.selection import flattened, put_by_mask
from planish.ir import Node
from planish.ops.rules import ops, size_like
from planish.ops.window import identity_of
from planish.types import BOOL, INT64, broadcast_shapes, element_count
from planish.types.dim import Dim

Indices = Sequence[Node | None]


def check_range(call: Call, index: Node, size: Dim, *, wraps: bool, error: str = "IndexError") -> None:
    """Indices lie in [0, size); with `wraps`, from -size on."""
    index, n = cast(index, INT64), size_like(index, size, INT64)
    low = ops.neg(n) if wraps else number(0, INT64)
    inside = ops.bitwise_and(ops.ge(index, low), ops.lt(index, n))
    call.check(inside, error, f"index out of range: {call.overload} takes indices into {size} elements")


# --- reading


@translates("aten.embedding.default")
def embedding(call: Call, weight: Node, index: Node, *options: Any) -> Node:
    check_range(call, index, weight.shape[0], wraps=False)
    return ops.take(weight, index, axis=0)


@translates("aten.index_select.default")
def index_select(call: Call, x: Node, axis: int, index: Node) -> Node:
    if not x.ndim:
        return x
    axis = axis_of(axis, x.ndim)
    check_range(call, index, x.shape[axis], wraps=False)
    return ops.take(x, reshaped(index, (1,)) if not index.ndim else index, axis=axis)


@translates("aten.gather.default")
def gather(call: Call, x: Node, axis: int, index: Node, sparse_grad: bool) -> Node:
    if not x.ndim:
        return broadcast(x, index.shape)
    if not index.ndim:
        return reshaped(gather(call, x, axis, reshaped(index, (1,)), False), ())
    axis = axis_of(axis, x.ndim)
    check_range(call, index, x.shape[axis], wraps=False, error="RuntimeError")
    return ops.take_along(x, index, axis=axis)


@translates("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(call: Call, x: Node, indices: Indices) -> Node:
    """NumPy's advanced indexing by integer tensors."""
    axes, rows = _joint(call, x, indices)
    if call.overload != "aten._unsafe_index.Tensor":
        _check_all(call, x, indices)
    rest = [i for i in range(x.ndim) if i not in axes]
    picked = rows[0].ndim
    if len(axes) == 1:
        return ops.take(x, rows[0], axis=axes[0])
    read = ops.gather_nd(transposed(x, [*axes, *rest]), _stacked(rows))
    if axes != list(range(axes[0], axes[0] + len(axes))):
        return read  # indices with axes between them: theirs come first
    before = sum(1 for i in rest if i < axes[0])
    order = [*range(picked, picked + before), *range(picked), *range(picked + before, read.ndim)]
    return transposed(read, order)


def _joint(call: Call, x: Node, indices: Indices) -> tuple[list[int], list[Node]]:
    """The axes that are indexed, and the indices, broadcast against each other."""
    found = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any(i.dtype is BOOL for _, i in found):
        call.refuse("a mask as an index gives a size that depends on its values")
    shape = broadcast_shapes(*(i.shape for _, i in found))
    return [axis for axis, _ in found], [broadcast(cast(i, INT64), shape) for _, i in found]


def _check_all(call: Call, x: Node, indices: Indices) -> None:
    for axis, i in enumerate(indices):
        if i is not None:
            check_range(call, i, x.shape[axis], wraps=True)


def _stacked(rows: Sequence[Node]) -> Node:
    """Indices side by side along a new last axis."""
    columns = [reshaped(r, (*r.shape, 1)) for r in rows]
    return ops.concat(*columns, axis=rows[0].ndim) if len(columns) > 1 else columns[0]


# --- writing


@translates("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(call: Call, x: Node, indices: Indices, values: Node, accumulate: bool, *unsafe: Any) -> Node:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is BOOL:
        return put_by_mask(call, x, indices[0], cast(values, x.dtype), accumulate)
    axes, rows = _joint(call, x, indices)
    if call.overload == "aten.index_put.default":
        _check_all(call, x, indices)
    rest = [i for i in range(x.ndim) if i not in axes]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    before = sum(1 for i in rest if i < axes[0]) if adjacent else 0
    picked = rows[0].shape
    wanted = (*(x.shape[i] for i in rest[:before]), *picked, *(x.shape[i] for i in rest[before:]))
    updates = broadcast(cast(values, x.dtype), wanted)
    order = [*range(before, before + len(picked)), *range(before), *range(before + len(picked), updates.ndim)]
    front = [*axes, *rest]
    written = ops.scatter_nd(
        transposed(x, front),
        _stacked(rows),
        transposed(updates, order),
        reduction="add" if accumulate else "none",
    )
    return transposed(written, inverse(front))


@translates("aten.take.default")
def take(call: Call, x: Node, index: Node) -> Node:
    """The elements at places of x flattened."""
    check_range(call, index, element_count(x.shape), wraps=True)
    return ops.take(flattened(x), index, axis=0)


@translates("aten.put.default")
def put(call: Call, x: Node, index: Node, source: Node, accumulate: bool) -> Node:
    """x with the elements at places of it flattened replaced, or added to."""
    check_range(call, index, element_count(x.shape), wraps=True)
    rows = reshaped(cast(index, INT64), (element_count(index.shape), 1))
    how = "add" if accumulate else "none"
    written = ops.scatter_nd(flattened(x), rows, flattened(cast(source, x.dtype)), reduction=how)
    return reshaped(written, x.shape)


@translates("aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default")
def scatter(call: Call, x: Node, axis: int, index: Node, source: Any) -> Node:
    return _scattered(call, x, axis, index, source, "add" if "scatter_add" in call.overload else "none")


_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@translates("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_with(call: Call, x: Node, axis: int, index: Node, source: Any, reduction: str) -> Node:
    return _scattered(call, x, axis, index, source, _REDUCTIONS[reduction])


@translates("aten.scatter_reduce.two")
def scatter_reduce(call: Call, x: Node, axis: int, index: Node, source: Node, reduction: str,
                   own: bool) -> Node:
    """Without `own`, what is written to does not count itself: it starts from the reduction's identity."""
    if reduction == "mean":
        return _scattered_mean(call, x, axis, index, source, own)
    kind = _REDUCTIONS[reduction]
    start = x if own else _scattered(call, x, axis, index, identity_of(_WINDOWED[kind], x.dtype), "none")
    return _scattered(call, start, axis, index, source, kind)


@translates("aten.index_reduce.default")
def index_reduce(call: Call, x: Node, axis: int, index: Node, source: Node, reduction: str,
                 own: bool) -> Node:
    """scatter_reduce with one index for each row of the source."""
    axis = axis_of(axis, x.ndim)
    rows = tuple(d if i == axis else 1 for i, d in enumerate(source.shape))
    spread = broadcast(reshaped(index, rows), source.shape)
    return scatter_reduce(call, x, axis, spread, source, reduction, own)


_WINDOWED = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def _scattered_mean(call: Call, x: Node, axis: int, index: Node, source: Node, own: bool) -> Node:
    """Sum over count; integers floor."""
    zeros, wide = broadcast(number(0, x.dtype), x.shape), x.dtype.accumulator
    start = x if own else _scattered(call, x, axis, index, 0, "none")
    total = _scattered(call, start, axis, index, source, "add")
    count = _scattered(call, zeros, axis, index, 1, "add")
    count = count + number(1, x.dtype) if own else ops.maximum(count, number(1, x.dtype))
    if x.dtype.is_integer:
        return ops.floor_div(total, count)
    return cast(cast(total, wide) / cast(count, wide), x.dtype)


def _scattered(call: Call, x: Node, axis: int, index: Node, source: Any, reduction: str) -> Node:
    if not x.ndim:
        first = reshaped(x, (1,))
        rows = broadcast(index, (1,)) if not index.ndim else index
        given = broadcast(source, (1,)) if isinstance(source, Node) and not source.ndim else source
        return reshaped(_scattered(call, first, 0, rows, given, reduction), ())
    if not index.ndim:
        index = reshaped(index, (1,))
        source = reshaped(source, (1,)) if isinstance(source, Node) else source
    axis = axis_of(axis, x.ndim)
    check_range(call, index, x.shape[axis], wraps=False, error="RuntimeError")
    updates = as_node(source, x.dtype)
    if updates.ndim:
        for i, d in enumerate(index.shape):
            updates = sliced(updates, i, 0, d)
    else:
        updates = broadcast(updates, index.shape)
    return ops.scatter_along(x, index, updates, axis=axis, reduction=reduction)


@translates("aten.embedding_renorm.default")
def embedding_renorm(call: Call, weight: Node, index: Node, most: float, p: float) -> Node:
    """Rows that are read and whose p-norm is greater than `most` are brought to it."""
    check_range(call, index, weight.shape[0], wraps=False)
    places = flattened(cast(index, INT64))
    rows = cast(ops.take(weight, places, axis=0), weight.dtype.accumulator)
    size = norm_along(rows, p, keepdims=True)
    scaled = ops.select(ops.gt(size, most), rows * (most / (size + 1e-7)), rows)
    where = reshaped(places, (*places.shape, 1))
    return ops.scatter_nd(weight, where, cast(scaled, weight.dtype), reduction="none")


@translates("aten.embedding_dense_backward.default")
def embedding_backward(call: Call, g: Node, index: Node, rows: Dim, padding: int, by_frequency: bool) -> Node:
    """Each row's cotangents, summed in the order they stand."""
    if by_frequency:
        call.refuse("scale_grad_by_freq is not supported")
    where = reshaped(cast(index, INT64), (*index.shape, 1))
    wide = cast(g, g.dtype.accumulator)
    if padding >= 0:
        wide = ops.select(ops.eq(where, number(padding, INT64)), number(0, wide.dtype), wide)
    zeros = broadcast(number(0, wide.dtype), (rows, g.shape[-1]))
    return cast(ops.scatter_nd(zeros, where, wide, reduction="add"), call.dtype)
