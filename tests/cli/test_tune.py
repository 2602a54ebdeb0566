"""`planish tune`: what it says, what it keeps, and that it may be stopped."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planish.tuning import library, pairs, search, trial, tune

TABLES = Path(__file__).parent / "tables"


@pytest.fixture
def product(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """product.onnx, whose kernel is large enough to be measured; one thing is tried for it, and NumPy."""
    weights = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
              for name, size in (("x", 64), ("y", 48))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    initialiser = numpy_helper.from_array(weights, "w")
    graph = helper.make_graph([node], "product", values[:1], values[1:], [initialiser])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "product.onnx")
    monkeypatch.setattr(trial, "moves", lambda *kernel: [[{"tile": (4, 3)}]])
    monkeypatch.setitem(library.LIBRARIES, "onednn", lambda node: False)
    monkeypatch.setattr(library, "versions", lambda: {"numpy": "2.0"})
    return folder


def say_who_wins(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Every duel has this ratio."""
    word = "won" if ratio < 1 else "slower"
    monkeypatch.setattr(search, "compare", lambda best, one, until: pairs.Verdict(word, ratio, 10, 10))
    monkeypatch.setattr(search, "glance", lambda best, ready: [0.9] * len(ready))
    monkeypatch.setattr(pairs.Timed, "seconds", lambda self: 125e-6)


COMMAND = ("tune", "product.onnx", "-i", "x=40x64")


def test_the_tables(product: Path, planish: Callable, golden: Callable,
                    monkeypatch: pytest.MonkeyPatch) -> None:
    say_who_wins(monkeypatch, 0.5)
    first = planish(*COMMAND, "--tried")
    assert (first.code, first.err) == (0, "")
    golden(TABLES / "tune.txt", _trimmed(first.out))
    golden(TABLES / "tune_again.txt", _trimmed(planish(*COMMAND).out))


def _trimmed(text: str) -> str:
    """The tables, without the line about the machine at the end."""
    lines = text.splitlines()
    end, = (i for i, line in enumerate(lines) if " CPUs, " in line)
    return "".join(f"{line.rstrip()}\n" for line in lines[:end])


def test_what_was_tuned_is_used_and_listed(product: Path, planish: Callable,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    say_who_wins(monkeypatch, 2.0)
    found = json.loads(planish(*COMMAND, "--json").out)
    assert [(f["kind"], f["winner"], f["remembered"]) for f in found] == [
        ("kernel", "as chosen", False), ("op", "native", False), ("program", "as compiled", False)]
    shown = json.loads(planish("explain", *COMMAND[1:], "--mode", "max-autotune", "--json").out)["tuning"]
    assert shown == [{**f, "remembered": True} for f in found]
    assert json.loads(planish("explain", *COMMAND[1:], "--json").out)["tuning"] == []
    assert json.loads(planish("tuning", "list", "--json").out) == shown
    assert "dot_general" in planish("tuning", "list", "--tried").out
    assert planish("cache", "clear").code == 0
    assert len(json.loads(planish("tuning", "list", "--json").out)) == 3
    assert planish("tuning", "clear").out == "removed 3 findings\n"
    assert json.loads(planish("tuning", "list", "--json").out) == []


def test_sessions_and_load_onnx_take_the_mode(product: Path, planish: Callable,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them find what the command has measured: the same model, the same hint."""
    from planish import load_onnx
    from planish.onnx import InferenceSession, SessionOptions

    say_who_wins(monkeypatch, 0.5)
    assert planish(*COMMAND).code == 0
    monkeypatch.setattr(search, "compare", None)
    loaded = load_onnx("product.onnx", mode="max-autotune", hint={"N": 40})
    assert [f.remembered for f in loaded.report.tuning] == [True] * 3
    options = SessionOptions()
    options.add_session_config_entry("planish.mode", "max-autotune")
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    y, = InferenceSession("product.onnx", options).run(None, {"x": x})
    np.testing.assert_array_equal(y, loaded(x)[0])
    options.add_session_config_entry("planish.mode", "fastest")
    with pytest.raises(Exception, match="there is no mode 'fastest'"):
        InferenceSession("product.onnx", options)


def test_ctrl_c_shows_and_keeps_what_was_found(product: Path, planish: Callable,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(tune._Tuner, "op", interrupted)
        outcome = planish(*COMMAND)
    assert outcome.code == 130 and "dot_general f32[40, 48]" in outcome.out
    assert outcome.err == "Stopped; what is listed is kept. Run it again to go on.\n"
    assert [f["kind"] for f in json.loads(planish("tuning", "list", "--json").out)] == ["kernel"]
    again = json.loads(planish(*COMMAND, "--json").out)
    assert [f["remembered"] for f in again] == [True, False, False]


def test_without_time_it_says_so(product: Path, planish: Callable) -> None:
    outcome = planish(*COMMAND, "--budget", "0")
    assert outcome.code == 0 and outcome.err == "Out of time after 0 s; run it again to go on.\n"


def test_a_broken_database_is_told_once_and_does_not_stop(product: Path, planish: Callable) -> None:
    (product / "cache").mkdir(mode=0o700)
    (product / "cache" / "tuning.jsonl").write_text("garbage\n")
    outcome = planish("tuning", "list")
    assert outcome.code == 0
    assert outcome.err.count("1 of 1 lines of") == 1 and "`planish tuning clear`" in outcome.err


@pytest.mark.parametrize(("words", "message"), [
    (("--budget", "-1"), "Invalid value for '--budget'"),
    (("--strategy", "library"), "--strategy library: only native code is tuned"),
    (("-i", "x=4"), "x")])
def test_what_makes_no_sense_is_refused(product: Path, planish: Callable, words: tuple[str, ...],
                                        message: str) -> None:
    outcome = planish("tune", "product.onnx", *words)
    assert outcome.code == 2 and message in outcome.err and outcome.out == ""


def test_help_says_what_it_does(planish: Callable) -> None:
    text = " ".join(planish("tune", "--help").out.split())
    for words in ("--budget", "--tried", "Ctrl-C keeps what was found so far", "MODEL.onnx"):
        assert words in text
    assert "list" in planish("tuning", "--help").out and "clear" in planish("tuning", "--help").out
