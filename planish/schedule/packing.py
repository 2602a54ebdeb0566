"""Constants laid out anew for the kernels that read them: axes in another order, and panels of contractions.

In: contents of constants. Out: contents derived from them, so that the same layout can be made of other
values of their type. The functions here are the meaning; the runtime has faster ones.
"""
from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from planish.ops.content import Content, derivation, question
from planish.schedule.views import View, behind
from planish.types import INT8


def transposed(content: Content, order: tuple[int, ...]) -> Content:
    """The axes of a constant in another order, row-major."""
    shape = [content.type.shape[k] for k in order]
    return Content.derived("transposed", order, (content,), content.type.with_shape(shape))


@derivation("transposed")
def _transpose(order: tuple[int, ...], array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(order))


def as_bytes(content: Content) -> Content:
    """A constant of integers that `fit_bytes`, as int8."""
    return Content.derived("as_bytes", (), (content,), replace(content.type, dtype=INT8))


@derivation("as_bytes")
def _as_bytes(parameters: tuple[()], array: np.ndarray) -> np.ndarray:
    return array.astype(np.int8)


@question("fit_bytes")
def fit_bytes(array: np.ndarray) -> bool:
    """Whether every integer is one of int8."""
    return bool(array.size) and int(array.min()) >= -128 and int(array.max()) <= 127


def packed(content: Content, start: int, sizes: tuple[int, ...], strides: tuple[int, ...], width: int,
           pair: int = 1, whole: int = 1) -> Content:
    """Panels [panel, k..., lane] of the view [n, k...] that has these sizes and strides, in elements, and
    begins at element `start` of a constant; zero beyond the last column. Of weights and the scale of each
    column, the product. With `pair` 2 steps of k lie side by
    side, [panel, k..., k / 2, lane, 2]; the last axis is filled up with 0 to a `whole` number of steps."""
    shape = panels_shape(sizes, width, pair, whole)
    while content.derivation is not None and content.derivation.is_movement:
        view = behind(content, View.of(start, sizes, strides))
        if view is None or view.strides is None:
            break
        start, strides = view.start, view.strides
        content = content.derivation.sources[0]
    parameters = (start, sizes, strides, width, pair, whole)
    sources = scaled_columns(content, start, sizes, strides) or (content,)
    return Content.derived("packed", parameters, sources, content.type.with_shape(shape))


def scaled_columns(content: Content, start: int, sizes: tuple[int, ...],
                   strides: tuple[int, ...]) -> tuple[Content, Content] | None:
    """Weights and the scale of each column of a view, where a content is their product: a scale of every
    entry of its first axis, along which the columns of the view lie."""
    made = content.derivation
    if made is None or made.function != "op" or made.parameters != ("mul",):
        return None
    weights, scale = made.sources
    shape = weights.type.shape
    if weights.type != content.type or scale.type.shape != (shape[0], *[1] * (len(shape) - 1)):
        return None
    row = prod(d for d in shape[1:] if isinstance(d, int))
    inside = start + sum((size - 1) * stride for size, stride in zip(sizes[1:], strides[1:]))
    return (weights, scale) if strides[0] == row and sizes[0] == shape[0] and inside < row else None


def panels_shape(sizes: tuple[int, ...], width: int, pair: int, whole: int) -> tuple[int, ...]:
    """The shape of the panels of a view [n, k...]."""
    panels, outer, last = -(-sizes[0] // width), sizes[1:-1], filled(sizes[-1], pair, whole)
    return (panels, *outer, last, width) if pair == 1 else (panels, *outer, last // pair, width, pair)


def filled(depth: int, pair: int, whole: int) -> int:
    """Steps of the last k with those it is filled up with."""
    step = max(pair, whole)
    return -(-depth // step) * step


@derivation("packed")
def pack(parameters: tuple[Any, ...], array: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
    start, sizes, strides, width, pair, whole = parameters
    array = np.ascontiguousarray(array if scale is None else array * scale)
    view = np.lib.stride_tricks.as_strided(
        array.reshape(-1)[start:], sizes, [s * array.itemsize for s in strides], writeable=False)
    panels, outer, depth = -(-sizes[0] // width), sizes[1:-1], filled(sizes[-1], pair, whole)
    columns = np.zeros((panels * width, *outer, depth), array.dtype)
    columns[tuple(map(slice, view.shape))] = view
    if pair == 1:
        return np.ascontiguousarray(np.moveaxis(columns.reshape(panels, width, *outer, depth), 1, -1))
    lanes = columns.reshape(panels, width, *outer, depth // pair, pair)
    return np.ascontiguousarray(np.moveaxis(lanes, 1, -2))
