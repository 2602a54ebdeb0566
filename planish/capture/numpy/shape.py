"""Functions that move elements and change none: views where NumPy gives views, copies where it gives
copies."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from planish.capture.numpy.registry import implements
from planish.capture.numpy.tracer import (
    Step,
    Tracer,
    as_tracer,
    cast,
    common_dtype,
    emit,
    fresh,
    known,
    static,
    unsupported,
)
from planish.ir import Node
from planish.types import dtype_of

try:
    from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
except ImportError:  # NumPy 1
    from numpy.core.numeric import normalize_axis_index, normalize_axis_tuple  # type: ignore[no-redef]


def axis_tuple(axis: Any, rank: int) -> tuple[int, ...]:
    """Axes as NumPy takes them (None: all; negative; one or many), from 0 up and sorted. Raises AxisError."""
    return tuple(range(rank)) if axis is None else tuple(sorted(normalize_axis_tuple(axis, rank)))


def one_axis(axis: Any, rank: int) -> int:
    return normalize_axis_index(operator.index(axis), rank)


# --- steps


def transpose_step(axes: Sequence[int]) -> Step:
    order = tuple(axes)
    inverse = tuple(int(i) for i in np.argsort(order))
    return Step(
        lambda x: emit("transpose", x, axes=order),
        lambda base, new: emit("transpose", new, axes=inverse),
        lambda a: a.transpose(order),
    )


def reshape_step(shape: tuple[int, ...]) -> Step:
    return Step(
        lambda x: reshape_node(x, shape),
        lambda base, new: reshape_node(new, base.shape),
        lambda a: a.reshape(shape),
        is_reshape=True,
    )


def axes_step(shape: tuple[int, ...]) -> Step:
    """A reshape that only adds or drops axes of size one: a view of any array."""
    return Step(
        lambda x: reshape_node(x, shape),
        lambda base, new: reshape_node(new, base.shape),
        lambda a: a.reshape(shape),
    )


def reverse_step(axes: tuple[int, ...]) -> Step:
    return Step(
        lambda x: emit("reverse", x, axes=axes),
        lambda base, new: emit("reverse", new, axes=axes),
        lambda a: np.flip(a, axes),
    )


def broadcast_step(shape: tuple[int, ...]) -> Step:
    return Step(lambda x: emit("broadcast_to", x, shape=shape), None, lambda a: np.broadcast_to(a, shape))


def reshape_node(x: Node, shape: Sequence[Any]) -> Node:
    return x if x.shape == tuple(shape) else emit("reshape", x, shape=tuple(shape))


def materialised(x: Tracer) -> Tracer:
    """A new array with the same values."""
    return known(x.known.copy()) if x.known is not None else fresh(x.node)


# --- one array


def target_shape(x: Tracer, shape: Any) -> tuple[int, ...]:
    sizes = [operator.index(s) for s in (shape if isinstance(shape, (tuple, list)) else (shape,))]
    missing = [i for i, s in enumerate(sizes) if s < 0]
    rest = int(np.prod([s for s in sizes if s >= 0], dtype=np.int64))
    if len(missing) > 1:
        raise ValueError("can only specify one unknown dimension")
    if missing and rest and x.size % rest == 0:
        sizes[missing[0]] = x.size // rest
    elif missing or rest != x.size:
        raise ValueError(f"cannot reshape array of size {x.size} into shape {tuple(sizes)}")
    return tuple(sizes)


@implements(np.reshape)
def reshape(
    a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None
) -> Tracer:
    x = as_tracer(a)
    sizes = target_shape(x, shape if shape is not None else newshape)
    if order == "F":
        return _reshape_fortran(x, sizes)
    if order not in ("C", "A"):
        raise ValueError(f"order must be one of 'C', 'F', 'A' (got {order!r})")
    if _is_view_reshape(x):
        return (
            x.through(reshape_step(sizes))
            if copy is not True
            else materialised(x.through(reshape_step(sizes)))
        )
    return fresh(reshape_node(x.node, sizes))


def _reshape_fortran(x: Tracer, sizes: tuple[int, ...]) -> Tracer:
    turned = emit("transpose", x.node, axes=tuple(reversed(range(x.ndim))))
    return fresh(
        emit("transpose", reshape_node(turned, sizes[::-1]), axes=tuple(reversed(range(len(sizes)))))
    )


def _is_view_reshape(x: Tracer) -> bool:
    """NumPy reshapes in place what is contiguous: here, an array as it was made or reshaped. (A leaf that is
    not contiguous is reshaped by NumPy itself when the view is returned, which then copies as NumPy does.)"""
    return all(step.is_reshape for step in x.steps)


def _reshape_method(self: Tracer, *shape: Any, order: str = "C", copy: Any = None) -> Tracer:
    return reshape(self, shape[0] if len(shape) == 1 else shape, order=order, copy=copy)


@implements(np.ravel, method=True)
def ravel(a: Any, order: str = "C") -> Tracer:
    return reshape(a, (-1,), order=order)


@implements(np.transpose, np.permute_dims if hasattr(np, "permute_dims") else np.transpose)
def transpose(a: Any, axes: Any = None) -> Tracer:
    x = as_tracer(a)
    order = tuple(reversed(range(x.ndim))) if axes is None else normalize_axis_tuple(axes, x.ndim)
    if len(order) != x.ndim:
        raise ValueError("axes don't match array")
    return x.through(transpose_step(order))


def _transpose_method(self: Tracer, *axes: Any) -> Tracer:
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        axes = axes[0]  # type: ignore[assignment]
    return transpose(self, axes or None)


@implements(np.swapaxes, method=True)
def swapaxes(a: Any, axis1: int, axis2: int) -> Tracer:
    x = as_tracer(a)
    order = list(range(x.ndim))
    i, j = one_axis(axis1, x.ndim), one_axis(axis2, x.ndim)
    order[i], order[j] = j, i
    return x.through(transpose_step(order))


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Tracer:
    x = as_tracer(a)
    sources, places = normalize_axis_tuple(source, x.ndim), normalize_axis_tuple(destination, x.ndim)
    order = [n for n in range(x.ndim) if n not in sources]
    for place, axis in sorted(zip(places, sources)):
        order.insert(place, axis)
    return x.through(transpose_step(order))


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Tracer:
    x = as_tracer(a)
    axis, start = one_axis(axis, x.ndim), start + x.ndim if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Tracer:
    x = as_tracer(a)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    places = normalize_axis_tuple(axes, x.ndim + len(axes))
    rest = iter(x.shape)
    return x.through(axes_step(tuple(1 if i in places else next(rest) for i in range(x.ndim + len(places)))))


@implements(np.squeeze, method=True)
def squeeze(a: Any, axis: Any = None) -> Tracer:
    x = as_tracer(a)
    dropped = [i for i, s in enumerate(x.shape) if s == 1] if axis is None else axis_tuple(axis, x.ndim)
    if any(x.shape[i] != 1 for i in dropped):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return x.through(axes_step(tuple(s for i, s in enumerate(x.shape) if i not in dropped)))


def _at_least(rank: int, place: Any) -> Any:
    def raise_rank(*arrays: Any) -> Any:
        results = [
            x if x.ndim >= rank else x.through(axes_step(place(x.shape))) for x in map(as_tracer, arrays)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    return raise_rank


implements(np.atleast_1d)(_at_least(1, lambda s: (1,)))
implements(np.atleast_2d)(_at_least(2, lambda s: (1,) * (2 - len(s)) + s))
implements(np.atleast_3d)(_at_least(3, lambda s: (1, *s, 1) if len(s) == 1 else (*s,) + (1,) * (3 - len(s))))


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Tracer:
    x = as_tracer(array)
    sizes = (
        tuple(map(operator.index, shape)) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    )
    if np.broadcast_shapes(x.shape, sizes) != sizes:
        raise ValueError(
            f"input operand has more dimensions than allowed or does not fit: {x.shape} to {sizes}"
        )
    return x.through(broadcast_step(sizes))


@implements(np.broadcast_arrays)
def broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Tracer, ...]:
    shape = np.broadcast_shapes(*(as_tracer(a).shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Tracer:
    x = as_tracer(m)
    return x.through(reverse_step(axis_tuple(axis, x.ndim)))


implements(np.flipud)(lambda m: flip(m, 0))
implements(np.fliplr)(lambda m: flip(m, 1))


@implements(np.rot90)
def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Tracer:
    x = as_tracer(m)
    first, second = (one_axis(a, x.ndim) for a in axes)
    turned = {
        0: lambda: x,
        1: lambda: swapaxes(flip(x, second), first, second),
        2: lambda: flip(x, (first, second)),
        3: lambda: flip(swapaxes(x, first, second), second),
    }
    return turned[k % 4]()


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Tracer:
    x = as_tracer(a)
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, 0), x.shape)
    shifts, axes = np.broadcast_arrays(
        static(shift), normalize_axis_tuple(axis, x.ndim, allow_duplicate=True)
    )
    node = x.node
    for by, along in zip(shifts.ravel().tolist(), axes.ravel().tolist()):
        node = _roll_node(node, by, along)
    return fresh(node)


def _roll_node(node: Node, by: int, axis: int) -> Node:
    size = node.shape[axis]
    if size == 0 or by % size == 0:
        return node
    cut = size - by % size
    return emit("concat", slice_axis(node, axis, cut, size), slice_axis(node, axis, 0, cut), axis=axis)  # type: ignore[arg-type]


def slice_axis(node: Node, axis: int, start: int, stop: int) -> Node:
    starts, stops = [0] * len(node.shape), list(node.shape)
    starts[axis], stops[axis] = start, stop
    return emit("slice", node, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(starts))


# --- facts about an array, and copies

implements(np.shape)(lambda a: as_tracer(a).shape)
implements(np.ndim)(lambda a: as_tracer(a).ndim)
implements(np.size)(lambda a, axis=None: as_tracer(a).size if axis is None else as_tracer(a).shape[axis])
implements(np.copy)(lambda a, order="K", subok=False: materialised(as_tracer(a)))
implements(np.iscomplexobj)(lambda x: False)
implements(np.isrealobj)(lambda x: True)
implements(np.real)(lambda val: as_tracer(val))
implements(np.result_type)(
    lambda *args: common_dtype(
        [
            a
            if isinstance(a, Tracer)
            else known(np.empty(0, a))
            if isinstance(a, (type, np.dtype, str))
            else as_tracer(a)
            for a in args
        ]
    )
)
implements(np.can_cast)(lambda from_, to, casting="safe": np.can_cast(from_.dtype, to, casting))
implements(np.shares_memory)(lambda a, b, max_work=None: as_tracer(a).storage is as_tracer(b).storage)
implements(np.may_share_memory)(lambda a, b, max_work=None: as_tracer(a).storage is as_tracer(b).storage)


def astype(
    self: Tracer, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
) -> Tracer:
    target = np.dtype(dtype)
    dtype_of(target)
    if not np.can_cast(self.dtype, target, casting):  # type: ignore[arg-type]
        raise TypeError(
            f"Cannot cast array data from {self.dtype!r} to {target!r} according to the rule {casting!r}"
        )
    if not copy and target == self.dtype:
        return self
    if self.known is not None:
        return known(self.known.astype(target), scalar=self.scalar)
    return fresh(cast(self, target), scalar=self.scalar)


if hasattr(np, "astype"):
    implements(np.astype)(lambda x, dtype, /, *, copy=True, device=None: astype(x, dtype, copy=copy))


def _bits(self: Tracer, dtype: Any = None, type: Any = None) -> Tracer:
    """`x.view(dtype)`: the same bytes read as another dtype of the same size."""
    if dtype is None:
        return self
    target = np.dtype(dtype)
    if target.itemsize != self.dtype.itemsize:
        raise unsupported(f"x.view({target}) of {self.dtype}: a dtype of another size")
    back_dtype, new_dtype = dtype_of(self.dtype), dtype_of(target)
    step = Step(
        lambda x: emit("bitcast", x, dtype=new_dtype),
        lambda base, new: emit("bitcast", new, dtype=back_dtype),
        lambda a: a.view(target),
    )
    return self.through(step)


Tracer.reshape = _reshape_method  # type: ignore[attr-defined]
Tracer.transpose = _transpose_method  # type: ignore[attr-defined]
Tracer.T = property(transpose)  # type: ignore[attr-defined]
Tracer.mT = property(lambda self: swapaxes(self, -1, -2))  # type: ignore[attr-defined]
Tracer.view = _bits  # type: ignore[attr-defined]
Tracer.astype = astype  # type: ignore[attr-defined]
Tracer.copy = lambda self, order="C": materialised(self)  # type: ignore[attr-defined]
Tracer.__copy__ = Tracer.copy  # type: ignore[attr-defined]
Tracer.__deepcopy__ = lambda self, memo: materialised(self)  # type: ignore[attr-defined]
Tracer.flatten = lambda self, order="C": materialised(reshape(self, (-1,), order=order))  # type: ignore[attr-defined]
Tracer.real = property(lambda self: self)  # type: ignore[attr-defined]
Tracer.flat = property(lambda self: reshape(self, (-1,)))  # type: ignore[attr-defined]
