"""Random programs of nested choices and loops on integers: native code, and the program IR interpreted
harshly, give exactly what the reference interpreter gives."""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from planish.compiler import compile_graph
from planish.ir import Graph, Node, constant, interpret, print_graph
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.machine import Machine
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program, program_constants
from planish.schedule.program_verify import verify_program
from planish.types import INT32, INT64, TensorType

PROGRAMS = 6    # for each size
DEPTH = 2       # of nesting
COUNT = TensorType(INT64)

EXPRESSIONS: Sequence[Callable[[Node, Node], Node]] = (
    lambda a, b: a + b,
    lambda a, b: ops.bitwise_xor(a, b),
    lambda a, b: a * 3 - b,
    lambda a, b: ops.cumsum(a, axis=0),
    lambda a, b: ops.reverse(a, axes=(0,)),
    lambda a, b: a + ops.reduce_max(b, axes=(0,), keepdims=True),
    lambda a, b: ops.sort(a, axis=0),
    lambda a, b: a,
)


class RandomControl:
    """Makes values of one type from values of that type."""

    def __init__(self, chance: random.Random, size: int):
        self.chance, self.type = chance, TensorType(INT32, (size,))

    def graph(self) -> Graph:
        return build_graph(lambda a, b: self.results([a, b], DEPTH, 3), self.type, self.type)

    def results(self, values: Sequence[Node], depth: int, count: int) -> tuple[Node, ...]:
        """`count` of the values and what a few steps make of them; late ones rather."""
        values = list(values)
        for _ in range(self.chance.randint(1, 4)):
            if depth and self.chance.random() < 0.4:
                values += self.control(values, depth - 1)
            else:
                values.append(self.chance.choice(EXPRESSIONS)(*self.some(values, 2)))
        return self.some(values, count)

    def some(self, values: Sequence[Node], count: int) -> tuple[Node, ...]:
        return tuple(self.chance.choice([*values, *values[-4:]]) for _ in range(count))

    def control(self, values: Sequence[Node], depth: int) -> Sequence[Node]:
        state = self.some(values, self.chance.randint(1, 3))
        make = self.chance.choice([self.cond, self.while_loop, self.scan_loop])
        return make(values, state, lambda *xs: self.results(xs, depth, len(state)))

    def cond(self, values: Sequence[Node], state: Sequence[Node], body: Callable[..., Any]) -> Sequence[Node]:
        left, right = (ops.reduce_sum(v, axes=(0,)) for v in self.some(values, 2))
        then, otherwise = (build_graph(body, *[self.type] * len(state)) for _ in range(2))
        return ops.cond(ops.gt(left, right), *state, then_graph=then, else_graph=otherwise)

    def while_loop(self, values: Sequence[Node], state: Sequence[Node],
                   body: Callable[..., Any]) -> Sequence[Node]:
        rounds, types = self.chance.randint(0, 3), [COUNT, *[self.type] * len(state)]
        return ops.while_loop(constant(np.array(0)), *state,
                              condition=build_graph(lambda i, *_: ops.lt(i, rounds), *types),
                              body=build_graph(lambda i, *xs: (i + 1, *body(*xs)), *types))[1:]

    def scan_loop(self, values: Sequence[Node], state: Sequence[Node],
                  body: Callable[..., Any]) -> Sequence[Node]:
        length, carries = self.chance.randint(1, 3), len(state)
        rows = [ops.reshape(v, shape=(1, *self.type.shape)) for v in self.some(values, length)]

        def one(*xs: Node) -> tuple[Node, ...]:
            made = body(*xs)
            return *made, self.chance.choice([*made, *xs])
        graph = build_graph(one, *[self.type] * (carries + 1))
        *last, stacked = ops.scan_loop(*state, ops.concat(*rows, axis=0), body=graph, length=length,
                                       carries=carries, reverse=self.chance.random() < 0.5)
        return *last, ops.reduce_sum(stacked, axes=(0,))


@pytest.mark.parametrize("size", [5, 33, 5000])
def test_random_control(size: int) -> None:
    maker, rng = RandomControl(random.Random(), size), np.random.default_rng()
    for _ in range(PROGRAMS):
        graph = maker.graph()
        arrays = [rng.integers(-9, 9, size, np.int32) for _ in range(2)]
        expected, text = interpret(graph, arrays), print_graph(graph)
        for y, right in zip(compile_graph(graph)(*arrays), expected, strict=True):
            np.testing.assert_array_equal(y, right, err_msg=text)
        check_program(graph, arrays, expected if size < 100 else ())


def check_program(graph: Graph, arrays: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """The program IR verifies, prints and parses back, and gives what is expected."""
    built = build_program(run_pipeline(graph)[0], Machine(threads=2), {})
    text = print_program(verify_program(built.program))
    assert print_program(parse_program(text, program_constants(built.program))) == text
    results = interpret_program(built.program, arrays, harsh=True) if expected else ()
    for right, (kind, k) in zip(expected, built.outputs):
        if kind == "program":
            np.testing.assert_array_equal(results[k].reshape(right.shape), right, err_msg=text)
