"""Each form of convolution has its fast kernel: a register tile, or vectors over the channels of a window.

tests/native/test_convolution.py holds their values to float64 at odd sizes.
"""
from __future__ import annotations

import numpy as np
import pytest

from planish.codegen.llvm.host import host
from planish.compiler import NativeCompiled, machine_of
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.schedule.access import Access, stride_along
from planish.schedule.build import build_program
from planish.schedule.kernel import Kernel
from tests.native.test_convolution import KINDS, SPREAD, between, check, compiled_of, conv, graph_of

rng = np.random.default_rng()
BY_CHANNEL = {"by channel", "by channel, strided", "by channel, dilated", "by channel, 9 x 9",
              "grouped, many", "spread by channel"}
FORMS = KINDS | SPREAD


def kernels(compiled: NativeCompiled, op: str = "conv") -> list[Kernel]:
    return [k for k in compiled.built.program.kernels if op in k.ops]


def built(function, *shape: int) -> NativeCompiled:
    """The program, whose answer is right."""
    compiled = compiled_of(function, shape)
    check(compiled, rng.normal(size=shape).astype(np.float32))
    return compiled


def is_by_channel(kernel: Kernel) -> bool:
    """Whether no two channels meet in it, and vectors lie along them: the first axis, now the innermost."""
    *_, innermost = kernel.shared
    store = kernel.stages[-1].store
    along = stride_along(Access(store.buffer, store.index), innermost.name)
    return kernel.tile is None and innermost.lanes > 1 and innermost.name == "s0" and along == 1


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_fast(name: str) -> None:
    optimized, _ = run_pipeline(graph_of(between(FORMS[name], 12, rng), (1, 3, 9, 10)))
    _, *middle, _ = (k for k in build_program(optimized, machine_of(host()), {}).program.kernels
                     if "conv" in k.ops)
    assert middle and all(is_by_channel(k) if name in BY_CHANNEL else k.tile is not None for k in middle)


def test_an_image_of_three_channels() -> None:
    """The first layer of a network: padded where it lies, multiplied from there."""
    compiled = built(lambda x: ops.maximum(conv(x, 32, (7, 7), rng, strides=(2, 2)), 0.0), 1, 3, 33, 31)
    kernel, = kernels(compiled)
    assert kernel.tile is not None and kernel.ops == ("conv", "maximum")
    assert {k.ops for k in compiled.built.program.kernels} == {("pad",), kernel.ops}


def per_channel(count: int) -> Node:
    return constant(rng.normal(size=(1, count, 1, 1)).astype(np.float32))


def test_normalisation_residual_and_activation_are_in_the_epilogue() -> None:
    """The normalisation's factor is in the weights."""
    def function(x: Node) -> Node:
        y = conv(x, 16, (1, 1), rng)
        z = conv(ops.maximum(y, 0.0), 16, (3, 3), rng) * per_channel(16) + per_channel(16)
        return conv(ops.maximum(z + y, 0.0), 8, (1, 1), rng)
    found = kernels(built(function, 1, 8, 12, 12))
    assert len(found) == 3 and all(k.tile is not None for k in found)
    assert found[1].ops == ("conv", "add", "add", "maximum")


def squeezed(x: Node, out: int) -> Node:
    return ops.sigmoid(conv(ops.mean(x, axes=(2, 3), keepdims=True), out, (1, 1), rng))


def test_a_scale_by_squeeze_and_excite_is_in_the_epilogue() -> None:
    def function(x: Node) -> Node:
        y = conv(ops.maximum(conv(x, 32, (1, 1), rng), 0.0), 32, (3, 3), rng)
        return conv(y * squeezed(x, 32), 16, (1, 1), rng)
    found = kernels(built(function, 1, 8, 12, 12))
    assert [k.ops for k in found if "sigmoid" in k.ops] == [("conv", "sigmoid", "mul")]
    assert sum(k.tile is not None for k in found) == 3   # and the squeeze, of one place


def test_pooling_is_by_channel() -> None:
    def function(x: Node) -> Node:
        y = ops.maximum(conv(x, 16, (1, 1), rng), 0.0)
        pooled = ops.reduce_window(y, kind="max", window=(1, 1, 3, 3), strides=(1, 1, 2, 2),
                                   padding=((0, 0), (0, 0), (1, 1), (1, 1)), dilation=(1,) * 4)
        return conv(pooled, 8, (1, 1), rng)
    found = [k for k in built(function, 1, 8, 12, 12).built.program.kernels if "conv" not in k.ops]
    assert len(found) == 2 and "slice" in found[1].ops and is_by_channel(found[1])


def test_an_image_is_made_larger_where_the_next_convolution_reads_it() -> None:
    """Nearest neighbours, with the border that follows: one pass over memory."""
    def function(x: Node) -> Node:
        y = ops.maximum(conv(x, 16, (1, 1), rng), 0.0)
        n, c, h, w = y.shape
        wide = ops.broadcast_to(ops.reshape(y, shape=(n, c, h, 1, w, 1)), shape=(n, c, h, 2, w, 2))
        return conv(ops.reshape(wide, shape=(n, c, 2 * h, 2 * w)), 8, (3, 3), rng)
    compiled = built(function, 1, 8, 6, 7)
    larger, = (k for k in kernels(compiled, "broadcast_to"))
    assert is_by_channel(larger) and "pad" in larger.ops
    assert all(k.tile is not None for k in kernels(compiled))
