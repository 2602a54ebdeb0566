"""Ops that move elements and compute nothing. Trait `view`: the result can share the operand's buffer."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.record import Sample
from planish.ops.rules import (
    STORED,
    define,
    known,
    like,
    ops,
    require,
    require_at_least,
    require_axes,
    require_axis,
    require_equal_sizes,
    require_one_per_axis,
    require_same_dtype,
    unbroadcast,
)
from planish.ops.samples import joined, random_array, special_values, varied
from planish.types import Dim, DType, Shape, TensorType, broadcast_shapes, element_count
from planish.types.dim import maximum as largest


@dataclass(frozen=True)
class ShapeAttributes:
    shape: Shape


@dataclass(frozen=True)
class AxesAttributes:
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AxisAttributes:
    axis: int


@dataclass(frozen=True)
class SliceAttributes:
    """One entry per axis: elements start, start + step, ... below stop."""

    starts: Shape
    stops: Shape
    steps: tuple[int, ...]


@dataclass(frozen=True)
class PadAttributes:
    """One entry per axis: fill values before, after, and between neighbours (`interior`, by default none)."""

    low: Shape
    high: Shape
    interior: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.interior:
            object.__setattr__(self, "interior", (0,) * len(self.low))


# --- reshape

def _reshape_rule(attributes: ShapeAttributes, x: TensorType) -> TensorType:
    for d in attributes.shape:
        require_at_least("size", d, 0)
    require_equal_sizes("element counts", x.size, element_count(attributes.shape))
    return x.with_shape(attributes.shape)


reshape = define("reshape", "shape", _reshape_rule, lambda a, x: x.reshape(a.shape), operands=1,
                 dtypes=STORED, attributes=ShapeAttributes, traits={"movement", "view"},
                 samples=joined(varied({"shape": (6, 4)}, {"shape": (24,)}, {"shape": (1, 2, 1, 12)},
                                       {"shape": (2, 3, 4)}, shape=(2, 3, 4)),
                                varied({"shape": (5, 0)}, shape=(0, 4)), varied({"shape": ()}, shape=(1, 1)),
                                varied({"shape": (700, 100)}, shape=(350, 200))),
                 gradient=lambda g, a, y, x: (ops.reshape(g, shape=tuple(x.shape)),))


# --- broadcast_to

def _broadcast_to_rule(attributes: ShapeAttributes, x: TensorType) -> TensorType:
    for d in attributes.shape:
        require_at_least("size", d, 0)
    require(broadcast_shapes(x.shape, attributes.shape) == tuple(attributes.shape),
            f"shape {_show(x.shape)} does not broadcast to {_show(attributes.shape)}")
    return x.with_shape(attributes.shape)


def _show(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


broadcast_to = define("broadcast_to", "shape", _broadcast_to_rule, lambda a, x: np.broadcast_to(x, a.shape),
                      operands=1, dtypes=STORED, attributes=ShapeAttributes, traits={"movement", "view"},
                      samples=joined(varied({"shape": (3, 17)}, {"shape": (2, 3, 17)}, {"shape": (3, 1)},
                                            {"shape": (0, 3, 5)}, shape=(3, 1)),
                                     varied({"shape": (700, 100)}, shape=(100,))),
                      gradient=lambda g, a, y, x: (unbroadcast(g, tuple(x.shape)),))


# --- transpose

def _transpose_rule(attributes: AxesAttributes, x: TensorType) -> TensorType:
    require_one_per_axis("axes", attributes.axes, x.rank)
    require_axes(attributes.axes, x.rank)
    return x.with_shape([x.shape[a] for a in attributes.axes])


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))


transpose = define("transpose", "shape", _transpose_rule, lambda a, x: x.transpose(a.axes), operands=1,
                   dtypes=STORED, attributes=AxesAttributes, traits={"movement", "view"},
                   samples=joined(varied({"axes": (0, 1, 2)}, {"axes": (2, 1, 0)}, {"axes": (1, 2, 0)},
                                         {"axes": (0, 2, 1)}, shape=(3, 17, 8)),
                                  varied({"axes": (1, 0)}, shape=(0, 3)),
                                  varied({"axes": (1, 0)}, shape=(700, 100))),
                   gradient=lambda g, a, y, x: (ops.transpose(g, axes=_inverse(a.axes)),))


# --- slice

def _slice_rule(attributes: SliceAttributes, x: TensorType) -> TensorType:
    for what, values in (("starts", attributes.starts), ("stops", attributes.stops),
                         ("steps", attributes.steps)):
        require_one_per_axis(what, values, x.rank)
    sizes = []
    a = attributes
    for start, stop, step, size in zip(a.starts, a.stops, a.steps, x.shape, strict=True):
        require(step >= 1, f"step {step} is less than 1")
        require_at_least("start", start, 0)
        require_at_least("stop", stop, start)
        require_at_least("size", size, stop)
        sizes.append((stop - start + step - 1) // step)
    return x.with_shape(sizes)


def _slices(a: SliceAttributes) -> tuple[slice, ...]:
    return tuple(map(slice, a.starts, a.stops, a.steps))


def _slice_gradient(g: Any, a: SliceAttributes, y: Any, x: Any) -> Sequence[Any]:
    """Put each element back to where it came from, zeros around and between."""
    spans = map(_span, g.shape, a.steps)
    high = tuple(size - start - span for size, start, span in zip(x.shape, a.starts, spans, strict=True))
    return (ops.pad(g, like(g, 0), low=a.starts, high=high, interior=tuple(s - 1 for s in a.steps)),)


def _span(count: Dim, step: int) -> Dim:
    """How many places `count` elements `step` apart reach over."""
    return count if step == 1 else largest((count - 1) * step + 1, 0)


slice_ = define("slice", "shape", _slice_rule, lambda a, x: x[_slices(a)], operands=1, dtypes=STORED,
                attributes=SliceAttributes, traits={"movement", "view"},
                samples=joined(varied({"starts": (0, 0), "stops": (7, 17), "steps": (1, 1)},
                                      {"starts": (2, 3), "stops": (6, 17), "steps": (1, 4)},
                                      {"starts": (3, 1), "stops": (3, 16), "steps": (1, 2)},
                                      {"starts": (0, 0), "stops": (7, 1), "steps": (7, 1)}, shape=(7, 17)),
                               varied({"starts": (1, 1), "stops": (700, 201), "steps": (1, 2)},
                                      shape=(700, 201))),
                gradient=_slice_gradient)


# --- pad

def _pad_rule(attributes: PadAttributes, x: TensorType, fill: TensorType) -> TensorType:
    require_same_dtype(x, fill)
    require(fill.shape == (), f"the fill is to be a scalar, not {fill}")
    for what, values in (("low", attributes.low), ("high", attributes.high),
                         ("interior", attributes.interior)):
        require_one_per_axis(what, values, x.rank)
        for value in values:
            require_at_least(what, value, 0)
    return x.with_shape(tuple(map(_padded, x.shape, attributes.low, attributes.high, attributes.interior)))


def _padded(size: Dim, low: Dim, high: Dim, interior: int) -> Dim:
    return size + low + high + (largest(size - 1, 0) * interior if interior else 0)


def padded(x: np.ndarray, fill: Any, low: Shape, high: Shape, interior: Sequence[int]) -> np.ndarray:
    result = np.full(known(map(_padded, x.shape, low, high, interior)), fill, x.dtype)
    edges = zip(known(low), result.shape, known(high), interior, strict=True)
    result[tuple(slice(lo, n - hi, step + 1) for lo, n, hi, step in edges)] = x
    return result


def _pad_gradient(g: Any, a: PadAttributes, y: Any, x: Any, fill: Any) -> Sequence[Any]:
    stops = tuple(n - high for n, high in zip(g.shape, a.high, strict=True))
    gx = ops.slice(g, starts=a.low, stops=stops, steps=tuple(i + 1 for i in a.interior))
    axes = tuple(range(len(x.shape)))
    return gx, ops.reduce_sum(g, axes=axes) - ops.reduce_sum(gx, axes=axes)


def _pad_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    cases = varied({"low": (0, 0), "high": (0, 0), "interior": (0, 0)},
                   {"low": (1, 2), "high": (3, 0), "interior": (0, 0)},
                   {"low": (0, 1), "high": (1, 5), "interior": (2, 1)}, shape=(5, 17))
    empty = varied({"low": (2, 1), "high": (0, 1), "interior": (1, 0)}, shape=(0, 3))
    large = varied({"low": (1, 2), "high": (3, 0), "interior": (0, 1)}, shape=(700, 100))
    for sample in joined(cases, empty, large)(rng, dtype):
        yield Sample((*sample.operands, random_array(rng, dtype, ())), sample.attributes, sample.label)


pad = define("pad", "shape", _pad_rule, lambda a, x, fill: padded(x, fill, a.low, a.high, a.interior),
             operands=2, dtypes=STORED, attributes=PadAttributes, traits={"movement"}, samples=_pad_samples,
             gradient=_pad_gradient)


# --- concat

def _concat_rule(attributes: AxisAttributes, *xs: TensorType) -> TensorType:
    require_same_dtype(*xs)
    first, axis = xs[0], attributes.axis
    require_axis(axis, first.rank)
    for x in xs[1:]:
        require(x.rank == first.rank, f"operands are to have one rank, not {first.rank} and {x.rank}")
        for i in range(first.rank):
            require(i == axis or x.shape[i] == first.shape[i],
                    f"sizes along axis {i} differ: {first.shape[i]} and {x.shape[i]}; only axis {axis} may",
                    (first.shape[i], x.shape[i]))
    total = sum(x.shape[axis] for x in xs)
    return first.with_shape([*first.shape[:axis], total, *first.shape[axis + 1:]])


def _concat_gradient(g: Any, a: AxisAttributes, y: Any, *xs: Any) -> Sequence[Any]:
    parts, start, rank = [], 0, len(g.shape)
    for x in xs:
        stop = start + x.shape[a.axis]
        starts = tuple(start if i == a.axis else 0 for i in range(rank))
        stops = tuple(stop if i == a.axis else d for i, d in enumerate(g.shape))
        parts.append(ops.slice(g, starts=starts, stops=stops, steps=(1,) * rank))
        start = stop
    return parts


def _concat_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    yield Sample((x(3, 4), x(1, 4), x(17, 4)), {"axis": 0}, "axis 0")
    yield Sample((x(3, 4), x(3, 1), x(3, 0), x(3, 9)), {"axis": 1}, "axis 1, one of them empty")
    yield Sample((x(5),), {"axis": 0}, "one operand")
    yield Sample((x(3, 4).T, x(4, 8)[:, ::2]), {"axis": 1}, "strided")
    yield Sample((special_values(dtype), x(9), special_values(dtype)), {"axis": 0}, "special")
    yield Sample((x(35_000), x(35_000)), {"axis": 0}, "parallel")


concat = define("concat", "shape", _concat_rule, lambda a, *xs: np.concatenate(xs, a.axis), operands=None,
                dtypes=STORED, attributes=AxisAttributes, traits={"movement"}, samples=_concat_samples,
                gradient=_concat_gradient)


# --- reverse

def _reverse_rule(attributes: AxesAttributes, x: TensorType) -> TensorType:
    require_axes(attributes.axes, x.rank)
    return x


reverse = define("reverse", "shape", _reverse_rule, lambda a, x: np.flip(x, a.axes), operands=1,
                 dtypes=STORED, attributes=AxesAttributes, traits={"movement"},
                 samples=joined(varied({"axes": (0,)}, {"axes": (1,)}, {"axes": (0, 1)}, {"axes": ()},
                                       shape=(3, 17)),
                                varied({"axes": (0,)}, shape=(0, 3)),
                                varied({"axes": (1,)}, shape=(700, 100))),
                 gradient=lambda g, a, y, x: (ops.reverse(g, axes=a.axes),))
