"""Reductions. Merging is exact where the operation on values is associative: any, all, and everything on
integers.

Of floats, max and min show the order only in the sign of a zero (`default`). Sums change their order of
rounding: under a transpose by as much as any other blocked sum (`default`), merged more freely (`fast`).
Dropping a sum over one element is `fast` too: NumPy's sum of a single -0.0 is +0.0.
"""
from __future__ import annotations

from planish.ir import Node
from planish.ops import get_op
from planish.ops.rules import ops
from planish.rewrite.guards import every, is_bits, is_float
from planish.rewrite.pattern import variables
from planish.rewrite.rule import Guard, Match, Rule, RuleClass, rule
from planish.types import Shape

(x,) = variables("x")
TRUTHS = ("reduce_any", "reduce_all")
EXTREMA = ("reduce_max", "reduce_min")
SUMS = ("reduce_sum", "reduce_prod")


def _reduces_ones(match: Match) -> bool | str:
    ones = all(match.x.shape[a] == 1 for a in match.root.attributes.axes)
    return ones or "it reduces an axis of more than one element"


def _reshaped(match: Match) -> Node:
    return ops.reshape(match.x, shape=match.root.shape)


def _both_axes(match: Match) -> tuple[int, ...]:
    """The axes of x that either reduction takes."""
    inner, outer = match.inner.attributes, match.root.attributes
    left = [i for i in range(match.x.ndim) if inner.keepdims or i not in inner.axes]
    return tuple(sorted({*inner.axes, *(left[a] for a in outer.axes)}))


def _merged(match: Match) -> Node:
    made = match.root.op(match.x, axes=_both_axes(match), keepdims=match.root.attributes.keepdims)
    return made if made.shape == match.root.shape else ops.reshape(made, shape=match.root.shape)


def _other_shape(match: Match) -> Shape:
    """The shape the inner reduction would have with `keepdims` turned round."""
    a = match.inner.attributes
    if a.keepdims:
        return tuple(d for i, d in enumerate(match.inner.shape) if i not in a.axes)
    return tuple(1 if i in a.axes else d for i, d in enumerate(match.x.shape))


def _turned(match: Match) -> Node:
    a = match.inner.attributes
    return match.inner.op(match.x, axes=a.axes, keepdims=not a.keepdims)


def _axes_stay_in_order(match: Match) -> bool | str:
    """The axes that are left come in their old order, so the reduction of x itself has the right shape."""
    axes, taken = match.inner.attributes.axes, match.root.attributes.axes
    left = [axes[i] for i in range(len(axes)) if i not in taken]
    if match.root.attributes.keepdims:
        return "it keeps the axes it reduces"
    return left == sorted(left) or "the axes left are out of order"


def _under_transpose(match: Match) -> Node:
    axes = match.inner.attributes.axes
    return match.root.op(match.x, axes=tuple(sorted(axes[a] for a in match.root.attributes.axes)),
                         keepdims=False)


def _rules_of(name: str, suffix: str, when: Guard | None, one: RuleClass, merge: RuleClass,
              reorder: RuleClass) -> tuple[Rule, ...]:
    """The rules of one reduction and the class of each."""
    op = get_op(name)
    guards = (when,) if when else ()
    return (
        rule(f"{name}_of_one{suffix}", op(x), _reshaped, when=every(*guards, _reduces_ones), numerics=one),
        rule(f"{name}_{name}{suffix}", op(op(x).used_once("inner")), _merged, when=every(*guards),
             numerics=merge),
        rule(f"{name}_transpose{suffix}", op(ops.transpose(x).named("inner")), _under_transpose,
             when=every(*guards, _axes_stay_in_order), numerics=reorder),
    )


REDUCE = (
    *(one for name in TRUTHS for one in _rules_of(name, "", None, "exact", "exact", "exact")),
    *(one for name in EXTREMA + SUMS
      for one in _rules_of(name, "_integer", is_bits(x), "exact", "exact", "exact")),
    *(one for name in EXTREMA
      for one in _rules_of(name, "_float", is_float(x), "exact", "default", "default")),
    *(one for name in SUMS for one in _rules_of(name, "_float", is_float(x), "fast", "fast", "default")),
    *(rule(f"reshape_{name}", ops.reshape(get_op(name)(x).used_once("inner")), _turned,
           when=lambda m: _other_shape(m) == m.root.shape or "the shape is not that of the other keepdims")
      for name in TRUTHS + EXTREMA + SUMS),
)
