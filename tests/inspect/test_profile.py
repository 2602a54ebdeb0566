"""Where the time of a call goes: every launch is counted, its work is right, and the answer is untouched."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planish
from planish.codegen.llvm.clocks import TIMES, launches_of, with_times
from planish.codegen.llvm.emit import emit_assembly
from planish.codegen.llvm.host import aarch64
from planish.codegen.llvm.native import timed
from planish.compiler import Compiled, Options, SegmentedProgram, compile_graph
from planish.errors import PlanishError
from planish.inspect import tables
from planish.inspect.profile import Profile, _Timed, profiled
from planish.ir import Node
from planish.ir.graph import build_graph
from planish.ir.node import make_node
from planish.ops.host import HostAttributes, HostFunction, host_function
from planish.ops.record import get_op
from planish.ops.rules import ops
from planish.types import FLOAT32, INT64, TensorType, symbol
from tests.native.targets import code_for

N = symbol("N", 1, 1000)


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


def check_whole(found: Profile, calls: int = 5) -> None:
    """Times are of this call, and add up to it."""
    assert found.calls >= calls and found.ms > 0
    assert all(k.ms > 0 and k.runs > 0 for k in found.kernels)
    assert [k.ms for k in found.kernels] == sorted((k.ms for k in found.kernels), reverse=True)
    assert max(k.ms for k in found.kernels) <= found.ms * 1.5
    assert found.host_ms >= 0 and found.rest_ms >= 0


def test_kernels_of_one_code_are_one_line() -> None:
    weights = [array(96, 96) for _ in range(5)]
    planish.freeze(weights)

    @planish.jit
    def layers(x: Any) -> Any:
        for w in weights:
            x = np.maximum(x @ w, 0)
        return np.sort(x, axis=1)

    x = array(40, 96)
    found = planish.profile(layers, seconds=0)(x)
    check_whole(found)
    products = [k for k in found.kernels if k.kind == "contraction"]
    sort, = (k for k in found.kernels if k.kind == "sort")
    assert sort.runs == 1 and "sort" in sort.ops
    assert len(products) < 5 <= sum(k.runs for k in products)   # by strips, each layer runs once a strip
    assert sum(k.flops for k in products) >= 5 * 2 * 40 * 96 * 96
    assert all(k.gflops == pytest.approx(k.flops / k.ms / 1e6) for k in products)
    assert found.inputs == ["float32[40, 96]"] and found.name == "layers"


def test_names_are_those_of_the_loops() -> None:
    compiled = compile_graph(build_graph(lambda x: ops.softmax(x @ x, axis=1), TensorType(FLOAT32, (64, 64))))
    found = profiled(compiled, [array(64, 64)], 0)
    assert {f"kernel {k.name}(" for k in found.kernels} <= {
        line.split("(")[0] + "(" for line in compiled.text("loops").splitlines()}
    work = {k.kind: k.flops for k in found.kernels}
    assert work["contraction"] == 2 * 64 ** 3


def test_sizes_are_those_of_the_call() -> None:
    compiled = compile_graph(build_graph(lambda x, y: x @ y, TensorType(FLOAT32, (N, 32)),
                                         TensorType(FLOAT32, (32, 48))), hint={"N": 8})
    for n in (5, 300):
        found = planish.profile(compiled, seconds=0)(array(n, 32), array(32, 48))
        assert sum(k.flops for k in found.kernels if k.kind == "contraction") == 2 * n * 32 * 48


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_what_runs_in_a_loop_is_counted_each_time(rounds: int) -> None:
    def body(i: Node, x: Node) -> Any:
        return i + 1, ops.softmax(x, axis=0)

    def loop(n: Node, x: Node) -> Any:
        types = (TensorType(INT64, ()), x.type)
        condition = build_graph(lambda i, x: ops.lt(i, 0), *types)
        return ops.while_loop(n, x, condition=condition, body=build_graph(body, *types))[1]

    compiled = compile_graph(build_graph(loop, TensorType(INT64, ()), TensorType(FLOAT32, (300,))))
    found = planish.profile(compiled, seconds=0)(np.int64(-rounds), array(300))
    in_body = [k for k in found.kernels if "exp" in k.ops]
    assert [k.runs for k in in_body] == [rounds]
    assert rounds or in_body[0].ms == 0


def test_the_answer_is_that_of_the_untimed_program() -> None:
    compiled = compile_graph(build_graph(lambda x: (ops.tanh(x), ops.reduce_sum(x, axes=(0,)), x),
                                         TensorType(FLOAT32, (N, 70))))
    x = array(33, 70)
    twin = _Timed(compiled, 2)  # type: ignore[arg-type]
    for got, expected in zip(twin.call(x), compiled.program.call(x), strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(got, expected)
    assert len(twin.ticks) == 1 and twin.sizes == {"N": 33}


@host_function("profiled_twice")
def twice(x: np.ndarray) -> np.ndarray:
    return 2 * x


def test_segments_and_what_runs_between_them() -> None:
    types = TensorType(FLOAT32, (64, 64))

    def program(x: Node) -> Any:
        between = make_node(get_op("host"), (ops.tanh(x @ x),),
                            HostAttributes(HostFunction("profiled_twice"), (types,)))
        return ops.softmax(between, axis=1)

    compiled = compile_graph(build_graph(program, types))
    assert isinstance(compiled, SegmentedProgram)
    found = profiled(compiled, [array(64, 64)], 0)
    check_whole(found)
    assert {k.kind for k in found.kernels} == {"contraction", "loops"} and found.host_ms > 0


def test_what_a_function_writes_to_its_arguments_is_not_written() -> None:
    def write(x: np.ndarray) -> np.ndarray:
        x[:] = x + 1
        return x.sum(axis=0)

    x = array(50, 20)
    before = x.copy()
    check_whole(planish.profile(write, seconds=0)(x))
    np.testing.assert_array_equal(x, before)


def test_the_table() -> None:
    from rich.console import Console

    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables.profile(planish.profile(lambda x: np.tanh(x), seconds=0)(array(9, 9))))
    text = console.export_text()
    assert "tanh" in text and "ms per call" in text and "waiting for other threads" in text


def test_refusals() -> None:
    x = array(4, 4)
    with pytest.raises(PlanishError, match="has no kernels to profile"):
        planish.profile(np.tanh, strategy="library")(x)
    with pytest.raises(PlanishError, match="not int"):
        planish.profile(3)  # type: ignore[call-overload]
    graph = build_graph(lambda x: ops.tanh(x), TensorType(FLOAT32, (4, 4)))
    there = compile_graph(graph, Options(strategy="library"))
    assert isinstance(there, Compiled)
    with pytest.raises(PlanishError, match="has no kernels to profile"):
        planish.profile(there)(x)


def test_the_buffer_for_times() -> None:
    graph = build_graph(lambda x: ops.softmax(x @ x, axis=1), TensorType(FLOAT32, (64, 64)))
    code = code_for(aarch64(), graph)
    program, count = with_times(code.program, 3), len(launches_of(code.program))
    assert program.outputs == (*code.program.outputs, TIMES)
    assert program.places[TIMES].buffer.shape == (3, 2 * count + 3)
    target, body = code.target, timed(code, "default", 3).code.body
    text = emit_assembly(body, target.triple, target.cpu, target.features)
    assert text.lower().count("cntvct_el0") == 2 * count + 2    # the clock that ARM lets programs read
    untimed = emit_assembly(code.code.body, target.triple, target.cpu, target.features)
    assert "cntvct_el0" not in untimed.lower()
