"""Random numbers: RandomUniform, RandomNormal (and Like), Bernoulli, Multinomial, Dropout in training.

ONNX leaves the stream to the implementation. Ours is Philox with a key per node: of the attribute `seed`
where there is one, else drawn when the model is read. A captured graph is a function: it gives the same
numbers at every call.
"""
from __future__ import annotations

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import computed, size_node
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, Dim, DType, Shape


def _key(call: Call) -> Node:
    seed = call.attribute("seed")
    if seed is None:
        return constant(np.random.SeedSequence().generate_state(2).astype(np.uint32))
    return constant(np.array([np.float32(seed).view(np.uint32), 0], np.uint32))


def _uniform(call: Call, shape: Shape, dtype: DType) -> Node:
    """[0, 1), computed in float32 at least."""
    return ops.random_uniform(_key(call), shape=shape, dtype=dtype.accumulator)


def _draw_uniform(call: Call, shape: Shape, dtype: DType) -> Node:
    low, high = call.attribute("low", 0.0), call.attribute("high", 1.0)
    return cast(_uniform(call, shape, dtype) * (high - low) + low, dtype)


def _draw_normal(call: Call, shape: Shape, dtype: DType) -> Node:
    drawn = ops.random_normal(_key(call), shape=shape, dtype=dtype.accumulator)
    return cast(drawn * call.attribute("scale", 1.0) + call.attribute("mean", 0.0), dtype)


def _result_dtype(call: Call, default: DType) -> DType:
    dtype = call.dtype_attribute("dtype") if call.attribute("dtype") else default
    if not dtype.is_float:
        call.invalid(f"random numbers of dtype {dtype.name}")
    return dtype


@translates("RandomUniform")
def random_uniform(call: Call) -> Node:
    return _draw_uniform(call, call.attribute("shape"), _result_dtype(call, FLOAT32))


@translates("RandomNormal")
def random_normal(call: Call) -> Node:
    return _draw_normal(call, call.attribute("shape"), _result_dtype(call, FLOAT32))


@translates("RandomUniformLike")
def random_uniform_like(call: Call) -> Node:
    return _draw_uniform(call, call.shape(), _result_dtype(call, call.dtype(0)))


@translates("RandomNormalLike")
def random_normal_like(call: Call) -> Node:
    return _draw_normal(call, call.shape(), _result_dtype(call, call.dtype(0)))


@translates("Bernoulli", since=15)
def bernoulli(call: Call) -> Node:
    """1 with the probability that the operand says."""
    p = call[0]
    dtype = call.dtype_attribute("dtype") if call.attribute("dtype") else p.dtype
    wide = p.dtype.accumulator
    return cast(ops.lt(_uniform(call, p.shape, p.dtype), cast(p, wide)), dtype)


@translates("Multinomial")
def multinomial(call: Call) -> Node:
    """Class numbers: how many of the cumulated probabilities a uniform number reaches."""
    x = call[0]
    (rows, classes), count = x.shape, call.attribute("sample_size", 1)
    dtype = call.dtype_attribute("dtype") if call.attribute("dtype") else INT32
    weights = ops.cumsum(ops.softmax(cast(x, FLOAT64), axis=1), axis=1, reverse=False, exclusive=False)
    reached = reshaped(weights, (rows, 1, classes))
    drawn = reshaped(_uniform(call, (rows, count), FLOAT64), (rows, count, 1))
    passed = ops.reduce_sum(cast(ops.ge(drawn, reached), INT64), axes=(2,))
    return cast(ops.minimum(passed, _last(classes)), dtype)


def _last(classes: Dim) -> Node:
    """The last class: what is left of a sum that rounds to less than 1 is its."""
    return size_node(classes, INT64) - 1


# --- Dropout

@translates("Dropout")
def dropout_inference(call: Call) -> tuple[Node, Node]:
    """Until opset 12 the identity; the mask, all true, is bool since opset 10."""
    x = call[0]
    return x, ops.broadcast_to(number(1, BOOL if call.opset >= 10 else x.dtype), shape=x.shape)


@translates("Dropout", since=12)
def dropout(call: Call) -> tuple[Node, Node]:
    """In training, elements are kept with probability 1 - ratio, divided by it (Srivastava et al. 2014)."""
    x = call[0]
    everything = ops.broadcast_to(number(True, BOOL), shape=x.shape)
    training = reshaped(call[2], ()) if call.has(2) else number(False, BOOL)
    known = computed(training)
    if known is not None and not known:
        return x, everything
    wide = x.dtype.accumulator
    ratio = cast(reshaped(call[1], ()), wide) if call.has(1) else number(0.5, wide)
    ratio = ops.select(training, ratio, number(0, wide))
    mask = ops.ge(_uniform(call, x.shape, x.dtype), ratio)
    kept = ops.select(mask, cast(x, wide) / (1 - ratio), number(0, wide))
    return cast(kept, x.dtype), mask
