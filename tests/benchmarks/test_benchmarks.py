"""The benchmarks: a workload means the same everywhere, a wrong peer gets no time, a missing one is told."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import planish
from benchmarks import limits, plot, race, report, training_step
from benchmarks import workloads as w
from benchmarks.catalogue import WORKLOADS
from benchmarks.peers import PEERS, NoProgram, Peer, Ready
from benchmarks.pool import pool_microseconds
from benchmarks.worker import Worker, answer

ROOT = Path(__file__).parents[2]


def small_stack(name: str, activation: w.Activation, *, activate_last: bool) -> w.Workload:
    layers = w.random_layers(4, 32, 1.6)
    return w.stack_workload(name, "", 5, 32, layers, activation, activate_last=activate_last, aim=1.2)


SMALL = {
    "gelu": lambda: w.gelu_workload(16, 24),
    "layernorm_softmax": lambda: w.layernorm_softmax_workload(16, 24),
    "mlp": lambda: small_stack("mlp", w.gelu_chain, activate_last=False),
    "deep": lambda: small_stack("deep", w.tanh, activate_last=True),
}


@pytest.fixture
def same_threads_after():
    """Peers set the number of threads of their whole process."""
    before = planish.get_num_threads()
    yield
    planish.set_num_threads(before)


@pytest.mark.usefixtures("same_threads_after")
@pytest.mark.parametrize("peer", [name for name in PEERS if "inductor" not in name])  # compiles for seconds
@pytest.mark.parametrize("name", list(SMALL))
def test_every_peer_computes_the_same(peer: str, name: str) -> None:
    for package in PEERS[peer].packages:
        pytest.importorskip(package)
    workload = SMALL[name]()
    ready = PEERS[peer].prepare(workload, 1)
    output = ready.output(ready.call())
    assert output.dtype == np.float32
    assert race.relative_error(output, workload.reference()) <= workload.tolerance


@pytest.mark.parametrize("name", list(SMALL))
def test_reference_is_in_float64_and_tells_errors(name: str) -> None:
    workload = SMALL[name]()
    truth = workload.reference()
    assert truth.dtype == np.float64
    wrong = truth.copy()
    wrong.flat[np.abs(wrong).argmax()] *= 1 + 4 * workload.tolerance
    assert race.relative_error(truth, truth) == 0
    assert race.relative_error(wrong, truth) > workload.tolerance
    wrong.flat[0] = np.nan
    assert not race.relative_error(wrong, truth) <= workload.tolerance
    assert not race.relative_error(truth[:1], truth) <= workload.tolerance


def test_limit_counts_weights_inputs_and_outputs() -> None:
    cost = SMALL["mlp"]().cost()
    assert cost.read_bytes == 4 * (4 * (32 * 32 + 32) + 5 * 32)
    assert cost.write_bytes == 4 * 5 * 32
    assert cost.flops == 2 * 4 * 5 * 32 * 32


def fake_peer(monkeypatch: pytest.MonkeyPatch, prepare: Callable) -> None:
    monkeypatch.setitem(PEERS, "numpy", Peer("numpy", ("numpy",), prepare))
    monkeypatch.setitem(WORKLOADS, "mlp1", SMALL["mlp"])


def test_worker_speaks_its_protocol(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_peer(monkeypatch, PEERS["numpy"].prepare)
    worker = Worker(PEERS["numpy"], "mlp1", 1)
    assert answer(worker, "time 1")["error"] == "AssertionError: prepare first"
    assert answer(worker, "prepare")["versions"] == {"numpy": np.__version__}
    assert answer(worker, f"output {tmp_path}/a file.npy") == {}
    assert np.load(tmp_path / "a file.npy").shape == (5, 32)
    assert len(answer(worker, "time 3")["seconds"]) == 3
    assert "error" in answer(worker, "dance")


def test_worker_keeps_its_answers_apart_from_what_others_print() -> None:
    program = """if True:
        import os
        from benchmarks.worker import private_stdout
        answers = private_stdout()
        print("noise")
        os.system("echo noise")
        print("answer", file=answers)"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "answer\n"


class FakeWorker:
    """Answers as a worker would, without a process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def ask(self, line: str) -> dict:
        result = answer(self.worker, line)
        if "error" in result:
            raise race.WorkerFailure(result["error"])
        return result

    def __exit__(self, *exception: object) -> None:
        pass


def run_fake(monkeypatch: pytest.MonkeyPatch, prepare: Callable) -> race.Outcome:
    fake_peer(monkeypatch, prepare)
    monkeypatch.setattr(race, "WorkerProcess",
                        lambda peer, name, threads, folder: FakeWorker(Worker(PEERS[peer], name, threads)))
    monkeypatch.setattr(race, "ROUND_SECONDS", 0.001)
    [outcome] = race.race("mlp1", ["numpy"], 1, 2, lambda message: None)
    return outcome


def test_a_right_peer_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_fake(monkeypatch, PEERS["numpy"].prepare)
    assert outcome.status == "ok" and len(outcome.seconds) >= 2 * race.CALLS[0]
    assert 0 < outcome.best <= outcome.median


def test_a_wrong_peer_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(workload: w.Workload, threads: int) -> Ready:
        right = workload.numpy()(*workload.inputs())
        return Ready(lambda: right * np.float32(1.001), np.asarray)

    outcome = run_fake(monkeypatch, wrong)
    assert outcome.status == "wrong" and not outcome.seconds
    assert outcome.error == pytest.approx(1e-3, rel=0.1)


def test_a_failing_peer_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(workload: w.Workload, threads: int) -> Ready:
        raise ValueError("no such instruction")

    outcome = run_fake(monkeypatch, fail)
    assert (outcome.status, outcome.detail) == ("failed", "ValueError: no such instruction")


def test_a_peer_failing_later_loses_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_later(workload: w.Workload, threads: int) -> Ready:
        calls = iter(range(20))
        function, x = workload.numpy(), workload.inputs()
        return Ready(lambda: function(*x) if next(calls) < 10 else 1 / 0, np.asarray)

    outcome = run_fake(monkeypatch, fail_later)
    assert outcome.status == "failed" and not outcome.seconds
    assert "ZeroDivisionError" in outcome.detail or "StopIteration" in outcome.detail


def test_a_missing_peer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "mlp1", SMALL["mlp"])
    monkeypatch.setitem(PEERS, "numpy", Peer("numpy", ("no_such_package",), PEERS["numpy"].prepare))
    [outcome] = race.race("mlp1", ["numpy"], 1, 1, lambda message: None)
    assert (outcome.status, outcome.detail) == ("not installed", "no_such_package")
    assert "not installed: no_such_package" in report.table(report.Result(SMALL["mlp"](), [outcome], 1e-3))


def test_a_worker_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    last_words = pytest.raises(race.WorkerFailure, match="died with status 1: KeyError: 'no such peer'")
    with race.WorkerProcess("no such peer", "mlp1", 1, tmp_path) as worker, last_words:
        worker.ask("prepare")


def test_table_and_json_hold_the_ratios() -> None:
    ours = race.Outcome("planish", "ok", "", {"planish": "0"}, 0.1, 5_000_000, 1e-7, [2e-3, 1e-3, 3e-3])
    peer = race.Outcome("eager", "ok", "", {"torch": "2"}, 1.0, 6_000_000, 1e-7, [4e-3, 5e-3, 6e-3])
    broken = race.Outcome("jax", "wrong", "error nan over 2e-05", error=float("nan"))
    result = report.Result(SMALL["mlp"](), [ours, peer, broken], 5e-4)
    assert report.row(ours, result) == ["planish", "1.000", "2.000", "0.25", "2.00", "0.10", "5", "1.0e-07"]
    assert report.row(peer, result)[3] == "1.00"
    assert "wrong: error nan" in report.table(result)
    saved = json.loads(json.dumps(report.as_json([result], {}), allow_nan=False))
    assert saved["results"][0]["best_peer"] == "eager"
    assert saved["versions"] == {"planish": "0", "torch": "2"}


def test_a_workload_without_a_program_for_a_peer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(workload: w.Workload, threads: int) -> Ready:
        raise NoProgram

    outcome = run_fake(monkeypatch, absent)
    assert outcome.status == "absent" and not outcome.seconds
    assert "numpy" not in report.table(report.Result(SMALL["mlp"](), [outcome], 1e-3))


def two_results() -> list[report.Result]:
    """One row 4x ahead by the second door and at its aim, one 2x behind."""
    def outcome(peer: str, seconds: float) -> race.Outcome:
        return race.Outcome(peer, seconds=[seconds], first_call_s=0.1, error=1e-7)

    ahead = [outcome("planish", 9e-3), outcome("planish-torch", 1e-3), outcome("ort", 4e-3)]
    behind = [outcome("planish", 4e-3), race.Outcome("planish-torch", "absent"), outcome("ort", 2e-3)]
    return [report.Result(SMALL["mlp"](), ahead, 0.9e-3), report.Result(SMALL["deep"](), behind, 1e-3)]


def test_summary_counts_rows() -> None:
    text = report.summary(two_results())
    assert "geometric mean: 0.71 (1.41x ahead)" in text
    assert "behind by more than 3 %: deep 2.00" in text and "at or under the aim: 1" in text
    assert report.summary([]) == "no workload was run by planish and a peer"


def test_markdown_goes_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.put_between_marks(page, report.markdown(two_results()))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| 0.900 | 1.08 | 9.00 | 1.00 | 4.00 | 0.25 |" in text
    assert "| 1.00 | 1.20 | 4.00 |  | 2.00 | 2.00 |" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        report.put_between_marks(page, "x")
    assert page.read_text() == "no marks"


def test_picture_shows_every_time() -> None:
    about = {"flops_per_second": 2e11, "stream_bytes_per_second": 1e11}
    picture = ElementTree.fromstring(plot.svg(report.as_json(two_results(), about)))
    titles = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "planish-torch: 1.000 ms, 1.11 x limit" in titles and "ort: 2.000 ms, 2.00 x limit" in titles
    assert len(titles) == 5 + 4   # a bar for each time; two points for each workload


def first_prediction() -> np.ndarray:
    layers = w.random_layers(training_step.LAYERS, training_step.SIZE, 1.6)
    return w.stack(np, training_step.inputs()[0], layers, w.gelu_chain, activate_last=False)


@pytest.mark.usefixtures("same_threads_after")
def test_training_step_is_the_same_by_hand() -> None:
    pytest.importorskip("torch")
    workload = training_step.workload()
    assert race.relative_error(first_prediction(), workload.reference()) > 10 * workload.tolerance
    ready = PEERS["eager"].prepare(workload, 2)
    ready.call()
    output = ready.output(ready.call())
    assert race.relative_error(output, workload.reference()) <= workload.tolerance
    for _ in range(20):
        output = ready.output(ready.call())
    assert np.isfinite(output).all() and np.abs(output).max() < 100   # it can go on for many rounds


def test_limits_kernels_do_what_they_say() -> None:
    """The probes would lie if they skipped memory or arithmetic."""
    kernels, _ = limits._kernels()
    count = 64 * limits.UNROLL
    for name in ("copy", "copy_nontemporal", "write", "write_nontemporal"):
        x, y = limits._aligned(4 * count), limits._aligned(4 * count)
        x[:], y[:] = np.random.default_rng().normal(size=count), 7.0
        kernels[name](x.ctypes.data, y.ctypes.data, count, 2)
        np.testing.assert_array_equal(y, x if name.startswith("copy") else 0.0)
    sums, factor = limits._aligned(64 * limits.CHAINS), limits._aligned(64)
    factor[:] = 1.0
    kernels["fma"](sums.ctypes.data, factor.ctypes.data, 10, 1)
    np.testing.assert_array_equal(sums[: limits._lanes() * limits.CHAINS], 0.5 + 10 * 0.5)


def test_parts_of_the_pool_take_time() -> None:
    found = pool_microseconds(2)
    assert set(found) == {"region", "barrier"} and all(0 < us < float("inf") for us in found.values())


def test_command_line_refuses_unknown_names() -> None:
    run = subprocess.run([sys.executable, "-m", "benchmarks", "--only", "gelu,mlp2"], cwd=ROOT, text=True,
                         capture_output=True, env={**os.environ, "COLUMNS": "200"})
    assert run.returncode == 2 and "unknown: mlp2; choose from gelu" in run.stderr
