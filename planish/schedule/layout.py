"""Layouts: in which order a value's axes lie in memory, chosen for the contraction that writes it.

In: fused kernels. Out: the same kernels with the buffers of some intermediate values laid out so that a
contraction can take its constant weights as the packed right operand and store whole vectors (a convolution's
channels innermost), and so that what is read from there, place by place, is written the same way (padding,
pooling, a convolution of every channel by itself); and what an attention gives as rows of the product that
reads it, all heads of a query side by side. Inputs, outputs and values that are also looked at in
another shape keep their row-major order.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from planish.schedule import steps
from planish.schedule.access import Access, stride_along
from planish.schedule.attention_points import is_attention
from planish.schedule.buffers import Buffers
from planish.schedule.kernel import (
    Axis,
    Buffer,
    Kernel,
    Load,
    Scalar,
    Sort,
    Stage,
    Store,
    stage_axes,
    stage_stores,
    walk,
)
from planish.schedule.kernel import stage_values as values_of
from planish.schedule.packing import transposed
from planish.schedule.rebuild import Rebuilder, rebuild_kernel, replace_buffers
from planish.schedule.roles import (
    Roles,
    choose_roles,
    contraction_of,
    scattered_stores,
    split_groups,
    split_sum,
)
from planish.schedule.scalars import hinted, is_dim
from planish.types import Dim, is_static, symbols_of


def assign_layouts(kernels: list[Kernel], buffers: Buffers, fixed: set[str], hint: dict[str, int],
                   decisions: list[str]) -> list[Kernel]:
    """`fixed` names buffers whose order the caller sees. A line is added to `decisions` for each that
    changes."""
    fixed = fixed | set(buffers.views.values()) | set(buffers.constants)
    changed: dict[str, Buffer] = {}
    attended = {b.name for k in kernels if is_attention(k) for b in k.outputs} - fixed
    for kernel in kernels:
        better = (_better_orders(split_groups(kernel), buffers, fixed, hint)
                  or _rows_of_heads(split_sum(kernel), buffers, attended, hint)
                  or _followed(kernel, changed, fixed, hint))
        for buffer in better:
            changed[buffer.name] = buffer
            decisions.append(f"layout of {buffer.name} {buffer.type}: axes {buffer.order}, for {kernel.name}")
    if not changed:
        return kernels
    buffers.of = {n: changed.get(b.name, b) for n, b in buffers.of.items()}
    return [replace_buffers(k, changed) for k in kernels]


def _better_orders(kernel: Kernel, buffers: Buffers, fixed: set[str], hint: dict[str, int]) -> list[Buffer]:
    parts = contraction_of(kernel)
    if parts is None:
        return []
    stores = [store for s in kernel.stages for store in stage_stores(s)]
    if any(s.buffer.name in fixed or s.buffer.order for s in stores):
        return []
    now = choose_roles(kernel, hint, buffers)
    if now is None:
        return []
    if parts.is_paired:  # the weights are on the right whatever the order of the result
        free: Roles | None = now if scattered_stores(kernel, now.n) else None
    else:
        free = choose_roles(kernel, hint, buffers, any_order=True)
        free = None if free is None or free.n == now.n or buffers.is_constant(now.rhs.buffer) else free
    if free is None or not buffers.is_constant(free.rhs.buffer):
        return []
    orders = [_innermost(s, free) for s in stores]
    return [replace(s.buffer, order=o) for s, o in zip(stores, orders) if o] if all(orders) else []


def _rows_of_heads(kernel: Kernel, buffers: Buffers, attended: set[str],
                   hint: dict[str, int]) -> list[Buffer]:
    """What an attention gives, where a product sums over its heads and their features: these innermost."""
    roles = choose_roles(kernel, hint, buffers)
    if roles is None or roles.lhs.buffer.name not in attended or roles.lhs.buffer.order:
        return []
    summed = [k for k, i in enumerate(roles.lhs.index) if set(_names(i)) & set(roles.k)]
    others = [k for k in range(len(roles.lhs.index)) if k not in summed]
    order = (*others, *summed)
    is_clean = all(set(_names(roles.lhs.index[k])) <= set(roles.k) for k in summed)
    return [replace(roles.lhs.buffer, order=order)] if is_clean and order != tuple(sorted(order)) else []


def _innermost(store: Store, roles: Roles) -> tuple[int, ...]:
    """The order with the axis that follows n innermost; () when no axis is n alone."""
    at = [k for k, i in enumerate(store.index) if is_dim(i) and roles.n in symbols_of(i)]
    if len(at) != 1:
        return ()
    others = [k for k in range(len(store.index)) if k != at[0]]
    return (*others, at[0])


# --- values that follow what they are made from

def _followed(kernel: Kernel, changed: Mapping[str, Buffer], fixed: set[str],
              hint: dict[str, int]) -> list[Buffer]:
    """The results whose places follow, axis by axis, those of operands that are laid out in an order of their
    own, in this order."""
    if kernel.serial or kernel.rows or any(isinstance(s, Sort) for s in kernel.stages):
        return []
    loads = [x for s in kernel.stages for x in walk(*values_of(s)) if isinstance(x, Load)]
    stores = [store for s in kernel.stages for store in stage_stores(s)]
    result: dict[str, Buffer] = {}
    for store in stores:
        if store.buffer.name in fixed or store.update:
            continue
        weights: dict[tuple[int, ...], int] = {}
        for load in loads:
            moved = changed.get(load.buffer.name, load.buffer)
            order = moved.order if _is_alongside(load, store) else None
            if order is None and "conv" in kernel.ops:
                order = _order_across(load, moved.order, store)
            if order is not None:
                size = prod(hinted(d, hint) for d in load.buffer.shape)
                weights[order] = weights.get(order, 0) + size
        order = max(weights, key=lambda o: (weights[o], o), default=())
        if order:
            result[store.buffer.name] = replace(store.buffer, order=order)
    return list(result.values())


def _is_alongside(load: Load, store: Store) -> bool:
    """Whether each axis of a result moves along the same axis of the operand, and the operand has all of
    them."""
    if len(load.index) != len(store.index):
        return False
    names = [(set(_names(i)), set(_names(j))) for i, j in zip(load.index, store.index)]
    return all(moving <= along for along, moving in names)


def _order_across(load: Load, order: tuple[int, ...], store: Store) -> tuple[int, ...] | None:
    """The order of a result whose places follow an operand's through a transpose; () where that is as it
    stands, None where they do not follow."""
    at = [[k for k in order or range(len(load.index)) if set(_names(j)) & set(_names(load.index[k]))]
          for j in store.index]
    if len(load.index) != len(store.index) or any(len(places) > 1 for places in at):
        return None
    if any(not places and any(_names(j)) for places, j in zip(at, store.index)):
        return None
    rank = {k: place for place, k in enumerate(order or range(len(load.index)))}
    found = tuple(sorted(range(len(at)), key=lambda j: rank[at[j][0]] if at[j] else -1))
    return () if found == tuple(range(len(at))) else found


def _names(index: Dim | Scalar) -> Iterator[str]:
    if is_dim(index):
        yield from symbols_of(index)


# --- a kernel's loops, in the order of its memory

def in_memory_order(kernel: Kernel, buffers: Buffers) -> Kernel:
    """A kernel of plain loops over buffers in orders of their own: the same with their axes as they lie, its
    loops in the order in which the result lies, and constants that it walks across laid out anew."""
    orders = {b.name: b.order for b in kernel.arguments if b.order}
    if not orders:
        return kernel
    kernel = _permuted(kernel, orders)
    stores = [s for stage in kernel.stages for s in stage_stores(stage)]
    lead = next((s for s in stores if s.buffer.name in orders), stores[0])
    order = tuple(a.name for a in _sorted_along(kernel.shared, lead))
    if order != tuple(a.name for a in kernel.shared):
        kernel = steps.interchange(kernel, order)
    kernel = replace(kernel, stages=tuple(_stage_in_order(s, set(orders)) for s in kernel.stages))
    return _with_constants_along(kernel, buffers)


def _stage_in_order(stage: Stage | Sort, laid: set[str]) -> Stage | Sort:
    """The loops of a map as its result lies, those of a reduction as what it reads does."""
    if isinstance(stage, Sort) or stage.running:
        return stage
    loads = [x for x in walk(*values_of(stage)) if isinstance(x, Load) and x.buffer.name in laid]
    lead = next(iter(loads), None) if stage.combine else stage.store
    return stage if lead is None else replace(stage, axes=_sorted_along(stage.axes, lead))


def _sorted_along(axes: tuple[Axis, ...], access: Load | Store) -> tuple[Axis, ...]:
    """Axes in the order in which an index has them; those it does not have come first."""
    def place(axis: Axis) -> int:
        return next((k for k, i in enumerate(access.index) if axis.name in _names(i)), -1)
    return tuple(sorted(axes, key=place))


def _permuted(kernel: Kernel, orders: Mapping[str, tuple[int, ...]]) -> Kernel:
    """The kernel with the axes of buffers, and indices into them, in another order."""
    def moved(buffer: Buffer) -> Buffer:
        order = orders.get(buffer.name)
        if order is None:
            return buffer
        shape = tuple(buffer.shape[k] for k in order)
        return replace(buffer, type=buffer.type.with_shape(shape), order=())

    def load(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Load) or scalar.buffer.name not in orders:
            return scalar
        index = tuple(scalar.index[k] for k in orders[scalar.buffer.name])
        return replace(scalar, buffer=moved(scalar.buffer), index=index)

    class Permute(Rebuilder):
        def store(self, store: Store | None) -> Store | None:
            made = super().store(store)
            if made is None or made.buffer.name not in orders:
                return made
            index = tuple(made.index[k] for k in orders[made.buffer.name])
            return replace(made, buffer=moved(made.buffer), index=index)

    kernel = rebuild_kernel(kernel, Permute(scalar=load))
    return replace(kernel, inputs=tuple(map(moved, kernel.inputs)), outputs=tuple(map(moved, kernel.outputs)),
                   rows=tuple(map(moved, kernel.rows)))


def _with_constants_along(kernel: Kernel, buffers: Buffers) -> Kernel:
    """Constants with the axis innermost that the innermost shared loop walks along; where that is none of
    theirs, that of the reduction's innermost loop."""
    axes = [nest[-1].name for nest in (kernel.shared, *map(stage_axes, kernel.stages)) if nest]
    loads = [x for s in kernel.stages for x in walk(*values_of(s)) if isinstance(x, Load)]
    orders: dict[str, tuple[int, ...]] = {}
    for load in loads:
        axis = next((a for a in axes if any(a in _names(i) for i in load.index)), "")
        at = [k for k, i in enumerate(load.index) if axis in _names(i)]
        stride = stride_along(Access(load.buffer, load.index), axis)
        is_known = buffers.is_constant(load.buffer) and load.buffer.name not in buffers.views
        if is_known and len(at) == 1 and is_static(stride) and stride > 1:
            orders[load.buffer.name] = (*(k for k in range(len(load.index)) if k != at[0]), at[0])
    laid = {name: _laid_constant(buffers, name, order) for name, order in orders.items()}
    permuted = _permuted(kernel, orders)
    return replace_buffers(permuted, laid) if laid else kernel


def _laid_constant(buffers: Buffers, name: str, order: tuple[int, ...]) -> Buffer:
    old = buffers.by_name[name]
    type_ = old.type.with_shape([old.type.shape[k] for k in order])
    made = Buffer(f"{name}_laid{len(buffers.scratch)}", type_)
    return buffers.add(made, transposed(buffers.constants[name], order))
