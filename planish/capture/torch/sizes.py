"""torch's symbolic sizes -> ours: a SymInt's expression becomes a `Dim` over symbols with the ShapeEnv's
ranges, and the sizes it was seen with become hints."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import Any

from planish.errors import UnsupportedOp
from planish.types import Dim, Expr, symbol, symbols_of
from planish.types.dim import maximum, minimum

FRESH = 8  # a size that nothing is known of, for choices
LEAST, MOST = -(2**63), 2**62  # an int argument's range; what is as large has no limit


class Sizes:
    """The symbols of one graph; `hints` are the sizes of the call it was captured with. Those in `fresh`
    depend on what tensors hold; `say` has a size computed that is no polynomial of others."""

    def __init__(self) -> None:
        self.say: Callable[[Any], Expr] | None = None
        self.said: dict[Any, Expr] = {}
        self.symbols: dict[str, Dim] = {}
        self.hints: dict[str, int] = {}
        self.fresh: set[str] = set()

    def is_fresh(self, *dims: Dim) -> bool:
        """Whether a size depends on what tensors hold."""
        return any(not self.fresh.isdisjoint(symbols_of(d)) for d in dims)

    def dim(self, size: Any) -> Dim:
        """The Dim of an int or SymInt. Raises UnsupportedOp for a size that depends on values."""
        if isinstance(size, int):
            return int(size)
        node = size.node
        if node.is_constant():
            return int(node.maybe_as_int())
        return self._converted(node.expr, node.shape_env)

    def _converted(self, expr: Any, env: Any) -> Dim:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self._symbol(expr, env)
        kind = type(expr).__name__
        combine = _COMBINE.get(kind)
        if not is_polynomial(expr):
            return self._said(expr)
        parts = [self._converted(a, env) for a in expr.args]
        if combine is None:
            return reduce(mul, [parts[0]] * int(expr.args[1]))
        return reduce(combine, parts)

    def _said(self, expr: Any) -> Expr:
        """A size that is computed as a number."""
        if expr not in self.said:
            if self.say is None:
                raise UnsupportedOp(f"a size {expr}: planish does not have {type(expr).__name__} of sizes")
            self.said[expr] = self.say(expr)
        return self.said[expr]

    def _symbol(self, expr: Any, env: Any) -> Dim:
        name = str(expr)
        if name not in self.symbols:
            hint = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
            if expr in hint:
                self.symbols[name] = symbol(name, *_range(expr, env))
            else:
                self.fresh_symbol(name, _range(expr, env)[0])
            try:
                self.hints.setdefault(name, int(hint.get(expr, FRESH)))
            except TypeError:
                raise UnsupportedOp(f"a size {expr} of a nested tensor, which is no number; pad it, or leave "
                                    "the part that uses it out by torch.compiler.disable") from None
        return self.symbols[name]


    def fresh_symbol(self, name: str, low: int = LEAST) -> Expr:
        """A size, or a number, that depends on values. torch's upper limit does not always hold, nor does a
        lower one above 0."""
        if name not in self.symbols:
            self.symbols[name] = symbol(name, 0 if low >= 0 else LEAST)
            self.fresh.add(name)
            self.hints[name] = FRESH
        found = self.symbols[name]
        assert isinstance(found, Expr)
        return found


def is_polynomial(expr: Any) -> bool:
    """Whether a sympy expression has a Dim: of sizes, by what Dims have."""
    is_known = type(expr).__name__ in (*_COMBINE, "Pow") and all(map(is_polynomial, expr.args))
    return expr.is_Integer or expr.is_Symbol or is_known


def _range(expr: Any, env: Any) -> tuple[int, int | None]:
    limits = env.var_to_range.get(expr)
    if limits is None:
        return 0, None
    low = int(limits.lower) if limits.lower.is_Integer else LEAST
    high = int(limits.upper) if limits.upper.is_Integer and int(limits.upper) < MOST else None
    return max(low, LEAST), high


_COMBINE: dict[str, Any] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: (a + b - 1) // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": maximum,
    "Min": minimum,
}
