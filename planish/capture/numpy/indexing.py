"""Indexing, read and written: basic indices are views, integer arrays gather and scatter, bool masks select.

An index is taken apart in two: first the slices, None and Ellipsis (a view), then the arrays on that view.
Integer arrays that the program computes are checked at run time and raise IndexError as NumPy does.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planish.capture.location import user_location
from planish.capture.numpy.shape import (
    axes_step,
    reshape_node,
    reverse_step,
)
from planish.capture.numpy.tracer import (
    Step,
    Tracer,
    as_tracer,
    cast,
    cast_node,
    check,
    current,
    emit,
    fresh,
    full_like_node,
    known,
    unsupported,
)
from planish.errors import CaptureError
from planish.ir import Node, constant

_BAD_INDEX = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are "
    "valid "
    "indices"
)
PINNED = 4096  # bytes up to which a plain index array is compiled in, under a guard of its content


@dataclass(frozen=True)
class Index:
    """An index taken apart. `basic`: one slice, int or None per entry; `arrays`: axis of the view -> integer
    array."""

    basic: tuple[Any, ...]
    arrays: dict[int, Tracer]


def parse(x: Tracer, key: Any) -> Index:
    """Raises IndexError as NumPy does, and CaptureError for a mask that would give a shape known only at run
    time."""
    entries = _expand(x, [e for entry in (key if isinstance(key, tuple) else (key,)) for e in _entry(entry)])
    basic: list[Any] = []
    arrays: dict[int, Tracer] = {}
    axis = place = 0
    has_arrays = any(isinstance(e, Tracer) for e in entries)
    for entry in entries:
        if isinstance(entry, Tracer):
            arrays[place] = wrapped(entry, x.shape[axis], axis)
            basic.append(slice(None))
        elif isinstance(entry, int) and has_arrays:
            arrays[place] = wrapped(known(np.asarray(entry)), x.shape[axis], axis)
            basic.append(slice(None))
        else:
            basic.append(entry)
        axis += entry is not None
        place += not isinstance(entry, int) or has_arrays
    return Index(tuple(basic), arrays)


def _entry(entry: Any) -> list[Any]:
    """One entry of the index: slices and None as they are, integers as int, arrays as tracers (a mask: its
    places)."""
    if entry is None or entry is Ellipsis:
        return [entry]
    if isinstance(entry, slice):
        return [
            slice(*(None if v is None else operator.index(v) for v in (entry.start, entry.stop, entry.step)))
        ]
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        return [int(entry)]
    if isinstance(entry, np.ndarray) and (entry.dtype == bool or entry.nbytes <= PINNED):
        entry = known(current().pin(entry))
    if isinstance(entry, (str, float)):
        raise IndexError(_BAD_INDEX)
    array = as_tracer(entry)
    if array.size == 0 and isinstance(entry, (list, tuple)):
        array = known(np.zeros(array.shape, np.int64))
    if array.dtype.kind == "b":
        if array.known is None:
            raise CaptureError(
                f"{user_location()}: indexing by a computed mask gives a shape that is known only when the "
                "function runs. Write np.where(mask, x, other), or a reduction with where=mask"
            )
        return (
            [known(places) for places in np.nonzero(array.known)]
            if array.ndim
            else [None, known(np.zeros(int(bool(array.known)), np.int64))]
        )
    if array.dtype.kind not in "iu":
        raise IndexError(_BAD_INDEX)
    if array.known is not None and array.ndim == 0 and array.scalar:
        return [int(array.known)]
    return [array]


def _expand(x: Tracer, entries: list[Any]) -> list[Any]:
    """Ellipsis written out, so that there is an entry for every axis."""
    used = sum(e is not None and e is not Ellipsis for e in entries)
    if used > x.ndim:
        raise IndexError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed"
        )
    if sum(e is Ellipsis for e in entries) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    rest = [slice(None)] * (x.ndim - used)
    if not any(e is Ellipsis for e in entries):
        return entries + rest
    at = next(i for i, e in enumerate(entries) if e is Ellipsis)
    return entries[:at] + rest + entries[at + 1 :]


def wrapped(index: Tracer, size: int, axis: int) -> Tracer:
    """The index as int64, known to lie in the axis: now if its value is known, else by a check at run
    time."""
    message = f"index out of bounds for axis {axis} with size {size}"
    if index.known is not None:
        outside = index.known[(index.known < -size) | (index.known >= size)]
        if outside.size:
            raise IndexError(f"index {outside.flat[0]} is out of bounds for axis {axis} with size {size}")
        return known(np.where(index.known < 0, index.known + size, index.known).astype(np.int64))
    return fresh(checked_index(cast_node(index.node, np.int64), size, message))


def checked_index(node: Node, size: int, message: str) -> Node:
    inside = emit(
        "bitwise_and", emit("ge", node, constant(np.int64(-size))), emit("lt", node, constant(np.int64(size)))
    )
    if inside.shape:
        inside = emit("reduce_all", inside, axes=tuple(range(len(inside.shape))), keepdims=False)
    check(inside, "IndexError", message)
    return node


# --- basic: views


def basic_view(x: Tracer, basic: tuple[Any, ...]) -> Tracer:
    """`x[basic]` as a view. A full set of integers is done by the caller: it gives a scalar, not a view."""
    slices: list[tuple[int, int, int]] = []
    flipped: list[int] = []
    final: list[int] = []
    axis = 0
    for entry in basic:
        if entry is None:
            final.append(1)
            continue
        start, length, step, backwards = _range_of(entry, x.shape[axis], axis)
        slices.append((start, start + (length - 1) * step + 1 if length else start, step))
        if backwards:
            flipped.append(axis)
        if not isinstance(entry, int):
            final.append(length)
        axis += 1
    if any(s != (0, n, 1) for s, n in zip(slices, x.shape)):
        x = x.through(slice_step(tuple(slices)))
    if flipped:
        x = x.through(reverse_step(tuple(flipped)))
    if not any(entry is None or isinstance(entry, int) for entry in basic):
        return x
    dropped = (*(0 if isinstance(e, int) else None if e is None else slice(None) for e in basic), Ellipsis)
    return x.through(replace(axes_step(tuple(final)), replay=lambda a: a[dropped]))


def _range_of(entry: Any, size: int, axis: int) -> tuple[int, int, int, bool]:
    """Start, length and step upwards, and whether the axis is then read backwards."""
    if isinstance(entry, int):
        if not -size <= entry < size:
            raise IndexError(f"index {entry} is out of bounds for axis {axis} with size {size}")
        return entry % size, 1, 1, False
    places = range(*entry.indices(size))
    if not places:
        return 0, 0, 1, False
    return min(places[0], places[-1]), len(places), abs(places.step), places.step < 0 and len(places) > 1


def slice_step(ranges: tuple[tuple[int, int, int], ...]) -> Step:
    starts, stops, steps = (tuple(column) for column in zip(*ranges)) if ranges else ((), (), ())
    return Step(
        lambda x: emit("slice", x, starts=starts, stops=stops, steps=steps),
        lambda base, new: place(base, new, starts, steps),
        lambda a: a[tuple(slice(*r) for r in ranges)],
    )


def place(base: Node, new: Node, starts: tuple[int, ...], steps: tuple[int, ...]) -> Node:
    """`base` with `new` written at starts + i * steps."""
    if 0 in new.shape:
        return base
    if all(s == 1 for s in steps):
        return emit("dynamic_update_slice", base, new, *(constant(np.int64(s)) for s in starts))
    spread = {"low": starts, "interior": tuple(s - 1 if n > 1 else 0 for s, n in zip(steps, new.shape))}  # type: ignore[operator]
    used = [start + (n - 1) * step + 1 for start, n, step in zip(starts, new.shape, steps)]
    high = tuple(size - end for size, end in zip(base.shape, used))
    mask = emit("broadcast_to", constant(True), shape=new.shape)
    covered = emit("pad", mask, constant(False), high=high, **spread)
    return emit("select", covered, emit("pad", new, full_like_node(new, 0), high=high, **spread), base)


# --- arrays: gather and scatter


def _layout(view: Tracer, arrays: dict[int, Tracer]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape of the index arrays together; the view's other axes; where the index's axes stand in the
    result."""
    axes = sorted(arrays)
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    return shape, tuple(i for i in range(view.ndim) if i not in arrays), axes[0] if adjacent else 0


def stacked(arrays: dict[int, Tracer], shape: tuple[int, ...]) -> Node:
    """The index arrays side by side in a last axis."""
    columns = [reshape_node(spread(cast(arrays[a], np.int64), shape), (*shape, 1)) for a in sorted(arrays)]
    return columns[0] if len(columns) == 1 else emit("concat", *columns, axis=len(shape))


def spread(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else emit("broadcast_to", node, shape=shape)


def _to_result(shape: tuple[int, ...], others: tuple[int, ...], at: int) -> tuple[int, ...]:
    """The permutation from (index axes, other axes) to the result's order."""
    k = len(shape)
    rest = list(range(k, k + len(others)))
    return (*rest[:at], *range(k), *rest[at:])


def gather(view: Tracer, arrays: dict[int, Tracer]) -> Node:
    if len(arrays) == 1:
        ((axis, index),) = arrays.items()
        return emit("take", view.node, cast(index, np.int64), axis=axis)
    shape, others, at = _layout(view, arrays)
    front = transposed(view.node, (*sorted(arrays), *others))
    return transposed(
        emit("gather_nd", front, stacked(arrays, shape), batch_dims=0), _to_result(shape, others, at)
    )


def transposed(node: Node, order: tuple[int, ...]) -> Node:
    return node if order == tuple(range(len(order))) else emit("transpose", node, axes=order)


def scatter(view: Tracer, arrays: dict[int, Tracer], value: Tracer, reduction: str = "none") -> Node:
    """The view's value after `view[arrays] = value`; the last of equal indices wins."""
    shape, others, at = _layout(view, arrays)
    order = _to_result(shape, others, at)
    front_shape = (*shape, *(view.shape[o] for o in others))
    result_shape = tuple(front_shape[o] for o in order)
    updates = transposed(fitted(value, view.dtype, result_shape), tuple(int(i) for i in np.argsort(order)))
    axes = (*sorted(arrays), *others)
    written = emit(
        "scatter_nd", transposed(view.node, axes), stacked(arrays, shape), updates, reduction=reduction
    )
    return transposed(written, tuple(int(i) for i in np.argsort(axes)))


def fitted(value: Tracer, dtype: np.dtype, shape: tuple[int, ...]) -> Node:
    """A value to be stored: cast, and broadcast to the shape of the place (leading ones may be dropped)."""
    node = cast(value, dtype)
    while len(node.shape) > len(shape) and node.shape[0] == 1:
        node = reshape_node(node, node.shape[1:])
    try:
        fits = np.broadcast_shapes(node.shape, shape) == shape  # type: ignore[arg-type]
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"could not broadcast input array from shape {value.shape} into shape {shape}")
    return spread(node, shape)


# --- the two doors


def getitem(self: Tracer, key: Any) -> Tracer:
    index = parse(self, key)
    view = basic_view(self, index.basic)
    if not index.arrays:
        full = (
            len(index.basic) == self.ndim
            and all(isinstance(e, int) for e in index.basic)
            and not _has_ellipsis(key)
        )
        if not full:
            return view
        return known(view.known[()], scalar=True) if view.known is not None else fresh(view.node, scalar=True)
    if view.known is not None and all(a.known is not None for a in index.arrays.values()):
        key_now = tuple(index.arrays[i].known if i in index.arrays else slice(None) for i in range(view.ndim))
        return known(view.known[key_now])
    node = gather(view, index.arrays)
    scalar = node.shape == () and all(a.scalar for a in index.arrays.values())
    return fresh(node, scalar=scalar or (node.shape == () and self.ndim == len(index.arrays)))


def _has_ellipsis(key: Any) -> bool:
    return any(e is Ellipsis for e in (key if isinstance(key, tuple) else (key,)))


def setitem(self: Tracer, key: Any, value: Any) -> None:
    mask = _traced_mask(self, key)
    if mask is not None:
        return _set_where(self, mask, value)
    index = parse(self, key)
    view = basic_view(self, index.basic)
    stored = as_tracer(value)
    if (
        view.known is not None
        and stored.known is not None
        and all(a.known is not None for a in index.arrays.values())
    ):
        place_now = tuple(
            index.arrays[i].known if i in index.arrays else slice(None) for i in range(view.ndim)
        )
        view.known[place_now] = stored.known.item() if stored.weak else stored.known
        return None
    check_storable(stored, view)
    if index.arrays:
        view.assign(scatter(view, index.arrays, stored))
    else:
        view.assign(fitted(stored, view.dtype, view.shape))
    return None


def check_storable(value: Tracer, place: Tracer) -> None:
    origin = place.storage.array
    if origin is not None and not origin.flags.writeable:
        raise ValueError("assignment destination is read-only")


def _traced_mask(x: Tracer, key: Any) -> Tracer | None:
    if isinstance(key, Tracer) and key.dtype.kind == "b" and key.known is None:
        if key.shape != x.shape[: key.ndim]:
            raise IndexError(
                f"boolean index did not match indexed array: its shape is {key.shape}, the array's {x.shape}"
            )
        return key
    return None


def _set_where(x: Tracer, mask: Tracer, value: Any) -> None:
    """`x[mask] = value` where the value is the same for every place, or one row of the axes after the
    mask's."""
    stored = as_tracer(value)
    row = x.shape[mask.ndim :]
    if stored.ndim > len(row):
        raise CaptureError(
            f"{user_location()}: storing an array at a computed mask needs to know how many places it has. "
            "Write x = np.where(mask, other, x) with `other` of x's shape"
        )
    wide = reshape_node(mask.node, (*mask.shape, *(1,) * len(row)))
    check_storable(stored, x)
    x.assign(emit("select", spread(wide, x.shape), fitted(stored, x.dtype, x.shape), x.node))


Tracer.__getitem__ = getitem  # type: ignore[misc]
Tracer.__setitem__ = setitem  # type: ignore[index]


_UPDATES = {np.add: "add", np.subtract: "add", np.multiply: "mul", np.maximum: "max", np.minimum: "min"}


def update_at(ufunc: np.ufunc, a: Any, indices: Any, values: Any) -> None:
    """`np.add.at(a, indices, values)`: equal indices are all counted."""
    if ufunc not in _UPDATES:
        raise unsupported(f"np.{ufunc.__name__}.at")
    x, value = as_tracer(a), as_tracer(values)
    index = parse(x, indices)
    view = basic_view(x, index.basic)
    check_storable(value, view)
    if np.result_type(x.dtype, value.weak(1) if value.weak else value.dtype) != x.dtype:
        raise unsupported(
            f"np.{ufunc.__name__}.at with values of a wider dtype", "cast the values with astype"
        )
    if not index.arrays:
        view.assign(fitted(ufunc(view, value), view.dtype, view.shape))  # type: ignore[arg-type]
        return
    if ufunc is np.subtract:
        value = fresh(emit("neg", cast(value, x.dtype)))
    view.assign(scatter(view, index.arrays, value, _UPDATES[ufunc]))
