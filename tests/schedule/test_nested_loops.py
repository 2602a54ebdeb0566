"""Loops around stages and reductions at points: text, verifier, interpreter, native code."""
from __future__ import annotations

import numpy as np
import pytest

from planish.errors import ParseError, VerificationError
from planish.schedule.interpret import interpret_kernel
from planish.schedule.text import parse_kernel, print_kernel
from planish.schedule.verify import verify_kernel

# The product of x and w, summed over blocks of three rows of w, and the largest sum so far of each column.
BLOCKED = """\
kernel blocked(x: f32[N, 10], w: f32[10, 6]) -> (y: f32[N, 6]) where N in 1..9 {
  row d: f32[6]
  row top: f32[2]
  for s0 in N parallel:
    t0: f32 = map over a in 6:
      d[a] = 0.0
    for j in 4 {
      t1: f32 = add over k in min(-3*j + 10, 3) unroll(2) at b in 3, c in 2 vector(2):
        d[2*b + c] add= x[s0, 3*j + k] * w[3*j + k, 2*b + c]
      t2: f32 = maximum over e in 3 at f in 2:
        top[f] = d[2*e + f]
    }
    t3: f32 = map over g in 3, h in 2:
      y[s0, 2*g + h] = d[2*g + h] + top[h]
}"""


def test_prints_parses_and_runs() -> None:
    kernel = verify_kernel(parse_kernel(BLOCKED))
    assert print_kernel(kernel) == BLOCKED
    rng = np.random.default_rng()
    x, w = rng.normal(size=(5, 10)).astype(np.float32), rng.normal(size=(10, 6)).astype(np.float32)
    made = interpret_kernel(kernel, {"x": x, "w": w}, {"N": 5})["y"]
    product = (x.astype(np.float64) @ w).reshape(5, 3, 2)
    expected = (product + product.max(1, keepdims=True)).reshape(5, 6)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("old, new, fault", [
    ("d[2*b + c] add= ", "", "what runs at points of its own is a reduction that stores its result"),
    ("at b in 3, c in 2 vector(2)", "at b in 3 vector(3), c in 2",
     "of the axes of its points the last is the vector"),
    ("over e in 3 at", "over e in f + 1 at", "the loops of a reduction depend on the point it runs at"),
    ("top[f] = d", "top[0] = d", "top[0] is stored anew by every point of f"),
    ("y[s0, 2*g + h] = d", "y[s0, 2*g + h + j] = d", "is neither an axis in scope nor a size"),
    ("[3*j + k, 2*b", "[4*j + k, 2*b", "is out of range for a size of 10"),
])
def test_faults(old: str, new: str, fault: str) -> None:
    broken = BLOCKED.replace(old, new)
    with pytest.raises((VerificationError, ParseError), match=fault.replace("[", r"\[").replace("*", r"\*")):
        verify_kernel(parse_kernel(broken))


def test_a_loop_has_an_end() -> None:
    with pytest.raises(ParseError, match="has no end"):
        parse_kernel(BLOCKED.replace("    }\n", ""))
