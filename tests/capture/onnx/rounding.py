"""How far results in float32 may be from the exact ones: a loop in float64, with bounds of the error.

In: a model of one Loop, and its feeds. Out: for each output its value in float64 and a bound of the error
that a computation in float32 makes in it, however it orders and fuses its sums. Sums that cancel have a small
value and the bound of what was summed. Each node passes on what its operands' errors can do, and adds its own
roundings (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 3). What may leave
float32's range has no bound.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import numpy_helper

ROUNDING = 2.0**-24                 # of float32, relative
SMALLEST = 2.0**-149                # of float32: the absolute error of a result below its normal numbers
FUNCTION = 8 * ROUNDING             # of tanh, sigmoid, softmax, absolute: ONNX Runtime's are no better near 0
LARGEST = float(np.finfo(np.float32).max)


class Near(NamedTuple):
    """Values in float64, and for each a bound of its error: inf or nan where there is none."""
    value: np.ndarray
    bound: np.ndarray


def exact(value: Any) -> Near:
    wide = np.asarray(value, np.float64)
    return Near(wide, np.zeros_like(wide))


def rounded(value: np.ndarray, passed: np.ndarray, sizes: np.ndarray) -> Near:
    """`passed`: what the operands' errors make; `sizes`: of all that was rounded."""
    bound = passed + ROUNDING * (sizes + passed) + SMALLEST
    return Near(value, np.where(np.abs(value) + bound < LARGEST, bound, np.inf))


def add(a: Near, b: Near) -> Near:
    total = a.value + b.value
    return rounded(total, a.bound + b.bound, np.abs(total))


def multiply(a: Near, b: Near) -> Near:
    x, y = np.abs(a.value), np.abs(b.value)
    return rounded(a.value * b.value, x * b.bound + a.bound * y + a.bound * b.bound, x * y)


def matmul(a: Near, b: Near) -> Near:
    x, y = np.abs(a.value), np.abs(b.value)
    sizes = a.value.shape[-1] * (x @ y)
    return rounded(a.value @ b.value, x @ b.bound + a.bound @ y + a.bound @ b.bound, sizes)


def negate(a: Near) -> Near:
    return Near(-a.value, a.bound)


def nearest_zero(a: Near) -> np.ndarray:
    """Where a function that is steepest at 0 is steepest within the bounds."""
    return np.maximum(np.abs(a.value) - a.bound, 0)


def tanh(a: Near) -> Near:
    steepness = 1 - np.tanh(nearest_zero(a)) ** 2
    return Near(np.tanh(a.value), steepness * a.bound + FUNCTION)


def sigmoid(a: Near) -> Near:
    """(1 + tanh(x / 2)) / 2."""
    steepness = (1 - np.tanh(nearest_zero(a) / 2) ** 2) / 4
    return Near((1 + np.tanh(a.value / 2)) / 2, steepness * a.bound + FUNCTION)


def softmax(a: Near) -> Near:
    """A weight changes by the exponentials of its own error and of the largest of all."""
    shifted = a.value - a.value.max(-1, keepdims=True)
    powers = np.exp(shifted)
    y = powers / powers.sum(-1, keepdims=True)
    moved = a.bound + ROUNDING * np.abs(shifted)
    return Near(y, y * np.expm1(moved + moved.max(-1, keepdims=True)) + FUNCTION)


NODES: Mapping[str, Callable[..., Near]] = {
    "Add": add, "Sub": lambda a, b: add(a, negate(b)), "Mul": multiply, "MatMul": matmul,
    "Max": lambda a, b: Near(np.maximum(a.value, b.value), np.maximum(a.bound, b.bound)),
    "Tanh": tanh, "Sigmoid": sigmoid, "Softmax": softmax, "Neg": negate,
    "Abs": lambda a: Near(np.abs(a.value), a.bound),
    "Identity": lambda a: a, "Cast": lambda a: a,
}


@np.errstate(all="ignore")
def bounded_loop(model: Any, feeds: Mapping[str, np.ndarray]) -> list[Near]:
    """The outputs of a model that is one Loop, which goes on for as long as its count says."""
    (loop,) = model.graph.node
    (body,) = (a.g for a in loop.attribute if a.name == "body")
    outside = {t.name: exact(numpy_helper.to_array(t)) for t in model.graph.initializer}
    outside |= {name: exact(value) for name, value in feeds.items()}
    states, pieces = [outside[name] for name in loop.input[2:]], []
    for i in range(int(outside[loop.input[0]].value)):
        known = outside | {v.name: given for v, given in zip(body.input, (exact(i), exact(True), *states))}
        for node in body.node:
            known[node.output[0]] = NODES[node.op_type](*(known[name] for name in node.input))
        made = [known[value.name] for value in body.output[1:]]
        states, pieces = made[:len(states)], [*pieces, made[len(states):]]
    stacked = [Near(*map(np.stack, zip(*each))) for each in zip(*pieces)]
    return [*states, *stacked]


def assert_near(got: np.ndarray, near: Near) -> None:
    """Within the bound, wherever there is one."""
    assert got.dtype == np.float32 and got.shape == near.value.shape
    known = np.isfinite(near.bound)
    error, bound = np.abs(got.astype(np.float64) - near.value)[known], near.bound[known]
    assert (error <= bound).all(), f"errors {error} beyond {bound}"
