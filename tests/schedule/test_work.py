"""How much work kernels are: what decides whether threads share them, and whether a call uses threads."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import Node, constant
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.runtime.tables import WORTH_THREADS
from planish.types import FLOAT32, TensorType


def layers(rows: int, width: int, count: int) -> tuple[list[bool], int]:
    """Whether each layer of a stack is shared among threads, and the work that a call shares."""
    weights = np.random.default_rng(0).standard_normal((count, width, width)).astype(np.float32)

    def stack(x: Node) -> Node:
        for w in weights:
            x = ops.tanh(x @ constant(w))
        return x

    compiled = compile_graph(build_graph(stack, TensorType(FLOAT32, (rows, width))), Options(threads=2))
    shared = ["parallel" in " ".join(map(str, k.schedule)) for k in compiled.report.kernels]
    return shared, compiled.code.code.work  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "count", "pays"), [(64, 3, False), (256, 1, True), (256, 3, True)])
def test_one_row_is_worth_what_its_weights_are_to_read(width: int, count: int, pays: bool) -> None:
    shared, work = layers(1, width, count)
    assert shared == [pays] * count
    assert (work >= WORTH_THREADS) == pays
    assert work == pays * count * width * width * (1 + 4)
