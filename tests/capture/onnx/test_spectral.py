"""DFT, STFT, MelWeightMatrix, Det, TensorScatter against the reference evaluator."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from planish.errors import UnsupportedOp
from tests.capture.onnx.running import STRATEGIES, assert_same, check, make_model, one_node, reference, run
from tests.capture.onnx.test_operators import floats, rng_of


@pytest.mark.parametrize("length", [None, 5, 8, 13])
@pytest.mark.parametrize("parts, how", [(1, {}), (2, {}), (1, {"onesided": 1}), (2, {"inverse": 1}),
                                        (2, {"inverse": 1, "onesided": 1})])
def test_dft(length: int | None, parts: int, how: dict[str, int]) -> None:
    rng = rng_of("dft", length, parts)
    x = floats(rng, np.float32, 2, 9, 3, parts)
    given = None if length is None else np.array(length)
    model, feeds = one_node("DFT", [x, given, np.array(1)], fixed=(1, 2) if length else (2,), opset=20, **how)
    check(model, feeds, 16)


def test_dft_by_attribute() -> None:
    rng = rng_of("dft 17")
    model, feeds = one_node("DFT", [floats(rng, np.float64, 2, 4, 10, 1)], opset=17, axis=2)
    check(model, feeds, 16)


@pytest.mark.parametrize("how", [{}, {"inverse": 1}, {"onesided": 1, "inverse": 1}])
def test_dft_of_open_size(how: dict[str, int]) -> None:
    """The matrix is computed at run time; long angles lose nothing."""
    rng = rng_of("open dft")
    node = helper.make_node("DFT", ["x"], ["y"], **how)
    model = make_model([node], {"x": (np.float32, ["n", "t", 2])}, ["y"], opset=20)
    graph = load_graph(model)
    for shape in ((2, 7, 2), (1, 600, 2)):
        feeds = {"x": floats(rng, np.float32, *shape)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), reference(model, feeds), 64)


@pytest.mark.parametrize("window, length, how", [(True, True, {}), (True, False, {"onesided": 0}),
                                                 (False, True, {})])
def test_stft(window: bool, length: bool, how: dict[str, int]) -> None:
    rng = rng_of("stft", window, length)
    arrays = [floats(rng, np.float32, 2, 67, 1), np.array(5), floats(rng, np.float32, 16) if window else None,
              np.array(16) if length else None]
    fixed = tuple(i for i in (1, 3) if arrays[i] is not None)
    model, feeds = one_node("STFT", arrays, fixed=fixed, opset=17, **how)
    check(model, feeds, 16)


def test_stft_of_open_length() -> None:
    rng = rng_of("open stft")
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    model = make_model([node], {"x": (np.float32, [1, "t", 1])}, ["y"],
                       initializers={"step": np.array(4), "window": floats(rng, np.float32, 8)})
    graph = load_graph(model)
    for size in (8, 33, 50):
        feeds = {"x": floats(rng, np.float32, 1, size, 1)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), reference(model, feeds), 16)


@pytest.mark.parametrize("bins, length, rate, low, high", [
    (8, 16, 8192, 0, 4096), (20, 512, 16000, 20, 7600),
])
def test_mel_weight_matrix(bins: int, length: int, rate: int, low: float, high: float) -> None:
    arrays = [np.array(bins), np.array(length), np.array(rate), np.float32(low), np.float32(high)]
    model, feeds = one_node("MelWeightMatrix", [np.asarray(a) for a in arrays], fixed=(0, 1, 2), opset=17)
    check(model, feeds, 16)


# --- Det

@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 3, 3), (2, 3, 7, 7), (40, 40), (0, 3, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_det(shape: tuple[int, ...], dtype: Any) -> None:
    rng = rng_of("det", shape)
    model, feeds = one_node("Det", [floats(rng, dtype, *shape, low=-1, high=1)], opset=22)
    check(model, feeds, 256)


def test_det_needs_exchanges() -> None:
    """Zeros on the diagonal; a singular matrix; a permutation."""
    rng = rng_of("exchange")
    hollow = floats(rng, np.float64, 4, 4) * (1 - np.eye(4))
    singular = np.stack([hollow[0], hollow[1], hollow[0], hollow[2]])
    singular[:, 3] = 0
    x = np.stack([hollow, singular, np.eye(4)[[2, 0, 3, 1]]])
    model, feeds = one_node("Det", [x], opset=22)
    check(model, feeds, 64)


def test_det_of_open_size() -> None:
    rng = rng_of("open det")
    node = helper.make_node("Det", ["x"], ["y"])
    model = make_model([node], {"x": (np.float64, ["b", "n", "n"])}, ["y"], opset=22)
    graph = load_graph(model)
    for shape in ((3, 2, 2), (1, 9, 9)):
        feeds = {"x": floats(rng, np.float64, *shape)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), reference(model, feeds), 256)


# --- TensorScatter

@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis, shape", [(-2, (3, 2, 8, 4)), (1, (2, 6, 5))])
def test_tensor_scatter(mode: str, axis: int, shape: tuple[int, ...]) -> None:
    rng = rng_of("cache", mode, axis)
    size = list(shape)
    size[axis] = 3
    last = shape[axis] if mode == "circular" else shape[axis] - 2
    starts = rng.integers(0, last, shape[0])
    arrays = [floats(rng, np.float32, *shape), floats(rng, np.float32, *size), starts]
    model, feeds = one_node("TensorScatter", arrays, opset=24, mode=mode, axis=axis)
    check(model, feeds, 0.01)


def test_a_length_that_is_data_is_named() -> None:
    model, _ = one_node("DFT", [np.zeros((1, 4, 1), np.float32), np.array(4)], opset=20)
    with pytest.raises(UnsupportedOp, match=r"dft_length.*depends on the values of inputs"):
        load_graph(model)
