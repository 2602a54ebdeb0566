"""Schedule steps: each takes a kernel and gives an equal one that runs faster, and is recorded in
`kernel.steps`.

    collapse     for i in m, j in n            ->  for i in m*n: memory walked as one row
    jam          for a in n: A; for b in n: B  ->  for a in n: A; B: one loop, values stay in registers
    tile         for i in n                    ->  for o in n/t, i in min(t, n - t*o)
    split        for a in n                    ->  for a in n/t, ai in t: where an index takes a apart
    interchange  for i: for j                  ->  for j: for i: points of shared axes are independent
    vectorize    for a in n                    ->  for a in n by vectors of `lanes`, the rest one by one
    unroll       ... vector(l)                 ->  `factor` vectors a trip, each with its accumulator
                 for s in n: stages            ->  `factor` points of a shared axis at a time, in one loop
    parallel     for s in n                    ->  points shared out among the threads
    in_turn      for s, o: A; B                ->  for s: A; for o: B, where A is the same for every o
    pipeline     load x[i]                     ->  and ask for x[i + distance]: memory works meanwhile
    stream       y[i] = ...                    ->  stores round the caches: the result is larger than they
    overlap      for s in n: h(g(f(s)))        ->  f of one turn beside g and h of the two before it

Register tiles and packing of contractions are in contraction.py, in_turn in attention_points.py.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from planish.schedule.access import Access, depends_on, kernel_accesses
from planish.schedule.kernel import (
    Axis,
    Buffer,
    Index,
    Kernel,
    Load,
    Scalar,
    Sort,
    Stage,
    Step,
    Store,
    stage_axes,
    stage_values,
    walk,
)
from planish.schedule.rebuild import Rebuilder, is_scalar, rebuild_kernel, replace_buffers, substitute_axes
from planish.types import is_static, symbols_of
from planish.types.dim import minimum, symbol

HARDLY = 6  # bits: threads share out rows of a product, not panels, for a 64th more work at most

def _axes_of(kernel: Kernel) -> dict[str, Axis]:
    return {a.name: a for a in (*kernel.shared, *(a for s in kernel.stages for a in stage_axes(s)))}


def _with_axis(kernel: Kernel, name: str, change: Callable[[Axis], Axis]) -> Kernel:
    """The kernel with one axis changed, wherever it stands."""
    def changed(axis: Axis) -> Axis:
        return change(axis) if axis.name == name else axis
    rebuilt = rebuild_kernel(kernel, Rebuilder(axis=changed))
    return replace(rebuilt, shared=tuple(map(changed, kernel.shared)))


# --- collapse

def collapse(kernel: Kernel) -> Kernel:
    """Merge neighbouring axes that every access walks as one."""
    merged = True
    while merged:
        merged = False
        for outer, inner in _neighbours(kernel):
            result = _collapse_pair(kernel, outer, inner)
            if result is not None:
                kernel, merged = result, True
                break
    return kernel


def _neighbours(kernel: Kernel) -> list[tuple[Axis, Axis]]:
    nests = [kernel.shared] + [stage_axes(s) for s in kernel.stages]
    return [pair for axes in nests for pair in zip(axes, axes[1:])]


def _collapse_pair(kernel: Kernel, outer: Axis, inner: Axis) -> Kernel | None:
    places: dict[str, tuple[int, Buffer]] = {}
    for access in kernel_accesses(kernel):
        place = _adjacent(access, outer, inner)
        if place is None or places.setdefault(access.buffer.name, (place, access.buffer))[0] != place:
            return None
    if any(isinstance(x, Index) and {outer.name, inner.name} & set(symbols_of(x.dim))
           for s in kernel.stages for x in walk(*stage_values(s))):
        return None
    both = Axis(outer.name, outer.extent * inner.extent)
    merge = _Merge(both, {name: place for name, (place, _) in places.items() if place >= 0})

    def merged(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(both if a.name == outer.name else a for a in axes if a.name != inner.name)

    stages = (s if isinstance(s, Sort) else replace(s, axes=merged(s.axes))
              for s in map(merge.stage, kernel.stages))
    kernel = replace(kernel, stages=tuple(stages), shared=merged(kernel.shared))
    buffers = {name: _merge_axes(buffer, place) for name, (place, buffer) in places.items() if place >= 0}
    return replace_buffers(kernel, buffers).with_step(Step("collapse", (outer.name, inner.name)))


class _Merge(Rebuilder):
    """Puts one index in the place of two: `places` says where, by buffer name."""

    def __init__(self, axis: Axis, places: dict[str, int]):
        super().__init__(scalar=self.load)
        self.point, self.places = axis.symbol, places

    def load(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Load) and scalar.buffer.name in self.places:
            return replace(scalar, index=self.merged(scalar.buffer, scalar.index))
        return scalar

    def store(self, store: Store | None) -> Store | None:
        made = super().store(store)
        if made is None or made.buffer.name not in self.places:
            return made
        return replace(made, index=self.merged(made.buffer, made.index))

    def merged(self, buffer: Buffer, index: tuple) -> tuple:
        at = self.places[buffer.name]
        return (*index[:at], self.point, *index[at + 2:])


def _adjacent(access: Access, outer: Axis, inner: Axis) -> int | None:
    """Where `outer, inner` stand side by side and whole in an index; -1 when neither occurs; None
    otherwise."""
    names = {outer.name, inner.name}
    used = [k for k, i in enumerate(access.index) if is_scalar(i) or names & set(symbols_of(i))]
    used = [k for k in used if not is_scalar(access.index[k]) or _scalar_uses(access.index[k], names)]
    if not used:
        return -1
    k = used[0]
    whole = used == [k, k + 1] and access.index[k] == outer.symbol and access.index[k + 1] == inner.symbol
    sizes = access.buffer.shape[k:k + 2] == (outer.extent, inner.extent)
    return k if whole and sizes and not access.buffer.order else None


def _scalar_uses(scalar: Scalar, names: set[str]) -> bool:
    return any(depends_on(scalar, n) for n in names)


def _merge_axes(buffer: Buffer, at: int) -> Buffer:
    shape = buffer.shape
    merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2:])
    return replace(buffer, type=buffer.type.with_shape(merged))


# --- jam

def jam(kernel: Kernel) -> Kernel:
    """Run consecutive stages over equal axes in one loop, where the later reads of the earlier only its own
    point."""
    stages: list[Stage | Sort] = []
    run: list[Stage] = []
    for stage in kernel.stages:
        joined = _joined(run, stage)
        if joined is None:
            run = [stage] if isinstance(stage, Stage) and stage.axes else []
            stages.append(stage)
        else:
            run.append(joined)
            stages.append(joined)
            kernel = kernel.with_step(Step("jam", (run[0].name, joined.name)))
    return replace(kernel, stages=tuple(stages))


def _joined(run: list[Stage], stage: Stage | Sort) -> Stage | None:
    """The stage over the axes of the run; None if it can't be."""
    if not run or isinstance(stage, Sort) or not stage.axes or stage.running or run[0].running:
        return None
    first = run[0]
    if [a.extent for a in stage.axes] != [a.extent for a in first.axes]:
        return None
    names = {old.name: new.symbol for old, new in zip(stage.axes, first.axes)}
    renamed, = substitute_axes(Kernel("", (), (stage,), (), ()), names).stages
    assert isinstance(renamed, Stage)
    made = {s.store.buffer.name: s.store for s in run if s.store is not None}
    reduced = {s.name for s in run if s.combine}
    for scalar in walk(*stage_values(renamed)):
        if getattr(scalar, "stage", None) in reduced:
            return None
        store = made.get(scalar.buffer.name) if isinstance(scalar, Load) else None
        if isinstance(scalar, Load) and store is not None and scalar.index != store.index:
            return None
    if renamed.store is not None and (renamed.store.update or renamed.store.buffer.name in made):
        return None
    return replace(renamed, axes=first.axes)


# --- tile

def tile(kernel: Kernel, axis: Axis, size: int) -> Kernel:
    """Cut a shared axis into pieces of `size`: a new outer axis, and the old one inside it."""
    outer = Axis(axis.name, (axis.extent + size - 1) // size)
    whole = is_static(axis.extent) and axis.extent % size == 0
    inner = Axis(f"{axis.name}i", size if whole else minimum(size, axis.extent - outer.symbol * size))
    point = outer.symbol * size + symbol(inner.name, 0, size - 1)
    kernel = substitute_axes(kernel, {axis.name: point})
    at = [a.name for a in kernel.shared].index(axis.name)
    shared = (*kernel.shared[:at], outer, inner, *kernel.shared[at + 1:])
    return replace(kernel, shared=shared).with_step(Step("tile", (axis.name, size)))


def split(kernel: Kernel, axis: Axis, size: int) -> Kernel:
    """Cut an axis of a stage, of a whole number of pieces, into a loop over pieces and a loop inside one."""
    outer, inner = Axis(axis.name, axis.extent // size), Axis(f"{axis.name}i", size)
    kernel = substitute_axes(kernel, {axis.name: outer.symbol * size + inner.symbol})

    def cut(stage: Stage | Sort) -> Stage | Sort:
        if isinstance(stage, Sort):
            return stage
        pieces = [(outer, inner) if a.name == axis.name else (a,) for a in stage.axes]
        return replace(stage, axes=tuple(a for piece in pieces for a in piece))
    stages = tuple(map(cut, kernel.stages))
    return replace(kernel, stages=stages).with_step(Step("split", (axis.name, size)))


def interchange(kernel: Kernel, order: tuple[str, ...]) -> Kernel:
    """The shared axes in another order; an axis stays inside those that its extent depends on."""
    axes = {a.name: a for a in kernel.shared}
    return replace(kernel, shared=tuple(axes[n] for n in order)).with_step(Step("interchange", order))


# --- vectorize, unroll, parallel, stream

def even_size(count: int, most: int) -> int:
    """The size of the larger of as few blocks as `count` takes, when their sizes differ by one at most."""
    return max(1, -(-count // max(1, -(-count // most))))


def heights(count: int, most: int) -> tuple[int, int]:
    """Of as few tiles as it takes for some rows: the height of the tall ones, and how many they are. The
    others have a row less."""
    height = even_size(count, most)
    return height, count - -(-count // most) * (height - 1)


def vectorize(kernel: Kernel, axis: str, lanes: int) -> Kernel:
    kernel = _with_axis(kernel, axis, lambda a: replace(a, lanes=lanes))
    return kernel.with_step(Step("vectorize", (axis, lanes)))


def unroll(kernel: Kernel, axis: str, factor: int) -> Kernel:
    kernel = _with_axis(kernel, axis, lambda a: replace(a, unroll=factor))
    return kernel.with_step(Step("unroll", (axis, factor)))


def parallel(kernel: Kernel, axes: Iterable[str]) -> Kernel:
    names = tuple(axes)
    for name in names:
        kernel = _with_axis(kernel, name, lambda a: replace(a, parallel=True))
    return kernel.with_step(Step("parallel", names)) if names else kernel


def stream(kernel: Kernel, buffer: str) -> Kernel:
    return kernel.with_step(Step("stream", (buffer,)))


def pipeline(kernel: Kernel, buffer: str, distance: int) -> Kernel:
    return kernel.with_step(Step("pipeline", (buffer, distance)))


def pipelined(kernel: Kernel) -> dict[str, int]:
    """The buffers that are asked for ahead of their use, and how many bytes ahead."""
    return {str(s.arguments[0]): int(s.arguments[1]) for s in kernel.steps if s.name == "pipeline"}


def streamed(kernel: Kernel) -> set[str]:
    """The buffers whose stores go round the caches."""
    return {str(s.arguments[0]) for s in kernel.steps if s.name == "stream"}


def overlap(kernel: Kernel, axis: str, turns: int) -> Kernel:
    return kernel.with_step(Step("overlap", (axis, turns)))


def overlapped(kernel: Kernel) -> dict[str, int]:
    """The axes whose loops compute parts of several turns side by side, and of how many."""
    return {str(s.arguments[0]): int(s.arguments[1]) for s in kernel.steps if s.name == "overlap"}
