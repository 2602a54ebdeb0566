"""Dtypes that are only stored, in and out of registers: floats of 8 bits and less, integers of 4 and 2.

In: bytes (i8 lanes) or their carrier, float32 or the 8-bit integer of the sign, which holds every value. Out:
the other. Decoding is exact. Encoding floats rounds to nearest, ties to even; too large is what the format
has for it (infinity, NaN or its largest number). Integers keep the low bits. These are the answers of
ml_dtypes; the formats are those of the OCP Microscaling specification (2023), of P. Micikevicius et al., "FP8
Formats for Deep Learning" (2022), and of B. Noune et al., "8-bit Numerical Formats for Deep Neural Networks"
(2022; fnuz).
"""
from __future__ import annotations

from dataclasses import dataclass

from planish.codegen.llvm.lanes import Lanes

_MANTISSA, _BIAS = 23, 127  # of float32
_INFINITY, _NAN, _MAGNITUDE = 0x7F800000, 0x7FC00000, 0x7FFFFFFF


@dataclass(frozen=True)
class Format:
    """A sign, an exponent and a mantissa.

    As codes without the sign: `most` is the largest number, `above` what is too large becomes. `nan` None:
    there is none, and a NaN becomes the zero of the other sign. `fnuz`: no negative zero; its code is NaN.
    """

    bits: int
    mantissa: int
    bias: int
    most: int
    above: int
    nan: int | None = None
    fnuz: bool = False

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def shift(self) -> int:
        return _MANTISSA - self.mantissa

    @property
    def rebias(self) -> int:
        return (_BIAS - self.bias) << _MANTISSA


FORMATS = {
    "float8_e4m3fn": Format(8, 3, 7, most=0x7E, above=0x7F, nan=0x7F),
    "float8_e4m3fnuz": Format(8, 3, 8, most=0x7F, above=0x80, nan=0x80, fnuz=True),
    "float8_e5m2": Format(8, 2, 15, most=0x7B, above=0x7C, nan=0x7E),
    "float8_e5m2fnuz": Format(8, 2, 16, most=0x7F, above=0x80, nan=0x80, fnuz=True),
    "float6_e2m3fn": Format(6, 3, 1, most=0x1F, above=0x1F),
    "float6_e3m2fn": Format(6, 2, 3, most=0x1F, above=0x1F),
    "float4_e2m1fn": Format(4, 1, 1, most=0x07, above=0x07),
}
_EXPONENT_ONLY = "float8_e8m0fnu"
_WIDTHS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


def carrier(dtype: str) -> str:
    """The dtype that registers compute with in place of one for storage."""
    if dtype not in _WIDTHS:
        return "float32"
    return "int8" if dtype.startswith("int") else "uint8"


def decoded(x: Lanes, dtype: str) -> Lanes:
    """Bytes -> the carrier. Bits of a byte beyond the value's are not looked at."""
    if dtype in _WIDTHS:
        unused = 8 - _WIDTHS[dtype]
        return (x << unused).bin("ashr" if dtype.startswith("int") else "lshr", unused)
    code = x.cast("zext", "i32")
    bits = _decoded_exponent(code) if dtype == _EXPONENT_ONLY else _decoded_float(code, FORMATS[dtype])
    return bits.floats()


def encoded(x: Lanes, dtype: str) -> Lanes:
    """The carrier -> bytes."""
    if dtype in _WIDTHS:
        return x & ((1 << _WIDTHS[dtype]) - 1)
    code = _encoded_exponent(x.bits()) if dtype == _EXPONENT_ONLY else _encoded_float(x, FORMATS[dtype])
    return code.cast("trunc", "i8")


def _decoded_float(code: Lanes, form: Format) -> Lanes:
    """The bits of the float32."""
    magnitude = code & (form.sign - 1)
    normal = (magnitude << form.shift) + form.rebias
    tiny = magnitude.cast("sitofp", "float") * 2.0 ** (1 - form.bias - form.mantissa)
    result = (magnitude < 1 << form.mantissa).select(tiny.bits(), normal)
    if form.most < form.sign - 1:  # the codes beyond are infinity and NaN
        result = (magnitude > form.most).select((magnitude << form.shift) | _INFINITY, result)
    result = result | (code & form.sign) << (32 - form.bits)
    return code.eq(form.sign).select(_NAN | -1 << 31, result) if form.fnuz else result


def _encoded_float(x: Lanes, form: Format) -> Lanes:
    """As F. Giesen rounds to float16 ("Half to float done quick")."""
    bits = x.bits()
    sign, magnitude = bits.bin("lshr", 32 - form.bits) & form.sign, bits & _MAGNITUDE
    odd = magnitude.bin("lshr", form.shift) & 1
    normal = (magnitude + odd + ((1 << form.shift - 1) - 1) - form.rebias).bin("ashr", form.shift)
    # the sum's last place is that of the format's least number, so the addition rounds
    scale = 2.0 ** (1 + _MANTISSA - form.bias - form.mantissa)
    tiny = (magnitude.floats() + scale).bits() - ((24 - form.bias - form.mantissa + _BIAS) << _MANTISSA)
    code = (magnitude < form.rebias + (1 << _MANTISSA)).select(tiny, normal)
    code = (code > form.most).select(form.above, code)
    if form.fnuz:
        return (code & (form.sign - 1)).eq(0).select(code, code | sign)
    is_nan = magnitude > _INFINITY
    if form.nan is None:
        return is_nan.select(sign ^ form.sign, code | sign)
    return is_nan.select(form.nan, code) | sign


def _decoded_exponent(code: Lanes) -> Lanes:
    """2 ** (code - 127); the least is a subnormal float32, the last code is NaN."""
    result = code.eq(0).select(1 << (_MANTISSA - 1), code << _MANTISSA)
    return code.eq(0xFF).select(_NAN, result)


def _encoded_exponent(bits: Lanes) -> Lanes:
    """The nearest power of two, the larger of two; between the least and the next, the next. What is smaller
    is the least. What has none (zero, negative numbers, infinity, NaN) is NaN."""
    tiny, normal = bits + ((1 << _MANTISSA - 1) - 1), bits + (1 << _MANTISSA - 1)
    code = (bits < 1 << _MANTISSA).select(tiny, normal).bin("lshr", _MANTISSA)
    return (bits - 1).compare("icmp uge", _INFINITY - 1).select(0xFF, code)
