"""A slice of torch's operator database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

sys.path.insert(0, str(Path(__file__).parent))
import opdb  # noqa: E402

FORWARD = (
    "add,cat,gather,sort,nonzero,item,equal,fft.rfft,polar,linalg.inv,resize_,unique_consecutive,cumsum,where"
)
BACKWARD = "mul,fft.fft,masked_select,sgn"


def wrong_of(*arguments: str) -> list[str]:
    outcomes = list(opdb.run_all(opdb.parsed(arguments)))
    assert outcomes
    bad = [o for o in outcomes if o.verdict not in ("correct", "skipped")]
    return [f"{o.op} {o.dtype}: {dict(o.reasons)}" for o in bad]


def test_values() -> None:
    assert not wrong_of("--ops", FORWARD, "--dtypes", "float32,int64", "--samples", "2")


def test_gradients() -> None:
    assert not wrong_of("--grad", "--ops", BACKWARD, "--samples", "1")


def test_a_wrong_answer_is_seen(monkeypatch: Any) -> None:
    """The judge can say no."""
    from planish.torch.program import TorchProgram

    honest = TorchProgram.__call__
    monkeypatch.setattr(TorchProgram, "__call__", lambda self, a: [r * 1.01 for r in honest(self, a)])
    assert wrong_of("--ops", "exp", "--samples", "1")


def test_samples_are_taken_evenly() -> None:
    assert opdb.spread(10, 4) == [0, 3, 6, 9] and opdb.spread(3, 0) == opdb.spread(3, 8) == [0, 1, 2]
