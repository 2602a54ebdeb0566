"""NumPy's functions that read or write by index: take, put, diagonal, fill, insert, delete."""

from __future__ import annotations

from typing import Any

import numpy as np

from planish.capture.numpy.indexing import (
    check_storable,
    fitted,
    setitem,
    spread,
    stacked,
    transposed,
    wrapped,
)
from planish.capture.numpy.registry import implements
from planish.capture.numpy.shape import one_axis, reshape, slice_axis
from planish.capture.numpy.tracer import (
    Step,
    Tracer,
    as_tracer,
    cast,
    emit,
    fresh,
    known,
    static,
    unsupported,
)
from planish.capture.numpy.ufuncs import write_out
from planish.ir import Node, constant


@implements(np.take, method=True)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Tracer:
    x = as_tracer(a)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim)
    index, size = as_tracer(indices), x.shape[axis]
    if index.dtype.kind not in "iub":
        raise TypeError(
            f"Cannot cast array data from {index.dtype!r} to dtype('int64') according to the rule 'safe'"
        )
    if mode == "raise":
        places = cast(wrapped(index, size, axis), np.int64)
    elif mode == "clip":
        places = emit(
            "minimum",
            emit("maximum", cast(index, np.int64), constant(np.int64(0))),
            constant(np.int64(size - 1)),
        )
    else:
        places = emit("mod", cast(index, np.int64), constant(np.int64(size)))
    node = emit("take", x.node, places, axis=axis)
    if out is not None:
        return write_out(out, node)
    return fresh(node, scalar=node.shape == ())


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Tracer:
    x, index = as_tracer(arr), as_tracer(indices)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    if index.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if index.ndim != x.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    axis = one_axis(axis, x.ndim)
    frame = np.broadcast_shapes(*((*t.shape[:axis], 1, *t.shape[axis + 1 :]) for t in (x, index)))
    places = spread(
        cast(wrapped(index, x.shape[axis], axis), np.int64),
        (*frame[:axis], index.shape[axis], *frame[axis + 1 :]),
    )
    values = spread(x.node, (*frame[:axis], x.shape[axis], *frame[axis + 1 :]))
    return fresh(emit("take_along", values, places, axis=axis))


@implements(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    x, index = as_tracer(arr), as_tracer(indices)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim)
    places = cast(wrapped(index, x.shape[axis], axis), np.int64)
    shape = (*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :])
    x.assign(
        emit(
            "scatter_along",
            x.node,
            spread(places, shape),
            fitted(as_tracer(values), x.dtype, shape),
            axis=axis,
            reduction="none",
        )
    )


@implements(np.diagonal, method=True)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tracer:
    x = as_tracer(a)
    first, second = one_axis(axis1, x.ndim), one_axis(axis2, x.ndim)
    if first == second:
        raise ValueError("axis1 and axis2 cannot be the same")
    count = max(0, min(x.shape[first] - max(-offset, 0), x.shape[second] - max(offset, 0)))
    rows, columns = (known(np.arange(count) + start) for start in (max(-offset, 0), max(offset, 0)))

    def forward(node: Node) -> Node:
        others = tuple(i for i in range(len(node.shape)) if i not in (first, second))
        picked = emit(
            "gather_nd",
            transposed(node, (first, second, *others)),
            stacked({0: rows, 1: columns}, (count,)),
            batch_dims=0,
        )
        return transposed(picked, (*range(1, 1 + len(others)), 0))

    return x.through(Step(forward, None, lambda array: array.diagonal(offset, axis1, axis2)))


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    target, source = as_tracer(dst), as_tracer(src)
    kind = source.weak(1) if source.weak else source.dtype
    if not np.can_cast(np.result_type(kind, target.dtype) if source.weak else kind, target.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(
            f"Cannot cast array data from {source.dtype!r} to {target.dtype!r} according to the rule "
            f"{casting!r}"
        )
    check_storable(source, target)
    node = fitted(source, target.dtype, target.shape)
    if where is not True:
        node = emit("select", spread(cast(as_tracer(where), np.bool_), target.shape), node, target.node)
    target.assign(node)


@implements(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    x = as_tracer(a)
    if x.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if (wrap and x.ndim == 2 and x.shape[0] > x.shape[1]) or as_tracer(val).ndim:
        raise unsupported("np.fill_diagonal with wrap=True on a tall matrix, or with an array of values")
    places = np.arange(min(x.shape))
    setitem(x, (places,) * x.ndim, val)


def _fill(self: Tracer, value: Any) -> None:
    setitem(self, Ellipsis, value)


def _put_mask(a: Any, mask: Any, values: Any) -> None:
    x, chosen = as_tracer(a), as_tracer(mask)
    if as_tracer(values).ndim and as_tracer(values).shape != x.shape:
        raise unsupported("np.putmask with values of another shape")
    x.assign(emit("select", cast(chosen, np.bool_), fitted(as_tracer(values), x.dtype, x.shape), x.node))


implements(np.putmask)(_put_mask)
Tracer.fill = _fill  # type: ignore[attr-defined]


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Tracer:
    x = as_tracer(arr)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim)
    return take(x, np.delete(np.arange(x.shape[axis]), static(obj)), axis)


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Tracer:
    x = as_tracer(arr)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim)
    if np.ndim(obj):
        raise unsupported("np.insert at several places")
    at = one_axis(obj, x.shape[axis] + 1) if obj >= 0 else x.shape[axis] + obj
    added = as_tracer(values)
    if added.ndim < x.ndim:
        added = np.expand_dims(added, axis) if added.ndim else added  # type: ignore[assignment]
    width = added.shape[axis] if added.ndim == x.ndim else 1
    row = fitted(added, x.dtype, (*x.shape[:axis], width, *x.shape[axis + 1 :]))
    return fresh(
        emit(
            "concat",
            slice_axis(x.node, axis, 0, at),
            row,
            slice_axis(x.node, axis, at, x.shape[axis]),
            axis=axis,
        )
    )


