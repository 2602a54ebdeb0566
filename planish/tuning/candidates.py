"""What is tried for a kernel: a handful of changes to what the schedule chose.

In: a kernel as the schedule chose it. Out: groups of moves, each a change of some fields of a `Choice`. Of a
group at most one is taken, and the next group starts from there, so decisions that depend on each other are
taken in order of their weight: first the register tile, then how threads share the work, then the cache.
"""
from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from planish.schedule import products
from planish.schedule.kernel import Kernel, RegisterTile, points, stage_axes
from planish.schedule.machine import Machine
from planish.schedule.scalars import hinted

Move = Mapping[str, Any]
Groups = list[list[Move]]

# registers of the machine -> rows x vectors beside the schedule's own; accumulators, vectors of the right
# operand and one broadcast fit
TILES = {16: ((4, 3), (3, 4), (5, 2)), 32: ((8, 3), (6, 4), (14, 2))}
GROUPS = (128 << 10, 512 << 10)  # bytes of panels beside the 256 KiB that code generation takes
UNROLLS = (2, 8)                 # beside 4
LIGHT = 1 << 22                  # points or multiply-adds up to which one thread may be enough


def moves(kernel: Kernel, machine: Machine, hint: dict[str, int]) -> Groups:
    """The groups of moves for a kernel, scheduled as `ANALYTIC`; empty where there is nothing to choose."""
    alone: Groups = []
    if machine.threads > 1 and any(a.parallel for a in kernel.shared) and work(kernel, hint) <= LIGHT:
        alone = [[{"threads": False}]]
    if kernel.tile is not None:
        return [*_of_contraction(kernel, kernel.tile, machine, hint), *alone]
    return [*_of_loops(kernel, machine), *alone]


def work(kernel: Kernel, hint: dict[str, int]) -> int:
    """Points of all stages, for estimates."""
    return sum(hinted(points((*kernel.shared, *stage_axes(s))), hint) for s in kernel.stages)


def _of_contraction(kernel: Kernel, tile: RegisterTile, machine: Machine, hint: dict[str, int]) -> Groups:
    sizes = {a.name: a.extent for s in kernel.stages[:1] for a in (*kernel.shared, *stage_axes(s))}
    rows, depth, columns = (prod(hinted(sizes[name], hint) for name in names)
                            for names in (tile.m, tile.k, tile.n))
    is_fixed = tile.product is products.TILES
    shapes = () if is_fixed else TILES[machine.registers]
    groups: Groups = [[{"tile": t} for t in shapes if t != (tile.rows, tile.vectors)]] if shapes else []
    if any(a.parallel for a in kernel.shared) and tile.m and rows > tile.rows:
        groups.append([{"grid": grid} for grid in ("rows", "panels")])
    bytes_ = depth * columns * kernel.stages[0].dtype.itemsize if hasattr(kernel.stages[0], "dtype") else 0
    if bytes_ > GROUPS[0] and rows > tile.rows:
        groups.append([{"group": size} for size in GROUPS if size < 2 * bytes_])
    return groups if is_fixed else [*groups, [{"unroll": count} for count in UNROLLS]]


def _of_loops(kernel: Kernel, machine: Machine) -> Groups:
    """How wide a vector step is, and whether what the schedule did beyond that is left out."""
    axes = [a for s in kernel.stages for a in (*kernel.shared, *stage_axes(s)) if a.lanes > 1]
    if not axes:
        return []
    lanes, taken = max(a.lanes for a in axes), {s.name for s in kernel.steps}
    widths = [machine.lanes * times for times in (1, 2, 4)]
    groups: Groups = [[{"lanes": width} for width in widths if width != lanes]]
    if "distribute" in taken:
        groups.insert(0, [{"distribute": False}])
    if any(a.unroll > 1 for a in axes):
        groups.append([{"unroll": count} for count in (2, 8)])
    if "stream" in taken:
        groups.append([{"stream": False}])
    return groups
