"""Every rule passes its machine check; rules that are wrong are refused with a counterexample."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import UnsoundRule
from planish.ir import constant, input_node
from planish.ops.rules import ops
from planish.passes import PIPELINE
from planish.rewrite import Rule, const, rule, variables
from planish.rewrite.check import CHECKED, check_rule, is_close, matching_nodes, same_bits
from planish.rewrite.guards import is_float
from planish.rewrite.rules import ALL_RULES, FAMILIES
from planish.types import BOOL, FLOAT32, UINT8, TensorType

x, y = variables("x y")
c = const("c")


@pytest.mark.parametrize("one", ALL_RULES, ids=lambda r: r.name)
def test_rule_is_sound(one: Rule) -> None:
    report = check_rule(one)
    assert report.instances >= 2 and report.comparisons >= 8


@pytest.mark.parametrize(("wrong", "complaint"), [
    (rule("add_zero", x + 0, x), "changes the answer"),                                       # -0.0
    (rule("sub_self", x - x, 0, numerics="fast"), "changes the answer"),                      # inf, NaN
    (rule("mul_zero", x * 0, 0, numerics="fast"), "changes the answer"),                      # inf, NaN, -0.0
    (rule("div_self", x / x, 1, numerics="fast"), "changes the answer"),                      # 0, inf, NaN
    (rule("div_constant", x / c, lambda m: ops.mul(m.x, constant(1 / m.c.attributes.array))),
     "changes the answer"),
    (rule("pow_half", ops.pow(x, 0.5), ops.sqrt(x), numerics="fast"), "changes the answer"),  # -inf
    (rule("where_is_maximum", ops.select(x > 0, x, 0), ops.maximum(x, 0), when=is_float(x), numerics="fast"),
     "changes the answer"),                                                                   # NaN
    (rule("maximum_maximum", ops.maximum(ops.maximum(x, y), y), ops.maximum(x, y)),
     "changes the answer"),  # -0.0, +0.0
    (rule("abs_neg_unsigned", ops.abs(-x), ops.abs(x)), "changes the answer"),                # uint8
    (rule("sum_sum", ops.reduce_sum(ops.reduce_sum(x).named("inner")),
          lambda m: ops.reduce_sum(m.x, axes=m.inner.attributes.axes, keepdims=False)), "made|changes"),
    (rule("fmax_is_maximum", ops.abs(ops.fmax(x, y)), ops.maximum(ops.abs(x), y), numerics="fast"),
     "changes the answer|cost"),
    (rule("commute", x + y, y + x), "does not lower the cost"),
    (rule("grow", x * 1, x * 1 + 0.0), "does not lower the cost"),
    (rule("never", ops.tanh(x), x, when=lambda m: "never"), "fires on no random instance"),
], ids=lambda value: value.name if isinstance(value, Rule) else "")
def test_unsound_rule_is_refused(wrong: Rule, complaint: str) -> None:
    with pytest.raises((UnsoundRule, TypeError), match=complaint):
        check_rule(wrong)


def test_a_cast_that_would_be_broadcast_does_not_take_the_place_of_a_selection() -> None:
    one, = (r for r in ALL_RULES if r.name == "select_one_zero")
    yes, no = (constant(np.int64([v])) for v in (1, 0))
    assert one.apply(ops.select(input_node("c", TensorType(BOOL, (1,))), yes, no), {}) is not None
    assert one.apply(ops.select(input_node("c", TensorType(BOOL, ())), yes, no), {}) is None


def test_a_sigmoid_that_is_broadcast_stays_outside_its_product() -> None:
    one, = (r for r in ALL_RULES if r.name == "gate_of_scaled")
    large, small = (input_node("u", TensorType(FLOAT32, shape)) for shape in ((4, 8), (4, 1)))
    assert one.apply(large * ops.sigmoid(large * 0.3), {}) is not None
    assert one.apply(large * ops.sigmoid(small * 0.3), {}) is None


def test_counterexample_shows_values_and_graphs() -> None:
    with pytest.raises(UnsoundRule) as refusal:
        check_rule(rule("add_zero", x + 0, x))
    text = str(refusal.value)
    assert "rule add_zero (exact) changes the answer at" in text
    assert "-0.0" in text and text.count("graph graph(") == 2 and "with\n  x1 =" in text


def test_same_bits_tells_zeros_apart_and_takes_any_nan() -> None:
    a = np.array([0.0, -0.0, np.nan, 1.0, np.inf], np.float32)
    b = np.array([-0.0, -0.0, -np.nan, 1.0, -np.inf], np.float32)
    assert same_bits(a, b).tolist() == [False, True, True, True, False]
    assert is_close(a, b, 0.0, 0.0).tolist() == [True, True, True, True, False]
    assert not is_close(np.float32(np.nan), np.float32(1), 1.0, 1.0)


def test_the_pipeline_has_no_other_rules() -> None:
    assert {one for a_pass in PIPELINE for one in getattr(a_pass, "rules", ())} == set(ALL_RULES)


def test_names_are_unique_and_every_inexact_rule_says_why() -> None:
    assert len({one.name for one in ALL_RULES}) == len(ALL_RULES)
    assert not [one.name for one in ALL_RULES if one.numerics == "fast" and not one.relies_on
                and "_float" not in one.name]
    assert all(FAMILIES.values())


def test_instances_cover_dtypes_broadcasting_and_empty_shapes() -> None:
    rng = np.random.default_rng(0)
    product = rule("product", x * y, x)
    object.__setattr__(product, "result", lambda m: m.root.operands[0] * m.root.operands[1])
    nodes = [n for d in CHECKED for n in matching_nodes(product, rng, d, 30, 60)]
    shapes = [n.shape for n in nodes]
    assert any(0 in s for s in shapes) and any(1 in s for s in shapes) and () in shapes
    assert any(a.shape != b.shape for a, b in (n.operands for n in nodes))
    assert {FLOAT32, UINT8} <= {n.dtype for n in nodes}
