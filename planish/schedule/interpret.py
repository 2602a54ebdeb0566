"""The slow meaning of any kernel, scheduled or not, in NumPy.

In: a kernel, arrays, sizes. Out: arrays. The points of the shared axes run one after another; all points of
a stage are evaluated at once, loads before stores. Vectors, unrolling, threads and register tiles change
nothing here. Indices are checked: one out of range raises IndexError, where compiled code would touch
foreign memory.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from planish.errors import ShapeError, SignatureError
from planish.ops.record import Op, get_op
from planish.schedule.expression import spell_load
from planish.schedule.kernel import (
    Apply,
    Axis,
    Buffer,
    Const,
    Index,
    Kernel,
    Load,
    Result,
    Scalar,
    Sort,
    Stage,
    Store,
    has_result,
    in_loops,
    stage_values,
    walk,
)
from planish.schedule.points import Number, dim_values, loop_points
from planish.types import BOOL, Dim, DType, Expr, dtype_of

COMBINES: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "bitwise_or": np.bitwise_or, "bitwise_and": np.bitwise_and}


def interpret_kernel(kernel: Kernel, arrays: Mapping[str, np.ndarray],
                     sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """The outputs by buffer name. `arrays` holds the inputs by buffer name, `sizes` run-time sizes by symbol.

    Outputs start poisoned (see `poisoned`), but one that also is an input starts as that. Raises
    SignatureError, ShapeError and IndexError.
    """
    sizes = dict(sizes or {})
    memory = {b.name: _checked(b, np.asarray(arrays[b.name]), sizes) for b in kernel.inputs}
    for buffer in kernel.outputs:
        given = memory.get(buffer.name)
        memory[buffer.name] = allocate(buffer, sizes) if given is None else given.copy()
    run_kernel(kernel, memory, sizes)
    return {b.name: memory[b.name] for b in kernel.outputs}


def run_kernel(kernel: Kernel, memory: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    """Run a kernel on arrays for all of its arguments, by buffer name; the outputs are written in place."""
    points, count = loop_points(kernel.shared, sizes)
    plans = {id(stage): _Plan(stage) for stage in kernel.stages}
    groups = [(loop, list(stages)) for loop, stages in in_loops(kernel.stages)]
    for i in range(count):
        point = {n: int(v[i]) if isinstance(v, np.ndarray) else v for n, v in points.items()}
        rows = {b.name: allocate(b, point) for b in kernel.rows}
        machine = _Machine(kernel, {**memory, **rows}, point, plans)
        for loop, stages in groups:
            machine.run_all(loop, stages)


def allocate(buffer: Buffer, sizes: Mapping[str, int]) -> np.ndarray:
    shape = tuple(int(dim_values(d, sizes)) for d in buffer.shape)
    return poisoned(buffer.dtype, shape)


def poisoned(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Memory nobody wrote: every byte is 0xFF (NaN, -1, the largest unsigned), True for bool."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.full(size, 1 if dtype is BOOL else 0xFF, np.uint8).view(dtype.numpy).reshape(shape)


def identity(combine: str, dtype: DType) -> bool | int | float:
    """What a reduction over no points comes to."""
    if combine in ("add", "bitwise_or"):
        return 0
    if combine == "mul":
        return 1
    least = combine == "maximum"
    if dtype.is_float:
        return -np.inf if least else np.inf
    if dtype is BOOL:
        return not least
    if combine == "bitwise_and":
        return -1 if dtype.kind == "int" else int(np.iinfo(dtype.numpy).max)
    return int(np.iinfo(dtype.numpy).min if least else np.iinfo(dtype.numpy).max)


def _checked(buffer: Buffer, array: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
    if dtype_of(array) is not buffer.dtype:
        raise SignatureError(f"buffer {buffer.name}: expected {buffer.dtype.name}, got {array.dtype.name}")
    expected = tuple(int(dim_values(d, sizes)) for d in buffer.shape)
    if array.shape != expected:
        raise ShapeError(f"buffer {buffer.name}: expected shape {expected}, got {array.shape}")
    return array


class _Plan:
    """What is the same of a stage at all points: its expressions, operands first, and the points of its own
    axes where no extent depends on anything."""

    def __init__(self, stage: Stage | Sort):
        self.axes = stage.own_axes
        self.scalars = tuple(walk(*stage_values(stage)))
        is_fixed = all(isinstance(a.extent, int) for a in self.axes)
        self.fixed = loop_points(self.axes, {}) if is_fixed else None

    def points(self, outer: Mapping[str, int]) -> tuple[dict[str, Number], int]:
        if self.fixed is None:
            return loop_points(self.axes, outer)
        inner, count = self.fixed
        return {**outer, **inner}, count


class _Machine:
    """One point of the shared axes: memory, the point, and the results of the stages so far."""

    def __init__(self, kernel: Kernel, memory: Mapping[str, np.ndarray], point: Mapping[str, int],
                 plans: Mapping[int, _Plan]):
        self.kernel, self.memory, self.point, self.plans = kernel, memory, point, plans
        self.results: dict[str, np.ndarray] = {}

    def run_all(self, loop: Axis | None, stages: Sequence[Stage | Sort]) -> None:
        """Stages in order, for each point of the loop around them."""
        outside = self.point
        for i in range(1 if loop is None else int(dim_values(loop.extent, outside))):
            self.point = outside if loop is None else {**outside, loop.name: i}
            for stage in stages:
                self.run(stage)
        self.point = outside

    def run(self, stage: Stage | Sort) -> None:
        nest = _Nest(self, stage)
        if isinstance(stage, Sort):
            self.sort(stage, nest)
        elif stage.at:
            self.combine_at(stage, nest)
        elif stage.combine:
            self.combine(stage, nest)
        else:
            self.store(stage.store, nest, nest.value(stage.value))
            if has_result(stage):
                self.results[stage.name] = nest.value(stage.value)[0]

    def combine(self, stage: Stage, nest: _Nest) -> None:
        wide, own, ufunc = stage.dtype.accumulator.numpy, stage.dtype.numpy, COMBINES[stage.combine]
        values = nest.value(stage.value).astype(wide)
        first = np.asarray(identity(stage.combine, stage.dtype.accumulator)).astype(wide)
        with np.errstate(all="ignore"):
            self.results[stage.name] = np.asarray(ufunc.reduce(values, dtype=wide, initial=first)).astype(own)
            if stage.running:
                kept = np.concatenate([first[None], values])[:-1] if stage.running == "exclusive" else values
                self.store(stage.store, nest, ufunc.accumulate(kept, dtype=wide).astype(own))

    def combine_at(self, stage: Stage, nest: _Nest) -> None:
        """The inner loops are the same at every point."""
        wide, own, ufunc = stage.dtype.accumulator.numpy, stage.dtype.numpy, COMBINES[stage.combine]
        points, count = loop_points(stage.at, self.point)
        values = nest.value(stage.value).astype(wide).reshape(count, nest.count // max(count, 1))
        first = np.asarray(identity(stage.combine, stage.dtype.accumulator)).astype(wide)
        with np.errstate(all="ignore"):
            results = np.asarray(ufunc.reduce(values, axis=1, dtype=wide, initial=first)).astype(own)
        nest.move_to({a.name: np.asarray(points[a.name]) for a in stage.at}, count)
        self.store(stage.store, nest, results)

    def sort(self, stage: Sort, nest: _Nest) -> None:
        keys = nest.value(stage.key)
        first = int(dim_values(stage.count, self.point))
        order = stable_order(keys, stage.descending)[:first]
        nest.move_to({stage.axis.name: np.arange(first)}, first)
        self.store(stage.values, nest, keys[order])
        self.store(stage.positions, nest, order)

    def store(self, store: Store | None, nest: _Nest, values: np.ndarray) -> None:
        if store is None:
            return
        kept = slice(None) if store.guard is None else nest.value(store.guard)
        index = nest.index(store.buffer, store.index, kept)
        target, values = self.memory[store.buffer.name], values[kept]
        if all(isinstance(i, int) for i in index):
            target, index = target[None], (np.zeros(len(values), np.int64), *index)
        if store.update:
            COMBINES[store.update].at(target, index, values)
        else:
            target[index] = values  # of two values for one element the later stays


class _Nest:
    """All points of one stage; every expression is evaluated once, at all of them."""

    def __init__(self, machine: _Machine, stage: Stage | Sort):
        plan = machine.plans[id(stage)]
        self.machine = machine
        self.points, self.count = plan.points(machine.point)
        self.known: dict[int, np.ndarray] = {}
        for scalar in plan.scalars:
            self.known[id(scalar)] = self._evaluate(scalar)

    def move_to(self, points: Mapping[str, np.ndarray], count: int) -> None:
        self.points, self.count = {**self.points, **points}, count

    def value(self, scalar: Scalar) -> np.ndarray:
        return self.everywhere(self.known[id(scalar)])

    def everywhere(self, values: Number) -> np.ndarray:
        if isinstance(values, np.ndarray) and values.shape == (self.count,):
            return values
        return np.broadcast_to(values, (self.count,))

    def _evaluate(self, scalar: Scalar) -> np.ndarray:
        if isinstance(scalar, Const):
            return np.asarray(scalar.value).astype(scalar.dtype.numpy)
        if isinstance(scalar, Index):
            return np.asarray(dim_values(scalar.dim, self.points)).astype(scalar.dtype.numpy)
        if isinstance(scalar, Result):
            return self.machine.results[scalar.stage]
        if isinstance(scalar, Load):
            memory = self.machine.memory[scalar.buffer.name]
            return np.asarray(memory[self.index(scalar.buffer, scalar.index)])
        return self._apply(scalar)

    def _apply(self, scalar: Apply) -> np.ndarray:
        op, attributes = _meaning(scalar.op, scalar.dtype)
        return np.asarray(op.evaluate(attributes, *(self.known[id(a)] for a in scalar.args)))

    def entry(self, entry: Dim | Scalar) -> Number:
        """One number, or one for each point."""
        values = dim_values(entry, self.points) if isinstance(entry, (int, Expr)) else self.known[id(entry)]
        return values if isinstance(values, int) or values.ndim else int(values)

    def index(self, buffer: Buffer, index: tuple[Dim | Scalar, ...],
              kept: slice | np.ndarray = slice(None)) -> tuple[Any, ...]:
        """Indices into a buffer at the points kept; a number is that of all points. Raises IndexError."""
        shape = self.machine.memory[buffer.name].shape
        found: list[Number] = []
        for entry, size in zip(index, shape, strict=True):
            values = self.entry(entry)
            if not isinstance(values, int) or not 0 <= values < size:
                values = self.everywhere(values)[kept]
                outside = (values < 0) | (values >= size)
                if outside.any():
                    where = f"kernel {self.machine.kernel.name}: {spell_load(buffer, index)}"
                    raise IndexError(f"{where}: index {values[outside][0]} is out of range for a size of "
                                     f"{size}, at {self.machine.point}")
            found.append(values)
        return tuple(found)


@cache
def _meaning(op: str, dtype: DType) -> tuple[Op, Any]:
    """An op and its attributes, where it gives this dtype."""
    record = get_op(op)
    return record, record.make_attributes({"dtype": dtype} if op in ("cast", "bitcast") else {})


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(dtype_of(values).accumulator.numpy)


def stable_order(keys: np.ndarray, descending: bool) -> np.ndarray:
    """Positions that sort, equal elements in their own order; NaN counts as the largest."""
    keys = _wide(keys)
    if not descending:
        return np.argsort(keys, kind="stable")
    return len(keys) - 1 - np.argsort(keys[::-1], kind="stable")[::-1]
