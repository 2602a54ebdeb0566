"""Sizes that are taken for equal, settled before a graph is captured.

torch asks while it traces whether sizes are equal that must be; Dynamo then has one symbol for both, and a
guard. Attention it does not ask: keys and values of a cache, each with a length of its own, would be no
attention that has a kernel.
"""

from __future__ import annotations

from typing import Any

_EQUAL = (("query", 0, "key", 0), ("key", 0, "value", 0), ("key", -2, "value", -2))


def settle_sizes(module: Any) -> None:
    """Ask what attention in Dynamo's graph takes for equal. What holds in this call is guarded."""
    import torch

    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is torch._C._nn.scaled_dot_product_attention:
            given = {**dict(zip(("query", "key", "value"), node.args)), **node.kwargs}
            shapes = {name: _shape(given[name]) for name in ("query", "key", "value")}
            if len(set(map(len, shapes.values()))) == 1:
                for one, axis, other, place in _EQUAL:
                    _ask(shapes[one][axis], shapes[other][place])


def _shape(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("example_value")
    return () if value is None else tuple(value.shape)


def _ask(one: Any, other: Any) -> None:
    """Whether two sizes are equal, where that is known in this call: a size that depends on values is not."""
    if all(isinstance(size, int) or size.node.has_hint() for size in (one, other)):
        bool(one == other)
