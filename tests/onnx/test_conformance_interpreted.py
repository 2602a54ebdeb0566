"""The conformance suite of the package onnx: whatever planish takes of it, it answers as the suite expects.

The counts may only grow. A case that is neither passed nor refused with UnsupportedOp or UnsupportedDType
fails. Here the interpreter runs them; test_conformance.py has them through native code, at every optimisation
level, and lies beside this file because one process makes the cases for both: it takes seconds.
"""
from __future__ import annotations

import pytest

from tests.capture.onnx.conformance import Outcome, run_cases

PASSED = {"node": 1884, "simple": 21, "pytorch-converted": 82, "pytorch-operator": 35}


def judge(kind: str, outcome: Outcome) -> int:
    """How many passed; none may have failed."""
    passed, frozen = len(outcome.passed) + len(outcome.frozen), len(outcome.frozen)
    print(f"{kind}: {passed} passed ({frozen} with inputs as constants), {len(outcome.refused)} refused")
    assert not outcome.failed, "\n".join(f"{name}: {why}" for name, why in outcome.failed.items())
    return passed


@pytest.mark.parametrize("kind", [kind for kind in PASSED if kind != "node"])
def test_conformance(kind: str) -> None:
    assert judge(kind, run_cases(kind)) >= 0.9 * PASSED[kind]


@pytest.mark.slow
def test_every_node_case() -> None:
    assert judge("node", run_cases("node")) >= PASSED["node"]
