"""Choices, loops and slices in the program IR: text, phases and live ranges, verifier, interpreter."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import ParseError, VerificationError
from planish.schedule.program import Program, live_ranges, phases
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program
from planish.schedule.program_verify import verify_program

# Doubles x until its sum passes 100, and stacks (negated, if p) powers of what there is then.
TEXT = """
program powers(x, p) -> (y, ys) where N in 0..9 {
  x: f32[N, 4] = input 0
  p: bool[] = input 1
  y: f32[4] = output 0
  ys: f32[N, 4] = output 1
  small: bool[] = arena 0
  total: f32[] = arena 64
  next: f32[4] = arena 64
  more: f32[4] = arena 64
  x_i: f32[4] = slice x 16*i
  ys_i: f32[4] = slice ys 16*i
  arena 128
  ones() -> (y)
  while small {
    sum(y) -> (total)
    below(total) -> (small)
  } do {
    double(y) -> (next)
    copy(next) -> (y)
  }
  for i in N reversed {
    add(x_i, y) -> (more)
    if p {
      negate(more) -> (ys_i)
    } else {
      copy(more) -> (ys_i)
    }
    copy(more) -> (y)
  }
}
kernel ones() -> (y: f32[4]) {
  for s0 in 4:
    t0: f32 = map:
      y[s0] = 1.0
}
kernel sum(x: f32[4]) -> (y: f32[]) {
  t0: f32 = add over a in 4:
    x[a]
  t1: f32 = map:
    y[()] = t0
}
kernel below(x: f32[]) -> (y: bool[]) {
  t0: bool = map:
    y[()] = x[()] < 100.0
}
kernel double(x: f32[4]) -> (y: f32[4]) {
  for s0 in 4:
    t0: f32 = map:
      y[s0] = x[s0] * 2.0
}
kernel copy(x: f32[4]) -> (y: f32[4]) {
  for s0 in 4:
    t0: f32 = map:
      y[s0] = x[s0]
}
kernel add(x: f32[4], z: f32[4]) -> (y: f32[4]) {
  for s0 in 4:
    t0: f32 = map:
      y[s0] = x[s0] + z[s0]
}
kernel negate(x: f32[4]) -> (y: f32[4]) {
  for s0 in 4:
    t0: f32 = map:
      y[s0] = neg(x[s0])
}""".strip()


def program(text: str = TEXT) -> Program:
    return parse_program(text)


def test_prints_what_it_parsed() -> None:
    assert print_program(program()) == TEXT


@pytest.mark.parametrize("harsh", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("p", [False, True])
def test_meaning(n: int, p: bool, harsh: bool) -> None:
    x = np.random.default_rng().integers(0, 9, (n, 4)).astype(np.float32)
    y, ys = interpret_program(verify_program(program()), [x, np.array(p)], harsh=harsh)
    sums = 32 + np.cumsum(x[::-1], axis=0)[::-1]
    np.testing.assert_array_equal(ys, -sums if p else sums)
    np.testing.assert_array_equal(y, sums[0] if n else np.full(4, 32))


def test_phases_and_live_ranges() -> None:
    """What is used inside and outside of a loop lives through all of it; a slice is its base."""
    steps = [(phase, getattr(getattr(step, "kernel", None), "name", type(step).__name__)) for phase, step in
             phases(program())]
    assert steps == [(0, "ones"), (1, "sum"), (2, "below"), (3, "While"), (4, "double"), (5, "copy"),
                     (6, "For"), (7, "add"), (8, "If"), (9, "negate"), (10, "copy"), (11, "copy")]
    live = live_ranges(program())
    assert live["total"] == (1, 2) and live["small"] == (2, 3)
    assert live["x"] == (7, 7) and live["p"] == (8, 8) and live["ys"] == (9, 12)
    assert live["next"] == (4, 5) and live["more"] == (7, 11)


FAULTS = {
    "a predicate is one bool; total is f32[]": ("while small", "while total"),
    "small is read before it is written": ("    below(total) -> (small)\n", ""),
    "ys_i lies at 144..160 of the 144 bytes of ys": ("slice ys 16*i", "slice ys 16*i + 16"),
    "x_i is not aligned to its elements": ("slice x 16*i", "slice x 15*i"),
    "zs is not a buffer declared before": ("slice ys", "slice zs"),
    "copy writes to x_i, which is input 0": ("copy(more) -> (ys_i)", "copy(more) -> (x_i)"),
    "total overlaps y, which lives at the same time": ("y: f32[4] = output 0", "y: f32[4] = arena 64"),
    "small overlaps y, which lives at the same time": ("y: f32[4] = output 0", "y: f32[4] = arena 0"),
    "y is used by double too, with no barrier between": ("double(y) -> (next)\n    copy(next)",
                                                         "double(y) -> (next) no barrier\n    copy(x_i)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    old, new = FAULTS[fault]
    assert old in TEXT
    with pytest.raises(VerificationError) as caught:
        verify_program(program(TEXT.replace(old, new, 1)))
    assert fault in str(caught.value)


def test_a_value_written_on_one_side_only_is_not_written() -> None:
    one_side = TEXT.replace("add(x_i, y) -> (more)\n    if p {\n      negate(more) -> (ys_i)",
                            "if p {\n      add(x_i, y) -> (more)")
    with pytest.raises(VerificationError, match="more is read before it is written"):
        verify_program(program(one_side))


@pytest.mark.parametrize(("old", "new", "says"), [("} else {\n", "", "'}' is not a line of a program"),
                                                  ("for i in N", "for i of N", "is not the head of a loop"),
                                                  ("while small {", "while {", "is not a line of a program")])
def test_text_that_is_no_program(old: str, new: str, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        program(TEXT.replace(old, new, 1))
