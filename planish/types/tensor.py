"""Tensor types: a shape of dims and an element type."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from planish.errors import TypeRuleError
from planish.types.dim import Dim, is_static
from planish.types.dtype import DType

Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class TensorType:
    """The type of one tensor value: `f32[N, 4]`."""

    dtype: DType
    shape: Shape = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        return element_count(self.shape)

    @property
    def is_static(self) -> bool:
        return all(map(is_static, self.shape))

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.short}[{', '.join(map(str, self.shape))}]"


def element_count(shape: Sequence[Dim]) -> Dim:
    return prod(shape, start=1)


def _broadcast_dim(a: Dim, b: Dim) -> Dim | None:
    if a == b or b == 1:
        return a
    return b if a == 1 else None


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's broadcasting rule. A symbol broadcasts against 1 and against itself. Raises TypeRuleError."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result: list[Dim] = []
    for column in zip(*padded):
        dim: Dim = 1
        for other in column:
            joined = _broadcast_dim(dim, other)
            if joined is None:
                listed = " and ".join("(" + ", ".join(map(str, s)) + ")" for s in shapes)
                sizes = ", ".join(map(str, column))
                raise TypeRuleError(f"shapes {listed} do not broadcast: sizes {sizes} differ", sizes=column)
            dim = joined
        result.append(dim)
    return tuple(result)
