"""Findings on disk: found again, by other processes too, whatever else is in the file."""
from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from planish.errors import CacheWarning
from planish.tuning.database import Database
from planish.tuning.record import Finding, Tried

ROOT = Path(__file__).parents[2]


def finding(winner: str = "tile 4x3") -> Finding:
    tried = (Tried("tile 4x3", 0.8, "won"), Tried("tile 3x4", 0.0, "refused: output 0: differs"))
    return Finding("kernel", "dot_general f32[8, 8]", winner, {"tile": [4, 3]}, 1.25, 12.5, tried)


def test_what_is_put_is_found_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "tuning.jsonl"
    Database(path).put("a", finding(), "this machine")
    again = Database(path).find("a")
    assert again is not None and again.remembered
    assert again.to_json() == finding().to_json() and again.tried == finding().tried
    assert Database(path).find("b") is None


def test_the_latest_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "tuning.jsonl"
    for winner in ("one", "two"):
        Database(path).put("a", finding(winner), "m")
    database = Database(path)
    assert [f.winner for f in database.findings()] == ["two"]
    Database(path).put("a", finding("three"), "m")
    found = database.find("a")
    assert found is not None and found.winner == "three", "a file that has changed is read again"


PUTS = """
import sys
from pathlib import Path
from planish.tuning.database import Database
from planish.tuning.record import Finding
database = Database(Path(sys.argv[1]))
for i in range(200):
    database.put(f"{sys.argv[2]} {i}", Finding("op", "x" * 500, "native", "", 1.0, 1.0), "m")
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tuning.jsonl"
    running = [subprocess.Popen([sys.executable, "-c", PUTS, str(path), name], cwd=ROOT) for name in "ab"]
    assert [p.wait(60) for p in running] == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        database = Database(path)
        assert all(database.find(f"{name} {i}") for name in "ab" for i in range(200))


@pytest.mark.parametrize("bad", [
    b"not json\n", b"{}\n", b"[1]\n", b'{"key": "b", "kind": "kernel"}\n', b"\xff\xfe\n",
    json.dumps({"key": "b", **finding().to_json(), "kind": "wheel"}).encode() + b"\n",
    json.dumps({"key": "b", **finding().to_json(), "tried": [["x"]]}).encode() + b"\n",
    b'{"key": "b", "kind": "ker',  # a writer that died in its line
])
def test_what_is_no_finding_is_told_once_and_ignored(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "tuning.jsonl"
    Database(path).put("a", finding(), "m")
    path.write_bytes(path.read_bytes() + bad)
    Database(path).put("c", finding(), "m")
    database = Database(path)
    what = r"1 of 3 lines of .* `planish tuning clear` makes a new file"
    with pytest.warns(CacheWarning, match=what) as told:
        assert database.find("b") is None
        assert database.find("a") is not None and database.find("c") is not None
        path.touch()
        database.find("a")
    assert len(told) == 1


def test_a_folder_that_cannot_be_written_keeps_findings_here(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    database = Database(tmp_path / "file" / "tuning.jsonl")
    with pytest.warns(CacheWarning, match="can't be kept"):
        database.put("a", finding(), "m")
    assert database.find("a") is not None


def test_clear(tmp_path: Path) -> None:
    path = tmp_path / "tuning.jsonl"
    database = Database(path)
    database.put("a", finding(), "m")
    assert database.clear() == 1 and not path.exists()
    assert database.find("a") is None and database.findings() == [] and database.clear() == 0


def test_without_a_file_findings_stay_in_memory() -> None:
    database = Database(None)
    database.put("a", finding(), "m")
    assert database.find("a") is not None and Database(None).find("a") is None
