"""Operators that move elements, or make tensors of sizes: Reshape, Slice, Concat, Pad, Shape, Range..."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import (
    MOST_COMPUTED,
    Value,
    as_node,
    computed,
    known,
    make_source,
    size_node,
    sizes_value,
)
from planish.capture.onnx.symbols import LONGEST
from planish.errors import TypeRuleError
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import INT64, Dim, Shape, broadcast_shapes, element_count, is_static
from planish.types.dim import is_nonnegative, maximum, minimum

# --- sizes of a tensor

@translates("Shape")
def shape(call: Call) -> Value:
    start, end = call.attribute("start", 0), call.attribute("end")
    return sizes_value(call.shape()[slice(start, end)])


@translates("Size")
def size(call: Call) -> Value:
    return sizes_value(element_count(call.shape()))


# --- the same elements in order

def reshaped(x: Node, shape: Sequence[Dim]) -> Node:
    return x if tuple(shape) == x.shape else ops.reshape(x, shape=tuple(shape))


@translates("Reshape")
def reshape(call: Call) -> Node:
    elements = call.known_sizes(1, "shape")
    if elements is None:
        given = [None if d in (0, -1) else d for d in call.sizes_if_known(1, "shape")]
        return call.moved("reshape", [call[0], call[1]], given, copy_zero=not call.flag("allowzero"))
    wanted = list(elements)
    if not call.flag("allowzero"):
        if any(d == 0 for d in wanted[call.rank():]):
            call.invalid(f"size 0 at {wanted} copies a size of its operand, whose shape is {call.shape()}")
        wanted = [call.shape()[i] if is_static(d) and d == 0 else d for i, d in enumerate(wanted)]
    return reshaped(call[0], _inferred(call, wanted))


def _inferred(call: Call, wanted: list[Dim]) -> list[Dim]:
    """The shape with -1 replaced by what makes the element counts equal."""
    open_at = [i for i, d in enumerate(wanted) if is_static(d) and d == -1]
    if not open_at:
        return wanted
    rest = element_count([d for i, d in enumerate(wanted) if i not in open_at])
    total = element_count(call.shape())
    if len(open_at) > 1 or (is_static(rest) and rest == 0):
        call.invalid(f"shape {wanted} leaves the size of -1 open")
    wanted[open_at[0]] = total // rest
    if total // rest * rest != total:
        call.invalid(f"shape {wanted} does not hold the {total} elements of shape {call.shape()}")
    return wanted


@translates("Flatten")
def flatten(call: Call) -> Node:
    axis = call.attribute("axis", 1)
    axis = axis + call.rank() if axis < 0 else axis
    if not 0 <= axis <= call.rank():
        call.invalid(f"axis {axis} is not between 0 and {call.rank()}")
    return reshaped(call[0], (element_count(call.shape()[:axis]), element_count(call.shape()[axis:])))


@translates("Squeeze")
def squeeze(call: Call) -> Node:
    if call.has(1) and call.known_sizes(1, "axes") is None:
        return call.moved("squeeze", call.nodes(), [None] * (call.rank() - call.count(1, "axes")))
    given = call.axes(1)
    axes = [i for i, d in enumerate(call.shape()) if d == 1] if given is None else given
    for axis in axes:
        if (size := call.shape()[axis]) != 1:
            raise TypeRuleError(f"axis {axis} of shape {call.shape()} is not of size 1", sizes=(size, 1))
    return reshaped(call[0], [d for i, d in enumerate(call.shape()) if i not in axes])


@translates("Unsqueeze")
def unsqueeze(call: Call) -> Node:
    if call.has(1) and call.known_sizes(1, "axes") is None:
        return call.moved("unsqueeze", call.nodes(), [None] * (call.rank() + call.count(1, "axes")))
    count = len(call.integers(1, "axes") if call.has(1) else call.attribute("axes", ()))
    rank = call.rank() + count
    axes = call.axes(1, rank) or ()
    if len(set(axes)) != count:
        call.invalid(f"axes {axes} name one axis twice")
    left = iter(call.shape())
    return reshaped(call[0], [1 if i in axes else next(left) for i in range(rank)])


# --- other orders and places

@translates("Transpose")
def transpose(call: Call) -> Node:
    axes = tuple(call.attribute("perm", tuple(reversed(range(call.rank())))))
    return call[0] if axes == tuple(range(call.rank())) else ops.transpose(call[0], axes=axes)


@translates("Expand")
def expand(call: Call) -> Node:
    wanted = call.known_sizes(1, "shape")
    if wanted is None:
        return _expanded_at_run_time(call)
    return broadcast(call[0], broadcast_shapes(call.shape(), wanted))


def _expanded_at_run_time(call: Call) -> Node:
    """Where no size of the operand is open, a broadcast to the sizes that a host function says."""
    x, count = call[0], call.count(1, "shape")
    if all(map(is_static, x.shape)):
        sizes = call.said("expanded_sizes", [call[1]], [LONGEST] * max(x.ndim, count), shape=x.shape)
        padded = (1,) * (len(sizes) - x.ndim) + x.shape
        return broadcast(x, [d if n == 1 else n for d, n in zip(sizes, padded)])
    return call.moved("expand", [x, call[1]], [None] * max(x.ndim, count))


def broadcast(x: Node, shape: Sequence[Dim]) -> Node:
    return x if tuple(shape) == x.shape else ops.broadcast_to(x, shape=tuple(shape))


@translates("Tile")
def tile(call: Call) -> Node:
    """x[i] -> x[1, i], broadcast along the new axes, which are then merged."""
    repeats = call.sizes_at_run_time(1, "repeats")
    pairs = list(zip(repeats, call.shape(), strict=True))
    split = reshaped(call[0], [d for _, n in pairs for d in (1, n)])
    stretched = broadcast(split, [d for r, n in pairs for d in (r, n)])
    return reshaped(stretched, [r * n for r, n in pairs])


@translates("Concat")
def concat(call: Call) -> Node:
    axis = call.axis(default=1)
    return call[0] if len(call.operands) == 1 else ops.concat(*call.nodes(), axis=axis)


@translates("DepthToSpace")
def depth_to_space(call: Call) -> Node:
    n, c, h, w = call.shape()
    b = call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "DCR":
        split, axes = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, axes = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    return reshaped(ops.transpose(reshaped(call[0], split), axes=axes), (n, c // (b * b), h * b, w * b))


@translates("SpaceToDepth")
def space_to_depth(call: Call) -> Node:
    n, c, h, w = call.shape()
    b = call.attribute("blocksize")
    split = reshaped(call[0], (n, c, h // b, b, w // b, b))
    axes = (0, 3, 5, 1, 2, 4) if call.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshaped(ops.transpose(split, axes=axes), (n, c * b * b, h // b, w // b))


# --- slices

def sliced(x: Node, axis: int, start: Dim, stop: Dim, step: int = 1) -> Node:
    """x[start:stop:step] along one axis; 0 <= start <= stop <= size."""
    full = tuple(x.shape)
    if start == 0 and stop == full[axis] and step == 1:
        return x
    starts: list[Dim] = [0] * x.ndim
    stops, steps = list(full), [1] * x.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return ops.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


@translates("Slice")
def slice_by_attributes(call: Call) -> Node:
    starts, ends = call.attribute("starts"), call.attribute("ends")
    axes = call.axes(99) or tuple(range(len(starts)))
    return _sliced(call, axes, starts, ends, [1] * len(starts))


@translates("Slice", since=10)
def slice_(call: Call) -> Node:
    known_there = [not call.has(i) or call.known_sizes(i, "bounds") is not None for i in (1, 2, 3, 4)]
    count = call.count(1, "starts")
    if not all(known_there[2:]):
        axes_node = call[3] if call.has(3) else constant(np.arange(count))
        steps_node = call[4] if call.has(4) else constant(np.ones(count, np.int64))
        return call.moved("slice", [call[0], call[1], call[2], axes_node, steps_node], [None] * call.rank())
    axes = call.axes(3) or tuple(range(count))
    steps = call.integers(4, "steps") if call.has(4) else [1] * count
    if all(known_there):
        return _sliced(call, axes, call.sizes(1, "starts"), call.sizes(2, "ends"), steps)
    return _sliced_at_run_time(call, axes, steps)


def _sliced_at_run_time(call: Call, axes: Sequence[int], steps: Sequence[int]) -> Node:
    """By first elements and lengths that a host function says, counted in the direction of each step."""
    x = call[0]
    sizes = [x.shape[a] for a in axes]
    said = call.said("slice_spans", [call[1], call[2]], [d for n in sizes for d in (n, n)],
                     sizes=tuple(sizes), steps=tuple(steps))
    for axis, step, first, length in zip(axes, steps, said[::2], said[1::2], strict=True):
        x = x if step > 0 else ops.reverse(x, axes=(axis,))
        x = sliced(sliced(x, axis, first, first + length), axis, 0, length, abs(step))
    return x


def _sliced(
    call: Call, axes: Sequence[int], starts: Sequence[Dim], ends: Sequence[Dim], steps: Sequence[int]
) -> Node:
    x = call[0]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            call.invalid("a step of 0")
        x = _forward(x, axis, start, end, step) if step > 0 else _backward(x, axis, start, end, -step)
    return x


def _forward(x: Node, axis: int, start: Dim, end: Dim, step: int) -> Node:
    size = x.shape[axis]
    first, last = _clamped(start, size), _clamped(end, size)
    return sliced(x, axis, first, last if last == size else maximum(last, first), step)


def _backward(x: Node, axis: int, start: Dim, end: Dim, step: int) -> Node:
    """From start down to above end: forward on the reversed axis, where element i lies at size - 1 - i."""
    size = x.shape[axis]
    first, last = size - _through(start, size), size - _through(end, size)
    return sliced(
        ops.reverse(x, axes=(axis,)), axis, first, last if last == size else maximum(last, first), step
    )


def _clamped(position: Dim, size: Dim) -> Dim:
    """A slice bound as a number of elements in [0, size]; negative ones count from the end.

    No axis is as long as LONGEST: exporters write that, or the greatest int32 or int64, for "to the end".
    """
    if isinstance(position, int) and abs(position) >= LONGEST:
        return size if position > 0 else 0
    return _within(position if is_nonnegative(position) else position + size, size)


def _through(position: Dim, size: Dim) -> Dim:
    """How many elements lie up to and including a position."""
    if isinstance(position, int) and abs(position) >= LONGEST:
        return size if position > 0 else 0
    return _within(position + 1 if is_nonnegative(position) else position + 1 + size, size)


def _within(count: Dim, size: Dim) -> Dim:
    return maximum(0, minimum(count, size))


@translates("Split")
def split(call: Call) -> list[Node]:
    axis = call.axis()
    whole, count = call.shape()[axis], len(call.outputs)
    given = _split_sizes(call, whole) if call.has(1) else call.attribute("split")
    parts = _even_parts(call, whole, call.attribute("num_outputs", count)) if given is None else given
    if len(parts) != count or sum(parts) != whole:
        call.invalid(f"parts {tuple(parts)} of {whole} elements for {count} outputs")
    ends = np.cumsum(np.array([0, *parts], dtype=object))
    return [sliced(call[0], axis, start, stop) for start, stop in zip(ends, ends[1:])]


def _split_sizes(call: Call, whole: Dim) -> Sequence[Dim]:
    """Sizes that depend on values are taken to fill the whole, which the host function checks."""
    elements = call.known_sizes(1, "split")
    if elements is not None:
        return elements
    first = call.said("split_sizes", [call[1]], [whole] * (call.count(1, "split") - 1), whole=whole)
    return [*first, whole - sum(first)]


def _even_parts(call: Call, whole: Dim, count: int) -> list[Dim]:
    """Equal parts; where they do not come out even, the last is smaller."""
    part = (whole + count - 1) // count
    last = whole - part * (count - 1)
    if not is_nonnegative(last):
        call.needs_size(f"{whole} elements in {count} parts", whole)
    return [part] * (count - 1) + [last]


# --- padding

@translates("Pad")
def pad_by_attributes(call: Call) -> Node:
    fill = number(call.attribute("value", 0.0), call.dtype(0))
    return _padded(call, tuple(range(call.rank())), call.attribute("pads"), fill)


@translates("Pad", since=11)
def pad(call: Call) -> Node:
    fill = ops.reshape(call[2] if call.has(2) else number(0, call.dtype(0)), shape=())
    pads = call.known_sizes(1, "pads")
    if pads is None or (call.has(3) and call.known_sizes(3, "axes") is None):
        return _padded_at_run_time(call, fill)
    return _padded(call, call.axes(3) or tuple(range(call.rank())), pads, fill)


def _padded_at_run_time(call: Call, fill: Node) -> Node:
    """By what a host function says of each axis: where what is kept begins, how much that is, and how much
    comes before and after it."""
    x = call[0]
    is_known = not call.has(3) or call.known_sizes(3, "axes") is not None
    axes = (call.axes(3) if is_known else None) or tuple(range(x.ndim))
    order = constant(np.arange(len(axes))) if is_known else call[3]
    sizes = tuple(x.shape[a] for a in axes)
    most = [d for n in sizes for d in (n, n, LONGEST, LONGEST)]
    said = call.said("pad_spans", [call[1], order], most, sizes=sizes)
    for axis, first, length in zip(axes, said[::4], said[1::4], strict=True):
        x = sliced(x, axis, first, first + length)
    return _grown(call, x, axes, said[2::4], said[3::4], fill)


def _padded(call: Call, axes: Sequence[int], pads: Sequence[Dim], fill: Node) -> Node:
    low, high = list(pads[:len(axes)]), list(pads[len(axes):])
    x = call[0]
    for axis, before, after in zip(axes, low, high, strict=True):
        x = _cropped(x, axis, before, after)
    low, high = ([d if is_nonnegative(d) else 0 for d in part] for part in (low, high))
    return _grown(call, x, axes, low, high, fill)


def _grown(call: Call, x: Node, axes: Sequence[int], low: Sequence[Dim], high: Sequence[Dim],
           fill: Node) -> Node:
    mode = call.attribute("mode", "constant")
    if mode == "constant":
        return constant_pad(x, dict(zip(axes, zip(low, high))), fill)
    for axis, before, after in zip(axes, low, high):
        x = _mirrored(call, x, axis, before, after, mode)
    return x


def constant_pad(x: Node, amounts: dict[int, tuple[Dim, Dim]], fill: Node) -> Node:
    """Pad axes by (before, after), both at least 0."""
    low = tuple(amounts.get(i, (0, 0))[0] for i in range(x.ndim))
    high = tuple(amounts.get(i, (0, 0))[1] for i in range(x.ndim))
    nothing = all(d == 0 for d in low + high)
    return x if nothing else ops.pad(x, fill, low=low, high=high)


def _cropped(x: Node, axis: int, before: Dim, after: Dim) -> Node:
    """Negative padding takes elements away."""
    start = before * -1 if not is_nonnegative(before) else 0
    stop = x.shape[axis] + (after if not is_nonnegative(after) else 0)
    return sliced(x, axis, start, stop)


def _require_computable(call: Call, count: int) -> None:
    if count > MOST_COMPUTED:
        call.refuse(
            f"{count} elements that are to be computed when the model is read; the most is {MOST_COMPUTED}"
        )


def _mirrored(call: Call, x: Node, axis: int, before: Dim, after: Dim, mode: str) -> Node:
    """Padding by the tensor's own elements: their indices are those NumPy's pad of the same mode gives."""
    if mode not in _MIRRORS:
        call.invalid(f"mode {mode!r} is not one of constant, {', '.join(_MIRRORS)}")
    size = x.shape[axis]
    if size == 0:
        call.invalid(f"mode {mode!r} on axis {axis}, which is empty")
    if is_static(before) and is_static(after) and before == after == 0:
        return x
    at = make_source("iota", shape=(size + before + after,), axis=0, dtype=INT64) - size_node(before, INT64)
    return ops.take(x, _MIRRORS[mode](at, size), axis=axis)


def _reflected(at: Node, size: Dim) -> Node:
    """Back and forth: with period 2 (size - 1)."""
    period = size_node(maximum(2 * size - 2, 1), INT64)
    place = ops.mod(at, period)
    return ops.minimum(place, period - place)


_MIRRORS: dict[str, Callable[[Node, Dim], Node]] = {
    "reflect": _reflected,
    "edge": lambda at, size: ops.maximum(ops.minimum(at, size_node(size - 1, INT64)), 0),
    "wrap": lambda at, size: ops.mod(at, size_node(size, INT64)),
}


# --- tensors made of sizes

@translates("Constant")
def constant_(call: Call) -> Node:
    """The attribute's name says what it holds: a tensor, or numbers of one dtype."""
    dtypes = {"value": None, "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
              "value_floats": np.float32, "value_string": object, "value_strings": object}
    held = [name for name in call.attributes if name in dtypes]
    if len(held) != 1:
        names = ", ".join(call.attributes) or "no attribute"
        call.refuse(f"a constant of {names}", "planish takes dense numeric tensors")
    return constant(np.asarray(call.attributes[held[0]], dtypes[held[0]]))


@translates("ConstantOfShape")
def constant_of_shape(call: Call) -> Node:
    value = call.attribute("value", np.zeros(1, np.float32))
    return broadcast(constant(value.reshape(())), call.sizes_at_run_time(0, "shape"))


@translates("EyeLike")
def eye_like(call: Call) -> Node:
    dtype = call.dtype_attribute("dtype") if call.attribute("dtype") else call.dtype(0)
    rows, columns = positions(call.shape(), call.attribute("k", 0))
    return cast(ops.eq(rows, columns), dtype)


def positions(shape: Shape, offset: int = 0) -> tuple[Node, Node]:
    """int64 row numbers plus `offset`, and column numbers, of the last two axes."""
    plane = tuple(shape[-2:])
    rows = make_source("iota", shape=plane, axis=0, dtype=INT64)
    return rows + offset, make_source("iota", shape=plane, axis=1, dtype=INT64)


@translates("Trilu")
def trilu(call: Call) -> Node:
    x = call[0]
    rows, columns = positions(x.shape)
    if call.has(1):
        rows = rows + ops.reshape(call[1], shape=())
    keep = ops.ge(columns, rows) if call.flag("upper", True) else ops.le(columns, rows)
    return ops.select(keep, x, number(0, x.dtype))


@translates("Range")
def range_(call: Call) -> Value:
    """start + i * delta."""
    if not call.dtype(0).is_float and all(known(v) is not None for v in call.operands):
        return _range_of_sizes(call)
    scalars = [computed(call[i]) for i in range(3)]
    start, limit, delta = (None if a is None else a.reshape(())[()] for a in scalars)
    if start is None or limit is None or delta is None:
        return _range_at_run_time(call)
    count = max(0, int(np.ceil((limit - start) / delta)))
    _require_computable(call, count)
    dtype = call.dtype(0).numpy
    return constant(np.asarray(start + np.arange(count, dtype=dtype) * delta, dtype))


def _range_of_sizes(call: Call) -> Node:
    (start,), (limit,), (delta,) = (call.sizes(i, what) for i, what in enumerate(("start", "limit", "delta")))
    if not isinstance(delta, int) or delta == 0:
        call.refuse(f"a delta of {delta}")
    length: Dim = maximum(
        0, (limit - start + delta - 1) // delta if delta > 0 else (start - limit - delta - 1) // -delta
    )
    steps = make_source("iota", shape=(length,), axis=0, dtype=call.dtype(0))
    return steps * delta + as_node(sizes_value(start, call.dtype(0)))


def _range_at_run_time(call: Call) -> Node:
    length = call.said("range_length", call.nodes(), [LONGEST])
    start, delta = (ops.reshape(call[i], shape=()) for i in (0, 2))
    return cast(make_source("iota", shape=length, axis=0, dtype=INT64), start.dtype) * delta + start
