"""One workload, many peers: each in its own process, checked against float64 before it is timed, in mixed
rounds.

In: a workload's name, peers' names, threads, rounds. Out: an `Outcome` per peer, in the order given.
Every worker inherits this process's processors and is told the same number of threads; compilers get an
empty cache folder, so that a first call is a cold
one (but for the precompiled headers of Inductor, which stay in the temporary folder).
"""
from __future__ import annotations

import importlib.util
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from benchmarks.catalogue import WORKLOADS
from benchmarks.peers import PEERS
from benchmarks.workloads import Workload

ROOT = Path(__file__).parent.parent
ANSWER_SECONDS = 300       # a worker silent for longer has failed
ROUND_SECONDS = 0.25       # time for one peer in one round
CALLS = (3, 2000)          # calls in one round, at least and at most
PAUSE_SECONDS = 0.05       # between peers: threads of the last one that spin for more work go to sleep


@dataclass
class Outcome:
    """What happened to one peer. `status`: ok, not installed, absent (the workload has no program for
    it), failed, wrong; only `ok` has timings."""

    peer: str
    status: str = "ok"
    detail: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    first_call_s: float | None = None
    peak_bytes: int | None = None
    error: float | None = None       # largest, relative to the largest value of the float64 reference
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class WorkerFailure(Exception):
    """A worker that answered an error, died or fell silent."""


class WorkerProcess:
    """The other end of `benchmarks.worker`; use as a context: it ends the process."""

    def __init__(self, peer: str, workload: str, threads: int, scratch: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", peer, workload, str(threads)]
        self.log = (scratch / f"{workload}-{peer}.log").open("w+")
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment(threads, scratch), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)

    def ask(self, line: str) -> dict[str, Any]:
        """Send one command, wait for its answer. Raises WorkerFailure."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailure(self.last_words()) from None
        if not select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0]:
            raise WorkerFailure(f"no answer to {line.split()[0]!r} in {ANSWER_SECONDS} s")
        text = self.process.stdout.readline()
        if not text:
            raise WorkerFailure(self.last_words())
        answer = json.loads(text)
        if "error" in answer:
            raise WorkerFailure(answer["error"])
        return answer

    def last_words(self) -> str:
        self.process.wait()
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return f"died with status {self.process.returncode}: {lines[-1] if lines else 'nothing said'}"

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


def environment(threads: int, scratch: Path) -> dict[str, str]:
    counts = dict.fromkeys(["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"], str(threads))
    caches = {name: str(scratch / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "PLANISH_CACHE_DIR")}
    return {**os.environ, **counts, **caches}


def missing_packages(peer: str) -> list[str]:
    return [package for package in PEERS[peer].packages if importlib.util.find_spec(package) is None]


def relative_error(output: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference, relative to the largest value; NaN if the output is, infinite if shapes
    differ."""
    if output.shape != reference.shape:
        return float("inf")
    return float(np.max(np.abs(output - reference)) / np.max(np.abs(reference)))


def race(name: str, peers: Sequence[str], threads: int, rounds: int, say: Callable[[str], None],
         after_round: Callable[[], None] = lambda: None) -> list[Outcome]:
    """Run one workload on all installed peers. `after_round` is where the machine itself can be probed."""
    outcomes = {peer: Outcome(peer) for peer in peers}
    running: dict[str, WorkerProcess] = {}
    with tempfile.TemporaryDirectory(prefix="planish-bench-") as folder:
        try:
            say(f"{name}: preparing")
            workload = WORKLOADS[name]()
            workload.prepare()
            reference = workload.reference()
            for peer, outcome in outcomes.items():
                if missing := missing_packages(peer):
                    outcome.status, outcome.detail = "not installed", ", ".join(missing)
                    continue
                say(f"{name}: {peer} prepares")
                running[peer] = WorkerProcess(peer, name, threads, Path(folder))
                attempt(outcome, running, lambda o, w: prepare(o, w, workload, reference, Path(folder)))
            for i in range(rounds):
                say(f"{name}: round {i + 1} of {rounds}")
                run_round(i, outcomes, running)
                after_round()
            for peer, worker in running.items():
                outcomes[peer].peak_bytes = worker.ask("memory")["peak_bytes"]
        finally:
            for worker in running.values():
                worker.__exit__()
    return list(outcomes.values())


def attempt(outcome: Outcome, running: dict[str, WorkerProcess],
            step: Callable[[Outcome, WorkerProcess], None]) -> None:
    """Do a step with a peer's worker; one that fails, or is wrong, leaves the race."""
    try:
        step(outcome, running[outcome.peer])
    except WorkerFailure as failure:
        outcome.status, outcome.detail = "failed", str(failure)
    if outcome.status != "ok":
        outcome.seconds = []
        running.pop(outcome.peer).__exit__()


def prepare(outcome: Outcome, worker: WorkerProcess, workload: Workload, reference: np.ndarray,
            folder: Path) -> None:
    """First call and check."""
    answer = worker.ask("prepare")
    if "absent" in answer:
        outcome.status, outcome.detail = "absent", "no program of this workload"
        return
    outcome.first_call_s, outcome.versions = answer["first_call_s"], answer["versions"]
    path = folder / "output.npy"
    worker.ask(f"output {path}")
    outcome.error = relative_error(np.load(path), reference)
    if not outcome.error <= workload.tolerance:
        outcome.status, outcome.detail = "wrong", f"error {outcome.error:.1e} over {workload.tolerance:.0e}"


def run_round(i: int, outcomes: dict[str, Outcome], running: dict[str, WorkerProcess]) -> None:
    """Time every peer that still runs; who begins moves on by one from round to round."""
    order = list(running)
    first = i % max(1, len(order))
    for peer in order[first:] + order[:first]:
        sleep(PAUSE_SECONDS)
        attempt(outcomes[peer], running, measure)


def measure(outcome: Outcome, worker: WorkerProcess) -> None:
    """As many calls as fill a peer's time in a round, judged by the fastest so far."""
    fastest = min(outcome.seconds or worker.ask("time 3")["seconds"])
    calls = int(np.clip(ROUND_SECONDS / fastest, *CALLS))
    outcome.seconds += worker.ask(f"time {calls}")["seconds"]
