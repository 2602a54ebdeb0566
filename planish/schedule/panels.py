"""Panels: operands of a contraction laid out anew, so that its tiles read them side by side.

In: a contraction and its roles. Out: the kernel that reads the new layout, and the kernels that make it. The
right operand is packed into panels `[panel, k, lane]` of the tile's width: at compile time when it is
constant, else by a kernel of its own. A large left operand that lies along m, not k, is packed into panels
too. Narrow floats on the left are widened once, before.

Products of int16 summed in int32 (quantised bytes less their zero points), and of bfloat16 where the machine
has an instruction for it (products.py), are taken in pairs along the last axis of k: the panels are
`[panel, k / 2, lane, 2]`, the last pair filled up with 0. Constants of int16 that fit are bytes in the
panels, which are widened as they are loaded. A left operand of bfloat16 that does not lie along k is laid out
so before. Tiles take 32 steps of k at a time: the sum runs over whole 32s, and both operands hold 0 beyond k.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from planish.ops.content import Content, ask
from planish.schedule import packing, steps
from planish.schedule.access import Access, is_even, stride_along
from planish.schedule.buffers import Buffers
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
    Result,
    Scalar,
    Stage,
    Step,
    Store,
    own_dims,
    stage_axes,
    stage_values,
    walk,
)
from planish.schedule.machine import Machine
from planish.schedule.products import NUMBERS, Product
from planish.schedule.rebuild import substitute_axes
from planish.schedule.roles import Roles, axes_of, contraction_of, is_contiguous, rows_of, width_of
from planish.schedule.scalars import apply, both, cast_to, hinted
from planish.schedule.widened import GROUP_BYTES, Widened, columns, is_worth, widened, widens_once
from planish.types import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT16,
    Dim,
    DType,
    TensorType,
    is_static,
    substitute,
    symbols_of,
)
from planish.types.dim import minimum

# Operands packed though they could be read in place: uses of each element, and bytes that one walk along k
# crosses, above which caches and page tables don't keep up
SPREAD_RIGHT = 40, 1 << 18
CROWDED_RIGHT = 16, 1024  # uses where steps along k are whole so many bytes: few lines of a cache hold them
SPREAD_LEFT = 64, 1 << 16

PANELS_SIDE_BY_SIDE = 4  # filled at once from one row


def multiplying(kernel: Kernel, lhs: Load, rhs: Scalar) -> Kernel:
    """The kernel summing lhs * rhs, in this order."""
    first, *rest = kernel.stages
    assert isinstance(first, Stage)
    factors = tuple(cast_to(x, first.dtype) for x in (lhs, rhs))
    return replace(kernel, stages=(replace(first, value=Apply("mul", factors, first.dtype)), *rest))


def repays_packing(kernel: Kernel, roles: Roles, hint: dict[str, int]) -> bool:
    """Whether a right operand that could be read in place is packed: a panel of it is spread over much memory
    and meets many rows."""
    uses, bytes_ = SPREAD_RIGHT
    few, apart = CROWDED_RIGHT
    step = stride_along(Access(roles.rhs.buffer, roles.rhs.index), roles.k[-1])
    if not is_static(step) or step * roles.rhs.dtype.itemsize % apart == 0:
        uses = few
    is_spread = rows_of(kernel, roles, hint) >= uses and _spread(kernel, roles.rhs, roles.k, hint) > bytes_
    return is_spread and not is_window(roles.rhs, roles.k)


def lies_along(kernel: Kernel, roles: Roles, buffers: Buffers, hint: dict[str, int]) -> str | None:
    """The axis m along which the left operand lies, where panels of it repay: it does not lie along k, is
    spread over much memory and meets many columns."""
    load = roles.lhs
    along = [a for a in roles.m if stride_along(Access(load.buffer, load.index), a) == 1]
    along_k = any(stride_along(Access(load.buffer, load.index), a) == 1 for a in roles.k)
    if not along or along_k or buffers.is_constant(load.buffer):
        return None
    uses, bytes_ = SPREAD_LEFT
    repays = width_of(kernel, roles, hint) >= uses and _spread(kernel, load, roles.k, hint) > bytes_
    return along[0] if repays and not is_window(load, roles.k) else None


def is_window(load: Load, k: Sequence[str]) -> bool:
    """Whether an operand is an image under a moving window, whose elements panels would repeat."""
    return any(set(k) & names and names - set(k) for names in map(set, map(symbols_of, own_dims(load))))


def _spread(kernel: Kernel, load: Load, k: Sequence[str], hint: dict[str, int]) -> int:
    """Bytes between the first and the last element along k."""
    extent = {a.name: hinted(a.extent, hint) for a in stage_axes(kernel.stages[0])}
    steps_ = {a: stride_along(Access(load.buffer, load.index), a) for a in k}
    return sum(extent[a] * hinted(d, hint) for a, d in steps_.items() if d is not None) * load.dtype.itemsize


def packed_left(kernel: Kernel, roles: Roles, m: str, width: int, buffers: Buffers,
                machine: Machine, hint: dict[str, int]) -> tuple[Kernel, Roles, list[Kernel]]:
    """The kernel with its left operand in panels `[m / width, k, m % width]`, as the right one is packed, and
    the kernel that packs it."""
    first = kernel.stages[0]
    assert isinstance(first, Stage)
    source, used, extent = roles.lhs.buffer, axes_of(roles.lhs), _extents(kernel)
    batch = tuple(a for a in (*roles.batch, *roles.m) if a in used and a != m)
    shape = ((extent[m] + width - 1) // width, *(extent[a] for a in roles.k), width)
    panels = buffers.add(Buffer(f"{source.name}_panels{len(buffers.scratch)}",
                                TensorType(first.dtype, (*(extent[a] for a in batch), *shape))))
    mirrored = replace(roles, n=m, rhs=roles.lhs)
    packing = _pack_kernel(f"{kernel.name}_left", mirrored, batch, panels, extent, width, NUMBERS)
    at = {a.name: a.symbol for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    index = (*(at[a] for a in batch), at[m] // width, *(at[a] for a in roles.k), at[m] % width)
    roles = replace(roles, lhs=Load(panels, index))
    inputs = tuple(dict.fromkeys((panels, roles.rhs.buffer, *_still_read(kernel, roles))))
    kernel = replace(multiplying(kernel, roles.lhs, roles.rhs), inputs=inputs)
    kernel = kernel.with_step(Step("pack", (panels.name, width)))
    return kernel, roles, [schedule_loops(packing, machine, hint)]


def widened_left(kernel: Kernel, roles: Roles, buffers: Buffers, machine: Machine,
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
    kernel = replace(multiplying(kernel, roles.lhs, roles.rhs),
                     inputs=tuple(dict.fromkeys((wide, *still, roles.rhs.buffer))))
    return kernel, roles, [schedule_loops(widening, machine, hint)]


def lies_in_rows(roles: Roles) -> bool:
    """Whether neighbours along the last of k are neighbours in the left operand."""
    return stride_along(Access(roles.lhs.buffer, roles.lhs.index), roles.k[-1]) == 1


def lies_in_blocks(kernel: Kernel, roles: Roles, product: Product) -> bool:
    """Whether the left operand can be read in blocks of whole steps: rows that lie along k, evenly apart."""
    depth = _extents(kernel)[roles.k[-1]]
    rows = [a for a in kernel.shared if a.name in roles.m]
    is_whole = lies_in_rows(roles) and product.filled(depth) == depth
    return is_whole and is_even(Access(roles.lhs.buffer, roles.lhs.index), rows)


def left_rows(kernel: Kernel, roles: Roles, product: Product, buffers: Buffers, machine: Machine,
              hint: dict[str, int]) -> tuple[Kernel, Roles, list[Kernel]]:
    """The kernel with its left operand laid out row by row, `[m, k]` in whole steps, and the kernel that lays
    it out."""
    used, extent, deepest = axes_of(roles.lhs), _extents(kernel), roles.k[-1]
    names = [a for a in (*roles.batch, *roles.m, *roles.k) if a in used]
    sizes = extent | {deepest: product.filled(extent[deepest])}
    axes = [Axis(f"s{i}", sizes[name]) for i, name in enumerate(names)]
    here: dict[str, Dim] = {name: 0 if a.extent == 1 else a.symbol for name, a in zip(names, axes)}
    source = roles.lhs.buffer
    rows = buffers.add(Buffer(f"{source.name}_rows{len(buffers.scratch)}",
                              TensorType(source.dtype, tuple(sizes[name] for name in names))))
    value = _filled_up(roles.lhs, here, extent, {deepest: product.steps}, source.dtype)
    stage = Stage("t0", (), value, source.dtype, store=Store(rows, tuple(here.values())))
    shared = tuple(a for a in axes if a.extent != 1)
    laying = Kernel(f"{kernel.name}_rows", shared, (stage,), (source,), (rows,), ops=("pack",))
    at = {a.name: a.symbol for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    roles = replace(roles, lhs=Load(rows, tuple(at[name] for name in names)))
    kernel = replace(multiplying(kernel, roles.lhs, roles.rhs),
                     inputs=tuple(dict.fromkeys((rows, roles.rhs.buffer, *_still_read(kernel, roles)))))
    return kernel, roles, [schedule_loops(laying, machine, hint)]


def in_whole_steps(kernel: Kernel, name: str, product: Product) -> Kernel:
    """The kernel with its sum over whole steps along the innermost k, `name`."""
    first, *_ = kernel.stages
    assert isinstance(first, Stage)
    axis = next(a for a in first.axes if a.name == name)
    whole = replace(axis, extent=product.filled(axis.extent))
    if whole.extent == axis.extent:
        return kernel
    kernel = substitute_axes(kernel, {name: whole.symbol})
    first, *rest = kernel.stages
    assert isinstance(first, Stage)
    axes = tuple(whole if a.name == name else a for a in first.axes)
    return replace(kernel, stages=(replace(first, axes=axes), *rest))


def widened_weights(kernel: Kernel, roles: Roles, buffers: Buffers, machine: Machine,
                    hint: dict[str, int], disable: frozenset[str]) -> Widened | None:
    """How a constant right operand follows from narrower numbers, where its panels are to hold those."""
    content = buffers.constants.get(buffers.owner(roles.rhs.buffer.name))
    if content is None or content.type.dtype not in (FLOAT32, FLOAT64) or disable & {"prepack", "widen"}:
        return None
    if set(roles.batch) & axes_of(roles.rhs):
        return None
    found = widened(content, *_view(roles, _extents(kernel)))
    if found is None or not is_worth(found, content.type.dtype, rows_of(kernel, roles, hint)):
        return None
    return found if machine.strict else found.taken_out()


def told_narrow(kernel: Kernel) -> list[str]:
    """A line for weights that a kernel reads as narrow as they were given: bytes, what they would be, and
    whether each panel is widened once or by every tile."""
    ends = {s.arguments[0]: ", widened once for all rows" if s.name == "widen_group" else ""
            for s in kernel.steps if s.name in ("widen", "widen_group")}
    parts = contraction_of(kernel)
    if parts is None:
        return []
    wide = parts.sum.dtype
    return [f"{kernel.name}: its weights stay {b.dtype.name}, {b.type.size * b.dtype.itemsize} bytes, not "
            f"{b.type.size * wide.itemsize} of {wide.name}{ends[b.name]}"
            for b in kernel.inputs if b.name in ends]


def in_blocks(kernel: Kernel, roles: Roles, block: int) -> tuple[Kernel, Roles]:
    """The kernel with its sum over blocks of k, and over k in a block."""
    first, name = kernel.stages[0], roles.k[-1]
    axis = next(a for a in stage_axes(first) if a.name == name)
    if block == 0 or block == axis.extent:
        return kernel, roles
    kernel = steps.split(kernel, axis, block)
    outer, inner = (a for a in stage_axes(kernel.stages[0]) if a.name in (name, f"{name}i"))
    at = {name: outer.symbol * block + inner.symbol}
    lhs, rhs = (Load(x.buffer, tuple(substitute(i, at) for i in own_dims(x))) for x in (roles.lhs, roles.rhs))
    return kernel, replace(roles, k=(*roles.k, inner.name), lhs=lhs, rhs=rhs)


def packed_narrow(kernel: Kernel, roles: Roles, tile: RegisterTile, found: Widened, buffers: Buffers,
                  hint: dict[str, int]) -> Kernel:
    """The kernel over panels of the narrow numbers of constant weights, which it widens as it loads them.
    What else that takes lies beside: a row for each block of k, filled up to whole panels."""
    width, extent = tile.vectors * tile.lanes, _extents(kernel)
    at = {a.name: a.symbol for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    source, view = roles.rhs.buffer, found.narrow.view
    sizes, strides = tuple(_known(extent[a]) for a in (roles.n, *roles.k)), view.strides
    assert strides is not None
    is_blocked = len(sizes) > len(strides)
    if is_blocked:
        strides = strides[0], sizes[2] * strides[1], strides[1]
    content = packing.packed(found.narrow.content, view.start, sizes, strides, width)
    panels = buffers.add(Buffer(f"{source.name}_panels{len(buffers.scratch)}", content.type), content)
    n, lanes = at[roles.n], -(-sizes[0] // width) * width
    loads = {found.narrow: Load(panels, (n // width, *(at[a] for a in roles.k), n % width))}
    for leaf in found.sides:
        blocks = sizes[1] if leaf.block and is_blocked else 1
        beside = columns(leaf, blocks, sizes[0], lanes)
        buffer = buffers.add(Buffer(f"{source.name}_beside{len(buffers.scratch)}", beside.type), beside)
        loads[leaf] = Load(buffer, (at[roles.k[0]] if blocks > 1 else 0, n))
    inputs = dict.fromkeys((*_still_read(kernel, roles), *(x.buffer for x in loads.values())))
    kernel = multiplying(kernel, roles.lhs, found.scalar(loads.__getitem__))
    kernel = _scaled(kernel, [loads[scale] for scale in found.scales])
    kernel = replace(kernel, inputs=tuple(inputs)).with_step(Step("pack", (panels.name, width)))
    panel = prod(sizes[1:]) * width * roles.rhs.dtype.itemsize
    if widens_once(found, rows_of(kernel, roles, hint), tile, panel):
        return kernel.with_step(Step("widen_group", (panels.name, GROUP_BYTES // panel * panel)))
    return kernel.with_step(Step("widen", (panels.name,)))


def _scaled(kernel: Kernel, scales: Sequence[Load]) -> Kernel:
    """The kernel with its sum multiplied by scales, by a stage that has the sum's name."""
    first, *rest = kernel.stages
    assert isinstance(first, Stage)
    if not scales:
        return kernel
    summed = replace(first, name=f"{first.name}_sum")
    value: Scalar = Result(summed.name, first.dtype)
    for scale in scales:
        value = Apply("mul", (value, scale), first.dtype)
    return replace(kernel, stages=(summed, Stage(first.name, (), value, first.dtype), *rest))


def packed_right(kernel: Kernel, roles: Roles, tile: RegisterTile, buffers: Buffers, machine: Machine,
                 hint: dict[str, int], disable: frozenset[str]) -> tuple[Kernel, list[Kernel]]:
    """The kernel over packed panels, and the kernel that packs them when they are not constant."""
    product, width = tile.product, tile.vectors * tile.lanes
    used, extent = axes_of(roles.rhs), _extents(kernel)
    batch = tuple(a for a in roles.batch if a in used)
    parts = contraction_of(kernel)
    assert parts is not None
    panels = (extent[roles.n] + width - 1) // width
    *outer, deepest = (extent[a] for a in roles.k)
    source = roles.rhs.buffer
    content = buffers.constants.get(buffers.owner(source.name))
    groups = _groups_in_panels(roles, batch, extent, width)
    prepacked = content is not None and groups > 0 and "prepack" not in disable
    leading = (groups * panels,) if prepacked else (*(extent[a] for a in batch), panels)
    shape = (*leading, *outer, *_panel_row(deepest, width, product))
    # What is packed anew is widened on the way unless it is multiplied as it is; constants stay as narrow as
    # they are, for memory is slower.
    if content is not None and prepacked and source.dtype is INT16 and ask("fit_bytes", content):
        content = packing.as_bytes(content)
    dtype = content.type.dtype if content is not None and prepacked else \
        source.dtype if product is not NUMBERS else parts.sum.dtype
    packed = Buffer(f"{source.name}_panels{len(buffers.scratch)}", TensorType(dtype, shape))
    if content is not None and prepacked:
        columns = {roles.n: groups * extent[roles.n]}
        buffers.add(packed, packed_content(content, roles, extent | columns, width, product))
        before = []
    else:
        buffers.add(packed)
        kernel_of_packing = _pack_kernel(kernel.name, roles, batch, packed, extent, width, product)
        before = [schedule_loops(kernel_of_packing, machine, hint)]
    n = next(a for a in kernel.shared if a.name == roles.n).symbol
    at = {a.name: a.symbol for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}
    *outer, deepest = (at[a] for a in roles.k)
    pair = product.pair
    place = (deepest, n % width) if pair == 1 else (deepest // pair, n % width, deepest % pair)
    group = [at[a] for a in batch]
    leading = (sum(group, 0) * panels + n // width,) if prepacked else (*group, n // width)
    index = (*leading, *outer, *place)
    inputs = tuple(dict.fromkeys(b for b in (*_still_read(kernel, roles), packed)))
    kernel = replace(multiplying(kernel, roles.lhs, Load(packed, index)), inputs=inputs)
    return kernel.with_step(Step("pack", (packed.name, width))), before


def _extents(kernel: Kernel) -> dict[str, Dim]:
    return {a.name: a.extent for a in (*kernel.shared, *stage_axes(kernel.stages[0]))}


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


def _panel_row(depth: Dim, width: int, product: Product) -> tuple[Dim, ...]:
    """The last axes of a panel: steps of k, lanes, and the elements of a pair."""
    pair = product.pair
    return (depth, width) if pair == 1 else ((product.filled(depth) + pair - 1) // pair, width, pair)


def _still_read(kernel: Kernel, roles: Roles) -> list[Buffer]:
    rest = [x.buffer for s in kernel.stages[1:] for x in walk(*stage_values(s)) if isinstance(x, Load)]
    wanted = {roles.lhs.buffer.name, *(b.name for b in rest)}
    return [b for b in kernel.inputs if b.name in wanted]


def _pack_kernel(name: str, roles: Roles, batch: tuple[str, ...], packed: Buffer, extent: dict[str, Dim],
                 width: int, product: Product) -> Kernel:
    """packed[batch, panel, k, lane] = rhs[k, panel * width + lane], zero beyond the last column; of pairs,
    beyond the last k too."""
    pair = product.pair
    axes = [Axis(f"s{i}", d) for i, d in enumerate(packed.shape)]
    points = [0 if a.extent == 1 else a.symbol for a in axes]
    panel, *steps, lane = points[len(batch):] if pair == 1 else points[len(batch):-1]
    if pair > 1:
        steps[-1] = steps[-1] * pair + points[-1]
    values: dict[str, Dim] = dict(zip(batch, points)) | dict(zip(roles.k, steps))
    values[roles.n] = panel * width + lane
    value = _filled_up(roles.rhs, values, extent, {roles.n: width, roles.k[-1]: max(pair, product.steps)},
                       packed.dtype)
    stage = Stage("t0", (), value, packed.dtype, store=Store(packed, tuple(points)))
    loops = axes if pair == 1 else [*axes[:-2], axes[-1], axes[-2]]  # the lanes innermost
    shared = tuple(a for a in loops if a.extent != 1)
    kernel = Kernel(f"{name}_pack", shared, (stage,), (roles.rhs.buffer,), (packed,), ops=("pack",))
    return _by_lines(kernel, axes[len(batch)]) if is_contiguous(roles) and pair == 1 else kernel


def _filled_up(load: Load, values: dict[str, Dim], extent: dict[str, Dim], whole: dict[str, int],
               dtype: DType) -> Scalar:
    """A load with `values` for its axes, as `dtype`; 0 beyond the extent of those of which there is a `whole`
    number."""
    conditions: list[Scalar] = []
    for axis, step in whole.items():
        size = extent[axis]
        if step > 1 and (not is_static(size) or size % step):
            conditions.append(apply("lt", Index(values[axis]), Index(size), dtype=BOOL))
            values = values | {axis: minimum(values[axis], size - 1)}
    value = cast_to(Load(load.buffer, tuple(substitute(i, values) for i in own_dims(load))), dtype)
    if not conditions:
        return value
    zero = Const(0.0 if dtype.is_float else 0, dtype)
    return apply("select", both(conditions), value, zero, dtype=dtype)


def _by_lines(kernel: Kernel, panels: Axis) -> Kernel:
    """The packing of an operand that lies along its panels: several panels are filled side by side, so that
    whole stretches of a row are read."""
    if not is_static(panels.extent) or panels.extent < 2 * PANELS_SIDE_BY_SIDE:
        return kernel
    kernel = steps.tile(kernel, panels, PANELS_SIDE_BY_SIDE)
    inner = f"{panels.name}i"
    *rest, lane = (a.name for a in kernel.shared if a.name != inner)
    return steps.interchange(kernel, (*rest, inner, lane))


def packed_content(content: Content, roles: Roles, extent: dict[str, Dim], width: int,
                   product: Product) -> Content:
    """The panels of a constant right operand."""
    return packing.packed(content, *_view(roles, extent), width, product.pair, product.steps)


def _view(roles: Roles, extent: dict[str, Dim]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Of a constant right operand as [n, k...]: where it begins, sizes and strides."""
    access = Access(roles.rhs.buffer, roles.rhs.index)
    axes = (roles.n, *roles.k)
    offset = roles.rhs.buffer.offset(own_dims(roles.rhs))
    start = _known(substitute(offset, dict.fromkeys((*roles.batch, *axes), 0)))
    strides = tuple(_known(stride_along(access, a)) for a in axes)
    return start, tuple(_known(extent[a]) for a in axes), strides


def _known(size: Dim | None) -> int:
    """A size of a constant's, which are all static."""
    assert is_static(size)
    return size
