"""Symbolic sizes: a `Dim` is an int or an `Expr`, a whole-numbered polynomial over symbols and quotients.

In: ints, symbols with ranges, + - * // %. Out: a canonical form, so that equal sizes are equal objects by
`==`, and bounds for guards. Loop index expressions use the same class, with loop axes as symbols. Quotients
floor and remainders take the divisor's sign, as Python's do. Terms that a divisor divides leave the quotient
when the rest provably lies in [0, divisor) (the usual mixed-radix simplification of linearised indices).
"""
from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from planish.errors import ParseError

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True)
class Symbol:
    """A named unknown with an inclusive range; `high` may be another size (`i` of `for i in range(N)` has N -
    1)."""

    name: str
    low: int = 0
    high: Dim | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def requirement(self) -> str:
        """What a size is told that is out of range."""
        limits = f"{self.low} or more" if self.high is None else f"from {self.low} to {self.high}"
        return f"{self.name} is to be {limits}"

    # Equal only with equal ranges: what was proved of one must hold of the other.
    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Quotient:
    numerator: Expr
    divisor: Dim

    def __str__(self) -> str:
        return f"({_factor(self.numerator)} // {_factor(self.divisor)})"


@dataclass(frozen=True)
class Remainder:
    numerator: Expr
    divisor: Dim

    def __str__(self) -> str:
        return f"({_factor(self.numerator)} % {_factor(self.divisor)})"


@dataclass(frozen=True)
class Extreme:
    """max(a, b) or min(a, b)."""

    which: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        return f"{self.which}({self.left}, {self.right})"


Atom = Symbol | Quotient | Remainder | Extreme
Monomial = tuple[Atom, ...]


class Expr:
    """A sum of integer multiples of monomials. Immutable; built by arithmetic, never directly."""

    __slots__ = ("_hash", "_symbols", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms
        self._hash = hash(terms)
        self._symbols: dict[str, Symbol] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        more = _terms(other)
        return _collect([*self.terms, *more]) if more else self

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: int) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return Expr(tuple((m, a * other) for m, a in self.terms)) if other else 0
        return _collect([(_merge(m, n), a * b) for m, a in self.terms for n, b in _terms(other)])

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _divide(self, other)[0]

    def __mod__(self, other: Dim) -> Dim:
        return _divide(self, other)[1]

    def __rfloordiv__(self, other: int) -> Dim:
        return _divide(other, self)[0]

    def __rmod__(self, other: int) -> Dim:
        return _divide(other, self)[1]

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic size {self} is not known; "
                        "compare with == or use bounds()")

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
            size = abs(coefficient)
            factors = [str(size)] * (size != 1 or not monomial) + [str(a) for a in monomial]
            text += sign + "*".join(factors)
        return text

    __repr__ = __str__


Dim = int | Expr


@lru_cache(4096)  # equal symbols that are one object compare at once
def symbol(name: str, low: int = 0, high: Dim | None = None) -> Expr:
    """The size called `name`, known to lie in [low, high] (high None: no limit)."""
    return Expr((((Symbol(name, low, high),), 1),))


def is_static(dim: Dim | None) -> TypeIs[int]:
    return isinstance(dim, int)


def maximum(a: Dim, b: Dim) -> Dim:
    return _extreme("max", a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    return _extreme("min", a, b)


def _extreme(which: str, a: Dim, b: Dim) -> Dim:
    if is_nonnegative(a - b):
        return a if which == "max" else b
    if is_nonnegative(b - a):
        return b if which == "max" else a
    left, right = sorted((a, b), key=str)
    return _atom(Extreme(which, left, right))


def _atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _merge(m: Monomial, n: Monomial) -> Monomial:
    if not m or not n:
        return m or n
    return tuple(sorted(m + n, key=str))


def _order(term: tuple[Monomial, int]) -> tuple:
    monomial = term[0]
    return (-len(monomial), [str(a) for a in monomial])


def _collect(terms: list[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(tuple(sorted(kept, key=_order)) if len(kept) > 1 else tuple(kept))


def _divide(numerator: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(numerator // divisor, numerator % divisor)."""
    if isinstance(divisor, int) and divisor == 0:
        raise ZeroDivisionError("a size divided by zero")
    if isinstance(numerator, int) and isinstance(divisor, int):
        return divmod(numerator, divisor)
    if divisor == 1:
        return numerator, 0
    whole, rest = _split(numerator, divisor)
    if rest == 0:
        return whole, 0
    if is_nonnegative(rest) and is_nonnegative(divisor - rest - 1):
        return whole, rest
    inner = _collect(list(_terms(rest)))
    if isinstance(inner, int):
        if isinstance(divisor, int):
            return whole + inner // divisor, inner % divisor
        inner = Expr((((), inner),))
    if not _common_divisor(inner, divisor):
        least, most = _atom_bounds(Quotient(inner, divisor))
        if least is not None and least == most:
            return whole + least, inner - divisor * least
        return whole + _atom(Quotient(inner, divisor)), _atom(Remainder(inner, divisor))
    g = _common_divisor(inner, divisor)
    q, r = _divide(_scale_down(inner, g), divisor // g)
    return whole + q, r * g


def _split(numerator: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """numerator = whole * divisor + rest, taking out each term that the divisor divides."""
    parts = _terms(divisor)
    if len(parts) != 1:
        return (1, 0) if numerator == divisor else (0, numerator)
    (monomial, coefficient), = parts
    whole, rest = [], []
    for m, c in _terms(numerator):
        left = _without(m, monomial)
        if left is None:
            rest.append((m, c))
            continue
        q, r = divmod(c, coefficient)
        whole.append((left, q))
        rest.append((m, r))
    return _collect(whole), _collect(rest)


def _without(m: Monomial, part: Monomial) -> Monomial | None:
    left = list(m)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _common_divisor(e: Expr, divisor: Dim) -> int:
    """An integer > 1 that divides every coefficient of `e` and the (integer) divisor, or 0."""
    from math import gcd
    if not isinstance(divisor, int):
        return 0
    g = gcd(divisor, *(c for _, c in e.terms))
    return g if g > 1 else 0


def _scale_down(e: Expr, g: int) -> Dim:
    return _collect([(m, c // g) for m, c in e.terms])


# --- ranges

def bounds(dim: Dim) -> tuple[int | None, int | None]:
    """Inclusive integer bounds of a size; None where there is none."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in _terms(dim):
        a, b = _monomial_bounds(monomial)
        if coefficient < 0:
            a, b = b, a
        low = None if low is None or a is None else low + coefficient * a
        high = None if high is None or b is None else high + coefficient * b
    return low, high


def _monomial_bounds(monomial: Monomial) -> tuple[int | None, int | None]:
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        a, b = _atom_bounds(atom)
        if a is None or a < 0 or low is None or low < 0:
            return (_atom_bounds(monomial[0]) if len(monomial) == 1 else (None, None))
        low, high = low * a, (None if b is None or high is None else high * b)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, Symbol):
        return atom.low, None if atom.high is None else bounds(atom.high)[1]
    if isinstance(atom, Extreme):
        (a, b), (c, d) = bounds(atom.left), bounds(atom.right)
        if atom.which == "max":
            return max(_known(a, c), default=None), None if b is None or d is None else max(b, d)
        return None if a is None or c is None else min(a, c), min(_known(b, d), default=None)
    (low, high), (dlow, dhigh) = bounds(atom.numerator), bounds(atom.divisor)
    if dlow is None or dlow < 1:
        return None, None
    if isinstance(atom, Remainder):
        return 0, None if dhigh is None else dhigh - 1
    most = None if high is None else (high // dlow if high >= 0 else -1)
    if low is None:
        return None, most
    return low // dlow if low < 0 else 0 if dhigh is None else low // dhigh, most


def _known(*limits: int | None) -> list[int]:
    return [limit for limit in limits if limit is not None]


def is_nonnegative(dim: Dim) -> bool:
    """True when dim >= 0 follows from the ranges; a symbol bounded by another size is replaced by that
    bound."""
    for _ in range(4):
        low = bounds(dim)[0]
        if low is not None and low >= 0:
            return True
        replaced = _push_to_extreme(dim)
        if replaced == dim:
            return False
        dim = replaced
    return False


def _push_to_extreme(dim: Dim) -> Dim:
    """Replace one symbol of symbolic high, where it lowers `dim`, by that high: a lower bound of dim."""
    for monomial, coefficient in _terms(dim):
        for atom in monomial:
            if isinstance(atom, Symbol) and isinstance(atom.high, Expr) and coefficient < 0 \
                    and monomial.count(atom) == 1 and _appears_once(dim, atom):
                return substitute(dim, {atom.name: atom.high})
    return dim


def _appears_once(dim: Dim, atom: Symbol) -> bool:
    holding = [m for m, _ in _terms(dim) if any(atom.name in symbols_of_atom(a) for a in m)]
    return len(holding) == 1


# --- walking

def terms(dim: Dim) -> list[Dim]:
    """The summands of a size, each as a size of its own."""
    return [dim] if isinstance(dim, int) else [Expr((t,)) if t[0] else t[1] for t in dim.terms]


def divisors(dim: Dim, numerator: Dim) -> set[Dim]:
    """The sizes by which `numerator` is divided directly in a size."""
    found = [a for monomial, _ in _terms(dim) for a in monomial if isinstance(a, (Quotient, Remainder))]
    return {a.divisor for a in found if a.numerator == numerator}


def extreme_limits(dim: Dim) -> set[int]:
    """The numbers that stand directly in a max or min of a size."""
    extremes = [a for monomial, _ in _terms(dim) for a in monomial if isinstance(a, Extreme)]
    return {side for e in extremes for side in (e.left, e.right) if isinstance(side, int)}


def is_linear(term: Dim, name: str) -> bool:
    """Whether a summand is its symbol `name` times something without it."""
    (monomial, _), = _terms(term)
    return sum(name in symbols_of_atom(a) for a in monomial) == 1 and any(
        isinstance(a, Symbol) and a.name == name for a in monomial)


def atoms(dim: Dim) -> list[Expr]:
    """The quotients, remainders and extremes directly in a size, each as a size of its own."""
    return [_atom(a) for monomial, _ in _terms(dim) for a in monomial if not isinstance(a, Symbol)]


def symbols_of_atom(atom: Atom) -> set[str]:
    if isinstance(atom, Symbol):
        return {atom.name}
    if isinstance(atom, Extreme):
        return set(symbols_of(atom.left)) | set(symbols_of(atom.right))
    return set(symbols_of(atom.numerator)) | set(symbols_of(atom.divisor))


def symbols_of(dim: Dim) -> Mapping[str, Symbol]:
    """The symbols a size depends on, by name, in order of appearance."""
    if isinstance(dim, int):
        return _NO_SYMBOLS
    if dim._symbols is None:
        dim._symbols = {s.name: s for s in _walk(dim)}
    return dim._symbols


_NO_SYMBOLS: dict[str, Symbol] = {}


def _walk(dim: Dim) -> Iterator[Symbol]:
    for monomial, _ in _terms(dim):
        for atom in monomial:
            if isinstance(atom, Symbol):
                yield atom
            elif isinstance(atom, Extreme):
                yield from _walk(atom.left)
                yield from _walk(atom.right)
            else:
                yield from _walk(atom.numerator)
                yield from _walk(atom.divisor)


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols by sizes and simplify anew."""
    if isinstance(dim, int) or not any(name in values for name in symbols_of(dim)):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for atom in monomial:
            product = product * _substitute_atom(atom, values)
        total = total + product
    return total


def _substitute_atom(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values.get(atom.name, _atom(atom))
    if isinstance(atom, Extreme):
        return _extreme(atom.which, substitute(atom.left, values), substitute(atom.right, values))
    q, r = _divide(substitute(atom.numerator, values), substitute(atom.divisor, values))
    return q if isinstance(atom, Quotient) else r


def evaluate_dim(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer a size stands for. Raises KeyError naming a symbol without a value."""
    if isinstance(dim, int):
        return dim
    result = substitute(dim, values)
    if not isinstance(result, int):
        raise KeyError(f"no value for {', '.join(symbols_of(result))} in {dim}")
    return result


# --- text

def _factor(dim: Dim) -> str:
    text = str(dim)
    one = is_static(dim) or (len(dim.terms) == 1 and "*" not in text and text[0] != "-")
    return text if one else f"({text})"


def parse_dim(text: str, symbols: Mapping[str, Dim] | None = None) -> Dim:
    """The inverse of `str`. A name not in `symbols` becomes a symbol with low 0."""
    known = dict(symbols or {})
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body, known)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ParseError(f"{text!r} is not a size") from error


_OPERATIONS = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
               ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b}


def _from_ast(node: ast.AST, known: dict[str, Dim]) -> Dim:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return known.setdefault(node.id, symbol(node.id))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _from_ast(node.operand, known) * -1
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_from_ast(node.left, known), _from_ast(node.right, known))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        return _extreme(node.func.id, *(_from_ast(a, known) for a in node.args))
    raise ValueError(ast.dump(node))
