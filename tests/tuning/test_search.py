"""The best of a handful: who may win, and who is refused before it is timed."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import PlanishError
from planish.schedule.choice import ANALYTIC, Choice
from planish.tuning.search import Contest, search
from planish.tuning.trial import Candidate, disagreement

RIGHT = (np.linspace(-1, 1, 50, dtype=np.float32),)


class Bench:
    """Candidates whose calls take a known time on a clock of their own."""

    def __init__(self, seconds: dict[Choice, float], wrong: tuple[Choice, ...] = ()):
        self.seconds, self.wrong, self.now = seconds, wrong, 0.0
        self.made: list[Choice] = []

    def make(self, choice: Choice) -> Candidate:
        self.made.append(choice)
        outputs = (RIGHT[0] * np.float32(1.01),) if choice in self.wrong else RIGHT

        def run() -> None:
            self.now += self.seconds[choice]
        return Candidate(run, outputs)

    def search(self, groups: list, until: float = float("inf")) -> Contest[Choice]:
        return search(self.make, groups, clock=lambda: self.now, until=until)


TILE, WIDE = Choice(tile=(4, 3)), Choice(tile=(3, 4))
BOTH = Choice(tile=(4, 3), unroll=8)


def test_groups_start_from_the_winner_so_far() -> None:
    bench = Bench({ANALYTIC: 1e-3, TILE: 0.8e-3, WIDE: 0.9e-3, BOTH: 0.4e-3})
    contest = bench.search([[{"tile": (4, 3)}, {"tile": (3, 4)}], [{"unroll": 8}]])
    assert contest.name == BOTH and bench.made == [ANALYTIC, TILE, WIDE, BOTH]
    assert contest.speedup == pytest.approx(2.5) and contest.us == pytest.approx(1000)
    assert [(t.candidate, t.verdict) for t in contest.tried] == [
        ("tile 4x3", "won"), ("tile 3x4", "behind another"), ("tile 4x3, unroll 8", "won")]


def test_a_wrong_candidate_is_refused_however_fast() -> None:
    bench = Bench({ANALYTIC: 1e-3, TILE: 1e-5, WIDE: 0.9e-3}, wrong=(TILE,))
    contest = bench.search([[{"tile": (4, 3)}, {"tile": (3, 4)}]])
    assert contest.name == WIDE
    refused, = (t for t in contest.tried if t.candidate == "tile 4x3")
    assert refused.verdict.startswith("refused: output 0: differs by up to 0.01") and refused.ratio == 0


def test_a_candidate_that_cannot_be_made_is_refused() -> None:
    def make(choice: Choice) -> Candidate:
        if choice == TILE:
            raise PlanishError("no such tile")
        return bench.make(choice)
    bench = Bench({ANALYTIC: 1e-3})
    contest = search(make, [[{"tile": (4, 3)}]], clock=lambda: bench.now)
    assert contest.name == ANALYTIC
    assert [t.verdict for t in contest.tried] == ["refused: PlanishError: no such tile"]


def test_when_time_is_up_nothing_more_is_made() -> None:
    bench = Bench({ANALYTIC: 1e-3, TILE: 1e-5})
    contest = bench.search([[{"tile": (4, 3)}]], until=0.0)
    assert bench.made == [ANALYTIC] and contest.name == ANALYTIC and not contest.is_whole
    assert [t.verdict for t in contest.tried] == ["out of time"]


def test_with_a_veto_a_draw_is_enough_and_a_loss_is_not() -> None:
    for seconds, stands in ((0.99e-3, True), (1.2e-3, False)):
        bench = Bench({ANALYTIC: 1e-3, TILE: seconds})
        contest = Contest(ANALYTIC, bench.make(ANALYTIC), lambda: bench.now)  # noqa: B023
        name = contest.group([(TILE, lambda: bench.make(TILE))], veto=True)  # noqa: B023
        assert (name == TILE) is stands


@pytest.mark.parametrize(("new", "fault"), [
    (RIGHT, ""),
    ((RIGHT[0] + np.float32(1e-6),), ""),
    ((RIGHT[0] + np.float32(1e-3),), "differs by up to 0.001"),
    ((RIGHT[0].astype(np.float64),), "float64[50] instead of float32[50]"),
    ((RIGHT[0][:-1],), "float32[49] instead of float32[50]"),
    ((), "0 outputs instead of 1"),
    ((np.where(np.arange(50) == 7, np.float32(np.nan), RIGHT[0]),), "differs"),
])
def test_disagreement(new: tuple, fault: str) -> None:
    assert fault in disagreement(new, RIGHT) and bool(fault) == bool(disagreement(new, RIGHT))


def test_whole_numbers_are_equal_and_nan_equals_nan() -> None:
    assert disagreement((np.array([1, 2]),), (np.array([1, 3]),)) == "output 0: 1 of 2 elements differ"
    special = np.array([np.nan, np.inf, 1.0])
    assert disagreement((special.copy(),), (special,)) == ""
    assert disagreement((np.array([np.nan, -np.inf, 1.0]),), (special,))


def test_choices_are_plain_data() -> None:
    choice = Choice(tile=(4, 3), unroll=8, grid="rows", threads=False)
    assert Choice.from_json(choice.to_json()) == choice
    assert str(choice) == "tile 4x3, unroll 8, grid rows, threads off" and str(ANALYTIC) == "as chosen"
    for bad in (None, [], {"tiles": 1}, {"tile": [4]}, {"tile": [0, 3]}, {"unroll": -1}, {"unroll": "8"},
                {"grid": "diagonal"}, {"threads": 3}, {"tile": 7}):
        with pytest.raises(ValueError):
            Choice.from_json(bad)
