"""The conformance cases that the package onnx ships, run through `load_graph`, against their own outputs."""
from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from planish.capture.onnx import load_graph
from planish.errors import UnsupportedDType, UnsupportedOp
from tests.capture.onnx.running import run


@dataclass
class Outcome:
    """Names of cases by what became of them.

    `frozen` ones passed with inputs that say shapes or axes as constants.
    """

    passed: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def cases(kind: str) -> Iterator[Any]:
    from onnx.backend.test.loader import load_model_tests
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from load_model_tests(kind=kind)


def run_cases(kind: str, strategy: str = "interpret", part: int = 1) -> Outcome:
    """What becomes of the cases of a kind; of one in `part` of them, always the same ones."""
    outcome = Outcome()
    for case in (c for c in cases(kind) if zlib.crc32(c.name.encode()) % part == 0):
        try:
            frozen = _run(case, strategy)
            (outcome.frozen if frozen else outcome.passed).append(case.name)
        except (UnsupportedOp, UnsupportedDType) as error:
            outcome.refused[case.name] = str(error)
        except Exception as error:  # a failure of one case is a finding; the others are to run
            outcome.failed[case.name] = f"{type(error).__name__}: {error}"
    return outcome


def _run(case: Any, strategy: str) -> bool:
    """Whether inputs had to be frozen."""
    model, data_sets = _model(case), _data_sets(case)
    names = [value.name for value in model.graph.input]
    frozen = False
    for inputs, expected in data_sets:
        feeds = dict(zip(names, inputs, strict=False))
        try:
            graph = load_graph(model)
        except UnsupportedOp as error:
            if "depends on the values of inputs" not in str(error):
                raise
            graph, frozen = load_graph(model, constants=_shape_like(feeds)), True
        _compare(run(graph, feeds, strategy), expected, case)
    return frozen


def _shape_like(feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    """Scalars and vectors, which may say shapes, axes or scales; a first vector of floats is data."""
    first = next(iter(feeds), None)
    return {n: a for n, a in feeds.items()
            if np.ndim(a) == 0 or (np.ndim(a) == 1 and (np.asarray(a).dtype.kind in "iub" or n != first))}


def _model(case: Any) -> Any:
    return case.model if case.model is not None else onnx.load(str(Path(case.model_dir) / "model.onnx"))


def _data_sets(case: Any) -> list[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        return [tuple(list(map(_array, part)) for part in data_set) for data_set in case.data_sets]
    return [
        tuple(
            [_tensor(p) for p in sorted(folder.glob(f"{kind}_*.pb"), key=_number)]
            for kind in ("input", "output")
        )
        for folder in sorted(Path(case.model_dir).glob("test_data_set_*"))
    ]


def _number(path: Path) -> int:
    return int(path.stem.rsplit("_", 1)[1])


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _tensor(path: Path) -> np.ndarray:
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


HALF = {"float16": 4e-3, "bfloat16": 3.2e-2}  # four roundings: some cases are bounded as if in float32


def _compare(got: list[np.ndarray], expected: list[Any], case: Any) -> None:
    assert len(got) == len(expected)
    for one, want in zip(got, map(np.asarray, expected), strict=True):
        assert (one.dtype, one.shape) == (want.dtype, want.shape), (
            f"{one.dtype}{one.shape} for {want.dtype}{want.shape}"
        )
        wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in (one, want)]
        np.testing.assert_allclose(*wide, rtol=max(case.rtol, HALF.get(want.dtype.name, 0)), atol=case.atol)
