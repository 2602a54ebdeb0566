"""ATen convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planish.capture.torch.call import Call, cast, reshaped, translates
from planish.ir import Node
from planish.ops.derive import by_decomposition
from planish.ops.rules import ops
from planish.types import Dim, is_static
from planish.types.dim import maximum


@dataclass(frozen=True)
class Convolution:
    """What a convolution is called with; `padding` before and behind each axis."""

    strides: tuple[int, ...]
    padding: tuple[Dim, ...]
    dilations: tuple[int, ...]
    transposed: bool
    extra: tuple[Dim, ...]
    groups: int

    def __call__(self, x: Any, w: Any) -> Any:
        return self._spread(x, w) if self.transposed else self._plain(x, w)

    def _plain(self, x: Any, w: Any) -> Any:
        return ops.conv(
            x,
            w,
            strides=self.strides,
            padding=tuple((p, p) for p in self.padding),
            lhs_dilation=(1,) * len(self.strides),
            rhs_dilation=self.dilations,
            groups=self.groups,
        )

    def _spread(self, x: Any, w: Any) -> Any:
        """The convolution of x, spread out by the strides, with the kernel reversed, channels exchanged."""
        reach = [(k - 1) * d for k, d in zip(w.shape[2:], self.dilations)]
        around = [(r - p, r - p + e) for r, p, e in zip(reach, self.padding, self.extra)]
        padding = tuple((maximum(low, 0), maximum(high, 0)) for low, high in around)
        result = ops.conv(
            x,
            _exchanged(w, self.groups),
            strides=(1,) * len(self.strides),
            padding=padding,
            lhs_dilation=self.strides,
            rhs_dilation=self.dilations,
            groups=self.groups,
        )
        for axis, (low, high) in enumerate(around, 2):  # padding beyond the kernel's reach cuts the result
            start, stop = maximum(low * -1, 0), result.shape[axis] - maximum(high * -1, 0)
            result = _cut(result, axis, start, stop)
        return result


def _exchanged(w: Any, groups: int) -> Any:
    """[C, O/g, *K] -> [O, C/g, *K], reversed along K."""
    c, o, *k = w.shape
    split = ops.reshape(w, shape=(groups, c // groups, o, *k))
    swapped = ops.transpose(split, axes=(0, 2, 1, *range(3, 3 + len(k))))
    merged = ops.reshape(swapped, shape=(groups * o, c // groups, *k))
    return ops.reverse(merged, axes=tuple(range(2, 2 + len(k))))


def _cut(x: Any, axis: int, start: Dim, stop: Dim) -> Any:
    rank = len(x.shape)
    starts = tuple(start if i == axis else 0 for i in range(rank))
    stops = tuple(stop if i == axis else d for i, d in enumerate(x.shape))
    return ops.slice(x, starts=starts, stops=stops, steps=(1,) * rank)


def _of(
    strides: Sequence[int],
    padding: Sequence[Dim],
    dilations: Sequence[int],
    transposed: bool,
    extra: Sequence[Dim],
    groups: int,
    rank: int,
) -> Convolution:
    """One entry for all axes stands for each."""

    def per_axis(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values) * rank if len(values) == 1 else tuple(values)

    return Convolution(
        per_axis(strides),
        per_axis(padding),
        per_axis(dilations),
        transposed,
        per_axis(extra) or (0,) * rank,
        groups,
    )


@translates("aten.convolution.default")
def convolution(
    call: Call,
    x: Node,
    w: Node,
    bias: Node | None,
    strides: Sequence[int],
    padding: Sequence[Dim],
    dilations: Sequence[int],
    transposed: bool,
    extra: Sequence[Dim],
    groups: int,
) -> Node:
    """x [N, C, sizes...] or [C, sizes...]."""
    rank = w.ndim - 2
    batched = x if x.ndim == w.ndim else reshaped(x, (1, *x.shape))
    if not all(map(is_static, w.shape[2:])):
        call.refuse("a kernel of symbolic size is not supported")
    run = _of(strides, padding, dilations, transposed, extra, groups, rank)
    wide = x.dtype.accumulator
    result = run(cast(batched, wide), cast(w, wide))
    if bias is not None:
        result = result + reshaped(cast(bias, wide), (bias.shape[0], *[1] * rank))
    return reshaped(cast(result, call.dtype), call.shape)


@translates("aten.convolution_backward.default")
def convolution_backward(
    call: Call,
    g: Node,
    x: Node,
    w: Node,
    bias_sizes: Any,
    strides: Sequence[int],
    padding: Sequence[Dim],
    dilations: Sequence[int],
    transposed: bool,
    extra: Sequence[Dim],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Node | None, ...]:
    """The cotangents of operand, kernel and bias, those that `mask` asks for."""
    rank = w.ndim - 2
    run = _of(strides, padding, dilations, transposed, extra, groups, rank)
    wide = x.dtype.accumulator
    batched = [cast(t if t.ndim == w.ndim else reshaped(t, (1, *t.shape)), wide) for t in (g, x)]
    gradient = by_decomposition(lambda attributes, a, b: run(a, b))
    gx, gw = gradient(batched[0], None, None, batched[1], cast(w, wide))
    axes = (0, *range(2, 2 + rank))
    gb = ops.reduce_sum(batched[0], axes=axes, keepdims=False) if mask[2] else None
    parts = [reshaped(gx, x.shape) if mask[0] else None, gw if mask[1] else None, gb]
    return tuple(p if p is None else cast(p, x.dtype) for p in parts)
