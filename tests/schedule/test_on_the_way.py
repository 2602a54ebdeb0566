"""Maps of arguments that a product packs, or reads in place, are computed as it does so: the numbers are
those of NumPy and of the loops interpreter, and what a map makes is nowhere in memory."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from planish.compiler import NativeCompiled, Options, compile_graph
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.kernel import Kernel
from planish.schedule.machine import Machine
from planish.schedule.program import Launch, every_step
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_verify import verify_program
from planish.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT16,
    INT32,
    UINT8,
    UINT16,
    DType,
    TensorType,
)

rng = np.random.default_rng()


def wide(q: Node) -> Node:
    return ops.cast(q, dtype=FLOAT32)


def in_groups(q: Node, scale: Node) -> Node:
    k, n = q.shape
    return ops.reshape(ops.reshape(wide(q), shape=(k // 32, 32, n)) * scale, shape=(k, n))


def turned(w: Node) -> Node:
    return ops.transpose(w, axes=(1, 0))


Form = Callable[..., Node]
# What the weights are of q [k, n], or [n, k] where they are turned, and of others, of these shapes.
FORMS: dict[str, tuple[Form, Callable[[int, int], list[tuple[int, ...]]]]] = {
    "columns": (lambda q, s: wide(q) * s, lambda k, n: [(k, n), (n,)]),
    "rows": (lambda q, s: wide(q) * s, lambda k, n: [(k, n), (k, 1)]),
    "tensor": (lambda q, s: wide(q) * s, lambda k, n: [(k, n), ()]),
    "zero points": (lambda q, s, z: (wide(q) - z) * s, lambda k, n: [(k, n), (n,), (n,)]),
    "a number": (lambda q: wide(q) * 0.5, lambda k, n: [(k, n)]),
    "cast": (wide, lambda k, n: [(k, n)]),
    "turned": (lambda q, s: turned(wide(q) * s), lambda k, n: [(n, k), (n, 1)]),
    "groups": (in_groups, lambda k, n: [(k, n), (k // 32, 1, n)]),
}


def array(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    low, high = (0, 8) if dtype in (INT4, UINT8, UINT16) else (-100, 100)
    return (rng.normal(size=shape) if dtype.is_float else rng.integers(low, high, shape)).astype(dtype.numpy)


def product(form: str, rows: int, k: int, n: int, dtype: DType = INT8) -> tuple[Graph, list[np.ndarray]]:
    make, shapes = FORMS[form]
    q, *others = shapes(k, n)
    arrays = [array(FLOAT32, (rows, k)), array(dtype, q), *(array(FLOAT32, s) for s in others)]
    dtypes = [FLOAT32, dtype, *(FLOAT32 for _ in others)]
    types = [TensorType(d, a.shape) for d, a in zip(dtypes, arrays)]
    inputs = tuple(input_node(f"x{i}", type_) for i, type_ in enumerate(types))
    return Graph(inputs, (ops.relu(ops.matmul(inputs[0], make(*inputs[1:]))),)), arrays


def kernels(graph: Graph, threads: int = 1) -> list[Kernel]:
    program = build_program(run_pipeline(graph)[0], Machine(threads=threads), {}).program
    return [s.kernel for s in every_step(program.steps) if isinstance(s, Launch)]


def check(graph: Graph, arrays: Sequence[np.ndarray]) -> None:
    """Against NumPy in float64; one thread and two have the same bits."""
    exact, = interpret(graph, arrays, precision="float64")
    one, two = (compile_graph(graph, Options(threads=threads))(*arrays)[0] for threads in (1, 2))
    np.testing.assert_allclose(one, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str) -> None:
    """Packed for many rows, read in place for few, of whole vectors of columns and not."""
    for rows, k, n in ((1, 96, 131), (43, 320, 259)):
        check(*product(form, rows, k, n))


@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, UINT16, INT4, INT32, FLOAT16, BFLOAT16], ids=str)
def test_every_dtype(dtype: DType) -> None:
    for form, rows, n in (("columns", 2, 144), ("columns", 43, 301), ("cast", 2, 144)):
        graph, arrays = product(form, rows, 320, n, dtype)
        exact, = interpret(graph, arrays, precision="float64")
        got, = compile_graph(graph)(*arrays)
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("form", [f for f in FORMS if f != "cast"])
def test_what_is_packed_is_nowhere_else(form: str) -> None:
    graph, _ = product(form, 40, 320, 259)
    packing, one = kernels(graph)
    assert packing.ops[-1] == "pack" and "mul" in packing.ops
    assert packing.outputs[0].shape[-1] == 16 and one.tile is not None and one.tile.packed
    assert packing.outputs[0] in one.inputs


@pytest.mark.parametrize("form, rows, in_it", [
    ("columns", 1, True), ("columns", 12, True), ("cast", 12, True), ("tensor", 3, True),
    ("zero points", 12, True), ("zero points", 15, False), ("a number", 3, True), ("rows", 3, False),
    ("groups", 3, False), ("turned", 1, True)])
def test_what_few_rows_read_in_place(form: str, rows: int, in_it: bool) -> None:
    """Where a number meets few tiles, and what goes with it holds along k; of one row whatever loops read
    once."""
    graph, arrays = product(form, rows, 320, 160)
    assert len(kernels(graph)) == (1 if in_it else 2)
    check(graph, arrays)


@pytest.mark.parametrize("form, rows", [("columns", 1), ("columns", 2), ("zero points", 7), ("turned", 5)])
def test_the_interpreter_agrees(form: str, rows: int) -> None:
    graph, arrays = product(form, rows, 96, 48)
    optimized, _ = run_pipeline(graph)
    program = build_program(optimized, Machine(threads=2), {}).program
    slow, = interpret_program(verify_program(program), arrays, harsh=True)
    exact, = interpret(graph, arrays)
    np.testing.assert_allclose(slow.reshape(exact.shape), exact, rtol=1e-4, atol=1e-3 * np.abs(exact).max())


def test_what_others_read_is_made_once() -> None:
    """A result, an operand of two products, and of one product twice."""
    x, q = input_node("x", TensorType(FLOAT32, (40, 320))), input_node("q", TensorType(INT8, (320, 320)))
    w = wide(q) * 0.5
    arrays = [array(FLOAT32, (40, 320)), array(INT8, (320, 320))]
    for outputs in ((ops.matmul(x, w), w), (ops.matmul(x, w), ops.matmul(ops.relu(x), w)),
                    (ops.matmul(w, w),)):
        graph = Graph((x, q), outputs)
        assert [k.ops for k in kernels(graph)].count(("cast", "mul")) == 1
        compiled = compile_graph(graph)
        for got, exact in zip(compiled(*arrays), interpret(graph, arrays, precision="float64")):
            np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_long_maps_have_loops_of_their_own() -> None:
    x, w = (input_node(n, TensorType(FLOAT32, s)) for n, s in (("x", (40, 320)), ("w", (320, 320))))
    assert [k.ops[-1] for k in kernels(Graph((x, w), (ops.matmul(x, ops.tanh(w)),)))] == [
        "tanh", "pack", "dot_general"]


def test_chains_of_strips() -> None:
    """What is packed before a chain is computed so; what strips read in place is made before it."""
    x = input_node("x", TensorType(FLOAT32, (64, 320)))
    q = [input_node(f"q{i}", TensorType(INT8, shape)) for i, shape in enumerate(((320, 512), (512, 256)))]
    y = x
    for one in q:
        y = ops.relu(ops.matmul(y, wide(one) * 0.01))
    graph, arrays = Graph((x, *q), (y,)), [array(FLOAT32, x.shape), *(array(INT8, one.shape) for one in q)]
    made = kernels(graph, threads=2)
    assert [k.ops[-1] for k in made if "cast" in k.ops] == ["pack", "pack"]
    check(graph, arrays)


def test_images_under_a_window_are_made_before() -> None:
    """Packing them would compute each element for every tap."""
    x, w = input_node("x", TensorType(INT8, (1, 3, 20, 21))), array(FLOAT32, (9, 3, 3, 3))
    graph = Graph((x,), (ops.conv(wide(x) * 0.5, constant(w), **conv_case(2, padding=((1, 1),) * 2)),))
    compiled, q = compile_graph(graph), array(INT8, x.shape)
    assert isinstance(compiled, NativeCompiled)
    exact, = interpret(graph, [q], precision="float64")
    np.testing.assert_allclose(compiled(q)[0], exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
