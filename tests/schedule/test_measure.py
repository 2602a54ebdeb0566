"""Bytes and floating-point operations of kernels and graphs: what is read of a table is what is asked for."""
from __future__ import annotations

import pytest

from planish.compiler import compile_graph
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.schedule.measure import bytes_of_graph
from planish.types import FLOAT32, INT64, TensorType, symbol

N = symbol("N", 1, 1000)
ROWS, WIDTH, TABLE = 3, 64, 1000
INDICES, RESULT = ROWS * 8, ROWS * WIDTH * 4


@pytest.mark.parametrize("count", [ROWS, N])
def test_a_look_up_reads_what_it_gives(count: int) -> None:
    graph = build_graph(lambda t, i: ops.tanh(ops.take(t, i, axis=0)), TensorType(FLOAT32, (TABLE, WIDTH)),
                        TensorType(INT64, (count,)))
    compiled = compile_graph(graph, hint={"N": ROWS} if count is N else None)
    assert compiled.report.bytes_before == (2 * RESULT + INDICES) + 2 * RESULT
    kernel, = compiled.report.kernels
    assert kernel.bytes == 2 * RESULT + INDICES and kernel.flops == ROWS * WIDTH


def test_a_look_up_that_reads_all_reads_it_once() -> None:
    graph = build_graph(lambda t, i: ops.take(t, i, axis=0) + 1, TensorType(FLOAT32, (8, WIDTH)),
                        TensorType(INT64, (500,)))
    kernel, = compile_graph(graph).report.kernels
    assert kernel.bytes == 8 * WIDTH * 4 + 500 * 8 + 500 * WIDTH * 4


def test_a_slice_reads_what_it_gives() -> None:
    graph = build_graph(lambda x: ops.exp(ops.slice(x, starts=(2, 0), stops=(5, WIDTH), steps=(1, 1))),
                        TensorType(FLOAT32, (TABLE, WIDTH)))
    assert bytes_of_graph(graph, {}) == 4 * RESULT
    kernel, = compile_graph(graph).report.kernels
    assert kernel.bytes == 2 * RESULT


def test_operands_that_are_read_many_times_count_once() -> None:
    graph = build_graph(lambda x: ops.softmax(x @ x, axis=1), TensorType(FLOAT32, (64, 64)))
    assert [k.bytes for k in compile_graph(graph).report.kernels] == [2 * 64 * 64 * 4] * 2
