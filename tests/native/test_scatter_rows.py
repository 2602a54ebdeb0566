"""Rows put where indices say: vectors along a row, in the order of the indices, whatever stands twice."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from planish.ops import OPS, Sample
from planish.ops.samples import random_array
from planish.passes import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.kernel import Kernel
from planish.schedule.machine import Machine
from planish.types import BFLOAT16, BOOL, FLOAT32, FLOAT64, INT8, INT64, DType
from tests.native.harness import check_native, graph_of

WIDTHS = (1, 7, 8, 37, 64)
ROWS, UPDATES = 6, 25   # many rows are named several times
SCATTER = OPS["scatter_nd"]


def samples(dtype: DType) -> Iterator[Sample]:
    """Indices from both ends, some of them outside."""
    rng = np.random.default_rng()
    for width in WIDTHS:
        for reduction in ("none", "add", "mul", "max", "min"):
            x, u = (random_array(rng, dtype, (rows, width)) for rows in (ROWS, UPDATES))
            index = rng.integers(-ROWS - 2, ROWS + 2, (UPDATES, 1))
            yield Sample((x, index, u), {"reduction": reduction}, f"{width} {reduction}")


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, BFLOAT16, INT8, INT64, BOOL], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # products overflow
def test_rows(dtype: DType) -> None:
    check_native(SCATTER, list(samples(dtype)))


def test_long_rows_are_vectors() -> None:
    found: list[Kernel] = []
    chosen = [s for s in samples(FLOAT32) if s.label in ("64 add", "7 add")]
    graph, _ = run_pipeline(graph_of(SCATTER, chosen), numerics="default")
    machine = Machine(vector_bytes=32, registers=16, threads=2)
    build_program(graph, machine, {}, observe=lambda before, after: found.append(after))
    short, long = (k for k in found if k.serial)
    assert [s.axes[-1].lanes for s in long.stages] == [8, 8]
    assert [s.axes[-1].lanes for s in short.stages] == [1, 1]
