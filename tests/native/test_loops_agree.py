"""The loops interpreter and the compiled kernel agree on products, convolutions and attention of odd sizes,
and their schedules read as the goldens say: `planish inspect --stage loops`."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planish.compiler import NativeCompiled, Options, compile_graph, machine_of
from planish.ir import Graph, Node, constant, input_node
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_verify import verify_program
from planish.schedule.text import parse_kernel, print_kernel
from planish.types import FLOAT32, TensorType
from tests.native.targets import AVX2

GOLDENS = Path(__file__).parent / "goldens"
rng = np.random.default_rng()


def weight(*shape: int, terms: int) -> Node:
    """So that sums of that many terms are about 1."""
    return constant((rng.normal(size=shape) / np.sqrt(terms)).astype(np.float32))


def product(m: int, k: int, n: int) -> tuple[Callable, list[tuple[int, ...]]]:
    return lambda x, b: ops.relu(ops.add(ops.matmul(x, weight(k, n, terms=k)), b)), [(m, k), (n,)]


def convolution(h: int, w: int, channels: int, out: int) -> tuple[Callable, list[tuple[int, ...]]]:
    """3 x 3 between two of 1 x 1: its operand and its result lie channels innermost."""
    def conv(x: Node, out: int, size: int) -> Node:
        case = conv_case(2, padding=((size // 2, size // 2),) * 2)
        return ops.conv(x, weight(out, x.shape[1], size, size, terms=x.shape[1] * size ** 2), **case)

    def function(x: Node) -> Node:
        return conv(ops.relu(conv(ops.relu(conv(x, channels, 1)), out, 3)), 5, 1)
    return function, [(1, 3, h, w)]


def attention(queries: int, keys: int, features: int) -> tuple[Callable, list[tuple[int, ...]]]:
    shapes = [(2, queries, features), (2, keys, features), (2, keys, features)]
    return lambda q, k, v: ops.attention(q, k, v, causal=True), shapes


def graph_of(program: tuple[Callable, list[tuple[int, ...]]]) -> Graph:
    make, shapes = program
    inputs = tuple(input_node(name, TensorType(FLOAT32, s)) for name, s in zip("xyz", shapes))
    return Graph(inputs, (make(*inputs),))


ODD = {
    **{f"product {m} {k} {n}": product(m, k, n)
       for m, k, n in ((1, 67, 131), (2, 67, 45), (7, 33, 17), (13, 65, 31), (49, 39, 50))},
    **{f"convolution {h} {w} {c} {o}": convolution(h, w, c, o)
       for h, w, c, o in ((5, 7, 9, 21), (7, 7, 16, 19), (3, 11, 5, 33), (1, 13, 8, 8))},
    **{f"attention {q} {k} {f}": attention(q, k, f)
       for q, k, f in ((1, 67, 13), (3, 300, 9), (49, 51, 21), (65, 290, 17))},
}


@pytest.mark.parametrize("name", ODD)
def test_the_interpreter_agrees_with_the_compiled_kernel(name: str) -> None:
    graph = graph_of(ODD[name])
    arrays = [rng.normal(size=n.shape).astype(np.float32) for n in graph.inputs]
    compiled = compile_graph(graph, Options(threads=2))
    assert isinstance(compiled, NativeCompiled)
    slow = interpret_program(verify_program(compiled.built.program), arrays, harsh=True)[0]
    got = compiled(*arrays)[0]
    np.testing.assert_allclose(got, slow.reshape(got.shape), rtol=1e-5, atol=2e-5)


READ = {
    "product": (product(96, 64, 100), "k0"),
    "convolution": (convolution(14, 14, 24, 40), "k1"),
    "attention": (attention(100, 300, 32), "k0"),
}


@pytest.mark.parametrize("name", READ)
def test_a_schedule_can_be_read(name: str, golden: Callable[[Path, str], None]) -> None:
    """As scheduled for AVX2 and two threads, whatever machine this is."""
    program, wanted = READ[name]
    optimized, _ = run_pipeline(graph_of(program))
    built = build_program(optimized, machine_of(AVX2), {})
    kernel, = (k for k in built.program.kernels if k.name == wanted)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    golden(GOLDENS / f"{name}.loops", text + "\n")
