"""Transcendental kernels of float32 worth their own polynomials: where deep learning spends its time.

In and out: `Lanes` of float. Coefficients are our own minimax fits (Lawson's weighting), rounded to f32 one
after another with the rest refitted. The same formula serves any number of lanes, so tails agree with vectors
bit for bit. The functions named `*_fast` are for numerics="fast"; the others hold the bounds of `math.ULP`.
"""
from __future__ import annotations

from planish.codegen.llvm import math_f64
from planish.codegen.llvm.lanes import Lanes, by_pairs, fma, horner, unless_rare
from planish.codegen.llvm.math_parts import (
    EXP_F32_FAST,
    F32,
    LOG2_E,
    decay,
    exp,
    keep_zero,
    log_edges,
    or_sign,
    power_of_two,
    round_by_magic,
    split,
    through_f64,
)

_LOG = (-0.076358005404, 0.12765869498, -0.13161534071, 0.1420122236, -0.16623188555, 0.20001249015,
        -0.25000825524, 0.33333331347)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4

_LN2 = 0.6931471805599453
_TANH = tuple(2.0 ** (5 - k) * c for k, c in enumerate(F32.exp))  # (S - 1) / r; of exp, at 2 r
_TANH_P = (1.5231144029e-08, 2.1895242561e-05, 0.0035716355123, 0.13444530261, 0.99999999365)
_TANH_Q = (8.522761154e-07, 0.00034113518007, 0.02616458777, 0.46777857621, 1.0)

_EXP_NEGATIVE = tuple((-1) ** k * c for k, c in enumerate(F32.exp))  # of exp, at -r
_EXP2 = (0.00132567319, 0.00967169832, 0.055507686, 0.240222409, 0.693146944, 1.0)

_T_BY_TANH = (-0.007383734919130802, 0.2310495525598526, 1.4426950216293335)  # t / tanh(t ln 2), at t^2

_ERF_CUT = 0.9
_ERF_NEAR = (-0.000605344598, 0.00500434591, -0.0267733987, 0.112819783, -0.376125067, 0.128379151)
_ERF_FAR = (0.000214590706, -0.00321994815, 0.0229059681, -0.105286792, -0.635699391, -0.128519952)
_ERF_P = (2.1167604593e-06, 0.00028580353832, 0.0036611135925, 0.052442457566, 0.1875453376, 1.1283791518)
_ERF_Q = (3.8825665137e-05, 0.0011431449536, 0.014759219823, 0.11299176679, 0.49954062245, 1.0)

_SIN = (2.82023962e-06, -0.000198520618, 0.00833337754, -0.166666672)
_COS = (-2.86581439e-07, 2.48199394e-05, -0.00138889754, 0.0416666679)
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_TWO_OVER_PI = 0.6366197723675814
_SIN_LIMIT = 1e5


def exp_fast(x: Lanes) -> Lanes:
    return exp(x, poly=EXP_F32_FAST)


def decay_fast(x: Lanes) -> Lanes:
    return decay(x, poly=EXP_F32_FAST)


def decay2(x: Lanes) -> Lanes:
    """2^min(x, 0), in as few steps as can be: where n is -127, the image of 2^n is that of 0."""
    magic = F32.magic + F32.bias
    a = x.at_least(-127.0).at_most(0.0)
    shifted = a + magic
    r = a - (shifted - magic)
    return power_of_two(shifted.bits(), F32) * by_pairs(_EXP2, r, r * r)


def log(x: Lanes) -> Lanes:
    m, e = split(x)
    f = m - 1.0
    z = f * f
    q = f * z * horner(_LOG, f)
    q = fma(e, _LN2_LOW, q)
    q = fma(z, -0.5, q)
    return log_edges(x, fma(e, _LN2_HIGH, f + q))


def tanh(x: Lanes) -> Lanes:
    """h / (h + 1) with h = (e^2x - 1) / 2, which loses nothing near 0: with 2x = n ln(2) + 2r,
    h = 2^n r S(r) - (1 - 2^n) / 2, whose parts have the sign of a zero x. One constant for ln(2)/2 will do:
    where n is large the result hardly moves with h."""
    a = x.at_least(-10.0).at_most(10.0)
    n, bits = round_by_magic(a, 2 * LOG2_E, ahead=F32.bias)
    r = fma(n, -_LN2 / 2, a)
    s = fma(by_pairs(_TANH, r, r * r), r, 1.0)
    power = power_of_two(bits, F32)
    h = fma(power * r, s, -fma(-power, 0.5, 0.5))
    return h / (h + 1.0)


def tanh_fast(x: Lanes) -> Lanes:
    return _odd_rational(x, 8.0, _TANH_P, _TANH_Q)


def erf(x: Lanes) -> Lanes:
    """Near 0 an odd polynomial; beyond, 1 - exp(p(|x|)) with p fitted to log(erfc): there erfc is below 0.21,
    so that a cheaper exp costs a fraction of an ULP."""
    a = x.abs().at_most(4.0)
    square = a * a
    near = fma(a, by_pairs(_ERF_NEAR, square, square * square), a)
    log_erfc = fma(by_pairs(_ERF_FAR, a, square), a, -a)
    n, bits = round_by_magic(log_erfc, LOG2_E, ahead=F32.bias)
    r = fma(n, -_LN2, log_erfc)
    square = r * r
    q = fma(square, by_pairs(EXP_F32_FAST, r, square), r)
    power = power_of_two(bits, F32)
    far = fma(-power, q, 1.0 - power)
    return or_sign((a > _ERF_CUT).select(far, near), x)


def erf_fast(x: Lanes) -> Lanes:
    return _odd_rational(x, 3.84, _ERF_P, _ERF_Q).at_least(-1.0).at_most(1.0)


def sigmoid(x: Lanes) -> Lanes:
    """t / (t + t e^-x) with t = 2^-64: so e^-x is finite down to the least subnormal result, which the
    division rounds once. With -x = n ln(2) - r, t e^-x = 2^(n - 64) e^-r; from x = 40 up nothing beside t."""
    a = x.at_least(-105.0).at_most(40.0)
    n, bits = round_by_magic(a, -LOG2_E, ahead=F32.bias - 64)
    r = fma(n, F32.ln2[1], fma(n, F32.ln2[0], a))
    t = 2.0 ** -64
    square, power = r * r, power_of_two(bits, F32)
    return t / fma(fma(square, by_pairs(_EXP_NEGATIVE, r, square), -r), power, power + t)


def gate(x: Lanes, y: Lanes) -> Lanes:
    """x / (1 + 4^-y) = x m / (m + 2^(n - 1) d), with -2y = n - 2t and 4^-t = d / 2m: three terms will do for
    e = t / tanh(t ln 2), |t| <= 1/4; d = e - t, 2m = e + t. In base 4 m is less than 1, so that x m does not
    overflow. 2^(n - 1) is inf from 4^-y = 2^128.5 on."""
    a = y.at_least(-64.5).at_most(63.0)
    magic = (F32.magic + F32.bias - 1) / 2
    shifted = magic - a
    t = (shifted - magic) + a
    e = horner(_T_BY_TANH, t * t)
    d = e - t
    m = fma(d, -0.5, e)
    return x * m / fma(d, power_of_two(shifted.bits(), F32), m)


def sigmoid_fast(x: Lanes) -> Lanes:
    """1 / (1 + 2^y) with y = -x log2(e) rounded: its error is in proportion to x, where the result moves the
    less. Results below 1e-38 may be off."""
    y = (x * -LOG2_E).at_least(-126.0).at_most(126.0)
    n, bits = round_by_magic(y, 1.0)
    power = horner(_EXP2, y - n).bits() + (bits << F32.mantissa)
    return 1.0 / (power.floats() + 1.0)


def sin(x: Lanes) -> Lanes:
    far = x.abs() > _SIN_LIMIT
    return unless_rare(keep_zero(x, _sin_quadrant(x, 0)), far, lambda: through_f64(math_f64.sin)(x))


def cos(x: Lanes) -> Lanes:
    far = x.abs() > _SIN_LIMIT
    return unless_rare(_sin_quadrant(x, 1), far, lambda: through_f64(math_f64.cos)(x))


def _sin_quadrant(x: Lanes, ahead: int) -> Lanes:
    """sin(x + ahead * pi/2). The first step of the reduction is exact: both terms are multiples of 2^-23."""
    n, bits = round_by_magic(x, _TWO_OVER_PI)
    r = x
    for part in _HALF_PI:
        r = fma(n, -part, r)
    z = r * r
    sine = fma(r * z, horner(_SIN, z), r)
    cosine = fma(z * z, horner(_COS, z), fma(z, -0.5, 1.0))
    quadrant = bits + ahead
    chosen = (quadrant & 1).ne(0).select(cosine, sine)
    return (chosen.bits() ^ ((quadrant & 2) << 30)).floats()


def _odd_rational(x: Lanes, limit: float, p: tuple[float, ...], q: tuple[float, ...]) -> Lanes:
    x = x.at_least(-limit).at_most(limit)
    u = x * x
    return horner(p, u) * x / horner(q, u)
