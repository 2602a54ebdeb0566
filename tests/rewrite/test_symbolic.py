"""Rules on symbolic sizes: they fire where sizes are provably equal, and keep the answer at every size."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planish.ir import Graph, Node, interpret, verify
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.rewrite import Rules, apply_steps
from planish.rewrite.rules import ALL_RULES
from planish.types import FLOAT32, INT32, TensorType, symbol

N, M = symbol("N"), symbol("M", 1)


def part(x: Node, axis: int, start: object, stop: object) -> Node:
    starts = tuple(start if i == axis else 0 for i in range(x.ndim))
    stops = tuple(stop if i == axis else d for i, d in enumerate(x.shape))
    return ops.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)


CASES: dict[str, Callable[[Node, Node], Node]] = {
    "reshape_reshape": lambda x, y: ops.reshape(ops.reshape(x, shape=(N * 4,)), shape=(4, N)),
    "reshape_to_own": lambda x, y: ops.reshape(ops.reshape(x, shape=(N * 4,)), shape=(N, 4)),
    "transpose_transpose": lambda x, y: ops.transpose(ops.transpose(x, axes=(1, 0)), axes=(1, 0)),
    "transposes_around_pointwise": lambda x, y: ops.transpose(ops.tanh(ops.transpose(x, axes=(1, 0))),
                                                              axes=(1, 0)),
    "hoist_transposes": lambda x, y: ops.transpose(x, axes=(1, 0)) + ops.transpose(x * x, axes=(1, 0)),
    "drop_broadcast": lambda x, y: x + ops.broadcast_to(part(y, 0, 0, 1), shape=(N, 4)),
    "broadcast_last": lambda x, y: ops.exp(ops.broadcast_to(part(y, 0, 0, 1), shape=(N, 4))),
    "slice_concat": lambda x, y: part(ops.concat(x, y, x, axis=0), 0, N, N + M),
    "concat_slices": lambda x, y: ops.concat(part(y, 0, 0, M - 1), part(y, 0, M - 1, M), axis=0),
    "slice_pad": lambda x, y: part(ops.pad(x, part_scalar(y), low=(2, 0), high=(M, 0)), 0, 2, N + 2),
    "reduce_max_reduce_max_float": lambda x, y: ops.reduce_max(ops.reduce_max(y, axes=(1,)), axes=(0,)),
    "reduce_sum_transpose_float": lambda x, y: ops.reduce_sum(ops.transpose(x, axes=(1, 0)), axes=(0,)),
    "reshape_reduce_sum": lambda x, y: ops.reshape(ops.reduce_sum(x, axes=(1,), keepdims=True), shape=(N,)),
    "dot_transpose_right": lambda x, y: ops.dot_general(x, ops.transpose(y, axes=(1, 0)), lhs_contract=(1,),
                                                        rhs_contract=(0,)),
    "transpose_dot": lambda x, y: ops.transpose(ops.dot_general(x, y, lhs_contract=(1,), rhs_contract=(1,)),
                                                axes=(1, 0)),
    "scale_into_alpha": lambda x, y: ops.dot_general(x, y, lhs_contract=(1,), rhs_contract=(1,)) * 0.5,
    "mul_zero": lambda x, y: ops.cast(x, dtype=INT32) * ops.cast(x * 0 + 1, dtype=INT32) * 0,
}


def part_scalar(y: Node) -> Node:
    return ops.reduce_max(y, axes=(0, 1))


def graph_of(name: str) -> Graph:
    return build_graph(CASES[name], TensorType(FLOAT32, (N, 4)), TensorType(FLOAT32, (M, 4)))


@pytest.mark.parametrize("name", CASES)
def test_rule_fires_and_keeps_the_answer_at_every_size(name: str) -> None:
    before = graph_of(name)
    after, fired = apply_steps(before, Rules(ALL_RULES, "default").step, strict_fuel=True)
    assert fired[name] >= 1
    verify(after)
    rng = np.random.default_rng(3)
    for n, m in ((1, 1), (2, 3), (5, 2), (0, 4)):
        inputs = [rng.normal(size=(k, 4)).astype(np.float32) for k in (n, m)]
        np.testing.assert_allclose(interpret(after, inputs)[0], interpret(before, inputs)[0], rtol=1e-5,
                                   atol=1e-6)


@pytest.mark.parametrize("program", [
    lambda x, y: ops.reshape(ops.reduce_sum(x, axes=(1,), keepdims=True), shape=(1, N)),
    lambda x, y: part(ops.concat(x, y, axis=0), 0, 1, N + 1),          # it takes of both
    lambda x, y: ops.concat(x, y, axis=0),
    lambda x, y: part(y, 0, 0, 1),                                     # all of y only where M is 1
    lambda x, y: ops.transpose(x, axes=(1, 0)),                        # in order only where N is 1
])
def test_nothing_fires_where_sizes_only_may_be_equal(program: Callable[[Node, Node], Node]) -> None:
    before = build_graph(program, TensorType(FLOAT32, (N, 4)), TensorType(FLOAT32, (M, 4)))
    after, fired = apply_steps(before, Rules(ALL_RULES, "fast").step, strict_fuel=True)
    assert not fired and after.outputs == before.outputs
