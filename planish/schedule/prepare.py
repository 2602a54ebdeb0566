"""The graph in the form the loops want it: fewer ways to say a thing.

Reductions drop their axes and reshape afterwards, large ones have two levels (partial.py); windows are taken
apart by axes (windows.py); products of few results are in parts of their sum (sum_parts.py), attention of few
queries to many keys in parts of the keys (key_parts.py); a convolution that pads or spreads its operand does
so by a `pad` of its own, so that its index maps are affine, unless it can do without the zeros (phases.py).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planish.ir.graph import Graph, rebuild
from planish.ir.node import Node, constant, make_node
from planish.ops import get_op
from planish.schedule.argmax import PLACES, by_value
from planish.schedule.key_parts import in_key_parts
from planish.schedule.partial import in_two_levels
from planish.schedule.phases import has_phases
from planish.schedule.sum_parts import in_sum_parts
from planish.schedule.windows import by_axes


def prepare(graph: Graph, hint: Mapping[str, int] | None = None) -> Graph:
    """An equal graph in which no reduction keeps dims, large ones to few results have two levels, and no
    convolution pads. `hint` gives typical sizes of symbols."""
    return graph.map(lambda node, operands: _prepared(rebuild(node, operands), hint or {}))


def _prepared(node: Node, hint: Mapping[str, int]) -> Node:
    if node.op.name == "reduce_window":
        return by_axes(node)
    if node.op.has("reduction"):
        return _reduction(node, hint)
    if node.op.name == "attention":
        return in_key_parts(node)
    if node.op.name == "dot_general":
        return in_sum_parts(node)
    return _squeezed_conv(node) if node.op.name == "conv" else node


def _reduction(node: Node, hint: Mapping[str, int]) -> Node:
    if not getattr(node.attributes, "keepdims", False):
        return _dropping(node, hint)
    dropped = make_node(node.op, node.operands, replace(node.attributes, keepdims=False))
    return get_op("reshape")(_dropping(dropped, hint), shape=node.shape)


def _dropping(node: Node, hint: Mapping[str, int]) -> Node:
    return by_value(node, hint) if node.op.name in PLACES else in_two_levels(node, hint)


def _squeezed_conv(node: Node) -> Node:
    """Without the spatial axes along which nothing slides: one position, one tap."""
    node = _padded_conv(node)
    if node.op.name != "conv":
        return node
    x, kernel = node.operands
    flat = [k for k, (d, t) in enumerate(zip(x.shape[2:], kernel.shape[2:])) if d == t == 1]
    if not flat or len(flat) == x.ndim - 2:
        return node

    def kept(values: tuple, skip: int = 0) -> tuple:
        return values[:skip] + tuple(v for k, v in enumerate(values[skip:]) if k not in flat)

    a = node.attributes
    attributes = replace(a, strides=kept(a.strides), padding=kept(a.padding),
                         lhs_dilation=kept(a.lhs_dilation), rhs_dilation=kept(a.rhs_dilation))
    reshape = get_op("reshape")
    operands = tuple(reshape(n, shape=kept(n.shape, 2)) for n in (x, kernel))
    thin = make_node(node.op, operands, attributes)
    return reshape(thin, shape=node.shape)


def padded_before(x: Node, fill: Node, low: tuple, high: tuple, interior: tuple) -> Node:
    """`pad`, where x is a transpose, of what it transposes: what computes that can store it with its
    border."""
    if x.op.name != "transpose":
        return get_op("pad")(x, fill, low=low, high=high, interior=interior)
    axes = x.attributes.axes
    back = [axes.index(k) for k in range(x.ndim)]
    low, high, interior = (tuple(ends[k] for k in back) for ends in (low, high, interior))
    return get_op("transpose")(padded_before(x.operands[0], fill, low, high, interior), axes=axes)


def _padded_spread(node: Node) -> Node:
    """The operand padded by as many elements as whole steps of the spread fit into the padding."""
    x, kernel = node.operands
    a = node.attributes
    low, high = ((0, 0, *(p[end] // d for p, d in zip(a.padding, a.lhs_dilation))) for end in (0, 1))
    if (low, high) != ((0,) * x.ndim,) * 2:
        x = padded_before(x, constant(0, x.dtype), low, high, (0,) * x.ndim)
    left = tuple((p[0] % d, p[1] % d) for p, d in zip(a.padding, a.lhs_dilation))
    return make_node(node.op, (x, kernel), replace(a, padding=left))


def _padded_conv(node: Node) -> Node:
    a = node.attributes
    if all(p == (0, 0) for p in a.padding) and all(d == 1 for d in a.lhs_dilation):
        return node
    if has_phases(node):
        return _padded_spread(node)
    x, kernel = node.operands
    crop = [tuple(min(0, p) if isinstance(p, int) else 0 for p in pair) for pair in a.padding]
    grow = [tuple(p - c for p, c in zip(pair, cut)) for pair, cut in zip(a.padding, crop)]
    zeros = (0, 0)
    padded = padded_before(x, constant(0, x.dtype), (*zeros, *(p[0] for p in grow)),
                           (*zeros, *(p[1] for p in grow)), (*zeros, *(d - 1 for d in a.lhs_dilation)))
    if any(c != (0, 0) for c in crop):
        stops = tuple(d + c[1] for d, c in zip(padded.shape[2:], crop))
        padded = get_op("slice")(padded, starts=(*zeros, *(-c[0] for c in crop)),
                                 stops=(*padded.shape[:2], *stops), steps=(1,) * padded.ndim)
    plain = replace(a, padding=((0, 0),) * len(a.padding), lhs_dilation=(1,) * len(a.padding))
    return make_node(node.op, (padded, kernel), plain)
