"""The real model of the package magika:

captured with its batch symbolic, equal to ONNX Runtime on real files.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from planish.capture.onnx import load_graph
from planish.ir import Graph, print_graph
from planish.types import symbols_of
from tests.capture.onnx.running import STRATEGIES, assert_same, onnxruntime_outputs, run

pytest.importorskip("magika")
REPOSITORY = Path(__file__).parents[3]
sys.path.insert(0, str(REPOSITORY / "examples"))
import magika_files  # noqa: E402

FILES = [
    REPOSITORY / name
    for name in ("pyproject.toml", "Makefile", "planish/__init__.py", "planish/errors.py", "LICENSE")
]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(magika_files.model_path())


def test_batch_stays_symbolic(graph: Graph) -> None:
    """Every value that depends on the input has the batch as its first size; no shape arithmetic is left."""
    print(print_graph(graph))
    assert list(graph.symbols()) == ["unk__214"]
    assert graph.output_names == ("target_label",)
    dependent = {graph.inputs[0]}
    for node in graph.nodes():
        if dependent.intersection(node.operands):
            dependent.add(node)
            assert list(symbols_of(node.shape[0])) == ["unk__214"], node
    assert {n.op.name for n in graph.nodes()}.isdisjoint({"size", "iota", "slice", "concat", "broadcast_to"})
    assert len(graph.nodes()) < 100


def test_notes_name_nodes(graph: Graph) -> None:
    conv = next(n for n in graph.nodes() if n.op.name == "conv")
    assert (
        str(graph.note(conv).location)
        == "model.onnx: jax2tf_get_logits_/pjit_get_logits_/MagikaV2/Conv_0/Conv2D"
    )
    assert all(graph.note(n).location for n in graph.nodes())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("batch", [1, 5, 0])
def test_equals_onnxruntime(graph: Graph, batch: int, strategy: str) -> None:
    feeds = {"bytes": np.random.default_rng(batch).integers(0, 257, (batch, 2048), dtype=np.int32)}
    assert_same(
        run(graph, feeds, strategy), onnxruntime_outputs(str(magika_files.model_path()), feeds), factor=16
    )


def test_real_files(graph: Graph, tmp_path: Path) -> None:
    """Our features and the captured model give the labels and scores that the package itself gives."""
    magika = pytest.importorskip("magika").Magika()
    odd = [tmp_path / name for name in ("short.py", "spaces.txt", "block.json")]
    odd[0].write_text("import os\nprint(os.name)\n")
    odd[1].write_bytes(b" \n\t" * 3000 + b"A line of text, then white space." + b"\n" * 5000)
    odd[2].write_text("[" + ", ".join(f'{{"a": {i}}}' for i in range(9000)) + "]\n")
    paths = [*FILES, *odd[::2]]
    scores, = run(graph, {"bytes": magika_files.batch(paths)})
    for path, row in zip(paths, scores, strict=True):
        expected = magika.identify_path(path)
        assert magika_files.labels()[row.argmax()] == str(expected.prediction.dl.label), path
        np.testing.assert_allclose(row.max(), expected.prediction.score, rtol=1e-4)
    assert not magika_files.is_meaningful(
        magika_files.features(odd[1])
    )  # the package answers for it without the model
    assert str(magika.identify_path(odd[1]).prediction.dl.label) == "undefined"


@pytest.mark.parametrize(
    "content", [b"", b"x", b" " * 10, b"abc" * 10_000, b"\n" * 4090 + b"ab" * 100, bytes(range(256)) * 40]
)
def test_features_are_the_packages(content: bytes, tmp_path: Path) -> None:
    magika, types = pytest.importorskip("magika.magika"), pytest.importorskip("magika.types")
    import io
    c = magika_files.config()
    expected = magika.Magika._extract_features_from_seekable(
        types.Seekable(io.BytesIO(content)), c["beg_size"], c["mid_size"], c["end_size"], c["padding_token"],
        c["block_size"], c["use_inputs_at_offsets"])
    (tmp_path / "f").write_bytes(content)
    np.testing.assert_array_equal(magika_files.features(tmp_path / "f"), [*expected.beg, *expected.end])
