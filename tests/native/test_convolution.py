"""Convolutions of odd sizes between laid-out values: native code, loops interpreter and float64 agree."""
from __future__ import annotations

import numpy as np
import pytest

from planish.codegen.llvm.host import host
from planish.compiler import Compiled, NativeCompiled, Options, compile_graph, machine_of
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.rewrite import Numerics
from planish.schedule.build import build_program
from planish.schedule.program import Program
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_verify import verify_program
from planish.types import FLOAT32, Dim, TensorType, symbol


def conv(x: Node, out: int, window: tuple[int, ...], rng: np.random.Generator, *, groups: int = 1,
         strides: tuple[int, ...] = (), pads: tuple[tuple[int, int], ...] = (), gaps: tuple[int, ...] = (),
         spread: tuple[int, ...] = ()) -> Node:
    ones = (1,) * len(window)
    w = rng.normal(size=(out, x.shape[1] // groups, *window)).astype(np.float32)
    w /= np.sqrt(np.prod(w.shape[1:]))
    return ops.conv(x, constant(w), strides=strides or ones, rhs_dilation=gaps or ones,
                    lhs_dilation=spread or ones, groups=groups,
                    padding=pads or tuple((k // 2, k // 2) for k in window))


def between(middle, channels: int, rng: np.random.Generator):
    """1 x 1, the convolution in question, 1 x 1: its operand and result are laid out channels innermost."""
    def function(x: Node) -> Node:
        ones = (1,) * (x.ndim - 2)
        y = ops.maximum(conv(x, channels, ones, rng), 0.0)
        return conv(ops.maximum(middle(y, rng), 0.25), 3, ones, rng)
    return function


def graph_of(function, shape: tuple[Dim, ...]) -> Graph:
    x = input_node("x", TensorType(FLOAT32, shape))
    return Graph((x,), (function(x),))


def compiled_of(function, shape: tuple[Dim, ...], numerics: Numerics = "default") -> NativeCompiled:
    compiled: Compiled = compile_graph(graph_of(function, shape), Options(numerics=numerics))
    assert isinstance(compiled, NativeCompiled)
    return compiled


def check(compiled: NativeCompiled, array: np.ndarray) -> None:
    """Native code is near float64."""
    expected, = interpret(compiled.captured, [array], precision="float64")
    np.testing.assert_allclose(compiled(array)[0], expected, rtol=1e-4, atol=1e-4)


def check_loops(graph: Graph, program: Program) -> None:
    """So is the interpreter of the verified program, harshly."""
    array = np.random.default_rng().normal(size=graph.inputs[0].shape).astype(np.float32)
    expected, = interpret(graph, [array], precision="float64")
    slow = interpret_program(verify_program(program), [array], harsh=True)[0].reshape(expected.shape)
    np.testing.assert_allclose(slow, expected, rtol=1e-4, atol=1e-4)


KINDS = {
    "plain": lambda x, rng: conv(x, 21, (3, 3), rng),
    "strided": lambda x, rng: conv(x, 17, (3, 2), rng, strides=(2, 3), pads=((0, 1), (2, 0))),
    "dilated": lambda x, rng: conv(x, 16, (3, 3), rng, gaps=(2, 1), pads=((2, 1), (1, 3))),
    "grouped": lambda x, rng: conv(x, 33, (3, 3), rng, groups=3),
    "grouped, many": lambda x, rng: conv(x, 12, (1, 3), rng, groups=12),
    "grouped, whole panels": lambda x, rng: conv(x, 32, (3, 3), rng, groups=2),
    "by channel": lambda x, rng: conv(x, 12, (3, 3), rng, groups=12),
    "by channel, strided": lambda x, rng: conv(x, 12, (5, 3), rng, groups=12, strides=(1, 2)),
    "by channel, dilated": lambda x, rng: conv(x, 12, (3, 2), rng, groups=12, gaps=(1, 3),
                                               pads=((0, 2), (1, 0))),
    "by channel, twice": lambda x, rng: conv(x, 24, (3, 3), rng, groups=12),
    "by channel, 9 x 9": lambda x, rng: conv(x, 12, (9, 9), rng, groups=12),
    "spread": lambda x, rng: conv(x, 20, (3, 4), rng, spread=(2, 2), pads=((1, 2), (2, 2))),
    "spread by channel": lambda x, rng: conv(x, 12, (4, 4), rng, groups=12, spread=(2, 2),
                                             pads=((2, 2), (2, 2))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    """Of a known size, in the loops interpreter (test_guard_pages.py has that native); of open sizes, at
    several."""
    rng = np.random.default_rng()
    function = between(KINDS[kind], 12, rng)
    graph = graph_of(function, (1, 3, 4, 5))
    optimized, _ = run_pipeline(graph)
    check_loops(graph, build_program(optimized, machine_of(host()), {}).program)
    compiled = compiled_of(function, (1, 3, symbol("h", 1), symbol("w", 1)))
    for places in ((4, 6), (9, 13)):
        check(compiled, rng.normal(size=(1, 3, *places)).astype(np.float32))


SPREAD = {
    "by three and two": lambda x, r: conv(x, 10, (3, 5), r, spread=(3, 2), pads=((0, 4), (3, 1))),
    "one axis": lambda x, r: conv(x, 10, (3, 3), r, spread=(1, 2), strides=(2, 1), pads=((1, 1), (1, 2))),
    "tap by tap": lambda x, r: conv(x, 10, (2, 2), r, spread=(2, 2), pads=((1, 1), (1, 1))),
    "fewer taps than phases": lambda x, r: conv(x, 10, (1, 2), r, spread=(2, 3), pads=((0, 1), (2, 0))),
    "with gaps": lambda x, r: conv(x, 10, (3, 3), r, spread=(2, 2), gaps=(2, 2), pads=((4, 4), (4, 4))),
    "padded after": lambda x, r: conv(SPREAD["as most are"](x, r), 9, (3, 3), r),
    "as most are": lambda x, r: conv(x, 12, (4, 4), r, spread=(2, 2), pads=((2, 2), (2, 2))),
}


@pytest.mark.parametrize("kind", SPREAD)
def test_spread_operands(kind: str) -> None:
    rng = np.random.default_rng()
    compiled = compiled_of(between(SPREAD[kind], 12, rng), (1, 3, 3, 5))
    check(compiled, rng.normal(size=(1, 3, 3, 5)).astype(np.float32))


def test_a_transposed_convolution_multiplies_no_zeros() -> None:
    """A kernel for every phase, each with its share of the taps."""
    rng = np.random.default_rng()
    compiled = compiled_of(between(SPREAD["padded after"], 12, rng), (1, 3, 6, 7))
    phases = [k for k in compiled.built.program.kernels if "phase" in k.name]
    assert [k.name for k in phases] == [f"k1_phase_{i}_{j}" for i in (0, 1) for j in (0, 1)]
    for kernel in phases:
        assert kernel.tile is not None and sorted(a.extent for a in kernel.stages[0].axes) == [2, 2, 12]


@pytest.mark.parametrize("channels", [8, 24, 21])
@pytest.mark.parametrize("places", [7, 13, 16])
def test_windows_over_channels(channels: int, places: int) -> None:
    """Blocks of places of two sizes, vectors of channels and what is left of both."""
    rng = np.random.default_rng()
    function = between(lambda x, r: conv(x, channels, (3, 3), r, groups=channels), channels, rng)
    check(compiled_of(function, (2, 3, 5, places)), rng.normal(size=(2, 3, 5, places)).astype(np.float32))


@pytest.mark.parametrize("groups", [1, 12])
@pytest.mark.parametrize("places", [(19,), (2, 2, 3)])
def test_one_and_three_axes(places: tuple[int, ...], groups: int) -> None:
    rng = np.random.default_rng()
    window = (3,) * len(places)
    function = between(lambda x, r: conv(x, 12, window, r, groups=groups), 12, rng)
    compiled = compiled_of(function, (1, 3, *places))
    array = rng.normal(size=(1, 3, *places)).astype(np.float32)
    check(compiled, array)
    check_loops(compiled.captured, compiled.built.program)


def test_threads_give_the_same_bits() -> None:
    """Tiles and borders are shared out; large enough that they are."""
    rng = np.random.default_rng()

    def function(x: Node) -> Node:
        y = conv(ops.maximum(conv(x, 144, (1, 1), rng), 0.0), 144, (3, 3), rng, groups=144)
        return conv(ops.maximum(conv(y, 40, (3, 3), rng), 0.0), 40, (3, 3), rng)
    x = input_node("x", TensorType(FLOAT32, (1, 16, 29, 31)))
    graph = Graph((x,), (function(x),))
    array = rng.normal(size=(1, 16, 29, 31)).astype(np.float32)
    one, two = (compile_graph(graph, Options(threads=n))(array)[0] for n in (1, 2))
    assert np.array_equal(one, two)


def test_borders_are_stored_by_what_computes_the_value() -> None:
    """No kernel copies a value to pad it; one that is needed without its border is stored twice."""
    rng = np.random.default_rng()

    def function(x: Node) -> Node:
        y = ops.maximum(conv(x, 16, (1, 1), rng), 0.0)
        return ops.maximum(conv(y, 16, (3, 3), rng), 0.0) + y
    compiled = compiled_of(function, (1, 8, 12, 12))
    check(compiled, rng.normal(size=(1, 8, 12, 12)).astype(np.float32))
    kernels = {k.name: k for k in compiled.built.program.kernels}
    assert list(kernels) == ["k0_border", "k0", "k1"]
    assert [len(k.outputs) for k in kernels.values()] == [1, 2, 1]


@pytest.mark.parametrize(("channels", "groups", "panels"),
                         [(32, 8, (8, 3, 3, 4, 4)), (32, 2, (2, 3, 3, 16, 16))])
def test_groups_have_tiles(channels: int, groups: int, panels: tuple[int, ...]) -> None:
    """Every group is a product of its own; the panels of all are made while compiling."""
    rng = np.random.default_rng()
    function = between(lambda x, r: conv(x, channels, (3, 3), r, groups=groups), channels, rng)
    compiled = compiled_of(function, (1, 4, 9, 8))
    kernel = next(k for k in compiled.built.program.kernels if k.name == "k1")
    assert kernel.tile is not None and len(kernel.tile.batch) == 1
    assert panels in [b.shape for b in kernel.inputs]
    check(compiled, rng.normal(size=(1, 4, 9, 8)).astype(np.float32))


def test_a_value_padded_twice() -> None:
    rng = np.random.default_rng()

    def function(x: Node) -> Node:
        y = ops.maximum(conv(x, 16, (1, 1), rng), 0.0)
        pooled = ops.reduce_window(y, kind="max", window=(1, 1, 3, 3), strides=(1,) * 4, dilation=(1,) * 4,
                                   padding=((0, 0), (0, 0), (1, 1), (1, 1)))
        return conv(y, 16, (3, 3), rng) + conv(y, 16, (5, 5), rng) + conv(pooled, 16, (1, 1), rng)
    check(compiled_of(function, (2, 8, 9, 7)), rng.normal(size=(2, 8, 9, 7)).astype(np.float32))


def test_a_border_of_open_width() -> None:
    """Sizes of the border that only the shape says; none at all among them."""
    n = symbol("n", 1, 9)
    x = input_node("x", TensorType(FLOAT32, (2, n, 3)))
    padded = ops.pad(ops.tanh(x), 0.5, low=(0, 9 - n, 1), high=(1, n - 1, 0), interior=(0, 0, 0))
    compiled = compile_graph(Graph((x,), (padded,)))
    for size in (1, 4, 9):
        array = np.random.default_rng().normal(size=(2, size, 3)).astype(np.float32)
        expected, = interpret(compiled.captured, [array])
        np.testing.assert_allclose(compiled(array)[0], expected, rtol=1e-6)


def test_a_transposed_operand_keeps_its_layout() -> None:
    """Channels last, as a block of ConvNeXt has it: the transposes are orders of memory."""
    rng = np.random.default_rng()

    def function(x: Node) -> Node:
        y = ops.transpose(conv(ops.transpose(ops.tanh(x), axes=(0, 3, 1, 2)), 24, (7, 7), rng, groups=24),
                          axes=(0, 2, 3, 1))
        return ops.tanh(ops.matmul(y, constant(rng.normal(size=(24, 24)).astype(np.float32))))
    compiled = compiled_of(function, (1, 11, 9, 24))
    check(compiled, rng.normal(size=(1, 11, 9, 24)).astype(np.float32))
    assert any("axes (0, 2, 3, 1)" in line for line in compiled.report.decisions)
    assert not any("transpose" in k.ops and len(k.ops) == 1 for k in compiled.built.program.kernels)


def test_strict_numerics_round_every_operation() -> None:
    """Strict: products and sums are rounded on their own; default may fuse them."""
    rng = np.random.default_rng()
    function = between(KINDS["by channel"], 12, rng)
    code = compiled_of(function, (1, 3, 9, 13), "strict").text("llvm")
    assert "llvm.fmuladd" not in code and "llvm.fma" not in code
