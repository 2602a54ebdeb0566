"""ATen's functions of the gamma function's family: polygamma, Hurwitz's zeta, the incomplete gammas.

Computed in float64 and rounded once. Formulas are those of the Digital Library of Mathematical Functions.
"""

from __future__ import annotations

import math
from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, translates
from planish.capture.torch.loops import repeat_while
from planish.capture.torch.special import in_double
from planish.ir import Node
from planish.ops import unary
from planish.ops.rules import ops
from planish.types import FLOAT64, INT64

# B_2, B_4, ...: DLMF 24.2.4
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_SHIFT = 9  # where asymptotic series begin
_EPSILON = 2.0**-53


@translates("aten.digamma.default", "aten.special_digamma.default", "prims.digamma.default")
@in_double
def digamma(x: Node) -> Node:
    """Infinite at the zeros, with the sign of the nearer side; NaN at the negative integers."""
    pole = ops.bitwise_and(ops.lt(x, 0), ops.eq(ops.floor(x), x))
    result = ops.select(pole, number(math.nan, x.dtype), unary.digamma(x))
    infinity = number(math.inf, x.dtype)
    return ops.select(ops.eq(x, 0), ops.neg(ops.copysign(infinity, x)), result)


def _trigamma(x: Node) -> Node:
    """DLMF 5.15.8 from 9 on, the recurrence below, 5.15.6 below one half."""
    mirror = ops.lt(x, 0.5)
    z = ops.select(mirror, 1 - x, x)
    w = z + _SHIFT
    square = 1 / (w * w)
    series = number(0, x.dtype)
    for b in reversed(_BERNOULLI):
        series = (series + b) * square
    result = 1 / w + square / 2 + series / w
    for i in range(_SHIFT):
        result = result + 1 / ((z + i) * (z + i))
    sine = ops.sin((x - ops.round(x)) * math.pi)
    return ops.select(mirror, math.pi**2 / (sine * sine) - result, result)


@translates("aten.polygamma.default", "aten.special_polygamma.default")
def polygamma(call: Call, n: int, x: Node) -> Node:
    """(-1)^(n+1) n! zeta(n + 1, x), DLMF 25.11.12."""
    if n == 0:
        return digamma(call, x)
    if n == 1:
        return in_double(_trigamma)(call, x)
    factorial = math.exp(math.lgamma(n + 1)) if n <= 170 else math.inf
    wide = broadcast(as_node(x, FLOAT64), call.shape)
    order = broadcast(number(n + 1, FLOAT64), call.shape)
    return cast(_zeta(order, wide) * (factorial if n % 2 else -factorial), call.dtype)


@translates("aten.special_zeta.default", "aten.special_zeta.self_scalar", "aten.special_zeta.other_scalar",
            "prims.zeta.default")
def zeta(call: Call, s: Any, a: Any) -> Node:
    return in_double(_zeta)(call, s, a)


def _zeta(s: Node, a: Node) -> Node:
    """Hurwitz's zeta function by Euler and Maclaurin's sum, DLMF 25.11.5 and 2.10.1; a < 0 is brought to
    a >= 0 term by term."""
    bad = ops.bitwise_or(ops.lt(s, 1), ops.bitwise_and(ops.lt(a, 0), ops.ne(ops.floor(s), s)))
    pole = ops.bitwise_or(ops.bitwise_and(ops.le(a, 0), ops.eq(ops.floor(a), a)), ops.eq(s, 1))
    odd = ops.bitwise_or(bad, pole)
    below = ops.select(odd, number(1, a.dtype), a)
    total, up = repeat_while(
        lambda total, q, s: ops.lt(q, 0),
        lambda total, q, s: (
            ops.select(ops.lt(q, 0), total + ops.pow(q, -s), total),
            ops.select(ops.lt(q, 0), q + 1, q),
        ),
        (broadcast(number(0, a.dtype), a.shape), below),
        (s,),
    )
    result = total + _zeta_sum(s, up)
    result = ops.select(pole, number(math.inf, a.dtype), result)
    return ops.select(bad, number(math.nan, a.dtype), result)


def _zeta_sum(s: Node, a: Node) -> Node:
    total = ops.pow(a, -s)
    for k in range(1, _SHIFT):
        total = total + ops.pow(a + k, -s)
    w = a + _SHIFT
    last = ops.pow(w, -s)
    total = total + last * w / (s - 1) + last / 2
    term = last * s / w  # (s)_(2j-1) w^(-s-2j+1) / (2j)! times B_2j
    for j, b in enumerate(_BERNOULLI, 1):
        total = total + term * (b / math.factorial(2 * j))
        term = term * ((s + (2 * j - 1)) / w) * ((s + 2 * j) / w)
    return total


# --- incomplete gamma functions


@translates("aten.igamma.default", "prims.igamma.default")
@in_double
def igamma(a: Node, x: Node) -> Node:
    """P(a, x): 0 at x = 0, 1 at infinity and where a = 0."""
    return _incomplete(a, x, upper=False)


@translates("aten.igammac.default", "prims.igammac.default")
@in_double
def igammac(a: Node, x: Node) -> Node:
    """Q(a, x) = 1 - P(a, x)."""
    return _incomplete(a, x, upper=True)


def _incomplete(a: Node, x: Node, upper: bool) -> Node:
    """By the series DLMF 8.7.1 left of a + 1 and the continued fraction 8.9.2 right of it."""
    left = ops.lt(x, a + 1)
    scale = ops.exp(a * ops.log(x) - x - ops.lgamma(a))
    lower = scale * _series(a, ops.select(left, x, number(0, x.dtype))) / a
    one, four = number(1, a.dtype), number(4, x.dtype)
    beyond = scale * _fraction(ops.select(left, one, a), ops.select(left, four, x))
    result = ops.select(left, 1 - lower, beyond) if upper else ops.select(left, lower, 1 - beyond)
    none, whole = (1, 0) if upper else (0, 1)
    is_whole = ops.bitwise_or(ops.eq(a, 0), ops.eq(x, math.inf))
    result = ops.select(is_whole, number(whole, a.dtype), result)
    is_none = ops.bitwise_or(ops.eq(x, 0), ops.eq(a, math.inf))
    result = ops.select(is_none, number(none, a.dtype), result)
    undefined = ops.bitwise_or(ops.lt(x, 0), ops.lt(a, 0))
    for place in (0, math.inf):
        undefined = ops.bitwise_or(undefined, ops.bitwise_and(ops.eq(a, place), ops.eq(x, place)))
    undefined = ops.bitwise_or(undefined, ops.bitwise_or(ops.is_nan(a), ops.is_nan(x)))
    return ops.select(undefined, number(math.nan, a.dtype), result)


_MOST_TERMS = 20_000  # enough up to a of some 10^7


def _series(a: Node, x: Node) -> Node:
    """1 + x/(a+1) + x^2/((a+1)(a+2)) + ..."""
    one = broadcast(number(1, a.dtype), a.shape)
    _, _, total = repeat_while(
        lambda k, term, total, a, x: _goes_on(k, ops.gt(term, total * _EPSILON)),
        lambda k, term, total, a, x: (k + 1, term * (x / (a + cast(k, a.dtype))),
                                      total + term * (x / (a + cast(k, a.dtype)))),
        (number(1, INT64), one, one),
        (a, x),
    )
    return total


def _fraction(a: Node, x: Node) -> Node:
    """1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))) by Lentz's method."""

    def step(k: Node, c: Node, d: Node, h: Node, ratio: Node, a: Node, x: Node) -> tuple[Node, ...]:
        i = cast(k, a.dtype)
        numerator, denominator = i * (a - i), x + 1 - a + 2 * i
        d = 1 / (denominator + numerator * d)
        c = denominator + numerator / c
        return k + 1, c, d, h * c * d, c * d, a, x

    first = 1 / (x + 1 - a)
    huge = broadcast(number(2.0**1000, a.dtype), a.shape)
    _, _, _, h, _ = repeat_while(
        lambda k, c, d, h, ratio, a, x: _goes_on(k, ops.gt(ops.abs(ratio - 1), 4 * _EPSILON)),
        lambda *state: step(*state)[:5],
        (number(1, INT64), huge, first, first, broadcast(number(0, a.dtype), a.shape)),
        (a, x),
    )
    return h


def _goes_on(k: Node, open_: Node) -> Node:
    return ops.bitwise_and(open_, ops.lt(k, _MOST_TERMS))


