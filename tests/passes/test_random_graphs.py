"""Random programs through the whole pipeline: the reference interpreter gives the same before and after."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import TypeRuleError
from planish.ir import Graph, Node, constant, input_node, interpret, print_graph
from planish.ops.rules import ops
from planish.ops.samples import random_array, special_values
from planish.passes import run_pipeline
from planish.passes.hooks import all_of, compare_each, verify_each
from planish.rewrite.check import same_bits
from planish.types import FLOAT32, INT32, DType, TensorType

UNARY = ("neg", "abs", "sign", "sqrt", "reciprocal", "floor", "relu", "square", "tanh", "bitwise_not")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "floor_div", "mod", "bitwise_and",
          "bitwise_xor")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 8.0)


class Program:
    """A random graph: it grows by one op at a time, on operands made before."""

    def __init__(self, seed: int, dtype: DType):
        self.rng, self.dtype = np.random.default_rng(seed), dtype
        shapes = {"a": (3, 4), "b": (3, 4), "c": (4,), "d": (3, 1)}
        self.inputs = tuple(input_node(name, TensorType(dtype, shape)) for name, shape in shapes.items())
        self.nodes: list[Node] = list(self.inputs)

    def pick(self, options: tuple | list) -> object:
        return options[int(self.rng.integers(len(options)))]

    def node(self) -> Node:
        recent = self.nodes[-6:] if self.rng.random() < 0.6 else self.nodes
        return self.pick(recent)

    def grow(self) -> None:
        made = self.pick([self.unary, self.binary, self.with_number, self.with_number, self.movement,
                          self.movement, self.reduction])
        try:
            self.nodes.append(made())
        except (TypeRuleError, OverflowError):
            return

    def unary(self) -> Node:
        return getattr(ops, self.pick(UNARY))(self.node())

    def binary(self) -> Node:
        return getattr(ops, self.pick(BINARY))(self.node(), self.node())

    def with_number(self) -> Node:
        number = constant(np.asarray(self.pick(NUMBERS)).astype(self.dtype.numpy))
        operands = [self.node(), number]
        return getattr(ops, self.pick(BINARY))(*(operands if self.rng.random() < 0.6 else operands[::-1]))

    def movement(self) -> Node:
        x = self.node()
        axes = tuple(map(int, self.rng.permutation(x.ndim)))
        kind = int(self.rng.integers(6))
        if kind == 0:
            return ops.transpose(x, axes=axes)
        if kind == 1:
            return ops.reshape(x, shape=self.pick([tuple(reversed(x.shape)), (int(np.prod(x.shape)),),
                                                   (*x.shape, 1), (3, 4)]))
        if kind == 2:
            return ops.broadcast_to(x, shape=(3, 4))
        if kind == 3:
            stops = tuple(max(d - int(self.rng.integers(2)), 0) for d in x.shape)
            return ops.slice(x, starts=(0,) * x.ndim, stops=stops, steps=(1,) * x.ndim)
        if kind == 4:
            return ops.concat(x, self.node(), axis=0)
        return ops.reverse(x, axes=axes[:1])

    def reduction(self) -> Node:
        x = self.node()
        axes = tuple(i for i in range(x.ndim) if self.rng.random() < 0.5)
        name = self.pick(["reduce_sum", "reduce_max", "reduce_min"])
        return getattr(ops, name)(x, axes=axes, keepdims=bool(self.rng.random() < 0.5))

    def graph(self, size: int) -> Graph:
        for _ in range(size):
            self.grow()
        return Graph(self.inputs, tuple(self.nodes[len(self.inputs):]))

    def data(self) -> list[np.ndarray]:
        values = special_values(self.dtype)
        return [random_array(self.rng, self.dtype, n.shape) if self.rng.random() < 0.5
                else self.rng.choice(values, n.shape)
                for n in self.inputs]


@pytest.mark.parametrize("dtype", [FLOAT32, INT32], ids=lambda d: d.short)
@pytest.mark.parametrize("block", range(3))
def test_strict_keeps_every_bit(dtype: DType, block: int) -> None:
    fired: dict[str, int] = {}
    for seed in range(block * 20, block * 20 + 20):
        program = Program(seed, dtype)
        graph = program.graph(40)
        after, records = run_pipeline(graph, numerics="strict", hook=verify_each, strict_fuel=True)
        for record in records:
            fired.update(record.fired)
        for _ in range(2):
            inputs = program.data()
            same = all(np.all(same_bits(a, b)) for a, b in zip(interpret(graph, inputs),
                                                               interpret(after, inputs)))
            assert same, f"seed {seed}\n{print_graph(graph)}\n{print_graph(after)}\n{inputs}"
    assert len(fired) > 15   # the programs do meet the rules


@pytest.mark.parametrize("numerics", ["default", "fast"])
def test_other_numerics_keep_integers(numerics: str) -> None:
    for seed in range(100, 130):
        program = Program(seed, INT32)
        graph = program.graph(40)
        after, _ = run_pipeline(graph, numerics=numerics, hook=verify_each, strict_fuel=True)
        inputs = program.data()
        for a, b in zip(interpret(graph, inputs), interpret(after, inputs)):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}\n{print_graph(graph)}")


def test_fast_keeps_floats_near_pass_by_pass() -> None:
    for seed in range(200, 240):
        program = Program(seed, FLOAT32)
        hook = all_of(verify_each, compare_each(program.rng, units=1e4))
        run_pipeline(program.graph(12), numerics="fast", hook=hook, strict_fuel=True)
