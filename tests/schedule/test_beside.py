"""Products of one left operand side by side: which are, what it saves, and that nothing else changes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planish.codegen.llvm.clocks import TIMES, with_times
from planish.codegen.llvm.host import host
from planish.codegen.llvm.program import write_program
from planish.compiler import Options, compile_graph
from planish.errors import VerificationError
from planish.ir import Graph, constant, interpret
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.passes import run_pipeline
from planish.runtime.threads import get_num_threads, set_num_threads
from planish.schedule import contraction
from planish.schedule.build import Built, build_program
from planish.schedule.kernel import Kernel
from planish.schedule.machine import Machine
from planish.schedule.products import TILES
from planish.schedule.program import Launch, Program
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program, print_steps, program_constants
from planish.schedule.program_verify import verify_program
from planish.types import BFLOAT16, FLOAT32, DType, TensorType, symbol

RNG = np.random.default_rng(17)
APART = frozenset({"beside"})
TWO = replace(host(), cores=2)


def weights(depth: int, *widths: int, dtype: DType = FLOAT32) -> list[Any]:
    return [constant((RNG.normal(size=(depth, n)) / np.sqrt(depth)).astype(dtype.numpy)) for n in widths]


def projections(*widths: int, depth: int = 64, dtype: DType = FLOAT32) -> Callable[..., Any]:
    """Queries that are turned, keys that are scaled, values: of each more than the product."""
    wq, wk, wv = weights(depth, *widths, dtype=dtype)

    def function(x: Any) -> Any:
        q = ops.tanh(ops.reduce_sum(ops.matmul(x, wq), axes=(1,), keepdims=False))
        k = ops.matmul(x, wk) * ops.cast(constant(np.float32(0.5)), dtype=dtype)
        v = ops.tanh(ops.matmul(x, wv))
        return q, k, v
    return function


def graph_of(function: Callable[..., Any], *shapes: tuple, dtype: DType = FLOAT32) -> Graph:
    return build_graph(function, *(TensorType(dtype, shape) for shape in shapes))


def built(graph: Graph, threads: int = 2, **options: Any) -> Built:
    optimized, _ = run_pipeline(graph)
    made = build_program(optimized, Machine(threads=threads), {}, **options)
    verify_program(made.program)
    return made


def groups(program: Program) -> list[str]:
    """The names of launches, joined where they stand beside each other."""
    launches = [s for s in program.steps if isinstance(s, Launch)]
    return "".join(s.kernel.name + ("+" if s.beside else " ") for s in launches).split()


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)


def test_what_stands_between_goes_behind() -> None:
    graph = graph_of(projections(96, 32, 32), (67, 64))
    made = built(graph)
    launches = print_steps(made.program).split("arena 25728\n")[1]
    assert launches == """\
  k0(b0, b1_panels0) -> (b4) beside
  k2(b0, b2_panels1) -> (b7) beside
  k3(b0, b3_panels2) -> (b9)
  k1(b4) -> (b6)
}"""
    assert ("k0, k2, k3: side by side over b0, 0 bytes laid out less, 0 alive at once less, 0 barriers less, "
            "343040 multiply-adds for the busiest of 2 threads instead of 343040") in made.decisions
    text = print_program(made.program)
    assert print_program(parse_program(text, program_constants(made.program))) == text
    assert groups(built(graph, disable=APART).program) == ["k0", "k1", "k2", "k3"]
    assert groups(built(graph, threads=1).program) == ["k0", "k1", "k2", "k3"]


@pytest.mark.parametrize("harsh", [False, True])
def test_the_program_means_the_same(harsh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "SMALL_WORK", 1)
    graph, x = graph_of(projections(32, 16, 48, depth=32), (13, 32)), random(13, 32)
    made = built(graph, disable=frozenset({"strips"}))
    assert groups(made.program) == ["k0+k2+k3", "k1"]
    for got, expected in zip(interpret_program(made.program, [x], harsh=harsh), interpret(graph, [x])):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows, depth, widths, dtype, is_open", [
    (131, 40, (50, 50, 50), FLOAT32, False), (67, 64, (96, 32, 32), FLOAT32, True),
    (1, 512, (512, 300, 300), FLOAT32, False), (67, 64, (96, 48, 48), BFLOAT16, True),
    (1, 512, (512, 300, 300), BFLOAT16, False)])
def test_same_bits_on_any_number_of_threads(threads: Callable[[int], None], rows: int, depth: int,
                                            widths: tuple[int, ...], dtype: DType, is_open: bool) -> None:
    shape = (symbol("rows", 1, 4096) if is_open else rows, depth)
    graph = graph_of(projections(*widths, depth=depth, dtype=dtype), shape, dtype=dtype)
    hint = {"rows": rows} if is_open else {}
    apart = compile_graph(graph, Options(target=TWO, disable=APART), hint=hint)
    beside = compile_graph(graph, Options(target=TWO), hint=hint)
    if TILES.name not in TWO.products:
        assert any("side by side over" in d for d in beside.report.decisions)
    for count in (rows, 1, 5) if is_open else (rows,):
        x = random(count, depth).astype(dtype.numpy)
        expected, true = apart(x), interpret(graph, [x])
        for number in (1, 2, 3, 7):
            threads(number)
            for got, other, near in zip(beside(x), expected, true):
                assert got.tobytes() == other.tobytes()
                tolerance = 1e-4 if dtype is FLOAT32 else 4e-2
                np.testing.assert_allclose(*(a.astype(np.float32) for a in (got, near)), tolerance, tolerance)


def test_narrow_rows_are_widened_once() -> None:
    graph = graph_of(projections(96, 32, 32, dtype=BFLOAT16), (67, 64), dtype=BFLOAT16)
    made, plain = built(graph), built(graph, disable=APART)
    wide = [[k.name for k in m.program.kernels if k.name.endswith("_widen")] for m in (made, plain)]
    assert wide == [["k0_widen"], ["k0_widen", "k2_widen", "k3_widen"]]
    assert groups(made.program)[:2] == ["k0_widen", "k0+k2+k3"]
    assert any(f"{2 * 67 * 64 * 4} bytes laid out less" in d for d in made.decisions)
    assert made.memory.planned < plain.memory.planned
    assert len(made.program.buffers) == len(plain.program.buffers) - 2


def test_a_product_that_reads_the_other_waits() -> None:
    gate, up = weights(64, 96, 96)
    graph = graph_of(lambda x: ops.tanh(ops.matmul(x, gate)) * ops.matmul(x, up), (67, 64))
    made = built(graph)
    assert groups(made.program) == ["k0", "k1"]
    assert "k0 | k1: apart, one has to wait for the other" in made.decisions


def test_products_that_would_live_together_stay_apart() -> None:
    """Each is reduced to a number a row before the next one is computed."""
    ws = weights(64, 64, 64, 64)

    def function(x: Any) -> Any:
        first, second, third = (ops.reduce_max(ops.matmul(x, w), axes=(1,), keepdims=False) for w in ws)
        return first + second + third
    graph = graph_of(function, (67, 64))
    made, plain = built(graph), built(graph, disable=APART)
    assert made.memory == plain.memory and groups(made.program) == groups(plain.program)
    assert any("apart, side by side: 0 bytes laid out less, -" in d for d in made.decisions)


def test_products_tiled_otherwise_stay_apart() -> None:
    """24 columns are three vectors, which go by other tiles."""
    ws = weights(200, 96, 24, 24)
    made = built(graph_of(lambda x: tuple(ops.matmul(x, w) for w in ws), (67, 200)))
    assert groups(made.program) == ["k0", "k1+k2"]
    assert "k0 | k1: apart, their register tiles differ" in made.decisions


def test_another_walk_through_the_left_operand_is_another_operand() -> None:
    one, other = weights(64, 64, 64)

    def function(x: Any) -> Any:
        return ops.matmul(x, one), ops.matmul(ops.transpose(x, axes=(1, 0)), other)
    graph = graph_of(function, (64, 64))
    assert not any("+" in name for name in groups(built(graph).program))


def test_many_threads_have_less_work_each() -> None:
    """Seven tiles of rows, two panels in each product: six threads have two tiles of rows in each, at most;
    of the six panels of all three products they have one."""
    ws = weights(128, 32, 32, 32)
    graph = graph_of(lambda x: tuple(ops.matmul(x, w) for w in ws), (37, 128))
    [line] = [d for d in built(graph, threads=6).decisions if "side by side over" in d]
    together, apart = 37 * 16 * 128, 12 * 96 * 128
    assert line.endswith(f"{together} multiply-adds for the busiest of 6 threads instead of {apart}")


def changed(program: Program, at: int, **changes: Any) -> Program:
    steps = list(program.steps)
    steps[at] = replace(steps[at], **changes)
    return replace(program, steps=tuple(steps))


def test_the_verifier_knows_what_may_stand_beside() -> None:
    one, other = weights(64, 64, 64)
    graph = graph_of(lambda x: (ops.matmul(x, one), ops.matmul(x, other), ops.tanh(x)), (67, 64))
    program = built(graph).program
    assert groups(program) == ["k0+k1", "k2"]
    for wrong, message in (
            (changed(program, 0, barrier=True), "a barrier separates launches beside each other"),
            (changed(program, 2, beside=True), "a launch stands beside none"),
            (changed(program, 1, beside=True), "k2 is no product that threads share"),
            (changed(program, 1, kernel=narrower(program)), "k1 is tiled otherwise than k0")):
        with pytest.raises(VerificationError, match=message):
            verify_program(wrong)


def narrower(program: Program) -> Kernel:
    kernel = program.kernels[1]
    assert kernel.tile is not None
    return replace(kernel, tile=replace(kernel.tile, rows=4))


def test_launches_beside_each_other_are_one_function_and_share_code() -> None:
    program = built(graph_of(projections(96, 32, 32), (67, 64))).program
    code = write_program(program, TWO, "default")
    [beside] = [name for name in code.kernels if name.startswith("beside_")]
    assert len(code.kernels) == 2 and code.body.count("call void @beside_") == 1
    ws = weights(64, 32, 32, 32)
    alike = built(graph_of(lambda x: tuple(ops.matmul(x, w) for w in ws), (67, 64))).program
    one_code = write_program(alike, TWO, "default")
    [name] = one_code.kernels
    assert one_code.kernels[name]().count("fma") < code.kernels[beside]().count("fma")
    apart = write_program(with_times(program, 2), TWO, "default", times=TIMES)
    assert len(apart.kernels) == 4 and "beside_" not in apart.body
