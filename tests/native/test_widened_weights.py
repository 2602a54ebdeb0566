"""Constant weights that a program widens stay narrow in memory; results have the bits of weights widened
before."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planish.compiler import Compiled, NativeCompiled, Options, compile_graph, machine_of
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.ops.samples import random_array, special_values
from planish.passes.pipeline import run_pipeline
from planish.rewrite.rule import Numerics
from planish.schedule.build import build_program
from planish.schedule.machine import Machine
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_verify import verify_program
from planish.schedule.text import parse_kernel, print_kernel
from planish.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT2,
    INT4,
    INT8,
    INT16,
    INT32,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
    DType,
    TensorType,
    symbol,
)
from tests.native.targets import AVX512

ROWS, K, N = (1, 2, 5, 13), 288, 250
rng = np.random.default_rng()


def scales(*shape: int) -> Node:
    return constant((rng.random(shape) + 0.5).astype(np.float32) * np.float32(0.01))


def wide(q: Node) -> Node:
    return ops.cast(q, dtype=FLOAT32)


def less(q: Node, zero: Node) -> Node:
    """As ONNX has it: less a zero point, in int32."""
    return wide(ops.cast(q, dtype=INT32) - ops.cast(zero, dtype=INT32))


def spread(x: Node, size: int) -> Node:
    """One row for each block, as ONNX has it: repeated."""
    rows, columns = x.shape
    each = ops.broadcast_to(ops.reshape(x, shape=(rows, 1, columns)), shape=(rows, size, columns))
    return ops.reshape(each, shape=(rows * size, columns))


def grouped(q: Node, scale: Node, size: int) -> Node:
    """As torch's group-wise weights have it: [columns, groups, size]."""
    rows, columns = q.shape
    parts = ops.reshape(ops.transpose(q, axes=(1, 0)), shape=(columns, rows // size, size))
    whole = ops.reshape(wide(parts) * scale, shape=(columns, rows))
    return ops.transpose(whole, axes=(1, 0))


def zeros(dtype: DType, *shape: int) -> Node:
    return constant(rng.integers(*((100, 156) if dtype is UINT8 else (-9, 9)), shape).astype(dtype.numpy))


FORMS: dict[str, tuple[DType, Callable[[Node], Node]]] = {
    "scale of the tensor": (INT8, lambda q: wide(q) * scales()),
    "scale of columns": (INT8, lambda q: wide(q) * scales(N)),
    "scale of rows": (INT8, lambda q: wide(q) * scales(K, 1)),
    "zero points of 0": (INT8, lambda q: less(q, constant(np.zeros(N, np.int8))) * scales(N)),
    "zero points of columns": (UINT8, lambda q: less(q, zeros(UINT8, N)) * scales(N)),
    "zero point of the tensor": (UINT8, lambda q: less(q, zeros(UINT8)) * scales()),
    "float zero points": (UINT8, lambda q: (wide(q) - scales(N)) * scales(N)),
    "scale and shift": (INT8, lambda q: wide(q) * scales(N) + scales(N)),
    "blocks": (INT8, lambda q: wide(q) * spread(scales(K // 32, N), 32)),
    "blocks, zero points": (UINT8, lambda q: less(q, spread(zeros(UINT8, K // 16, N), 16))
                            * spread(scales(K // 16, N), 16)),
    "blocks, one zero point": (UINT8, lambda q: less(q, zeros(UINT8, N)) * spread(scales(K // 32, N), 32)),
    "groups": (INT8, lambda q: grouped(q, scales(N, K // 48, 1), 48)),
    "groups of four bits": (INT4, lambda q: grouped(q, scales(N, K // 32, 1), 32)),
    "four bits": (UINT4, lambda q: wide(q) * scales(N)),
    "float16": (FLOAT16, wide),
    "bfloat16": (BFLOAT16, wide),
    "bfloat16, scaled": (BFLOAT16, lambda q: wide(q) * scales(N)),
}


LIMITS = {INT2: (-2, 2), UINT2: (0, 4), INT4: (-8, 8), UINT4: (0, 16), UINT8: (0, 256),
          INT16: (-1 << 15, 1 << 15), UINT16: (0, 1 << 16)}


def numbers(dtype: DType, *shape: int) -> Node:
    if dtype.is_float:
        return constant(random_array(rng, dtype, shape, -2, 2))
    low, high = LIMITS.get(dtype, (-128, 128))
    return constant(rng.integers(low, high, shape).astype(dtype.numpy))


def product(form: str, rows: int, k: int = K, n: int = N) -> Graph:
    dtype, make = FORMS[form]
    x = input_node("x", TensorType(FLOAT32, (rows, k)))
    return Graph((x,), (ops.relu(ops.matmul(x, make(numbers(dtype, k, n))) + 1.0),))


def narrow_of(compiled: Compiled) -> list[str]:
    return [d for d in compiled.report.decisions if "weights stay" in d]


def steps_of(compiled: Compiled) -> list[str]:
    assert isinstance(compiled, NativeCompiled)
    return [s.name for k in compiled.built.program.kernels for s in k.steps]


def has_scales_after(compiled: Compiled) -> bool:
    """Whether a sum is multiplied by a scale."""
    assert isinstance(compiled, NativeCompiled)
    return any(s.name.endswith("_sum") for k in compiled.built.program.kernels for s in k.stages)


def both_ways(graph: Graph, numerics: Numerics) -> list[Compiled]:
    """Narrow, and with weights widened before."""
    return [compile_graph(graph, Options(numerics=numerics, disable=off))
            for off in (frozenset(), frozenset({"widen"}))]


def check(graph: Graph, *arrays: np.ndarray, stays: bool = True, same: bool = True) -> None:
    """The bits of weights widened before (`same`: blocks divide those of long sums), in strict numerics where
    scales are taken out of the sum otherwise; and what float64 says."""
    narrow, before = both_ways(graph, "default")
    assert bool(narrow_of(narrow)) == stays and not narrow_of(before)
    got, = narrow(*arrays)
    is_near = not same or has_scales_after(narrow)
    np.testing.assert_allclose(got, before(*arrays)[0], rtol=1e-5 * is_near, atol=1e-4 * is_near)
    if same and is_near:
        one, other = both_ways(graph, "strict")
        np.testing.assert_array_equal(one(*arrays)[0], other(*arrays)[0])
    exact = interpret(graph, arrays, precision="float64")[0]
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str) -> None:
    for rows in ROWS if form in ("scale of columns", "blocks, zero points") else (1, 31):
        x = rng.normal(size=(rows, K)).astype(np.float32)
        check(product(form, rows), x, stays=form != "scale of rows", same=form != "groups")


# What is left in the sum, of two tiles of rows and of six: nothing, a scale, a difference.
@pytest.mark.parametrize("form, few, many", [
    ("scale of columns", "widen", "widen"), ("float16", "widen", "widen"),
    ("blocks", "widen", "widen_group"), ("bfloat16, scaled", "widen", "widen_group"),
    ("zero points of columns", "widen", "widen_group"), ("blocks, zero points", "widen", "widen_group")])
def test_panels_are_widened_once_for_many_rows(form: str, few: str, many: str) -> None:
    for rows, step in ((12, few), (31, many)):
        compiled = compile_graph(product(form, rows))
        assert [s for s in steps_of(compiled) if "widen" in s] == [step]
        told, = narrow_of(compiled)
        assert ("once for all" in told) == (step == "widen_group")


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("form", ["blocks, one zero point", "scale of columns", "bfloat16, scaled"])
def test_many_rows_have_the_same_bits(form: str, numerics: Numerics) -> None:
    """On one thread and on two, and as of wide weights; several groups of panels, the last one partial."""
    graph, x = product(form, 31), rng.normal(size=(31, K)).astype(np.float32)
    one, two = (compile_graph(graph, Options(numerics=numerics, threads=t)) for t in (1, 2))
    np.testing.assert_array_equal(one(x)[0], two(x)[0])
    before = compile_graph(graph, Options(numerics=numerics, disable=frozenset({"widen"})))
    is_near = has_scales_after(one)
    np.testing.assert_allclose(one(x)[0], before(x)[0], rtol=1e-5 * is_near, atol=1e-4 * is_near)


@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, UINT16, INT4, UINT4, INT2, UINT2, FLOAT16, BFLOAT16],
                         ids=str)
def test_every_narrow_dtype(dtype: DType) -> None:
    """Odd sizes, few rows and many, with and without a scale; against NumPy."""
    k, n = 331, 851
    q, scale = numbers(dtype, k, n), (rng.random(n) + 0.5).astype(np.float32)
    wide_ones = q.attributes.array.astype(np.float32)
    for rows, by in ((3, scale), (31, scale), (35, None)):
        x = rng.normal(size=(rows, k)).astype(np.float32)
        made = input_node("x", TensorType(FLOAT32, x.shape))
        w, exact = (wide(q), wide_ones) if by is None else (wide(q) * constant(by), wide_ones * by)
        compiled = compile_graph(Graph((made,), (ops.matmul(made, w),)))
        assert narrow_of(compiled)
        expected = x.astype(np.float64) @ exact
        np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, 1e-30, 1e30])
def test_scales_that_decide_what_overflows_stay_in_the_sum(scale: float) -> None:
    """One such column is enough."""
    by = np.full(N, 0.01, np.float32)
    by[rng.integers(N)] = scale
    x = rng.normal(size=(3, K)).astype(np.float32)
    made = input_node("x", TensorType(FLOAT32, x.shape))
    graph = Graph((made,), (ops.matmul(made, wide(numbers(INT8, K, N)) * constant(by)),))
    narrow, before = both_ways(graph, "default")
    assert narrow_of(narrow) and not has_scales_after(narrow)
    np.testing.assert_array_equal(narrow(x)[0], before(x)[0])


def test_panels_too_deep_for_the_cache_are_widened_in_every_tile() -> None:
    """Half of the second level, 4096 steps of 16 columns, is as much as is widened at once."""
    for k, step in ((4096, "widen_group"), (4128, "widen")):
        x = input_node("x", TensorType(FLOAT32, (64, k)))
        w = wide(numbers(INT8, k, 64)) * spread(scales(k // 32, 64), 32)
        optimized, _ = run_pipeline(Graph((x,), (ops.matmul(x, w),)))
        kernel = build_program(optimized, Machine(threads=2), {}).program.kernels[-1]
        assert [s.name for s in kernel.steps if "widen" in s.name] == [step]


@pytest.mark.parametrize("form, rows", [
    ("blocks, one zero point", 3), ("groups of four bits", 3), ("bfloat16, scaled", 3),
    ("blocks, one zero point", 20), ("scale of columns", 20), ("four bits", 3)])
def test_the_interpreter_agrees(form: str, rows: int) -> None:
    """And the text of the kernel parses to an equal one."""
    graph = product(form, rows)
    x = rng.normal(size=(rows, K)).astype(np.float32)
    compiled = compile_graph(graph, Options(threads=2))
    assert isinstance(compiled, NativeCompiled)
    for kernel in compiled.built.program.kernels:
        text = print_kernel(kernel)
        assert print_kernel(parse_kernel(text)) == text
    slow, = interpret_program(verify_program(compiled.built.program), [x], harsh=True)
    np.testing.assert_allclose(compiled(x)[0], slow.reshape(rows, N), rtol=1e-5, atol=1e-4)


def test_panels_of_avx512() -> None:
    """Panels have 32 columns there; what is the same in a block lies beside them; bytes are told."""
    optimized, _ = run_pipeline(product("blocks, zero points", 4))
    built = build_program(optimized, machine_of(AVX512), {})
    kernel, = built.program.kernels
    assert [str(b.type) for b in kernel.inputs] == [
        "f32[4, 288]", "u8[8, 18, 16, 32]", "i32[18, 256]", "f32[18, 256]"]
    assert built.decisions[-1] == "k0: its weights stay uint8, 73728 bytes, not 294912 of float32"
    x = rng.normal(size=(4, K)).astype(np.float32)
    got, = interpret_program(verify_program(built.program), [x], harsh=True)
    np.testing.assert_allclose(got.reshape(4, N), interpret(optimized, [x])[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_special_values(dtype: DType) -> None:
    special = special_values(dtype)
    w = random_array(rng, dtype, (K, N), -2, 2)
    w[rng.integers(K, size=special.size), rng.permutation(N)[:special.size]] = special
    scale = (rng.random(N) + 0.5).astype(np.float32)
    scale[:6] = 0, -0.0, np.inf, np.nan, 1e-40, 3e38
    x = rng.normal(size=(2, K)).astype(np.float32)
    x[1, :5] = np.inf, np.nan, 0, -0.0, 1e-41
    made = input_node("x", TensorType(FLOAT32, x.shape))
    graph = Graph((made,), (ops.matmul(made, wide(constant(w)) * constant(scale)),))
    narrow, before = compile_graph(graph), compile_graph(graph, Options(disable=frozenset({"widen"})))
    assert narrow_of(narrow)
    np.testing.assert_array_equal(narrow(x)[0], before(x)[0])


def test_columns_of_the_left_as_torch_has_them() -> None:
    """x w^T, of weights [columns, k] with a scale of each column."""
    q = numbers(INT8, N, K)
    x = input_node("x", TensorType(FLOAT32, (2, 3, K)))
    w = ops.transpose(wide(q) * scales(N, 1), axes=(1, 0))
    check(Graph((x,), (ops.matmul(x, w),)), rng.normal(size=(2, 3, K)).astype(np.float32))


def test_float64() -> None:
    q, x = numbers(INT8, K, N), input_node("x", TensorType(FLOAT64, (3, K)))
    scale = constant(rng.random(N))
    graph = Graph((x,), (ops.matmul(x, ops.cast(q, dtype=FLOAT64) * scale),))
    array = rng.normal(size=(3, K))
    check(graph, array)


def test_convolution_with_a_scale_of_filters() -> None:
    q = numbers(INT8, 96, 80, 3, 3)
    x = input_node("x", TensorType(FLOAT32, (1, 80, 4, 5)))
    graph = Graph((x,), (ops.conv(x, wide(q) * scales(96, 1, 1, 1), **conv_case(2, padding=((1, 1),) * 2)),))
    check(graph, rng.normal(size=(1, 80, 4, 5)).astype(np.float32))


def test_a_left_operand_that_lies_along_its_rows() -> None:
    """It is packed too."""
    x = input_node("x", TensorType(FLOAT32, (520, 32)))
    w = wide(numbers(INT8, 520, 130)) * spread(scales(13, 130), 40)
    graph = Graph((x,), (ops.matmul(ops.transpose(x, axes=(1, 0)), w),))
    check(graph, rng.normal(size=(520, 32)).astype(np.float32), same=False)
    compiled = compile_graph(graph)
    assert isinstance(compiled, NativeCompiled)
    assert [k.name for k in compiled.built.program.kernels] == ["k0_left_pack", "k0"]


def test_what_is_made_in_many_steps_is_widened_before() -> None:
    w = wide(numbers(INT8, K, N))
    for _ in range(60):
        w = w + w
    x = input_node("x", TensorType(FLOAT32, (2, K)))
    optimized, _ = run_pipeline(Graph((x,), (ops.matmul(x, w),)))
    assert build_program(optimized, machine_of(AVX512), {}).decisions == []


def test_open_rows() -> None:
    x = input_node("x", TensorType(FLOAT32, (symbol("M", 0, 100), K)))
    graph = Graph((x,), (ops.matmul(x, wide(numbers(INT8, K, N)) * spread(scales(K // 32, N), 32)),))
    narrow, before = compile_graph(graph), compile_graph(graph, Options(disable=frozenset({"widen"})))
    assert narrow_of(narrow)
    for rows in (0, 1, 4, 12, 100):
        array = rng.normal(size=(rows, K)).astype(np.float32)
        np.testing.assert_array_equal(narrow(array)[0], before(array)[0])


def test_what_is_widened_before() -> None:
    """Small weights, and weights of a moderate size that many rows meet."""
    x = rng.normal(size=(3, 64)).astype(np.float32)
    a = input_node("x", TensorType(FLOAT32, (3, 64)))
    check(Graph((a,), (ops.matmul(a, wide(numbers(INT8, 64, 50)) * scales(50)),)), x, stays=False)
    check(product("scale of columns", 64), rng.normal(size=(64, K)).astype(np.float32), stays=False)


def test_other_weights_take_the_same_program() -> None:
    """Scales and numbers may change; zero points that are all 0 were looked at."""
    def made(zero: int) -> Graph:
        x = input_node("x", TensorType(FLOAT32, (2, K)))
        point = constant(np.full(N, zero, np.int8))
        return Graph((x,), (ops.matmul(x, less(numbers(INT8, K, N), point) * scales(N)),))
    x = rng.normal(size=(2, K)).astype(np.float32)
    for zero, stored in ((0, False), (0, True), (3, False), (3, True)):
        graph = made(zero)
        compiled = compile_graph(graph)
        assert compiled.report.stored is stored
        np.testing.assert_allclose(compiled(x)[0], interpret(graph, [x])[0], rtol=1e-3, atol=1e-3)
