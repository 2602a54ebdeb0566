"""The conformance suite of the package onnx: whatever planish takes of it, it answers as the suite expects.

The counts may only grow. A case that is neither passed nor refused with UnsupportedOp or UnsupportedDType
fails.
"""
from __future__ import annotations

import pytest

from tests.capture.onnx.conformance import run_cases

PASSED = {"node": 1488, "simple": 7, "pytorch-converted": 82, "pytorch-operator": 35}


@pytest.mark.parametrize("kind", PASSED)
def test_conformance(kind: str) -> None:
    outcome = run_cases(kind)
    passed = len(outcome.passed) + len(outcome.frozen)
    frozen, refused = len(outcome.frozen), len(outcome.refused)
    print(f"{kind}: {passed} passed ({frozen} with inputs as constants), {refused} refused")
    assert not outcome.failed, "\n".join(f"{name}: {why}" for name, why in outcome.failed.items())
    assert passed >= PASSED[kind]
