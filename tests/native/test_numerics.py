"""What the numerics classes promise of a contraction."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir.graph import build_graph
from planish.ops import get_op
from planish.types import FLOAT32, TensorType


def product(x, w):
    return get_op("dot_general")(x, w, lhs_contract=(1,), rhs_contract=(0,))


def in_order(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Products added one after another, each operation rounded."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        total = total + x[:, k:k + 1] * w[k]
    return total


@pytest.mark.parametrize("shape", [(7, 33, 20), (64, 100, 48), (1, 65, 33)])
def test_strict_rounds_every_operation(shape):
    m, k, n = shape
    rng = np.random.default_rng()
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    graph = build_graph(product, TensorType(FLOAT32, (m, k)), TensorType(FLOAT32, (k, n)))
    strict, default = (compile_graph(graph, Options(numerics=n))(x, w)[0] for n in ("strict", "default"))
    np.testing.assert_array_equal(strict, in_order(x, w))
    np.testing.assert_allclose(default, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keepdims", [True, False])
def test_exp_of_a_distance_from_a_maximum(axis: int, keepdims: bool) -> None:
    """Never positive, and taken for that, where the maximum is that of the same row: of a square, the maxima
    of the rows go with the columns unless they keep their axis."""
    rng = np.random.default_rng()
    x = rng.standard_normal((32, 32)).astype(np.float32) * np.float32(60)
    x[3, 5], x[7] = np.nan, -np.inf
    reduce_max, exp, sub = map(get_op, ("reduce_max", "exp", "sub"))
    graph = build_graph(lambda x: exp(sub(x, reduce_max(x, axes=(axis,), keepdims=keepdims))),
                        TensorType(FLOAT32, x.shape))
    with np.errstate(all="ignore"):
        expected = np.exp((x - x.max(axis, keepdims=keepdims)).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(compile_graph(graph, Options())(x)[0], expected, rtol=3e-7, atol=3e-45)
