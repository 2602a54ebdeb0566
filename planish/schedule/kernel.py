"""The loops IR: a kernel is loops, index maps, scalar expressions, and what the schedule did to them.

    kernel k0(x: f32[4096, 1024]) -> (y: f32[4096, 1024]) {
      for s0 in 4096 parallel:
        m: f32 = maximum over a0 in 1024 vector(8) unroll(4):
          x[s0, a0]
        t1: f32 = map over a1 in 1024 vector(8):
          y[s0, a1] = exp(x[s0, a1] - m)
    }

A kernel runs its stages in order for every point of its shared axes. A stage maps (stores a value at every
point of its own axes), reduces over its axes to one value that later stages name, scans, or sorts. Points of
the shared axes are independent unless the kernel is serial, so they may run in any order and on any thread.
Neighbouring stages may stand inside a loop of their own, which runs them all for each of its points in turn.
Index expressions are `Dim`s over axes and symbols; an index known only at run time (a gather) is a scalar
expression.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from planish.schedule.products import NUMBERS, Product
from planish.types import INT64, Dim, DType, Shape, TensorType, is_static, substitute, symbol, symbols_of
from planish.types.dim import maximum


@dataclass(frozen=True)
class Axis:
    """A loop `for name in range(extent)`; the extent may depend on outer axes (the tail of a tile).

    parallel: its points are shared out among threads. lanes: how many points one vector holds (1: scalar
    loop); the rest of the extent runs scalar. unroll: vectors per trip, or points of a shared axis that is no
    vector; a reduction keeps one accumulator for each.
    """

    name: str
    extent: Dim
    parallel: bool = False
    lanes: int = 1
    unroll: int = 1

    @property
    def symbol(self) -> Dim:
        return symbol(self.name, 0, self.extent - 1)


@functools.lru_cache(1 << 12)
def strides_of(shape: Shape, order: tuple[int, ...]) -> tuple[Dim, ...]:
    """Elements between neighbours along each axis of a tensor whose axes lie in memory in `order`."""
    strides: dict[int, Dim] = {}
    step: Dim = 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides[i] for i in range(len(shape)))


@dataclass(frozen=True)
class Buffer:
    """Memory for one tensor. `order` lists its axes from outermost to innermost in memory ((): as they
    stand).

    space: "global" is an argument of the kernel; "row" is scratch of one thread that lives for one point of
    the shared axes.
    """

    name: str
    type: TensorType
    order: tuple[int, ...] = ()
    space: str = "global"

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def strides(self) -> tuple[Dim, ...]:
        """In elements, one per axis."""
        return strides_of(self.shape, self.order)

    def offset(self, index: tuple[Dim, ...]) -> Dim:
        """Elements from the start to the element at `index`."""
        total: Dim = 0
        for i, stride in zip(index, self.strides, strict=True):
            total = total + i * stride
        return total


class Expression:
    """What all scalar expressions have."""

    @cached_property
    def below(self) -> tuple[Scalar, ...]:
        """Every distinct expression that this one is made of, operands first."""
        return _walked(self)[:-1]  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Const(Expression):
    """A literal."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, eq=False)
class Index(Expression):
    """The value of an index expression, as a number."""

    dim: Dim
    dtype: DType = INT64


@dataclass(frozen=True, eq=False)
class Load(Expression):
    """An element of a buffer. An entry of `index` is a Dim, or a scalar expression of dtype int64 that is in
    range."""

    buffer: Buffer
    index: tuple[Dim | Scalar, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, eq=False)
class Result(Expression):
    """What an earlier stage of the kernel came to, at the same point of the shared axes: the result of a
    reduction, or the value of a map without axes (`has_result`)."""

    stage: str
    dtype: DType


@dataclass(frozen=True, eq=False)
class Apply(Expression):
    """A pointwise op of the op table on scalars; cast and bitcast go to `dtype`."""

    op: str
    args: tuple[Scalar, ...]
    dtype: DType


Scalar = Const | Index | Load | Result | Apply


@dataclass(frozen=True, eq=False)
class Store:
    """Where a stage puts its value. `update`: how it joins what is there ("": replaces it; add, mul, maximum,
    minimum); `guard`: a bool scalar, false where nothing is stored."""

    buffer: Buffer
    index: tuple[Dim | Scalar, ...]
    update: str = ""
    guard: Scalar | None = None


@dataclass(frozen=True, eq=False)
class Stage:
    """One loop nest over `axes` (outermost first) at each point of the kernel's shared axes.

    map      combine "": `store` takes `value` at every point. Without axes it is also a name for its value,
             `Result(name)`, and then may have no store
    reduce   combine is an op (add, mul, maximum, minimum, bitwise_or, bitwise_and); the result, of dtype
             `dtype`, is `Result(name)` for later stages. Accumulation is in dtype.accumulator
    scan     running "inclusive" or "exclusive": as reduce over the one axis (none: one point), and every
             running value is stored, rounded where the stage is in the accumulator of the buffer's dtype

    A reduction `at` points of its own is one at each of them; it has no name, but `store` takes the result
    there. Unrolled axes of `at` are a register tile: as many accumulators at once. `inside` is the loop
    around the stage; neighbours inside one loop run in order for each of its points.
    """

    name: str
    axes: tuple[Axis, ...]
    value: Scalar
    dtype: DType
    combine: str = ""
    store: Store | None = None
    running: str = ""
    at: tuple[Axis, ...] = ()
    inside: Axis | None = None

    @property
    def own_axes(self) -> tuple[Axis, ...]:
        """The stage's own loops, outermost first."""
        return self.at + self.axes


@dataclass(frozen=True, eq=False)
class Sort:
    """Sorts the row along `axis`, stably, at each point of the shared axes. `key` is the row's element at the
    axis; the first `count` in order are stored at the axis's values 0 to count - 1: `values` what they are,
    `positions` where they were (int64); either may be left out. No later stage may name it. `work` is scratch
    memory, a row of bytes for each thread; its number of rows limits the threads (sorting.py)."""

    name: str
    axis: Axis
    key: Scalar
    descending: bool
    count: Dim
    values: Store | None
    positions: Store | None
    work: Buffer | None = None

    @property
    def own_axes(self) -> tuple[Axis, ...]:
        return (self.axis,)


@dataclass(frozen=True)
class Step:
    """One thing the schedule did, as printed: tile(s0, 4096), vectorize(a, 8), pack(w, 16)."""

    name: str
    arguments: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, eq=False)
class RegisterTile:
    """How a contraction runs: `acc[batch, m, n] = sum over k of lhs[batch, m, k] * rhs[batch, k, n]`.

    The names are of axes: batch, m and n shared ones, k those of the reduce stage, each outermost first; the
    left operand moves along m, the right one along n, both along k. `rows` of m by `vectors` of `lanes` along
    n stay in registers over all of k; the stages after the sum run on them there. The right operand is read
    as panels of `vectors * lanes` columns when `packed`, `rhs[batch, panel, k, lane]` or as `product` wants
    them, else in place, contiguous along n.
    """

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    rows: int
    vectors: int
    lanes: int
    packed: bool
    product: Product = NUMBERS


@dataclass(frozen=True, eq=False)
class Kernel:
    """Stages run in order at each point of the shared axes. `serial`: the points run in order on one
    thread."""

    name: str
    shared: tuple[Axis, ...]
    stages: tuple[Stage | Sort, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    rows: tuple[Buffer, ...] = ()
    serial: bool = False
    tile: RegisterTile | None = None
    steps: tuple[Step, ...] = ()
    ops: tuple[str, ...] = field(default=())

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return self.inputs + self.outputs

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The sizes known at run time that the kernel depends on: symbols that are not axes."""
        axes = {a.name for a in self.shared} | {a.name for s in self.stages for a in stage_axes(s)}
        found: dict[str, None] = {}
        for dim in kernel_dims(self):
            if not is_static(dim):
                found.update(dict.fromkeys(n for n in symbols_of(dim) if n not in axes))
        return tuple(found)

    def with_step(self, step: Step) -> Kernel:
        return replace(self, steps=(*self.steps, step))


def stage_axes(stage: Stage | Sort) -> tuple[Axis, ...]:
    """The loops around a stage's value beside the shared ones."""
    around = (stage.inside,) if isinstance(stage, Stage) and stage.inside is not None else ()
    return around + stage.own_axes


def has_result(stage: Stage | Sort) -> bool:
    """Whether later stages may name what the stage comes to."""
    return isinstance(stage, Stage) and not stage.at and (bool(stage.combine) or not stage.axes)


def in_loops(stages: Iterable[Stage | Sort]) -> Iterator[tuple[Axis | None, list[Stage | Sort]]]:
    """Neighbouring stages by the loop around them; those without one stand together."""
    for loop, group in groupby(stages, lambda s: s.inside if isinstance(s, Stage) else None):
        yield loop, list(group)


def stage_stores(stage: Stage | Sort) -> tuple[Store, ...]:
    found = (stage.values, stage.positions) if isinstance(stage, Sort) else (stage.store,)
    return tuple(s for s in found if s is not None)


def stage_values(stage: Stage | Sort) -> Iterator[Scalar]:
    """The scalar expressions of a stage: its value, run-time indices and guard of its stores."""
    yield stage.key if isinstance(stage, Sort) else stage.value
    for store in stage_stores(stage):
        yield from (i for i in store.index if isinstance(i, Expression))
        if store.guard is not None:
            yield store.guard


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    if isinstance(scalar, Apply):
        return scalar.args
    if isinstance(scalar, Load):
        return tuple(i for i in scalar.index if isinstance(i, Expression))
    return ()


def walk(*scalars: Scalar) -> tuple[Scalar, ...]:
    """Every distinct expression in these, operands first."""
    if len(scalars) == 1:
        return (*scalars[0].below, *scalars)
    return tuple({id(x): x for scalar in scalars for x in (*scalar.below, scalar)}.values())


def _walked(scalar: Scalar) -> tuple[Scalar, ...]:
    found: list[Scalar] = []
    seen: set[int] = set()
    stack = [(scalar, False)]
    while stack:
        scalar, done = stack.pop()
        if done:
            found.append(scalar)
        elif id(scalar) not in seen:
            seen.add(id(scalar))
            stack.append((scalar, True))
            stack += [(c, False) for c in reversed(children(scalar))]
    return tuple(found)


def own_dims(scalar: Scalar) -> tuple[Dim, ...]:
    """The index expressions directly in a scalar expression."""
    if isinstance(scalar, Index):
        return (scalar.dim,)
    if isinstance(scalar, Load):
        return tuple(i for i in scalar.index if not isinstance(i, Expression))
    return ()


def kernel_dims(kernel: Kernel) -> Iterator[Dim]:
    """Every index expression, extent and buffer size of a kernel."""
    for axis in kernel.shared:
        yield axis.extent
    for buffer in (*kernel.arguments, *kernel.rows):
        yield from buffer.shape
    for stage in kernel.stages:
        yield from (a.extent for a in stage_axes(stage))
        for store in stage_stores(stage):
            yield from (i for i in store.index if not isinstance(i, Expression))
        for scalar in walk(*stage_values(stage)):
            yield from own_dims(scalar)
        if isinstance(stage, Sort):
            yield stage.count


def points(axes: Iterable[Axis]) -> Dim:
    """How many points axes have, at most; the extent of one that depends on others is that of their first or
    last value."""
    total: Dim = 1
    first: dict[str, Dim] = {}
    last: dict[str, Dim] = {}
    for axis in axes:
        extent = maximum(substitute(axis.extent, first), substitute(axis.extent, last))
        first[axis.name], last[axis.name] = 0, extent - 1
        total *= extent
    return total
