"""What a model implies about its own sizes.

A model is taken to be right about itself: where it only holds together if a size lies in a range (the first n
of 512 rows beside something with n rows), or is a multiple of something (an image halved five times and
doubled again), the size is held to that, and a call checks it.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import permutations

from planish.errors import TypeRuleError
from planish.types import Dim, Symbol, evaluate_dim, is_static, substitute, symbols_of
from planish.types import symbol as symbol_of
from planish.types.dim import extreme_limits

Range = tuple[int, "int | None", int]   # low, high, step
STEPS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)


def implied_range(error: BaseException | None, known: dict[str, Range],
                  fresh: Collection[str] = ()) -> tuple[str, Range] | None:
    """(symbol, its range) under which the sizes that an operator found to differ are equal; None where there
    is none that says more than `known`. Not for symbols in `fresh`, which are not sizes of inputs."""
    sizes = error.sizes if isinstance(error, TypeRuleError) else ()
    for size, other in permutations(sizes, 2):
        for symbol, low, high, step in (*_lows(size, other), *_bounds(size, other), *_steps(size, other),
                                         *_ones(size, other)):
            limit = symbol.high if is_static(symbol.high) else None
            before = known.get(symbol.name, (symbol.low, limit, 1))
            wanted = max(low, before[0]), high if high is not None else before[1], max(step, before[2])
            if symbol.name not in fresh and wanted != before and wanted[2] % before[2] == 0:
                return symbol.name, wanted
    return None


Found = Iterator[tuple[Symbol, int, "int | None", int]]


def _bounds(size: Dim, other: Dim) -> Found:
    """A symbol beside a minimum or maximum of it: equal up to a number."""
    for symbol in symbols_of(size).values():
        if str(size) != symbol.name:
            continue
        for high in sorted(extreme_limits(other), reverse=True):
            narrow = symbol_of(symbol.name, symbol.low, high)
            if substitute(other, {symbol.name: narrow}) == narrow:
                yield symbol, symbol.low, high, 1


def _lows(size: Dim, other: Dim) -> Found:
    """A minimum or maximum with a number, which symbols that are no smaller decide: a size that is not
    empty."""
    symbols = {**symbols_of(size), **symbols_of(other)}
    for low in sorted({*extreme_limits(other), *STEPS, 1}):
        raised = {n: symbol_of(n, low, s.high) for n, s in symbols.items() if s.low < low}
        if raised and _are_equal(size, other, raised):
            for name in list(raised):  # those that matter
                fewer = {n: d for n, d in raised.items() if n != name}
                raised = fewer if _are_equal(size, other, fewer) else raised
            yield from ((symbols[name], low, None, 1) for name in raised)
            return


def _are_equal(size: Dim, other: Dim, values: Mapping[str, Dim]) -> bool:
    return substitute(size, values) == substitute(other, values)


def _steps(size: Dim, other: Dim) -> Found:
    """Sizes that are equal for multiples of a number."""
    for symbol in symbols_of(size).values():
        for step in STEPS:
            even = {symbol.name: symbol_of(symbol.name, symbol.low, symbol.high) // step * step}
            if _are_equal(size, other, even):
                yield symbol, symbol.low, None, step
                return


def _ones(size: Dim, other: Dim) -> Found:
    """A size that is another times a factor of one symbol: equal where the factor is 1."""
    if is_static(other) and other == 0:
        return
    factor = size // other
    symbols = list(symbols_of(factor).values())
    if is_static(size) or len(symbols) != 1 or factor * other != size or not is_static(symbols[0].high):
        return
    symbol, = symbols
    low, high = _first(factor, symbol, 1), _first(factor, symbol, 2) - 1
    if substitute(factor, {symbol.name: symbol_of(symbol.name, low, high)}) == 1:
        yield symbol, low, high, 1


def _first(factor: Dim, symbol: Symbol, wanted: int) -> int:
    """The least value of the symbol from which a growing factor is `wanted` or more."""
    low, high = symbol.low, symbol.high
    assert isinstance(high, int)
    while low < high:
        middle = (low + high) // 2
        if evaluate_dim(factor, {symbol.name: middle}) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low
