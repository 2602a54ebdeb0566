"""Exact operations on floats: arithmetic, rounding, comparison, remainders, extremes.

In and out: `Lanes` of float or double; the narrow floats come as float and are rounded by the caller. NumPy 2
is the meaning, down to the sign of a zero.
"""
from __future__ import annotations

from planish.codegen.llvm.lanes import Kernel, Lanes, call_lanes, unless_rare
from planish.codegen.llvm.math_parts import INF, NAN, format_of
from planish.codegen.llvm.registers import bits_of, from_memory, memory_type, to_memory


def absolute(x: Lanes) -> Lanes:
    return x.abs()


def sign(x: Lanes) -> Lanes:
    """-1, +0 or 1; NaN stays NaN. NumPy: the sign of either zero is +0."""
    r = (x > 0.0).select(x.lift(1.0), (x < 0.0).select(x.lift(-1.0), 0.0))
    return x.is_nan().select(x, r)


def square_root(x: Lanes) -> Lanes:
    return x.sqrt()


def reciprocal_root(x: Lanes) -> Lanes:
    return 1.0 / x.sqrt()


def reciprocal(x: Lanes) -> Lanes:
    return 1.0 / x


def rounding(intrinsic: str) -> Kernel:
    return lambda x: x.call(intrinsic)


def is_nan(x: Lanes) -> Lanes:
    return x.is_nan()


def is_inf(x: Lanes) -> Lanes:
    return x.abs().eq(INF)


def is_finite(x: Lanes) -> Lanes:
    return x.abs() < INF


def is_zero(x: Lanes) -> Lanes:
    return x.eq(0.0)


def copysign(x: Lanes, y: Lanes) -> Lanes:
    return x.copysign(y)


# --- extremes. Of two equal zeros NumPy returns the second in float32 and float64, the first in float16.

def extreme(beats: str, ignore_nan: bool) -> Kernel:
    """The x or y that `beats` ("gt", "lt") the other. A NaN operand is the result, or is ignored."""
    def choose(x: Lanes, y: Lanes) -> Lanes:
        r = x.compare(f"fcmp o{beats}", y).select(x, y)
        return y.is_nan().select(x, r) if ignore_nan else x.is_nan().select(x, r)
    return choose


def flipped(kernel: Kernel) -> Kernel:
    """The same with the operands exchanged: of two equal zeros the first one wins."""
    return lambda x, y: kernel(y, x)


# --- remainders

def fmod(x: Lanes, y: Lanes) -> Lanes:
    """C's fmod, exact. With a quotient below 2^mantissa its truncation q is off by one at most, and x - q y
    is exact in one fused step; other lanes ask the C library."""
    limit = 2.0 ** format_of(x).mantissa
    q = x / y
    a, c = x.abs(), y.abs()
    r = (-q.call("trunc")).call("fma", y, x)
    r = ((r < 0.0).compare("icmp ne", x < 0.0) & r.ne(0.0)).select(r + c.copysign(x), r)
    r = (a < c).select(x, r.copysign(x))
    rare = ~(q.abs() < limit) & (a >= c)
    symbol = "fmodf" if x.element == "float" else "fmod"
    r = unless_rare(r, rare, lambda: call_lanes(symbol, x, y))
    return (x.compare("fcmp uno", y) | y.eq(0.0) | a.eq(INF)).select(NAN, r)


def floor_divide(x: Lanes, y: Lanes) -> Lanes:
    """NumPy's floor_divide: from the exact remainder, so that 1.0 // 0.1 is 9."""
    mod = fmod(x, y)
    quotient = x / y
    div = (x - mod) / y
    div = _signs_differ(mod, y).select(div - 1.0, div)
    whole = div.call("floor")
    whole = ((div - whole) > 0.5).select(whole + 1.0, whole)
    r = div.eq(0.0).select(quotient.lift(0.0).copysign(quotient), whole)
    return y.eq(0.0).select(quotient, r)


def floor_mod(x: Lanes, y: Lanes) -> Lanes:
    """NumPy's remainder: the sign of the divisor, also on zero."""
    mod = fmod(x, y)
    r = _signs_differ(mod, y).select(mod + y, mod)
    return mod.eq(0.0).select(r.lift(0.0).copysign(y), r)


def trunc_divide(x: Lanes, y: Lanes) -> Lanes:
    """The rounded quotient, truncated: what PyTorch calls rounding_mode="trunc"."""
    return (x / y).call("trunc")


def _signs_differ(mod: Lanes, y: Lanes) -> Lanes:
    """A remainder other than zero on the other side than the divisor."""
    return mod.ne(0.0) & (mod < 0.0).compare("icmp ne", y < 0.0)


# --- neighbours

def next_after(dtype: str) -> Kernel:
    """The next value of `dtype` from x toward y, by a step in the bit image that memory holds."""
    def step(x: Lanes, y: Lanes) -> Lanes:
        image, goal = _image(x, dtype), _image(y, dtype)
        inward = (x > 0.0).compare("icmp ne", x < y)
        moved = image + inward.select(image.lift(-1), 1)
        least = (goal & -(1 << (image.width - 1))) | 1
        moved = _from_image(x.eq(0.0).select(least, moved), dtype)
        equal = x if dtype == "float16" else y  # as NumPy: which of two zeros
        return x.compare("fcmp uno", y).select(NAN, x.eq(y).select(equal, moved))
    return step


def _image(x: Lanes, dtype: str) -> Lanes:
    return Lanes(x.b, to_memory(x.b, x.value, dtype)).cast("bitcast", f"i{bits_of(dtype)}")


def _from_image(image: Lanes, dtype: str) -> Lanes:
    memory = image.cast("bitcast", memory_type(dtype))
    return Lanes(image.b, from_memory(image.b, memory.value, dtype))
