"""Higher-order operators that torch can write out: their dense form is traced, and its ATen graph taken.

flex_attention is one: its score and mask functions are mapped over the whole matrix of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from planish.capture.torch.decompositions import decompositions

EXPANDED = {"flex_attention": "sdpa_dense"}  # torch has no gradient of it on the CPU


def expanded(node: Any, graphs: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """The ATen graph of an operator's dense form, and the FX nodes that it takes. `graphs` gives the graph
    that an FX node stands for, None for any other."""
    from torch import fx
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    name = str(node.target)
    function = getattr(import_module(f"torch._higher_order_ops.{name}"), EXPANDED[name])
    leaves, tree = pytree.tree_flatten((node.args, node.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, fx.Node) and graphs(leaf) is None]
    known = [graphs(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]

    def written_out(*tensors: Any) -> Any:
        given = list(known)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        args, keywords = pytree.tree_unflatten(given, tree)
        return function(*args, **keywords)

    values = [leaves[i].meta["val"] for i in places]
    with _fake_mode(values):
        functional = dispatch_functionalize(written_out)
        graph = make_fx(functional, decompositions(), _allow_non_fake_inputs=True)(*values)
    return graph, [leaves[i] for i in places]


def _fake_mode(values: list[Any]) -> Any:
    from torch._guards import detect_fake_mode

    return detect_fake_mode(values)
