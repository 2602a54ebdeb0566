"""Contractions: what stands around a `dot_general` goes into it.

A scale goes into `alpha`, which the kernel applies to the sum while it is in a register; transposes go into
the axes, which the kernel reads through anyway. Rounding to float16 comes after the scale then, not before:
within the tolerance of the op.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from planish.ir import Node
from planish.ir.node import make_node
from planish.ops.contract import DotAttributes, free_axes
from planish.ops.rules import ops
from planish.rewrite.guards import every, is_uniform, number
from planish.rewrite.pattern import const, variables
from planish.rewrite.rule import Match, rule

x, w = variables("x w")
c = const("c")
_dot = ops.dot_general(x, w).used_once("dot")


# --- scales

def _with_alpha(match: Match, factor: float) -> Node:
    """The same product, scaled; where the scale had more axes than the product, the driver broadcasts."""
    a: DotAttributes = match.dot.attributes
    return make_node(match.dot.op, match.dot.operands, replace(a, alpha=a.alpha * factor))


def _dot_is_float(match: Match) -> bool | str:
    return match.dot.dtype.is_float or f"{match.dot.dtype.name} has no alpha"


def _operand_scaled(match: Match) -> Node:
    a: DotAttributes = match.root.attributes
    return make_node(match.root.op, (match.x, match.w), replace(a, alpha=a.alpha * float(number(match.c))))


def _keeps_shape(match: Match) -> bool | str:
    return match.scaled.shape == match.x.shape or "the scale broadcasts its operand"


# --- transposes

def _axes_through(axes: tuple[int, ...], of: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes[i] for i in of)


def _free_in_order(axes: tuple[int, ...], *taken: tuple[int, ...]) -> bool | str:
    free = _axes_through(axes, free_axes(len(axes), *taken))
    return list(free) == sorted(free) or "the axes that are left over change places"


def _lhs_through(match: Match) -> Node:
    a, axes = match.root.attributes, match.inner.attributes.axes
    moved = replace(a, lhs_contract=_axes_through(axes, a.lhs_contract),
                    lhs_batch=_axes_through(axes, a.lhs_batch))
    return make_node(match.root.op, (match.x, match.w), moved)


def _rhs_through(match: Match) -> Node:
    a, axes = match.root.attributes, match.inner.attributes.axes
    moved = replace(a, rhs_contract=_axes_through(axes, a.rhs_contract),
                    rhs_batch=_axes_through(axes, a.rhs_batch))
    return make_node(match.root.op, (match.x, match.w), moved)


def _lhs_free_in_order(match: Match) -> bool | str:
    a = match.root.attributes
    return _free_in_order(match.inner.attributes.axes, a.lhs_contract, a.lhs_batch)


def _rhs_free_in_order(match: Match) -> bool | str:
    a = match.root.attributes
    return _free_in_order(match.inner.attributes.axes, a.rhs_contract, a.rhs_batch)


def _swaps_sides(match: Match) -> bool | str:
    """The transpose puts the axes of the right operand before those of the left, and moves no other."""
    a: Any = match.dot.attributes
    batch = len(a.lhs_batch)
    left = batch + match.x.ndim - batch - len(a.lhs_contract)
    rank = match.dot.ndim
    wanted = (*range(batch), *range(left, rank), *range(batch, left))
    return match.root.attributes.axes == wanted or "it is not the transpose of the product"


def _sides_swapped(match: Match) -> Node:
    a: Any = match.dot.attributes
    swapped = replace(a, lhs_contract=a.rhs_contract, rhs_contract=a.lhs_contract, lhs_batch=a.rhs_batch,
                      rhs_batch=a.lhs_batch)
    return make_node(match.dot.op, (match.w, match.x), swapped)


CONTRACT_TRANSPOSES = (
    rule("dot_transpose_left", ops.dot_general(ops.transpose(x).named("inner"), w), _lhs_through,
         when=_lhs_free_in_order,
         numerics="default", relies_on="the sum may run in another order"),
    rule("dot_transpose_right", ops.dot_general(x, ops.transpose(w).named("inner")),
         lambda m: _rhs_through(m), when=_rhs_free_in_order, numerics="default",
         relies_on="as dot_transpose_left"),
    rule("transpose_dot", ops.transpose(_dot), _sides_swapped, when=_swaps_sides, numerics="default",
         relies_on="(A B)^T = B^T A^T"),
)

FOLD_SCALE = (
    rule("scale_into_alpha", _dot * c, lambda m: _with_alpha(m, float(number(m.c))),
         when=every(_dot_is_float, is_uniform(c)),
         numerics="default", relies_on="one rounding for two"),
    rule("divisor_into_alpha", _dot / c, lambda m: _with_alpha(m, 1.0 / float(number(m.c))),
         when=every(_dot_is_float, is_uniform(c), lambda m: number(m.c) != 0 or "it divides by 0"),
         numerics="fast",
         relies_on="1 / c is rounded"),
    rule("neg_into_alpha", -_dot, lambda m: _with_alpha(m, -1.0), when=_dot_is_float),
    rule("left_scale_into_alpha", ops.dot_general((x * c).named("scaled"), w), _operand_scaled,
         when=every(is_uniform(c), lambda m: m.x.dtype.is_float or "integers have no alpha", _keeps_shape),
         numerics="fast",
         relies_on="c is taken out of the sum"),
    rule("right_scale_into_alpha", ops.dot_general(x, (w * c).named("scaled")), _operand_scaled,
         when=every(is_uniform(c), lambda m: m.w.dtype.is_float or "integers have no alpha",
                    lambda m: m.scaled.shape == m.w.shape or "the scale broadcasts its operand"),
                    numerics="fast",
         relies_on="c is taken out of the sum"),
)
