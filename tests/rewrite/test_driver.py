"""The driver: fixed point, sharing, fuel, provenance, and work in proportion to the graph."""
from __future__ import annotations

import logging

import numpy as np
import pytest

from planish.errors import FuelExhausted
from planish.ir import Graph, Location, Note, constant, input_node
from planish.ops.rules import ops
from planish.rewrite import Rules, apply_steps, rule, variables
from planish.rewrite.rules import ALGEBRA
from planish.types import FLOAT32, TensorType

x, y = variables("x y")
a = input_node("a", TensorType(FLOAT32, (4,)))
MUL_ONE = rule("mul_one", x * 1, x)
NEG_NEG = rule("neg_neg", ops.neg(ops.neg(x)), x)
ALTERNATING = Rules([rule("there", ops.sinh(x), ops.cosh(x)), rule("back", ops.cosh(x), ops.sinh(x))],
                    "strict")
WRAPPING = Rules([rule("wrap", ops.tanh(x), lambda m: m.root * 2)], "strict")
GROWING = Rules([rule("grow", ops.tanh(x), lambda m: ops.tanh(ops.exp(m.x)))], "strict")


def graph(*outputs: object) -> Graph:
    return Graph((a,), outputs)


def test_reaches_a_fixed_point_through_what_rules_make() -> None:
    node = a
    for _ in range(50):
        node = ops.neg(ops.neg(node * 1))
    after, fired = apply_steps(graph(node), Rules([MUL_ONE, NEG_NEG]).step)
    assert after.outputs == (a,)
    assert fired == {"mul_one": 1, "neg_neg": 1}   # 50 layers become one and the same


def test_deep_graphs_do_not_overflow_the_stack() -> None:
    node = a
    for _ in range(4_000):
        node = ops.tanh(node) + 1.0
    after, fired = apply_steps(graph(node * 1), Rules(ALGEBRA).step)
    assert after.outputs == (node,) and fired == {"mul_one": 1}


def test_each_node_is_seen_once_however_often_it_is_used() -> None:
    seen = []
    node = a * 1
    for _ in range(60):   # 2^60 paths
        node = node + node

    def step(node, uses):
        seen.append(node)
        return Rules([MUL_ONE]).step(node, uses)
    after, fired = apply_steps(graph(node), step)
    assert fired == {"mul_one": 1} and len(seen) < 200
    assert len(after.nodes()) == 61


@pytest.mark.parametrize(("rules", "names"), [(ALTERNATING, "there, back"), (GROWING, "grow"),
                                              (WRAPPING, "wrap")])
def test_rewriting_without_end_is_stopped(rules: Rules, names: str, caplog: pytest.LogCaptureFixture) -> None:
    node = ops.sinh(ops.tanh(a))
    with pytest.raises(FuelExhausted, match=f"did not end; the rules at work last: {names}"):
        apply_steps(graph(node), rules.step, fuel=40, strict_fuel=True)
    with caplog.at_level(logging.WARNING, "planish.rewrite"):
        after, _ = apply_steps(graph(node), rules.step, fuel=40)
    assert names in caplog.text and after.outputs[0].type == node.type


def test_fuel_counts_firings() -> None:
    node = ops.tanh(ops.tanh(a * 1) * 1) * 1
    after, fired = apply_steps(graph(node), Rules([MUL_ONE]).step, fuel=2)
    assert fired == {"mul_one": 2} and after.outputs[0] is ops.tanh(ops.tanh(a)) * 1


def test_new_nodes_remember_the_rule_and_the_line_of_the_old_one() -> None:
    old = ops.pow(a, 3.0)
    noted = graph(old).with_notes({old: Note(Location("user.py", 7))})
    after, _ = apply_steps(noted, Rules(ALGEBRA, "fast").step)
    made = after.outputs[0]
    assert after.note(made) == Note(Location("user.py", 7), ("pow_three",))
    assert after.note(made.operands[0]).rules == ("pow_three",)
    untouched, _ = apply_steps(graph(a * 1), Rules(ALGEBRA).step)
    assert untouched.note(a).rules == ()   # it was there before the rule


def test_observer_sees_every_firing() -> None:
    seen = []
    node = ops.tanh(a * 1)
    apply_steps(graph(node * 1), Rules([MUL_ONE]).step, observe=lambda *firing: seen.append(firing))
    assert seen == [("mul_one", a * 1, a), ("mul_one", ops.tanh(a) * 1, ops.tanh(a))]


def test_numerics_and_disable_choose_the_rules() -> None:
    node = a + 0.0
    for numerics, disable, fires in (("strict", "", 0), ("default", "", 0), ("fast", "", 1),
                                     ("fast", "add_zero", 0)):
        _, fired = apply_steps(graph(node), Rules(ALGEBRA, numerics, frozenset({disable})).step)
        assert fired["add_zero"] == fires


def test_effects_are_rewritten_and_kept_in_order() -> None:
    first = ops.check(ops.reduce_all(ops.is_finite(a * 1), axes=(0,)), error="ValueError", message="first")
    second = ops.check(constant(np.True_), error="ValueError", message="second")
    after, _ = apply_steps(Graph((a,), (a,), (first, second)), Rules([MUL_ONE]).step)
    assert [e.attributes.message for e in after.effects] == ["first", "second"]
    assert after.effects[0].operands[0] is ops.reduce_all(ops.is_finite(a), axes=(0,))


def test_simplified_graphs_stay_as_they_are() -> None:
    rng = np.random.default_rng(0)
    layers = [lambda n: n * 1, lambda n: ops.neg(ops.neg(n)), ops.tanh, lambda n: n - 0, lambda n: n
              + n * 1.5]
    node = a
    for _ in range(100):
        node = layers[rng.integers(5)](node)
    once, fired = apply_steps(graph(node), Rules(ALGEBRA).step, strict_fuel=True)
    again, fired_again = apply_steps(once, Rules(ALGEBRA).step, strict_fuel=True)
    assert fired and not fired_again and again.outputs == once.outputs
