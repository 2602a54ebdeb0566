"""ATen random numbers: from keys that a call draws from torch's generator.

A seed gives the same numbers run to run, and every call other numbers; they are not those that eager draws.
With the option `random="eager"` none of these translations is used: torch draws the numbers (`translate.py`).
"""

from __future__ import annotations

import math
from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, translates
from planish.capture.torch.selection import place_in
from planish.ir import Node
from planish.ops.rules import ops, size_like
from planish.types import BOOL, FLOAT32, FLOAT64, INT64, UINT64


@translates("aten.rand.default", "aten.rand_like.default")
def rand(call: Call, *arguments: Any) -> Node:
    return ops.random_uniform(call.key(), shape=call.shape, dtype=call.dtype)


@translates("aten.randn.default", "aten.randn_like.default")
def randn(call: Call, *arguments: Any) -> Node:
    return ops.random_normal(call.key(), shape=call.shape, dtype=call.dtype)


@translates("aten.uniform.default")
def uniform(call: Call, x: Node, low: Any, high: Any, generator: Any) -> Node:
    _refuse_generator(call, generator)
    unit = ops.random_uniform(call.key(), shape=call.shape, dtype=call.dtype.accumulator)
    return cast(unit * (float(high) - float(low)) + float(low), call.dtype)


@translates("aten.normal_functional.default")
def normal(call: Call, x: Node, mean: Any, deviation: Any, generator: Any) -> Node:
    _refuse_generator(call, generator)
    unit = ops.random_normal(call.key(), shape=call.shape, dtype=call.dtype.accumulator)
    return cast(unit * float(deviation) + float(mean), call.dtype)


@translates("prims.normal.default")
def normal_of_shape(call: Call, shape: Any, mean: Any, deviation: Any, *options: Any) -> Node:
    _refuse_generator(call, options[-1])
    unit = ops.random_normal(call.key(), shape=call.shape, dtype=call.dtype.accumulator)
    return cast(unit * float(deviation) + float(mean), call.dtype)


@translates("aten.randint.low", "aten.randint_like.low_dtype")
def randint_between(call: Call, *arguments: Any) -> Node:
    low, high = arguments[:2] if call.overload == "aten.randint.low" else arguments[1:3]
    return _integers(call, low, high)


@translates("aten.randint.default", "aten.randint_like.default")
def randint(call: Call, *arguments: Any) -> Node:
    return _integers(call, 0, arguments[0] if call.overload == "aten.randint.default" else arguments[1])


def _integers(call: Call, low: Any, high: Any) -> Node:
    """A 64-bit word modulo the count: the bias is the count over 2^64."""
    bits = ops.random_bits(call.key(), shape=call.shape, dtype=UINT64)
    first, last = as_node(low, INT64), as_node(high, INT64)
    count = cast(last - first, UINT64)
    return cast(cast(ops.mod(bits, count), INT64) + first, call.dtype)


@translates("aten.bernoulli.p", "aten.bernoulli.default")
def bernoulli(call: Call, x: Node, *arguments: Any) -> Node:
    if call.overload == "aten.bernoulli.p":
        _refuse_generator(call, arguments[1])
        return cast(_hits(call, number(float(arguments[0]), FLOAT64)), call.dtype)
    _refuse_generator(call, arguments[0])
    p = cast(x, x.dtype.accumulator)
    inside = ops.bitwise_and(ops.ge(p, number(0, p.dtype)), ops.le(p, number(1, p.dtype)))
    call.check(inside, "RuntimeError", "bernoulli: expected p >= 0 and p <= 1")
    return cast(_hits(call, p), call.dtype)


def _hits(call: Call, probability: Node) -> Node:
    unit = ops.random_uniform(call.key(), shape=call.shape, dtype=probability.dtype)
    return ops.lt(unit, probability)


@translates("aten.geometric.default")
def geometric(call: Call, x: Node, p: float, generator: Any) -> Node:
    """The number of trials up to the first hit: ceil(log(u) / log(1 - p)) of a uniform u in (0, 1]."""
    _refuse_generator(call, generator)
    unit = 1 - ops.random_uniform(call.key(), shape=call.shape, dtype=FLOAT64)
    trials = ops.ceil(ops.log(unit) / math.log1p(-p)) if p < 1 else broadcast(number(1, FLOAT64), call.shape)
    return cast(ops.maximum(trials, 1), call.dtype)


@translates("aten.native_dropout.default")
def native_dropout(call: Call, x: Node, p: float, train: bool | None) -> tuple[Node, Node]:
    """x where it is kept, divided by the probability of that, and what is kept."""
    if train is False or p == 0:
        return x, broadcast(number(True, BOOL), x.shape)
    if p == 1:
        return broadcast(number(0, x.dtype), x.shape), broadcast(number(False, BOOL), x.shape)
    unit = ops.random_uniform(call.key(), shape=x.shape, dtype=FLOAT32)
    kept = ops.ge(unit, number(p, FLOAT32))
    wide = cast(x, x.dtype.accumulator)
    return cast(ops.select(kept, wide * (1 / (1 - p)), number(0, wide.dtype)), x.dtype), kept


@translates("aten.rrelu_with_noise_functional.default")
def rrelu(
    call: Call, x: Node, noise: Node, low: Any, high: Any, train: bool, generator: Any
) -> tuple[Node, Node]:
    """A leaky ReLU, in training with a slope of its own for every element, which the noise keeps."""
    _refuse_generator(call, generator)
    wide = cast(x, x.dtype.accumulator)
    if not train:
        below = wide * ((float(low) + float(high)) / 2)
        return cast(ops.select(ops.gt(wide, 0), wide, below), x.dtype), noise
    unit = ops.random_uniform(call.key(), shape=x.shape, dtype=wide.dtype)
    slope = ops.select(ops.le(wide, 0), unit * (float(high) - float(low)) + float(low), number(1, wide.dtype))
    return cast(wide * slope, x.dtype), cast(slope, noise.dtype)


@translates("aten.multinomial.default")
def multinomial(call: Call, weights: Node, count: Any, replacement: bool, generator: Any) -> Node:
    """Indices drawn in proportion to weights along the last axis: with replacement where a uniform number
    falls among their running sums; without, the greatest of weight over an exponential number each."""
    _refuse_generator(call, generator)
    p, axis = cast(weights, FLOAT64), weights.ndim - 1
    good = ops.bitwise_and(ops.is_finite(p), ops.ge(p, 0))
    call.check(good, "RuntimeError", "probability tensor contains either `inf`, `nan` or element < 0")
    hits = ops.reduce_sum(cast(ops.gt(p, 0), INT64), axes=(axis,))
    least = number(1, INT64) if replacement else as_node(count, INT64)
    call.check(ops.ge(hits, least), "RuntimeError", "multinomial: too few weights above 0")
    if replacement:
        through = ops.cumsum(p, axis=axis)
        total = ops.reduce_sum(p, axes=(axis,), keepdims=True)
        unit = ops.random_uniform(call.key(), shape=call.shape, dtype=FLOAT64)
        place = place_in(call, through, unit * total, right=True)
        return ops.minimum(place, size_like(place, weights.shape[axis] - 1))
    if not isinstance(count, int):
        call.refuse("a symbolic number of samples is not supported")
    unit = ops.random_uniform(call.key(), shape=p.shape, dtype=FLOAT64)
    race = p / -ops.log1p(-unit)  # what is drawn first has the greatest
    return ops.top_k(race, axis=axis, k=count)[1]


@translates("aten.randperm.default")
def randperm(call: Call, n: Any, *options: Any) -> Node:
    """The order of 64 random bits for each place."""
    bits = ops.random_bits(call.key(), shape=call.shape, dtype=UINT64)
    return cast(ops.argsort(bits, axis=0), call.dtype)


def _refuse_generator(call: Call, generator: Any) -> None:
    if generator is not None:
        call.refuse("a generator of its own is not supported")
