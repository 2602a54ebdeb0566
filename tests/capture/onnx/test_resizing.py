"""Resize and Upsample in every mode against the reference evaluator and ONNX Runtime; sizes left open."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from planish.errors import UnsupportedOp
from tests.capture.onnx.running import (
    STRATEGIES,
    assert_same,
    check,
    make_model,
    one_node,
    onnxruntime_outputs,
    reference,
    run,
)
from tests.capture.onnx.test_operators import floats, in_onnxruntime, rng_of

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def resize(x: np.ndarray, *, scales: Any = None, sizes: Any = None, opset: int = 19,
           **how: Any) -> tuple[Any, dict[str, np.ndarray]]:
    arrays = [x, None, None if scales is None else np.array(scales, np.float32),
              None if sizes is None else np.array(sizes, np.int64)]
    fixed = (2,) if sizes is None else (3,)
    return one_node("Resize", arrays[:fixed[0] + 1], fixed=fixed, opset=opset, **how)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(7, 13), (3, 4), (1, 17)])
def test_interpolation(mode: str, coordinates: str, sizes: tuple[int, int]) -> None:
    rng = rng_of(mode, coordinates, sizes)
    model, feeds = resize(floats(rng, np.float32, 2, 3, 5, 6), sizes=(2, 3, *sizes), mode=mode,
                          coordinate_transformation_mode=coordinates)
    check(model, feeds, 32)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_nearest(coordinates: str, rounding: str) -> None:
    rng = rng_of(coordinates, rounding)
    for sizes in ((7, 13), (3, 4), (10, 12)):
        model, feeds = resize(floats(rng, np.float32, 1, 2, 5, 6), sizes=(1, 2, *sizes), mode="nearest",
                              coordinate_transformation_mode=coordinates, nearest_mode=rounding)
        check(model, feeds)


@pytest.mark.parametrize("mode, how", [("linear", {}), ("cubic", {}), ("cubic", {"exclude_outside": 1}),
                                       ("cubic", {"cubic_coeff_a": -0.5})])
@pytest.mark.parametrize("scales", [(0.6, 0.37), (1.7, 0.5)])
def test_antialias(mode: str, how: dict[str, Any], scales: tuple[float, float]) -> None:
    rng = rng_of(mode, how, scales)
    x = floats(rng, np.float32, 1, 2, 11, 17)
    model, feeds = resize(x, scales=(1, 1, *scales), mode=mode, antialias=1, **how)
    check(model, feeds, 64)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio_and_axes(policy: str) -> None:
    rng = rng_of(policy)
    model, feeds = resize(floats(rng, np.float32, 1, 2, 5, 6), sizes=(9, 8), mode="linear", axes=[2, 3],
                          keep_aspect_ratio_policy=policy)
    check(model, feeds, 32)


def test_crop_of_a_region_that_is_data() -> None:
    rng = rng_of("crop")
    x, roi = floats(rng, np.float32, 2, 3, 7, 8), np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 1.2], np.float32)
    how = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
           "extrapolation_value": 7.5}
    model, feeds = one_node("Resize", [x, roi, None, np.array([2, 3, 5, 6])], fixed=(3,), opset=19, **how)
    check(model, feeds, 32)


@pytest.mark.parametrize("opset, op_type", [(7, "Upsample"), (9, "Upsample"), (10, "Resize")])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_older_opsets(opset: int, op_type: str, mode: str) -> None:
    rng = rng_of("older", opset, mode)
    x, scales = floats(rng, np.float32, 1, 2, 4, 5), np.array([1, 1, 2, 1.5], np.float32)
    if opset == 7:
        model, feeds = one_node(op_type, [x], opset=opset, mode=mode, scales=scales.tolist())
    else:
        model, feeds = one_node(op_type, [x, scales], fixed=(1,), opset=opset, mode=mode)
    in_onnxruntime(model, feeds)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_floats(dtype: Any) -> None:
    rng = rng_of(dtype)
    model, feeds = resize(floats(rng, dtype, 1, 2, 5, 6), sizes=(1, 2, 7, 9), mode="linear")
    check(model, feeds, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_whole_numbers_are_cut_once(dtype: Any) -> None:
    """As in ONNX Runtime; its float32 may lie on the other side of a whole number."""
    rng = rng_of(dtype)
    x = rng.integers(0, 100, (1, 2, 5, 6)).astype(dtype)
    model, feeds = resize(x, sizes=(1, 2, 17, 19), mode="linear")
    want = onnxruntime_outputs(model, feeds)[0].astype(int)
    for strategy in STRATEGIES:
        y, = run(load_graph(model), feeds, strategy)
        assert y.dtype == dtype and abs(y - want).max() <= 1 and (y != want).mean() < 0.1


def test_far_elements_do_not_matter() -> None:
    """An infinite element reaches its neighbours only."""
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8)
    x[..., 7] = np.inf
    model, feeds = resize(x, scales=(1, 1, 1, 2), mode="linear")
    for strategy in STRATEGIES:
        y, = run(load_graph(model), feeds, strategy)
        assert np.isfinite(y[..., :12]).all()


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_open_sizes_by_scales(mode: str, coordinates: str) -> None:
    rng = rng_of("open", mode, coordinates)
    scales = np.array([1, 1, 1.5, 0.75], np.float32)
    how = {"mode": mode, "coordinate_transformation_mode": coordinates}
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **how)
    model = make_model([node], {"x": (np.float32, ["n", 2, "h", "w"])}, ["y"], opset=18,
                       initializers={"s": scales})
    graph = load_graph(model)
    for shape in ((1, 2, 5, 9), (2, 2, 8, 16)):
        feeds = {"x": floats(rng, np.float32, *shape)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), reference(model, feeds), 32)


def test_to_the_size_of_another() -> None:
    """As a feature pyramid does: the wanted size is that of a second input, no multiple of the first."""
    rng = rng_of("pyramid")
    nodes = [helper.make_node("Shape", ["z"], ["size"], start=2),
             helper.make_node("Resize", ["x", "", "", "size"], ["y"], mode="linear", axes=[2, 3])]
    sizes = {"x": (np.float32, [1, 2, "h", "w"]), "z": (np.float32, [1, 4, "p", "q"])}
    model = make_model(nodes, sizes, ["y"], opset=18)
    graph = load_graph(model)
    for (h, w), (p, q) in (((4, 5), (9, 7)), ((6, 3), (6, 11))):
        feeds = {"x": floats(rng, np.float32, 1, 2, h, w), "z": floats(rng, np.float32, 1, 4, p, q)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), onnxruntime_outputs(model, feeds), 64)


def test_what_needs_a_size_says_so() -> None:
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear", antialias=1)
    model = make_model([node], {"x": (np.float32, [1, 1, "h", "w"])}, ["y"], opset=18,
                       initializers={"s": np.array([1, 1, 4, 4])})
    with pytest.raises(UnsupportedOp, match="antialias from size h to 4"):
        load_graph(model)
