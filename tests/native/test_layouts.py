"""Values between kernels in an order of axes of their own: every reader and writer knows of it."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import constant, input_node, interpret
from planish.ir.graph import Graph
from planish.ops.rules import ops
from planish.types import FLOAT32, Dim, TensorType, symbol


def conv(x, channels, size, rng):
    w = rng.normal(size=(channels, x.shape[1], size, size)).astype(np.float32) / size
    w.flags.writeable = False
    pad = (size // 2, size // 2)
    return ops.conv(x, constant(w), strides=(1, 1), padding=(pad, pad), lhs_dilation=(1, 1),
                    rhs_dilation=(1, 1), groups=1)


def gated(x, rng):
    """A convolution, gated by its own mean over the places (squeeze and excitation), then another."""
    y = conv(x, 16, 1, rng)
    y = y * ops.sigmoid(ops.mean(ops.exp(y), axes=(2, 3), keepdims=True))
    return ops.exp(conv(y, 16, 1, rng))


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
