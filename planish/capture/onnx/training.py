"""Optimizer steps of the domain ai.onnx.preview.training: Momentum, Adam, Adagrad.

Operands are the learning rate, the number of updates so far, then all tensors, all gradients, and all of each
state; results are all new tensors and all of each new state.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import FLOAT64, DType

DOMAIN = "ai.onnx.preview.training"
Update = Callable[..., Sequence[Node]]


def _for_each(call: Call, states: int, update: Update) -> list[Node]:
    """`update(rate, updates so far, tensor, regularised gradient, *states)` for each tensor."""
    per_tensor = states + 2
    count, left = divmod(len(call.operands) - 2, per_tensor)
    if left:
        call.invalid(f"{len(call.operands)} operands are not 2 and {per_tensor} for each tensor")
    decay = call.attribute("norm_coefficient", 0.0)
    rows = []
    for i in range(count):
        x, gradient, *held = (call[2 + i + part * count] for part in range(per_tensor))
        rate, updates = _scalar(call[0], x.dtype), _scalar(call[1], x.dtype)
        rows.append(update(rate, updates, x, x * decay + gradient, *held))
    return [row[part] for part in range(1 + states) for row in rows]


def _scalar(x: Node, dtype: DType) -> Node:
    return cast(reshaped(x, ()), dtype)


@translates("Momentum", domain=DOMAIN)
def momentum(call: Call) -> list[Node]:
    """Sutskever et al., On the importance of initialization and momentum in deep learning, 2013."""
    alpha, beta = call.attribute("alpha"), call.attribute("beta")
    nesterov = call.attribute("mode") == "nesterov"

    def update(rate: Node, updates: Node, x: Node, g: Node, v: Node) -> list[Node]:
        share = ops.select(ops.gt(updates, number(0, x.dtype)), number(beta, x.dtype), number(1, x.dtype))
        new = v * alpha + share * g
        return [x - rate * (g + new * alpha if nesterov else new), new]
    return _for_each(call, 1, update)


@translates("Adam", domain=DOMAIN)
def adam(call: Call) -> list[Node]:
    """Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015."""
    alpha, beta = call.attribute("alpha", 0.9), call.attribute("beta", 0.999)
    epsilon, decay = call.attribute("epsilon", 0.0), call.attribute("norm_coefficient_post", 0.0)

    def update(rate: Node, updates: Node, x: Node, g: Node, v: Node, h: Node) -> list[Node]:
        first, second = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
        step = rate * _bias_correction(updates, alpha, beta)
        return [(x - step * first / (ops.sqrt(second) + epsilon)) * (1 - decay), first, second]
    return _for_each(call, 2, update)


def _bias_correction(updates: Node, alpha: float, beta: float) -> Node:
    """sqrt(1 - beta^t) / (1 - alpha^t); 1 before the first update."""
    t = cast(updates, FLOAT64)
    rest = [1 - ops.pow(number(base, FLOAT64), t) for base in (alpha, beta)]
    started = ops.gt(t, number(0, FLOAT64))
    return cast(ops.select(started, ops.sqrt(rest[1]) / rest[0], number(1, FLOAT64)), updates.dtype)


@translates("Adagrad", domain=DOMAIN)
def adagrad(call: Call) -> list[Node]:
    """Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, 2011."""
    fading, epsilon = call.attribute("decay_factor", 0.0), call.attribute("epsilon", 0.0)

    def update(rate: Node, updates: Node, x: Node, g: Node, h: Node) -> list[Node]:
        new = h + g * g
        return [x - rate / (updates * fading + 1) * g / (ops.sqrt(new) + epsilon), new]
    return _for_each(call, 1, update)
