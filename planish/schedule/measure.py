"""What a program moves and computes, in bytes and floating-point operations, at given sizes."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.kernel import (
    Apply,
    Buffer,
    Kernel,
    Load,
    Sort,
    Stage,
    points,
    stage_axes,
    stage_values,
    walk,
)
from planish.schedule.program import Launch, Program, every_step
from planish.schedule.scalars import hinted
from planish.types import TensorType

PIECES = {"slice", "dynamic_slice", "take", "take_along", "gather_nd"}  # read of one operand what they give
FREE = {"reshape", "input", "constant", "item"}  # ops that move nothing


@dataclass(frozen=True)
class KernelRecord:
    """One launch: its name, kind (loops, contraction, sort), the op names it computes, bytes it reads and
    writes (of a table that it looks up in, what it reads), floating-point operations, and its schedule."""

    name: str
    kind: str
    ops: tuple[str, ...]
    bytes: int
    flops: int
    schedule: tuple[str, ...]


def kernel_records(program: Program, hint: dict[str, int]) -> list[KernelRecord]:
    """A record of every launch, in order; of those in loops, once."""
    return [_record(s.kernel, hint) for s in every_step(program.steps) if isinstance(s, Launch)]


def _record(kernel: Kernel, hint: dict[str, int]) -> KernelRecord:
    sorts = [s for s in kernel.stages if isinstance(s, Sort)]
    scratch, loaded = [s.work for s in sorts], {} if sorts else _loaded(kernel, hint)
    sizes = {b: _bytes(b.type, hint) for b in dict.fromkeys(kernel.arguments) if b not in scratch}
    moved = sum(min(size, loaded.get(b, size)) for b, size in sizes.items())
    kind = "contraction" if kernel.tile else "sort" if sorts else "loops"
    taken = tuple(map(str, kernel.steps))
    return KernelRecord(kernel.name, kind, kernel.ops, moved, _flops(kernel, hint), taken)


def _loaded(kernel: Kernel, hint: dict[str, int]) -> dict[Buffer, int]:
    """Bytes of all loads from each buffer that is only read: fewer than it has where most is not asked for.
    """
    found: Counter[Buffer] = Counter()
    for stage in kernel.stages:
        if isinstance(stage, Stage):
            times = _times(kernel, stage, hint)
            loads = (x.buffer for x in walk(*stage_values(stage)) if isinstance(x, Load))
            found.update({b: n * times * b.dtype.itemsize for b, n in Counter(loads).items()})
    return {b: n for b, n in found.items() if b not in kernel.outputs}


def _flops(kernel: Kernel, hint: dict[str, int]) -> int:
    """One for each pointwise op and each step of a reduction, at every point."""
    total = 0
    for stage in kernel.stages:
        if isinstance(stage, Stage):
            ops = sum(isinstance(x, Apply) and x.dtype.is_float for x in walk(*stage_values(stage)))
            total += _times(kernel, stage, hint) * (ops + bool(stage.combine))
    return total


def _times(kernel: Kernel, stage: Stage, hint: dict[str, int]) -> int:
    """How often a stage is run, at most."""
    return hinted(points((*kernel.shared, *stage_axes(stage))), hint)


def _bytes(type_: TensorType, hint: dict[str, int]) -> int:
    return prod(hinted(d, hint) for d in type_.shape) * type_.dtype.itemsize


def bytes_of_graph(graph: Graph, hint: dict[str, int]) -> int:
    """Traffic when every op reads its operands and writes its result; reshapes are free, constants of one
    number too."""
    return sum(_traffic(node, hint) for node in graph.nodes() if node.op.name not in FREE)


def _traffic(node: Node, hint: dict[str, int]) -> int:
    read = [o.type for o in node.operands]
    if node.op.name in PIECES:
        read[0] = node.type
    types = [one for type_ in (*read, node.type) for one in (type_ if isinstance(type_, tuple) else (type_,))]
    return sum(_bytes(type_, hint) for type_ in types if type_.rank)
