"""Ops that move elements: all exact, as no value changes.

In: compositions of reshape, transpose, broadcast_to, slice, concat, pad, reverse. Out: fewer of them, or
cheaper ones (a reshape moves nothing). Sizes may be symbolic: a rule fires only where sizes are provably
equal.
"""
from __future__ import annotations

from collections.abc import Sequence

from planish.ir import Node
from planish.ir.graph import rebuild
from planish.ops.rules import ops
from planish.rewrite.pattern import any_op, several, variables
from planish.rewrite.rule import Match, rule
from planish.types import Dim, broadcast_shapes, element_count, is_static
from planish.types.dim import is_nonnegative

x, fill = variables("x fill")
xs = several("xs")
_transposed = ops.transpose(x).named("inner")
_sliced = ops.slice(x).named("inner")


def _same_shape(match: Match) -> bool | str:
    return match.x.shape == match.root.shape or "it changes the shape"


def _to_shape_of_root(match: Match) -> Node:
    return ops.reshape(match.x, shape=match.root.shape)


def _one_element(match: Match) -> bool | str:
    if element_count(match.root.shape) == 1:
        return "there is but one element on either side"
    return element_count(match.x.shape) == 1 or "its operand has more than one element"


def _repeated(match: Match) -> Node:
    scalar = match.x if match.x.ndim == 0 else ops.reshape(match.x, shape=())
    return ops.broadcast_to(scalar, shape=match.root.shape)


# --- transpose

def _keeps_order(match: Match) -> bool | str:
    """Only axes of size 1 change places among the others."""
    moved = [a for a in match.root.attributes.axes if match.x.shape[a] != 1]
    return moved == sorted(moved) or "axes of more than one element change places"


def _merged_transpose(match: Match) -> Node:
    inner = match.inner.attributes.axes
    return ops.transpose(match.x, axes=tuple(inner[a] for a in match.root.attributes.axes))


def _hoisted_axes(xs: Sequence[Node]) -> tuple[int, ...] | None:
    """The axes by which every operand is transposed; scalars fit any."""
    axes = {o.attributes.axes for o in xs if o.op.name == "transpose"}
    plain = all(o.op.name == "transpose" or o.ndim == 0 for o in xs)
    return axes.pop() if plain and len(axes) == 1 else None


def _all_transposed(match: Match) -> bool | str:
    if sum(o.op.name == "transpose" for o in match.xs) < 2:
        return "fewer than two operands are transposed"
    return _hoisted_axes(match.xs) is not None or "the operands are not all transposed alike"


def _under_transposes(node: Node) -> Node:
    return rebuild(node, tuple(o.operands[0] if o.op.name == "transpose" else o for o in node.operands))


def _hoist_transpose(match: Match) -> Node:
    return ops.transpose(_under_transposes(match.root), axes=_hoisted_axes(match.xs))


def _transposes_cancel(match: Match) -> bool | str:
    inner = _hoisted_axes(match.xs)
    if inner is None:
        return "the operands are not all transposed alike"
    cancel = [inner[a] for a in match.root.attributes.axes] == list(range(len(inner)))
    return cancel or "the transposes above and below do not cancel"


# --- broadcast_to

def without_broadcasts(node: Node) -> Node:
    """An elementwise op on what its operands were broadcast from, where it broadcasts to the same shape by
    itself."""
    operands = list(node.operands)
    for i, operand in enumerate(operands):
        if operand.op.name != "broadcast_to":
            continue
        bare = [*operands[:i], operand.operands[0], *operands[i + 1:]]
        if broadcast_shapes(*(o.shape for o in bare)) == node.shape:
            operands = bare
    return rebuild(node, tuple(operands))


def _broadcasts_by_itself(match: Match) -> bool | str:
    changes = without_broadcasts(match.root) is not match.root
    return changes or "no operand's broadcast_to is one that the op does by itself"


def _broadcasts_late(match: Match) -> bool | str:
    wide = [o for o in match.xs if o.op.name == "broadcast_to"]
    if not wide or not all(o.op.name == "broadcast_to" or o.ndim == 0 for o in match.xs):
        return "not all operands are broadcast"
    size = element_count(match.root.shape)
    return element_count(_on_bare(match.root).shape) != size != 0 or "the broadcasts repeat nothing"


def _on_bare(node: Node) -> Node:
    return rebuild(node, tuple(o.operands[0] if o.op.name == "broadcast_to" else o for o in node.operands))


def _broadcast_after(match: Match) -> Node:
    return ops.broadcast_to(_on_bare(match.root), shape=match.root.shape)


def _adds_ones_only(match: Match) -> bool | str:
    padded = (1,) * (len(match.root.shape) - match.x.ndim) + match.x.shape
    return padded == match.root.shape or "it repeats elements"


# --- slice, pad, reverse

def _takes_all(match: Match) -> bool | str:
    a = match.root.attributes
    whole = all(s == 0 for s in a.starts) and all(s == 1 for s in a.steps) and a.stops == match.x.shape
    return whole or "it takes a part"


def _merged_slice(match: Match) -> Node:
    """Element i of the outer is element start + i * step of the inner; the stop is the last of these, plus
    one."""
    outer, inner = match.root.attributes, match.inner.attributes
    along = [(first + start * step, by * step) if size else (0, 1) for first, step, start, by, size in
             zip(inner.starts, inner.steps, outer.starts, outer.steps, match.root.shape)]
    stops = tuple(start + (size - 1) * step + 1 if size else 0
                  for (start, step), size in zip(along, match.root.shape))
    return ops.slice(match.x, starts=tuple(s for s, _ in along), stops=stops,
                     steps=tuple(s for _, s in along))


def _is_static_slice(match: Match) -> bool | str:
    sizes = (*match.root.shape, *match.root.attributes.starts, *match.inner.attributes.starts)
    return all(map(is_static, sizes)) or "sizes are symbolic"


def _inside_pad(match: Match) -> bool | str:
    """The slice takes nothing of what was put around."""
    low, x_shape, interior = match.inner.attributes.low, match.x.shape, match.inner.attributes.interior
    if any(interior):
        return "values are put between the elements"
    a = match.root.attributes
    inside = all(is_nonnegative(start - lo) and is_nonnegative(lo + size - stop)
                 for start, stop, lo, size in zip(a.starts, a.stops, low, x_shape))
    return inside or "the slice reaches into the padding"


def _slice_under_pad(match: Match) -> Node:
    a, low = match.root.attributes, match.inner.attributes.low
    return ops.slice(match.x, starts=tuple(s - lo for s, lo in zip(a.starts, low)),
                     stops=tuple(s - lo for s, lo in zip(a.stops, low)), steps=a.steps)


def _pads_nothing(match: Match) -> bool | str:
    a = match.root.attributes
    return (all(d == 0 for d in (*a.low, *a.high)) and match.x.shape == match.root.shape) or "it pads"


def _reverses_nothing(match: Match) -> bool | str:
    return all(match.x.shape[a] == 1 for a in match.root.attributes.axes) or "it reverses an axis"


def _merged_reverse(match: Match) -> Node:
    outer, inner = match.root.attributes.axes, match.inner.attributes.axes
    return ops.reverse(match.x, axes=tuple(sorted(set(outer) ^ set(inner))))


# --- concat

def _offsets(xs: Sequence[Node], axis: int) -> list[Dim]:
    """Where each operand begins, and where the last one ends."""
    found: list[Dim] = [0]
    for one in xs:
        found.append(found[-1] + one.shape[axis])
    return found


def _covered(match: Match) -> tuple[int, int] | None:
    """The smallest run of operands that holds all the slice takes, if it is not all of them."""
    axis, a = match.inner.attributes.axis, match.root.attributes
    offsets = _offsets(match.xs, axis)
    first = max((i for i in range(len(match.xs)) if is_nonnegative(a.starts[axis] - offsets[i])), default=0)
    last = min((i for i in range(first, len(match.xs)) if is_nonnegative(offsets[i + 1] - a.stops[axis])),
               default=None)
    if last is None or (first, last) == (0, len(match.xs) - 1):
        return None
    return first, last


def _slice_of_few(match: Match) -> Node:
    axis, a = match.inner.attributes.axis, match.root.attributes
    covered = _covered(match)
    assert covered is not None
    first, last = covered
    begin = _offsets(match.xs, axis)[first]
    few = match.xs[first:last + 1]
    source = few[0] if len(few) == 1 else ops.concat(*few, axis=axis)
    starts, stops = list(a.starts), list(a.stops)
    starts[axis], stops[axis] = starts[axis] - begin, stops[axis] - begin
    return ops.slice(source, starts=tuple(starts), stops=tuple(stops), steps=a.steps)


def _follows(left: Node, right: Node, axis: int) -> bool:
    """Whether two operands are neighbouring slices of one tensor, alike along all other axes."""
    if not left.op.name == right.op.name == "slice" or left.operands != right.operands:
        return False
    a, b = left.attributes, right.attributes
    if any(step != 1 for step in a.steps + b.steps):
        return False
    others = [(s, t) for i, (s, t) in enumerate(zip(zip(a.starts, a.stops), zip(b.starts, b.stops)))
              if i != axis]
    return a.stops[axis] == b.starts[axis] and all(s == t for s, t in others)


def _joined(left: Node, right: Node, axis: int) -> Node:
    stops = list(left.attributes.stops)
    stops[axis] = right.attributes.stops[axis]
    return ops.slice(left.operands[0], starts=left.attributes.starts, stops=tuple(stops),
                     steps=left.attributes.steps)


def _joined_slices(xs: Sequence[Node], axis: int) -> list[Node]:
    parts = [xs[0]]
    for one in xs[1:]:
        if _follows(parts[-1], one, axis):
            parts[-1] = _joined(parts[-1], one, axis)
        else:
            parts.append(one)
    return parts


def _has_neighbours(match: Match) -> bool | str:
    axis = match.root.attributes.axis
    found = any(_follows(a, b, axis) for a, b in zip(match.xs, match.xs[1:]))
    return found or "no two operands side by side are neighbouring slices of one tensor"


def _concat(parts: Sequence[Node], axis: int) -> Node:
    return parts[0] if len(parts) == 1 else ops.concat(*parts, axis=axis)


def _flattened(match: Match) -> Node:
    axis = match.root.attributes.axis
    parts = [p for o in match.xs for p in (o.operands if _is_concat(o, axis) else (o,))]
    return ops.concat(*parts, axis=axis)


def _is_concat(node: Node, axis: int) -> bool:
    return node.op.name == "concat" and node.attributes.axis == axis


def _nonempty(match: Match) -> list[Node]:
    return [o for o in match.xs if o.shape[match.root.attributes.axis] != 0]


def _some_are_empty(match: Match) -> bool | str:
    return 0 < len(_nonempty(match)) < len(match.xs) or "no operand is empty"


def _has_inner_concat(match: Match) -> bool | str:
    found = any(_is_concat(o, match.root.attributes.axis) for o in match.xs)
    return found or "no operand is a concat along this axis"


MOVEMENT = (
    # --- reshape
    rule("reshape_to_own", ops.reshape(x), x, when=_same_shape),
    rule("reshape_reshape", ops.reshape(ops.reshape(x)), _to_shape_of_root),
    rule("reshape_of_one_broadcast", ops.reshape(ops.broadcast_to(x)), _repeated, when=_one_element),

    # --- transpose
    rule("transpose_in_order", ops.transpose(x), _to_shape_of_root, when=_keeps_order,
         relies_on="a reshape moves nothing"),
    rule("transpose_transpose", ops.transpose(_transposed), _merged_transpose, relies_on="(A^T)^T = A"),
    rule("transpose_of_one_broadcast", ops.transpose(ops.broadcast_to(x)), _repeated, when=_one_element),
    rule("transposes_around_pointwise", ops.transpose(any_op("pointwise", "xs",
                                                             among="transpose").named("middle")),
         when=_transposes_cancel,
         result=lambda m: _under_transposes(m.middle)),
    rule("hoist_transposes", any_op("pointwise", "xs", among="transpose"), _hoist_transpose,
         when=_all_transposed,
         relies_on="an elementwise op does not care where its elements lie"),

    # --- broadcast_to
    rule("broadcast_to_own", ops.broadcast_to(x), x, when=_same_shape),
    rule("broadcast_broadcast", ops.broadcast_to(ops.broadcast_to(x)),
         lambda m: ops.broadcast_to(m.x, shape=m.root.shape)),
    rule("broadcast_adds_ones", ops.broadcast_to(x), _to_shape_of_root, when=_adds_ones_only),
    rule("drop_broadcast", any_op("pointwise", "xs", among="broadcast_to"),
         lambda m: without_broadcasts(m.root),
         when=_broadcasts_by_itself),
    rule("broadcast_last", any_op("pointwise", "xs", among="broadcast_to"), _broadcast_after,
         when=_broadcasts_late,
         relies_on="compute once what is repeated"),

    # --- slice
    rule("slice_of_all", ops.slice(x), x, when=_takes_all),
    rule("slice_slice", ops.slice(_sliced), _merged_slice, when=_is_static_slice),
    rule("slice_concat", ops.slice(ops.concat(xs).named("inner")), _slice_of_few,
         when=lambda m: _covered(m) is not None or "it takes of every operand"),
    rule("slice_pad", ops.slice(ops.pad(x, fill).named("inner")), _slice_under_pad, when=_inside_pad),

    # --- concat
    rule("concat_of_one", ops.concat(x), x,
         when=lambda m: len(m.root.operands) == 1 or "it has several operands"),
    rule("concat_slices", ops.concat(xs), when=_has_neighbours, relies_on="what was split is whole again",
         result=lambda m: _concat(_joined_slices(m.xs, m.root.attributes.axis), m.root.attributes.axis)),
    rule("concat_concat", ops.concat(xs), _flattened, when=_has_inner_concat),
    rule("concat_empty", ops.concat(xs), lambda m: _concat(_nonempty(m), m.root.attributes.axis),
         when=_some_are_empty),

    # --- pad, reverse
    rule("pad_nothing", ops.pad(x, fill), x, when=_pads_nothing),
    rule("reverse_nothing", ops.reverse(x), x, when=_reverses_nothing),
    rule("reverse_reverse", ops.reverse(ops.reverse(x).named("inner")), _merged_reverse),
)
