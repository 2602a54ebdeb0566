"""A node's value at an index, as a scalar expression: the index map of every op that is one.

In: a node and an index into its shape (`Dim`s over loop axes, or scalar expressions for gathers). Out: the
expression, down to loads of materialised buffers. An op that is not here (a reduction, a contraction, a
sort...) is materialised by a kernel of its own and only ever loaded.
"""
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from planish.ir.node import Node
from planish.ops.content import ask, unmoved
from planish.ops.rules import reduced_shape
from planish.schedule.kernel import Apply, Buffer, Const, Index, Load, Scalar
from planish.types import (
    BOOL,
    INT32,
    INT64,
    UINT32,
    UINT64,
    Dim,
    DType,
    Expr,
    Shape,
    Symbol,
    bounds,
    evaluate_dim,
    is_static,
    symbols_of,
)
from planish.types.dim import is_nonnegative, maximum, minimum

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Point = tuple[Dim | Scalar, ...]
SPLAT = 4096  # constants up to this many elements are looked at for one repeated value


def is_dim(index: Dim | Scalar) -> TypeIs[Dim]:
    return isinstance(index, (int, Expr))


def apply(op: str, *args: Scalar, dtype: DType | None = None) -> Scalar:
    return Apply(op, args, dtype or args[0].dtype)


def both(conditions: list[Scalar]) -> Scalar:
    result = conditions[0]
    for c in conditions[1:]:
        result = apply("bitwise_and", result, c)
    return result


def as_scalar(index: Dim | Scalar, dtype: DType = INT64) -> Scalar:
    return Index(index, dtype) if is_dim(index) else index


def cast_to(x: Scalar, dtype: DType) -> Scalar:
    if x.dtype is dtype:
        return x
    if isinstance(x, Index):
        return Index(x.dim, dtype)
    return Apply("cast", (x,), dtype)


def splat_of(node: Node) -> float | int | bool | None:
    """The number every element of a constant node is, if there is one."""
    if node.op.name != "constant":
        return None
    size = node.attributes.type.size
    return ask("uniform", unmoved(node.attributes)) if 0 < size <= SPLAT else None


class Scalars:
    """Writes expressions. `buffers` has the materialised nodes; `views` collects buffers that look at
    another's memory in another shape (view name -> name of the buffer it looks at). Reshapes of the nodes in
    `indexed` are written as index maps instead, so that one can see which of their points are read."""

    def __init__(self, buffers: dict[Node, Buffer], indexed: frozenset[Node] = frozenset()):
        self.buffers, self.indexed = buffers, indexed
        self.views: dict[str, str] = {}
        self._view_buffers: dict[tuple[str, Shape], Buffer] = {}
        self._memo: dict[tuple[Node, Point], Scalar] = {}
        self._greatest: dict[Node, int] = {}

    def at(self, node: Node, index: Point) -> Scalar:
        """The value of `node` at `index`; of a materialised node, a load."""
        key = (node, index)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._at(node, index)
        return found

    def _at(self, node: Node, index: Point) -> Scalar:
        number = splat_of(node)
        if number is not None:
            return Const(number, node.dtype)
        buffer = self.buffers.get(node) or self._view(node)
        if buffer is not None:
            return load(buffer, index)
        return self.meaning(node, index)

    def meaning(self, node: Node, index: Point) -> Scalar:
        """The expression of the node's own op, even when the node is materialised (its own kernel writes
        this)."""
        if node.op.has("pointwise"):
            args = tuple(self.at(o, broadcast_index(index, o.shape)) for o in node.operands)
            is_decay = node.op.name == "exp" and _is_below_its_maximum(node.operands[0])
            return Apply("decay" if is_decay else node.op.name, args, node.dtype)
        return INDEX_MAPS[node.op.name](self, node, index)

    def is_within(self, index: Node, size: Dim) -> bool:
        """Whether an index is a constant whose elements are all places of an axis of (at least) this size."""
        if index.op.name != "constant":
            return False
        if index not in self._greatest:
            array = index.attributes.array
            plain = array.size > 0 and array.min() >= 0
            self._greatest[index] = int(array.max()) if plain else 2 ** 63
        return self._greatest[index] < (bounds(size)[0] or 0)

    def _view(self, node: Node) -> Buffer | None:
        """A reshape of materialised row-major memory is the same memory."""
        if node.op.name != "reshape" or node.operands[0] in self.indexed or _is_squeeze(node):
            return None
        base = self.buffers.get(node.operands[0]) or self._view(node.operands[0])
        if base is None or base.order or base.space != "global":
            return None
        key = (self.views.get(base.name, base.name), node.shape)
        if key not in self._view_buffers:
            view = Buffer(f"{key[0]}_as{len(self._view_buffers)}", node.tensor)
            self._view_buffers[key] = view
            self.views[view.name] = key[0]
        return self._view_buffers[key]


def _is_squeeze(node: Node) -> bool:
    """A reshape that only adds or drops axes of size 1: as an index map it costs nothing."""
    old, new = ([d for d in n.shape if d != 1] for n in (node.operands[0], node))
    return old == new


def load(buffer: Buffer, index: Point) -> Load:
    """An element of a buffer; along an axis of size 1 the index is 0."""
    return Load(buffer, tuple(0 if size == 1 else i for i, size in zip(index, buffer.shape, strict=True)))


def broadcast_index(index: Point, shape: Shape) -> Point:
    """The operand's index in an operation that broadcasts it."""
    trailing = index[len(index) - len(shape):]
    return tuple(0 if size == 1 else i for i, size in zip(trailing, shape, strict=True))


# --- reshape: groups of axes with equal products correspond; within a group the index is linearised and split

def reshape_index(index: Point, new: Shape, old: Shape) -> Point:
    """The index into `old` of the element at `index` of `new`, both row-major views of one sequence."""
    if prod(new, start=1) == 0:
        return (0,) * len(old)
    result: list[Dim | Scalar] = []
    for new_axes, old_axes in _matching_groups(new, old):
        part = [index[i] for i in new_axes]
        sizes = [old[i] for i in old_axes]
        if len(part) == 1 and len(sizes) == 1:
            result.append(part[0])
        else:
            linear = _linear(part, [new[i] for i in new_axes])
            result.extend(_split(linear, sizes))
    return tuple(result)


def _matching_groups(new: Shape, old: Shape) -> list[tuple[list[int], list[int]]]:
    """Cut both shapes where their leading products agree; axes of size 1 join the group before them."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(new) or j < len(old):
        left, right = [i] if i < len(new) else [], [j] if j < len(old) else []
        a, b = (new[i] if left else 1), (old[j] if right else 1)
        i, j = i + len(left), j + len(right)
        while a != b:
            if i < len(new) and (j >= len(old) or _smaller(a, b)):
                a, left, i = a * new[i], [*left, i], i + 1
            else:
                b, right, j = b * old[j], [*right, j], j + 1
        groups.append((left, right))
    return groups


def _smaller(a: Dim, b: Dim) -> bool:
    """Whether to grow `a` first: it provably is not above b, or its factors are fewer."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if is_nonnegative(b - a):
        return True
    if is_nonnegative(a - b):
        return False
    return isinstance(a, int)


def _linear(index: list[Dim | Scalar], sizes: list[Dim]) -> Dim | Scalar:
    dims = [i for i in index if is_dim(i)]
    if len(dims) == len(index):
        total: Dim = 0
        for at, size in zip(dims, sizes):
            total = total * size + at
        return total
    value: Scalar = Const(0, INT64)
    for i, size in zip(index, sizes):
        value = apply("add", apply("mul", value, Index(size)), as_scalar(i))
    return value


def _split(linear: Dim | Scalar, sizes: list[Dim]) -> list[Dim | Scalar]:
    result: list[Dim | Scalar] = []
    for position in range(len(sizes)):
        below = prod(sizes[position + 1:], start=1)
        if is_dim(linear):
            i = linear // below
            result.append(i if position == 0 else i % sizes[position])
        else:
            quotient = apply("floor_div", linear, Index(below))
            result.append(quotient if position == 0 else apply("mod", quotient, Index(sizes[position])))
    return result


# --- movement

def _plus(i: Dim | Scalar, other: Dim) -> Dim | Scalar:
    return i + other if is_dim(i) else apply("add", i, Index(other))


def _times(i: Dim | Scalar, factor: Dim) -> Dim | Scalar:
    return i * factor if is_dim(i) else apply("mul", i, Index(factor))


def _reshape(s: Scalars, node: Node, index: Point) -> Scalar:
    operand, = node.operands
    return s.at(operand, reshape_index(index, node.shape, operand.shape))


def _broadcast_to(s: Scalars, node: Node, index: Point) -> Scalar:
    operand, = node.operands
    return s.at(operand, broadcast_index(index, operand.shape))


def _transpose(s: Scalars, node: Node, index: Point) -> Scalar:
    axes = node.attributes.axes
    return s.at(node.operands[0], tuple(index[axes.index(i)] for i in range(len(axes))))


def _slice(s: Scalars, node: Node, index: Point) -> Scalar:
    a = node.attributes
    source = (_plus(_times(i, step), start) for i, start, step in zip(index, a.starts, a.steps))
    return s.at(node.operands[0], tuple(source))


def _reverse(s: Scalars, node: Node, index: Point) -> Scalar:
    return s.at(node.operands[0], tuple(_plus(_times(i, -1), size - 1) if k in node.attributes.axes else i
                                        for k, (i, size) in enumerate(zip(index, node.shape))))


def clamped(i: Dim | Scalar, size: Dim) -> Dim | Scalar:
    """`i` brought into [0, size - 1]; what provably is there stays as it is."""
    if is_dim(i):
        return maximum(minimum(i, size - 1), 0)
    return clamped_scalar(i, size)


def clamped_scalar(i: Scalar, size: Dim) -> Scalar:
    return apply("maximum", apply("minimum", i, Index(size - 1)), Const(0, INT64))


def _within(i: Dim | Scalar, size: Dim) -> list[Scalar]:
    """The conditions for 0 <= i < size that are not known to hold."""
    found = []
    if not is_dim(i) or not is_nonnegative(i):
        found.append(apply("ge", as_scalar(i), Const(0, INT64), dtype=BOOL))
    if not is_dim(i) or not is_nonnegative(size - 1 - i):
        found.append(apply("lt", as_scalar(i), Index(size), dtype=BOOL))
    return found


def _pad(s: Scalars, node: Node, index: Point) -> Scalar:
    x, fill = node.operands
    a = node.attributes
    inside, source = [], []
    for i, low, gap, size in zip(index, a.low, a.interior, x.shape):
        i = _plus(i, low * -1)
        if gap:
            inside.append(apply("eq", _remainder(i, gap + 1), Const(0, INT64), dtype=BOOL))
            i = _quotient(i, gap + 1)
        inside += _within(i, size)
        source.append(clamped(i, size))
    outside = s.at(fill, ())
    if any(size == 0 for size in x.shape):
        return outside
    value = s.at(x, tuple(source))
    return apply("select", both(inside), value, outside, dtype=node.dtype) if inside else value


def _quotient(i: Dim | Scalar, divisor: int) -> Dim | Scalar:
    return i // divisor if is_dim(i) else apply("floor_div", i, Const(divisor, INT64))


def _remainder(i: Dim | Scalar, divisor: int) -> Scalar:
    return Index(i % divisor) if is_dim(i) else apply("mod", i, Const(divisor, INT64))


def _concat(s: Scalars, node: Node, index: Point) -> Scalar:
    axis = node.attributes.axis
    start: Dim = 0
    value: Scalar | None = None
    for operand in node.operands:
        size = operand.shape[axis]
        if size != 0:
            i = clamped(_plus(index[axis], start * -1), size)
            here = s.at(operand, (*index[:axis], i, *index[axis + 1:]))
            reached = apply("ge", as_scalar(index[axis]), Index(start), dtype=BOOL)
            value = here if value is None else apply("select", reached, here, value, dtype=node.dtype)
        start = start + size
    return value if value is not None else Const(0, node.dtype)


def _iota(s: Scalars, node: Node, index: Point) -> Scalar:
    i = index[node.attributes.axis]
    return Index(i, node.dtype) if is_dim(i) else cast_to(i, node.dtype)


def _size(s: Scalars, node: Node, index: Point) -> Scalar:
    return Index(node.attributes.dim, node.dtype)


# --- gathers

def wrapped_signed(i: Scalar, size: Dim) -> Scalar:
    """A run-time index of which a negative one counts from the end; it may still be out of range."""
    i = cast_to(i, INT64)
    negative = apply("lt", i, Const(0, INT64), dtype=BOOL)
    return apply("select", negative, apply("add", i, Index(size)), i, dtype=INT64)


def wrapped(i: Scalar, size: Dim) -> Scalar:
    """A run-time index as the op table has it: negative counts from the end, then clamped into range. In
    int32 as long as it is one and the size is: twice the lanes, and a minimum in one instruction."""
    if i.dtype is not INT32 or not is_static(size) or size >= 2 ** 31:
        return clamped_scalar(wrapped_signed(i, size), size)
    zero, n = Const(0, INT32), Const(int(size), INT32)
    counted = apply("select", apply("lt", i, zero, dtype=BOOL), apply("add", i, n), i, dtype=INT32)
    below = apply("minimum", counted, Const(int(size) - 1, INT32))
    return cast_to(apply("maximum", below, zero), INT64)


def _take(s: Scalars, node: Node, index: Point) -> Scalar:
    x, where = node.operands
    axis = node.attributes.axis
    i = s.at(where, index[axis:axis + where.ndim])
    inside = cast_to(i, INT64) if s.is_within(where, x.shape[axis]) else wrapped(i, x.shape[axis])
    return s.at(x, (*index[:axis], inside, *index[axis + where.ndim:]))


def _take_along(s: Scalars, node: Node, index: Point) -> Scalar:
    x, where = node.operands
    axis = node.attributes.axis
    i = wrapped(s.at(where, index), x.shape[axis])
    return s.at(x, (*index[:axis], i, *index[axis + 1:]))


def _gather_nd(s: Scalars, node: Node, index: Point) -> Scalar:
    x, where = node.operands
    batch = node.attributes.batch_dims
    outer = index[:where.ndim - 1]
    depth = where.shape[-1]
    assert is_static(depth)
    picked = tuple(wrapped(s.at(where, (*outer, k)), x.shape[batch + k]) for k in range(depth))
    return s.at(x, (*outer[:batch], *picked, *index[where.ndim - 1:]))


def start_of(s: Scalars, node: Node, size: Dim, extent: Dim) -> Scalar:
    """A run-time start of a window of `size` in an axis: as an index, then so that the window fits."""
    return clamped_scalar(wrapped_signed(s.at(node, ()), extent), extent - size + 1)


def _dynamic_slice(s: Scalars, node: Node, index: Point) -> Scalar:
    x, *starts = node.operands
    sizes = node.attributes.sizes
    where = tuple(apply("add", start_of(s, start, size, extent), as_scalar(i))
                  for i, start, size, extent in zip(index, starts, sizes, x.shape))
    return s.at(x, where)


# --- random: Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11)

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _philox(counter: Scalar, key: list[Scalar]) -> list[Scalar]:
    """Four 32-bit words for a 64-bit counter."""
    low = cast_to(counter, UINT32)
    high = cast_to(apply("shift_right", counter, Const(32, UINT64)), UINT32)
    words = [low, high, Const(0, UINT32), Const(0, UINT32)]
    for turn in range(10):
        products = [(apply("mul_high", Const(m, UINT32), w), apply("mul", Const(m, UINT32), w))
                    for m, w in zip(_MULTIPLIERS, (words[0], words[2]))]
        (h0, l0), (h1, l1) = products
        words = [apply("bitwise_xor", apply("bitwise_xor", h1, words[1]), key[0]), l1,
                 apply("bitwise_xor", apply("bitwise_xor", h0, words[3]), key[1]), l0]
        if turn < 9:
            key = [apply("add", k, Const(w, UINT32)) for k, w in zip(key, _WEYL)]
    return words


def _dynamic_update_slice(s: Scalars, node: Node, index: Point) -> Scalar:
    x, update, *starts = node.operands
    inside, source = [], []
    for i, start, size, extent in zip(index, starts, update.shape, x.shape):
        at = apply("sub", as_scalar(i), start_of(s, start, size, extent))
        inside += _within(at, size)
        source.append(clamped(at, size))
    if any(size == 0 for size in update.shape):
        return s.at(x, index)
    return apply("select", both(inside), s.at(update, tuple(source)), s.at(x, index), dtype=node.dtype)


def _joined(low: Scalar, high: Scalar) -> Scalar:
    """Two 32-bit words as one of 64."""
    return apply("bitwise_or", apply("shift_left", cast_to(high, UINT64), Const(32, UINT64)),
                 cast_to(low, UINT64))


def _random_bits(s: Scalars, node: Node, index: Point) -> Scalar:
    linear = _linear(list(index), list(node.shape))
    wide = node.dtype is UINT64
    per_counter = 2 if wide else 4
    counter = cast_to(as_scalar(_quotient(linear, per_counter)), UINT64)
    position = cast_to(_remainder(linear, per_counter), INT64)
    key = [s.at(node.operands[0], (k,)) for k in range(2)]
    words = _philox(counter, key)
    if wide:
        words = [_joined(*words[:2]), _joined(*words[2:])]
    value = words[0]
    for k in range(1, len(words)):
        chosen = apply("eq", position, Const(k, INT64), dtype=BOOL)
        value = apply("select", chosen, words[k], value, dtype=node.dtype)
    return value


def _check(s: Scalars, node: Node, index: Point) -> Scalar:
    return s.at(node.operands[0], index)


INDEX_MAPS: dict[str, Callable[[Scalars, Node, Point], Any]] = {
    "reshape": _reshape, "broadcast_to": _broadcast_to, "transpose": _transpose, "slice": _slice,
    "reverse": _reverse, "pad": _pad, "concat": _concat, "iota": _iota, "size": _size, "take": _take,
    "take_along": _take_along, "gather_nd": _gather_nd, "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice, "random_bits": _random_bits, "check": _check,
}


def _is_below_its_maximum(node: Node) -> bool:
    """Whether a node is y - max(y), as what goes into the exp of a softmax: never positive."""
    if node.op.name != "sub":
        return False
    value, most = node.operands
    kept = most.operands[0] if most.op.name == "broadcast_to" else most
    maximum = kept.operands[0] if kept.op.name == "reshape" else kept
    return (maximum.op.name == "reduce_max" and maximum.operands[0] is value
            and kept.shape == reduced_shape(value.shape, maximum.attributes.axes, True))


def has_index_map(node: Node) -> bool:
    """Whether a node's value at an index is an expression of its operands' values."""
    return node.op.has("pointwise") or node.op.name in INDEX_MAPS


UNKNOWN = 32  # what a size counts as that nothing is known about


def hinted(dim: Dim, hint: dict[str, int]) -> int:
    """A size for estimates: at the hinted symbols, else as if an unknown size were UNKNOWN, within its
    range."""
    if isinstance(dim, int):
        return dim
    return evaluate_dim(dim, {n: hint.get(n, _guess(s)) for n, s in symbols_of(dim).items()})


def _guess(symbol: Symbol) -> int:
    high = None if symbol.high is None else bounds(symbol.high)[1]
    return max(symbol.low, UNKNOWN if high is None else min(UNKNOWN, high))
