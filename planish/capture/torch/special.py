"""ATen's special functions: the error function's family; the gamma function's is in gamma.py, Bessel's in
bessel.py.

They are computed in float64 whatever the dtype, and rounded once: torch's kernels do it in the operand's own
dtype, and lose more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, translates
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import FLOAT64, INT32, INT64

Formula = Callable[..., Node]


def in_double(formula: Formula) -> Callable[..., Node]:
    """A translation that computes a formula of float64 operands and rounds its result."""

    def translation(call: Call, *operands: Node) -> Node:
        wide = [broadcast(as_node(x, FLOAT64), call.shape) for x in operands]
        return cast(formula(*wide), call.dtype)

    return translation


def polynomial(coefficients: Sequence[float], t: Node) -> Node:
    """Horner's scheme, highest power first."""
    total = number(coefficients[0], t.dtype)
    for c in coefficients[1:]:
        total = ops.fma(total, t, number(c, t.dtype))
    return total


def at(x: Node, place: float, value: float, otherwise: Node) -> Node:
    """`value` where x is `place`."""
    return ops.select(ops.eq(x, place), number(value, x.dtype), otherwise)


# --- the scaled complement

# (1 + 2 a) e^(a^2) erfc(a) in t = (a - 4) / (a + 4) for all a >= 0: a Chebyshev interpolant of 60 digits
_ERFCX = (
    9.311744978232572e-10, 1.5738283774192037e-09, -1.234686604382353e-08, -1.6371779763566967e-08,
    1.0633855618594884e-07, 7.115337800585303e-08, -8.210939042560568e-07, 2.9801353803031333e-07,
    5.706604414895734e-06, -1.1225101875659178e-05, -2.4397746422436416e-05, 0.00015062309720018628,
    -0.00019925714661091188, -0.000757773707063825, 0.005031970067657489, -0.016197733981455194,
    0.03716751552655567, -0.06633036582031154, 0.0937328349990944, -0.10103906603586531,
    0.06809705425466908, 0.015379652102610473, -0.1396211168405623, 1.2329951186255526)


@translates("aten.special_erfcx.default", "prims.erfcx.default")
@in_double
def erfcx(x: Node) -> Node:
    """e^(x^2) erfc(x); below 0 by erfc(-a) = 2 - erfc(a)."""
    a = ops.abs(x)
    right = polynomial(_ERFCX, 1 - 8 / (a + 4)) / (1 + 2 * a)
    return ops.select(ops.lt(x, 0), 2 * ops.exp(x * x) - right, right)


# --- inverses: M. J. Wichura, Algorithm AS 241, Applied Statistics 37 (1988), PPND16

_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
     5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)
_TAIL = (
    (7.74545014278341407640e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.148103976427480074590,
     0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.00124266094738807843860,
     0.0265321895265761230930, 0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990,
     6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.868691311456132591e-4, 0.0148753612908506148525, 0.136929880922735805310, 0.599832206555887937690,
     1.0),
)


def _ratio(pair: tuple[Sequence[float], Sequence[float]], t: Node) -> Node:
    return polynomial(pair[0], t) / polynomial(pair[1], t)


def _quantile(offset: Node, tail: Node) -> Node:
    """The normal deviate of probability 1/2 + offset, whose nearer tail has the probability `tail`."""
    r = ops.sqrt(-ops.log(tail))
    far = ops.select(ops.gt(r, 5), _ratio(_FAR_TAIL, r - 5), _ratio(_TAIL, r - 1.6))
    centre = offset * _ratio(_CENTRE, 0.180625 - offset * offset)
    result = ops.select(ops.le(ops.abs(offset), 0.425), centre, ops.copysign(far, offset))
    return at(tail, 0, math.inf, result)


@translates("aten.special_ndtri.default", "prims.ndtri.default")
@in_double
def ndtri(p: Node) -> Node:
    """The inverse of the normal distribution: infinite at 0 and 1, NaN outside."""
    result = _quantile(p - 0.5, ops.minimum(p, 1 - p))
    return at(p, 0, -math.inf, result)


@translates("aten.erfinv.default", "prims.erf_inv.default")
@in_double
def erfinv(y: Node) -> Node:
    """erf(x) = 2 Phi(sqrt(2) x) - 1."""
    half = y / 2
    result = _quantile(half, 0.5 - ops.abs(half)) / math.sqrt(2)
    return ops.copysign(result, y)


# --- bits of floats


@translates("aten.frexp.Tensor", "prims.frexp.default")
def frexp(call: Call, x: Node) -> tuple[Node, Node]:
    """x = mantissa 2^exponent, 1/2 <= |mantissa| < 1; 0, inf and NaN are mantissas with the exponent 0."""
    wide = cast(x, FLOAT64)
    small = ops.lt(ops.abs(wide), 2.0**-1022)
    bits = ops.bitcast(ops.select(small, wide * 2.0**54, wide), dtype=INT64)
    exponent = ops.bitwise_and(ops.shift_right(bits, 52), number(2047, INT64)) - 1022
    exponent = ops.select(small, exponent - 54, exponent)
    kept = ops.bitwise_and(bits, number(~(2047 << 52), INT64))
    mantissa = ops.bitcast(ops.bitwise_or(kept, number(1022 << 52, INT64)), dtype=FLOAT64)
    plain = ops.bitwise_or(ops.eq(wide, 0), ops.logical_not(ops.is_finite(wide)))
    exponent = ops.select(plain, number(0, INT64), exponent)
    return ops.select(plain, x, cast(mantissa, x.dtype)), cast(exponent, INT32)
