"""A slice of the mutants, many of them of conformance cases; `python -m tests.onnx.fuzz` tries 10,000."""
from __future__ import annotations

import pytest

from tests.onnx.fuzz import BYTES, run

COUNT = 60


@pytest.mark.slow
def test_mutated_models_are_errors_and_nothing_else() -> None:
    outcomes, faults, peak = run(COUNT)
    assert not faults, "\n".join(f"{number}: {fault}" for number, fault in faults.items())
    assert sum(outcomes.values()) == COUNT and peak * 1024 < BYTES
    assert outcomes["ran"] > COUNT // 30 and len(outcomes) > 3
