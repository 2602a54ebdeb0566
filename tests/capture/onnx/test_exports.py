"""Known architectures as torch exports them: one compile for every size, equal to ONNX Runtime.

The files in `exported/` are what `benchmarks.exported` writes, without their weights; each test fills in new
ones. Those of `OF_KINDS`, which have each kind of layer once, are compiled here; `make conformance`, which
every change must pass too, compiles the others, whose captured graphs are interpreted here.
"""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.exported import MODELS, example, filled
from planish.capture.onnx import load_graph
from planish.compiler import compile_graph
from planish.ir import Graph
from tests.capture.onnx.running import onnxruntime_outputs, run

Feeds = dict[str, np.ndarray]
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
OF_KINDS = {"bert", "llama", "t5", "convnext", "swin", "yolo"}


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


def check(path: Path, made: Callable[[Graph], Callable[[Feeds], Any]]) -> None:
    """What is made of the graph, once, answers as ONNX Runtime does at every size."""
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng()
    model = filled(path, rng)
    graph = load_graph(model)
    assert not [n.op.name for n in graph.nodes() if n.op.has("host")]
    answer = made(graph)
    for sizes in sizes_of(path.stem):
        feeds = example(MODELS[path.stem], sizes, rng)
        assert_close(answer(feeds), onnxruntime_outputs(model, feeds))


def compiled(graph: Graph) -> Callable[[Feeds], Any]:
    program = compile_graph(graph)
    return lambda feeds: program.run(None, feeds)


@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem not in OF_KINDS else [])
    for path in FILES])
def test_equal_to_onnxruntime_at_every_size(path: Path) -> None:
    check(path, compiled)


@pytest.mark.parametrize("path", [p for p in FILES if p.stem not in OF_KINDS], ids=lambda path: path.stem)
def test_captured_graphs_equal_to_onnxruntime_at_every_size(path: Path) -> None:
    check(path, lambda graph: lambda feeds: run(graph, feeds))
