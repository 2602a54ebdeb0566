"""Every op through fusion, schedule and memory plan, judged without a machine.

Both IRs verify, print and parse back, and the program, interpreted harshly, says what the op means in NumPy.
"""
from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from planish.errors import UnsupportedOp
from planish.ir import Graph, get_item, input_node, interpret
from planish.ir.node import make_node
from planish.ops import OPS, Op, Sample
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.kernel import Kernel
from planish.schedule.machine import Machine
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program, program_constants
from planish.schedule.program_verify import verify_program
from planish.schedule.text import parse_kernel, print_kernel
from planish.schedule.verify import verify_kernel
from planish.types import BOOL, FLOAT16, FLOAT32, INT64, DType, TensorType, dtype_of

DTYPES = (FLOAT32, FLOAT16, INT64, BOOL)
SMALL = 100   # elements of operands and results: points of the shared axes are interpreted one by one
SAMPLES = {FLOAT32: 5}   # for each op; 2 of other dtypes
TOLERANCE = {FLOAT16: 2e-3, FLOAT32: 2e-5}
STRUCTURE = {"input", "constant", "item"}
CASES = [(op, d) for op in OPS.values() for d in DTYPES if d in op.dtypes and op.name not in STRUCTURE]


def graph_of(op: Op, sample: Sample) -> Graph:
    types = [TensorType(dtype_of(a), a.shape) for a in sample.operands]
    inputs = tuple(input_node(f"x{i}", t) for i, t in enumerate(types))
    node = make_node(op, inputs, op.make_attributes(sample.attributes))
    several = isinstance(node.type, tuple)
    outputs = tuple(get_item(node, i) for i in range(len(node.type))) if several else (node,)
    return run_pipeline(Graph(inputs, outputs, name=op.name))[0]


def is_small(graph: Graph) -> bool:
    return all(np.prod(n.shape) <= SMALL for n in (*graph.inputs, *graph.outputs))


def check_kernel(kernel: Kernel) -> None:
    text = print_kernel(verify_kernel(kernel))
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_op(op: Op, dtype: DType) -> None:
    samples = op.samples(np.random.default_rng(), dtype)
    small = (s for s in samples if sum(a.size for a in s.operands) <= SMALL)
    for sample in islice(small, SAMPLES.get(dtype, 2)):
        graph = graph_of(op, sample)
        if is_small(graph):
            check_op(graph, sample)


def check_op(graph: Graph, sample: Sample) -> None:
    made: list[Kernel] = []
    try:
        built = build_program(graph, Machine(threads=2), {}, observe=lambda *both: made.extend(both))
    except UnsupportedOp as error:
        pytest.skip(str(error))
    for kernel in made:
        check_kernel(kernel)
    if built.program is None:
        return
    text = print_program(verify_program(built.program))
    assert print_program(parse_program(text, program_constants(built.program))) == text
    results = interpret_program(built.program, sample.operands, harsh=True)
    for expected, (kind, k) in zip(interpret(graph, sample.operands), built.outputs, strict=True):
        if kind == "program":
            rtol = TOLERANCE.get(dtype_of(expected), 0.0)
            found = results[k].reshape(expected.shape)
            assert found.dtype == expected.dtype
            found, expected = found.astype(np.float64), expected.astype(np.float64)
            np.testing.assert_allclose(found, expected, rtol, rtol, err_msg=text)
