"""Known architectures as torch exports them: one compile for every size, equal to ONNX Runtime.

The files in `exported/` are what `benchmarks.exported` writes, without their weights; each test fills in new
ones.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.exported import MODELS, example, filled
from planish.capture.onnx import load_graph
from planish.compiler import compile_graph
from tests.capture.onnx.running import onnxruntime_outputs

FILES = sorted((Path(__file__).parent / "exported").glob("*.onnx"))
IMAGES = [{"batch": 1, "height": 32, "width": 64}, {"batch": 2, "height": 64, "width": 32}]
SIZES: dict[str, list[dict[str, int]]] = {
    "bert": [{"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 17}, {"batch": 1, "sequence": 64}],
    "gpt2": [{"batch": 1, "sequence": 1}, {"batch": 2, "sequence": 33}],
    "llama": [{"batch": 1, "sequence": 1}, {"batch": 2, "sequence": 33}],
    "t5": [{"batch": 1, "sequence": 5, "target": 1}, {"batch": 3, "sequence": 33, "target": 9}],
    "clip": [{"batch": 1, "texts": 1, "sequence": 7}, {"batch": 3, "texts": 2, "sequence": 40}],
    "resnet": IMAGES, "convnext": IMAGES, "yolo": IMAGES,
}


def sizes_of(name: str) -> list[dict[str, int]]:
    return SIZES.get(name, [{"batch": 1}, {"batch": 3}])


def assert_close(got: Any, expected: Any) -> None:
    """Within float32's tolerance of sums, relative to the largest value."""
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = np.abs(other).max()
        assert scale > 0
        np.testing.assert_allclose(one / scale, other / scale, rtol=1e-4, atol=2e-5)


def test_every_architecture_is_here() -> None:
    assert {path.stem for path in FILES} == set(MODELS)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_equal_to_onnxruntime_at_every_size(path: Path) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng()
    model = filled(path, rng)
    graph = load_graph(model)
    assert not [n.op.name for n in graph.nodes() if n.op.has("host")]
    compiled = compile_graph(graph)
    for sizes in sizes_of(path.stem):
        feeds = example(MODELS[path.stem], sizes, rng)
        assert_close(compiled.run(None, feeds), onnxruntime_outputs(model, feeds))
