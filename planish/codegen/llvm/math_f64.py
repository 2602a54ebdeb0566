"""Transcendental kernels of float64; float32 functions off the hot path go through them too.

In and out: `Lanes` of double. Polynomials are Chebyshev interpolants computed with 50 digits; each names its
function. Logarithms that must be better than a double (`log2`, `log10`, `pow`) are carried as an unevaluated
sum of two. Arguments of sin, cos and tan beyond 2^30 go to the C library, lane by lane.
"""
from __future__ import annotations

from planish.codegen.llvm.lanes import Lanes, call_lanes, fma, horner, unless_rare
from planish.codegen.llvm.math_parts import (
    F64,
    INF,
    NAN,
    exp,
    keep_zero,
    log_edges,
    or_sign,
    power_of_two,
    quick_sum,
    reduce_exp,
    round_by_magic,
    scale_twice,
    sign_bit,
    split,
    two_product,
)

# (2 atanh(s) - 2 s) / s^3 in s^2, and (atanh(s) / s - 1 - s^2/3) / s^4 in s^2, for |s| <= 0.1716
_LOG = (0.14621649806617884, 0.15331300088506825, 0.18182901830461629, 0.22222210960080008,
        0.28571428627047835, 0.39999999999897135, 0.666666666666667)
_LOG_TAIL = (0.05863969650715996, 0.058528901125776675, 0.06667410879270874, 0.07692297324083637,
             0.09090909169170189, 0.1111111111082143, 0.14285714285714693, 0.2)
_LN2 = (0.6931471805601177, -1.7239444525614835e-13)  # the high part times any exponent is exact
_THIRD = (0.3333333333333333, 1.850371707708594e-17)
_LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)
_LOG10_E = (0.4342944819032518, 1.098319650216765e-17)
_TWO_LN2 = (0.6931471805599453, 2.3190468138462996e-17)

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in r^2, for |r| <= pi/4
_SIN = (1.5915309183057952e-10, -2.5051092308431318e-08, 2.7557315910939e-06, -0.00019841269836385435,
        0.0083333333333307, -0.16666666666666666)
_COS = (-1.1380868171449914e-11, 2.0876121534608454e-09, -2.7557317151858866e-07, 2.480158729853226e-05,
        -0.0013888888888887241, 0.041666666666666664)
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_TWO_OVER_PI = 0.6366197723675814
_SIN_LIMIT = 2.0 ** 30

# (atan(t) - t) / t^3 in t^2 for |t| <= tan(pi/8); (asin(x) - x) / x^3 in x^2 for |x| <= 1/2
_ATAN = (0.016285183029865667, -0.034570044186095536, 0.04551573086664191, -0.052304498567092406,
         0.05878928398517232, -0.06666424833613552, 0.07692296372129964, -0.09090908753400499,
         0.11111111105153429, -0.14285714285659806, 0.19999999999999804, -0.3333333333333333)
_ASIN = (0.02963502626354855, -0.019277545928584557, 0.019579201619744684, 0.0030350071727267623,
         0.009322101501082774, 0.00962140274734483, 0.011566511821890942, 0.013963775787848137,
         0.017352816768546473, 0.022372157435623815, 0.030381944475693704, 0.04464285714255019,
         0.07500000000000119, 0.16666666666666666)
_TAN_PI_8, _TAN_3PI_8 = 0.41421356237309503, 2.414213562373095

# erf(x) / x - 1 in x^2 for |x| <= 1; (1 + 2 a) e^(a^2) erfc(a) in t = (a - 4) / (a + 4) for 0 <= a <= 28
_ERF = (5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08, -1.6350312701054695e-07,
        1.6461000484121368e-06, -1.4925595266831182e-05, 0.0001205533111164271, -0.000854832698083379,
        0.0052239776248180145, -0.026866170645076792, 0.11283791670954879, -0.3761263890318375,
        0.1283791670955126)
_ERFC = (-1.8206098680308682e-09, -1.3670989863347383e-08, -7.71541861441783e-09, 1.1534943745754157e-07,
         6.270727157198311e-08, -8.351619688696847e-07, 3.0135049944875397e-07, 5.7178872846321855e-06,
         -1.1224789135154701e-05, -2.4403169244974074e-05, 0.000150622243948303, -0.00019925550755614952,
         -0.00075777334141333, 0.005031969755895426, -0.016197734059115006, 0.03716751556249286,
         -0.06633036581152939, 0.09373283499679412, -0.10103906603635213, 0.06809705425473732,
         0.01537965210262074, -0.1396211168405629, 1.2329951186255526)

_CBRT = (-0.03599581493299742, 0.20932832851786998, -0.5237402767544966, 0.8967220451211644, 0.45369261392338)


# --- exponentials

def exp2(x: Lanes) -> Lanes:
    """2^x: the fraction of x times ln 2, its low part kept."""
    inside = x.at_least(-1080.0).at_most(1024.0)
    whole = inside.call("roundeven")
    fraction = inside - whole
    high, low = two_product(fraction, x.lift(_TWO_LN2[0]))
    low = fma(fraction, _TWO_LN2[1], low)
    q = fma(high * high, horner(F64.exp, high), high) + low
    return scale_twice((whole + (F64.magic + 2 * F64.bias)).bits(), q, F64)


def decay2(x: Lanes) -> Lanes:
    """2^min(x, 0), and 0 where float32 has it so too."""
    return (x <= -126.5).select(0.0, exp2(x.at_most(0.0)))


def expm1(x: Lanes) -> Lanes:
    """e^x - 1 = 2 (2^(n-1) (1 + q) - 1/2): half the scale, so that n = 1024 does not overflow early."""
    inside = x.at_least(-40.0).at_most(F64.highest)
    n, q = reduce_exp(inside, ahead=F64.bias - 1)
    half = power_of_two(n, F64)
    return (x.abs() < 2.0 ** -54).select(x, fma(half, q, half - 0.5) * 2.0)


def sinh(x: Lanes) -> Lanes:
    a = x.abs()
    e = expm1(a)
    near = (e + e / (e + 1.0)) * 0.5
    return or_sign((a > 22.0).select(exp(a, halve=True), near), x)


def cosh(x: Lanes) -> Lanes:
    half = exp(x.abs(), halve=True)
    return half + 0.25 / half


def tanh(x: Lanes) -> Lanes:
    e = expm1((x.abs() * 2.0).at_most(80.0))
    return or_sign(e / (e + 2.0), x)


def sigmoid(x: Lanes) -> Lanes:
    e = exp(-x.abs())
    return (x < 0.0).select(e, 1.0) / (e + 1.0)


def gate(x: Lanes, y: Lanes) -> Lanes:
    """x / (1 + 4^-y)"""
    return x / (exp2(y * -2.0) + 1.0)


# --- logarithms

def log(x: Lanes) -> Lanes:
    m, e = split(x)
    return log_edges(x, _log_sum(m, e, x.lift(0.0)))


def log1p(x: Lanes) -> Lanes:
    """log(u) with u = 1 + x rounded; what rounding lost comes back as a correction of first order."""
    u = 1.0 + x
    lost = (u >= 2.0).select(1.0 - (u - x), x - (u - 1.0)) / u
    m, e = split(u)
    return keep_zero(x, log_edges(u, _log_sum(m, e, lost)))


def _log_sum(m: Lanes, e: Lanes, low: Lanes) -> Lanes:
    """e ln 2 + log(m) + low, by log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f)."""
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    tail = fma(s, half_square + z * horner(_LOG, z), fma(e, _LN2[1], low))
    return e * _LN2[0] - ((half_square - tail) - f)


def log_pair(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) as an unevaluated sum, some 65 good bits; x positive and finite."""
    m, e = split(x)
    high, low = _atanh_pair(m - 1.0)
    total = e * _LN2[0]
    high, more = quick_sum(total, high * 2.0)
    return quick_sum(high, fma(e, _LN2[1], low * 2.0) + more)


def _atanh_pair(f: Lanes) -> tuple[Lanes, Lanes]:
    """log(1 + f) / 2 = atanh(s) = s (1 + s^2 (1/3 + s^2 tail)), s = f / (2 + f); all but the tail paired."""
    d = f + 2.0
    inverse = 1.0 / d
    s = f * inverse
    s_low = fma(-s, f - (d - 2.0), fma(-s, d, f)) * inverse
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    c, c_low = quick_sum(s.lift(_THIRD[0]), z * horner(_LOG_TAIL, z))
    p, p_low = two_product(z, c)
    p_low = p_low + fma(z, c_low + _THIRD[1], z_low * c)
    w, w_low = two_product(s, p)
    w_low = w_low + fma(s, p_low, s_low * p)
    high, low = quick_sum(s, w)
    return high, low + (w_low + s_low)


def _scaled_log(x: Lanes, factor: tuple[float, float]) -> Lanes:
    high, low = log_pair(x)
    product, rest = two_product(high, x.lift(factor[0]))
    return log_edges(x, product + fma(low, factor[0], fma(high, factor[1], rest)))


def log2(x: Lanes) -> Lanes:
    return _scaled_log(x, _LOG2_E)


def log10(x: Lanes) -> Lanes:
    return _scaled_log(x, _LOG10_E)


def asinh(x: Lanes) -> Lanes:
    a = x.abs()
    square = a * a
    near = log1p(a + square / ((square + 1.0).sqrt() + 1.0))
    return or_sign((a > 2.0 ** 28).select(log(a) + _TWO_LN2[0], near), x)


def acosh(x: Lanes) -> Lanes:
    t = x - 1.0
    near = log1p(t + fma(t, t, t + t).sqrt())
    r = (x > 2.0 ** 28).select(log(x) + _TWO_LN2[0], near)
    return (x < 1.0).select(NAN, r)


def atanh(x: Lanes) -> Lanes:
    a = x.abs()
    return or_sign(log1p((a + a) / (1.0 - a)) * 0.5, x)


# --- powers

def power(x: Lanes, y: Lanes) -> Lanes:
    """x^y with 65 bits in the logarithm."""
    high, low = log_pair(x.abs())
    product, rest = two_product(y, high)
    rest = fma(y, low, rest)
    rest = (product.abs() < 1000.0).select(rest, 0.0)
    return _power_edges(x, y, exp(product, rest))


def power_from_f32(x: Lanes, y: Lanes) -> Lanes:
    """x^y for operands that came from float32: a plain logarithm has digits enough."""
    return _power_edges(x, y, exp(y * log(x.abs())))


def _power_edges(x: Lanes, y: Lanes, r: Lanes) -> Lanes:
    """IEEE 754's table for pow, over |x|^y that is right for positive finite x."""
    a, half = x.abs(), y * 0.5
    whole = y.call("trunc").eq(y)
    odd = whole & half.call("trunc").ne(half)
    rises = y > 0.0
    r = a.eq(0.0).select(rises.select(r.lift(0.0), INF), r)
    r = a.eq(INF).select(rises.select(r.lift(INF), 0.0), r)
    r = a.eq(1.0).select(1.0, r)
    r = ((x < 0.0) & (a < INF) & ~whole).select(NAN, r)
    r = odd.select((r.bits() ^ sign_bit(x)).floats(), r)
    r = x.compare("fcmp uno", y).select(NAN, r)
    return (y.eq(0.0) | x.eq(1.0)).select(1.0, r)


def cbrt(x: Lanes) -> Lanes:
    """A quartic guess (16 bits), one step of Halley, one of Newton."""
    a = x.abs()
    m, e = split(a)
    third = (e * (1.0 / 3.0)).call("roundeven")
    left = fma(third, -3.0, e)  # -1, 0 or 1
    m = m * (left > 0.0).select(2.0, (left < 0.0).select(x.lift(0.5), 1.0))
    y = horner(_CBRT, split(a)[0]) * (left > 0.0).select(
        1.2599210498948732, (left < 0.0).select(x.lift(0.7937005259840998), 1.0))
    cube = y * y * y
    y = y * ((cube + m * 2.0) / (cube * 2.0 + m))
    square = y * y
    y = y - fma(square, y, -m) / (square * 3.0)
    scale = power_of_two((third + (F64.magic + F64.bias)).bits(), F64)
    return (a.eq(0.0) | a.compare("fcmp uge", INF)).select(x, or_sign(y * scale, x))


def hypot(x: Lanes, y: Lanes) -> Lanes:
    """sqrt(x^2 + y^2), scaled by a power of two where a square would leave the range; inf beats NaN."""
    first = x.abs() > y.abs()
    a, c = first.select(x.abs(), y.abs()), first.select(y.abs(), x.abs())
    down = (a > 2.0 ** 500).select(a.lift(2.0 ** -600), 1.0)
    scale = (a < 2.0 ** -500).select(2.0 ** 600, down)
    back = (a < 2.0 ** -500).select(2.0 ** -600, (a > 2.0 ** 500).select(a.lift(2.0 ** 600), 1.0))
    a, c = a * scale, c * scale
    r = fma(a, a, c * c).sqrt() * back
    return (x.abs().eq(INF) | y.abs().eq(INF)).select(INF, r)


# --- circular functions

def _quadrant(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(quadrant, sin r, cos r) with x = quadrant * pi/2 + r. The first step of the reduction is exact."""
    n, bits = round_by_magic(x, _TWO_OVER_PI)
    r = x
    for part in _HALF_PI:
        r = fma(n, -part, r)
    z = r * r
    sine = fma(r * z, horner(_SIN, z), r)
    half = z * 0.5
    one = 1.0 - half
    cosine = one + (((1.0 - one) - half) + z * z * horner(_COS, z))
    return bits, sine, cosine


def _sin_quadrant(x: Lanes, ahead: int) -> Lanes:
    bits, sine, cosine = _quadrant(x)
    quadrant = bits + ahead
    chosen = (quadrant & 1).ne(0).select(cosine, sine)
    return (chosen.bits() ^ ((quadrant & 2) << 62)).floats()


def sin(x: Lanes) -> Lanes:
    return unless_rare(keep_zero(x, _sin_quadrant(x, 0)), x.abs() > _SIN_LIMIT, lambda: call_lanes("sin", x))


def cos(x: Lanes) -> Lanes:
    return unless_rare(_sin_quadrant(x, 1), x.abs() > _SIN_LIMIT, lambda: call_lanes("cos", x))


def tan(x: Lanes) -> Lanes:
    bits, sine, cosine = _quadrant(x)
    odd = (bits & 1).ne(0)
    r = odd.select(-cosine, sine) / odd.select(sine, cosine)
    return unless_rare(keep_zero(x, r), x.abs() > _SIN_LIMIT, lambda: call_lanes("tan", x))


def asin(x: Lanes) -> Lanes:
    a = x.abs()
    far = a > 0.5
    root, r = _asin_parts(a, far)
    beyond = _HALF_PI[0] - (2.0 * (root + r) - _HALF_PI[1])
    return or_sign(far.select(beyond, root + r), x)


def acos(x: Lanes) -> Lanes:
    a = x.abs()
    far = a > 0.5
    root, r = _asin_parts(a, far)
    small = 2.0 * (root + r)
    turned = 2.0 * _HALF_PI[0] - (small - 2.0 * _HALF_PI[1])
    near = _HALF_PI[0] - (or_sign(root, x) - (_HALF_PI[1] - or_sign(r, x)))
    return far.select((x < 0.0).select(turned, small), near)


def _asin_parts(a: Lanes, far: Lanes) -> tuple[Lanes, Lanes]:
    """(s, asin(s) - s) for s = a, or beyond one half for s = sqrt((1 - a) / 2)."""
    z = far.select((1.0 - a) * 0.5, a * a)
    s = far.select(z.sqrt(), a)
    return s, s * (z * horner(_ASIN, z))


def atan(x: Lanes) -> Lanes:
    """Reduced to |t| <= tan(pi/8) by (a - 1) / (a + 1) or -1 / a."""
    a = x.abs()
    middle, far = a > _TAN_PI_8, a > _TAN_3PI_8
    top = far.select(-1.0, middle.select(a - 1.0, a))
    bottom = far.select(a, middle.select(a + 1.0, 1.0))
    t = top / bottom
    z = t * t
    part = far.select(a.lift(1.0), middle.select(a.lift(0.5), 0.0))
    r = fma(t * z, horner(_ATAN, z), part * _HALF_PI[1])
    return or_sign(part * _HALF_PI[0] + (t + r), x)


def atan2(y: Lanes, x: Lanes) -> Lanes:
    """The angle of (x, y), C's table of signed zeros and infinities."""
    a, c = y.abs(), x.abs()
    same = a.eq(c) & (a.eq(0.0) | a.eq(INF))
    ratio = same.select(c.eq(0.0).select(a.lift(0.0), 1.0), a / c)
    angle = atan(ratio)
    left = x.bits() < 0
    turned = 2.0 * _HALF_PI[0] - (angle - 2.0 * _HALF_PI[1])
    r = or_sign(left.select(turned, angle), y)
    return x.compare("fcmp uno", y).select(NAN, r)


# --- the error function

def erf(x: Lanes) -> Lanes:
    a = x.abs()
    near = fma(a, horner(_ERF, a * a), a)
    return or_sign((a > 1.0).select(1.0 - _erfc_positive(a), near), x)


def erfc(x: Lanes) -> Lanes:
    r = _erfc_positive(x.abs())
    return (x < 0.0).select(2.0 - r, r)


def _erfc_positive(a: Lanes) -> Lanes:
    """e^(-a^2) times the scaled function, whose product with 1 + 2 a is smooth in t over all of a >= 0."""
    a = a.at_most(28.0)
    t = (a - 4.0) / (a + 4.0)
    square, rest = two_product(a, a)
    return exp(-square, -rest) * (horner(_ERFC, t) / fma(a, 2.0, 1.0))
