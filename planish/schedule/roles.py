"""Roles: whether a kernel is a sum of products, and which of its axes play m, n and k.

    for m, n: acc = add over k: lhs[m, k] * rhs[k, n]; out[m, n] = epilogue(acc)

In: any kernel. Out: its parts as a contraction, and the best assignment of roles: the left operand changes
along m, the right one along n, both along batch and k. A matrix product and a convolution are the same thing
here: what matters is along which axes each operand changes. Axes that an operand takes apart (a // 64) are
split first.
"""
from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from planish.schedule import steps
from planish.schedule.access import Access, stride_along
from planish.schedule.buffers import Buffers
from planish.schedule.kernel import (
    Apply,
    Axis,
    Kernel,
    Load,
    Scalar,
    Stage,
    own_dims,
    stage_axes,
    stage_stores,
    walk,
)
from planish.schedule.products import PAIRED
from planish.schedule.rebuild import is_scalar
from planish.schedule.scalars import hinted
from planish.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT32,
    UINT64,
    Dim,
    is_static,
    symbols_of,
)
from planish.types.dim import divisors

NARROW = (FLOAT16, BFLOAT16)  # floats that are summed as float32, and multiplied so unless in pairs
SUMMED = (FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64)  # dtypes of accumulators


@dataclass(frozen=True)
class Contraction:
    """The parts of a kernel that is one: a sum of products `left * right`, then stages without loops. Of
    panels of weights that are widened as they are loaded `right` is the panels, and `widened` what becomes
    of a number there."""

    sum: Stage
    left: Load
    right: Load
    epilogue: tuple[Stage, ...]
    widened: Scalar | None = None

    @property
    def is_paired(self) -> bool:
        """Whether products are taken in pairs on every machine."""
        return self.left.dtype in PAIRED


@dataclass(frozen=True)
class Roles:
    """Names of the axes by role; `lhs` changes along m, `rhs` along n, both along batch and k."""

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: str
    k: tuple[str, ...]
    lhs: Load
    rhs: Load


@functools.lru_cache(32)
def contraction_of(kernel: Kernel) -> Contraction | None:
    """The parts of a sum of products of two loads; None for any other kernel."""
    if not kernel.stages:
        return None
    first, *rest = kernel.stages
    epilogue = tuple(s for s in rest if isinstance(s, Stage) and not s.axes)
    if kernel.rows or kernel.serial or len(epilogue) < len(rest):
        return None
    if not isinstance(first, Stage) or first.combine != "add" or first.running or not first.axes:
        return None
    value = first.value
    if first.dtype not in SUMMED or not isinstance(value, Apply) or value.op != "mul":
        return None
    left, right = (_factor(x) for x in value.args)
    if left is not None and right is None and kernel.tile is not None:
        panels = _widened(value.args[1], kernel.tile.k[-1])
        return None if panels is None else Contraction(first, left, panels, epilogue, value.args[1])
    if left is None or right is None or (left.dtype in PAIRED) != (right.dtype in PAIRED):
        return None
    return Contraction(first, left, right, epilogue)


def _widened(factor: Scalar, k: str) -> Load | None:
    """The one load of a factor that changes with each step of k."""
    found = [x for x in walk(factor) if isinstance(x, Load) and k in axes_of(x)]
    return found[0] if len(found) == 1 else None


def _factor(x: Scalar) -> Load | None:
    """The load that a factor is, or an int16 that is summed as int32, a narrow float as float32."""
    if isinstance(x, Apply) and x.op == "cast" and (
            (x.dtype is INT32 and x.args[0].dtype in PAIRED)
            or (x.dtype is FLOAT32 and x.args[0].dtype in NARROW)):
        x = x.args[0]
    return x if isinstance(x, Load) and not any(map(is_scalar, x.index)) else None


def split_sum(kernel: Kernel) -> Kernel:
    """The kernel with an axis of its sum cut in two where an operand takes it apart (a // 64 and a % 64: the
    heads of an attention, merged by a reshape), so that both parts are walked in even steps."""
    parts = contraction_of(kernel)
    if parts is None:
        return kernel
    for axis in parts.sum.axes:
        indices = (*own_dims(parts.left), *own_dims(parts.right))
        sizes = {d for i in indices for d in divisors(i, axis.symbol)}
        size = sizes.pop() if len(sizes) == 1 else 0
        if isinstance(size, int) and size and is_static(axis.extent) and axis.extent % size == 0:
            kernel = steps.split(kernel, axis, size)
    return kernel


def split_groups(kernel: Kernel) -> Kernel:
    """The kernel with the channels of a grouped convolution cut into groups and the channels of one: an
    operand goes on from group to group only (s // 8)."""
    parts = contraction_of(kernel)
    if parts is None:
        return kernel
    for axis in kernel.shared:
        sizes = {d for load in (parts.left, parts.right) for i in own_dims(load)
                 for d in divisors(i, axis.symbol)}
        size = sizes.pop() if len(sizes) == 1 else 0
        if isinstance(size, int) and size > 1 and is_static(axis.extent) and axis.extent % size == 0:
            return steps.tile(kernel, axis, size)
    return kernel


def choose_roles(kernel: Kernel, hint: dict[str, int], buffers: Buffers, *,
                 any_order: bool = False) -> Roles | None:
    """The best assignment, None for a kernel that is no contraction: the vector axis n must be contiguous in
    the result (unless `any_order`: the result's layout can still be chosen); weights, then operands that are
    contiguous along n, are preferred on the right."""
    parts = contraction_of(kernel)
    if parts is None:
        return None
    found = [r for n in reversed(kernel.shared) for r in _roles_along(kernel, parts, n.name)]
    return min(found, key=lambda r: _badness(kernel, parts, r, hint, buffers, any_order), default=None)


def _roles_along(kernel: Kernel, parts: Contraction, n: str) -> list[Roles]:
    shared = [a.name for a in kernel.shared]
    k = {a.name for a in parts.sum.axes}
    result = []
    for lhs, rhs in ((parts.left, parts.right), (parts.right, parts.left)):
        left, right = axes_of(lhs), axes_of(rhs)
        if n in left or n not in right or not k <= left & right:
            continue
        if None in (*_strides(lhs, k).values(), *_strides(rhs, right).values()):
            continue
        m = tuple(a for a in shared if a in left and a not in right)
        batch = tuple(a for a in shared if a != n and a not in m)
        result.append(Roles(batch, m, n, _k_order(parts.sum, lhs), lhs, rhs))
    return result


def _strides(load: Load, axes: Iterable[str]) -> dict[str, Dim | None]:
    return {a: stride_along(Access(load.buffer, load.index), a) for a in axes}


def _k_order(stage: Stage, lhs: Load) -> tuple[str, ...]:
    """The axis along which the left operand is contiguous goes innermost."""
    def step(axis: Axis) -> int:
        stride = stride_along(Access(lhs.buffer, lhs.index), axis.name)
        return -stride if is_static(stride) else -(1 << 40)
    return tuple(a.name for a in sorted(stage.axes, key=step))


def _badness(kernel: Kernel, parts: Contraction, roles: Roles, hint: dict[str, int], buffers: Buffers,
             any_order: bool) -> tuple:
    scattered = scattered_stores(kernel, roles.n)
    size = hinted(next(a.extent for a in kernel.shared if a.name == roles.n), hint)
    rows = rows_of(kernel, roles, hint)
    packing = 0 if buffers.is_constant(roles.rhs.buffer) else 1 if is_contiguous(roles) else 2
    pairing = parts.is_paired and packing > 0  # at run time, of a convolution every window
    return (pairing, 0 if any_order else scattered, size < 8, packing, -min(rows, 12), -size)


def scattered_stores(kernel: Kernel, axis: str) -> int:
    """How many results are not contiguous along an axis."""
    stores = [store for s in kernel.stages for store in stage_stores(s)]
    return sum(stride_along(Access(s.buffer, s.index), axis) != 1 for s in stores)


# --- sizes and places by role

def multiply_adds(kernel: Kernel, hint: dict[str, int]) -> int:
    return prod(hinted(a.extent, hint) for a in (*kernel.shared, *stage_axes(kernel.stages[0])))


def width_of(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> int:
    return hinted(next(a.extent for a in kernel.shared if a.name == roles.n), hint)


def rows_of(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> int:
    return prod(hinted(a.extent, hint) for a in kernel.shared if a.name in roles.m)


def axes_of(load: Load) -> set[str]:
    return {name for i in own_dims(load) for name in symbols_of(i)}


def has_known_rows(roles: Roles) -> bool:
    """Whether the distance between rows of the left operand is known."""
    return all(is_static(stride_along(Access(roles.lhs.buffer, roles.lhs.index), a)) for a in roles.m)


def is_read_in_place(roles: Roles, buffers: Buffers) -> bool:
    """Whether the right operand stays where it is: vectors are read as they are multiplied."""
    is_wide = roles.rhs.dtype not in (*NARROW, *PAIRED)
    return is_wide and is_contiguous(roles) and not buffers.is_constant(roles.rhs.buffer)


def is_contiguous(roles: Roles) -> bool:
    return stride_along(Access(roles.rhs.buffer, roles.rhs.index), roles.n) == 1
