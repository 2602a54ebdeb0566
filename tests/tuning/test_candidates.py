"""Every candidate that tuning may try is a kernel with the same answer, on sizes that fit no tile."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import planish
from planish.codegen.llvm.host import host
from planish.compiler import machine_of
from planish.ir import Graph, input_node
from planish.ops.rules import ops
from planish.passes import run_pipeline
from planish.schedule.buffers import Buffers
from planish.schedule.choice import ANALYTIC, Choice
from planish.schedule.text import parse_kernel, print_kernel
from planish.schedule.verify import verify_kernel
from planish.tuning.trial import COPIES, Setting, Subject, candidate, disagreement, subjects
from planish.types import FLOAT32, INT32, INT64, TensorType, symbol


def setting(**sizes: int) -> Setting:
    target = host()
    machine = replace(machine_of(target), threads=2, l3=1 << 20)
    return Setting(target, machine, "default", frozenset(), 2, sizes)


def kernels(function: Callable, *types: TensorType, **sizes: int) -> list[Subject]:
    inputs = [input_node(f"x{i}", t) for i, t in enumerate(types)]
    graph, _ = run_pipeline(Graph(tuple(inputs), (function(*inputs),)))
    return subjects(graph, setting(**sizes))


def f32(*shape: int) -> TensorType:
    return TensorType(FLOAT32, shape)


W = np.random.default_rng(0).normal(size=(130, 150)).astype(np.float32)
N = symbol("N", 1, None)


def product(x: object) -> object:
    return ops.maximum(ops.matmul(x, planish.ir.constant(W)), 0.0)


def padded_twice(x: object, w: object) -> object:
    """A convolution over a padded image: one kernel writes the image, another the frame around it."""
    inner = ops.conv(ops.pad(ops.exp(x), 0, low=(0, 0, 1, 1), high=(0, 0, 1, 1), interior=(0, 0, 0, 0)), w,
                     strides=(2, 2), padding=((0, 0), (0, 0)), lhs_dilation=(1, 1), rhs_dilation=(1, 1))
    return ops.tanh(inner)


CASES = {
    "frame": (padded_twice, f32(1, 8, 61, 61), f32(16, 8, 3, 3)),
    "product": (product, f32(125, 130)),
    "row": (product, f32(1, 130)),
    "open rows": (product, TensorType(FLOAT32, (N, 130))),
    "both sides": (lambda x, y: ops.matmul(x, y) + 1.0, f32(67, 129), f32(129, 77)),
    "batch": (ops.matmul, f32(3, 37, 65), f32(3, 65, 41)),
    "whole numbers": (ops.matmul, TensorType(INT32, (67, 130)), TensorType(INT32, (130, 50))),
    "convolution": (lambda x, w: ops.conv(x, w, strides=(1, 1), padding=((1, 1), (1, 1)), lhs_dilation=(1, 1),
                                          rhs_dilation=(1, 1)), f32(1, 8, 13, 17), f32(20, 8, 3, 3)),
    "long chain": (lambda x: ops.tanh(x * x * x * 0.5 + x * x + x) * x, f32(1100, 501)),
    "rows": (lambda x: ops.exp(x) / ops.reduce_sum(ops.exp(x), axes=(1,), keepdims=True), f32(201, 203)),
    "columns": (lambda x: ops.reduce_sum(x, axes=(0,)), f32(301, 203)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_gives_the_same(name: str) -> None:
    function, *types = CASES[name]
    tried = 0
    for subject in kernels(function, *types, N=61):
        if subject.why_not:
            continue
        arrays = subject.arrays()
        expected = candidate(subject, ANALYTIC, arrays).outputs
        picked = subject.moves if name == "product" else [group[-1:] for group in subject.moves]
        for move in (m for group in picked for m in group):
            choice = Choice(**move)
            assert disagreement(candidate(subject, choice, arrays).outputs, expected) == "", str(choice)
            told, plain = (print_kernel(verify_kernel(subject.scheduled(c, Buffers({}))[-1]))
                           for c in (choice, ANALYTIC))
            assert print_kernel(parse_kernel(told)) == told != plain, str(choice)
            tried += 1
    assert tried


def test_combined_choices() -> None:
    subject, = kernels(product, f32(125, 130))
    arrays = subject.arrays()
    expected = candidate(subject, ANALYTIC, arrays).outputs
    for choice in (Choice(tile=(4, 3), unroll=8, group=128 << 10, grid="panels"),
                   Choice(tile=(5, 2), unroll=2, grid="rows", threads=False), Choice(tile=(7, 1), unroll=3)):
        assert disagreement(candidate(subject, choice, arrays).outputs, expected) == ""


def test_a_kernel_has_one_key_whatever_its_buffers_are_called() -> None:
    one, = kernels(product, f32(125, 130))
    two = [input_node("another", f32(125, 130))]
    graph, _ = run_pipeline(Graph(tuple(two), (product(two[0]), ops.neg(product(ops.neg(two[0]))))))
    found = subjects(graph, setting())
    assert one.key in {s.key for s in found}
    assert one.key != kernels(product, f32(124, 130))[0].key


def test_what_only_data_knows_is_not_measured() -> None:
    def rows(x: object, i: object) -> object:
        return ops.take(x, i, axis=0)
    found = kernels(rows, f32(500, 64), TensorType(INT64, (300,)))
    assert [s.why_not for s in found] == ["what it reads depends on the data"]


def test_cold_constants_go_round_copies() -> None:
    subject, = kernels(product, f32(8, 130))
    hot, cold = (replace(subject, setting=replace(subject.setting, cold=c)) for c in (False, True))
    arrays = subject.arrays()
    one, two = candidate(hot, ANALYTIC, arrays), candidate(cold, ANALYTIC, arrays)
    assert all(disagreement(two.run(), one.outputs) == "" for _ in range(COPIES + 1))
