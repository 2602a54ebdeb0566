"""What speed rests on, read from the assembly: tiles stay in registers, kernels are vectors and call nothing.

In: programs compiled for a target, not run. Looked at is the hottest loop, the one of most multiply-adds.
"""
from __future__ import annotations

import re

import numpy as np
import pytest

from planish.codegen.llvm.host import Target, aarch64
from planish.codegen.llvm.native import NativeCode
from planish.ir import Graph, Node, constant, input_node
from planish.ops.rules import ops
from planish.schedule.contraction import UNROLL
from planish.schedule.steps import even_size
from planish.types import FLOAT32, FLOAT64, Dim, DType, TensorType, symbol
from tests.native.targets import AVX2, AVX512, PROGRAMS, SSE2, case, code_for

MULTIPLY_ADD = {"avx2": r"vfmadd\d+p[sd]\s.*%ymm", "avx512": r"vfmadd\d+p[sd]\s.*%zmm",
                "neon": r"fmla\s+v\d+\.[42][sd]", "sse2": r"mulp[sd]\s.*%xmm"}
TARGETS = [AVX2, AVX512, aarch64()]
STACK = re.compile(r"\(%rsp|\[sp")
CALL = re.compile(r"^\s+(call\w*|bl|blr)\s")


def loops(assembly: str) -> list[list[str]]:
    """The innermost loops: from a label to the jump back to it, none inside."""
    lines = assembly.splitlines()
    labels: dict[str, int] = {}
    spans = []
    for at, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = at
        jump = re.match(r"\s+(?:j\w+|b\.\w+|b|cbn?z|tbn?z)\s.*?(\.L\w+)$", line)
        if jump and jump[1] in labels:
            spans.append((labels[jump[1]], at))
    inner = [s for s in spans if not any(s != o and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return [lines[a:b + 1] for a, b in inner]


def count(pattern: str | re.Pattern, lines: list[str]) -> int:
    return sum(re.search(pattern, line) is not None for line in lines)


def hottest(code: NativeCode) -> list[str]:
    """The loop of the sums: most multiply-adds of those that divide nothing, as an epilogue may."""
    fused = MULTIPLY_ADD[code.target.isa]
    whole = (loop for loop in loops(code.assembly()) if not count("div", loop))
    return max(whole, key=lambda loop: count(fused, loop))


def product(dtype: DType, m: Dim, k: Dim, n: Dim, weights: bool = True) -> Graph:
    x = input_node("x", TensorType(dtype, (m, k)))
    y = input_node("y", TensorType(dtype, (n, k)))
    if weights:
        array = np.random.default_rng(0).standard_normal((k, n)).astype(dtype.numpy)
        return Graph((x,), (ops.relu(ops.matmul(x, constant(array, dtype))),))
    return Graph((x, y), (ops.relu(ops.matmul(x, ops.transpose(y, axes=(1, 0)))),))


SHAPES = {"static": (192, 256, 256), "deep": (192, 4096, 64), "odd": (97, 100, 101),
          "rows unknown": (symbol("M", 1), 256, 256)}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_a_register_tile_stays_in_registers(dtype: DType, shape: str, target: Target) -> None:
    code = code_for(target, product(dtype, *SHAPES[shape]))
    tile, = (k.tile for k in code.program.kernels if k.tile is not None)
    loop, rows = hottest(code), SHAPES[shape][0]
    height = even_size(rows, tile.rows) if isinstance(rows, int) else tile.rows
    assert count(MULTIPLY_ADD[target.isa], loop) == height * tile.vectors * UNROLL
    assert count(STACK, loop) == 0 and count(CALL, loop) == 0


@pytest.mark.parametrize(("depth", "lines"), [(768, 1), (4096, 0)])
def test_a_tile_asks_for_the_next_panels_where_they_fit_beside_its_own(depth: int, lines: int) -> None:
    """A line in each trip, for the second-level cache; of 256 KiB in one panel none."""
    loop = hottest(code_for(AVX2, product(FLOAT32, 128, depth, 256)))
    assert count(r"prefetcht1", loop) == lines


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
def test_a_tile_with_rows_apart_stays_in_registers(target: Target) -> None:
    """No size is known: every row of the tile needs a pointer of its own."""
    code = code_for(target, product(FLOAT32, symbol("M", 1), symbol("K", 1), symbol("N", 1), weights=False),
                    hint={"M": 200, "K": 256, "N": 256})
    tile, = (k.tile for k in code.program.kernels if k.tile is not None)
    loop = hottest(code)
    assert count(MULTIPLY_ADD[target.isa], loop) == tile.rows * tile.vectors * UNROLL
    assert count(STACK, loop) == 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
def test_a_tile_of_a_convolution_stays_in_registers(target: Target) -> None:
    """Places of an image lie any distance apart; offsets of the taps are added outside the hot loop."""
    image = input_node("image", TensorType(FLOAT32, (1, 28, 30, 64)))
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3))
    once = ops.conv(ops.transpose(image, axes=(0, 3, 1, 2)), constant(weights, FLOAT32), strides=(1, 1),
                    padding=((0, 0),) * 2, lhs_dilation=(1, 1), rhs_dilation=(1, 1))
    code = code_for(target, Graph((image,), (ops.transpose(ops.relu(once), axes=(0, 2, 3, 1)),)))
    tile, = (k.tile for k in code.program.kernels if k.tile is not None)
    loop = hottest(code)
    assert count(MULTIPLY_ADD[target.isa], loop) == tile.rows * tile.vectors * UNROLL
    assert count(STACK, loop) == 0


def gelu_chain(x: Node) -> Node:
    return x * 0.5 * (ops.tanh((x + x * x * x * 0.04) * 0.8) + 1.0)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.isa)
def test_constants_of_an_epilogue_take_no_register_of_a_tile(target: Target) -> None:
    """512 rows are tiles of two heights: the constants of two epilogues."""
    x = input_node("x", TensorType(FLOAT32, (512, 256)))
    weights = constant(np.random.default_rng(0).standard_normal((256, 256)), FLOAT32)
    code = code_for(target, Graph((x,), (gelu_chain(ops.matmul(x, weights)),)))
    assert count(STACK, hottest(code)) == 0


def test_neon_multiplies_by_element() -> None:
    """The left operand's numbers are lanes of a register or loaded repeated, never repeated by a `dup`."""
    loop = hottest(code_for(aarch64(), product(FLOAT32, 192, 256, 256)))
    assert count(r"\sdup\s", loop) == 0
    assert count(r"fmla.*\.s\[\d\]", loop) > 0.9 * count("fmla", loop)


@pytest.mark.parametrize("target", [*TARGETS, SSE2], ids=lambda t: t.isa)
def test_gelu_is_vectors_throughout(target: Target) -> None:
    loop = hottest(code_for(target, case("gelu chain").graph))
    assert count(MULTIPLY_ADD[target.isa], loop) >= 8
    assert count(r"\b(v?f?n?m(add|ul)\d*ss|fmadd)\s", loop) == 0
    assert count(CALL, loop) == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_avx512_code_calls_nothing(name: str) -> None:
    """Kernels and barriers aside: fma, rounding, conversions are instructions."""
    lines = code_for(AVX512, case(name).graph).assembly().splitlines()
    called = {line.split()[1] for line in lines if CALL.match(line)}
    assert not {c for c in called if not re.match(r"kernel_|planish_|mem(set|cpy|move)", c)}


def test_code_without_fma_calls_nothing_in_a_product() -> None:
    assert count(CALL, hottest(code_for(SSE2, product(FLOAT64, 192, 256, 256)))) == 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
def test_what_a_row_needs_once_is_outside_its_loops(target: Target) -> None:
    """The square root of a row's variance, and the mean from its sum."""
    x = input_node("x", TensorType(FLOAT32, (256, 1024)))
    centred = x - ops.mean(x, axes=(1,), keepdims=True)
    variance = ops.mean(centred * centred, axes=(1,), keepdims=True)
    text = code_for(target, Graph((x,), (centred / ops.sqrt(variance + 1e-5),))).assembly()
    inner = [line for loop in loops(text) for line in loop]
    assert count("sqrt", text.splitlines()) > 0 and count("sqrt", inner) == 0
    assert count(r"mulss|fmul\s+s", inner) == 0
