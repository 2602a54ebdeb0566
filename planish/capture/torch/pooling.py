"""ATen pooling: windows over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped, translates
from planish.capture.torch.movement import positions
from planish.ir import Node
from planish.ops.rules import ops
from planish.ops.window import identity_of
from planish.types import INT64, Dim, element_count, is_static

Pairs = tuple[tuple[Dim, Dim], ...]


def per_axis(values: Any, rank: int) -> tuple[int, ...]:
    """One number for all axes stands for each."""
    given = (values,) if isinstance(values, int) else tuple(values)
    return given * rank if len(given) == 1 else given


def window_padding(
    call: Call,
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
) -> Pairs:
    """(before, behind) per axis, so that as many windows fit as torch has; what is left over is cut by the
    window op itself. ceil_mode puts more behind."""
    pairs = []
    for size, places, k, s, p, d in zip(
        sizes, call.shape[-len(kernel) :], kernel, strides, padding, dilations
    ):
        needed = (places - 1) * s + (k - 1) * d + 1 - size - p
        if not is_static(needed):
            pairs.append((p, p))
        else:
            pairs.append((p, max(p, needed)))
    return tuple(pairs)


def _reduced(
    x: Node,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilations: Sequence[int],
) -> Node:
    before = x.ndim - len(kernel)
    ones = (1,) * before
    return ops.reduce_window(
        x,
        kind=kind,
        window=(*ones, *kernel),
        strides=(*ones, *strides),
        padding=(*((0, 0),) * before, *padding),
        dilation=(*ones, *dilations),
    )


@translates("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    call: Call, x: Node, kernel: Any, strides: Any, padding: Any, dilations: Any, ceil_mode: bool
) -> tuple[Node, Node]:
    """The largest of each window, and where it stands among the elements of its plane."""
    rank = 3 if "3d" in call.overload else 2
    kernel = per_axis(kernel, rank)
    strides = per_axis(strides, rank) if strides else kernel
    padding, dilations = per_axis(padding, rank), per_axis(dilations, rank)
    around = window_padding(call, x.shape[-rank:], kernel, strides, padding, dilations)
    value = _reduced(x, "max", kernel, strides, around, dilations)
    return value, _places(call, x, kernel, strides, around, dilations)


def _places(
    call: Call,
    x: Node,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilations: Sequence[int],
) -> Node:
    """The first place that holds a window's largest: the windows' elements side by side, one slice of the
    padded tensor per place in the window."""
    rank, before = len(kernel), x.ndim - len(kernel)
    places = call.shape[-rank:]
    low = (*[0] * before, *(p[0] for p in padding))
    high = (*[0] * before, *(p[1] for p in padding))
    lowest = identity_of("max", x.dtype)
    inside = ops.pad(x, number(lowest, x.dtype), low=low, high=high)
    flat = reshaped(positions(call, (element_count(x.shape[-rank:]),), 0), x.shape[-rank:])
    index = ops.pad(flat, number(-1, INT64), low=low[before:], high=high[before:])
    values, indices = [], []
    for at in product(*map(range, kernel)):
        values.append(_shifted(inside, at, places, strides, dilations))
        indices.append(_shifted(index, at, places, strides, dilations))
    columns, rows = ops.concat(*values, axis=x.ndim), ops.concat(*indices, axis=rank)
    real = ops.ge(rows, number(0, INT64))
    # Padding never wins: of equal elements the first real one does.
    columns = ops.select(real, columns, number(lowest, x.dtype))
    best = ops.reduce_max(columns, axes=(x.ndim,), keepdims=True)
    hit = ops.bitwise_and(ops.bitwise_or(ops.eq(columns, best), _is_nan(columns)), real)
    chosen = ops.argmax(cast(hit, INT64), axis=x.ndim, keepdims=True)
    spread = broadcast(rows, columns.shape)
    return reshaped(ops.take_along(spread, chosen, axis=x.ndim), call.shape)


def _is_nan(x: Node) -> Node:
    return ops.is_nan(x) if x.dtype.is_float else ops.ne(x, x)


def _shifted(
    x: Node, at: Sequence[int], places: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int]
) -> Node:
    """One place of every window, as a column of its own."""
    before = x.ndim - len(at)
    begin = [a * d for a, d in zip(at, dilations)]
    starts = (*[0] * before, *begin)
    stops = (*x.shape[:before], *(b + (n - 1) * s + 1 for b, n, s in zip(begin, places, strides)))
    cut = ops.slice(x, starts=starts, stops=stops, steps=(*[1] * before, *strides))
    return reshaped(cut, (*cut.shape, 1))


@translates("aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default")
def max_pool_backward(
    call: Call,
    g: Node,
    x: Node,
    kernel: Any,
    strides: Any,
    padding: Any,
    dilations: Any,
    ceil_mode: bool,
    indices: Node,
) -> Node:
    return scattered_to_places(call, g, x, indices, 3 if "3d" in call.overload else 2)


def scattered_to_places(call: Call, g: Node, x: Node, indices: Node, rank: int) -> Node:
    """Each cotangent is added where its largest element stood in its plane."""
    before, wide = x.shape[:-rank], g.dtype.accumulator
    rows = [reshaped(t, (*before, element_count(t.shape[-rank:]))) for t in (cast(g, wide), indices)]
    zeros = broadcast(number(0, wide), (*before, element_count(x.shape[-rank:])))
    written = ops.scatter_along(zeros, rows[1], rows[0], axis=len(before), reduction="add")
    return reshaped(cast(written, call.dtype), x.shape)


# --- averages


@translates("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    call: Call,
    x: Node,
    kernel: Any,
    strides: Any,
    padding: Any,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None = None,
) -> Node:
    rank = int(call.overload[len("aten.avg_pool")])
    kernel = per_axis(kernel, rank)
    strides = per_axis(strides, rank) if strides else kernel
    padding = per_axis(padding, rank)
    wide = cast(x, x.dtype.accumulator)
    around = window_padding(call, x.shape[-rank:], kernel, strides, padding, (1,) * rank)
    total = _reduced(wide, "sum", kernel, strides, around, (1,) * rank)
    count = (
        number(divisor, wide.dtype)
        if divisor
        else _counts(call, wide, kernel, strides, padding, around, count_padding)
    )
    if call.dtype.is_integer:
        return ops.trunc_div(total, count)
    return cast(total / count, call.dtype)


def _counts(
    call: Call,
    x: Node,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    around: Pairs,
    count_padding: bool,
) -> Node:
    """How many elements each window is divided by: those of x, and of its padding where that counts; never
    what ceil_mode adds."""
    rank = len(kernel)
    if all(low == high == 0 for low, high in around) or (
        count_padding and all(p == (q, q) for p, q in zip(around, padding))
    ):
        return number(prod(kernel), x.dtype)
    counted = [p if count_padding else 0 for p in padding]
    ones = broadcast(number(1, x.dtype), [n + 2 * c for n, c in zip(x.shape[-rank:], counted)])
    left = tuple((low - c, high - c) for (low, high), c in zip(around, counted))
    return _reduced(ones, "sum", kernel, strides, left, (1,) * rank)


@translates("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(
    call: Call,
    g: Node,
    x: Node,
    kernel: Any,
    strides: Any,
    padding: Any,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Node:
    """Every element of a window gets the window's share."""
    rank = int(call.overload[len("aten.avg_pool")])
    kernel = per_axis(kernel, rank)
    strides = per_axis(strides, rank) if strides else kernel
    padding, ones = per_axis(padding, rank), (1,) * rank
    sizes, places = x.shape[-rank:], g.shape[-rank:]
    if not all(map(is_static, (*sizes, *places))):
        call.refuse("the gradient of an average over symbolic sizes is not supported")
    around = tuple(
        (p, max(p, (n - 1) * s + k - size - p))
        for size, n, k, s, p in zip(sizes, places, kernel, strides, padding)
    )
    wide = cast(g, g.dtype.accumulator)
    count = (
        number(divisor, wide.dtype)
        if divisor
        else _counts(call, wide_like(x, wide), kernel, strides, padding, around, count_padding)
    )
    before = x.ndim - rank
    spread = ops.pad(
        wide / count,
        number(0, wide.dtype),
        low=(0,) * x.ndim,
        high=(0,) * x.ndim,
        interior=(*[0] * before, *(s - 1 for s in strides)),
    )
    full = tuple(
        (k - 1, max(0, size + low - ((n - 1) * s + 1)))
        for k, size, (low, _), n, s in zip(kernel, sizes, around, places, strides)
    )
    total = _reduced(spread, "sum", kernel, ones, full, ones)
    for axis, (size, (low, _)) in enumerate(zip(sizes, around), before):
        starts = tuple(low if i == axis else 0 for i in range(total.ndim))
        stops = tuple(low + size if i == axis else d for i, d in enumerate(total.shape))
        total = ops.slice(total, starts=starts, stops=stops, steps=(1,) * total.ndim)
    return cast(total, call.dtype)


def wide_like(x: Node, wide: Node) -> Node:
    return cast(x, wide.dtype)
