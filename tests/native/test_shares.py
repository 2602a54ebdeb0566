"""What each thread does of a product: shares that are as good as equal, whatever is left over at the edges.

In: programs of one product. Each thread is run alone, without claims on the other's share, and what it wrote
is counted.
"""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from planish.codegen.llvm import program
from planish.codegen.llvm.host import host
from planish.ir import Graph, constant, input_node
from planish.ops.rules import ops
from planish.runtime import tables
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode
from planish.runtime.native import runtime
from planish.types import FLOAT32, TensorType
from tests.native.targets import code_for

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def written(m: int, k: int, n: int, threads: int) -> list[np.ndarray]:
    """Which results each thread writes."""
    rng = np.random.default_rng()
    x = input_node("x", TensorType(FLOAT32, (m, k)))
    weights = constant(rng.standard_normal((k, n)), FLOAT32)
    code = code_for(host(), Graph((x,), (ops.matmul(x, weights),)))
    loaded = LoadedCode(link(code.objects()), runtime().provided)
    array = rng.standard_normal((m, k), np.float32)
    result = []
    for thread in range(threads):
        out = np.full((m, n), np.nan, np.float32)
        held = (array, out, *code.constants)
        buffers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
        frame = tables.Frame(ctypes.addressof(buffers), 0, runtime().pool, 0, 0)
        BODY(loaded.address("planish_body"))(ctypes.addressof(frame), thread, threads)
        result.append(~np.isnan(out))
    return result


@pytest.fixture
def unclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads keep to their shares: no launch has a number under which they may claim."""
    monkeypatch.setattr(program, "LAUNCHES", 0)


@pytest.mark.usefixtures("unclaimed")
@pytest.mark.parametrize("m, n, most", [
    (128, 768, 1.0), (197, 768, 1.0), (256, 3072, 1.0),   # panels are even, tiles of rows are not
    (3136, 64, 1.01), (784, 48, 1.02), (508, 80, 1.02),   # rows: hardly uneven, and read by one thread only
    (97, 101, 1.15)])
def test_shares_are_even(m: int, n: int, most: float) -> None:
    parts = written(m, 64, n, 2)
    assert (sum(part.astype(int) for part in parts) == 1).all()
    assert max(part.sum() for part in parts) <= most * m * n / 2


@pytest.mark.usefixtures("unclaimed")
def test_tall_results_are_shared_by_rows() -> None:
    """Each thread then reads its own rows of the left operand, not all."""
    first, second = written(3136, 64, 64, 2)
    assert not (first.any(axis=1) & second.any(axis=1)).any()
