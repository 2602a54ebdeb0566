"""Pieces that the f32 and f64 kernels share: powers of two, splitting a float, exp, sums of two floats.

In and out: `Lanes` of float or double. Assumed: no fast-math flags, round to nearest. The methods are
classic: argument reduction by Cody and Waite, gradual underflow by scaling twice, error-free sums and
products by Dekker and Knuth.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from planish.codegen.llvm.lanes import Kernel, Lanes, by_pairs, fma

INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Format:
    """What exp and log need to know of one float format."""

    mantissa: int  # stored bits
    bias: int
    sqrt_half: int  # the bit image of sqrt(1/2)
    ln2: tuple[float, float]  # high and low part, for exp: n * high is exact or fused
    lowest: float  # exp is 0 from here down
    highest: float  # exp is inf from here up
    exp: tuple[float, ...]  # (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, highest coefficient first

    @property
    def one(self) -> int:
        return self.bias << self.mantissa

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer and leaves that integer in the low bits."""
        return 1.5 * 2.0 ** self.mantissa


F32 = Format(
    23, 127, 0x3F3504F3, (0.693145751953125, 1.428606820309417e-06),
    -104.0, 88.8,
    (0.0013820733875, 0.0083686774597, 0.041668266058, 0.16666521132, 0.4999999404))
F64 = Format(
    52, 1023, 0x3FE6A09E667F3BCD, (0.6931471805599453, 2.3190468138462996e-17),
    -746.0, 710.0,
    (2.09147553258932e-09, 2.5105312729622103e-08, 2.755727347871858e-07, 2.755725517000089e-06,
     2.480158732567746e-05, 0.0001984126987500228, 0.0013888888888883711, 0.008333333333326084,
     0.04166666666666667, 0.1666666666666667, 0.5))
EXP_F32_FAST = (0.0083124674857, 0.041890256107, 0.16667115688, 0.499992311)
LOG2_E = 1.4426950408889634
LIFT = 64  # a power of two that brings every subnormal number into the normal range


def format_of(x: Lanes) -> Format:
    return F32 if x.element == "float" else F64


def round_by_magic(x: Lanes, scale: float, ahead: int = 0) -> tuple[Lanes, Lanes]:
    """The integer nearest to x * scale (below 2^(mantissa - 1)): a float, and `ahead` more in the low bits of
    an integer."""
    magic = format_of(x).magic + ahead
    shifted = fma(x, scale, magic)
    return shifted - magic, shifted.bits()


def power_of_two(n: Lanes, form: Format) -> Lanes:
    """2^(n - bias), a normal number, from the low bits of n: those of `round_by_magic(..., ahead=bias)`."""
    return (n << form.mantissa).floats()


def reduce_exp(x: Lanes, low: Lanes | None = None, poly: tuple[float, ...] | None = None,
               ahead: int = 0) -> tuple[Lanes, Lanes]:
    """(n, q) with exp(x + low) = 2^n * (1 + q); n, and `ahead` more, in the low bits of an integer."""
    form = format_of(x)
    n, bits = round_by_magic(x, LOG2_E, ahead)
    r = fma(n, -form.ln2[0], x)
    r = fma(n, -form.ln2[1], r)
    if low is not None:
        r = r + low
    square = r * r
    return bits, fma(square, by_pairs(poly or form.exp, r, square), r)


def exp(x: Lanes, low: Lanes | None = None, poly: tuple[float, ...] | None = None,
        halve: bool = False) -> Lanes:
    """e^(x + low), subnormal results rounded once; with `halve` half of that, which overflows later."""
    form = format_of(x)
    inside = x.at_least(form.lowest).at_most(form.highest + 0.5 * halve)
    n, q = reduce_exp(inside, low, poly, ahead=2 * form.bias - halve)
    return scale_twice(n, q, form)


def decay(x: Lanes, poly: tuple[float, ...] | None = None) -> Lanes:
    """e^min(x, 0): one power of two, 2^LIFT too large, is a normal number for every result."""
    form = format_of(x)
    n, q = reduce_exp(x.at_least(form.lowest).at_most(0.0), poly=poly, ahead=form.bias + LIFT)
    power = power_of_two(n, form)
    return fma(power, q, power) * 2.0 ** -LIFT


def scale_twice(n: Lanes, q: Lanes, form: Format) -> Lanes:
    """2^(n - 2 bias) (1 + q), rounded once where it is subnormal: half of the exponent at a time, as powers
    of two that exist."""
    half = n.bin("lshr", 1)
    power = power_of_two(n - half, form)
    return fma(power, q, power) * power_of_two(half, form)


def split(x: Lanes) -> tuple[Lanes, Lanes]:
    """(m, e) with x = m * 2^e, m in [sqrt(1/2), sqrt(2)), both floats; x positive and finite."""
    form = format_of(x)
    up = form.mantissa + 2
    tiny = x < 2.0 ** (1 - form.bias)
    image = tiny.select(x * 2.0 ** up, x).bits() + (form.one - form.sqrt_half)
    m = ((image & ((1 << form.mantissa) - 1)) + form.sqrt_half).floats()
    unit = 2.0 ** form.mantissa
    exponent = (image.bin("lshr", form.mantissa) | ((form.bias + form.mantissa) << form.mantissa)).floats()
    return m, exponent - tiny.select(x.lift(unit + form.bias + up), unit + form.bias)


def log_edges(x: Lanes, r: Lanes) -> Lanes:
    """Give a logarithm of x, right for positive finite x, its values elsewhere."""
    r = x.eq(0.0).select(-INF, r)
    r = x.eq(INF).select(INF, r)
    return x.compare("fcmp ult", 0.0).select(NAN, r)


def or_sign(magnitude: Lanes, x: Lanes) -> Lanes:
    """The sign of x put on a result that is positive, or already has that sign."""
    return (magnitude.bits() | sign_bit(x)).floats()


def sign_bit(x: Lanes) -> Lanes:
    return x.bits() & -(1 << (x.width - 1))


def keep_zero(x: Lanes, r: Lanes) -> Lanes:
    """r, but x itself where x is a zero: an odd function keeps the zero's sign."""
    return x.eq(0.0).select(x, r)


def two_product(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """x * y as an unevaluated sum, exactly (barring underflow)."""
    p = x * y
    return p, fma(x, y, -p)


def quick_sum(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """x + y as an unevaluated sum, exactly, for |x| >= |y| or x = 0."""
    s = x + y
    return s, y - (s - x)


def through_f64(kernel: Kernel) -> Kernel:
    """An f32 kernel from an f64 one: half an ULP, save where two roundings meet."""
    def narrow(*xs: Lanes) -> Lanes:
        return kernel(*(x.cast("fpext", "double") for x in xs)).cast("fptrunc", "float")
    return narrow
