"""Values between kernels in an order of axes of their own: every reader and writer knows of it."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import constant, input_node, interpret
from planish.ir.graph import Graph
from planish.ops.rules import ops
from planish.types import FLOAT32, Dim, TensorType, symbol


def conv(x, channels, size, rng, groups=1, stride=1):
    w = rng.normal(size=(channels, x.shape[1] // groups, size, size)).astype(np.float32) / size
    w.flags.writeable = False
    pad = (size // 2, size // 2)
    return ops.conv(x, constant(w), strides=(stride, stride), padding=(pad, pad), lhs_dilation=(1, 1),
                    rhs_dilation=(1, 1), groups=groups)


def gated(x, rng):
    """A convolution, gated by its own mean over the places (squeeze and excitation), then another."""
    y = conv(x, 16, 1, rng)
    y = y * ops.sigmoid(ops.mean(ops.sigmoid(y), axes=(2, 3), keepdims=True))
    return ops.sigmoid(conv(y, 16, 1, rng))


def pooled(x, kind, rng):
    return ops.reduce_window(x, kind=kind, window=(1, 1, 3, 3), strides=(1, 1, 2, 2),
                             padding=((0, 0), (0, 0), (1, 1), (1, 1)), dilation=(1, 1, 1, 1))


def by_channel(x, rng):
    """1 x 1, every channel by itself, 1 x 1: the block of a mobile network."""
    y = ops.maximum(conv(x, 44, 1, rng), 0)
    return conv(ops.maximum(conv(y, 44, 3, rng, groups=44, stride=2), 0), 8, 1, rng)


def pooled_and_joined(x, rng):
    y = conv(x, 16, 1, rng)
    z = ops.concat(pooled(y, "max", rng), pooled(ops.sigmoid(y), "sum", rng), axis=1)
    return conv(z, 24, 3, rng)


def flattened(x, rng):
    """What is looked at in another shape stays as it is."""
    y = ops.sigmoid(conv(x, 16, 1, rng))
    return ops.reshape(conv(y, 16, 3, rng), shape=(2, 16 * x.shape[2] * 10))


def grouped(x, rng):
    return conv(ops.sigmoid(conv(x, 24, 1, rng)), 36, 3, rng, groups=3)


def averaged(x, rng):
    y = conv(ops.sigmoid(conv(x, 20, 1, rng)), 20, 5, rng, groups=20)
    return ops.mean(y, axes=(2, 3), keepdims=False)


@pytest.mark.parametrize("height", [9, symbol("h", 1)])
@pytest.mark.parametrize("function", [by_channel, pooled_and_joined, flattened, grouped, averaged])
def test_what_follows_a_laid_out_convolution(function, height: Dim) -> None:
    rng = np.random.default_rng()
    x = input_node("x", TensorType(FLOAT32, (2, 12, height, 10)))
    graph = Graph((x,), (function(x, rng),))
    compiled = compile_graph(graph)
    array = rng.normal(size=(2, 12, 9, 10)).astype(np.float32)
    expected, = interpret(graph, [array], precision="float64")
    np.testing.assert_allclose(compiled(array)[0], expected, rtol=1e-4, atol=1e-4)
    laid = [line for line in compiled.report.decisions if "layout of" in line]
    assert len(laid) >= (1 if function in (flattened, grouped) else 2)


@pytest.mark.parametrize("height", [9, symbol("h", 1)])
@pytest.mark.parametrize("disable", ["", "fuse", "in_place", "assign_layouts"])
def test_a_gate_on_a_laid_out_convolution(height: Dim, disable: str) -> None:
    rng = np.random.default_rng()
    x = input_node("x", TensorType(FLOAT32, (2, 12, height, 10)))
    graph = Graph((x,), (gated(x, rng),))
    compiled = compile_graph(graph, Options(disable=frozenset({disable} - {""})))
    if disable != "assign_layouts":
        assert any("layout of" in line for line in compiled.report.decisions)
    array = rng.normal(size=(2, 12, 9, 10)).astype(np.float32)
    expected, = interpret(graph, [array], precision="float64")
    np.testing.assert_allclose(compiled(array)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [(9, 10), (1, 3), (2, 1)])
@pytest.mark.parametrize("channels", [16, 21])
def test_a_convolution_is_the_result(places: tuple[int, int], channels: int) -> None:
    """The result keeps its order: with few places along a row it is stored across. Rows of tiles overlap."""
    rng = np.random.default_rng()
    sizes = (symbol("n"), symbol("h"), symbol("w"))
    array = rng.normal(size=(3, 33, *places)).astype(np.float32)
    for shape in ((sizes[0], 33, *sizes[1:]), (sizes[0], 33, *places), array.shape):
        x = input_node("x", TensorType(FLOAT32, shape))
        y = ops.sigmoid(conv(conv(x, 24, 1, rng), channels, 1, rng))
        graph = Graph((x,), (y,))
        expected, = interpret(graph, [array], precision="float64")
        np.testing.assert_allclose(compile_graph(graph)(array)[0], expected, rtol=1e-4, atol=1e-4)


def test_one_channel_out_of_many() -> None:
    """A convolution to a single channel: vectors go along the channels that are summed."""
    rng = np.random.default_rng()
    x = input_node("x", TensorType(FLOAT32, (2, 12, symbol("h"), 10)))
    graph = Graph((x,), (conv(ops.sigmoid(conv(x, 24, 1, rng)), 1, 3, rng),))
    compiled = compile_graph(graph)
    array = rng.normal(size=(2, 12, 9, 10)).astype(np.float32)
    expected, = interpret(graph, [array], precision="float64")
    np.testing.assert_allclose(compiled(array)[0], expected, rtol=1e-4, atol=1e-4)
    steps = [step for kernel in compiled.report.kernels for step in kernel.schedule]
    assert "vectorize(a0, 8)" in steps
