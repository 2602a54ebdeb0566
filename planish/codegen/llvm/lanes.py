"""Arithmetic on vectors of lanes, written as formulas.

In: builder values. Out: builder values, each operator one LLVM instruction in program order. `Lanes` lets a
kernel read like its formula (`r * r * p + r`); it contracts, reorders and simplifies nothing. Numbers beside
a `Lanes` take its type. Comparisons of floats are ordered (false on NaN) and of integers signed, except `!=`
which is unordered.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from planish.codegen.llvm.builder import Builder, Value, element_of, lanes_of, vector

_WIDTH = {"float": 32, "double": 64}
_FLOAT_OF = {32: "float", 64: "double"}


class Lanes:
    """A value together with the builder that writes what is done to it."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value):
        self.b, self.value = b, value

    @property
    def type(self) -> str:
        return self.value.type

    @property
    def element(self) -> str:
        return element_of(self.value.type)

    @property
    def lanes(self) -> int:
        return lanes_of(self.value.type)

    @property
    def is_float(self) -> bool:
        return self.element in _WIDTH

    @property
    def width(self) -> int:
        """Bits of one lane."""
        return _WIDTH.get(self.element) or int(self.element[1:])

    def lift(self, other: Lanes | float) -> Lanes:
        """A number as a value of this type; a value as it is."""
        return other if isinstance(other, Lanes) else Lanes(self.b, self.b.const(self.type, other))

    def bin(self, opcode: str, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.bin(opcode, self.value, self.lift(other).value))

    def _arithmetic(self, name: str, other: Lanes | float) -> Lanes:
        return self.bin("f" + name if self.is_float else name, other)

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._arithmetic("add", other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self.bin("fdiv", other)

    def __radd__(self, other: float) -> Lanes:
        return self.lift(other) + self

    def __rsub__(self, other: float) -> Lanes:
        return self.lift(other) - self

    def __rmul__(self, other: float) -> Lanes:
        return self.lift(other) * self

    def __rtruediv__(self, other: float) -> Lanes:
        return self.lift(other) / self

    def __neg__(self) -> Lanes:
        return Lanes(self.b, self.b.fneg(self.value)) if self.is_float else self.lift(0) - self

    def __and__(self, other: Lanes | int) -> Lanes:
        return self.bin("and", other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self.bin("or", other)

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self.bin("xor", other)

    def __invert__(self) -> Lanes:
        return self.bin("xor", -1 if self.element != "i1" else 1)

    def __lshift__(self, other: Lanes | int) -> Lanes:
        return self.bin("shl", other)

    def __rshift__(self, other: Lanes | int) -> Lanes:
        """Arithmetic shift; `bin("lshr", ...)` is the logical one."""
        return self.bin("ashr", other)

    def compare(self, opcode: str, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.cmp(opcode, self.value, self.lift(other).value))

    def _ordered(self, name: str, other: Lanes | float) -> Lanes:
        return self.compare(f"fcmp o{name}" if self.is_float else f"icmp s{name}", other)

    def __lt__(self, other: Lanes | float) -> Lanes:
        return self._ordered("lt", other)

    def __le__(self, other: Lanes | float) -> Lanes:
        return self._ordered("le", other)

    def __gt__(self, other: Lanes | float) -> Lanes:
        return self._ordered("gt", other)

    def __ge__(self, other: Lanes | float) -> Lanes:
        return self._ordered("ge", other)

    def eq(self, other: Lanes | float) -> Lanes:
        return self.compare("fcmp oeq" if self.is_float else "icmp eq", other)

    def ne(self, other: Lanes | float) -> Lanes:
        return self.compare("fcmp une" if self.is_float else "icmp ne", other)

    def is_nan(self) -> Lanes:
        return self.compare("fcmp uno", self)

    def select(self, yes: Lanes | float, no: Lanes | float) -> Lanes:
        """Where this mask holds `yes`, else `no`; one of the two may be a number."""
        shape = yes if isinstance(yes, Lanes) else no
        assert isinstance(shape, Lanes), "a selection between two numbers has no type"
        return Lanes(self.b, self.b.select(self.value, shape.lift(yes).value, shape.lift(no).value))

    def call(self, intrinsic: str, *others: Lanes | float) -> Lanes:
        """An LLVM intrinsic whose operands and result have this type."""
        return Lanes(self.b, self.b.intrinsic(intrinsic, self.value, *(self.lift(x).value for x in others)))

    def abs(self) -> Lanes:
        return self.call("fabs")

    def sqrt(self) -> Lanes:
        return self.call("sqrt")

    def copysign(self, sign: Lanes | float) -> Lanes:
        return self.call("copysign", sign)

    def cast(self, opcode: str, element: str) -> Lanes:
        return Lanes(self.b, self.b.cast(opcode, self.value, vector(element, self.lanes)))

    def bits(self) -> Lanes:
        """The bit image of floats, as integers of the same width."""
        return self.cast("bitcast", f"i{self.width}")

    def floats(self) -> Lanes:
        """The floats with this bit image."""
        return self.cast("bitcast", _FLOAT_OF[self.width])

    def at_least(self, low: float) -> Lanes:
        """The larger of the two; NaN passes."""
        return (self < low).select(low, self)

    def at_most(self, high: float) -> Lanes:
        return (self > high).select(high, self)


def fma(x: Lanes | float, y: Lanes | float, z: Lanes | float) -> Lanes:
    """x * y + z, rounded once."""
    shape = next(v for v in (x, y, z) if isinstance(v, Lanes))
    return Lanes(shape.b, shape.b.fma(shape.lift(x).value, shape.lift(y).value, shape.lift(z).value))


def horner(coefficients: Sequence[float], x: Lanes) -> Lanes:
    """A polynomial in x, highest coefficient first, one fused multiply-add a step."""
    y = fma(coefficients[0], x, coefficients[1])
    for c in coefficients[2:]:
        y = fma(y, x, c)
    return y


def by_pairs(coefficients: Sequence[float], x: Lanes, square: Lanes) -> Lanes:
    """The same polynomial, `square` being x * x: pairs of terms first, which do not wait for one another, so
    that about half as many steps do (G. Estrin, 1960)."""
    odd = len(coefficients) % 2
    pairs = zip(coefficients[odd::2], coefficients[odd + 1::2])
    terms: list[Lanes | float] = [*coefficients[:odd], *(fma(high, x, low) for high, low in pairs)]
    y = terms[0]
    for term in terms[1:]:
        y = fma(y, square, term)
    return x.lift(y)


def call_lanes(symbol: str, *arguments: Lanes) -> Lanes:
    """Call an external scalar function once per lane."""
    b, first = arguments[0].b, arguments[0]
    result = Value(first.type, "poison")
    for lane in range(first.lanes):
        one = b.call(symbol, first.element, [b.extract(a.value, lane) for a in arguments])
        result = one if first.lanes == 1 else b.insert(result, one, lane)
    return Lanes(b, result)


def unless_rare(usual: Lanes, rare: Lanes, slow: Callable[[], Lanes]) -> Lanes:
    """`usual`, except in lanes where `rare` holds: `slow()` there, computed only if there is such a lane."""
    b = usual.b
    any_ = rare.value if rare.lanes == 1 else b.call(
        f"llvm.vector.reduce.or.v{rare.lanes}i1", "i1", [rare.value])
    before, inside, after = b.block, b.label("rare"), b.label("usual")
    b.branch(any_, inside, after)
    b.place(inside)
    mixed = rare.select(slow(), usual)
    end = b.block
    b.jump(after)
    b.place(after)
    return Lanes(b, b.value(usual.type, f"phi {usual.type} [{usual.value.name}, %{before}], "
                                        f"[{mixed.value.name}, %{end}]"))


Kernel = Callable[..., Lanes]
