"""The loop nest of one root: which axes can be shared with others, and the stages that compute and store it.

A root has a space: its `kept` axes, which index its buffer, and (of reductions, scans, sorts) further axes
inside. A group of roots that shares its first p axes makes one kernel (fuse.py). `write` gives the stages of
a root for given shared index values.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from planish.errors import UnsupportedOp
from planish.ir.node import Node
from planish.schedule.attention import ATTENTION, Tile, batch_rank, write_attention
from planish.schedule.kernel import Axis, Buffer, Const, Index, Kernel, Result, Scalar, Sort, Stage, Store
from planish.schedule.scalars import (
    Point,
    Scalars,
    apply,
    both,
    cast_to,
    clamped,
    has_index_map,
    splat_of,
    wrapped_signed,
)
from planish.types import BOOL, INT64, Dim, DType, Shape, is_static
from planish.types.dim import is_nonnegative

COMBINE = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "maximum", "reduce_min": "minimum",
           "reduce_any": "bitwise_or", "reduce_all": "bitwise_and",
           "cumsum": "add", "cumprod": "mul", "cummax": "maximum", "cummin": "minimum"}
WINDOW = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
UPDATE = {"none": "", "add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def row_axis(root: Node) -> int | None:
    """The axis of a scan or sort, which one point of the shared axes has whole."""
    op = root.operands[0] if root.op.name == "item" else root
    whole = op.op.has("scan") or op.op.name in ("sort", "argsort", "top_k")
    return op.attributes.axis if whole else None


def has_border(root: Node) -> bool:
    """Whether a root is another value with a border of one constant around it: what computes the value stores
    it inside, and a kernel of its own fills the border (`border_of`)."""
    if root.op.name != "pad" or splat_of(root.operands[1]) is None:
        return False
    a = root.attributes
    return not any(a.interior) and all(map(is_nonnegative, (*a.low, *a.high)))


def kept_axes(root: Node) -> Shape:
    """The axes of a root that can be shared: one point of them owns one piece of its buffer."""
    if root.op.name in ATTENTION:
        return root.shape[:batch_rank(root)]
    return root.operands[0].shape if has_border(root) else _without(root.shape, row_axis(root))


def _without(index: tuple, axis: int | None) -> tuple:
    return index if axis is None else (*index[:axis], *index[axis + 1:])


def parted(root: Node, index: tuple, rank: int) -> tuple[tuple, tuple]:
    """An index (or shape) of a root's buffer: its entries for the first `rank` shared loops, and the rest."""
    axis = row_axis(root)
    kept, count = _without(index, axis), lead(root, rank)
    return kept[:count], kept[count:] if axis is None else (*kept[count:], index[axis])


def fixed_rank(root: Node) -> int | None:
    """How many axes must be shared, those of size 1 not counted; None when any prefix will do (maps)."""
    op = root.op.name
    if op == "concat":
        return len(proper(root.shape[:root.attributes.axis]))
    if op in ("scatter_along", "scatter_nd"):
        return 0
    if has_border(root):
        return len(proper(kept_axes(root)))
    if has_index_map(root) or op in ("input", "constant"):
        return None
    return len(proper(kept_axes(root)))


def proper(shape: Shape) -> Shape:
    """The axes that are loops: those of size 1 are not."""
    return tuple(d for d in shape if d != 1)


def lead(root: Node, rank: int) -> int:
    """How many of a root's kept axes its first `rank` loops stand for."""
    if root.op.name == "concat":
        return root.attributes.axis
    if is_serial(root):
        return 0
    kept = kept_axes(root)
    if fixed_rank(root) is not None:
        return len(kept)
    counts = [len(proper(kept[:k])) for k in range(len(kept) + 1)]
    return counts.index(rank)


def is_serial(root: Node) -> bool:
    return root.op.name in ("scatter_along", "scatter_nd")


def stored_at(root: Node, shared: Point) -> Point:
    """The index of the root's leading axes that a point of the shared axes owns."""
    point = point_of(root, shared)
    return tuple(i + low for i, low in zip(point, root.attributes.low)) if has_border(root) else point


def border_of(root: Node, buffer: Buffer, name: str) -> Kernel:
    """The kernel that fills the border of a root that has one: along each axis the strips before and after
    the value, across what is left of the axes before it and the whole of those that follow."""
    x, fill = root.operands
    a = root.attributes
    number = splat_of(fill)
    assert number is not None
    kept = next((k for k, ends in enumerate(zip(a.low, a.high)) if ends != (0, 0)), x.ndim)
    shared = tuple(Axis(f"s{k}", d) for k, d in enumerate(x.shape[:kept]) if d != 1)
    points = tuple(0 if d == 1 else Axis(f"s{k}", d).symbol for k, d in enumerate(x.shape[:kept]))
    stages: list[Stage | Sort] = []
    for axis, (low, high) in enumerate(zip(a.low, a.high)):
        for start, size in ((0, low), (low + x.shape[axis], high)):
            if size == 0:
                continue
            spans = ([*zip(a.low[kept:axis], x.shape[kept:axis]), (start, size)]
                     + [(0, d) for d in root.shape[axis + 1:]])
            loops = [Axis(f"a{len(stages)}_{k}", d) for k, (_, d) in enumerate(spans)]
            index = tuple(at if loop.extent == 1 else loop.symbol + at for loop, (at, _) in zip(loops, spans))
            stages.append(Stage(f"t{len(stages)}", tuple(x for x in loops if x.extent != 1),
                                Const(number, root.dtype), root.dtype,
                                store=Store(buffer, (*points, *index))))
    return Kernel(name, shared, tuple(stages), (), (buffer,), ops=("pad",))


@dataclass
class Writer:
    """Writes the stages of a group's roots; `shared` are the index values of the shared axes. `point` is
    where they stand among the axes of the root being written, those of size 1 included. `tiles` are shared
    axes that a root adds to those it may share with others."""

    scalars: Scalars
    shared: Point
    stages: list[Stage | Sort] = field(default_factory=list)
    tiles: list[Axis] = field(default_factory=list)
    axes_made: int = 0
    sorts: dict[Node, int] = field(default_factory=dict)   # top_k -> the stage that has its results
    attentions: list[Tile] = field(default_factory=list)   # written so far
    point: Point = ()

    def axis(self, extent: Dim, made: list[Axis]) -> Dim:
        """A new axis of the stage being written, and its index; none for a single point."""
        if extent == 1:
            return 0
        axis = Axis(f"a{self.axes_made}", extent)
        self.axes_made += 1
        made.append(axis)
        return axis.symbol

    def stage(self, axes: list[Axis], value: Scalar, dtype: DType, **more: Any) -> str:
        name = f"t{len(self.stages)}"
        self.stages.append(Stage(name, tuple(axes), value, dtype, **more))
        return name

    def put(self, root: Node, value: Scalar, index: Point, axes: list[Axis]) -> None:
        """The stage that stores a root's value."""
        self.stage(axes, cast_to(value, root.dtype), root.dtype, store=Store(self.buffer(root), index))

    def buffer(self, root: Node) -> Buffer:
        return self.scalars.buffers[root]

    def write(self, root: Node) -> None:
        if not has_nest(root):
            raise UnsupportedOp(f"{root.op.name} has no native form; run it with strategy='library'")
        self.point = point_of(root, self.shared)
        _WRITERS.get(root.op.name, _map)(self, root)


def has_nest(node: Node) -> bool:
    """Whether loops can compute a node, as a root or inside another's."""
    return node.op.name in (*_WRITERS, "input", "constant", "top_k") or has_index_map(node)


def point_of(root: Node, shared: Point) -> Point:
    """The index of the root's leading axes at a point of the shared axes."""
    values = iter(shared)
    return tuple(0 if d == 1 else next(values) for d in kept_axes(root)[:lead(root, len(shared))])


def _map(w: Writer, root: Node) -> None:
    axes: list[Axis] = []
    rest = [w.axis(d, axes) for d in root.shape[len(w.point):]]
    index = (*w.point, *rest)
    stored = root.op.name in ("input", "constant")
    value = w.scalars.at(root, index) if stored else w.scalars.meaning(root, index)
    w.put(root, value, index, axes)


def _pad(w: Writer, root: Node) -> None:
    if not has_border(root):
        _map(w, root)
        return
    value = w.scalars.at(root.operands[0], w.point)
    w.put(root, value, stored_at(root, w.shared), [])


def _reduce(w: Writer, root: Node) -> None:
    x, = root.operands
    a = root.attributes
    axes: list[Axis] = []
    kept = iter(w.point)
    index = tuple(w.axis(d, axes) if k in a.axes else next(kept) for k, d in enumerate(x.shape))
    value = w.scalars.at(x, index)
    combine = COMBINE[root.op.name]
    dtype = x.dtype.accumulator
    name = w.stage(axes, cast_to(value, dtype), dtype, combine=combine)
    w.put(root, Result(name, dtype), w.point, [])


def _dot(w: Writer, root: Node) -> None:
    lhs, rhs = root.operands
    a = root.attributes
    axes: list[Axis] = []
    inner = {k: w.axis(lhs.shape[k], axes) for k in a.lhs_contract}
    batch = w.point[:len(a.lhs_batch)]
    free = iter(w.point[len(a.lhs_batch):])
    known = {**inner, **dict(zip(a.lhs_batch, batch))}
    left = tuple(known[k] if k in known else next(free) for k in range(lhs.ndim))
    contracted = (inner[k] for k in a.lhs_contract)
    known = {**dict(zip(a.rhs_contract, contracted)), **dict(zip(a.rhs_batch, batch))}
    right = tuple(known[k] if k in known else next(free) for k in range(rhs.ndim))
    value = _contract(w, root, axes, left, right)
    if a.alpha != 1:
        value = apply("mul", value, Const(a.alpha, value.dtype))
    w.put(root, value, w.point, [])


def _contract(w: Writer, root: Node, axes: list[Axis], left: Point, right: Point) -> Scalar:
    dtype = root.dtype.accumulator
    x, y = (cast_to(w.scalars.at(n, i), dtype) for n, i in zip(root.operands, (left, right)))
    combine, product = ("bitwise_or", "bitwise_and") if dtype is BOOL else ("add", "mul")
    return Result(w.stage(axes, apply(product, x, y), dtype, combine=combine), dtype)


def _conv(w: Writer, root: Node) -> None:
    """Windows slide over an operand that is already padded (prepare.py); one that is spread is read phase by
    phase (phases.py)."""
    _, kernel = root.operands
    a = root.attributes
    per_group, out_per_group = kernel.shape[1], root.shape[1] // a.groups
    axes: list[Axis] = []
    channel = w.axis(per_group, axes)
    taps = [w.axis(d, axes) for d in kernel.shape[2:]]
    n, o, *place = w.point
    first = o // out_per_group * per_group if a.groups > 1 else 0
    source = [(p * s + t * d - low) // spread for p, s, t, d, (low, _), spread in
              zip(place, a.strides, taps, a.rhs_dilation, a.padding, a.lhs_dilation)]
    w.put(root, _contract(w, root, axes, (n, first + channel, *source), (o, channel, *taps)), w.point, [])


def _window(w: Writer, root: Node) -> None:
    x, = root.operands
    a = root.attributes
    axes: list[Axis] = []
    taps = [w.axis(d, axes) for d in a.window]
    inside: list[Scalar] = []
    source: list[Dim | Scalar] = []
    for i, t, stride, gap, (low, _), size in zip(w.point, taps, a.strides, a.dilation, a.padding, x.shape):
        at = i * stride + t * gap - low
        if not is_nonnegative(at):
            inside.append(apply("ge", Index(at), Const(0, INT64), dtype=BOOL))
        if not is_nonnegative(size - 1 - at):
            inside.append(apply("lt", Index(at), Index(size), dtype=BOOL))
        source.append(clamped(at, size) if inside else at)
    combine = WINDOW[a.kind]
    dtype = x.dtype.accumulator
    value = cast_to(w.scalars.at(x, tuple(source)), dtype)
    if inside:
        value = apply("select", both(inside), value, Const(identity(combine, dtype), dtype), dtype=dtype)
    name = w.stage(axes, value, dtype, combine=combine)
    w.put(root, Result(name, dtype), w.point, [])


def identity(combine: str, dtype: DType) -> float | int | bool:
    """The value that leaves every other unchanged under `combine`."""
    if combine == "add":
        return False if dtype is BOOL else 0
    if combine == "mul":
        return True if dtype is BOOL else 1
    if combine in ("bitwise_or", "bitwise_and"):
        return combine == "bitwise_and"
    lowest = combine == "maximum"
    if dtype is BOOL:
        return not lowest
    if dtype.is_float:
        return float("-inf") if lowest else float("inf")
    if dtype.kind == "uint":
        return 0 if lowest else 2 ** dtype.bits - 1
    return -2 ** (dtype.bits - 1) if lowest else 2 ** (dtype.bits - 1) - 1


def _scan(w: Writer, root: Node) -> None:
    x, = root.operands
    a = root.attributes
    axes: list[Axis] = []
    step = w.axis(root.shape[a.axis], axes)
    i = root.shape[a.axis] - 1 - step if a.reverse else step
    index = (*w.point[:a.axis], i, *w.point[a.axis:])
    dtype = root.dtype.accumulator
    w.stage(axes, cast_to(w.scalars.at(x, index), dtype), dtype, combine=COMBINE[root.op.name],
            store=Store(w.buffer(root), index), running="exclusive" if a.exclusive else "inclusive")


def _sort(w: Writer, root: Node) -> None:
    """sort, argsort, and one item of top_k; the other item joins the same stage."""
    node = root.operands[0] if root.op.name == "item" else root
    x, = node.operands
    a = node.attributes
    descending = a.largest if node.op.name == "top_k" else a.descending

    def at(i: Dim) -> Point:
        return (*w.point[:a.axis], i, *w.point[a.axis:])

    if node not in w.sorts:
        axis = Axis(f"a{w.axes_made}", x.shape[a.axis])
        w.axes_made += 1
        w.sorts[node] = len(w.stages)
        w.stages.append(Sort(f"t{len(w.stages)}", axis, w.scalars.at(x, at(axis.symbol)), descending,
                             root.shape[a.axis], None, None))
    sort = w.stages[w.sorts[node]]
    assert isinstance(sort, Sort)
    store = Store(w.buffer(root), at(sort.axis.symbol))
    positions = node.op.name == "argsort" or (node.op.name == "top_k" and root.attributes.index == 1)
    sort = replace(sort, positions=store) if positions else replace(sort, values=store)
    w.stages[w.sorts[node]] = sort


def _concat(w: Writer, root: Node) -> None:
    axis = root.attributes.axis
    start: Dim = 0
    for operand in root.operands:
        if operand.shape[axis] == 0:
            continue
        axes: list[Axis] = []
        rest = [w.axis(d, axes) for d in operand.shape[axis:]]
        value = w.scalars.at(operand, (*w.point, *rest))
        w.put(root, value, (*w.point, rest[0] + start, *rest[1:]), axes)
        start = start + operand.shape[axis]


def _copy(w: Writer, root: Node, source: Node) -> None:
    axes: list[Axis] = []
    index = tuple(w.axis(d, axes) for d in root.shape)
    w.put(root, w.scalars.at(source, index), index, axes)


def _in_range(i: Scalar, size: Dim) -> Scalar:
    return both([apply("ge", i, Const(0, INT64), dtype=BOOL), apply("lt", i, Index(size), dtype=BOOL)])


def _scatter_along(w: Writer, root: Node) -> None:
    x, where, updates = root.operands
    a = root.attributes
    _copy(w, root, x)
    axes: list[Axis] = []
    index = tuple(w.axis(d, axes) for d in where.shape)
    i = wrapped_signed(w.scalars.at(where, index), x.shape[a.axis])
    target = (*index[:a.axis], i, *index[a.axis + 1:])
    w.stage(axes, w.scalars.at(updates, index), root.dtype, store=Store(
        w.buffer(root), target, UPDATE[a.reduction], _in_range(i, x.shape[a.axis])))


def _scatter_nd(w: Writer, root: Node) -> None:
    x, where, updates = root.operands
    _copy(w, root, x)
    axes: list[Axis] = []
    index = tuple(w.axis(d, axes) for d in updates.shape)
    outer, inner = index[:where.ndim - 1], index[where.ndim - 1:]
    depth = where.shape[-1]
    assert is_static(depth)
    picked = [wrapped_signed(w.scalars.at(where, (*outer, k)), x.shape[k]) for k in range(depth)]
    guard = both([_in_range(i, x.shape[k]) for k, i in enumerate(picked)])
    w.stage(axes, w.scalars.at(updates, index), root.dtype, store=Store(
        w.buffer(root), (*picked, *inner), UPDATE[root.attributes.reduction], guard))


_WRITERS: dict[str, Callable[[Writer, Node], None]] = {
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_any",
                     "reduce_all"), _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _scan),
    **dict.fromkeys(("sort", "argsort", "item"), _sort),
    "dot_general": _dot, **dict.fromkeys(ATTENTION, write_attention), "conv": _conv, "reduce_window": _window,
    "concat": _concat, "pad": _pad, "scatter_along": _scatter_along, "scatter_nd": _scatter_nd,
}

