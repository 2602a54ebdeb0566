"""Real files as the magika model expects them: the first and last bytes, white space stripped, padded.

The rules are those of the package magika 1.0.3 (feature extraction v2,
`Magika._extract_features_from_seekable`), and its numbers are read from the model's own config. Needs the
package magika installed, for its model and config only.

    $ python examples/magika_files.py README.md pyproject.toml
"""
from __future__ import annotations

import json
import sys
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

MODEL = "models/standard_v3_3"


def model_path() -> Path:
    """Where the installed package keeps its ONNX model: int32 [batch, 2048] -> float32 [batch, 214]."""
    return Path(str(resources.files("magika"))) / MODEL / "model.onnx"


@cache
def config() -> dict[str, Any]:
    return json.loads((model_path().parent / "config.min.json").read_text())


def labels() -> list[str]:
    """The content type that each of the model's outputs stands for."""
    return list(config()["target_labels_space"])


def features(path: str | PathLike[str]) -> np.ndarray:
    """The model's input for one file: int32[beg_size + end_size], bytes as numbers, padding_token where there
    are none.

    Of at most block_size bytes from the beginning, stripped on the left, the first beg_size, padded behind;
    of at most block_size from the end, stripped on the right, the last end_size, padded in front.
    """
    c = config()
    head, tail = _ends(Path(path), c["block_size"])
    head, tail = head.lstrip()[:c["beg_size"]], tail.rstrip()[-c["end_size"]:]
    result = np.full(c["beg_size"] + c["end_size"], c["padding_token"], np.int32)
    result[:len(head)] = np.frombuffer(head, np.uint8)
    result[len(result) - len(tail):] = np.frombuffer(tail, np.uint8)
    return result


def _ends(path: Path, size: int) -> tuple[bytes, bytes]:
    """At most `size` bytes from each end."""
    with path.open("rb") as file:
        head = file.read(size)
        file.seek(max(0, path.stat().st_size - size))
        return head, file.read(size)


def is_meaningful(x: np.ndarray) -> bool:
    """Whether enough bytes are left for the model; the package answers for shorter files without it."""
    c = config()
    return bool(x[c["min_file_size_for_dl"] - 1] != c["padding_token"])


def batch(paths: list[str | PathLike[str]]) -> np.ndarray:
    """The features of several files: int32[len(paths), beg_size + end_size]."""
    return np.stack([features(p) for p in paths])


if __name__ == "__main__":
    from planish.capture.onnx import load_graph

    files = [p for p in map(Path, sys.argv[1:]) if is_meaningful(features(p))]
    (scores,) = load_graph(model_path()).evaluate(batch(files))
    for file, row in zip(files, scores, strict=True):
        print(f"{labels()[row.argmax()]:<12} {row.max():.3f}  {file}")
