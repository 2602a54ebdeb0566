"""The conformance suite of the package onnx through the session: what is not listed as refused passes.

Here one case of thirteen runs, at one optimisation level. `make conformance`, which every change
must pass too, runs all of them at every level, and holds the list to be exact. When it is not:
`python -m tests.onnx.conformance`.
"""
from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx.backend.test import BackendTest

from planish.onnx import GraphOptimizationLevel, backend
from tests.onnx.conformance import (
    DISTINCT,
    KINDS,
    PAGE,
    cases,
    level_of,
    listed,
    outcome,
    page_with,
    part_of,
    table,
)

PARTS, FEW = 13, 1   # no multiple of the number of levels: each part has cases of every level
LEAST = {"node": 1884, "simple": 21, "pytorch-converted": 82, "pytorch-operator": 35}  # of 1884, 23, 82, 35


def outcomes(part: int, every_level: bool) -> dict[str, str]:
    """Why cases of a part are refused, or what went wrong with them; those that pass are not in it."""
    found = {}
    for name in (n for n in cases() if part_of(n, PARTS) == part):
        try:
            why = outcome(name, DISTINCT if every_level else (level_of(name),))
        except Exception as error:  # the other cases are to run
            why = f"FAULT {type(error).__name__}: {error}"
        if why:
            found[name] = why
    return found


def unexpected(found: dict[str, str]) -> list[str]:
    known = listed()
    return [f"{name}: {why}" for name, why in found.items() if name not in known or why.startswith("FAULT")]


@pytest.mark.parametrize("part", range(FEW))
def test_what_is_not_listed_passes(part: int) -> None:
    assert not unexpected(outcomes(part, every_level=False))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_level_passes_the_same(part: int) -> None:
    found = outcomes(part, every_level=True)
    assert not unexpected(found)
    stale = [name for name in listed() if part_of(name, PARTS) == part and name not in found]
    assert not stale, f"they pass now: python -m tests.onnx.conformance: {stale}"


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


def test_the_page_has_the_list() -> None:
    assert PAGE.read_text() == page_with(table(listed())), "python -m tests.onnx.conformance writes it"


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
    prepared = backend.prepare(cases()["test_add"].model)
    (inputs, expected), = cases()["test_add"].data_sets
    np.testing.assert_array_equal(prepared.run(dict(zip(prepared.inputs, inputs)))[0], expected[0])
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA:0")
    with pytest.raises(ValueError, match="CUDA"):
        backend.prepare(cases()["test_add"].model, "CUDA")
