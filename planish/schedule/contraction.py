"""Contractions: the register tile of a sum of products, and which operands are packed for it.

    for m, n: acc = add over k: lhs[m, k] * rhs[k, n]; out[m, n] = epilogue(acc)

is computed by tiles of `rows` x `vectors * lanes` accumulators that stay in registers over all of k
(`roles.py` says what is m, n and k). The right operand is packed into panels of the tile's width
(`panels.py`); it is read in place when it already lies contiguous along n, and is small or meets few rows.
"""
from __future__ import annotations

from dataclasses import replace
from math import prod

from planish.schedule import products, steps
from planish.schedule.buffers import Buffers
from planish.schedule.choice import ANALYTIC, Choice
from planish.schedule.kernel import (
    Kernel,
    RegisterTile,
    Stage,
    Step,
    stage_axes,
)
from planish.schedule.machine import Machine
from planish.schedule.panels import (
    in_blocks,
    in_whole_steps,
    is_window,
    left_rows,
    lies_along,
    lies_in_blocks,
    lies_in_rows,
    multiplying,
    packed_left,
    packed_narrow,
    packed_right,
    repays_packing,
    widened_left,
    widened_weights,
)
from planish.schedule.products import BLOCK, NUMBERS, product_of
from planish.schedule.roles import (
    NARROW,
    Roles,
    axes_of,
    choose_roles,
    contraction_of,
    has_known_rows,
    is_read_in_place,
    multiply_adds,
    rows_of,
    scattered_stores,
    split_groups,
    split_sum,
    width_of,
)
from planish.schedule.scalars import hinted
from planish.schedule.work import SMALL_WORK, work_of
from planish.types import (
    FLOAT32,
    FLOAT64,
    INT8,
    is_static,
)

PACKED = 0.5            # cycles that packing an element takes
SCATTERED = 1.25        # cycles that a store of one lane takes
LEAST_ROWS = 4          # for which an operand gets a kernel before: int16 packed at run time, floats widened
LEAST_WORK = 1 << 10    # multiply-adds below which plain loops do as well
# (vector registers) -> rows x vectors of the tile; the rest holds the right operand's vectors and one
# broadcast
TILES = {16: (6, 2), 32: (12, 2)}
# the same where rows of the left operand lie a run-time distance apart: each takes a register for its address
APART = {16: (6, 2), 32: (5, 4)}
# the same where few columns would leave one vector alone in the last panel, which then waits for each sum
THREES = {16: (4, 3)}
FEW_VECTORS = 9
LEAST_OF_TILES = 8, 16, 16  # rows, columns and steps of k from which blocks of tile registers are used
UNROLL = 4  # steps of k in one trip


def schedule_contraction(kernel: Kernel, machine: Machine, hint: dict[str, int], buffers: Buffers,
                         disable: frozenset[str] = frozenset(),
                         choice: Choice = ANALYTIC) -> list[Kernel] | None:
    """The kernel with a register tile, after the kernel that packs its right operand if it needs one. None
    when the kernel is not a contraction that this form suits. New buffers are entered in `buffers`. `choice`
    may say what is else decided here."""
    kernel = split_groups(split_sum(kernel))
    roles = choose_roles(kernel, hint, buffers)
    if roles is None or multiply_adds(kernel, hint) < LEAST_WORK:
        return None
    parts = contraction_of(kernel)
    assert parts is not None
    if parts.is_paired and (roles.lhs.dtype is INT8 or roles.rhs.dtype is INT8):
        return None
    packed_anew = parts.is_paired and not buffers.is_constant(roles.rhs.buffer)
    if packed_anew and rows_of(kernel, roles, hint) < LEAST_ROWS:
        return None
    lanes = machine.vector_bytes // parts.sum.dtype.itemsize
    across = _across_the_result(kernel, hint, buffers)
    if across is not None:
        width = lanes * TILES[machine.registers][1]
        roles = min(roles, across, key=lambda r: (width_of(kernel, r, hint) < lanes // 2,
                                                  _cycles(kernel, r, hint, buffers, width)))
    if _packs_for_one_use(roles, buffers):
        return None
    found = widened_weights(kernel, roles, buffers, machine, hint, disable)
    if found is not None:
        kernel, roles = in_blocks(kernel, roles, found.block)
    tile = _tile_for(kernel, roles, lanes, machine, hint, choice)
    if width_of(kernel, roles, hint) < tile.lanes // 2:
        return None
    kernel, roles, before = _laid_left(kernel, roles, tile, buffers, machine, hint)
    if found is not None:
        kernel = _tiled(packed_narrow(kernel, roles, tile, found, buffers, hint), roles, tile)
    elif is_read_in_place(roles, buffers) and not repays_packing(kernel, roles, hint):
        kernel = _tiled(multiplying(kernel, roles.lhs, roles.rhs), roles, replace(tile, packed=False))
    else:
        kernel, packing = packed_right(kernel, roles, tile, buffers, machine, hint, disable)
        kernel = _tiled(kernel, roles, tile)
        before = [*before, *packing]
    if hinted(work_of(kernel), hint) >= SMALL_WORK and machine.threads > 1 and choice.threads is not False:
        kernel = steps.parallel(kernel, [a for a in (*roles.batch, *roles.m, roles.n)
                                         if a in {x.name for x in kernel.shared}])
    return [*before, _as_told(kernel, choice)]


def _laid_left(kernel: Kernel, roles: Roles, tile: RegisterTile, buffers: Buffers, machine: Machine,
               hint: dict[str, int]) -> tuple[Kernel, Roles, list[Kernel]]:
    """The kernel with its left operand as the tile reads it fast, after the kernel that lays it out so where
    that repays."""
    if tile.product is products.TILES:
        laid = lies_in_blocks(kernel, roles, tile.product)
        return (kernel, roles, []) if laid else left_rows(kernel, roles, tile.product, buffers, machine, hint)
    is_wide = tile.product is NUMBERS
    many = roles.lhs.dtype in NARROW and rows_of(kernel, roles, hint) >= LEAST_ROWS
    m = lies_along(kernel, roles, buffers, hint) if is_wide else None
    if m is not None:
        return packed_left(kernel, roles, m, tile.vectors * tile.lanes, buffers, machine, hint)
    if many and is_wide:
        return widened_left(kernel, roles, buffers, machine, hint)
    if many and not lies_in_rows(roles) and not is_window(roles.lhs, roles.k):
        return left_rows(kernel, roles, tile.product, buffers, machine, hint)
    return kernel, roles, []


def _tile_for(kernel: Kernel, roles: Roles, lanes: int, machine: Machine, hint: dict[str, int],
              choice: Choice) -> RegisterTile:
    """The register tile for vectors of up to `lanes` numbers: few columns take one vector and more rows."""
    rows, vectors = (TILES if has_known_rows(roles) else APART)[machine.registers]
    if width_of(kernel, roles, hint) <= lanes and _has_even_tiles(kernel, roles):
        rows, vectors, lanes = rows * vectors, 1, _fitting(lanes, width_of(kernel, roles, hint))
    elif machine.registers in THREES and _goes_by_threes(kernel, roles, lanes):
        rows, vectors = THREES[machine.registers]
    rows, vectors = choice.tile or (rows, vectors)
    product = product_of(roles.lhs.dtype, roles.rhs.dtype, machine.products,
                         by_tiles=_fills_tiles(kernel, roles, hint))
    if product is products.TILES:
        rows, vectors, lanes = BLOCK
    return RegisterTile(roles.batch, roles.m, (roles.n,), roles.k, rows, vectors, lanes, True, product)


def _fills_tiles(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> bool:
    """Whether a product is large enough for tiles, and the rows of its left operand lie evenly apart, or can
    be laid out so: those of an image under a window would be many times the image."""
    depth = next(a.extent for a in stage_axes(kernel.stages[0]) if a.name == roles.k[-1])
    sizes = rows_of(kernel, roles, hint), width_of(kernel, roles, hint), hinted(depth, hint)
    fills = all(size >= least for size, least in zip(sizes, LEAST_OF_TILES))
    return bool(roles.m) and fills and not is_window(roles.lhs, roles.k)


def _as_told(kernel: Kernel, choice: Choice) -> Kernel:
    """The kernel with steps for what code generation would decide by itself."""
    assert kernel.tile is not None
    if choice.unroll and kernel.tile.product is not products.TILES:
        kernel = replace(kernel, steps=tuple(
            replace(s, arguments=(s.arguments[0], choice.unroll)) if s.name == "unroll" else s
            for s in kernel.steps))
    if choice.group:
        kernel = kernel.with_step(Step("group", (choice.group,)))
    return kernel.with_step(Step("share", (choice.grid,))) if choice.grid else kernel


def _has_even_tiles(kernel: Kernel, roles: Roles) -> bool:
    """Whether rows are cut into tiles of two heights only: their number is known."""
    return all(is_static(a.extent) for a in kernel.shared if a.name in roles.m)


def _goes_by_threes(kernel: Kernel, roles: Roles, lanes: int) -> bool:
    """Whether panels of two vectors would end with one alone and panels of three would not: 24 columns of
    float32 are three vectors of AVX2."""
    columns = next(a.extent for a in kernel.shared if a.name == roles.n)
    if not is_static(columns) or roles.lhs.dtype not in (FLOAT32, FLOAT64):
        return False
    count = -(-columns // lanes)
    return count % 2 == 1 and count % 3 != 1 and count <= FEW_VECTORS


def _fitting(lanes: int, width: int) -> int:
    """As few lanes as hold `width` columns."""
    while lanes // 2 >= width:
        lanes //= 2
    return lanes


def _across_the_result(kernel: Kernel, hint: dict[str, int], buffers: Buffers) -> Roles | None:
    """Constant weights on the right though the result does not lie along them: it is stored lane by lane."""
    roles = choose_roles(kernel, hint, buffers, any_order=True)
    return roles if roles is not None and buffers.is_constant(roles.rhs.buffer) else None


def _cycles(kernel: Kernel, roles: Roles, hint: dict[str, int], buffers: Buffers, width: int) -> float:
    """About how long a contraction takes: `width` multiply-adds a cycle in whole tiles, what is packed at run
    time, and what is stored lane by lane."""
    columns = width_of(kernel, roles, hint)
    cycles = multiply_adds(kernel, hint) / columns * (-(-columns // width))
    if not buffers.is_constant(roles.rhs.buffer) and not is_read_in_place(roles, buffers):
        used = axes_of(roles.rhs)
        axes = (*kernel.shared, *stage_axes(kernel.stages[0]))
        cycles += PACKED * prod(hinted(a.extent, hint) for a in axes if a.name in used)
    points = prod(hinted(a.extent, hint) for a in kernel.shared)
    return cycles + SCATTERED * points * scattered_stores(kernel, roles.n)


def _packs_for_one_use(roles: Roles, buffers: Buffers) -> bool:
    """Whether each element of the right operand would be packed, at run time, for a single row."""
    return not roles.m and not is_read_in_place(roles, buffers) and not buffers.is_constant(roles.rhs.buffer)


def _tiled(kernel: Kernel, roles: Roles, tile: RegisterTile) -> Kernel:
    width = tile.vectors * tile.lanes
    kernel = in_whole_steps(kernel, roles.k[-1], tile.product)
    first, *rest = kernel.stages
    assert isinstance(first, Stage)
    inside = {a.name: a for a in first.axes}
    summed = replace(first, axes=tuple(inside[name] for name in roles.k))
    kernel = replace(kernel, tile=tile, stages=(summed, *rest))
    kernel = kernel.with_step(Step("register_tile", ("x".join(roles.m) or "1", tile.rows, roles.n, width)))
    kernel = kernel.with_step(Step("vectorize", (roles.n, tile.lanes)))
    return kernel.with_step(Step("unroll", (roles.k[-1], max(UNROLL, tile.product.steps))))
