"""Operations on integers and bools: wrapping arithmetic, division without traps, shifts of any count, powers.

In and out: `Lanes` of iN (i1 for bool). Whether a number has a sign lives in the operation, so what depends
on it is made per signedness. Nothing here is poison for any operand: divisors of zero and -1, and shift
counts beyond the width, are replaced before the instruction sees them.
"""
from __future__ import annotations

from planish.codegen.llvm.builder import vector
from planish.codegen.llvm.lanes import Kernel, Lanes


def identity(x: Lanes) -> Lanes:
    return x


def always(truth: bool) -> Kernel:
    """A predicate that integers answer alike: none is NaN or inf, all are finite."""
    return lambda x: Lanes(x.b, x.b.const(vector("i1", x.lanes), truth))


def absolute(x: Lanes) -> Lanes:
    return (x < 0).select(-x, x)


def sign(x: Lanes) -> Lanes:
    return (x > 0).select(x.lift(1), (x < 0).select(x.lift(-1), 0))


def sign_unsigned(x: Lanes) -> Lanes:
    return x.ne(0).select(x.lift(1), 0)


def is_zero(x: Lanes) -> Lanes:
    return x.eq(0)


def invert(x: Lanes) -> Lanes:
    return ~x


def extreme(predicate: str) -> Kernel:
    return lambda x, y: x.compare(f"icmp {predicate}", y).select(x, y)


def instruction(opcode: str) -> Kernel:
    return lambda x, y: x.bin(opcode, y)


def multiply_add(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    return x.bin("mul", y).bin("add", z)


def comparison(predicate: str) -> Kernel:
    return lambda x, y: x.compare(predicate, y)


# --- division: 0 where the divisor is 0; the least number divided by -1 wraps

def trunc_divide(x: Lanes, y: Lanes) -> Lanes:
    zero, minus = y.eq(0), y.eq(-1)
    q = _quotient(x, (zero | minus).select(1, y), signed=True)
    return zero.select(0, minus.select(-x, q))


def floor_divide(x: Lanes, y: Lanes) -> Lanes:
    q = trunc_divide(x, y)
    return _straddles(x - q * y, y).select(q - 1, q)


def remainder(x: Lanes, y: Lanes) -> Lanes:
    return y.eq(0).select(0, x - trunc_divide(x, y) * y)


def floor_mod(x: Lanes, y: Lanes) -> Lanes:
    r = remainder(x, y)
    return _straddles(r, y).select(r + y, r)


def _straddles(r: Lanes, y: Lanes) -> Lanes:
    """A remainder other than zero whose sign is not the divisor's (which is not zero)."""
    return r.ne(0) & ((r ^ y) < 0) & y.ne(0)


def divide_unsigned(x: Lanes, y: Lanes) -> Lanes:
    zero = y.eq(0)
    return zero.select(0, _quotient(x, zero.select(1, y), signed=False))


def remainder_unsigned(x: Lanes, y: Lanes) -> Lanes:
    return y.eq(0).select(0, x - divide_unsigned(x, y) * y)


def _quotient(x: Lanes, y: Lanes, signed: bool) -> Lanes:
    """x / y truncated. CPUs divide no vectors of integers; up to 32 bits dividing floats is exact."""
    if x.width == 64:
        return x.bin("sdiv" if signed else "udiv", y)
    wide = "float" if x.width <= 16 else "double"
    sign_ = "si" if signed else "ui"
    q = x.cast(f"{sign_}tofp", wide) / y.cast(f"{sign_}tofp", wide)
    return q.cast(f"fpto{sign_}", x.element)


def high_product(extend: str) -> Kernel:
    """The upper half of the product at twice the width; `extend` is sext or zext."""
    def multiply(x: Lanes, y: Lanes) -> Lanes:
        wide = f"i{2 * x.width}"
        return (x.cast(extend, wide) * y.cast(extend, wide)).bin("lshr", x.width).cast("trunc", x.element)
    return multiply


# --- shifts: a count outside [0, width) shifts everything out

def _shift(opcode: str, x: Lanes, count: Lanes) -> Lanes:
    inside = count.compare("icmp ult", count.width)
    safe = inside.select(count, 0)
    return inside.select(x.bin(opcode, safe), 0)


def shift_left(x: Lanes, count: Lanes) -> Lanes:
    return _shift("shl", x, count)


def shift_right_unsigned(x: Lanes, count: Lanes) -> Lanes:
    return _shift("lshr", x, count)


def shift_right(x: Lanes, count: Lanes) -> Lanes:
    """The sign fills in: by the whole width or more, only the sign is left."""
    return x >> count.compare("icmp ult", count.width).select(count, count.width - 1)


# --- powers

def power_unsigned(x: Lanes, y: Lanes) -> Lanes:
    """x^y by squaring, wrapping; as many rounds as the largest exponent among the lanes has bits."""
    b = x.b
    largest = y.value if y.lanes == 1 else b.call(
        f"llvm.vector.reduce.or.v{y.lanes}i{y.width}", f"i{y.width}", [y.value])
    leading = Lanes(b, b.call(f"llvm.ctlz.i{y.width}", largest.type, [largest, b.const("i1", 0)]))
    rounds = (leading.lift(y.width) - leading).cast("zext", "i64")
    loop = b.loop(b.i64(0), rounds.value, b.i64(1), [x.lift(1).value, x.value, y.value], hint="power")
    result, base, exponent = (Lanes(b, v) for v in loop.carry)
    multiplied = (exponent & 1).ne(0).select(result * base, result)
    done = loop.end([multiplied.value, (base * base).value, exponent.bin("lshr", 1).value])
    return Lanes(b, done[0])


def power(x: Lanes, y: Lanes) -> Lanes:
    """As `power_unsigned`; a negative exponent gives the whole part of the true power: 1, -1 or 0."""
    negative = y < 0
    r = power_unsigned(x, negative.select(0, y))
    alternating = (y & 1).ne(0).select(x, 1)
    whole = x.eq(1).select(1, x.eq(-1).select(alternating, 0))
    return negative.select(whole, r)
