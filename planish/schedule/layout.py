"""Layouts: in which order a value's axes lie in memory, chosen for the contraction that writes it.

In: fused kernels. Out: the same kernels with the buffers of some intermediate values laid out so that a
contraction can take its constant weights as the packed right operand and store whole vectors (a convolution's
channels innermost). Inputs, outputs and values that are also looked at in another shape keep their row-major
order.
"""
from __future__ import annotations

from dataclasses import replace

from planish.schedule.buffers import Buffers
from planish.schedule.contraction import Roles, choose_roles, contraction_of
from planish.schedule.kernel import Buffer, Kernel, Store, stage_stores
from planish.schedule.rebuild import replace_buffers
from planish.schedule.scalars import is_dim
from planish.types import symbols_of


def assign_layouts(kernels: list[Kernel], buffers: Buffers, fixed: set[str], hint: dict[str, int],
                   decisions: list[str]) -> list[Kernel]:
    """`fixed` names buffers whose order the caller sees. A line is added to `decisions` for each that
    changes."""
    fixed = fixed | set(buffers.views.values()) | set(buffers.constants)
    changed: dict[str, Buffer] = {}
    for kernel in kernels:
        for buffer in _better_orders(kernel, buffers, fixed, hint):
            changed[buffer.name] = buffer
            decisions.append(f"layout of {buffer.name} {buffer.type}: axes {buffer.order}, for {kernel.name}")
    if not changed:
        return kernels
    buffers.of = {n: changed.get(b.name, b) for n, b in buffers.of.items()}
    return [replace_buffers(k, changed) for k in kernels]


def _better_orders(kernel: Kernel, buffers: Buffers, fixed: set[str], hint: dict[str, int]) -> list[Buffer]:
    if contraction_of(kernel) is None:
        return []
    stores = [store for s in kernel.stages for store in stage_stores(s)]
    if any(s.buffer.name in fixed or s.buffer.order for s in stores):
        return []
    now = choose_roles(kernel, hint, buffers)
    if now is None or buffers.is_constant(now.rhs.buffer):
        return []
    free = choose_roles(kernel, hint, buffers, any_order=True)
    if free is None or free.n == now.n or not buffers.is_constant(free.rhs.buffer):
        return []
    orders = [_innermost(s, free) for s in stores]
    return [replace(s.buffer, order=o) for s, o in zip(stores, orders) if o] if all(orders) else []


def _innermost(store: Store, roles: Roles) -> tuple[int, ...]:
    """The order with the axis that follows n innermost; () when no axis is n alone."""
    at = [k for k, i in enumerate(store.index) if is_dim(i) and roles.n in symbols_of(i)]
    if len(at) != 1:
        return ()
    others = [k for k in range(len(store.index)) if k != at[0]]
    return (*others, at[0])
