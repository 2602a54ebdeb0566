"""Kernels are frozen: a changed kernel is a rebuilt one."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from planish.schedule.kernel import Apply, Axis, Buffer, Index, Kernel, Load, Scalar, Sort, Stage, Store, walk
from planish.types import Dim, substitute

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_scalar(index: Dim | Scalar) -> TypeIs[Scalar]:
    return hasattr(index, "dtype")


class Rebuilder:
    """Rebuilds stages: `scalar` maps each expression (its operands already mapped), `dim` each index
    expression. What stays as it is remains the same object."""

    def __init__(self, scalar: Callable[[Scalar], Scalar] | None = None,
                 dim: Callable[[Dim], Dim] | None = None,
                 axis: Callable[[Axis], Axis] = lambda a: a):
        self.change, self.dim, self.axis = scalar or (lambda s: s), dim or (lambda d: d), axis
        self.keeps_values = scalar is None and dim is None
        # by id of the old: that one is kept too, so that its id stays its own
        self.memo: dict[int, tuple[Scalar, Scalar]] = {}

    def stage(self, stage: Stage | Sort) -> Stage | Sort:
        if isinstance(stage, Sort):
            return replace(stage, axis=self.axis(stage.axis), key=self.scalar(stage.key),
                           count=self.dim(stage.count), values=self.store(stage.values),
                           positions=self.store(stage.positions))
        inside = None if stage.inside is None else self.axis(stage.inside)
        old = (stage.axes, stage.at, inside, stage.value, stage.store)
        new = (tuple(map(self.axis, stage.axes)), tuple(map(self.axis, stage.at)), inside,
               self.scalar(stage.value), self.store(stage.store))
        if old == new and stage.inside == inside:
            return stage
        axes, at, inside, value, store = new
        return Stage(stage.name, axes, value, stage.dtype, stage.combine, store, stage.running, at, inside)

    def store(self, store: Store | None) -> Store | None:
        if store is None or self.keeps_values:
            return store
        guard = None if store.guard is None else self.scalar(store.guard)
        index = self.index(store.index)
        same = guard is store.guard and index == store.index
        return store if same else Store(store.buffer, index, store.update, guard)

    def index(self, index: tuple) -> tuple:
        return tuple(self.scalar(i) if is_scalar(i) else self.dim(i) for i in index)

    def scalar(self, scalar: Scalar) -> Scalar:
        if self.keeps_values:
            return scalar
        memo = self.memo
        for one in walk(scalar):
            if id(one) not in memo:
                memo[id(one)] = one, self.change(self.with_parts(one))
        return memo[id(scalar)][1]

    def with_parts(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Apply):
            args = tuple([self.memo[id(a)][1] for a in scalar.args])
            return scalar if args == scalar.args else Apply(scalar.op, args, scalar.dtype)
        if isinstance(scalar, Index):
            dim = self.dim(scalar.dim)
            return scalar if dim == scalar.dim else Index(dim, scalar.dtype)
        if isinstance(scalar, Load):
            index = tuple([self.memo[id(i)][1] if is_scalar(i) else self.dim(i) for i in scalar.index])
            return scalar if index == scalar.index else Load(scalar.buffer, index)
        return scalar


def rebuild_kernel(kernel: Kernel, rebuilder: Rebuilder) -> Kernel:
    """The kernel with every stage rebuilt; shared axes and buffers as they are."""
    return replace(kernel, stages=tuple(map(rebuilder.stage, kernel.stages)))


def substitute_axes(kernel: Kernel, values: Mapping[str, Dim]) -> Kernel:
    """The kernel with axes replaced by index expressions; the loops themselves are the caller's to change."""
    rebuilder = Rebuilder(dim=lambda d: substitute(d, values),
                          axis=lambda a: replace(a, extent=substitute(a.extent, values)))
    return rebuild_kernel(kernel, rebuilder)


def replace_buffers(kernel: Kernel, buffers: Mapping[str, Buffer]) -> Kernel:
    """The kernel with buffers exchanged by name, everywhere."""
    def exchanged(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Load) or scalar.buffer.name not in buffers:
            return scalar
        return replace(scalar, buffer=buffers[scalar.buffer.name])

    class Exchange(Rebuilder):
        def store(self, store: Store | None) -> Store | None:
            made = super().store(store)
            return made if made is None else replace(made, buffer=buffers.get(made.buffer.name, made.buffer))

        def stage(self, stage: Stage | Sort) -> Stage | Sort:
            made = super().stage(stage)
            if not isinstance(made, Sort) or made.work is None:
                return made
            return replace(made, work=buffers.get(made.work.name, made.work))

    def all_of(these: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(buffers.get(b.name, b) for b in these)

    return replace(rebuild_kernel(kernel, Exchange(scalar=exchanged)), inputs=all_of(kernel.inputs),
                   outputs=all_of(kernel.outputs), rows=all_of(kernel.rows))


def canonical(kernel: Kernel) -> Kernel:
    """The kernel with its buffers named by place, so that equal kernels are equal texts."""
    named = {b.name: replace(b, name=f"p{i}") for i, b in enumerate(dict.fromkeys(kernel.arguments))}
    named |= {b.name: replace(b, name=f"r{i}") for i, b in enumerate(kernel.rows)}
    steps = tuple(replace(s, arguments=tuple(named[a].name if a in named else a for a in s.arguments))
                  for s in kernel.steps)
    return replace(replace_buffers(kernel, named), name="kernel", ops=(), steps=steps)
