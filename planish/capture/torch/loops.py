"""Loops inside a translation: one step, again and again, over whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planish.ir import Graph, Node, constant, input_node
from planish.ops.rules import ops

Step = Callable[..., Sequence[Node]]
Condition = Callable[..., Node]


def repeat_while(
    condition: Condition, step: Step, state: Sequence[Node], fixed: Sequence[Node] = ()
) -> tuple[Node, ...]:
    """The state after state = step(*state, *fixed) as long as condition(*state, *fixed) holds anywhere."""
    held = (*state, *fixed)
    inputs = tuple(input_node(f"s{i}", x.tensor) for i, x in enumerate(held))
    test = Graph(inputs, (anywhere(condition(*inputs)),), name="more")
    body = Graph(inputs, (*step(*inputs), *inputs[len(state) :]), name="step")
    return tuple(ops.while_loop(*held, condition=test, body=body)[: len(state)])


def anywhere(x: Node) -> Node:
    """Whether a bool tensor is true at any place."""
    return ops.reduce_any(x, axes=tuple(range(x.ndim))) if x.ndim else x


def repeat(count: int, step: Step, state: Sequence[Node], fixed: Sequence[Node] = ()) -> tuple[Node, ...]:
    """The state after `count` rounds of state = step(k, *state, *fixed), k = 0, 1, ..."""
    if count == 0:
        return tuple(state)
    counter = constant(np.asarray(0, np.int64))
    return repeat_while(
        lambda k, *rest: ops.lt(k, count),
        lambda k, *rest: (k + 1, *step(k, *rest)),
        (counter, *state),
        fixed,
    )[1:]
