"""Products of bfloat16 where the machine has instructions for them: the same answers, by other instructions.

This CPU need not have them. Code for AVX512-BF16 and AMX runs with each instruction as a function
(emulated.py), code for AArch64 under qemu; that the instructions are there, and the sums in registers, is
read from the assembly.
"""
from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from planish.codegen.llvm.host import Target, aarch64
from planish.codegen.llvm.native import NativeCode, generate
from planish.codegen.llvm.program import canonical, kernel_text
from planish.compiler import machine_of
from planish.errors import UnsupportedOp
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.passes.pipeline import run_pipeline
from planish.runtime.link import link
from planish.runtime.load import load_program
from planish.runtime.loader import LoadedCode
from planish.runtime.native import runtime
from planish.schedule.build import build_program
from planish.schedule.contraction import UNROLL
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_verify import verify_program
from planish.schedule.text import parse_kernel, print_kernel
from planish.tuning.candidates import moves
from planish.types import BFLOAT16, FLOAT32, Dim, TensorType, evaluate_dim, symbol
from tests.native.emulated import AMX, AVX512_BF16, emulated
from tests.native.test_assembly import CALL, STACK, count, loops
from tests.qemu import run_aarch64

NEON_BF16 = aarch64("bf16")
ARMS = [AVX512_BF16, NEON_BF16]
INSTRUCTION = {"avx512": r"vdpbf16ps\s.*%zmm", "neon": r"bfdot\s+v\d+\.4s"}
SIZES = [(1, 100, 64), (2, 33, 50), (3, 64, 19), (13, 31, 16), (30, 2, 64), (25, 77, 123)]
# (sizes, which operand lies along its other axis, whether the right one is a constant)
PRODUCTS = [*((sizes, "", True) for sizes in SIZES), ((7, 33, 50), "", False), ((13, 31, 16), "w", False),
            ((13, 31, 16), "x", True), ((7, 33, 50), "xw", False)]
BLOCKS = [*((sizes, "", True) for sizes in ((8, 16, 16), (32, 32, 32), (17, 65, 33), (96, 64, 100))),
          ((50, 96, 31), "", False), ((49, 33, 40), "w", False), ((33, 40, 31), "x", True),
          ((70, 33, 40), "xw", False)]
SMALL = 600   # results up to which the slow interpreter is asked too
rng = np.random.default_rng()


def operand(name: str, shape: tuple[Dim, ...], fixed: bool = False) -> Node:
    if fixed:
        return constant(random_array(rng, BFLOAT16, shape, -2, 2), BFLOAT16)
    return input_node(name, TensorType(BFLOAT16, shape))


def product(m: Dim, k: Dim, n: Dim, *, fixed: bool = True, turned: str = "") -> Graph:
    """relu(x @ w); `turned` names operands that lie along their other axis."""
    x = operand("a", (k, m) if "x" in turned else (m, k))
    w = operand("b", (n, k) if "w" in turned else (k, n), fixed)
    made = ops.dot_general(x, w, lhs_contract=(0 if "x" in turned else 1,),
                           rhs_contract=(1 if "w" in turned else 0,))
    return Graph((x,) if fixed else (x, w), (ops.relu(made),))


def code_for(target: Target, graph: Graph, numerics: str = "default") -> NativeCode:
    optimized, _ = run_pipeline(graph, numerics=numerics)
    built = build_program(optimized, machine_of(target, numerics), {})
    verify_program(built.program)
    return generate(built.program, built.outputs, optimized, target, numerics)


def products_of(code: NativeCode) -> list[str]:
    return [k.tile.product.name for k in code.program.kernels if k.tile is not None]


def run(code: NativeCode, arrays: list[np.ndarray], sizes: dict[str, int]) -> np.ndarray:
    """What the code gives: in this process, with instructions as functions, or under qemu."""
    if code.target.isa == "neon":
        types = [(tuple(evaluate_dim(d, sizes) for d in t.shape), t.dtype.numpy) for t in code.output_types]
        dims = [sizes[s.name] for s in code.program.symbols]
        return run_aarch64(code.objects(), arrays, types, code.constants, dims,
                           len(dims) + len(code.code.derived),
                           evaluate_dim(code.program.arena_bytes, sizes))[0]
    program, _ = load_program(emulated(code), threads=1)
    return program.call(*arrays)[0]


def check(target: Target, graph: Graph, sizes: dict[str, int] | None = None,
          numerics: str = "default") -> NativeCode:
    """The code, which gives what the graph means; and so does, of small ones, the interpreter of its
    schedule."""
    code, sizes = code_for(target, graph, numerics), sizes or {}
    shapes = [tuple(evaluate_dim(d, sizes) for d in n.shape) for n in graph.inputs]
    arrays = [random_array(rng, BFLOAT16, s, -2, 2) for s in shapes]
    exact = interpret(graph, arrays, precision="float64")[0]
    found = [run(code, arrays, sizes)]
    if exact.size < SMALL:
        found.append(interpret_program(code.program, arrays, harsh=True)[0].reshape(exact.shape))
    for result in found:
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2 ** -8,
                                   atol=1e-5 * np.abs(exact).max(initial=0))
    return code


@pytest.mark.parametrize("target", ARMS, ids=lambda t: t.isa)
@pytest.mark.parametrize(("sizes", "turned", "fixed"), PRODUCTS, ids=str)
def test_matrix_product(sizes: tuple[int, int, int], turned: str, fixed: bool, target: Target) -> None:
    assert products_of(check(target, product(*sizes, fixed=fixed, turned=turned))) == ["pairs"]


@pytest.mark.parametrize("target", ARMS, ids=lambda t: t.isa)
def test_open_sizes(target: Target) -> None:
    graph = product(symbol("M", 1, 100), symbol("K", 1, 100), symbol("N", 1, 100), fixed=False)
    for m, k, n in ((1, 1, 1), (17, 29, 40))[target is NEON_BF16:]:
        assert products_of(check(target, graph, {"M": m, "K": k, "N": n})) == ["pairs"]


@pytest.mark.parametrize(("sizes", "turned", "fixed"), BLOCKS, ids=str)
def test_matrix_product_by_tiles(sizes: tuple[int, int, int], turned: str, fixed: bool) -> None:
    """Blocks of fewer rows, panels of fewer columns, steps of k that are filled up."""
    assert products_of(check(AMX, product(*sizes, fixed=fixed, turned=turned))) == ["tiles"]


def test_open_sizes_by_tiles() -> None:
    graph = product(symbol("M", 1, 100), symbol("K", 1, 100), symbol("N", 1, 100), fixed=False)
    for m, k, n in ((1, 1, 1), (16, 32, 32), (33, 70, 40)):
        assert products_of(check(AMX, graph, {"M": m, "K": k, "N": n})) == ["tiles"]


def test_rows_of_several_axes_and_heads_by_tiles() -> None:
    """Rows (batch, place) lie evenly apart and are read where they are; the sum is over (head, feature). The
    epilogue is long."""
    x, w = operand("a", (2, 20, 64)), operand("w", (64, 40), fixed=True)
    total = ops.dot_general(x, w, lhs_contract=(2,), rhs_contract=(0,), result=FLOAT32)
    code = check(AMX, Graph((x,), (ops.gelu(ops.add(total, constant(np.linspace(-1, 1, 40), FLOAT32))),)))
    assert products_of(code) == ["tiles"] and len(code.program.kernels) == 1
    heads = operand("a", (3, 20, 32))
    x = ops.reshape(ops.transpose(heads, axes=(1, 0, 2)), shape=(20, 96))
    code = check(AMX, Graph((heads,), (ops.matmul(x, operand("w", (96, 33), fixed=True)),)))
    assert products_of(code) == ["tiles"]


@pytest.mark.parametrize("sizes", [(100, 64, 90), (33, 32, 400)], ids=["rows", "panels"])
def test_parts_of_threads_by_tiles(sizes: tuple[int, int, int]) -> None:
    """What three threads do, one after another: each configures its tiles, and together they do it all."""
    graph = product(*sizes)
    code = code_for(AMX, graph)
    kernel, = code.code.kernels
    loaded = LoadedCode(link(emulated(code).objects()), runtime().provided)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4)(
        loaded.address(kernel.replace("kernel_", "emulated_")))
    a, (panels,) = random_array(rng, BFLOAT16, (sizes[0], sizes[1]), -2, 2), code.constants
    result = np.full((sizes[0], sizes[2]), np.nan, BFLOAT16.numpy)
    left = [result.size]
    for thread in range(3):
        function(*(x.ctypes.data for x in (a, panels, result)), None, thread, 3, 0, -1)
        left.append(np.isnan(result.astype(np.float32)).sum())
    assert left[0] > left[1] > left[2] > left[3] == 0
    np.testing.assert_array_equal(result, run(code, [a], {}))


def test_a_transformer_layer_in_bfloat16() -> None:
    """Products of several kinds, one after another; as near to float64 as the reference in bfloat16."""
    rows, width, heads = 50, 96, 3

    def linear(y: Node, size: int) -> Node:
        weights = rng.normal(size=(y.shape[-1], size)) / np.sqrt(y.shape[-1])
        return ops.dot_general(y, constant(weights, BFLOAT16), lhs_contract=(2,), rhs_contract=(0,))

    def split(y: Node) -> Node:
        return ops.transpose(ops.reshape(y, shape=(2, rows, heads, width // heads)), axes=(0, 2, 1, 3))

    x = operand("x", (2, rows, width))
    q, k, v = (split(linear(x, width)) for _ in range(3))
    batch = {"lhs_batch": (0, 1), "rhs_batch": (0, 1)}
    scores = ops.dot_general(q, k, lhs_contract=(3,), rhs_contract=(3,), **batch)
    shares = ops.softmax(scores * 0.18, axis=3)
    mixed = ops.dot_general(shares, v, lhs_contract=(3,), rhs_contract=(2,), **batch)
    h = x + linear(ops.reshape(ops.transpose(mixed, axes=(0, 2, 1, 3)), shape=x.shape), width)
    graph = Graph((x,), (h + linear(ops.gelu(linear(h, 160)), width),))
    array = random_array(rng, BFLOAT16, x.shape, -1, 1)
    exact, own = (interpret(graph, [array], precision=p)[0].astype(np.float64) for p in ("float64", "own"))
    for target, form in ((AVX512_BF16, "pairs"), (AMX, "tiles")):
        code = code_for(target, graph)
        assert products_of(code) == [form] * 8
        error = np.abs(run(code, [array], {}).astype(np.float64) - exact).max()
        assert error <= 2 * np.abs(own - exact).max()


def test_what_does_not_fill_tiles_is_multiplied_in_pairs() -> None:
    """Few rows, few columns, few steps, and images under a window."""
    image = operand("a", (1, 16, 9, 11))
    weights = operand("w", (17, 16, 3, 3), fixed=True)
    conv = Graph((image,), (ops.conv(image, weights, **conv_case(2, padding=((1, 1),) * 2)),))
    for graph in (product(7, 64, 64), product(64, 64, 15), product(64, 15, 64), conv):
        assert products_of(code_for(AMX, graph)) == ["pairs"]


@pytest.mark.parametrize(("target", "form"), [(t, "pairs") for t in ARMS] + [(AMX, "tiles")],
                         ids=["avx512", "neon", "amx"])
def test_batches_with_a_wide_result(target: Target, form: str) -> None:
    x, y = operand("a", (3, 9, 40)), operand("b", (3, 40, 21))
    made = ops.dot_general(x, y, lhs_contract=(2,), rhs_contract=(1,), lhs_batch=(0,), rhs_batch=(0,),
                           result=FLOAT32)
    assert products_of(check(target, Graph((x, y), (ops.maximum(made, 0.5),)))) == [form]


@pytest.mark.parametrize("target", ARMS, ids=lambda t: t.isa)
@pytest.mark.parametrize("channels", [3, 16])
def test_convolution(channels: int, target: Target) -> None:
    x, weights = operand("a", (1, channels, 9, 11)), operand("w", (17, channels, 3, 3), fixed=True)
    made = ops.conv(x, weights, **conv_case(2, padding=((1, 1),) * 2))
    assert products_of(check(target, Graph((x,), (made,)))) == ["pairs"]


@pytest.mark.parametrize(("target", "depth"), [(AVX512_BF16, 7), (NEON_BF16, 7), (AMX, 19)],
                         ids=["avx512", "neon", "amx"])
def test_special_values_go_through(target: Target, depth: int) -> None:
    """Infinities and NaN; and the last of an odd number of steps meets nothing but itself, or zeros."""
    graph = product(9, depth, 16, fixed=False)
    a, b = (random_array(rng, BFLOAT16, n.shape, 1, 2) for n in graph.inputs)
    a[0, depth - 1], a[1, 0], b[3, 2] = np.inf, -np.inf, np.nan
    code = code_for(target, graph)
    got = run(code, [a, b], {}).astype(np.float32)
    expected = interpret(graph, [a, b])[0].astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))


@pytest.mark.parametrize(("target", "instructions"), [(t, "pairs") for t in ARMS] + [(AMX, "tiles")],
                         ids=["avx512", "neon", "amx"])
def test_strict_numerics_widen(target: Target, instructions: str) -> None:
    """There every product and sum is rounded as such, and denormals are numbers, which instructions take for
    0."""
    check(target, product(5, 33, 16), numerics="strict")
    graph = product(9, 33, 16, fixed=False)
    a, b = (np.full(n.shape, x, BFLOAT16.numpy) for n, x in zip(graph.inputs, (2.0 ** -130, 1.0)))
    for numerics, form, expected in (("strict", "numbers", 33 * 2.0 ** -130), ("default", instructions, 0.0)):
        code = code_for(target, graph, numerics)
        assert products_of(code) == [form]
        np.testing.assert_array_equal(run(code, [a, b], {}).astype(np.float64), expected)


@pytest.mark.parametrize("target", ARMS, ids=lambda t: t.isa)
@pytest.mark.parametrize("rows", [192, 97], ids=str)
def test_sums_of_pairs_stay_in_registers(rows: Dim, target: Target) -> None:
    code = code_for(target, product(rows, 256, 256))
    tile, = (k.tile for k in code.program.kernels if k.tile is not None)
    fused = INSTRUCTION[target.isa]
    hot = max(loops(code.assembly()), key=lambda loop: count(fused, loop))
    height = tile.rows if rows != 97 else 11
    assert count(fused, hot) == height * tile.vectors * UNROLL // 2
    assert count(STACK, hot) == 0 and count(CALL, hot) == 0


def test_a_step_of_tiles_is_four_loads_and_four_products() -> None:
    """In the loop there is nothing else but addresses; tiles are configured before, released after."""
    lines = code_for(AMX, product(97, 256, 256)).assembly().splitlines()
    hot = next(loop for loop in loops("\n".join(lines)) if count("tdpbf16ps", loop))
    assert count(r"tdpbf16ps\s", hot) == count(r"tileloadd\s", hot) == 4
    assert count(STACK, hot) == count(CALL, hot) == 0 and len(hot) <= 16
    order = [w for line in lines for w in re.findall(r"^\s+(ldtilecfg|tilestored|tilerelease)\b", line)]
    assert order[0] == "ldtilecfg" and order[-1] == "tilerelease" and order.count("tilestored") == 4


def test_tuning_leaves_the_size_of_blocks_alone() -> None:
    kernel, = code_for(AMX, product(96, 320, 800)).program.kernels
    tried = {name for group in moves(kernel, machine_of(AMX), {}) for move in group for name in move}
    assert tried == {"grid", "group"}


def test_a_machine_without_tiles_is_refused_a_kernel_that_multiplies_by_them() -> None:
    kernel = next(k for k in code_for(AMX, product(32, 32, 32)).program.kernels if k.tile is not None)
    with pytest.raises(UnsupportedOp, match="multiplies by tiles, which this target does not have"):
        kernel_text(canonical(kernel), "k", AVX512_BF16, {}, "default")


@pytest.mark.parametrize(("target", "tile", "panels"), [
    (AVX512_BF16, "rows 12 vectors 2 lanes 16 packed by pairs", "bf16[4, 33, 32, 2]"),
    (AMX, "rows 32 vectors 2 lanes 16 packed by tiles", "bf16[4, 48, 32, 2]")], ids=["pairs", "tiles"])
def test_the_schedule_says_so(target: Target, tile: str, panels: str) -> None:
    kernel, = (k for k in code_for(target, product(96, 65, 100)).program.kernels if k.tile is not None)
    text = print_kernel(kernel)
    assert tile in text and panels in text
    assert print_kernel(parse_kernel(text)) == text
