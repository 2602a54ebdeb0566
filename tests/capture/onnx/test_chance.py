"""Random operators: the statistics of their numbers, seeds; and the optimizer steps."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from tests.capture.onnx.running import STRATEGIES, assert_same, make_model, one_node, reference, run
from tests.capture.onnx.test_operators import floats, rng_of

MANY = (100, 300)


def drawn(op_type: str, arrays: list[np.ndarray], outputs: int = 1, fixed: tuple[int, ...] = (),
          opset: int = 22, **how: Any) -> list[np.ndarray]:
    """By every strategy the same."""
    model, feeds = one_node(op_type, arrays, outputs=outputs, fixed=fixed, opset=opset, **how)
    graph = load_graph(model)
    first, second = (run(graph, feeds, strategy) for strategy in STRATEGIES)
    assert_same(first, second)
    return first


def test_uniform() -> None:
    x, = drawn("RandomUniform", [], shape=MANY, low=-2.0, high=5.0, seed=3.0)
    assert x.dtype == np.float32 and -2 <= x.min() and x.max() < 5
    assert abs(x.mean() - 1.5) < 0.05 and abs(x.std() - 7 / np.sqrt(12)) < 0.05


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normal(dtype: Any) -> None:
    x, = drawn("RandomNormalLike", [np.zeros(MANY, dtype)], mean=3.0, scale=2.0, seed=1.0)
    assert x.dtype == dtype
    wide = x.astype(np.float64)
    assert abs(wide.mean() - 3) < 0.05 and abs(wide.std() - 2) < 0.05
    assert abs(((wide - 3) ** 3).mean()) < 0.5


def test_seeds() -> None:
    """The same seed, the same numbers; without one, another node has others."""
    def numbers(**how: Any) -> np.ndarray:
        return drawn("RandomUniform", [], shape=[50], **how)[0]
    np.testing.assert_array_equal(numbers(seed=2.0), numbers(seed=2.0))
    assert not np.array_equal(numbers(seed=2.0), numbers(seed=3.0))
    assert not np.array_equal(numbers(), numbers())


@pytest.mark.parametrize("opset", [15, 22])
def test_bernoulli(opset: int) -> None:
    p = np.linspace(0, 1, 11, dtype=np.float32).reshape(11, 1) * np.ones((11, 4000), np.float32)
    x, = drawn("Bernoulli", [p], opset=opset, seed=1.0, dtype=7)
    assert x.dtype == np.int64 and set(np.unique(x)) == {0, 1}
    np.testing.assert_allclose(x.mean(axis=1), p[:, 0], atol=0.04)
    assert not x[0].any() and x[-1].all()


def test_multinomial() -> None:
    rng = rng_of("multinomial")
    logits = floats(rng, np.float32, 3, 6)
    x, = drawn("Multinomial", [logits], sample_size=20_000, seed=1.0, dtype=6)
    assert x.dtype == np.int32 and x.shape == (3, 20_000) and 0 <= x.min() and x.max() < 6
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    shares = (x[:, :, None] == np.arange(6)).mean(axis=1)
    np.testing.assert_allclose(shares, weights, atol=0.02)


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_dropout_in_training(ratio: float) -> None:
    rng = rng_of("dropout")
    x = floats(rng, np.float32, *MANY)
    y, mask = drawn("Dropout", [x, np.float32(ratio), np.array(True)], 2, (1, 2), seed=7)
    assert mask.dtype == bool and abs(mask.mean() - (1 - ratio)) < 0.02
    np.testing.assert_allclose(y, np.where(mask, x / np.float32(1 - ratio), 0), rtol=1e-6)


def test_dropout_chosen_at_run_time() -> None:
    rng = rng_of("mode")
    x = floats(rng, np.float32, 40, 50)
    for training in (False, True):
        y, mask = drawn("Dropout", [x, np.float32(0.5), np.array(training)], 2)
        assert mask.all() != training and np.array_equal(y, x) != training


@pytest.mark.parametrize("opset, dtype", [(7, np.float32), (10, np.bool_)])
def test_mask_of_older_dropout(opset: int, dtype: Any) -> None:
    _, mask = drawn("Dropout", [np.ones((2, 3), np.float32)], 2, opset=opset)
    assert mask.dtype == dtype and mask.all()


# --- optimizer steps

@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("op_type, states, how", [
    ("Momentum", 1, {"alpha": 0.9, "beta": 0.1, "norm_coefficient": 0.01, "mode": "standard"}),
    ("Momentum", 1, {"alpha": 0.95, "beta": 0.8, "norm_coefficient": 0.02, "mode": "nesterov"}),
    ("Adam", 2, {"alpha": 0.9, "beta": 0.99, "epsilon": 1e-6, "norm_coefficient": 0.01,
                 "norm_coefficient_post": 0.02}),
    ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-6, "norm_coefficient": 0.01}),
])
@pytest.mark.parametrize("tensors", [1, 2])
def test_optimizer(op_type: str, states: int, how: dict[str, Any], updates: int, tensors: int) -> None:
    rng = rng_of(op_type, how, updates)
    shapes = [(3, 5), (17,)][:tensors]
    names = ["r", "t", *(f"{kind}{i}" for kind in "xgvh"[:2 + states] for i in range(tensors))]
    feeds = {"r": np.array(0.1, np.float32), "t": np.array(updates, np.int64)}
    for name in names[2:]:
        feeds[name] = floats(rng, np.float32, *shapes[int(name[1])], low=0.1)
    outputs = [f"y{i}" for i in range((1 + states) * tensors)]
    node = helper.make_node(op_type, names, outputs, domain="ai.onnx.preview.training", **how)
    model = make_model([node], feeds, outputs, domains={"ai.onnx.preview.training": 1})
    expected = [y.astype(np.float32) for y in reference(model, feeds)]
    for strategy in STRATEGIES:
        assert_same(run(load_graph(model), feeds, strategy), expected, 16)
