"""The parts of `make demo`, without its timing."""
from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_magika = pytest.mark.skipif(not find_spec("magika") or not find_spec("onnxruntime"),
                                  reason="the extra `demo` is not installed")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Imports a file of examples/ as it is when that folder is the program's own."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)
    yield load
    for name in [path.stem for path in EXAMPLES.glob("*.py")]:
        sys.modules.pop(name, None)


@needs_magika
@pytest.mark.peer
def test_demo_runs_to_its_end(example, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    example("demo").main(["--skip-times"])
    text = capsys.readouterr().out
    assert "All answers right" in text
    for part in ("markdown", "sqlite", "scale_into_alpha", "add_zero", "kernels 5 -> 1", "Kept apart"):
        assert part in text


@needs_magika
def test_demo_stops_where_a_label_is_wrong(example, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    demo, samples = example("demo"), example("sample_files")
    files = samples.sample_files(tmp_path)
    assert len(files) == 12 and all(path.stat().st_size for path in files)
    scores = np.zeros((12, len(example("magika_files").labels())), np.float32)
    with pytest.raises(SystemExit) as stopped:
        demo.show_labels(files, scores)
    assert stopped.value.code == 1


def test_five_to_one(example) -> None:  # type: ignore[no-untyped-def]
    five = example("five_to_one")
    for numerics, zero_goes in (("fast", True), ("default", False)):
        _, what, fired = five.compiled(numerics)
        assert (what.kernels.before, what.kernels.after) == (5, 1)
        assert ("add_zero" in {f.rule for f in fired}) == zero_goes
        jitted = five.jitted(numerics)
        assert (jitted.kernels.before, jitted.kernels.after) == (12, 1)


def test_gelu_chain_small(example, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    chain = example("gelu_chain")
    result = chain.measure(side=64, rounds=1)
    assert set(result.ms) >= {"NumPy", "planish, default", "planish, fast", "the machine's limit"}
    chain.show(result, 64)
    assert "min / limit" in capsys.readouterr().out


def test_gelu_chain_times_no_wrong_answer(example) -> None:  # type: ignore[no-untyped-def]
    chain = example("gelu_chain")
    with pytest.raises(SystemExit, match="gelu chain: liar is off by 1"):
        chain.require_right({"liar": lambda: np.ones(3)}, np.zeros(3))
