"""max-autotune from end to end: what is decided, remembered, refused, and that it may be stopped."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import planish
from planish import knobs
from planish.compiler import Compiled, Options, SegmentedProgram, compile_graph
from planish.errors import PlanishError
from planish.inspect.explain import explain
from planish.ir import Graph
from planish.tuning import search, trial
from planish.tuning.database import NAME
from planish.tuning.decisions import UNTUNED, Decisions
from planish.tuning.pairs import Verdict
from planish.tuning.record import Finding
from planish.tuning.tune import Session, tuning

ROOT = Path(__file__).parents[2]
TUNED = Options(mode="max-autotune")
RNG = np.random.default_rng(0)
W = planish.freeze(RNG.normal(size=(96, 80)).astype(np.float32))
X = RNG.normal(size=(50, 96)).astype(np.float32)


def layer(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ W, 0)


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Graph]:
    """The graph of a layer, for a database of this test, where one thing is tried for each kernel."""
    monkeypatch.setattr(trial, "moves", lambda *kernel: [[{"tile": (4, 3)}]])
    with knobs.override(cache_dir=str(tmp_path)):
        yield planish.make_graph(layer)(X)


class Judge:
    """Says who is faster, in the place of the clock: `winners`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *winners: str):
        self.winners, self.contests = winners, 0
        monkeypatch.setattr(search, "timed", lambda run, clock, rest: run)
        monkeypatch.setattr(search.Contest, "__post_init__", lambda contest: self.begin(contest))
        monkeypatch.setattr(search, "glance", lambda best, ready: [0.9] * len(ready))
        monkeypatch.setattr(search.Contest, "_duel", lambda contest, *how: self.duel(contest, *how))

    def begin(self, contest: search.Contest) -> None:
        self.contests += 1
        contest.best, contest.us = contest.incumbent.run, 100.0

    def duel(self, contest: search.Contest, name: object, one: object, veto: bool) -> None:
        has_won = str(name) in self.winners
        contest.tried.append(search.Tried(str(name), 0.5, "won" if has_won else "slower"))
        if has_won:
            contest.name, contest.best = name, one
            contest.speedup *= 2


def winners(compiled: Compiled) -> dict[str, str]:
    return {f"{f.kind} {f.what}": f.winner for f in compiled.report.tuning}


def test_a_kernel_that_won_is_in_the_program(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, "tile 4x3", "tuned kernels")
    compiled = compile_graph(graph, TUNED)
    assert winners(compiled) == {
        "kernel dot_general, maximum f32[50, 80]": "tile 4x3",
        "op dot_general f32[50, 96] f32[96, 80]": "native",
        "program layer": "tuned kernels"}
    assert "register_tile(s0, 4, s1, 24)" in compiled.text("loops")
    assert "register_tile(s0, 4" not in compile_graph(graph).text("loops")
    np.testing.assert_allclose(compiled(X)[0], layer(X), rtol=1e-4, atol=1e-4)


def test_what_the_whole_program_loses_with_is_dropped(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, "tile 4x3")
    compiled = compile_graph(graph, TUNED)
    assert winners(compiled)["program layer"] == "as compiled" and compiled.options.decisions == UNTUNED
    assert compiled.text("loops") == compile_graph(graph).text("loops")


def test_what_is_known_is_not_measured(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(monkeypatch, "tile 4x3", "tuned kernels")
    first, counted = compile_graph(graph, TUNED), judge.contests
    again = compile_graph(graph, TUNED)
    assert counted == judge.contests == 3
    assert again.options.decisions == first.options.decisions != UNTUNED
    assert again.report.stored, "the program of these decisions is in the cache"
    assert all(f.remembered for f in again.report.tuning) and winners(again) == winners(first)
    assert np.array_equal(again(X)[0], first(X)[0])
    other = planish.make_graph(lambda x: np.minimum(layer(x), 1) + np.float32(0))(X[:49])
    assert compile_graph(other, TUNED).report.tuning and judge.contests > counted


def test_a_kernel_that_another_program_has_met(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(monkeypatch, "tile 4x3", "tuned kernels")
    compile_graph(graph, TUNED)
    before = judge.contests
    twice = planish.make_graph(lambda x: (layer(x), np.exp(layer(x[:49]))))(X)
    found = compile_graph(twice, TUNED).report.tuning
    kernel, = (f for f in found if f.what == "dot_general, maximum f32[50, 80]")
    assert kernel.remembered and judge.contests > before


def test_the_default_mode_takes_nothing_from_the_database(
        graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compile_graph(graph).text("loops")
    Judge(monkeypatch, "tile 4x3", "tuned kernels")
    assert compile_graph(graph, TUNED).text("loops") != plain
    again = compile_graph(graph)
    assert again.text("loops") == plain and again.report.tuning == []


TWICE = """
import json, sys
import numpy as np
import planish
from planish.compiler import Options, compile_graph
from planish.tuning import pairs, search
w = planish.freeze(np.random.default_rng(0).normal(size=(96, 80)).astype(np.float32))
x = np.ones((50, 96), np.float32)
if sys.argv[1] == "measure":
    search.compare = lambda best, one, until: pairs.Verdict("won", 0.5, 10, 10)
else:
    search.Contest.__post_init__ = None
graph = planish.make_graph(lambda x: x @ w)(x)
compiled = compile_graph(graph, Options(mode="max-autotune"))
print(json.dumps([compiled.options.decisions.to_json(), [f.remembered for f in compiled.report.tuning],
                  "llvmlite" in sys.modules, compiled(x)[0].tolist()]))
"""


def test_the_next_process_measures_nothing(tmp_path: Path) -> None:
    def run(how: str) -> list:
        done = subprocess.run([sys.executable, "-c", TWICE, how], cwd=ROOT, text=True, capture_output=True,
                              env={"PLANISH_CACHE_DIR": str(tmp_path), "PATH": ""}, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    first, second = run("measure"), run("remember")
    assert first[0] == second[0] and first[0] != UNTUNED.to_json() and first[3] == second[3]
    assert not any(first[1]) and all(second[1]) and len(first[1]) == len(second[1])
    assert first[2] and not second[2]


def test_a_library_may_run_an_op(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, "numpy_dot_general", "ops by libraries")
    compiled = compile_graph(graph, TUNED)
    assert isinstance(compiled, SegmentedProgram)
    assert compiled.report.hosts == ["host %1 = numpy_dot_general(%x, %0) : f32[50, 80]"]
    assert all("numpy_dot_general(" in compiled.text(stage) for stage in ("optimized", "segments"))
    assert winners(compiled)["program layer"] == "ops by libraries"
    np.testing.assert_allclose(compiled(X)[0], layer(X), rtol=1e-4, atol=1e-4)
    again = compile_graph(graph, TUNED)
    assert again.report.hosts == compiled.report.hosts and np.array_equal(again(X)[0], compiled(X)[0])


def test_a_program_that_the_library_runs_faster_is_the_librarys(
        graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, "library strategy")
    compiled = compile_graph(graph, TUNED)
    assert compiled.options.strategy == "library" and explain(compiled).strategy == "library"
    program = explain(compiled).tuning[-1]
    assert program.kind == "program" and program.winner == "library strategy" and program.speedup == 2
    np.testing.assert_allclose(compiled(X)[0], layer(X), rtol=1e-4)


def test_a_wrong_library_is_refused(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    from planish.tuning import tune

    Judge(monkeypatch, "numpy_dot_general", "ops by libraries")
    right = tune.kernel_of
    monkeypatch.setattr(tune, "kernel_of", lambda *op: lambda *arrays: right(*op)(*arrays) * 1.01)
    compiled = compile_graph(graph, TUNED)
    op = compiled.report.tuning[1]
    assert op.winner == "native" and op.tried[0].verdict.startswith("refused: output 0: differs")
    assert compiled.options.decisions == UNTUNED


def test_ctrl_c_keeps_what_was_found(graph: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judge = Judge(monkeypatch, "tile 4x3", "tuned kernels")

    def say(text: str, done: int, total: int) -> None:
        assert 0 <= done < total
        if text.startswith("op"):
            raise KeyboardInterrupt
    session = Session(say=say)
    with pytest.raises(KeyboardInterrupt), tuning(session):
        compile_graph(graph, TUNED)
    assert [(f.kind, f.winner) for f in session.findings] == [("kernel", "tile 4x3")]
    assert len((tmp_path / NAME).read_text().splitlines()) == judge.contests == 1
    found = compile_graph(graph, TUNED).report.tuning
    assert [f.remembered for f in found] == [True, False, False]


def test_without_time_nothing_is_decided_and_nothing_kept(graph: Graph, tmp_path: Path) -> None:
    with tuning(Session(seconds=0)) as session:
        compiled = compile_graph(graph, TUNED)
    assert compiled.options.decisions == UNTUNED and not (tmp_path / NAME).exists()
    assert [f.kind for f in session.findings] == ["program"]
    np.testing.assert_allclose(compiled(X)[0], layer(X), rtol=1e-4, atol=1e-4)


def test_it_works_on_a_real_clock(graph: Graph) -> None:
    compiled = compile_graph(graph, TUNED)
    assert [f.kind for f in compiled.report.tuning] == ["kernel", "op", "program"]
    assert all(f.us > 0 and f.speedup > 0 and f.tried for f in compiled.report.tuning)
    np.testing.assert_allclose(compiled(X)[0], layer(X), rtol=1e-4, atol=1e-4)


def test_decisions_are_plain_data() -> None:
    from planish.schedule.choice import Choice

    decisions = Decisions((("a", Choice(tile=(4, 3))),), (("b", "numpy_dot_general"),), False)
    assert Decisions.from_json(json.loads(json.dumps(decisions.to_json()))) == decisions
    for bad in (None, {}, {"kernels": 1, "ops": {}, "whole": False},
                {"kernels": {"a": {"wheels": 4}}, "ops": {}, "whole": False}):
        with pytest.raises(ValueError):
            Decisions.from_json(bad)


def test_a_broken_memory_of_a_program_is_measured_again(graph: Graph, monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    judge = Judge(monkeypatch, "tile 4x3", "tuned kernels")
    compile_graph(graph, TUNED)
    path = tmp_path / NAME
    path.write_text(path.read_text().replace('"decisions"', '"verdicts"'))
    again = compile_graph(graph, TUNED)
    assert judge.contests == 4 and not again.report.tuning[-1].remembered


@pytest.mark.parametrize("make", [
    lambda: planish.jit(layer, mode="max-autotune")(X),
    lambda: planish.jit(mode="max-autotune")(layer)(X)])
def test_jit_takes_the_mode(make: Callable, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(monkeypatch)
    np.testing.assert_allclose(make(), layer(X), rtol=1e-4, atol=1e-4)
    assert judge.contests == 3


def test_explain_shows_it(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, "tile 4x3", "tuned kernels")
    found = explain(layer, mode="max-autotune")(X)
    assert [f.winner for f in found.tuning] == ["tile 4x3", "native", "tuned kernels"]
    assert isinstance(found.tuning[0], Finding) and found.ms["tune"] > 0


def test_what_makes_no_sense_is_refused(graph: Graph) -> None:
    from planish.codegen.llvm.host import aarch64

    with pytest.raises(PlanishError, match="there is no mode 'fastest'"):
        compile_graph(graph, Options(mode="fastest"))  # type: ignore[arg-type]
    with pytest.raises(PlanishError, match="measures on this machine, and the target is another"):
        compile_graph(graph, Options(mode="max-autotune", target=aarch64()))


def test_a_verdict_says_whether_it_won() -> None:
    assert Verdict("won", 0.5).has_won and not Verdict("undecided", 0.5).has_won
