"""Verdicts on a clock of our own: what is clear wins, noise does not."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planish.tuning.pairs import PAIRS, SAMPLE_SECONDS, Timed, compare, glance, timed


class Machine:
    """Time that passes only when something runs: `what(seconds)` takes so long, times `noise`."""

    def __init__(self, noise: float = 0.0, seed: int = 0):
        self.now, self.noise, self.rng = 0.0, noise, np.random.default_rng(seed)
        self.runs = 0

    def clock(self) -> float:
        return self.now

    def what(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.runs += 1
            self.now += seconds * float(np.exp(self.noise * self.rng.standard_normal()))
        return run

    def timed(self, seconds: float) -> Timed:
        return timed(self.what(seconds), self.clock)


def test_what_is_clearly_faster_wins() -> None:
    machine = Machine(noise=0.02)
    verdict = compare(machine.timed(1e-3), machine.timed(0.8e-3))
    assert verdict.has_won and verdict.pairs == PAIRS and 0.75 < verdict.ratio < 0.85


def test_rest_comes_before_a_sample_and_is_not_counted() -> None:
    machine, rests = Machine(), []

    def rest() -> None:
        rests.append(machine.runs)
        machine.now += 1.0
    one = timed(machine.what(1e-3), machine.clock, rest)
    assert one.seconds() == pytest.approx(1e-3) and rests == [machine.runs - one.calls * one.turns]
    verdict = compare(one, timed(machine.what(0.5e-3), machine.clock, rest))
    assert verdict.has_won and verdict.ratio == pytest.approx(0.5) and len(rests) == 1 + 2 * verdict.pairs


def test_noise_is_no_verdict() -> None:
    """Two that are alike, on a machine where every measurement may be off by a third: of 300 contests three
    or so are won by chance."""
    wins = sum(compare(m.timed(1e-3), m.timed(1e-3)).has_won for m in (Machine(0.3, i) for i in range(300)))
    assert wins <= 12


def test_where_the_incumbent_is_unsteady_nothing_wins() -> None:
    """A machine that others take up for half of the time: the candidate is faster in every pair, but what of
    it is the others' doing?"""
    busy = iter([1.0, 3.0, 2.0, 3.0, 2.5] * 2)

    class Busy(Timed):
        def seconds(self) -> float:
            return next(busy)

    class Steady(Timed):
        def seconds(self) -> float:
            return 0.5
    one, two = (kind(lambda: None, 1, lambda: 0.0) for kind in (Busy, Steady))
    verdict = compare(one, two)
    assert verdict.word == "unsteady" and verdict.wins == PAIRS and not verdict.has_won


def test_a_hair_is_no_verdict() -> None:
    machine = Machine()
    verdict = compare(machine.timed(1e-3), machine.timed(0.99e-3))
    assert verdict.word == "undecided" and verdict.wins == PAIRS


def test_what_cannot_win_is_not_measured_further() -> None:
    machine = Machine()
    verdict = compare(machine.timed(1e-3), machine.timed(2e-3))
    assert verdict.word == "slower" and verdict.pairs < PAIRS / 2 and verdict.ratio == pytest.approx(2)


def test_when_time_is_up_nothing_wins() -> None:
    machine = Machine()
    one, two = machine.timed(1e-3), machine.timed(0.5e-3)
    verdict = compare(one, two, until=machine.now + 0.01)
    assert verdict.word == "out of time" and not verdict.has_won and 0 < verdict.pairs < PAIRS


def test_each_is_first_every_second_time() -> None:
    """Who runs second pays for who ran first: twice the time. It evens out."""
    now, order = [0.0], ["b"]

    def what(name: str) -> Callable[[], None]:
        def run() -> None:
            now[0] += 1.0 if order[-1] == name else 2.0
            order.append(name)
        return run
    one, two = (Timed(what(n), 1, lambda: now[0], turns=1) for n in "ab")
    assert not compare(one, two).has_won and not compare(two, one).has_won


def test_short_calls_are_timed_together() -> None:
    machine = Machine()
    one = machine.timed(1e-6)
    assert one.calls * 1e-6 >= SAMPLE_SECONDS
    assert abs(one.seconds() - 1e-6) < 1e-9
    assert machine.timed(0.5).calls == 1 and machine.timed(0.5).turns == 1


def test_a_clock_that_stands_still_ends() -> None:
    assert timed(lambda: None, lambda: 0.0).calls > 1


def test_a_first_look_takes_turns() -> None:
    machine = Machine()
    looks = glance(machine.timed(1e-3), [machine.timed(2e-3), machine.timed(0.5e-3)])
    assert looks == pytest.approx([2.0, 0.5])
