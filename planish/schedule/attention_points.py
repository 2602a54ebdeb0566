"""How the stages of an attention run: copies once for all tiles of a head, vectors, register tiles, threads.

In: a kernel of stages that reduce at points of their own (attention.py). Out: the same kernel scheduled.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from planish.schedule import steps
from planish.schedule.access import Access, accesses, depends_on, stride_along
from planish.schedule.attention import FEW, GROUP, SHARING
from planish.schedule.kernel import (
    Apply,
    Axis,
    Kernel,
    Load,
    Stage,
    Step,
    stage_values,
    walk,
)
from planish.schedule.machine import Machine
from planish.schedule.rebuild import Rebuilder, rebuild_kernel
from planish.types import FLOAT32, is_static, symbols_of

TILE_ROWS = 6    # of accumulators, by GROUP columns: with 16 registers of 8 lanes, 12 of them
ACCUMULATORS = 8  # where rows are few
TRIP = 4         # steps of a product's sum in one trip
ENOUGH = 4       # heads a thread, from which a head's tiles are not shared out


def schedule_points(kernel: Kernel, machine: Machine) -> Kernel:
    """Register tiles for the products at points, vectors for the rest, heads or tiles to the threads."""
    kernel = copy_once(kernel, machine)
    lanes: dict[str, int] = {}
    turns: dict[str, int] = {}
    for stage in kernel.stages:
        assert isinstance(stage, Stage)
        vector = _vector(stage)
        if not is_static(vector.extent) or vector.extent >= machine.lanes:
            lanes[vector.name] = machine.lanes
        turns.update(_turns(stage, vector, machine.lanes))
        if vector.name in lanes and _is_turned(stage, vector):
            lanes[stage.axes[-2].name] = machine.lanes
    kernel = rebuild_kernel(kernel, Rebuilder(axis=lambda a: replace(
        a, lanes=lanes.get(a.name, 1), unroll=turns.get(a.name, 1))))
    chosen = (("vectorize", lanes), ("unroll", turns))
    taken = [Step(name, pair) for name, pairs in chosen for pair in pairs.items()]
    kernel = replace(kernel, steps=kernel.steps + tuple(taken))
    return steps.parallel(kernel, [a.name for a in kernel.shared]) if machine.threads > 1 else kernel


def copy_once(kernel: Kernel, machine: Machine) -> Kernel:
    """Where heads are many, the tiles of one run in turn: what does not depend on the tile, the copy of the
    values, is made once for them. A causal tile would copy the keys that it sees; then all are copied."""
    *heads, tile = kernel.shared or (Axis("", 1),)
    count = prod(a.extent for a in heads)
    if not is_static(count) or _is_inside(kernel) or 1 < machine.threads > count // ENOUGH:
        return kernel
    copies = [s for s in kernel.stages if isinstance(s, Stage) and _is_copy(s, tile)]
    if not copies:
        return kernel
    stages = [_of_whole_buffer(s, tile) for s in copies]
    stages += [replace(s, inside=tile) for s in kernel.stages if isinstance(s, Stage) and s not in copies]
    return replace(kernel, shared=tuple(heads), stages=tuple(stages)).with_step(Step("in_turn", (tile.name,)))


def _is_inside(kernel: Kernel) -> bool:
    return any(not isinstance(s, Stage) or s.inside is not None for s in kernel.stages)


def _is_copy(stage: Stage, tile: Axis) -> bool:
    """Whether a stage fills a row with what is the same for all tiles."""
    if stage.combine or stage.store is None or stage.store.buffer.space != "row":
        return False
    reads = [x for x in accesses(stage) if not x.is_store]
    values = (*stage_values(stage), Load(stage.store.buffer, stage.store.index))
    is_read = bool(reads) and all(x.buffer.space == "global" for x in reads)
    return is_read and not any(depends_on(x, tile.name) for x in values)


def _of_whole_buffer(stage: Stage, tile: Axis) -> Stage:
    """The copy of as many keys as the buffer holds, not as one tile sees."""
    assert stage.store is not None
    sizes = dict(zip(map(str, stage.store.index), stage.store.buffer.shape))
    axes = (replace(a, extent=sizes[a.name]) if tile.name in symbols_of(a.extent) else a for a in stage.axes)
    return replace(stage, axes=tuple(axes))


def _vector(stage: Stage) -> Axis:
    """The innermost loop; of a reduction at points the last of these, unless what is read lies along the
    reduction."""
    if not stage.at:
        return stage.axes[-1]
    last = stage.at[-1]
    loads = [Access(x.buffer, x.index) for x in walk(stage.value) if isinstance(x, Load)]
    return last if all(stride_along(x, last.name) in (0, 1) for x in loads) else stage.axes[-1]


def _is_turned(stage: Stage, vector: Axis) -> bool:
    """Whether a map reads along its vectors and stores across them: it does so in blocks."""
    if stage.at or stage.combine or len(stage.axes) < 2 or stage.axes[-2].extent != GROUP:
        return False
    loads = [Access(x.buffer, x.index) for x in walk(stage.value) if isinstance(x, Load)]
    assert stage.store is not None
    across = stride_along(Access(stage.store.buffer, stage.store.index), stage.axes[-2].name)
    return stage.dtype is FLOAT32 and across == 1 and all(stride_along(x, vector.name) == 1 for x in loads)


def _turns(stage: Stage, vector: Axis, lanes: int) -> Iterator[tuple[str, int]]:
    """How often axes are unrolled."""
    if vector.extent == GROUP and lanes < GROUP:
        yield vector.name, GROUP // lanes
    if not stage.at or not isinstance(stage.value, Apply):
        return
    yield stage.axes[-1].name, 1 if vector is stage.axes[-1] else TRIP
    *_, row, last = stage.at
    if is_static(row.extent) and row.extent <= SHARING and last.extent != GROUP:
        rows = max(1, min(row.extent, FEW))
        yield from ((row.name, rows), (last.name, ACCUMULATORS // rows))
        return
    columns = next(x for x in stage.value.args if depends_on(x, vector.name))
    yield from ((a.name, TILE_ROWS) for a in stage.at if not depends_on(columns, a.name))


def is_attention(kernel: Kernel) -> bool:
    """Whether a kernel's stages reduce at points of their own."""
    return any(isinstance(s, Stage) and s.at for s in kernel.stages)
