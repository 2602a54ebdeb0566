"""GridSample, DeformConv, RoiAlign, MaxRoiPool, and pooling with indices, on fresh random data."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish.capture.onnx import load_graph
from tests.capture.onnx.running import (
    STRATEGIES,
    assert_same,
    corrected_runtime,
    make_model,
    one_node,
    onnxruntime_outputs,
    reference,
    run,
)
from tests.capture.onnx.test_operators import floats, in_onnxruntime, rng_of


def in_reference(model: Any, feeds: dict[str, np.ndarray], factor: float = 32) -> None:
    expected = reference(model, feeds)
    for strategy in STRATEGIES:
        assert_same(run(load_graph(model), feeds, strategy), expected, factor)


# --- GridSample

PADDINGS = ("zeros", "border", "reflection")
MODES = ("linear", "nearest", "cubic")


@pytest.mark.parametrize(("mode", "padding", "align"), [   # each with each of the others
    *((mode, padding, (i + j) % 2) for i, mode in enumerate(MODES) for j, padding in enumerate(PADDINGS)),
    *(("cubic", padding, j % 2 == 1) for j, padding in enumerate(PADDINGS))])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    rng = rng_of("grid", mode, padding, align)
    arrays = [floats(rng, np.float32, 2, 3, 5, 7), floats(rng, np.float32, 2, 4, 6, 2, low=-1.6, high=1.6)]
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    model, feeds = one_node("GridSample", arrays, opset=20, **how)
    (in_onnxruntime if mode == "cubic" else in_reference)(model, feeds, 100)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_older_names(mode: str) -> None:
    rng = rng_of("older", mode)
    arrays = [floats(rng, np.float32, 1, 2, 6, 9), floats(rng, np.float32, 1, 3, 17, 2, low=-1.2, high=1.2)]
    model, feeds = one_node("GridSample", arrays, opset=16, mode=mode, padding_mode="border", align_corners=1)
    in_onnxruntime(model, feeds, 100)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "reflection"])
def test_grid_sample_volume(mode: str, padding: str) -> None:
    rng = rng_of("volume", mode)
    grid = floats(rng, np.float32, 2, 2, 3, 5, 3, low=-1.3, high=1.3)
    arrays = [floats(rng, np.float32, 2, 2, 3, 5, 4), grid]
    model, feeds = one_node("GridSample", arrays, opset=20, mode=mode, padding_mode=padding)
    in_onnxruntime(model, feeds, 100)


def test_grid_sample_of_open_sizes() -> None:
    """One compile for all sizes of image and grid."""
    from onnx import helper
    rng = rng_of("open grid")
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="linear", padding_mode="reflection")
    inputs = {"x": (np.float32, ["n", "c", "h", "w"]), "g": (np.float32, ["n", "p", "q", 2])}
    model = make_model([node], inputs, ["y"], opset=20)
    graph = load_graph(model)
    for n, c, h, w, p, q in ((1, 2, 4, 5, 3, 3), (3, 1, 8, 1, 2, 9)):
        feeds = {"x": floats(rng, np.float32, n, c, h, w), "g": floats(rng, np.float32, n, p, q, 2)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), onnxruntime_outputs(model, feeds), 100)


# --- DeformConv

@pytest.mark.parametrize("group, moved, mask", [(1, 1, False), (2, 1, True), (1, 2, True), (2, 4, False)])
def test_deform_conv(group: int, moved: int, mask: bool) -> None:
    if not corrected_runtime():
        pytest.skip("this ONNX Runtime has no DeformConv")
    rng = rng_of("deform", group, moved)
    x, w = floats(rng, np.float32, 2, 4, 7, 6), floats(rng, np.float32, 6, 4 // group, 3, 2)
    out = (4, 5)  # strides 2, 1; pads 1, 0, 1, 0
    offset = floats(rng, np.float32, 2, moved * 12, *out, low=-1.5, high=1.5)
    arrays = [x, w, offset, floats(rng, np.float32, 6)]
    arrays += [floats(rng, np.float32, 2, moved * 6, *out, low=0, high=1)] if mask else []
    model, feeds = one_node("DeformConv", arrays, opset=19, group=group, offset_group=moved, strides=[2, 1],
                            pads=[1, 0, 1, 0])
    in_onnxruntime(model, feeds, 100)


# --- regions

def regions(rng: np.random.Generator, count: int, width: float, height: float) -> np.ndarray:
    """Some reach over the edges."""
    x, y = rng.uniform(-2, width, (2, count, 1))
    size = rng.uniform(0.5, 8, (count, 2))
    return np.concatenate([x, y, x + size[:, :1], y + size[:, 1:]], axis=1).astype(np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("opset, where", [(10, None), (16, "output_half_pixel"), (16, "half_pixel")])
def test_roi_align(mode: str, ratio: int, opset: int, where: str | None) -> None:
    rng = rng_of("align", mode, ratio, where)
    how = {"coordinate_transformation_mode": where} if where else {}
    arrays = [floats(rng, np.float32, 2, 3, 9, 12), regions(rng, 5, 20, 16), rng.integers(0, 2, 5)]
    model, feeds = one_node("RoiAlign", arrays, opset=opset, mode=mode, sampling_ratio=ratio,
                            spatial_scale=0.5, output_height=3, output_width=2, **how)
    (in_onnxruntime if opset == 10 else in_reference)(model, feeds, 100)


def test_max_roi_pool() -> None:
    rng = rng_of("pool")
    rois = np.round(regions(rng, 6, 18, 14))
    rois = np.concatenate([rng.integers(0, 2, (6, 1)), rois], axis=1).astype(np.float32)
    model, feeds = one_node("MaxRoiPool", [floats(rng, np.float32, 2, 3, 9, 12), rois], opset=11,
                            pooled_shape=[3, 2], spatial_scale=0.5)
    in_onnxruntime(model, feeds)


# --- pooling with indices, and back

@pytest.mark.parametrize("shape, how", [
    ((2, 3, 17), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ((1, 2, 11, 12), {"kernel_shape": [2, 3], "dilations": [2, 3], "storage_order": 1}),
    ((2, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [2, 2, 2], "ceil_mode": 1, "storage_order": 1}),
    ((2, 2, 9, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pool_indices(shape: tuple[int, ...], how: dict[str, Any], ties: bool) -> None:
    rng = rng_of("indices", shape, ties)
    x = rng.integers(-3, 3, shape).astype(np.float32) if ties else floats(rng, np.float32, *shape)
    model, feeds = one_node("MaxPool", [x], outputs=2, opset=12, **how)
    in_onnxruntime(model, feeds)


def test_max_pool_indices_of_nan() -> None:
    x = np.array([[[1, np.nan, 2, 3, np.nan, 4]]], np.float32)
    model, feeds = one_node("MaxPool", [x], outputs=2, kernel_shape=[2], strides=[2])
    for strategy in STRATEGIES:
        values, indices = run(load_graph(model), feeds, strategy)
        np.testing.assert_array_equal(values, [[[np.nan, 3, np.nan]]])
        np.testing.assert_array_equal(indices, [[[1, 3, 4]]])


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("ceil, auto", [(1, None), (0, "SAME_UPPER"), (0, "SAME_LOWER")])
def test_pooling_of_open_sizes(kind: str, ceil: int, auto: str | None) -> None:
    from onnx import helper
    rng = rng_of("open pool", kind)
    how = {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": ceil,
           **({"auto_pad": auto} if auto else {"pads": [1, 0, 1, 1]})}
    node = helper.make_node(kind, ["x"], ["y"], **how)
    graph = load_graph(make_model([node], {"x": (np.float32, ["n", 2, "h", "w"])}, ["y"], opset=19))
    for shape in ((1, 2, 5, 7), (2, 2, 8, 6), (1, 2, 9, 8), (1, 2, 6, 5)):
        x = floats(rng, np.float32, *shape)
        fixed, feeds = one_node(kind, [x], opset=19, **how)
        for strategy in STRATEGIES:
            assert_same(run(graph, {"x": x}, strategy), onnxruntime_outputs(fixed, feeds), 16)


def test_max_unpool() -> None:
    rng = rng_of("unpool")
    x = floats(rng, np.float32, 2, 3, 8, 6)
    pool, feeds = one_node("MaxPool", [x], outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    values, indices = onnxruntime_outputs(pool, feeds)
    model, feeds = one_node("MaxUnpool", [values, indices], opset=11, kernel_shape=[2, 2], strides=[2, 2])
    in_onnxruntime(model, feeds)


@pytest.mark.parametrize("how", [{}, {"strides": [2, 1]}, {"pads": [1, 0, 1, 2], "dilations": [1, 2]}])
def test_col2im(how: dict[str, Any]) -> None:
    rng = rng_of("col2im", how)
    pads, steps, gaps = how.get("pads", [0] * 4), how.get("strides", [1, 1]), how.get("dilations", [1, 1])
    image, block = (7, 8), (3, 2)
    counts = [(n + pads[i] + pads[i + 2] - gaps[i] * (k - 1) - 1) // steps[i] + 1
              for i, (n, k) in enumerate(zip(image, block))]
    x = floats(rng, np.float32, 2, 3 * 6, counts[0] * counts[1])
    model, feeds = one_node("Col2Im", [x, np.array(image), np.array(block)], fixed=(1, 2), opset=18, **how)
    in_onnxruntime(model, feeds)
