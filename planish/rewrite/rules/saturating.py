"""The functions that saturate, tanh and sigmoid: what is around them, or in them, written with fewer ops.

1 + tanh(u) is 2 sigmoid(2u). As a float the sum keeps nothing of its digits where u is far below zero; the
sigmoid keeps all, so the rules are `default` in the direction of the better answer. Ends: either is 0 or 1,
and inf * 0 stays NaN. What goes into a sigmoid may be rounded in another order, as long as it overflows to
the same side: beyond 100 nothing moves the result. x times a sigmoid is one op, `gate`, where
the change of base costs nothing: a factor of the argument is a constant. float32 alone: the check measures
both sides in float64.
"""
from __future__ import annotations

from collections.abc import Callable
from math import frexp, log

import numpy as np

from planish.ir import Node, constant, input_node
from planish.ops.rules import ops
from planish.rewrite.guards import every, is_float32, is_normal_in, is_uniform, number
from planish.rewrite.pattern import Variable, const, variables
from planish.rewrite.rule import Guard, Match, rule
from planish.types import DType, TensorType

x, u, w = variables("x u w")
a, b = const("a"), const("b")
_tanh = ops.tanh(u).used_once("tanh")
_gate = ops.add(_tanh, 1).used_once("gate")


def _gated(match: Match) -> Node:
    return ops.mul(match.x, ops.sigmoid(match.u * 2))


# --- constants

def _product(match: Match) -> Node:
    """a * b, as one rounding of the numbers."""
    return constant(number(match.a) * number(match.b), match.root.dtype)


def _is_power_of_two(match: Match) -> bool | str:
    return abs(frexp(number(match.b))[0]) == 0.5 or f"{number(match.b)} is not a power of two"


def _product_is_normal(match: Match) -> bool | str:
    made = number(match.a) * number(match.b)
    return is_normal_in(made, match.root.dtype) or f"{made} is not a normal number"


# --- x + b x^3, as it is in the gelu by tanh

def _by_horner(match: Match) -> Node:
    """a (x + b x^3) = x (a + a b x^2)"""
    scale = constant(number(match.a), match.x.dtype)
    return ops.sigmoid(match.x * ops.fma(match.x * match.x, _product(match), scale))


def _cubic(form: Callable[[Node, Node], Node]) -> Callable[[np.random.Generator, DType], Node]:
    """An example for the check, with constants for which the sigmoid is not all ends."""
    def example(rng: np.random.Generator, dtype: DType) -> Node:
        at = input_node("x", TensorType(dtype, (3, 2)))
        coefficient = constant(rng.uniform(0.01, 0.1), dtype)
        return ops.sigmoid((at + form(at, coefficient)) * constant(rng.uniform(0.1, 2), dtype))
    return example


_CUBES: dict[str, Callable[..., Node]] = {
    "x_x_x_b": lambda x, b: ((x * x) * x) * b,
    "x_b_x_x": lambda x, b: ((x * b) * x) * x,
    "x_x_b_x": lambda x, b: ((x * x) * b) * x,
    "x_b_square": lambda x, b: (x * b) * (x * x),
}

# --- x sigmoid(u), where u has a constant factor

def _in_base_4(factor: Node) -> Node:
    """A constant factor of what goes into a sigmoid, for the power of 4 in the place of that of e."""
    return constant(number(factor) / log(4), factor.dtype)


def _stays_normal(pattern: Variable) -> Guard:
    def guard(match: Match) -> bool | str:
        made = number(match.bound[pattern.name]) / log(4)
        return is_normal_in(made, match.root.dtype) or f"{made} is not a normal number"
    return guard


def _is_as_large(match: Match) -> bool | str:
    return match.gate.shape == match.root.shape or "the sigmoid is of fewer elements than its product"


def _gate_of_scaled(match: Match) -> Node:
    """x sigmoid(a u) = x / (1 + 4^-(a log4(e) u))"""
    return ops.gate(match.x, match.u * _in_base_4(match.a))


def _gate_of_cubic(match: Match) -> Node:
    return ops.gate(match.x, match.u * ops.fma(match.w, _in_base_4(match.a), _in_base_4(match.b)))


SATURATING = (
    rule("half_of_gate", _gate * 0.5, lambda m: ops.sigmoid(m.u * 2), when=is_float32(u), numerics="default",
         relies_on="(1 + tanh(u)) / 2 = sigmoid(2 u)"),
    rule("half_tanh_and_half", (_tanh * 0.5).used_once("half") + 0.5, lambda m: ops.sigmoid(m.u * 2),
         when=is_float32(u), numerics="default", relies_on="as half_of_gate"),
    rule("gate_of_half", (x * 0.5) * _gate, _gated, when=is_float32(u), numerics="default",
         relies_on="as half_of_gate"),
    rule("half_of_gated", (x * _gate).used_once("gated") * 0.5, _gated, when=is_float32(u),
         numerics="default", relies_on="as half_of_gate"),
    rule("merge_power_of_two", (x * a).used_once("scaled") * b, lambda m: m.x * _product(m),
         when=every(is_float32(x), is_uniform(a), is_uniform(b), _is_power_of_two, _product_is_normal),
         numerics="default", relies_on="a power of two moves the exponent alone"),
    *(rule(f"sigmoid_of_{name}", ops.sigmoid((x + cube(x, b)) * a), _by_horner, example=_cubic(cube),
           when=every(is_float32(x), is_uniform(a), is_uniform(b), _product_is_normal), numerics="default",
           relies_on="x + b x^3 overflows where the sigmoid is at its end")
      for name, cube in _CUBES.items()),
    rule("gate_of_scaled", x * ops.sigmoid(u * a).used_once("gate"), _gate_of_scaled, numerics="default",
         when=every(is_float32(x), is_uniform(a), _stays_normal(a), _is_as_large),
         relies_on="e^y = 4^(y log4(e))"),
    rule("gate_of_cubic", x * ops.sigmoid(u * ops.fma(w, a, b).used_once("inner")).used_once("gate"),
         _gate_of_cubic, numerics="default", relies_on="as gate_of_scaled",
         when=every(is_float32(x), is_uniform(a), is_uniform(b), _stays_normal(a), _stays_normal(b),
                    _is_as_large)),
)
