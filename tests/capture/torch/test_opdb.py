"""A slice of torch's operator database, and the form of its tables in docs/torch.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

sys.path.insert(0, str(Path(__file__).parent))
import opdb  # noqa: E402
import opdb_table  # noqa: E402

FORWARD = (
    "add,cat,gather,sort,nonzero,item,equal,fft.rfft,polar,linalg.inv,resize_,unique_consecutive,cumsum,where"
)
BACKWARD = "mul,fft.fft,masked_select,sgn"
DOCUMENT = Path(__file__).parents[3] / "docs" / "torch.md"


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


def test_the_tables_in_the_docs_are_as_they_are_written() -> None:
    document = DOCUMENT.read_text()
    begin, end = opdb_table.section(document)
    text = document[begin:end]
    example = opdb_table.tables([opdb_table.Outcome("add", "float32", opdb_table.Counter(correct=1))])
    head = example.splitlines()[0]
    assert head in text
    lines = text.split(head)[1].strip().split("\n\n")[0].splitlines()[1:]
    rows = [re.split(r" *\| *", line)[1:-1] for line in lines]
    assert len(rows) == 5
    for dtype, operators, correct, *_, refused, wrong, failed, _ in rows:
        done = int(correct.split()[0])
        assert done + int(refused) + int(wrong) + int(failed) == int(operators), dtype
        assert int(wrong) == 0 and done >= 0.97 * int(operators), dtype
    names = {opdb.full_name(op) for op in opdb.op_db}
    listed = re.findall(r"^\| ([\w.-]+) \| (?:refused|failed|wrong|graph break) \|", text, re.MULTILINE)
    assert set(listed) <= names
