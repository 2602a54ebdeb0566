"""ATen that moves elements: views, copies, slices, pads, joins."""

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
from planish.capture.torch.layouts import inverse
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, INT64, Dim, DType, is_static
from planish.types.dim import is_nonnegative, minimum

# --- the same elements in order: torch has worked out the shape


@translates(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_copy.default",
    "aten.view_copy.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dims",
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    "aten._reshape_alias.default",
    "aten.flatten.using_ints",
)
def same_order(call: Call, x: Node, *arguments: Any) -> Node:
    return reshaped(x, call.shape)


@translates(
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
    "aten.alias_copy.default",
    "aten.detach_copy.default",
    "aten.contiguous.default",
    "prims.clone.default",
    "aten.resolve_neg.default",
    "aten.resolve_conj.default",
    "aten.positive.default",
)
def same(call: Call, x: Node, *arguments: Any) -> Node:
    return x


@translates("aten.copy.default")
def copy(call: Call, x: Node, source: Node, non_blocking: bool) -> Node:
    return broadcast(cast(source, call.dtype), call.shape)


@translates("aten.expand.default", "aten.expand_copy.default")
def expand(call: Call, x: Node, size: Sequence[Dim], implicit: bool) -> Node:
    return broadcast(x, call.shape)


@translates("prims.broadcast_in_dim.default")
def broadcast_in_dim(call: Call, x: Node, shape: Sequence[Dim], axes: Sequence[int]) -> Node:
    spread: list[Dim] = [1] * len(shape)
    for axis, size in zip(axes, x.shape):
        spread[axis] = size
    return broadcast(reshaped(x, spread), shape)


@translates("aten.view.dtype", "prims.bitcast.default")
def view_as(call: Call, x: Node, dtype: DType) -> Node:
    if x.dtype is dtype:
        return x
    if BOOL in (x.dtype, dtype) or x.dtype.bits != dtype.bits:
        call.refuse(f"a view of {x.dtype.name} as {dtype.name} is not supported")
    return ops.bitcast(x, dtype=dtype)


# --- other orders


@translates("aten.permute.default", "aten.permute_copy.default")
def permute(call: Call, x: Node, axes: Sequence[int]) -> Node:
    return transposed(x, [axis_of(a, x.ndim) for a in axes])


@translates("prims.transpose.default")
def prims_transpose(call: Call, x: Node, axes: Sequence[int]) -> Node:
    return transposed(x, axes)


@translates("aten.t.default", "aten.t_copy.default")
def t(call: Call, x: Node) -> Node:
    return transposed(x, range(x.ndim)[::-1])


@translates("aten.transpose.int", "aten.transpose_copy.int")
def transpose(call: Call, x: Node, a: int, b: int) -> Node:
    axes = list(range(x.ndim))
    a, b = axis_of(a, x.ndim), axis_of(b, x.ndim)
    if x.ndim:
        axes[a], axes[b] = axes[b], axes[a]
    return transposed(x, axes)


@translates("aten.flip.default", "prims.rev.default")
def flip(call: Call, x: Node, axes: Sequence[int]) -> Node:
    given = tuple(axis_of(a, x.ndim) for a in axes) if x.ndim else ()
    return ops.reverse(x, axes=given) if given else x


@translates("aten.roll.default")
def roll(call: Call, x: Node, shifts: Sequence[Dim], axes: Sequence[int]) -> Node:
    if not axes:
        flat = reshaped(x, (_count(x.shape),))
        return reshaped(_rolled(flat, 0, shifts[0]), x.shape)
    for shift, axis in zip(shifts, axes):
        x = _rolled(x, axis_of(axis, x.ndim), shift) if x.ndim else x
    return x


def _rolled(x: Node, axis: int, shift: Dim) -> Node:
    size = x.shape[axis]
    if is_static(size) and size == 0:
        return x
    start = (size - shift) % size
    return ops.concat(sliced(x, axis, start, size), sliced(x, axis, 0, start), axis=axis)


def _count(shape: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for d in shape:
        total = total * d
    return total


# --- parts


def sliced(x: Node, axis: int, start: Dim, stop: Dim, step: int = 1) -> Node:
    starts = tuple(start if i == axis else 0 for i in range(x.ndim))
    stops = tuple(stop if i == axis else d for i, d in enumerate(x.shape))
    if starts == (0,) * x.ndim and stops == x.shape and step == 1:
        return x
    return ops.slice(
        x, starts=starts, stops=stops, steps=tuple(step if i == axis else 1 for i in range(x.ndim))
    )


@translates("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(call: Call, x: Node, axis: int, start: Dim | None, stop: Dim | None, step: int) -> Node:
    axis = axis_of(axis, x.ndim)
    begin, end = slice_range(x.shape[axis], call.shape[axis], start, step)
    return sliced(x, axis, begin, end, step)


def slice_range(size: Dim, length: Dim, start: Dim | None, step: int) -> tuple[Dim, Dim]:
    """Where a slice of `length` elements begins and ends."""
    begin = _place(0 if start is None else start, size)
    if is_static(length):
        return begin, begin + ((length - 1) * step + 1 if length else 0)
    return begin, begin + length if step == 1 else minimum(size, begin + length * step)


def _place(start: Dim, size: Dim) -> Dim:
    if is_static(start) and start < 0:
        start = start + size
        return start if is_nonnegative(start) else 0
    return minimum(start, size)


@translates("aten.select.int", "aten.select_copy.int")
def select(call: Call, x: Node, axis: int, index: Dim) -> Node:
    axis = axis_of(axis, x.ndim)
    at = index + x.shape[axis] if is_static(index) and index < 0 else index
    return reshaped(sliced(x, axis, at, at + 1), call.shape)


@translates(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.split_copy.Tensor",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
)
def split(call: Call, x: Node, sizes: Any, axis: int) -> tuple[Node, ...]:
    axis, start, parts = axis_of(axis, x.ndim), 0, []
    for type_ in call.types:
        assert type_ is not None
        parts.append(sliced(x, axis, start, start + type_.shape[axis]))
        start = start + type_.shape[axis]  # type: ignore[assignment]
    return tuple(parts)


@translates("aten.unbind.int", "aten.unbind_copy.int")
def unbind(call: Call, x: Node, axis: int) -> tuple[Node, ...]:
    axis = axis_of(axis, x.ndim)
    rest = tuple(d for i, d in enumerate(x.shape) if i != axis)
    return tuple(reshaped(sliced(x, axis, i, i + 1), rest) for i in range(len(call.types)))


@translates("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(call: Call, x: Node, offset: int, a: int, b: int) -> Node:
    """The diagonal last: along it one step is a row and a column."""
    matrix, _ = _as_matrix(x, a, b)
    start, length, step = _diagonal_range(call, matrix, offset, call.shape[-1])
    if length == 0:
        return broadcast(number(0, x.dtype), call.shape)
    return sliced(_rows_joined(matrix), x.ndim - 2, start, start + (length - 1) * step + 1, step)


@translates("aten.diagonal_scatter.default")
def diagonal_scatter(call: Call, x: Node, source: Node, offset: int, a: int, b: int) -> Node:
    """x with another diagonal."""
    matrix, order = _as_matrix(x, a, b)
    start, length, step = _diagonal_range(call, matrix, offset, source.shape[-1])
    if length == 0:
        return x
    written = _written(_rows_joined(matrix), cast(source, x.dtype), x.ndim - 2, start, step)
    return transposed(reshaped(written, matrix.shape), inverse(order))


def _as_matrix(x: Node, a: int, b: int) -> tuple[Node, list[int]]:
    """x with the axes a and b last, and the order of axes that makes it so."""
    a, b = axis_of(a, x.ndim), axis_of(b, x.ndim)
    order = [*(i for i in range(x.ndim) if i not in (a, b)), a, b]
    return transposed(x, order), order


def _rows_joined(matrix: Node) -> Node:
    return reshaped(matrix, (*matrix.shape[:-2], matrix.shape[-2] * matrix.shape[-1]))


def _diagonal_range(call: Call, matrix: Node, offset: int, length: Dim) -> tuple[int, int, int]:
    """Where a diagonal begins in the joined rows, how long it is, and its step."""
    rows, columns = matrix.shape[-2:]
    if not (is_static(rows) and is_static(columns) and is_static(length)):
        call.refuse("a diagonal of symbolic sizes is not supported")
    return offset if offset >= 0 else -offset * columns, length, columns + 1


@translates("aten.unfold.default", "aten.unfold_copy.default")
def unfold(call: Call, x: Node, axis: int, size: int, step: int) -> Node:
    """Windows along an axis: the elements of each become a new last axis."""
    if not x.ndim:
        return reshaped(x, call.shape)
    axis = axis_of(axis, x.ndim)
    count = call.shape[axis]
    if not is_static(count):
        call.refuse("unfold along a symbolic size is not supported")
    parts = (
        [
            reshaped(sliced(x, axis, i, i + (count - 1) * step + 1, step), (*call.shape[:-1], 1))
            for i in range(size)
        ]
        if count
        else []
    )
    return ops.concat(*parts, axis=x.ndim) if parts else broadcast(number(0, x.dtype), call.shape)


# --- joins and pads


@translates("aten.cat.default")
def cat(call: Call, parts: Sequence[Node], axis: int) -> Node:
    """Empty tensors of one axis are skipped, whatever the others' rank is."""
    kept = [p for p in parts if len(call.shape) == 1 or p.shape != (0,)]
    if not kept:
        return broadcast(number(0, call.dtype), call.shape)
    axis = axis_of(axis, kept[0].ndim)
    return ops.concat(*(cast(p, call.dtype) for p in kept), axis=axis)


@translates("aten.repeat.default")
def repeat(call: Call, x: Node, repeats: Sequence[Dim]) -> Node:
    """x[i] -> x[1, i], broadcast along the new axes, which are then merged."""
    shape = (*[1] * (len(repeats) - x.ndim), *x.shape)
    split_ = [d for n in shape for d in (1, n)]
    wanted = [d for r, n in zip(repeats, shape) for d in (r, n)]
    return reshaped(broadcast(reshaped(x, split_), wanted), call.shape)


@translates("aten.constant_pad_nd.default")
def constant_pad(call: Call, x: Node, padding: Sequence[Dim], value: Any) -> Node:
    """`padding` counts axes from the last; negative numbers cut."""
    pairs = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    both = [*[(0, 0)] * (x.ndim - len(pairs)), *reversed(pairs)]
    for axis, pair in enumerate(both):
        cut = [-p if is_static(p) and p < 0 else 0 for p in pair]
        x = sliced(x, axis, cut[0], x.shape[axis] - cut[1])
    low, high = ([_positive(p[i]) for p in both] for i in (0, 1))
    if not any(map(_nonzero, (*low, *high))):
        return x
    return ops.pad(x, as_node(value, x.dtype), low=tuple(low), high=tuple(high))


def _positive(d: Dim) -> Dim:
    return max(d, 0) if is_static(d) else d


def _nonzero(d: Dim) -> bool:
    return not is_static(d) or d != 0


# --- a part replaced


@translates("aten.slice_scatter.default")
def slice_scatter(
    call: Call, x: Node, source: Node, axis: int, start: Dim | None, stop: Dim | None, step: int
) -> Node:
    axis = axis_of(axis, x.ndim)
    size, length = x.shape[axis], source.shape[axis]
    begin, end = slice_range(size, length, start, step)
    source = cast(source, x.dtype)
    if step == 1:
        parts = [sliced(x, axis, 0, begin), source, sliced(x, axis, end, size)]
        return ops.concat(*(p for p in parts if p.shape[axis] != 0), axis=axis)
    return _written(x, source, axis, begin, step)


@translates("aten.select_scatter.default")
def select_scatter(call: Call, x: Node, source: Node, axis: int, index: Dim) -> Node:
    axis = axis_of(axis, x.ndim)
    size = x.shape[axis]
    at = index + size if is_static(index) and index < 0 else index
    row = reshaped(cast(source, x.dtype), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    parts = [sliced(x, axis, 0, at), row, sliced(x, axis, at + 1, size)]
    return ops.concat(*(p for p in parts if p.shape[axis] != 0), axis=axis)


def _written(x: Node, source: Node, axis: int, begin: Dim, step: int) -> Node:
    """x with `source` at begin, begin + step, ...: spread out, and taken where a mark is spread out too."""
    low = tuple(begin if i == axis else 0 for i in range(x.ndim))
    between = tuple(step - 1 if i == axis else 0 for i in range(x.ndim))
    span = (source.shape[axis] - 1) * step + 1
    high = tuple(x.shape[axis] - begin - span if i == axis else 0 for i in range(x.ndim))
    spread = ops.pad(source, number(0, x.dtype), low=low, high=high, interior=between)
    mark = broadcast(number(True, BOOL), source.shape)
    return ops.select(ops.pad(mark, number(False, BOOL), low=low, high=high, interior=between), spread, x)


def positions(call: Call, shape: Sequence[Dim], axis: int) -> Node:
    """The index along an axis, at every place of a shape."""
    from planish.ir.node import make_node
    from planish.ops.record import get_op

    attributes = get_op("iota").make_attributes({"shape": tuple(shape), "axis": axis, "dtype": INT64})
    return make_node(get_op("iota"), (), attributes)


@translates("aten.tril.default")
def tril(call: Call, x: Node, offset: int) -> Node:
    return _triangle(call, x, offset, lower=True)


@translates("aten.triu.default")
def triu(call: Call, x: Node, offset: int) -> Node:
    return _triangle(call, x, offset, lower=False)


def _triangle(call: Call, x: Node, offset: int, lower: bool) -> Node:
    row, column = (positions(call, x.shape[-2:], axis) for axis in (0, 1))
    distance = ops.sub(column, row)
    kept = ops.le(distance, offset) if lower else ops.ge(distance, offset)
    return ops.select(kept, x, number(0, x.dtype))


@translates("aten.resize.default", "aten.resize_as.default")
def resize(call: Call, x: Node, *arguments: Any) -> Node:
    """The first elements in another shape; what torch leaves uninitialised is zeros."""
    flat, wanted = reshaped(x, (_count(x.shape),)), _count(call.shape)
    if not (is_static(flat.shape[0]) and is_static(wanted)):
        call.refuse("a resize of symbolic sizes is not supported")
    more = max(wanted - flat.shape[0], 0)
    kept = ops.pad(flat, number(0, x.dtype), low=(0,), high=(more,)) if more else sliced(flat, 0, 0, wanted)
    return reshaped(kept, call.shape)
