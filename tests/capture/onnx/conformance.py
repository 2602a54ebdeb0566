"""The conformance cases that the package onnx ships, run through `load_graph`, against their own outputs."""
from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from planish.capture.onnx import CapturedModel, given_of, load_model, open_inputs
from planish.capture.onnx.model import read_model
from planish.errors import NeedsValue, UnsupportedDType, UnsupportedOp
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


def run_cases(kind: str, strategy: str = "interpret") -> Outcome:
    """What becomes of the cases of a kind."""
    outcome = Outcome()
    for case in cases(kind):
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
        loaded, given = _loaded(model, feeds)
        frozen = frozen or given
        for one, want in zip(_outputs(loaded, feeds, strategy), expected, strict=True):
            _compare(one, want, case)
    return frozen


def _loaded(model: Any, feeds: dict[str, Any]) -> tuple[CapturedModel, bool]:
    """The model, with the inputs and sizes as constants that it can't be read without; whether there are
    any."""
    types = {name: given_of(feeds[name]) for name in open_inputs(read_model(model))}
    constants: dict[str, Any] = {}
    symbols: dict[str, Any] = {}
    while True:
        try:
            loaded = load_model(model, types=types, constants=constants, symbols=symbols)
            return loaded, bool(constants or symbols)
        except NeedsValue as error:
            more = {n: feeds[n] for n in error.inputs if n in feeds and n not in types}
            sizes = {n: d for n, d in _sizes(model, feeds).items() if n in error.sizes}
            if more.keys() <= constants.keys() and sizes.keys() <= symbols.keys():
                raise
            constants, symbols = {**constants, **more}, {**symbols, **sizes}


def _outputs(loaded: CapturedModel, feeds: dict[str, Any], strategy: str) -> list[Any]:
    names = [node.attributes.name for node in loaded.graph.inputs]
    arrays = dict(zip(names, loaded.arrays(feeds), strict=True))
    return loaded.values(run(loaded.graph, arrays, strategy))


def _sizes(model: Any, feeds: dict[str, Any]) -> dict[str, int]:
    """The sizes that the model names, as the feeds have them."""
    return {dim.dim_param: size for value in model.graph.input if value.type.HasField("tensor_type")
            for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(feeds[value.name]))
            if dim.dim_param}


def _model(case: Any) -> Any:
    return case.model if case.model is not None else onnx.load(str(Path(case.model_dir) / "model.onnx"))


def _data_sets(case: Any) -> list[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        return [tuple(list(map(_array, part)) for part in data_set) for data_set in case.data_sets]
    graph = _model(case).graph
    return [
        tuple(
            [_stored(folder / f"{kind}_{i}.pb", value.type) for i, value in enumerate(values)
             if (folder / f"{kind}_{i}.pb").exists()]
            for kind, values in (("input", graph.input), ("output", graph.output))
        )
        for folder in sorted(Path(case.model_dir).glob("test_data_set_*"))
    ]


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _stored(path: Path, type_: Any) -> Any:
    """The value in a file: an array, a list, None."""
    proto, read = {
        "tensor_type": (onnx.TensorProto, onnx.numpy_helper.to_array),
        "sequence_type": (onnx.SequenceProto, onnx.numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, onnx.numpy_helper.to_optional),
    }[type_.WhichOneof("value")]
    return read(proto.FromString(path.read_bytes()))


RANDOM = re.compile("bernoulli|training_dropout(?!.*zero_ratio)")  # ONNX leaves the numbers open: types only
TRANSFORM = re.compile("_dft|_stft")  # bounded relative to each element, where rounding goes with the largest
HALF = {"float16": 4e-3, "bfloat16": 3.2e-2}  # four roundings: some cases are bounded as if in float32


def _compare(got: Any, expected: Any, case: Any) -> None:
    if expected is None or isinstance(expected, list):
        assert type(got) is type(expected)
        for one, want in zip(got or (), expected or (), strict=True):
            _compare(one, want, case)
        return
    want = np.asarray(expected)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), (
        f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    )
    if RANDOM.search(case.name):
        return
    if want.dtype == object:
        np.testing.assert_array_equal(got, want)
        return
    wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in (got, want)]
    atol = 1e-6 * np.max(np.abs(wide[1])) if TRANSFORM.search(case.name) else case.atol
    np.testing.assert_allclose(*wide, rtol=max(case.rtol, HALF.get(want.dtype.name, 0)), atol=atol)
