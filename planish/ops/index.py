"""Reading at indices: take, take_along, gather_nd, dynamic_slice; and what makes indices: iota, size.

An index i < 0 means i + n; then it is clamped into [0, n - 1], so that no read leaves the operand.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.record import NoAttributes, Sample
from planish.ops.rules import (
    INDICES,
    NUMBERS,
    STORED,
    apply_nullary,
    cast_to,
    define,
    filled_like,
    known,
    ops,
    require,
    require_at_least,
    require_axis,
    require_dtype,
    require_equal_sizes,
    require_one_per_axis,
    size_like,
)
from planish.ops.samples import random_array, special_values, strided, with_specials
from planish.ops.shape import AxisAttributes
from planish.types import INT8, INT32, INT64, UINT8, Dim, DType, Shape, TensorType, is_static


@dataclass(frozen=True)
class IotaAttributes:
    shape: Shape
    axis: int
    dtype: DType


@dataclass(frozen=True)
class SizeAttributes:
    dim: Dim
    dtype: DType


@dataclass(frozen=True)
class GatherAttributes:
    batch_dims: int = 0


@dataclass(frozen=True)
class SizesAttributes:
    sizes: Shape


# --- indices

def from_the_end(index: np.ndarray, size: int) -> np.ndarray:
    """Negative indices counted from the end, as int64; nothing is clamped."""
    index = index.astype(np.int64)
    return np.where(index < 0, index + size, index)


def clamped(index: np.ndarray, size: int) -> np.ndarray:
    return np.clip(from_the_end(index, size), 0, size - 1)


def require_index(index: TensorType, x: TensorType, axis: int) -> None:
    require_dtype(index, INDICES, "indices are")
    require(x.shape[axis] != 0 or index.size == 0, f"axis {axis} of {x} is empty: there is nothing to index")


def index_within(index: Any, size: Dim) -> Any:
    """`clamped` as a formula."""
    index, n = cast_to(index, INT64), size_like(index, size, INT64)
    counted = ops.select(ops.lt(index, 0), ops.add(index, n), index)
    return ops.minimum(ops.maximum(counted, 0), ops.sub(n, 1))


# --- iota, size

def _iota_rule(attributes: IotaAttributes) -> TensorType:
    result = TensorType(attributes.dtype, attributes.shape)
    require_dtype(result, NUMBERS, "its dtype is one of")
    require_axis(attributes.axis, result.rank)
    return result


def _iota(a: IotaAttributes) -> np.ndarray:
    shape = known(a.shape)
    column = tuple(n if i == a.axis else 1 for i, n in enumerate(shape))
    return np.broadcast_to(np.arange(shape[a.axis]).astype(a.dtype.numpy).reshape(column), shape)


def _iota_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape, axis in (((1,), 0), ((33,), 0), ((3, 17), 1), ((17, 3), 0), ((0, 3), 0), ((2, 3, 8), 1),
                        ((70_000,), 0)):
        yield Sample((), {"shape": shape, "axis": axis, "dtype": dtype}, f"{shape}, axis {axis}")


iota = define("iota", "index", _iota_rule, _iota, operands=0, dtypes=NUMBERS, attributes=IotaAttributes,
              traits={"indexing"}, samples=_iota_samples, gradient=lambda g, a, y: ())


def _size_rule(attributes: SizeAttributes) -> TensorType:
    require_dtype(TensorType(attributes.dtype), NUMBERS, "its dtype is one of")
    return TensorType(attributes.dtype)


def _size_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for n in (0, 1, 17, 100):
        yield Sample((), {"dim": n, "dtype": dtype}, f"size {n}")


size = define("size", "index", _size_rule, lambda a: np.asarray(a.dim, a.dtype.numpy), operands=0,
              dtypes=NUMBERS, attributes=SizeAttributes, traits={"indexing"}, samples=_size_samples,
              gradient=lambda g, a, y: ())


# --- take

def _take_rule(attributes: AxisAttributes, x: TensorType, index: TensorType) -> TensorType:
    axis = attributes.axis
    require_axis(axis, x.rank)
    require_index(index, x, axis)
    return x.with_shape((*x.shape[:axis], *index.shape, *x.shape[axis + 1:]))


def _take(a: AxisAttributes, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.asarray(np.take(x, clamped(index, x.shape[a.axis]), a.axis))


def _take_gradient(g: Any, a: AxisAttributes, y: Any, x: Any, index: Any) -> Sequence[Any]:
    """Added up where it was read: with the indexed axis in front, that is a scatter of whole rows."""
    axis, rank, picked = a.axis, len(x.shape), len(index.shape)
    rows = (*range(axis, axis + picked), *range(axis), *range(axis + picked, len(g.shape)))
    front = (axis, *range(axis), *range(axis + 1, rank))
    zeros = filled_like(x, 0, tuple(x.shape[i] for i in front))
    where = ops.reshape(index_within(index, x.shape[axis]), shape=(*index.shape, 1))
    gx = ops.scatter_nd(zeros, where, ops.transpose(g, axes=rows), reduction="add")
    return ops.transpose(gx, axes=tuple(front.index(i) for i in range(rank))), None


def random_index(rng: np.random.Generator, size: int, shape: tuple[int, ...], dtype: DType = INT64,
                 outside: bool = False) -> np.ndarray:
    """Indices into `size` places, negative ones too where the dtype has them; beyond the ends on request."""
    low = -size if dtype.kind == "int" else 0
    reach = 2 if outside else 1
    return np.asarray(rng.integers(low * reach, size * reach, shape)).astype(dtype.numpy)


def _take_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    for n in (1, 3, 8, 17, 33, 1000):
        yield Sample((x(9, 5), random_index(rng, 9, (n,))), {"axis": 0}, f"rows, {n} indices")
    for of in (INT8, INT32, UINT8):
        yield Sample((x(9, 5), random_index(rng, 5, (4,), of)), {"axis": 1}, f"columns, {of.short} indices")
    yield Sample((x(4, 6, 3), random_index(rng, 6, (2, 5))), {"axis": 1}, "2-d indices, middle axis")
    yield Sample((x(9), random_index(rng, 9, ())), {"axis": 0}, "one index")
    yield Sample((x(9, 3), random_index(rng, 9, (17,), outside=True)), {"axis": 0}, "outside")
    yield Sample((x(300), np.array([127, -128, 5, -1], np.int8)), {"axis": 0}, "i8 into 300")
    yield Sample((x(9, 5), random_index(rng, 9, (0,))), {"axis": 0}, "no indices")
    yield Sample((x(0, 5), np.zeros((0, 2), np.int64)), {"axis": 0}, "no rows, no indices")
    yield Sample((strided(x(9, 7)), strided(random_index(rng, 7, (3, 4)))), {"axis": 1}, "strided")
    yield Sample((special_values(dtype), random_index(rng, special_values(dtype).size, (40,))), {"axis": 0},
                 "special")
    yield Sample((x(100, 16), random_index(rng, 100, (4400,))), {"axis": 0}, "parallel")


take = define("take", "index", _take_rule, _take, operands=2, dtypes=STORED, attributes=AxisAttributes,
              traits={"indexing"}, samples=_take_samples, gradient=_take_gradient)


# --- take_along

def require_along(x: TensorType, index: TensorType, axis: int) -> None:
    """The index has x's rank, and off the axis reaches no further than x."""
    require_axis(axis, x.rank)
    require_index(index, x, axis)
    require(index.rank == x.rank, f"indices are to have the operand's {x.rank} axes, not {index.rank}")
    for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if i != axis:
            require_at_least(f"size of axis {i}", n, m)


def _take_along_rule(attributes: AxisAttributes, x: TensorType, index: TensorType) -> TensorType:
    require_along(x, index, attributes.axis)
    return x.with_shape(index.shape)


def along(index: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """NumPy's advanced index for `index` along `axis`, every other axis in step."""
    steps = list(np.ogrid[tuple(map(slice, index.shape))])
    steps[axis] = index
    return tuple(steps)


def _take_along(a: AxisAttributes, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[along(clamped(index, x.shape[a.axis]), a.axis)]


def _take_along_gradient(g: Any, a: AxisAttributes, y: Any, x: Any, index: Any) -> Sequence[Any]:
    where = index_within(index, x.shape[a.axis])
    return ops.scatter_along(filled_like(x, 0), where, g, axis=a.axis, reduction="add"), None


def _take_along_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    yield Sample((x(9, 5), random_index(rng, 9, (4, 5))), {"axis": 0}, "axis 0")
    yield Sample((x(9, 17), random_index(rng, 17, (9, 33), INT32)), {"axis": 1}, "axis 1, i32 indices")
    yield Sample((x(3, 4, 5), random_index(rng, 4, (2, 7, 5))), {"axis": 1}, "shorter indices")
    yield Sample((x(9, 5), random_index(rng, 9, (4, 5), outside=True)), {"axis": 0}, "outside")
    yield Sample((x(9, 5), random_index(rng, 9, (0, 5))), {"axis": 0}, "no indices")
    yield Sample((strided(x(9, 7)), random_index(rng, 9, (7, 5)).T), {"axis": 0}, "strided")
    yield Sample((with_specials(rng, x(9, 17), dtype), random_index(rng, 17, (9, 33))), {"axis": 1},
                 "special")
    yield Sample((x(1, 1), random_index(rng, 1, (1, 1))), {"axis": 0}, "size-1")
    yield Sample((x(70, 1000), random_index(rng, 1000, (70, 1000))), {"axis": 1}, "parallel")


take_along = define("take_along", "index", _take_along_rule, _take_along, operands=2, dtypes=STORED,
                    attributes=AxisAttributes, traits={"indexing"}, samples=_take_along_samples,
                    gradient=_take_along_gradient)


# --- gather_nd

def require_depth(index: TensorType, available: int) -> int:
    """The last size of an index: how many axes each of its rows indexes."""
    require_dtype(index, INDICES, "indices are")
    require(index.rank >= 1, "indices have at least one axis: the last holds one index per indexed axis")
    depth = index.shape[-1]
    require(is_static(depth), f"the last size of the indices is to be known, not {depth}")
    require(depth <= available, f"rows of {depth} indices into {available} axes")  # type: ignore[operator]
    return depth  # type: ignore[return-value]


def _gather_rule(attributes: GatherAttributes, x: TensorType, index: TensorType) -> TensorType:
    batch = attributes.batch_dims
    require(0 <= batch < max(index.rank, 1) and batch <= x.rank, f"batch_dims {batch} of {x} and {index}")
    depth = require_depth(index, x.rank - batch)
    for i in range(batch):
        require_equal_sizes(f"batch sizes of axis {i}", x.shape[i], index.shape[i])
    for i in range(batch, batch + depth):
        require_index(index, x, i)
    return x.with_shape((*index.shape[:-1], *x.shape[batch + depth:]))


def _gather(a: GatherAttributes, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    batch, rows = a.batch_dims, index.shape[:-1]
    steps = np.ogrid[tuple(map(slice, rows))][:batch] if batch else ()
    columns = tuple(clamped(index[..., i], x.shape[batch + i]) for i in range(index.shape[-1]))
    if not batch and not columns:
        return np.broadcast_to(x, rows + x.shape)
    steps = tuple(np.broadcast_to(s, rows) for s in steps)
    return x[(*steps, *columns)]


def _gather_gradient(g: Any, a: GatherAttributes, y: Any, x: Any, index: Any) -> Sequence[Any]:
    """Added up where it was read; batch axes become explicit indices."""
    rows = (*index.shape[:-1], 1)
    columns = [apply_nullary(iota, index, shape=rows, axis=i, dtype=INT64) for i in range(a.batch_dims)]
    for i in range(index.shape[-1]):
        starts, stops = (*(0,) * len(index.shape[:-1]), i), (*index.shape[:-1], i + 1)
        column = ops.slice(index, starts=starts, stops=stops, steps=(1,) * len(rows))
        columns.append(index_within(column, x.shape[a.batch_dims + i]))
    where = ops.concat(*columns, axis=len(rows) - 1) if columns else index
    return ops.scatter_nd(filled_like(x, 0), where, g, reduction="add"), None


def _gather_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    plain = {"batch_dims": 0}
    yield Sample((x(9, 5), random_index(rng, 5, (7, 2))), plain, "elements")
    yield Sample((x(9, 17), random_index(rng, 9, (33, 1), INT32)), plain, "rows, i32 indices")
    yield Sample((x(4, 5, 6), random_index(rng, 4, (2, 3, 2))), plain, "2-d of rows")
    yield Sample((x(4, 5, 6), random_index(rng, 5, (4, 3, 1))), {"batch_dims": 1}, "batch")
    yield Sample((x(4, 5), random_index(rng, 9, (17, 2), outside=True)), plain, "outside")
    yield Sample((x(4, 5), random_index(rng, 4, (0, 1))), plain, "no indices")
    yield Sample((strided(x(5, 9)), random_index(rng, 5, (2, 7)).T), plain, "strided")
    yield Sample((with_specials(rng, x(9, 17), dtype), random_index(rng, 9, (33, 1))), plain, "special")
    yield Sample((x(100, 16), random_index(rng, 100, (4400, 1))), plain, "parallel")


gather_nd = define("gather_nd", "index", _gather_rule, _gather, operands=2, dtypes=STORED,
                   attributes=GatherAttributes, traits={"indexing"}, samples=_gather_samples,
                   gradient=_gather_gradient)


# --- dynamic_slice

def require_starts(x: TensorType, starts: Sequence[TensorType]) -> None:
    require(len(starts) == x.rank, f"takes one start per axis: {x.rank}, not {len(starts)}")
    for start in starts:
        require_dtype(start, INDICES, "starts are")
        require(start.shape == (), f"a start is a scalar, not {start}")


def window_at(x: np.ndarray, starts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The window of `sizes` at `starts`, moved inside where it reaches over an end."""
    at = (int(np.clip(from_the_end(np.asarray(s), n), 0, n - m))
          for s, n, m in zip(starts, x.shape, sizes, strict=True))
    return tuple(slice(start, start + m) for start, m in zip(at, sizes, strict=True))


def _dynamic_slice_rule(attributes: SizesAttributes, x: TensorType, *starts: TensorType) -> TensorType:
    require_one_per_axis("sizes", attributes.sizes, x.rank)
    require_starts(x, starts)
    for n, m in zip(x.shape, attributes.sizes, strict=True):
        require_at_least("size", m, 0)
        require_at_least("operand size", n, m)
    return x.with_shape(attributes.sizes)


def _dynamic_slice_gradient(g: Any, a: SizesAttributes, y: Any, x: Any, *starts: Any) -> Sequence[Any]:
    return (ops.dynamic_update_slice(filled_like(x, 0), g, *starts), *(None for _ in starts))


def _start_cases(rng: np.random.Generator) -> Iterator[tuple[tuple[np.ndarray, ...], str]]:
    for starts, label in (((0, 0), "at 0"), ((2, 5), "inside"), ((-3, -9), "from the end"),
                          ((100, -100), "outside")):
        yield tuple(np.asarray(s, np.int64) for s in starts), label
    yield tuple(np.asarray(s, np.int32) for s in (1, 3)), "i32 starts"


def _dynamic_slice_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for starts, label in _start_cases(rng):
        x = random_array(rng, dtype, (7, 17))
        yield Sample((x, *starts), {"sizes": (3, 8)}, label)
        yield Sample((strided(x), *starts), {"sizes": (7, 1)}, f"{label}, strided")
    yield Sample((with_specials(rng, x, dtype), *starts), {"sizes": (5, 9)}, "special")
    yield Sample((x, *starts), {"sizes": (0, 8)}, "empty")
    yield Sample((random_array(rng, dtype, (300, 300)), *starts), {"sizes": (270, 260)}, "parallel")


dynamic_slice = define("dynamic_slice", "index", _dynamic_slice_rule,
                       lambda a, x, *starts: x[window_at(x, starts, a.sizes)], operands=None, dtypes=STORED,
                       attributes=SizesAttributes, traits={"indexing"}, samples=_dynamic_slice_samples,
                       gradient=_dynamic_slice_gradient)


def _update_rule(attributes: NoAttributes, x: TensorType, update: TensorType,
                 *starts: TensorType) -> TensorType:
    require(update.dtype is x.dtype and update.rank == x.rank,
            "the update is to have the operand's dtype and rank")
    require_starts(x, starts)
    for n, m in zip(x.shape, update.shape, strict=True):
        require_at_least("operand size", n, m)
    return x


def _update(a: NoAttributes, x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[window_at(x, starts, update.shape)] = update
    return result


def _update_gradient(g: Any, a: NoAttributes, y: Any, x: Any, update: Any, *starts: Any) -> Sequence[Any]:
    gx = ops.dynamic_update_slice(g, filled_like(update, 0), *starts)
    return (gx, ops.dynamic_slice(g, *starts, sizes=tuple(update.shape)), *(None for _ in starts))


def _update_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for starts, label in _start_cases(rng):
        x = random_array(rng, dtype, (7, 17))
        yield Sample((x, random_array(rng, dtype, (3, 8)), *starts), {}, label)
        yield Sample((strided(x), random_array(rng, dtype, (17, 7)).T, *starts), {}, f"{label}, strided")
    specials = (with_specials(rng, random_array(rng, dtype, shape), dtype) for shape in ((7, 17), (3, 8)))
    yield Sample((*specials, *starts), {}, "special")
    yield Sample((x, random_array(rng, dtype, (0, 8)), *starts), {}, "empty")
    yield Sample((random_array(rng, dtype, (300, 300)), random_array(rng, dtype, (270, 260)), *starts), {},
                 "parallel")


dynamic_update_slice = define("dynamic_update_slice", "index", _update_rule, _update, operands=None,
                              dtypes=STORED, traits={"indexing"}, samples=_update_samples,
                              gradient=_update_gradient)
