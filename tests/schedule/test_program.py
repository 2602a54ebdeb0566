"""The program IR: text, verifier, and an interpreter in which a bad memory plan gives bad numbers."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planish.errors import ParseError, ShapeError, SignatureError, VerificationError
from planish.ops.content import Content
from planish.schedule.program import Program
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program, program_constants
from planish.schedule.program_verify import verify_program

MLP = """
program mlp(x, i) -> (y, x, rows) where N in 1..64 {
  x: f32[N, 4] = input 0
  i: i64[N] = input 1
  w: f32[4, 8] order(1, 0) = constant 0 @c0
  b: f32[2] = constant 1 [0.5, -1.0]
  h: f32[N, 8] = arena 0
  ok: bool[] = arena 32*N
  g: f32[N, 8] = arena 32*N + 64
  y: f32[8*N] = output 0
  rows: i64[1] = output 2
  arena 64*N + 64
  matmul(x, w) -> (h) no barrier
  inside(i) -> (ok, rows)
  check ok 1 IndexError 'index out of range'
  gather(h, i) -> (g)
  scale(g, b) -> (y)
}
kernel matmul(x: f32[N, 4], w: f32[4, 8] order(1, 0)) -> (h: f32[N, 8]) where N in 1..64 {
  for s0 in N parallel, s1 in 8:
    t0: f32 = add over a in 4:
      x[s0, a] * w[a, s1]
    t1: f32 = map:
      h[s0, s1] = t0
}
kernel inside(i: i64[N]) -> (ok: bool[], rows: i64[1]) where N in 1..64 {
  t0: bool = bitwise_and over a in N:
    bitwise_and(i[a] >= i64(0), i[a] < index(N))
  t1: bool = map:
    ok[()] = t0
  t2: i64 = map:
    rows[0] = index(N)
}
kernel gather(h: f32[N, 8], i: i64[N]) -> (g: f32[N, 8]) where N in 1..64 {
  for s0 in N parallel:
    t0: f32 = map over a in 8:
      g[s0, a] = h[i[s0], a]
}
kernel scale(g: f32[4*N, 2], b: f32[2]) -> (y: f32[4*N, 2]) where N in 1..64 {
  for s0 in 4*N parallel:
    t0: f32 = map over a in 2:
      y[s0, a] = g[s0, a] * b[a]
}""".strip()

W = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)


def program(text: str = MLP) -> Program:
    return parse_program(text, {"c0": W})


def feeds(n: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng()
    return [rng.standard_normal((n, 4)).astype(np.float32), rng.permutation(n)]


def test_prints_what_it_parsed() -> None:
    mlp = program()
    assert print_program(mlp) == MLP
    constants = program_constants(mlp)
    assert list(constants) == ["c0"] and np.array_equal(constants["c0"], W)


@pytest.mark.parametrize("harsh", [False, True])
@pytest.mark.parametrize("n", [1, 5, 17])
def test_means_what_numpy_says(n: int, harsh: bool) -> None:
    x, i = feeds(n)
    y, same, rows = interpret_program(verify_program(program()), [x, i], harsh=harsh)
    expected = ((x @ W)[i].reshape(-1, 2) * np.array([0.5, -1.0], np.float32)).reshape(-1)
    np.testing.assert_allclose(y, expected, 1e-5, 1e-5)
    np.testing.assert_array_equal(same, x)
    assert rows.tolist() == [n]


def test_a_failing_check_raises_what_it_says() -> None:
    x, i = feeds()
    with pytest.raises(IndexError, match=r"^index out of range$"):
        interpret_program(program(), [x, i + 1])


def test_inputs_that_do_not_fit() -> None:
    x, i = feeds()
    with pytest.raises(ShapeError, match=r"input x: expected shape \(6, 4\), got \(5, 4\)"):
        interpret_program(program(), [x, np.arange(6)])
    with pytest.raises(SignatureError, match="input i: expected int64, got int32"):
        interpret_program(program(), [x, i.astype(np.int32)])
    with pytest.raises(SignatureError, match="mlp takes 2 inputs; 1 were given"):
        interpret_program(program(), [x])


def test_order_of_memory_is_kept() -> None:
    text = """
program t(x) -> (y) {
  x: f32[2, 3] order(1, 0) = input 0
  y: f32[3, 2] order(1, 0) = output 0
  arena 0
  copy(x) -> (y)
}
kernel copy(x: f32[6]) -> (y: f32[6]) {
  t0: f32 = map over a in 6:
    y[a] = x[a]
}"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, = interpret_program(verify_program(parse_program(text)), [x])
    np.testing.assert_array_equal(y.ravel("F"), x.ravel("F"))


# --- faults: what is wrong -> (old text, new text)

FAULTS = {
    "g overlaps h, which lives at the same time at N=1": ("arena 32*N + 64\n", "arena 0\n"),
    "g lies at 96..128, outside the arena of 127 bytes at N=1": ("arena 64*N + 64\n", "arena 64*N + 63\n"),
    "g lies at 95, which is not aligned to its elements": ("arena 32*N + 64\n", "arena 32*N + 63\n"),
    "h is read before it is written": ("  matmul(x, w) -> (h) no barrier\n", ""),
    "the output y is never written": ("  scale(g, b) -> (y)\n", ""),
    "g is used by gather too, with no barrier between": ("(h, i) -> (g)\n", "(h, i) -> (g) no barrier\n"),
    "scale takes 3 buffers, not 2": ("scale(g, b) -> (y)", "scale(b) -> (y)"),
    "q is not a buffer of the program": ("matmul(x, w)", "matmul(q, w)"),
    "i is i64[N]; scale takes f32[2] for b": ("scale(g, b)", "scale(g, i)"),
    "x is f32[N, 4]; scale takes f32[4*N, 2] for g": ("scale(g, b)", "scale(x, b)"),
    "a check looks at one bool; i is i64[N]": ("check ok", "check i"),
    "Crash is not the name of a built-in exception": ("IndexError", "Crash"),
    "the code 0 means that all is well": ("ok 1", "ok 0"),
    "z is not a buffer of the program": ("-> (y, x, rows)", "-> (z, x, rows)"),
    "x is not in the place of input 0": ("f32[N, 4] = input 0", "f32[N, 4] = input 1"),
    "two buffers have one name": ("  b: f32[2]", "  y: f32[2]"),
    "there is no constant 7": ("@c0", "@c0\n  u: f32[4, 8] = constant 7 @c0"),
    "rows is not output 1": ("output 2", "output 1"),
    "the constant is f32 of shape (4, 8)": ("w: f32[4, 8] order(1, 0)", "w: f32[8, 4]"),
    "g[s0, a + 1]: index 8 of axis 1 is out of range": ("g[s0, a] =", "g[s0, a + 1] ="),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    old, new = FAULTS[fault]
    assert old in MLP
    with pytest.raises(VerificationError) as caught:
        verify_program(program(MLP.replace(old, new, 1)))
    assert fault in str(caught.value)


@pytest.mark.parametrize("kind", ["input", "constant"])
def test_inputs_and_constants_are_not_written(kind: str) -> None:
    mlp = program()
    places = [replace(p, kind=kind, position=2) if p.name == "rows" else p for p in mlp.buffers]
    inputs = (*mlp.inputs, "rows") if kind == "input" else mlp.inputs
    changed = replace(mlp, inputs=inputs, outputs=("y", "x"), buffers=tuple(places),
                      contents=(*mlp.contents, Content.of(np.array([0]))))
    with pytest.raises(VerificationError, match=f"inside writes to rows, which is {kind} 2"):
        verify_program(changed)


def test_symbols_and_kernel_names_are_the_programs_own() -> None:
    mlp = program()
    with pytest.raises(VerificationError, match="N is not a symbol of the program"):
        verify_program(replace(mlp, symbols=()))
    other = replace(mlp.steps[1].kernel, name="matmul")
    with pytest.raises(VerificationError, match="two kernels are called matmul"):
        second = replace(mlp.steps[1], kernel=other)
        verify_program(replace(mlp, steps=(mlp.steps[0], second, *mlp.steps[2:])))


def test_the_message_shows_the_lines_around() -> None:
    with pytest.raises(VerificationError) as caught:
        verify_program(program(MLP.replace("scale(g, b)", "scale(x, b)")), after="memory plan")
    assert str(caught.value) == """\
after memory plan: program mlp: x is f32[N, 4]; scale takes f32[4*N, 2] for g
  arena 64*N + 64
  matmul(x, w) -> (h) no barrier
  inside(i) -> (ok, rows)
  check ok 1 IndexError 'index out of range'
  gather(h, i) -> (g)
->scale(x, b) -> (y)
}"""


# --- a bad plan gives bad numbers

@pytest.mark.parametrize(("old", "new"), [
    ("g: f32[N, 8] = arena 32*N + 64", "g: f32[N, 8] = arena 0"),    # written over what it is made from
    ("(h, i) -> (g)\n", "(h, i) -> (g) no barrier\n"),               # scale may run before gather
])
def test_harsh_interpretation_shows_bad_plans(old: str, new: str) -> None:
    x, i = feeds(6)
    i = np.array([1, 2, 3, 4, 5, 0])
    good, *_ = interpret_program(program(), [x, i], harsh=True)
    bad, *_ = interpret_program(program(MLP.replace(old, new)), [x, i], harsh=True)
    assert np.isfinite(good).all() and not np.array_equal(good, bad)


def test_freed_memory_is_poisoned() -> None:
    mlp = program(MLP.replace("-> (y, x, rows)", "-> (y, x, rows, h)"))
    x, i = feeds()
    assert np.isfinite(interpret_program(mlp, [x, i], harsh=True)[3]).all()  # an output lives to the end
    h = "  h: f32[N, 8] = arena 0"
    late = program(MLP.replace(h, f"{h}\n  h2: f32[N, 8] = arena 0").replace(
        "  scale(g, b) -> (y)", "  gather(h2, i) -> (g)\n  scale(g, b) -> (y)"))
    assert np.isnan(interpret_program(late, [x, i], harsh=True)[0]).any()


@pytest.mark.parametrize(("old", "new", "says"), [
    ("gather(h, i)", "collect(h, i)", "no kernel collect"),
    ("= arena 0", "= stack 0", "not a line of a program"),
    ("@c0", "@c5", "no constant is given for @c5"), ("-> (y, x, rows) ", "-> ", "not the head of a program")])
def test_text_that_is_no_program(old: str, new: str, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        program(MLP.replace(old, new))


# --- one value written over another

OVER = """
program over(x) -> (y) {
  x: f32[8] = input 0
  h: f32[8] = arena 0
  g: f32[8] = arena 0
  u: f32[8] = arena 64
  y: f32[8] = output 0
  arena 96
  copy(x) -> (h)
  twice(h) -> (g, u)
  sum(g, u) -> (y)
}
kernel copy(x: f32[8]) -> (y: f32[8]) {
  t0: f32 = map over a in 8:
    y[a] = x[a]
}
kernel twice(x: f32[8]) -> (y: f32[8], z: f32[8]) {
  for s in 8:
    t0: f32 = map:
      z[s] = x[s] + 1.0
    t1: f32 = map:
      y[s] = x[s] * 2.0
}
kernel sum(x: f32[8], y: f32[8]) -> (z: f32[8]) {
  t0: f32 = map over a in 8:
    z[a] = x[a] + y[a]
}"""


def test_a_value_may_be_written_over_its_last_reader() -> None:
    x = np.arange(8, dtype=np.float32)
    y, = interpret_program(verify_program(parse_program(OVER)), [x], harsh=True)
    np.testing.assert_array_equal(y, 3 * x + 1)


@pytest.mark.parametrize(("old", "new"), [
    ("z[s] = x[s] + 1.0", "z[s] = x[7 - s] + 1.0"),              # another element, perhaps written by now
    ("y[s] = x[s] * 2.0\n", "y[s] = 2.0\n    t2: f32 = map:\n      z[s] = x[s]\n"),   # read later
    ("  twice(h) -> (g, u)", "  copy(h) -> (y) no barrier\n  twice(h) -> (g, u)"),   # and by another
    ("  sum(g, u)", "  sum(h, u)"),                              # read by the next step
    ("g: f32[8] = arena 0", "g: f32[8] = arena 4"),
])
def test_a_value_that_is_still_needed_is_not_written_over(old: str, new: str) -> None:
    assert old in OVER
    with pytest.raises(VerificationError, match="g overlaps h, which lives at the same time"):
        verify_program(parse_program(OVER.replace(old, new)))
