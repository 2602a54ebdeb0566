"""Sizes that depend on values: the host ops that say them, and the symbols they go by.

In: nodes that hold shapes, ends or counts. Out: sizes, as fresh symbols u0, u1... that the rest of the
translation computes with like with those of inputs. Each host op that defines one is an effect of the graph,
in the order of the model's nodes.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planish.capture.onnx.symbols import LONGEST
from planish.errors import TypeRuleError
from planish.ir import Node
from planish.ir.fresh import symbols_made, symbols_used
from planish.ir.graph import topological
from planish.ir.node import make_node
from planish.ops import get_op
from planish.ops.host import HostAttributes, HostFunction, stated_type
from planish.types import Dim, DType, TensorType, bounds, symbol, symbols_of

Names = tuple[str, ...]


class FreshSizes:
    """The fresh symbols of one model, in `order`. `effects` are the graph's, to which host ops are added;
    `equal` sizes that some of the symbols are known to be (see `implied_equal`); `taken` the names of other
    symbols."""

    def __init__(self, effects: list[Node], equal: Mapping[str, Dim] | None = None):
        self.effects = effects
        self.equal = dict(equal or {})
        self.taken: set[str] = set()
        self.order: list[str] = []
        self.said: dict[tuple, tuple[Dim, ...]] = {}

    def symbol(self, most: Dim = LONGEST) -> Dim:
        """A new size between 0 and the most that `most` can be."""
        name = next(n for n in _numbered(len(self.order)) if n not in self.taken)
        self.taken.add(name)
        self.order.append(name)
        high = bounds(most)[1]
        return self.equal.get(name, symbol(name, 0, LONGEST if high is None else min(high, LONGEST)))

    def call(self, function: str, operands: Sequence[Node], results: Sequence[TensorType],
             **parameters: Any) -> Node:
        """A host op on nodes. Parameters are hashable values, or sizes."""
        attributes = HostAttributes(HostFunction(function, tuple(parameters.items())), tuple(results))
        node = make_node(get_op("host"), tuple(operands), attributes)
        if symbols_made(node) and node not in self.effects:
            self.effects.append(node)
        return node

    def sizes(self, function: str, operands: Sequence[Node], most: Sequence[Dim],
              **parameters: Any) -> tuple[Dim, ...]:
        """As many sizes as `most` has bounds, by a host function that says them."""
        key = (function, *operands, *parameters.items())
        if key not in self.said:
            self.said[key] = dims = tuple(self.symbol(m) for m in most)
            if dims:
                self.call(function, operands, tuple(map(stated_type, dims)), **parameters)
        return self.said[key]

    def moved(self, function: str, operands: Sequence[Node], dtype: DType, shape: Sequence[Dim | None],
              **parameters: Any) -> Node:
        """What a host function makes of arrays; None in its shape stands for a size that it says."""
        type_ = TensorType(dtype, tuple(self.symbol() if d is None else d for d in shape))
        return self.call(function, operands, (type_,), **parameters)

    def implied_equal(self, error: BaseException | None) -> tuple[str, Dim] | None:
        """(fresh symbol, size) if the sizes that an operator found to differ agree when the symbol is that
        size. Of two fresh symbols, the later one is the earlier."""
        sizes = list(dict.fromkeys(error.sizes)) if isinstance(error, TypeRuleError) else []
        sizes = [d for d in sizes if d != 1] if len(sizes) > 2 else sizes  # beside others, 1 is broadcast
        rank = {name: i for i, name in enumerate(self.order)}
        for size in sorted(sizes, key=lambda d: -rank.get(str(d), -1)):
            name = str(size)
            for other in sizes:
                later = any(rank.get(s, -1) >= rank.get(name, -1) for s in symbols_of(other))
                if name in rank and other != size and not later:
                    return name, other
        return None


def _numbered(first: int) -> Iterator[str]:
    while True:
        yield f"u{first}"
        first += 1


def dependencies(nodes: Iterable[Node], dims: Iterable[Dim], fresh: FreshSizes | None) -> tuple[Names, Names]:
    """The names of graph inputs whose values nodes and sizes depend on, and of the sizes of other inputs."""
    said_by = {name: e for e in (fresh.effects if fresh else ()) for name in symbols_made(e)}
    sizes = dict.fromkeys(name for d in dims for name in symbols_of(d))
    waiting = list(nodes)
    while True:
        waiting += [said_by[name] for name in sizes if name in said_by]
        reached = topological(waiting)
        found = sizes | dict.fromkeys(name for n in reached for name in symbols_used(n))
        if found.keys() == sizes.keys():
            break
        sizes = found
    inputs = dict.fromkeys(n for n in reached if n.op.name == "input")
    shown = {name for n in inputs for d in n.shape for name in symbols_of(d)}
    return (tuple(n.attributes.name for n in inputs),
            tuple(name for name in sizes if name not in said_by and name not in shown))
