"""Several points of a shared axis at a time: copies of the stages, and the order in which windows are walked.

In: stages of a kernel. Out: stages. `side_by_side` gives a copy of each stage for every point, copies over
equal loops next to one another, so that they run in one loop and each keeps its own results. `written_out`
takes the innermost loop of such stages apart into its steps and orders them by where they read: neighbouring
windows overlap, and what several of them read is then loaded once and soon forgotten. Each point still adds
up its own steps in their order.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planish.schedule.kernel import Axis, Load, Result, Scalar, Stage, own_dims, walk
from planish.schedule.rebuild import Rebuilder
from planish.types import Dim, is_static, substitute


def side_by_side(stages: Sequence[Stage], axis: Axis, count: int) -> list[Stage]:
    """Each stage at `count` points of a shared axis, from where the axis stands."""
    points = [_at_point(stages, axis, k) for k in range(count)]
    return [copy for copies in zip(*points) for copy in copies]


def _at_point(stages: Sequence[Stage], axis: Axis, k: int) -> list[Stage]:
    def name(stage: str) -> str:
        return f"{stage}_{k}"

    def renamed(scalar: Scalar) -> Scalar:
        return replace(scalar, stage=name(scalar.stage)) if isinstance(scalar, Result) else scalar

    rebuilder = Rebuilder(scalar=renamed, dim=lambda d: substitute(d, {axis.name: axis.symbol + k}))
    made = (rebuilder.stage(s) for s in stages)
    return [replace(s, name=name(s.name)) for s in made if isinstance(s, Stage)]


def written_out(stages: Sequence[Stage], axis: Axis) -> list[tuple[int, Scalar]]:
    """(number of the stage, its value at a step of `axis`) for every step of jammed stages, ordered by where
    they read."""
    assert is_static(axis.extent)
    numbered = list(enumerate(stages))
    steps = [(k, _at_step(stage.value, axis, u)) for u in range(axis.extent) for k, stage in numbered]
    at = _moving_load(stages)
    offsets = [] if at is None else [_offset(value, at) for _, value in steps]
    apart = [d for d in (offset - offsets[0] for offset in offsets) if is_static(d)]
    if len(apart) < len(steps):
        return steps
    order = sorted(range(len(steps)), key=lambda i: apart[i])
    return [steps[i] for i in order]


def _at_step(value: Scalar, axis: Axis, step: int) -> Scalar:
    return Rebuilder(dim=lambda d: substitute(d, {axis.name: step})).scalar(value)


def _moving_load(stages: Sequence[Stage]) -> int | None:
    """Which of a value's loads is elsewhere from one stage to the next, at indices known before."""
    if len(stages) < 2:
        return None
    pairs = zip(_loads(stages[0].value), _loads(stages[1].value))
    return next((k for k, (one, other) in enumerate(pairs) if one.index != other.index), None)


def _loads(value: Scalar) -> list[Load]:
    return [x for x in walk(value) if isinstance(x, Load)]


def _offset(value: Scalar, at: int) -> Dim:
    load = _loads(value)[at]
    return load.buffer.offset(own_dims(load))
