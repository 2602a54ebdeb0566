"""Contractions: general dot product and convolution. float16 and bfloat16 are accumulated in float32."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from planish.ops.record import Sample
from planish.ops.rules import (
    NUMBERS,
    cast_to,
    define,
    ops,
    require,
    require_at_least,
    require_axes,
    require_equal_sizes,
    require_one_per_axis,
    require_same_dtype,
)
from planish.ops.samples import random_array, strided, with_specials
from planish.ops.shape import padded
from planish.types import FLOAT32, INT32, Dim, DType, TensorType, dtype_of
from planish.types.dim import maximum as largest

Pairs = tuple[tuple[Dim, Dim], ...]


@dataclass(frozen=True)
class DotAttributes:
    """Contracted axes pair up in order, and so do batch axes. The sum is scaled by alpha before it is rounded
    to `result` (None: the operands' dtype)."""

    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    alpha: float = 1.0
    result: DType | None = None


@dataclass(frozen=True)
class ConvAttributes:
    """One entry per spatial axis. Dilation d puts d - 1 zeros between neighbours of the operand (lhs) or
    kernel (rhs)."""

    strides: tuple[int, ...]
    padding: Pairs
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    groups: int = 1
    result: DType | None = None


def _result_dtype(x: TensorType, wanted: DType | None) -> DType:
    if wanted is None:
        return x.dtype
    require(wanted.kind == x.dtype.kind and wanted.bits >= x.dtype.bits,
            f"the result of {x.dtype.short} is to be {x.dtype.kind} and as wide, not {wanted.short}")
    return wanted


def _accumulator(x: np.ndarray, wanted: DType | None) -> tuple[np.dtype, np.dtype]:
    """The dtypes to sum in and to round to; arrays wider than the type rule foresaw keep their width."""
    result = np.promote_types(x.dtype, wanted.numpy) if wanted is not None else x.dtype
    return dtype_of(result).accumulator.numpy, result


# --- dot_general

def free_axes(rank: int, *taken: Sequence[int]) -> tuple[int, ...]:
    """The axes neither contracted nor batch, in order."""
    used = {axis for axes in taken for axis in axes}
    return tuple(i for i in range(rank) if i not in used)


def _dot_rule(attributes: DotAttributes, a: TensorType, b: TensorType) -> TensorType:
    require_same_dtype(a, b)
    lhs, rhs = attributes.lhs_batch + attributes.lhs_contract, attributes.rhs_batch + attributes.rhs_contract
    require_axes(lhs, a.rank)
    require_axes(rhs, b.rank)
    require(len(attributes.lhs_contract) == len(attributes.rhs_contract), "contracted axes do not pair up")
    require(len(attributes.lhs_batch) == len(attributes.rhs_batch), "batch axes do not pair up")
    for i, j in zip(lhs, rhs, strict=True):
        what = "batch" if i in attributes.lhs_batch else "contracted"
        require_equal_sizes(f"{what} sizes (axis {i} with axis {j})", a.shape[i], b.shape[j])
    require(a.dtype.is_float or attributes.alpha == 1, f"alpha {attributes.alpha} needs floats")
    batch = [a.shape[i] for i in attributes.lhs_batch]
    a_free, b_free = free_axes(a.rank, lhs), free_axes(b.rank, rhs)
    return TensorType(_result_dtype(a, attributes.result),
                      (*batch, *(a.shape[i] for i in a_free), *(b.shape[i] for i in b_free)))


def _dot(attributes: DotAttributes, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As one batched matrix product."""
    lhs_free = free_axes(a.ndim, attributes.lhs_batch, attributes.lhs_contract)
    rhs_free = free_axes(b.ndim, attributes.rhs_batch, attributes.rhs_contract)
    wide, result = _accumulator(a, attributes.result)
    batch = tuple(a.shape[i] for i in attributes.lhs_batch)
    depth = prod(a.shape[i] for i in attributes.lhs_contract)
    m, n = (prod(x.shape[i] for i in free) for x, free in ((a, lhs_free), (b, rhs_free)))
    left = a.transpose(attributes.lhs_batch + lhs_free + attributes.lhs_contract).reshape(*batch, m, depth)
    right = b.transpose(attributes.rhs_batch + attributes.rhs_contract + rhs_free).reshape(*batch, depth, n)
    total = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
    if attributes.alpha != 1:
        total = total * wide.type(attributes.alpha)
    shape = (*batch, *(a.shape[i] for i in lhs_free), *(b.shape[i] for i in rhs_free))
    return total.astype(result, copy=False).reshape(shape)


def _dot_gradient(g: Any, at: DotAttributes, y: Any, a: Any, b: Any) -> Sequence[Any]:
    """Each operand's cotangent: g contracted with the other operand, axes put back in the operand's order."""
    batch = tuple(range(len(at.lhs_batch)))
    a_free = free_axes(len(a.shape), at.lhs_batch, at.lhs_contract)
    b_free = free_axes(len(b.shape), at.rhs_batch, at.rhs_contract)
    g_a = tuple(range(len(batch), len(batch) + len(a_free)))
    g_b = tuple(range(len(batch) + len(a_free), len(g.shape)))
    g = cast_to(g, dtype_of(a.dtype))
    ga = ops.dot_general(g, b, lhs_contract=g_b, rhs_contract=b_free, lhs_batch=batch, rhs_batch=at.rhs_batch,
                         alpha=at.alpha)
    gb = ops.dot_general(g, a, lhs_contract=g_a, rhs_contract=a_free, lhs_batch=batch, rhs_batch=at.lhs_batch,
                         alpha=at.alpha)
    # ga's axes: batch, a's free, then the contracted ones in the order they have in b; gb's the other way.
    by_b = tuple(i for _, i in sorted(zip(at.rhs_contract, at.lhs_contract, strict=True)))
    by_a = tuple(i for _, i in sorted(zip(at.lhs_contract, at.rhs_contract, strict=True)))
    return _put_back(ga, at.lhs_batch + a_free + by_b), _put_back(gb, at.rhs_batch + b_free + by_a)


def _put_back(g: Any, axes: tuple[int, ...]) -> Any:
    """Transpose so that the axis at position p of `axes` stands where axes[p] says."""
    order = tuple(axes.index(i) for i in range(len(axes)))
    return g if order == tuple(range(len(axes))) else ops.transpose(g, axes=order)


def _matrix(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    return random_array(rng, dtype, shape, -1, 1) if dtype.is_float else random_array(rng, dtype, shape)


def _dot_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return _matrix(rng, dtype, shape)
    plain = {"lhs_contract": (1,), "rhs_contract": (0,)}
    for m, k, n in ((1, 1, 1), (1, 17, 33), (33, 17, 1), (8, 8, 8), (17, 33, 3), (65, 130, 49), (1, 1000, 3)):
        yield Sample((x(m, k), x(k, n)), plain, f"{m}x{k}x{n}")
    yield Sample((x(3, 0), x(0, 5)), plain, "empty contraction")
    yield Sample((x(0, 4), x(4, 5)), plain, "no rows")
    yield Sample((x(5), x(5)), {"lhs_contract": (0,), "rhs_contract": (0,)}, "vectors")
    yield Sample((x(4), x(3)), {"lhs_contract": (), "rhs_contract": ()}, "outer product")
    yield Sample((x(2, 5, 7), x(2, 3, 7)), {"lhs_contract": (2,), "rhs_contract": (2,), "lhs_batch": (0,),
                                            "rhs_batch": (0,)}, "batch, transposed right")
    inside = {"lhs_contract": (2, 0), "rhs_contract": (0, 2), "lhs_batch": (1,), "rhs_batch": (3,)}
    yield Sample((x(7, 2, 5, 4), x(5, 3, 7, 2)), inside, "two axes, batch inside")
    yield Sample((strided(x(9, 17)), x(11, 17).T), plain, "strided")
    yield Sample((x(200, 70), x(70, 350)), plain, "parallel")
    if dtype.is_float:
        yield Sample((x(5, 17), x(17, 9)), {**plain, "alpha": 0.125}, "alpha")
        yield Sample((with_specials(rng, x(5, 4), dtype), with_specials(rng, x(4, 6), dtype)), plain,
                     "special")
    if dtype.is_narrow_float:
        yield Sample((x(5, 17), x(17, 9)), {**plain, "result": FLOAT32}, "result f32")
    if dtype.short == "i8":
        yield Sample((x(5, 17), x(17, 9)), {**plain, "result": INT32}, "result i32")


dot_general = define("dot_general", "contract", _dot_rule, _dot, operands=2, dtypes=NUMBERS,
                     attributes=DotAttributes, traits={"contraction"}, tolerance="contraction",
                     samples=_dot_samples, gradient=_dot_gradient)


# --- windows, shared with reduce_window

def dilated(size: Dim, dilation: int) -> Dim:
    """The size with dilation - 1 places between neighbours."""
    return size if dilation == 1 else largest((size - 1) * dilation + 1, 0)


def window_positions(size: Dim, window: Dim, stride: int, dilation: int, padding: tuple[Dim, Dim]) -> Dim:
    """How many places a dilated window takes in `size` padded, `stride` apart; none where there is nothing
    and the window is one element. Raises TypeRuleError."""
    room = size + padding[0] + padding[1] - dilated(window, dilation)
    if window != 1:
        require_at_least("padded size", size + padding[0] + padding[1], dilated(window, dilation))
    return room + 1 if stride == 1 else room // stride + 1


def require_window(strides: Sequence[int], padding: Pairs, dilation: Sequence[int], rank: int) -> None:
    for what, values in (("strides", strides), ("padding", padding), ("dilation", dilation)):
        require_one_per_axis(what, values, rank)
    for low, high in padding:
        require_at_least("padding", low, 0)
        require_at_least("padding", high, 0)
    for value in (*strides, *dilation):
        require(value >= 1, f"strides and dilations are 1 or more, not {value}")


def sliding(x: np.ndarray, window: Sequence[int], strides: Sequence[int],
            dilation: Sequence[int]) -> np.ndarray:
    """View of the windows over the last len(window) axes: [..., positions..., window...]."""
    axes = tuple(range(x.ndim - len(window), x.ndim))
    reach = tuple((k - 1) * d + 1 for k, d in zip(window, dilation, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    places = tuple(slice(None, None, s) for s in strides)
    inside = tuple(slice(None, None, d) for d in dilation)
    return views[(slice(None),) * axes[0] + places + inside] if axes else views


# --- convolution

def _conv_rule(attributes: ConvAttributes, x: TensorType, w: TensorType) -> TensorType:
    require_same_dtype(x, w)
    require(x.rank >= 2 and x.rank == w.rank,
            f"operands are [N, C, sizes...] and [O, C/groups, kernel...], not {x} and {w}")
    require_window(attributes.strides, attributes.padding, attributes.rhs_dilation, x.rank - 2)
    require_window(attributes.lhs_dilation, attributes.padding, attributes.lhs_dilation, x.rank - 2)
    groups = attributes.groups
    require(groups >= 1, f"groups {groups} is less than 1")
    require_equal_sizes("channels of the operand and groups * channels of the kernel", x.shape[1],
                        w.shape[1] * groups)
    require(w.shape[0] % groups == 0, f"{w.shape[0]} output channels do not divide into {groups} groups")
    sizes = [window_positions(dilated(n, ld), k, s, rd, p) for n, k, s, p, ld, rd in
             zip(x.shape[2:], w.shape[2:], attributes.strides, attributes.padding, attributes.lhs_dilation,
                 attributes.rhs_dilation, strict=True)]
    return TensorType(_result_dtype(x, attributes.result), (x.shape[0], w.shape[0], *sizes))


def _conv(a: ConvAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """As one matrix product per group over the patches."""
    wide, result = _accumulator(x, a.result)
    low, high = ((0, 0, *(p[i] for p in a.padding)) for i in (0, 1))
    x = padded(x.astype(wide, copy=False), 0, low, high, (0, 0, *(d - 1 for d in a.lhs_dilation)))
    patches = sliding(x, w.shape[2:], a.strides, a.rhs_dilation)
    batch, spatial = x.shape[0], w.ndim - 2
    places = patches.shape[2:2 + spatial]
    patches = patches.reshape(batch, a.groups, w.shape[1], *patches.shape[2:])
    # [N, g, C/g, places, kernel] -> [g, C/g, kernel, N, places]
    order = (1, 2, *range(3 + spatial, 3 + 2 * spatial), 0, *range(3, 3 + spatial))
    depth = prod(w.shape[1:])
    columns = patches.transpose(order).reshape(a.groups, depth, batch * prod(places))
    kernels = w.astype(wide, copy=False).reshape(a.groups, w.shape[0] // a.groups, depth)
    y = np.matmul(kernels, columns).reshape(w.shape[0], batch, *places)
    return np.ascontiguousarray(y.swapaxes(0, 1)).astype(result, copy=False)


def _conv_gradient(g: Any, a: ConvAttributes, y: Any, x: Any, w: Any) -> Sequence[Any]:
    g = cast_to(g, dtype_of(x.dtype))
    return _conv_operand_gradient(g, a, x, w), _conv_kernel_gradient(g, a, x, w)


def _conv_operand_gradient(g: Any, a: ConvAttributes, x: Any, w: Any) -> Any:
    """g, dilated by the strides, convolved with the reversed kernel; cut where padding would be negative."""
    spatial = range(len(a.strides))
    flipped = ops.reverse(_swap_channels(w, a.groups), axes=tuple(range(2, len(w.shape))))
    padding, starts, stops = [], [], []
    for i in spatial:
        reach = dilated(w.shape[2 + i], a.rhs_dilation[i]) - 1
        low, size = reach - a.padding[i][0], dilated(x.shape[2 + i], a.lhs_dilation[i])
        start = largest(low * -1, 0)
        before = largest(low, 0)
        after = largest(size + start - before + reach - dilated(g.shape[2 + i], a.strides[i]), 0)
        padding.append((before, after))
        starts.append(start)
        stops.append(start + size)
    whole = ops.conv(g, flipped, strides=(1,) * len(a.strides), padding=tuple(padding),
                     lhs_dilation=a.strides, rhs_dilation=a.rhs_dilation, groups=a.groups)
    return ops.slice(whole, starts=(0, 0, *starts), stops=(*x.shape[:2], *stops),
                     steps=(1, 1, *a.lhs_dilation))


def _swap_channels(w: Any, groups: int) -> Any:
    """[O, C/g, kernel] -> [C, O/g, kernel]."""
    out, inner, *kernel = w.shape
    split = ops.reshape(w, shape=(groups, out // groups, inner, *kernel))
    swapped = ops.transpose(split, axes=(0, 2, 1, *range(3, 3 + len(kernel))))
    return ops.reshape(swapped, shape=(inner * groups, out // groups, *kernel))


def _conv_kernel_gradient(g: Any, a: ConvAttributes, x: Any, w: Any) -> Any:
    """x convolved with g: channels stand where the batch stood, and strides and dilation of the kernel change
    places."""
    batch, channels, *sizes = x.shape
    inner, rank = channels // a.groups, len(sizes)
    lhs = ops.reshape(x, shape=(batch, a.groups, inner, *sizes))
    lhs = ops.transpose(lhs, axes=(2, 1, 0, *range(3, 3 + rank)))
    lhs = ops.reshape(lhs, shape=(inner, a.groups * batch, *sizes))
    rhs = ops.transpose(g, axes=(1, 0, *range(2, 2 + rank)))
    whole = ops.conv(lhs, rhs, strides=a.rhs_dilation, padding=a.padding, lhs_dilation=a.lhs_dilation,
                     rhs_dilation=a.strides, groups=a.groups)
    cut = ops.slice(whole, starts=(0,) * (2 + rank), stops=(inner, w.shape[0], *w.shape[2:]),
                    steps=(1,) * (2 + rank))
    return ops.transpose(cut, axes=(1, 0, *range(2, 2 + rank)))


def conv_case(spatial: int, **changes: Any) -> dict[str, Any]:
    """Attributes of a plain convolution over `spatial` axes, but for `changes`."""
    ones = (1,) * spatial
    return {"strides": ones, "padding": ((0, 0),) * spatial, "lhs_dilation": ones, "rhs_dilation": ones,
            **changes}


def _conv_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return _matrix(rng, dtype, shape)
    same = ((1, 1), (1, 1))
    yield Sample((x(2, 3, 8, 9), x(4, 3, 3, 3)), conv_case(2), "plain")
    yield Sample((x(1, 3, 9, 8), x(5, 3, 3, 3)), conv_case(2, padding=same, strides=(2, 2)), "strides")
    yield Sample((x(2, 4, 7, 7), x(8, 4, 1, 1)), conv_case(2), "1x1")
    yield Sample((x(2, 6, 8, 8), x(6, 1, 3, 3)), conv_case(2, padding=same, groups=6), "depthwise")
    yield Sample((x(2, 6, 8, 8), x(4, 3, 3, 2)), conv_case(2, groups=2, padding=((0, 2), (1, 0))), "groups")
    yield Sample((x(1, 2, 12, 11), x(3, 2, 3, 2)), conv_case(2, rhs_dilation=(2, 3), strides=(1, 2)),
                 "dilated kernel")
    yield Sample((x(1, 2, 4, 5), x(3, 2, 3, 3)), conv_case(2, lhs_dilation=(2, 3), padding=((2, 3), (2, 2))),
                 "dilated operand")
    yield Sample((x(2, 3, 17), x(4, 3, 5)), conv_case(1, padding=((2, 2),)), "one axis")
    yield Sample((x(1, 2, 4, 5, 6), x(3, 2, 2, 3, 2)), conv_case(3, strides=(1, 2, 1)), "three axes")
    yield Sample((x(0, 3, 8, 9), x(4, 3, 3, 3)), conv_case(2), "empty batch")
    yield Sample((strided(x(2, 3, 8, 9)), x(3, 3, 3, 4).T), conv_case(2), "strided")
    yield Sample((x(4, 8, 32, 32), x(16, 8, 3, 3)), conv_case(2, padding=same), "parallel")
    yield Sample((with_specials(rng, x(2, 3, 8, 9), dtype), x(4, 3, 3, 3)), conv_case(2, padding=same),
                 "special")
    if dtype.is_narrow_float:
        yield Sample((x(2, 3, 8, 9), x(4, 3, 3, 3)), conv_case(2, result=FLOAT32), "result f32")
    if dtype.short == "i8":
        yield Sample((x(2, 3, 8, 9), x(4, 3, 3, 3)), conv_case(2, result=INT32), "result i32")


conv = define("conv", "contract", _conv_rule, _conv, operands=2, dtypes=NUMBERS, attributes=ConvAttributes,
              traits={"contraction"}, tolerance="contraction", samples=_conv_samples, gradient=_conv_gradient)
