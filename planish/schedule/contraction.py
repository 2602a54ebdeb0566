"""Contractions: which axes play m, n and k, how the right operand is packed, and the register tile.

    for m, n: acc = add over k: lhs[m, k] * rhs[k, n]; out[m, n] = epilogue(acc)

is computed by tiles of `rows` x `vectors * lanes` accumulators that stay in registers over all of k. A matrix
product and a convolution are the same thing here: what matters is along which axes each operand changes. The
right operand is packed into panels `[panel, k, lane]` of the tile's width, at compile time when it is
constant, else by a kernel of its own; it is read in place when it already lies contiguous along n, and is
small or meets few rows. A large left operand that lies along m, not k, is packed into panels too.

Products of int16 summed in int32 (quantised bytes less their zero points) are taken in pairs along the last
axis of k, for which machines have an instruction: the panels are `[panel, k / 2, lane, 2]`, the last pair
filled up with 0. Constants that fit are bytes in the panels, which are widened as they are loaded.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from planish.ops.content import Content, ask
from planish.schedule import packing, steps
from planish.schedule.access import Access, stride_along
from planish.schedule.buffers import Buffers
from planish.schedule.choice import ANALYTIC, Choice
from planish.schedule.choose import schedule_loops
from planish.schedule.kernel import (
    Apply,
    Axis,
    Buffer,
    Const,
    Index,
    Kernel,
    Load,
    RegisterTile,
    Scalar,
    Stage,
    Step,
    Store,
    own_dims,
    stage_axes,
    stage_stores,
    stage_values,
    walk,
)
from planish.schedule.machine import Machine
from planish.schedule.rebuild import is_scalar
from planish.schedule.scalars import apply, both, cast_to, hinted
from planish.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT32,
    UINT64,
    Dim,
    TensorType,
    is_static,
    substitute,
    symbols_of,
)
from planish.types.dim import divisors, minimum

PAIRED = (INT16, INT8)        # multiplied in pairs: int16, on the right also bytes in panels of ours
NARROW = (FLOAT16, BFLOAT16)  # floats that are multiplied and summed as float32
SUMMED = (FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64)  # dtypes of accumulators

SMALL_WORK = 1 << 17    # multiply-adds below which one thread is enough: 3 us, 7 of one row
PACKED = 0.5            # cycles that packing an element takes
SCATTERED = 1.25        # cycles that a store of one lane takes
LEAST_ROWS = 4          # for which an operand gets a kernel before: int16 packed at run time, floats widened
LEAST_WORK = 1 << 10    # multiply-adds below which plain loops do as well
# Operands packed though they could be read in place: uses of each element, and bytes that one walk along k
# crosses, above which caches and page tables don't keep up
SPREAD_RIGHT = 16, 1 << 18
SPREAD_LEFT = 64, 1 << 16

# (vector registers) -> rows x vectors of the tile; the rest holds the right operand's vectors and one
# broadcast
TILES = {16: (6, 2), 32: (12, 2)}
# the same where rows of the left operand lie a run-time distance apart: each takes a register for its address
APART = {16: (6, 2), 32: (5, 4)}
# the same where few columns would leave one vector alone in the last panel, which then waits for each sum
THREES = {16: (4, 3)}
FEW_VECTORS = 9


@dataclass(frozen=True)
class Contraction:
    """The parts of a kernel that is one: a sum of products `left * right`, then stages without loops."""

    sum: Stage
    left: Load
    right: Load
    epilogue: tuple[Stage, ...]

    @property
    def in_pairs(self) -> bool:
        """Whether products are narrower than their sum and taken two at a time."""
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


def schedule_contraction(kernel: Kernel, machine: Machine, hint: dict[str, int], buffers: Buffers,
                         disable: frozenset[str] = frozenset(),
                         choice: Choice = ANALYTIC) -> list[Kernel] | None:
    """The kernel with a register tile, after the kernel that packs its right operand if it needs one. None
    when the kernel is not a contraction that this form suits. New buffers are entered in `buffers`. `choice`
    may say what is else decided here."""
    kernel = split_groups(split_sum(kernel))
    roles = choose_roles(kernel, hint, buffers)
    if roles is None or _work(kernel, hint) < LEAST_WORK:
        return None
    parts = contraction_of(kernel)
    assert parts is not None
    if parts.in_pairs and (roles.lhs.dtype is INT8 or roles.rhs.dtype is INT8):
        return None
    packed_anew = parts.in_pairs and not buffers.is_constant(roles.rhs.buffer)
    if packed_anew and _rows(kernel, roles, hint) < LEAST_ROWS:
        return None
    lanes = machine.vector_bytes // parts.sum.dtype.itemsize
    across = _across_the_result(kernel, hint, buffers)
    if across is not None:
        width = lanes * TILES[machine.registers][1]
        roles = min(roles, across, key=lambda r: (_width(kernel, r, hint) < lanes // 2,
                                                  _cycles(kernel, r, hint, buffers, width)))
    if _packs_for_one_use(roles, buffers):
        return None
    rows, vectors = (TILES if _has_known_rows(roles) else APART)[machine.registers]
    if _width(kernel, roles, hint) <= lanes and _has_even_tiles(kernel, roles):
        rows, vectors, lanes = rows * vectors, 1, _fitting(lanes, _width(kernel, roles, hint))
    elif machine.registers in THREES and _goes_by_threes(kernel, roles, lanes):
        rows, vectors = THREES[machine.registers]
    rows, vectors = choice.tile or (rows, vectors)
    extent = {a.name: a.extent for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    if _width(kernel, roles, hint) < lanes // 2:
        return None
    tile = RegisterTile(roles.batch, roles.m, (roles.n,), roles.k, rows, vectors, lanes, packed=True)
    before: list[Kernel] = []
    m = _lies_along(kernel, roles, buffers, hint)
    if m is not None:
        kernel, roles, before = _left_panels(kernel, roles, m, tile, extent, buffers, machine, hint)
    elif roles.lhs.dtype in NARROW and _rows(kernel, roles, hint) >= LEAST_ROWS:
        kernel, roles, before = _widened(kernel, roles, buffers, machine, hint)
    if _is_read_in_place(roles, buffers) and not _repays_packing(kernel, roles, hint):
        kernel = _tiled(_multiplying(kernel, roles.lhs, roles.rhs), roles, replace(tile, packed=False))
    else:
        kernel, packing = _packed(kernel, roles, tile, extent, buffers, machine, hint, disable)
        before = [*before, *packing]
    if _work(kernel, hint) >= SMALL_WORK and machine.threads > 1 and choice.threads is not False:
        kernel = steps.parallel(kernel, [a for a in (*roles.batch, *roles.m, roles.n)
                                         if a in {x.name for x in kernel.shared}])
    return [*before, _as_told(kernel, choice)]


def _as_told(kernel: Kernel, choice: Choice) -> Kernel:
    """The kernel with steps for what code generation would decide by itself."""
    if choice.unroll:
        kernel = replace(kernel, steps=tuple(
            replace(s, arguments=(s.arguments[0], choice.unroll)) if s.name == "unroll" else s
            for s in kernel.steps))
    if choice.group:
        kernel = kernel.with_step(Step("group", (choice.group,)))
    return kernel.with_step(Step("share", (choice.grid,))) if choice.grid else kernel


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
    if left is None or right is None or (left.dtype in PAIRED) != (right.dtype in PAIRED):
        return None
    return Contraction(first, left, right, epilogue)


def _factor(x: Scalar) -> Load | None:
    """The load that a factor is, or an int16 that is summed as int32, a narrow float as float32."""
    if isinstance(x, Apply) and x.op == "cast" and (
            (x.dtype is INT32 and x.args[0].dtype in PAIRED)
            or (x.dtype is FLOAT32 and x.args[0].dtype in NARROW)):
        x = x.args[0]
    return x if isinstance(x, Load) and not any(map(is_scalar, x.index)) else None


def _work(kernel: Kernel, hint: dict[str, int]) -> int:
    return prod(hinted(a.extent, hint) for a in (*kernel.shared, *stage_axes(kernel.stages[0])))


def _across_the_result(kernel: Kernel, hint: dict[str, int], buffers: Buffers) -> Roles | None:
    """Constant weights on the right though the result does not lie along them: it is stored lane by lane."""
    roles = choose_roles(kernel, hint, buffers, any_order=True)
    return roles if roles is not None and buffers.is_constant(roles.rhs.buffer) else None


def _cycles(kernel: Kernel, roles: Roles, hint: dict[str, int], buffers: Buffers, width: int) -> float:
    """About how long a contraction takes: `width` multiply-adds a cycle in whole tiles, what is packed at run
    time, and what is stored lane by lane."""
    columns = _width(kernel, roles, hint)
    cycles = _work(kernel, hint) / columns * (-(-columns // width))
    if not buffers.is_constant(roles.rhs.buffer) and not _is_read_in_place(roles, buffers):
        used = _axes_of(roles.rhs)
        axes = (*kernel.shared, *stage_axes(kernel.stages[0]))
        cycles += PACKED * prod(hinted(a.extent, hint) for a in axes if a.name in used)
    points = prod(hinted(a.extent, hint) for a in kernel.shared)
    return cycles + SCATTERED * points * scattered_stores(kernel, roles.n)


def _width(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> int:
    return hinted(next(a.extent for a in kernel.shared if a.name == roles.n), hint)


def _axes_of(load: Load) -> set[str]:
    return {name for i in own_dims(load) for name in symbols_of(i)}


# --- roles

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
        left, right = _axes_of(lhs), _axes_of(rhs)
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
    rows = _rows(kernel, roles, hint)
    packing = 0 if buffers.is_constant(roles.rhs.buffer) else 1 if _is_contiguous(roles) else 2
    pairing = parts.in_pairs and packing > 0  # at run time, of a convolution every window
    return (pairing, 0 if any_order else scattered, size < 8, packing, -min(rows, 12), -size)


def scattered_stores(kernel: Kernel, axis: str) -> int:
    """How many results are not contiguous along an axis."""
    stores = [store for s in kernel.stages for store in stage_stores(s)]
    return sum(stride_along(Access(s.buffer, s.index), axis) != 1 for s in stores)


def _rows(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> int:
    return prod(hinted(a.extent, hint) for a in kernel.shared if a.name in roles.m)


def _has_known_rows(roles: Roles) -> bool:
    """Whether the distance between rows of the left operand is known."""
    return all(is_static(stride_along(Access(roles.lhs.buffer, roles.lhs.index), a)) for a in roles.m)


def _packs_for_one_use(roles: Roles, buffers: Buffers) -> bool:
    """Whether each element of the right operand would be packed, at run time, for a single row."""
    return not roles.m and not _is_read_in_place(roles, buffers) and not buffers.is_constant(roles.rhs.buffer)


def _is_read_in_place(roles: Roles, buffers: Buffers) -> bool:
    """Whether the right operand stays where it is: vectors are read as they are multiplied."""
    is_wide = roles.rhs.dtype not in (*NARROW, *PAIRED)
    return is_wide and _is_contiguous(roles) and not buffers.is_constant(roles.rhs.buffer)


def _is_contiguous(roles: Roles) -> bool:
    return stride_along(Access(roles.rhs.buffer, roles.rhs.index), roles.n) == 1


# --- operands that are laid out anew

def _repays_packing(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> bool:
    """Whether a right operand that could be read in place is packed: a panel of it is spread over much memory
    and meets many rows."""
    uses, bytes_ = SPREAD_RIGHT
    is_spread = _rows(kernel, roles, hint) >= uses and _spread(kernel, roles.rhs, roles.k, hint) > bytes_
    return is_spread and not _is_window(roles.rhs, roles.k)


def _lies_along(kernel: Kernel, roles: Roles, buffers: Buffers, hint: dict[str, int]) -> str | None:
    """The axis m along which the left operand lies, where panels of it repay: it does not lie along k, is
    spread over much memory and meets many columns."""
    load = roles.lhs
    along = [a for a in roles.m if stride_along(Access(load.buffer, load.index), a) == 1]
    along_k = any(stride_along(Access(load.buffer, load.index), a) == 1 for a in roles.k)
    if not along or along_k or load.dtype in (INT8, INT16) or buffers.is_constant(load.buffer):
        return None
    uses, bytes_ = SPREAD_LEFT
    repays = _width(kernel, roles, hint) >= uses and _spread(kernel, load, roles.k, hint) > bytes_
    return along[0] if repays and not _is_window(load, roles.k) else None


def _is_window(load: Load, k: Sequence[str]) -> bool:
    """Whether an operand is an image under a moving window, whose elements panels would repeat."""
    return any(set(k) & names and names - set(k) for names in map(set, map(symbols_of, own_dims(load))))


def _spread(kernel: Kernel, load: Load, k: Sequence[str], hint: dict[str, int]) -> int:
    """Bytes between the first and the last element along k."""
    extent = {a.name: hinted(a.extent, hint) for a in stage_axes(kernel.stages[0])}
    steps_ = {a: stride_along(Access(load.buffer, load.index), a) for a in k}
    return sum(extent[a] * hinted(d, hint) for a, d in steps_.items() if d is not None) * load.dtype.itemsize


def _left_panels(kernel: Kernel, roles: Roles, m: str, tile: RegisterTile, extent: dict[str, Dim],
                 buffers: Buffers, machine: Machine,
                 hint: dict[str, int]) -> tuple[Kernel, Roles, list[Kernel]]:
    """The kernel with its left operand in panels `[m / width, k, m % width]`, as the right one is packed, and
    the kernel that packs it."""
    first = kernel.stages[0]
    assert isinstance(first, Stage)
    source, used, width = roles.lhs.buffer, _axes_of(roles.lhs), tile.vectors * tile.lanes
    batch = tuple(a for a in (*roles.batch, *roles.m) if a in used and a != m)
    shape = ((extent[m] + width - 1) // width, *(extent[a] for a in roles.k), width)
    panels = buffers.add(Buffer(f"{source.name}_panels{len(buffers.scratch)}",
                                TensorType(first.dtype, (*(extent[a] for a in batch), *shape))))
    mirrored = replace(roles, n=m, rhs=roles.lhs)
    packing = _pack_kernel(f"{kernel.name}_left", mirrored, batch, panels, extent, width, 1)
    at = {a.name: a.symbol for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    index = (*(at[a] for a in batch), at[m] // width, *(at[a] for a in roles.k), at[m] % width)
    roles = replace(roles, lhs=Load(panels, index))
    inputs = tuple(dict.fromkeys((panels, roles.rhs.buffer, *_still_read(kernel, roles))))
    kernel = replace(_multiplying(kernel, roles.lhs, roles.rhs), inputs=inputs)
    kernel = kernel.with_step(Step("pack", (panels.name, width)))
    return kernel, roles, [schedule_loops(packing, machine, hint)]


# --- the tile and the packed operand

def _tiled(kernel: Kernel, roles: Roles, tile: RegisterTile) -> Kernel:
    width = tile.vectors * tile.lanes
    first, *rest = kernel.stages
    assert isinstance(first, Stage)
    inside = {a.name: a for a in first.axes}
    summed = replace(first, axes=tuple(inside[name] for name in roles.k))
    kernel = replace(kernel, tile=tile, stages=(summed, *rest))
    kernel = kernel.with_step(Step("register_tile", ("x".join(roles.m) or "1", tile.rows, roles.n, width)))
    kernel = kernel.with_step(Step("vectorize", (roles.n, tile.lanes)))
    return kernel.with_step(Step("unroll", (roles.k[-1], UNROLL)))


def _multiplying(kernel: Kernel, lhs: Load, rhs: Load) -> Kernel:
    """The kernel summing lhs * rhs, in this order."""
    first, *rest = kernel.stages
    assert isinstance(first, Stage)
    factors = tuple(cast_to(x, first.dtype) for x in (lhs, rhs))
    return replace(kernel, stages=(replace(first, value=Apply("mul", factors, first.dtype)), *rest))


def _widened(kernel: Kernel, roles: Roles, buffers: Buffers, machine: Machine,
             hint: dict[str, int]) -> tuple[Kernel, Roles, list[Kernel]]:
    """The kernel reading its left operand as float32, and the kernel that makes it so: each of its numbers is
    read once for every panel."""
    narrow = roles.lhs.buffer
    wide = buffers.add(replace(narrow, name=f"{narrow.name}_wide{len(buffers.scratch)}",
                               type=TensorType(FLOAT32, narrow.shape)))
    axes = [Axis(f"s{i}", d) for i, d in enumerate(narrow.shape)]
    index = tuple(0 if a.extent == 1 else a.symbol for a in axes)
    stage = Stage("t0", (), cast_to(Load(narrow, index), FLOAT32), FLOAT32, store=Store(wide, index))
    shared = tuple(a for a in axes if a.extent != 1)
    widening = Kernel(f"{kernel.name}_widen", shared, (stage,), (narrow,), (wide,), ops=("cast",))
    roles = replace(roles, lhs=replace(roles.lhs, buffer=wide))
    still = _still_read(kernel, roles)
    kernel = replace(_multiplying(kernel, roles.lhs, roles.rhs),
                     inputs=tuple(dict.fromkeys((wide, *still, roles.rhs.buffer))))
    return kernel, roles, [schedule_loops(widening, machine, hint)]


UNROLL = 4  # steps of k in one trip

PANELS_SIDE_BY_SIDE = 4  # filled at once from one row


def _packed(kernel: Kernel, roles: Roles, tile: RegisterTile, extent: dict[str, Dim], buffers: Buffers,
            machine: Machine, hint: dict[str, int], disable: frozenset[str]) -> tuple[Kernel, list[Kernel]]:
    """The tiled kernel over packed panels, and the kernel that packs them when they are not constant."""
    width = tile.vectors * tile.lanes
    used = _axes_of(roles.rhs)
    batch = tuple(a for a in roles.batch if a in used)
    parts = contraction_of(kernel)
    assert parts is not None
    pair = 2 if parts.in_pairs else 1
    panels = (extent[roles.n] + width - 1) // width
    *outer, deepest = (extent[a] for a in roles.k)
    source = roles.rhs.buffer
    content = buffers.constants.get(buffers.owner(source.name))
    groups = _groups_in_panels(roles, batch, extent, width)
    prepacked = content is not None and groups > 0 and "prepack" not in disable
    leading = (groups * panels,) if prepacked else (*(extent[a] for a in batch), panels)
    shape = (*leading, *outer, *_panel_row(deepest, width, pair))
    # What is packed anew is widened on the way; constants stay as narrow as they are, for memory is slower.
    if content is not None and prepacked and parts.in_pairs and ask("fit_bytes", content):
        content = packing.as_bytes(content)
    dtype = content.type.dtype if content is not None and prepacked else \
        source.dtype if parts.in_pairs else parts.sum.dtype
    packed = Buffer(f"{source.name}_panels{len(buffers.scratch)}", TensorType(dtype, shape))
    if content is not None and prepacked:
        columns = {roles.n: groups * extent[roles.n]}
        buffers.add(packed, packed_content(content, roles, extent | columns, width, pair))
        before = []
    else:
        buffers.add(packed)
        kernel_of_packing = _pack_kernel(kernel.name, roles, batch, packed, extent, width, pair)
        before = [schedule_loops(kernel_of_packing, machine, hint)]
    n = next(a for a in kernel.shared if a.name == roles.n).symbol
    at = {a.name: a.symbol for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    *outer, deepest = (at[a] for a in roles.k)
    place = (deepest, n % width) if pair == 1 else (deepest // pair, n % width, deepest % pair)
    group = [at[a] for a in batch]
    leading = (sum(group, 0) * panels + n // width,) if prepacked else (*group, n // width)
    index = (*leading, *outer, *place)
    inputs = tuple(dict.fromkeys(b for b in (*_still_read(kernel, roles), packed)))
    kernel = replace(_multiplying(kernel, roles.lhs, Load(packed, index)), inputs=inputs)
    return _tiled(kernel.with_step(Step("pack", (packed.name, width))), roles, tile), before


def _groups_in_panels(roles: Roles, batch: tuple[str, ...], extent: dict[str, Dim], width: int) -> int:
    """How many groups of whole panels the right operand has, one after another along its columns; 0 where it
    is not like that."""
    if not batch:
        return 1
    access = Access(roles.rhs.buffer, roles.rhs.index)
    columns, groups = extent[roles.n], extent[batch[0]]
    if len(batch) > 1 or not is_static(groups) or not is_static(columns) or columns % width:
        return 0
    stride = stride_along(access, roles.n)
    return groups if stride is not None and stride_along(access, batch[0]) == columns * stride else 0


def _panel_row(depth: Dim, width: int, pair: int) -> tuple[Dim, ...]:
    """The last axes of a panel: steps of k, lanes, and the elements of a pair."""
    return (depth, width) if pair == 1 else ((depth + pair - 1) // pair, width, pair)


def _still_read(kernel: Kernel, roles: Roles) -> list[Buffer]:
    rest = [x.buffer for s in kernel.stages[1:] for x in walk(*stage_values(s)) if isinstance(x, Load)]
    wanted = {roles.lhs.buffer.name, *(b.name for b in rest)}
    return [b for b in kernel.inputs if b.name in wanted]


def _pack_kernel(name: str, roles: Roles, batch: tuple[str, ...], packed: Buffer, extent: dict[str, Dim],
                 width: int, pair: int) -> Kernel:
    """packed[batch, panel, k, lane] = rhs[k, panel * width + lane], zero beyond the last column; of pairs,
    beyond the last k too."""
    axes = [Axis(f"s{i}", d) for i, d in enumerate(packed.shape)]
    points = [0 if a.extent == 1 else a.symbol for a in axes]
    panel, *steps, lane = points[len(batch):] if pair == 1 else points[len(batch):-1]
    if pair > 1:
        steps[-1] = steps[-1] * pair + points[-1]
    conditions: list[Scalar] = []
    values: dict[str, Dim] = dict(zip(batch, points)) | dict(zip(roles.k, steps))
    values[roles.n] = panel * width + lane
    for axis, step in ((roles.n, width), (roles.k[-1], pair)):
        size = extent[axis]
        if step > 1 and (not is_static(size) or size % step):
            conditions.append(apply("lt", Index(values[axis]), Index(size), dtype=BOOL))
            values[axis] = minimum(values[axis], size - 1)
    load = Load(roles.rhs.buffer, tuple(substitute(i, values) for i in own_dims(roles.rhs)))
    value = cast_to(load, packed.dtype)
    if conditions:
        zero = Const(0.0 if packed.dtype.is_float else 0, packed.dtype)
        value = apply("select", both(conditions), value, zero, dtype=packed.dtype)
    stage = Stage("t0", (), value, packed.dtype, store=Store(packed, tuple(points)))
    loops = axes if pair == 1 else [*axes[:-2], axes[-1], axes[-2]]  # the lanes innermost
    shared = tuple(a for a in loops if a.extent != 1)
    kernel = Kernel(f"{name}_pack", shared, (stage,), (roles.rhs.buffer,), (packed,), ops=("pack",))
    return _by_lines(kernel, axes[len(batch)]) if _is_contiguous(roles) and pair == 1 else kernel


def _by_lines(kernel: Kernel, panels: Axis) -> Kernel:
    """The packing of an operand that lies along its panels: several panels are filled side by side, so that
    whole stretches of a row are read."""
    if not is_static(panels.extent) or panels.extent < 2 * PANELS_SIDE_BY_SIDE:
        return kernel
    kernel = steps.tile(kernel, panels, PANELS_SIDE_BY_SIDE)
    inner = f"{panels.name}i"
    *rest, lane = (a.name for a in kernel.shared if a.name != inner)
    return steps.interchange(kernel, (*rest, inner, lane))


def packed_content(content: Content, roles: Roles, extent: dict[str, Dim], width: int, pair: int) -> Content:
    """The panels of a constant right operand."""
    access = Access(roles.rhs.buffer, roles.rhs.index)
    axes = (roles.n, *roles.k)
    offset = roles.rhs.buffer.offset(own_dims(roles.rhs))
    start = _known(substitute(offset, dict.fromkeys((*roles.batch, *axes), 0)))
    strides = tuple(_known(stride_along(access, a)) for a in axes)
    return packing.packed(content, start, tuple(_known(extent[a]) for a in axes), strides, width, pair)


def _known(size: Dim | None) -> int:
    """A size of a constant's, which are all static."""
    assert is_static(size)
    return size
