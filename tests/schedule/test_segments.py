"""Graphs cut at their host ops: the plan as text, the answers of the parts together, and what is refused."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planish.compiler import Options, SegmentedProgram, compile_graph
from planish.errors import ParseError, ShapeError, TypeRuleError, UnsupportedOp, VerificationError
from planish.inspect.explain import explain
from planish.ir import (
    Graph,
    Node,
    constant,
    get_item,
    input_node,
    interpret,
    parse_graph,
    print_graph,
    verify,
)
from planish.ir.fresh import without_idle_hosts
from planish.ir.node import make_node
from planish.ops.host import HostAttributes, HostFunction, stated_type
from planish.ops.record import get_op
from planish.ops.rules import ops
from planish.passes.hooks import random_inputs
from planish.schedule.segments import cut, print_plan
from planish.types import FLOAT32, INT64, TensorType, symbol

FILES = sorted((Path(__file__).parent / "goldens" / "segments").glob("*.ir"))
N, U = symbol("N", 0, 1000), symbol("u0", 0, 1000)
STRATEGIES = ("native", "library")


def host_node(function: HostFunction, results: tuple[TensorType, ...], *operands: Node) -> Node:
    return make_node(get_op("host"), operands, HostAttributes(function, results))


def sizes_node(count: Node) -> Node:
    return host_node(HostFunction("sizes"), (stated_type(U),), count)


def source_of(path: Path) -> str:
    """What a golden file begins with: a line of comment and a graph."""
    return path.read_text().split("\n# becomes")[0].rstrip("\n")


def graph_of(path: Path) -> Graph:
    return verify(parse_graph(source_of(path).partition("\n")[2]))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_plan(path: Path, golden: Callable[[Path, str], None]) -> None:
    golden(path, f"{source_of(path)}\n\n# becomes\n{print_plan(cut(graph_of(path)))}\n")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_text_comes_back(path: Path) -> None:
    text = print_graph(graph_of(path))
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("path", [p for p in FILES if p.stem != "no_host"], ids=lambda p: p.stem)
def test_answer(path: Path, strategy: str) -> None:
    graph = graph_of(path)
    compiled = compile_graph(graph, Options(strategy=strategy))  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    for shape in ([4, 6], [12, 2], [1, 24]):
        inputs = random_inputs(graph, rng)
        if path.stem == "views_are_at_hand":
            inputs[1][:] = shape
        got = compiled(*inputs)
        for mine, expected in zip(got, interpret(graph, inputs), strict=True):
            assert (mine.dtype, mine.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(mine, expected, rtol=1e-5)
        assert_apart(got, inputs)


def assert_apart(results: tuple[np.ndarray, ...], inputs: list[np.ndarray]) -> None:
    """Nobody shares memory with anybody, and everything can be written to."""
    for i, one in enumerate(results):
        assert one.flags.writeable and one.flags.c_contiguous
        assert not any(np.may_share_memory(one, other) for other in (*inputs, *results[:i]))


def test_sizes_of_every_call_are_its_own() -> None:
    x, k = input_node("x", TensorType(FLOAT32, (N,))), input_node("k", TensorType(INT64, ()))
    result = ops.broadcast_to(ops.reduce_sum(x, axes=(0,)), shape=(U, 2))
    compiled = compile_graph(Graph((x, k), (result,), (sizes_node(k * 2),)))
    for n, count in ((5, 3), (0, 0), (700, 41), (5, 1)):
        values = np.random.default_rng(n).normal(size=n).astype(np.float32)
        (got,) = compiled(values, np.array(count))
        np.testing.assert_allclose(got, np.full((2 * count, 2), values.sum()), rtol=1e-4, atol=1e-4)
    with pytest.raises(ShapeError, match=r"0 or more, not \[-2\]"):
        compiled(values, np.array(-1))
    with pytest.raises(ShapeError, match="u0 is to be from 0 to 1000, got 2000"):
        compiled(values, np.array(1000))


def test_a_host_op_that_holds_two_sizes_to_be_equal() -> None:
    x, shape = input_node("x", TensorType(FLOAT32, (N,))), input_node("shape", TensorType(INT64, (2,)))
    square = host_node(HostFunction("reshape", (("copy_zero", False),)), (TensorType(FLOAT32, (U, U)),), x,
                       shape)
    for strategy in STRATEGIES:
        compiled = compile_graph(Graph((x, shape), (-square,), (square,)),
                                 Options(strategy=strategy))  # type: ignore[arg-type]
        assert compiled(np.ones(9, np.float32), np.array([3, 3]))[0].shape == (3, 3)
        with pytest.raises(ShapeError, match=r"reshape: expected shape \(u0, u0\), got \(1, 9\)"):
            compiled(np.ones(9, np.float32), np.array([1, 9]))
        with pytest.raises(ShapeError, match="9 elements"):
            compiled(np.ones(9, np.float32), np.array([2, 3]))


def test_float64_goes_through() -> None:
    x, shape = input_node("x", TensorType(FLOAT32, (N,))), input_node("shape", TensorType(INT64, (1,)))
    moved = host_node(HostFunction("reshape", (("copy_zero", False),)), (TensorType(FLOAT32, (U,)),), x / 3,
                      shape)
    inputs = (np.ones(3, np.float32), np.array([3]))
    (exact,) = interpret(Graph((x, shape), (moved,), (moved,)), inputs, precision="float64")
    assert exact.dtype == np.float64 and exact[0] == 1 / 3


def test_the_report_lists_host_ops() -> None:
    k = input_node("k", TensorType(INT64, ()))
    graph = Graph((k,), (ops.broadcast_to(ops.exp(ops.cast(k, dtype=FLOAT32)), shape=(U,)),),
                  (sizes_node(k + 1),))
    compiled = compile_graph(graph)
    assert isinstance(compiled, SegmentedProgram) and len(compiled.parts) == 2
    assert explain(compiled).hosts == ["host %2 = sizes(%1) : u8[u0, 0]"]
    assert len(compiled.report.kernels) == 2 and compiled.report.bytes_after > 0
    assert compiled.text("segments").count("segment ") == 2
    assert all(compiled.text(stage) for stage in ("loops", "program", "llvm", "asm"))


def test_sizes_nothing_uses_are_not_asked_for() -> None:
    k = input_node("k", TensorType(INT64, ()))
    idle = Graph((k,), (k + 1,), (sizes_node(k),))
    assert without_idle_hosts(idle).effects == ()
    assert compile_graph(idle)(np.array(-5))[0] == -4


def test_what_is_refused() -> None:
    k = input_node("k", TensorType(INT64, ()))
    used = ops.broadcast_to(k, shape=(U,))
    with pytest.raises(VerificationError, match="no input and no host op before it says what u0 is"):
        verify(Graph((k,), (used, sizes_node(k))))
    with pytest.raises(VerificationError, match="has no effect"):
        verify(Graph((k,), (k,), (k + 1,)))
    with pytest.raises(TypeRuleError, match="no function is registered as 'absent'"):
        host_node(HostFunction("absent"), (stated_type(U),), k)
    with pytest.raises(ParseError):
        parse_graph("graph g(%k: i64[]) {\n  %0 = host(%k) {function=absent(), results=(i64[()],)} : i64[]\n"
                    "  return %0\n}")


def test_no_host_op_in_a_branch_of_native_code() -> None:
    k, p = input_node("k", TensorType(INT64, ())), input_node("p", TensorType(get_op("check").dtypes[0], ()))
    inner = Graph((k,), (host_node(HostFunction("reshape", (("copy_zero", False),)),
                                   (TensorType(INT64, ()),), k, constant(np.empty(0, np.int64))),))
    both = make_node(get_op("cond"), (p, k), get_op("cond").make_attributes(
        {"then_graph": inner, "else_graph": inner}))
    graph = Graph((p, k), (get_item(both, 0),))
    assert interpret(graph, (np.array(True), np.array(4))) == (4,)
    with pytest.raises(UnsupportedOp, match="host function reshape in a cond"):
        compile_graph(graph)
