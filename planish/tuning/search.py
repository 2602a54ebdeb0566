"""The best of a handful: groups of candidates against an incumbent, measured in pairs, checked first.

In: what makes a candidate of a choice, and groups of moves. Out: the choice that has clearly won, or the
incumbent's, with everything that was tried. A candidate that can't be made, or gives another answer than the
incumbent, is refused before it is timed.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Generic, TypeVar

from planish.errors import PlanishError
from planish.schedule.choice import ANALYTIC, Choice
from planish.tuning.candidates import Move
from planish.tuning.pairs import HOPELESS, Clock, Run, Timed, compare, glance, timed
from planish.tuning.record import Tried
from planish.tuning.trial import Candidate, disagreement

FAILURES = (PlanishError, RuntimeError, ValueError, MemoryError)  # of making or running a candidate

T = TypeVar("T")


@dataclass
class Contest(Generic[T]):
    """An incumbent that others are held against, one group after another. `until`: when the clock says so,
    nothing more is tried. `rest` comes before each sample (pairs.py)."""

    name: T
    incumbent: Candidate
    clock: Clock = perf_counter
    until: float = float("inf")
    rest: Run | None = None
    speedup: float = 1.0
    tried: list[Tried] = field(default_factory=list)
    is_whole: bool = True

    def __post_init__(self) -> None:
        self.best: Timed = timed(self.incumbent.run, self.clock, self.rest)
        self.us = self.best.seconds() * 1e6

    def group(self, candidates: Sequence[tuple[T, Callable[[], Candidate]]], *, veto: bool = False) -> T:
        """Try these; the one that looks fastest is measured in pairs. The name of the incumbent then. With
        `veto` it need not win, only not lose: its parts have won before."""
        ready: list[tuple[T, Timed]] = []
        for name, make in candidates:
            if self.clock() >= self.until:
                self.is_whole = False
                self.tried.append(Tried(str(name), 0.0, "out of time"))
            elif (one := self._checked(name, make)) is not None:
                ready.append((name, one))
        looks = glance(self.best, [one for _, one in ready]) if ready else []
        first = min(range(len(ready)), key=looks.__getitem__, default=-1)
        for i, (name, one) in enumerate(ready):
            if i == first and (looks[i] < HOPELESS or veto):
                self._duel(name, one, veto)
            else:
                word = "slower" if looks[i] >= HOPELESS else "behind another"
                self.tried.append(Tried(str(name), looks[i], word))
        return self.name

    def _checked(self, name: T, make: Callable[[], Candidate]) -> Timed | None:
        """The candidate, ready to be timed; None where it is refused."""
        try:
            made = make()
            fault = disagreement(made.outputs, self.incumbent.outputs)
        except FAILURES as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            self.tried.append(Tried(str(name), 0.0, f"refused: {fault}"))
            return None
        return timed(made.run, self.clock, self.rest)

    def _duel(self, name: T, one: Timed, veto: bool) -> None:
        verdict = compare(self.best, one, self.until)
        stands = verdict.has_won or (veto and verdict.word == "undecided" and verdict.ratio <= 1)
        self.tried.append(Tried(str(name), verdict.ratio, "kept" if stands and veto else verdict.word))
        self.is_whole = self.is_whole and verdict.word != "out of time"
        if stands:
            self.name, self.best = name, one
            self.speedup /= verdict.ratio


def search(make: Callable[[Choice], Candidate], groups: Sequence[Sequence[Move]], *,
           clock: Clock = perf_counter, until: float = float("inf")) -> Contest[Choice]:
    """The contest for one kernel, done: `name` is the choice that stands."""
    contest = Contest(ANALYTIC, make(ANALYTIC), clock, until)
    for group in groups:
        choices = [_moved(contest.name, move) for move in group]
        contest.group([(choice, _maker(make, choice)) for choice in choices])
    return contest


def _moved(choice: Choice, move: Move) -> Choice:
    given: dict[str, Any] = dict(move)
    return replace(choice, **given)


def _maker(make: Callable[[Choice], Candidate], choice: Choice) -> Callable[[], Candidate]:
    return lambda: make(choice)
