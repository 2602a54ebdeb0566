"""Which of two is faster, on a machine that others use too.

In: two things to run, a clock. Out: a `Verdict`. The two take turns in pairs, each first every second time,
so that a busy moment hits both; what is compared is the ratio inside a pair. A candidate has won only if it
was faster in nearly all pairs (the sign test: 9 or 10 of 10 by chance has a probability of 0.011) and by at
least 3 % in the median, while the incumbent's own time kept steady: on a machine so busy that it does not,
what is measured is the others. Everything else leaves the incumbent where it is; a candidate that cannot win
any more is not measured further.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Literal

Run = Callable[[], object]
Clock = Callable[[], float]
Word = Literal["won", "slower", "undecided", "unsteady", "out of time"]

PAIRS = 10          # measured, at most
STEADY = 1.25       # the incumbent's median time over its least, at most
NEEDED = 9          # of them that a winner wins
CLEAR = 0.97        # a winner's median share of the incumbent's time, at most
HOPELESS = 1.10     # of a first look: slower than this is not measured in pairs
TURNS = 3           # in one sample, of which the fastest counts
SAMPLE_SECONDS = 4e-4   # of calls in a turn, at least
LONG_SECONDS = 2e-2     # of a turn, from which it is a sample by itself
MOST_CALLS = 4096


@dataclass(frozen=True)
class Verdict:
    """`ratio`: the candidate's time over the incumbent's, the median of `pairs` pairs, `wins` of them won."""

    word: Word
    ratio: float
    wins: int = 0
    pairs: int = 0

    @property
    def has_won(self) -> bool:
        return self.word == "won"


@dataclass(frozen=True)
class Timed:
    """Something to run, how many calls make a turn, and how many turns a sample. `rest` comes before each
    sample: what ran last may leave threads that spin."""

    run: Run
    calls: int
    clock: Clock
    turns: int = TURNS
    rest: Run | None = None

    def seconds(self) -> float:
        """Of one call: the fastest of a few turns."""
        if self.rest is not None:
            self.rest()
        return min(self.turn() for _ in range(self.turns))

    def turn(self) -> float:
        start = self.clock()
        for _ in range(self.calls):
            self.run()
        return (self.clock() - start) / self.calls


def timed(run: Run, clock: Clock = perf_counter, rest: Run | None = None) -> Timed:
    """What is run, warmed up, with so many calls a turn that a clock can see them."""
    run()
    calls = 1
    while calls < MOST_CALLS:
        seconds = Timed(run, calls, clock).turn() * calls
        if seconds >= SAMPLE_SECONDS:
            return Timed(run, calls, clock, TURNS if seconds < LONG_SECONDS else 1, rest)
        wanted = calls * SAMPLE_SECONDS / seconds if seconds > 0 else MOST_CALLS
        calls = min(MOST_CALLS, max(2 * calls, int(wanted) + 1))
    return Timed(run, calls, clock, rest=rest)


def glance(incumbent: Timed, candidates: Sequence[Timed]) -> list[float]:
    """A first look, in turns: each candidate's fastest time over the incumbent's."""
    everyone = [incumbent, *candidates]
    best = [min(times) for times in zip(*([one.seconds() for one in everyone] for _ in range(2)))]
    return [seconds / best[0] for seconds in best[1:]]


def compare(incumbent: Timed, candidate: Timed, until: float = float("inf")) -> Verdict:
    """Pairs until there is a verdict, or the clock says `until`."""
    ratios: list[float] = []
    own: list[float] = []
    for number in range(PAIRS):
        if incumbent.clock() >= until:
            return _verdict("out of time", ratios)
        seconds, other = _pair(incumbent, candidate, candidate_first=number % 2 == 1)
        own.append(seconds)
        ratios.append(other / seconds)
        lost = sum(r >= 1 for r in ratios)
        if lost > PAIRS - NEEDED:
            return _verdict("slower" if median(ratios) > 1 / CLEAR else "undecided", ratios)
    if median(own) > STEADY * min(own):
        return _verdict("unsteady", ratios)
    return _verdict("won" if median(ratios) < CLEAR else "undecided", ratios)


def _pair(incumbent: Timed, candidate: Timed, *, candidate_first: bool) -> tuple[float, float]:
    """The seconds of the incumbent and of the candidate, measured one after the other."""
    if candidate_first:
        other = candidate.seconds()
        return incumbent.seconds(), other
    return incumbent.seconds(), candidate.seconds()


def _verdict(word: Word, ratios: Sequence[float]) -> Verdict:
    return Verdict(word, median(ratios) if ratios else 1.0, sum(r < 1 for r in ratios), len(ratios))
