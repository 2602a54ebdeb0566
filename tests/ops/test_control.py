"""Control flow on graphs: type rules and meanings."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish import ops
from planish.errors import TypeRuleError
from planish.ir import Graph, input_node, interpret
from planish.ir.graph import build_graph
from planish.types import BOOL, FLOAT32, INT64, TensorType

VECTOR, COUNT, PRED = TensorType(FLOAT32, (3,)), TensorType(INT64), TensorType(BOOL)


def run(op: Any, arrays: tuple[np.ndarray, ...], types: tuple[TensorType, ...],
        **attributes: Any) -> tuple[np.ndarray, ...]:
    nodes = tuple(input_node(f"x{i}", t) for i, t in enumerate(types))
    return interpret(Graph(nodes, op(*nodes, **attributes)), arrays)


def test_cond_runs_one_side() -> None:
    attributes = {"then_graph": build_graph(lambda x: ops.mul(x, 2), VECTOR),
                  "else_graph": build_graph(ops.neg, VECTOR)}
    x = np.array([1, 2, 3], np.float32)
    for pred, expected in ((True, x * 2), (False, -x)):
        result, = run(ops.cond, (np.array(pred), x), (PRED, VECTOR), **attributes)
        np.testing.assert_array_equal(result, expected)


def test_while_loop_runs_until_the_condition_fails() -> None:
    condition = build_graph(lambda i, x: ops.lt(i, 5), COUNT, VECTOR)
    body = build_graph(lambda i, x: (ops.add(i, 1), ops.mul(x, 2)), COUNT, VECTOR)
    for start, times in ((0, 5), (4, 1), (9, 0)):
        i, x = run(ops.while_loop, (np.array(start), np.ones(3, np.float32)), (COUNT, VECTOR),
                   condition=condition, body=body)
        assert i == max(start, 5) and x.tolist() == [2.0 ** times] * 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_scan_loop_carries_and_stacks(reverse: bool, length: int) -> None:
    """The carry is the sum; the stacked results are the running sums."""
    body = build_graph(lambda c, x: (ops.add(c, x), ops.add(c, x)), VECTOR, VECTOR)
    xs = np.random.default_rng(0).integers(0, 9, (length, 3)).astype(np.float32)
    carry, ys = run(ops.scan_loop, (np.zeros(3, np.float32), xs), (VECTOR, TensorType(FLOAT32, (length, 3))),
                    body=body, length=length, carries=1, reverse=reverse)
    np.testing.assert_array_equal(carry, xs.sum(axis=0))
    np.testing.assert_array_equal(ys, ops.cumsum(xs, axis=0, reverse=reverse))


def test_messages() -> None:
    double, other = build_graph(lambda x: ops.mul(x, 2), VECTOR), build_graph(lambda x: ops.lt(x, 2), VECTOR)
    x, p = input_node("x", VECTOR), input_node("p", PRED)
    with pytest.raises(TypeRuleError) as caught:
        ops.cond(p, x, then_graph=double, else_graph=other)
    assert str(caught.value) == "cond(bool[], f32[3]): the result of else_graph is (bool[3]), to be (f32[3])"
    with pytest.raises(TypeRuleError) as caught:
        ops.while_loop(x, condition=other, body=double)
    assert str(caught.value) == "while_loop(f32[3]): the condition is to be a bool scalar, not bool[3]"
    with pytest.raises(TypeRuleError) as caught:
        ops.scan_loop(x, body=double, length=4, carries=0)
    assert str(caught.value) == "scan_loop(f32[3]): f32[3] is to have the length 4 along axis 0"
