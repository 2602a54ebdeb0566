"""Every rule of the verifier of the loops IR has a kernel that breaks it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planish.errors import VerificationError
from planish.schedule.kernel import Apply, Axis, Buffer, Kernel, Load, RegisterTile, Result, Stage, Store
from planish.schedule.text import parse_kernel
from planish.schedule.verify import verify_kernel
from planish.types import FLOAT32, FLOAT64, INT64, TensorType, symbol

BASE = """
kernel k(x: f32[N, 10], i: i64[N], h: f16[N]) -> (y: f32[N, 10], z: f32[N]) where N in 1..99 {
  row e: f32[10]
  for s0 in N parallel:
    m: f32 = maximum over a in 10:
      x[s0, a]
    t1: f32 = map over a in 10:
      e[a] = exp(x[s0, a] - m)
    t2: f32 = map over a in 10:
      y[s0, a] = e[a]
    t3: f32 = map:
      z[s0] = m
}"""


def test_the_base_is_well_formed() -> None:
    verify_kernel(parse_kernel(BASE))


WRITTEN = {  # what is written wrongly -> (old text, new text)
    "x[s0, a + 1]: index 10 of axis 1 is out of range for a size of 10 at a=9":
        ("exp(x[s0, a] - m)", "exp(x[s0, a + 1] - m)"),
    "x[s0 - 1, a]: index -1 of axis 0 is out of range for a size of 1 at N=1, s0=0":
        ("exp(x[s0, a] - m)", "exp(x[s0 - 1, a] - m)"),
    "y[s0, 2*a]: index 18 of axis 1 is out of range": ("y[s0, a] =", "y[s0, 2*a] ="),
    "z[s0]: index 0 of axis 0 is out of range for a size of 0 at N=1, s0=0": ("z: f32[N]", "z: f32[N - 1]"),
    "x[s0]: x has 2 axes, not 1": ("exp(x[s0, a] - m)", "exp(x[s0] - m)"),
    "e[a] is read before it is written": ("exp(x[s0, a] - m)", "exp(e[a] - m)"),
    "z[s0] is joined with what is there before it is written": ("z[s0] =", "z[s0] add="),
    "the output z is never written": ("      z[s0] = m", "      m"),
    "x[s0, a] stores to an input": ("      y[s0, a] = e[a]", "      x[s0, a] = e[a]"),
    "y[0, a] is stored by all points of s0, which run at once; make the kernel serial":
        ("y[s0, a] =", "y[0, a] ="),
    "y[i[s0], a] is stored by all points of s0": ("y[s0, a] =", "y[i[s0], a] ="),
    "y[0, 3] reads what other points of s0 write at the same time": ("z[s0] = m", "z[s0] = y[0, 3]"),
    "y[s0, 0] is stored anew by every point of a": ("y[s0, a] = e", "y[s0, 0] = e"),
    "e[-a + 9] is loaded in the loops that store e[a]": ("t2: f32 = map over a in 10:\n      y[s0, a] = e[a]",
        ("t2: f32 = map over a in 10:\n      e[a] = e[9 - a]\n"
         "    t4: f32 = map over a in 10:\n      y[s0, a] = e[a]")),
    "the index cast(h[s0], i32) is to be i64, not i32":
        ("exp(x[s0, a] - m)", "exp(x[cast(h[s0], i32), a] - m)"),
    "the guard m is to be a bool, not f32": ("z[s0] = m", "z[s0] = m if m"),
    "the stage is f32 and its value h[s0] is f16": ("z[s0] = m", "z[s0] = h[s0]"),
    "the stage is f32 and its value cast(x[s0, a], f16) is f16":
        ("      x[s0, a]\n", "      cast(x[s0, a], f16)\n"),
    "blocks lie along the last two axes, and are square":
        ("t1: f32 = map over a in 10:", "t1: f32 = map over b in 1 vector(8), a in 10:"),
    "axis b is not a whole number of blocks":
        ("t1: f32 = map over a in 10:", "t1: f32 = map over b in 1 vector(8), a in 10 vector(8):"),
    "what is turned in blocks is a map of float32 that is stored":
        ("maximum over a in 10:", "maximum over b in 8 vector(8), a in 10 vector(8):"),
    "the stage is f32 and stores to y, which is f64": ("y: f32[", "y: f64["),
    "sub does not reduce": ("maximum over", "sub over"),
    "sub does not join values": ("      y[s0, a] = e[a]", "      y[s0, a] sub= e[a]"),
    "a reduction stores nothing": ("      x[s0, a]\n", "      e[a] = x[s0, a]\n"),
    "the values of the stage go nowhere": ("      y[s0, a] = e[a]", "      e[a]"),
    "a scan combines over one axis": ("maximum over a in 10:\n      x[s0, a]",
        "maximum inclusive over a in 5, b in 2:\n      e[2*a + b] = x[s0, 2*a + b]"),
    "'lambda' can't be the name of a buffer, stage or axis": ("s0", "lambda"),
    "m is the name of two things": ("t3: ", "m: "),
    "N is the name of two things": ("t3: ", "N: "),
    "the order of y is to name each of its 2 axes once": ("y: f32[N, 10]", "y: f32[N, 10] order(0, 0)"),
    "axis a is declared inside itself": ("over a in 10:\n      e", "over a in 10, a in 1:\n      e"),
    "axis a has 0 lanes and is unrolled 1 times":
        ("over a in 10:\n      e", "over a in 10 vector(0):\n      e"),
    "the tile names q, which is not a shared axis":
        ("  for s0", "  tile batch() m(q) n() k(a) rows 1 vectors 1 lanes 1\n  for s0"),
    "the tile reduces over b; no stage does":
        ("  for s0", "  tile batch() m(s0) n() k(b) rows 1 vectors 1 lanes 1\n  for s0"),
    "y is f32; what the sort stores there is i64":
        ("t2: f32 = map over a in 10:\n      y[s0, a] = e[a]",
         "t2: sort ascending first 10 over a in 10:\n      key e[a]\n      positions y[s0, a]"),
    "y[s0, a]: index 10 of axis 1 is out of range":
        ("t2: f32 = map over a in 10:\n      y[s0, a] = e[a]",
         "t2: sort ascending first 11 over a in 10:\n      key e[a]\n      values y[s0, a]"),
    "a sort stores values or positions":
        ("t2: f32 = map over a in 10:\n      y[s0, a] = e[a]",
         "t2: sort ascending first 10 over a in 10:\n      key e[a]"),
}


@pytest.mark.parametrize("fault", WRITTEN)
def test_faults_one_can_write(fault: str) -> None:
    old, new = WRITTEN[fault]
    assert old in BASE
    text = BASE.replace(old, new)
    with pytest.raises(VerificationError) as caught:
        verify_kernel(_unchecked(text))
    assert str(caught.value).startswith("kernel k: ") and fault in str(caught.value)


def _unchecked(text: str) -> Kernel:
    """Parsed; `lambda` can be printed but not read, so that name is put in afterwards."""
    if "lambda" not in text:
        return parse_kernel(text)
    kernel = parse_kernel(text.replace("lambda", "s0"))
    return replace(kernel, shared=(replace(kernel.shared[0], name="lambda"),))


# --- what has no text

X = Buffer("x", TensorType(FLOAT32, (8,)))
Y = Buffer("y", TensorType(FLOAT32, (8,)))
A = Axis("a", 8)
HERE = Store(Y, (A.symbol,))


def kernel_of(*stages: Stage) -> Kernel:
    return Kernel("k", (), stages, (X,), (Y,))


def at_a(buffer: Buffer = X) -> Load:
    return Load(buffer, (A.symbol,))


def _map(value: object, store: Store = HERE) -> Stage:
    return Stage("t0", (A,), value, FLOAT32, store=store)  # type: ignore[arg-type]


BUILT: dict[str, Callable[[], Kernel]] = {
    "there is no op cosine": lambda: kernel_of(_map(Apply("cosine", (at_a(),), FLOAT32))),
    "reduce_sum is not a pointwise op": lambda: kernel_of(_map(Apply("reduce_sum", (at_a(),), FLOAT32))),
    "exp(x[a]) is f32 by its type rule, not f64": lambda: kernel_of(_map(Apply("exp", (at_a(),), FLOAT64))),
    "takes 2 operands, not 1": lambda: kernel_of(_map(Apply("add", (at_a(),), FLOAT32))),
    "m is not an earlier stage that comes to one value": lambda: kernel_of(_map(Result("m", FLOAT32))),
    "m comes to f32 and is used as i64": lambda: kernel_of(
        Stage("m", (A,), at_a(), FLOAT32, "add"), _map(Apply("cast", (Result("m", INT64),), FLOAT32))),
    "q is not a buffer of the kernel": lambda: kernel_of(_map(at_a(replace(X, name="q")))),
    "x is not a buffer of the kernel": lambda: kernel_of(_map(at_a(replace(X, order=(0,))))),
    "x[b] uses axis b outside its loop": lambda: kernel_of(
        _map(at_a()), Stage("t1", (Axis("b", 8),), Load(X, (symbol("b", 0, 7),)), FLOAT32, "add"),
        Stage("t2", (A,), Load(X, (symbol("b", 0, 7),)), FLOAT32, store=HERE)),
    "the extent of b uses axis a outside its loop": lambda: kernel_of(
        _map(at_a()), Stage("t1", (Axis("b", A.symbol + 1), A), at_a(), FLOAT32, "add")),
    "y is in row memory, and is not listed there": lambda: Kernel(
        "k", (), (_map(at_a(), Store(replace(Y, space="row"), (A.symbol,))),), (X,),
        (replace(Y, space="row"),)),
    "the tile names s, which is not a shared axis": lambda: replace(
        kernel_of(_map(at_a())), tile=RegisterTile((), ("s",), (), (), 1, 1, 1, False)),
}


@pytest.mark.parametrize("fault", BUILT)
def test_faults_one_can_build(fault: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_kernel(BUILT[fault]())
    assert fault in str(caught.value)


# --- what is not a fault

@pytest.mark.parametrize(("old", "new"), [
    ("for s0 in N parallel:", "serial\n  for s0 in N:"),
    ("y[s0, a] = e[a]", "y[s0, a] = e[a] if m < 0.0"),
    ("z[s0] = m", "z[s0] = m if i[s0] == i64(3)"),
    ("y[s0, a] = e[a]", "y[s0, 11*a] = e[a] if index(a) < i64(1)"),
])
def test_what_is_allowed(old: str, new: str) -> None:
    assert old in BASE
    verify_kernel(parse_kernel(BASE.replace(old, new)))


def test_serial_kernels_may_store_to_one_element() -> None:
    text = BASE.replace("for s0 in N parallel:", "serial\n  for s0 in N:")
    text = text.replace("y[s0, a] =", "y[i[s0], a] =")
    verify_kernel(parse_kernel(text))


def test_the_message_shows_the_lines_around() -> None:
    with pytest.raises(VerificationError) as caught:
        text = BASE.replace("y[s0, a] = e[a]", "y[s0, a] = e[a + 1]")
        verify_kernel(parse_kernel(text), after="tile(s0, 4)")
    assert str(caught.value) == """\
after tile(s0, 4): kernel k: e[a + 1]: index 10 of axis 0 is out of range for a size of 10 at a=9
  for s0 in N parallel:
    m: f32 = maximum over a in 10:
      x[s0, a]
    t1: f32 = map over a in 10:
      e[a] = exp(x[s0, a] - m)
->  t2: f32 = map over a in 10:
      y[s0, a] = e[a + 1]
    t3: f32 = map:
      z[s0] = m
}"""
