"""Names of sizes that are also names of loops.

Kernels call their loops s0, s1... and a0, a1..., and in an index both loops and sizes are symbols, by name.
A size that a front end calls s0 (torch and its ONNX exporter do) gets another name before loops are built.
"""
from __future__ import annotations

import re
from collections.abc import Mapping

from planish.ir import Graph
from planish.ir.fresh import all_symbols
from planish.types import Expr, Symbol, substitute, symbol, symbols_of

AXIS = re.compile(r"(?P<kind>[as])(?P<number>\d+)([a-z]\w*)?")
MOST_AXES = 20


def renamed_sizes(graph: Graph) -> dict[str, Expr]:
    """Size -> the size that takes its place, for those that are called as loops are."""
    symbols = all_symbols(graph)
    clashing = {name: s for name, s in symbols.items() if is_axis(name)}
    return {name: _renamed(s, clashing, set(symbols)) for name, s in clashing.items()}


def is_axis(name: str) -> bool:
    """Whether a loop may have the name. Loops s0, s1... are one per axis of a value: fewer than twenty."""
    found = AXIS.fullmatch(name)
    return found is not None and (found["kind"] == "a" or int(found["number"]) < MOST_AXES)


def _renamed(s: Symbol, clashing: Mapping[str, Symbol], taken: set[str]) -> Expr:
    name = f"size_{s.name}"
    while name in taken:
        name += "_"
    if s.high is None:
        return symbol(name, s.low)
    others = {n: _renamed(clashing[n], clashing, taken) for n in symbols_of(s.high) if n in clashing}
    return symbol(name, s.low, substitute(s.high, others))
