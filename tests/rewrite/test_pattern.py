"""Patterns: what they match, what they bind, what they build, and why they do not match."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import TypeRuleError
from planish.ir import Node, constant, input_node
from planish.ops.rules import ops
from planish.rewrite import Rule, any_op, const, rule, several, uniform_value, variables
from planish.types import BOOL, FLOAT32, INT32, TensorType, symbol

x, y = variables("x y")
a, b = (input_node(n, TensorType(FLOAT32, (3, 4))) for n in "ab")


def bound(pattern: object, node: Node) -> dict | None:
    found = []
    probe = rule("probe", pattern, lambda m: found.append(dict(m.bound)) or m.root)
    probe.apply(node, {})
    return found[0] if found else None


def test_variables_bind_and_repeat_by_identity() -> None:
    assert bound(x - y, a - b) == {"x": a, "y": b}
    assert bound(x - x, a - b) is None
    assert bound(x - x, (a + b) - (a + b)) == {"x": a + b}


def test_commutative_operands_match_in_both_orders_at_every_depth() -> None:
    assert bound(x * 2, 2 * a) == {"x": a}
    assert bound((x * 2) + y, b + 2 * a) == {"x": a, "y": b}
    assert bound(x - 2, 2 - a) is None
    assert bound(ops.maximum(x, 0).in_order(), ops.maximum(0.0, a)) is None


@pytest.mark.parametrize(("number", "value", "matches"), [
    (1, 1.0, True), (0, -0.0, False), (-0.0, -0.0, True), (-0.0, 0.0, False), (0, 0.0, True),
    (2, 2.0000002, False),
    (1, np.nan, False),
])
def test_numbers_match_by_value_and_sign_of_zero(number: float, value: float, matches: bool) -> None:
    assert (bound(x + number, a + np.float32(value)) is not None) == matches


def test_numbers_match_everywhere_the_same_through_broadcasts() -> None:
    ones = ops.broadcast_to(constant(np.ones((1, 4), np.float32)), shape=(3, 4))
    assert bound(x * 1, a * ones) == {"x": a}
    assert bound(x * 1, a * constant(np.array([1, 1, 1, 2], np.float32))) is None
    assert uniform_value(constant(np.array([0.0, -0.0]))) is None
    assert uniform_value(constant(np.empty((0,)))) is None
    big = np.ones(100_000, np.float32)
    assert uniform_value(constant(big)) == 1
    big[5] = 0
    assert uniform_value(constant(big.copy())) is None


def test_true_matches_bool_alone() -> None:
    p = input_node("p", TensorType(BOOL, (3, 4)))
    assert bound(ops.select(x, True, False), ops.select(p, 1.0, a * 0 + 0)) is None
    assert bound(ops.select(x, 1, y), ops.select(p, constant(np.float32(1)), a)) == {"x": p, "y": a}
    assert bound(ops.select(x, True, y), ops.select(p, constant(np.float32(1)), a)) is None


def test_attributes_match_where_given() -> None:
    node = ops.reduce_sum(a, axes=(1,), keepdims=True)
    assert bound(ops.reduce_sum(x), node) == {"x": a}
    assert bound(ops.reduce_sum(x, keepdims=True), node) == {"x": a}
    assert bound(ops.reduce_sum(x, keepdims=False), node) is None


def test_names_constants_several_and_traits() -> None:
    inner = ops.transpose(a, axes=(1, 0))
    assert bound(ops.transpose(ops.transpose(x).named("inner")),
                 ops.transpose(inner, axes=(1, 0))) == {"x": a, "inner": inner}
    one = constant(np.float32(3))
    assert bound(x * const("c"), a * one) == {"x": a, "c": one}
    assert bound(ops.concat(several("xs")), ops.concat(a, b, a, axis=0)) == {"xs": (a, b, a)}
    assert bound(any_op("pointwise", "xs"), ops.tanh(a)) == {"xs": (a,)}
    assert bound(any_op("pointwise", "xs"), inner) is None


def test_a_node_with_other_users_is_refused_where_asked() -> None:
    inner = ops.exp(a)
    one = rule("log_exp", ops.log(ops.exp(x).used_once("inner")), x, numerics="fast")
    assert one.apply(ops.log(inner), {inner: 1}) is a
    assert one.apply(ops.log(inner), {inner: 2}) is None
    assert one.why(ops.log(inner), {inner: 2}) == "exp of f32[3, 4] has other users"


def test_results_keep_the_type() -> None:
    assert rule("mul_one", x * 1, x).apply(a * 1, {}) is a
    wide = constant(np.ones((2, 3, 4), np.float32))
    assert rule("mul_one", x * 1, x).apply(a * wide, {}) is ops.broadcast_to(a, shape=(2, 3, 4))
    assert rule("zero", x - x, 0).apply(a - a, {}).type == a.type
    n = symbol("N")
    d = input_node("d", TensorType(FLOAT32, (n, 4)))
    assert rule("zero", x - x, 0).apply(d - d, {}).shape == (n, 4)
    with pytest.raises(TypeRuleError, match=r"rule wrong made i32\[3, 4\] in place of f32\[3, 4\]"):
        rule("wrong", ops.tanh(x), lambda m: ops.cast(m.x, dtype=INT32)).apply(ops.tanh(a), {})


@pytest.mark.parametrize(("one", "node", "reason"), [
    (rule("mul_one", x * 1, x), a + 1, "add of f32[3, 4] is not mul(x, 1)"),
    (rule("mul_one", x * 1, x), a * 2, "constant of f32[] is not 1"),
    (rule("sub_self", x - x, 0), a - b, "input b is not x"),
    (rule("never", ops.tanh(x), x, when=lambda m: "it is Tuesday"), ops.tanh(a), "it is Tuesday"),
    (rule("mul_one", x * 1, x), 1 * a, ""),
])
def test_why(one: Rule, node: Node, reason: str) -> None:
    assert one.why(node) == reason


def test_a_pattern_needs_an_op_and_operands_it_knows() -> None:
    with pytest.raises(TypeError, match="to have an op at the root"):
        rule("bare", x, x)
    with pytest.raises(TypeError, match="str can't stand in a pattern"):
        ops.add(x, "one")
    one = rule("named", ops.tanh(x), lambda m: m.z)
    with pytest.raises(AttributeError, match="the pattern has no z; it has x"):
        one.apply(ops.tanh(a), {})
