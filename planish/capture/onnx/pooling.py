"""Pooling: windows over the spatial axes of [N, C, sizes...]."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.contractions import Padding, per_axis, window_padding
from planish.capture.onnx.movement import broadcast
from planish.capture.onnx.pointwise import number
from planish.capture.onnx.sizes import computed
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import Dim, is_static
from planish.types.dim import is_nonnegative


@dataclass(frozen=True)
class Windows:
    """`padding` is the model's; `extra` is what ceil_mode adds behind it so that a partial window fits."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: Padding
    extra: tuple[Dim, ...]

    def reduce(self, x: Node, kind: str, padding: Padding) -> Node:
        return ops.reduce_window(x, kind=kind, window=(1, 1, *self.kernel), strides=(1, 1, *self.strides),
                                 padding=((0, 0), (0, 0), *padding), dilation=(1, 1, *self.dilations))

    @property
    def all_padding(self) -> Padding:
        return tuple((low, high + more) for (low, high), more in zip(self.padding, self.extra))


def _windows(call: Call) -> Windows:
    sizes = call.shape()[2:]
    rank = len(sizes)
    kernel = tuple(call.attribute("kernel_shape", ()))
    if len(kernel) != rank:
        call.invalid(f"kernel_shape {kernel} for {rank} spatial axes")
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, sizes, kernel, strides, dilations)
    explicit = call.attribute("auto_pad", "NOTSET") in ("NOTSET", "")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    extra = tuple(_ceil_extra(call, n, low, high, r, s) if call.flag("ceil_mode") and explicit else 0
                  for n, (low, high), r, s in zip(sizes, padding, reach, strides))
    return Windows(kernel, strides, dilations, padding, extra)


def _ceil_extra(call: Call, size: Dim, low: Dim, high: Dim, reach: int, stride: int) -> Dim:
    """Rounded up, the last window may pass the end; it counts if it starts inside the tensor or before."""
    last = (size + low + high - reach + stride - 1) // stride  # its number, from 0
    starts_late = is_nonnegative(last * stride - size - low)
    if not starts_late and not is_nonnegative(size + low - 1 - last * stride):
        call.needs_size(f"ceil_mode on the size {size}", size)
    needed = (last - 1 if starts_late else last) * stride + reach - (size + low + high)
    return needed if is_nonnegative(needed) else 0


@translates("MaxPool")
def max_pool(call: Call) -> Node:
    windows = _windows(call)
    return windows.reduce(call[0], "max", windows.all_padding)


@translates("AveragePool")
def average_pool(call: Call) -> Node:
    """The sum over the number of elements, with padding counted or not; what ceil_mode adds never counts."""
    windows = _windows(call)
    total = windows.reduce(call[0], "sum", windows.all_padding)
    counted = windows.padding if call.flag("count_include_pad") else ((0, 0),) * len(windows.kernel)
    if windows.all_padding == counted:
        return total / prod(windows.kernel)
    return total / _counts(call[0], windows, counted)


def _counts(x: Node, windows: Windows, counted: Padding) -> Node:
    """How many elements each window has, of x and the `counted` part of its padding: [1, 1, places...]."""
    sizes = tuple(n + low + high for n, (low, high) in zip(x.shape[2:], counted))
    ones = broadcast(number(1, x.dtype), (1, 1, *sizes))
    left = tuple((low - a, high - b) for (low, high), (a, b) in zip(windows.all_padding, counted))
    counts = windows.reduce(ones, "sum", left)
    array = computed(counts) if all(map(is_static, sizes)) else None
    return counts if array is None else constant(array)


@translates("LpPool")
def lp_pool(call: Call) -> Node:
    """(sum |x|^p)^(1/p)"""
    x, p, windows = call[0], call.attribute("p", 2), _windows(call)
    powers = ops.pow(ops.abs(x), number(p, x.dtype))
    total = windows.reduce(powers, "sum", windows.all_padding)
    return ops.pow(total, number(1 / p, x.dtype))


def _spatial(call: Call) -> tuple[int, ...]:
    return tuple(range(2, call.rank()))


@translates("GlobalMaxPool")
def global_max_pool(call: Call) -> Node:
    return ops.reduce_max(call[0], axes=_spatial(call), keepdims=True)


@translates("GlobalAveragePool")
def global_average_pool(call: Call) -> Node:
    return ops.mean(call[0], axes=_spatial(call), keepdims=True)


@translates("GlobalLpPool")
def global_lp_pool(call: Call) -> Node:
    x, p = call[0], call.attribute("p", 2)
    total = ops.reduce_sum(ops.pow(ops.abs(x), number(p, x.dtype)), axes=_spatial(call), keepdims=True)
    return ops.pow(total, number(1 / p, x.dtype))


@translates("LRN")
def local_response_normalization(call: Call) -> Node:
    """x / (bias + alpha / size * sum of squares over neighbouring channels)^beta (Krizhevsky et al. 2012)."""
    x, size = call[0], call.attribute("size")
    alpha, beta, bias = (call.attribute(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    before = (size - 1) // 2
    squares = ops.reduce_window(
        x * x,
        kind="sum",
        window=_at_channels(size, x.ndim, 1),
        strides=(1,) * x.ndim,
        padding=_at_channels((before, size - 1 - before), x.ndim, (0, 0)),
        dilation=(1,) * x.ndim,
    )
    return x / ops.pow(squares * (alpha / size) + bias, number(beta, x.dtype))


def _at_channels(value: object, rank: int, other: object) -> tuple:
    return tuple(value if axis == 1 else other for axis in range(rank))
