"""A loop whose trip count is a number of the graph, for operators that repeat one step: Det, RoiAlign..."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from planish.capture.onnx.pointwise import number
from planish.ir import Graph, Node, input_node
from planish.ops.rules import ops
from planish.types import INT64, TensorType

Step = Callable[..., Sequence[Node]]


def repeated(count: Node, state: Sequence[Node], step: Step, operands: Sequence[Node]) -> tuple[Node, ...]:
    """The state after `count` rounds of state = step(k, *state, *operands), k = 0, 1, ...

    `count` is an int64 scalar.
    """
    held = (number(0, INT64), *state, count, *operands)
    inputs = tuple(input_node(f"s{i}", TensorType(n.dtype, n.shape)) for i, n in enumerate(held))
    k, end, rest = inputs[0], inputs[1 + len(state)], inputs[2 + len(state):]
    condition = Graph(inputs, (ops.lt(k, end),), name="more")
    following = step(k, *inputs[1:1 + len(state)], *rest)
    body = Graph(inputs, (k + 1, *following, end, *rest), name="step")
    return tuple(ops.while_loop(*held, condition=condition, body=body)[1:1 + len(state)])
