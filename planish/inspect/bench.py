"""Times of several ways to run one graph, in mixed rounds; correctness first.

In: a graph, inputs, and contestants. Out: a `Bench`. Each contestant is built, run once (its first call) and
compared with the float64 reference; one that gives another answer gets no time, and the reason. Those that
are right take turns, a different one first in each round, so that a busy moment hits all alike. Before each
turn there is a pause, in which threads of the last one that still spin for more work go to sleep.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np

from planish.inspect.machine import MachineInfo, machine_info
from planish.inspect.validate import OutputError, Reference, Runner
from planish.ir import Graph

ROUND_SECONDS = 0.15
MOST_CALLS = 1000        # in one turn
PAUSE_SECONDS = 0.03

Say = Callable[[str], None]


@dataclass(frozen=True)
class Contestant:
    """A way to run the graph: `build` gives something that takes the inputs and returns the outputs."""

    name: str
    build: Callable[[], Runner]


@dataclass(frozen=True)
class Timing:
    """Milliseconds per call over `calls` calls, warm-up excluded; of the build and the first call alone."""

    name: str
    calls: int
    build: float
    first: float
    min: float
    median: float
    p90: float
    p99: float
    errors: list[OutputError]


@dataclass(frozen=True)
class Bench:
    """Who was right has a timing; who was not is in `refused`, name -> why."""

    inputs: list[str]
    machine: MachineInfo
    timings: list[Timing]
    refused: dict[str, str]

    def timing(self, name: str) -> Timing | None:
        return next((t for t in self.timings if t.name == name), None)

    def ratio(self, name: str, other: str) -> float | None:
        """How many times the median of `other` is that of `name`; None where one has no time."""
        one, two = self.timing(name), self.timing(other)
        return two.median / one.median if one and two else None


@dataclass
class _Entry:
    runner: Runner
    build: float
    first: float
    errors: list[OutputError]
    seconds: list[float]


def bench(graph: Graph, contestants: Sequence[Contestant], inputs: Sequence[np.ndarray], *, rounds: int = 10,
          say: Say = lambda text: None) -> Bench:
    """Build, check and time. `say` hears of every step, for a progress bar: see `steps`."""
    machine = machine_info()
    say("reference in float64")
    reference = Reference(graph, inputs)
    entries: dict[str, _Entry] = {}
    refused: dict[str, str] = {}
    for one in contestants:
        say(f"{one.name}: build and check")
        try:
            entry = _entered(one, reference, inputs)
        except Exception as error:  # a foreign runtime raises types of its own
            refused[one.name] = f"{type(error).__name__}: {error}"
            continue
        fault = next((f"{e.name}: {e.fault}" for e in entry.errors if not e.is_right), "")
        if fault:
            refused[one.name] = f"gives another answer; {fault}"
        else:
            entries[one.name] = entry
    for i in range(rounds):
        say(f"round {i + 1} of {rounds}")
        _round(i, list(entries.values()), inputs)
    timings = [_timing(name, entry) for name, entry in entries.items()]
    names = ["string" if a.dtype == object else str(a.dtype) for a in inputs]
    described = [f"{name}[{', '.join(map(str, a.shape))}]" for name, a in zip(names, inputs)]
    return Bench(described, machine, timings, refused)


def steps(contestants: int, rounds: int) -> int:
    """How often `bench` calls `say`."""
    return 1 + contestants + rounds


def _entered(one: Contestant, reference: Reference, inputs: Sequence[np.ndarray]) -> _Entry:
    start = perf_counter()
    runner = one.build()
    built = perf_counter()
    outputs = runner(*inputs)
    done = perf_counter()
    return _Entry(runner, built - start, done - built, reference.errors(outputs), [])


def _round(i: int, entries: list[_Entry], inputs: Sequence[np.ndarray]) -> None:
    first = i % max(1, len(entries))
    for entry in entries[first:] + entries[:first]:
        entry.seconds += turn(entry.runner, inputs)


def turn(runner: Runner, inputs: Sequence[np.ndarray] = (), seconds: float = ROUND_SECONDS) -> list[float]:
    """After a pause, the times of calls one after another, until the time is up; at least one.

    The first is not counted where there are more: it brings memory and threads back.
    """
    sleep(PAUSE_SECONDS)
    times: list[float] = []
    start = perf_counter()
    end = start + seconds
    while not times or (start < end and len(times) < MOST_CALLS):
        runner(*inputs)
        now = perf_counter()
        times.append(now - start)
        start = now
    return times[1:] or times


def _timing(name: str, entry: _Entry) -> Timing:
    ms = np.asarray(entry.seconds) * 1e3
    least, median, p90, p99 = (float(np.percentile(ms, p)) for p in (0, 50, 90, 99))
    return Timing(name, len(ms), entry.build * 1e3, entry.first * 1e3, least, median, p90, p99, entry.errors)
