"""The conformance suite of the package onnx through the session: what is not listed as refused passes.

Here some of those that lie in files run, at one optimisation level each: to make the others takes seconds.
`make conformance`, which every change must pass too, runs all of them at every level, and holds the list to
be exact. When it is not: `python -m tests.onnx.conformance`.
"""
from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test import BackendTest

from planish.onnx import GraphOptimizationLevel, backend
from tests.onnx import models
from tests.onnx.conformance import (
    DISTINCT,
    KINDS,
    PAGE,
    STORED,
    cases,
    level_of,
    listed,
    outcome,
    page_with,
    part_of,
    table,
)

PARTS = 13   # no multiple of the number of levels: each part has cases of every level
FEW = 4      # of the cases in files, one in so many
LEAST = {"node": 1884, "simple": 21, "pytorch-converted": 82, "pytorch-operator": 35}  # of 1884, 23, 82, 35


def outcomes(chosen: Mapping[str, Any], every_level: bool) -> dict[str, str]:
    """Why cases are refused, or what went wrong with them; those that pass are not in it."""
    found = {}
    for name, case in chosen.items():
        try:
            why = outcome(case, DISTINCT if every_level else (level_of(name),))
        except Exception as error:  # the other cases are to run
            why = f"FAULT {type(error).__name__}: {error}"
        if why:
            found[name] = why
    return found


def unexpected(found: dict[str, str]) -> list[str]:
    known = listed()
    return [f"{name}: {why}" for name, why in found.items() if name not in known or why.startswith("FAULT")]


def test_what_is_not_listed_passes() -> None:
    chosen = dict(sorted(cases(STORED).items())[::FEW])
    assert len(chosen) >= 30 and not unexpected(outcomes(chosen, every_level=False))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_level_passes_the_same(part: int) -> None:
    found = outcomes({n: c for n, c in cases().items() if part_of(n, PARTS) == part}, every_level=True)
    assert not unexpected(found)
    stale = [name for name in listed() if part_of(name, PARTS) == part and name not in found]
    assert not stale, f"they pass now: python -m tests.onnx.conformance: {stale}"


@pytest.mark.slow
def test_levels_and_kinds_are_all() -> None:
    assert {GraphOptimizationLevel.ORT_DISABLE_ALL, GraphOptimizationLevel.ORT_ENABLE_BASIC,
            GraphOptimizationLevel.ORT_ENABLE_EXTENDED} <= set(DISTINCT) and len(DISTINCT) == 4
    for part in range(PARTS):
        assert {level_of(name) for name in cases() if part_of(name, PARTS) == part} == set(DISTINCT)
    count = {kind: sum(case.kind == kind for case in cases().values()) for kind in KINDS}
    if onnx.__version__ == "1.23.2":
        assert count == {"node": 1884, "simple": 23, "pytorch-converted": 82, "pytorch-operator": 35}
    left = {kind: sum(cases()[name].kind == kind for name in listed()) for kind in KINDS}
    assert all(count[kind] - left[kind] >= LEAST[kind] for kind in KINDS), left


@pytest.mark.slow
def test_the_page_has_the_list() -> None:
    assert PAGE.read_text() == page_with(table(listed())), "python -m tests.onnx.conformance writes it"


@pytest.mark.slow
def test_the_official_runner_takes_the_backend() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = BackendTest(backend, __name__)
        suite.include(r"^test_(abs|softmax_axis_0|split_to_sequence_1)_cpu$")
        found = suite.test_suite
    result = pytest.importorskip("unittest").TestResult()
    found.run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.testsRun - len(result.skipped) == 3


def test_the_backend_runs_single_nodes_and_models() -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    a, b = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(backend.run_node(node, [a, b]).c, a + b)
    model = models.fixed()
    prepared = backend.prepare(model)
    x = models.floats(2, 3)
    np.testing.assert_allclose(prepared.run(dict(zip(prepared.inputs, [x])))[0], np.tanh(x), rtol=1e-5)
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA:0")
    with pytest.raises(ValueError, match="CUDA"):
        backend.prepare(model, "CUDA")
