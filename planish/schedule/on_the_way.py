"""Maps whose result is the right operand of one product: they are computed on the way into it.

    k0: w[k, n] = cast(q[k, n], f32) * scale[n]
    k1_pack: panels[n / 16, k, n % 16] = w[k, n]      becomes   panels[...] = cast(q[k, n], f32) * scale[n]

In: the kernels of a graph in order, before they are scheduled. Out: which of them wait for the product that
reads them (`waiting`), and the scheduled kernels of such a product with the map in them (`on_the_way`). What
is packed is packed once, so nothing is computed twice, and w is never in memory. A product of few rows that
reads its operand in place widens narrow numbers as it loads them, as it does those of constants (widened.py);
plain loops of one row compute whatever they read. Else the map runs before the product, as it would have.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from planish.ir.node import Node
from planish.schedule.access import Access, stride_along
from planish.schedule.buffers import Buffers
from planish.schedule.distribute import TRANSCENDENTAL
from planish.schedule.kernel import (
    Apply,
    Buffer,
    Kernel,
    Load,
    Scalar,
    Stage,
    own_dims,
    stage_axes,
    stage_values,
    walk,
)
from planish.schedule.panels import is_window
from planish.schedule.rebuild import Rebuilder, is_scalar, rebuild_kernel
from planish.schedule.roles import axes_of, choose_roles, contraction_of, split_groups, split_sum
from planish.schedule.scalars import hinted
from planish.schedule.widened import ARITHMETIC, COMPUTED, NARROW, ONCE
from planish.types import Dim, is_static, substitute, symbols_of


def waiting(kernels: Sequence[Kernel | Node], buffers: Buffers, hint: dict[str, int],
            kept: Collection[str]) -> dict[str, Kernel]:
    """The maps whose one reader is a product of which they are the right operand, by the buffer that they
    write; `kept` names buffers that are wanted for themselves. A map of what other kernels make runs after
    them, with their strips."""
    own = [k for k in kernels if isinstance(k, Kernel)]
    readers = Counter(name for k in own for name in {buffers.owner(b.name) for b in k.inputs})
    written = {buffers.owner(b.name) for k in own for b in k.outputs}
    maps = {buffers.owner(k.outputs[0].name): k for k in own
            if _is_map(k) and not written & {buffers.owner(b.name) for b in k.inputs}}
    found = {}
    for kernel in own:
        name = _right_operand(kernel, buffers, hint)
        if name in maps and name not in kept and readers[name] == 1:
            found[name] = maps[name]
    return found


def _is_map(kernel: Kernel) -> bool:
    """Whether a kernel stores one short expression at each point of one buffer, of known size, and no
    more."""
    if len(kernel.outputs) > 1 or kernel.serial or kernel.rows or len(kernel.stages) > 1:
        return False
    stage, = kernel.stages
    if not isinstance(stage, Stage) or stage.axes or stage.combine or stage.at or stage.store is None:
        return False
    store, loads = stage.store, [x for x in walk(*stage_values(stage)) if isinstance(x, Load)]
    if any(is_scalar(i) for index in (store.index, *(x.index for x in loads)) for i in index):
        return False
    if any(isinstance(x, Apply) and x.op in TRANSCENDENTAL for x in walk(*stage_values(stage))):
        return False  # long chains of operations want loops of their own, by several vectors
    each = [a.symbol for a in kernel.shared]
    is_plain = [i for i in store.index if i != 0] == each and not store.update and store.guard is None
    is_new = kernel.outputs[0].name not in {b.name for b in kernel.inputs}
    return is_plain and is_new and is_static(store.buffer.type.size)


def _right_operand(kernel: Kernel, buffers: Buffers, hint: dict[str, int]) -> str | None:
    """The buffer that is the right operand of a product, each of whose elements it would pack once."""
    roles = choose_roles(split_groups(split_sum(kernel)), hint, buffers)
    if roles is None or roles.lhs.buffer.name == roles.rhs.buffer.name or is_window(roles.rhs, roles.k):
        return None
    return buffers.owner(roles.rhs.buffer.name)


def on_the_way(kernels: Sequence[Kernel], made: Kernel, buffers: Buffers,
               hint: dict[str, int]) -> list[Kernel] | None:
    """The kernels of a product with a map inside the one that reads its result; None where it is to be
    made before."""
    name = buffers.owner(made.outputs[0].name)
    readers = [k for k in kernels if name in {buffers.owner(b.name) for b in k.inputs}]
    if len(readers) != 1:
        return None
    reader, = readers
    with_it = _with_map(reader, made, buffers)
    if with_it is None:
        return None
    fits = reader.ops == ("pack",) or _reads_once(reader, made.outputs[0]) or _is_widened(with_it, hint)
    return [with_it if k is reader else k for k in kernels] if fits else None


def _reads_once(kernel: Kernel, made: Buffer) -> bool:
    """Whether plain loops have as many points as what a map made has elements: those of a product of one
    row."""
    first, *rest = kernel.stages
    if kernel.tile is not None or any(stage_axes(stage) for stage in rest):
        return False
    return prod((a.extent for a in (*kernel.shared, *stage_axes(first))), start=1) == made.type.size


def _is_widened(kernel: Kernel, hint: dict[str, int]) -> bool:
    """Whether a product widens narrow numbers that it reads in place, whole vectors of them, and what its
    tiles of rows do to each takes less than to have it done before."""
    tile, parts = kernel.tile, contraction_of(kernel)
    if tile is None or tile.packed or parts is None or not isinstance(parts.sum.value, Apply):
        return False
    axes, right = {a.name: a for a in kernel.shared}, parts.right
    scalars = list(walk(parts.sum.value.args[1]))
    columns, rows = axes[tile.n[0]].extent, prod(hinted(axes[a].extent, hint) for a in tile.m)
    beside = [x for x in scalars if isinstance(x, Load) and x is not right]
    done = [x for x in scalars if isinstance(x, Apply)]
    is_known = all(x.op in ARITHMETIC and x.dtype in COMPUTED for x in done) and right.dtype in NARROW
    hold = not any(set(tile.k) & axes_of(x) for x in beside)
    is_whole = is_static(columns) and columns % tile.lanes == 0 and all(
        stride_along(Access(x.buffer, x.index), tile.n[0]) == 1 or x.buffer.type.size == 1
        for x in (right, *beside))
    tiles, operations = -(-rows // tile.rows), sum(x.op != "cast" for x in done)
    return is_known and hold and is_whole and operations * tiles <= ONCE


def _with_map(packing: Kernel, made: Kernel, buffers: Buffers) -> Kernel | None:
    """A kernel that computes what it loads of a map's result."""
    stage, = made.stages
    assert isinstance(stage, Stage) and stage.store is not None
    store, name = stage.store, buffers.owner(made.outputs[0].name)
    read = next(b for b in packing.inputs if buffers.owner(b.name) == name)
    if _place([0] * len(read.shape), read, store.buffer) is None:
        return None

    def computed(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Load) or scalar.buffer.name != read.name:
            return scalar
        place = _place(own_dims(scalar), read, store.buffer)
        assert place is not None
        values = {n: at for i, at in zip(store.index, place)
                  if not is_scalar(i) for n in symbols_of(i)}
        return Rebuilder(dim=lambda d: substitute(d, values)).scalar(stage.value)

    inputs = dict.fromkeys((*(b for b in packing.inputs if b is not read), *made.inputs))
    kernel = rebuild_kernel(packing, Rebuilder(scalar=computed))
    return replace(kernel, inputs=tuple(inputs), ops=(*made.ops, *packing.ops))


def _place(index: Sequence[Dim], old: Buffer, new: Buffer) -> list[Dim] | None:
    """An index of one shape as one of another shape of the same memory, axes split and merged."""
    sizes, others = list(old.shape), list(new.shape)
    left = list(index)
    found: list[Dim] = []
    while sizes or others:
        here: list[Dim] = [sizes.pop()] if sizes else []
        there: list[Dim] = [others.pop()] if others else []
        while (a := prod(here)) != (b := prod(there)):
            if not is_static(a) or not is_static(b) or not (sizes if a < b else others):
                return None
            (here if a < b else there).insert(0, (sizes if a < b else others).pop())
        at = left[len(left) - len(here):]
        del left[len(left) - len(here):]
        found = [*_digits(at, here, there), *found]
    return found


def _digits(index: Sequence[Dim], sizes: Sequence[Dim], others: Sequence[Dim]) -> list[Dim]:
    """The same for axes that have as many elements together."""
    if len(sizes) == len(others):
        return list(index)
    flat: Dim = sum((i * prod(sizes[k + 1:]) for k, i in enumerate(index)), start=0)
    after = [prod(others[k + 1:]) for k in range(len(others))]
    digits = [flat // step if step != 1 else flat for step in after]
    return digits[:1] + [d % size for d, size in zip(digits[1:], others[1:])]
