"""Values of a model that are no tensors: sequences, and optionals that hold nothing.

They exist only while a model is read: SequenceInsert, OptionalGetElement... run then, on the values below,
and the graph sees the tensors inside. An optional that holds something is that something.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planish.types import DType

if TYPE_CHECKING:
    from planish.capture.onnx.sizes import Value


@dataclass(frozen=True, eq=False)
class SequenceValue:
    """A sequence. `dtype` is that of its elements, None where nothing says it."""

    elements: tuple[Value, ...]
    dtype: DType | None = None


@dataclass(frozen=True)
class EmptyOptional:
    """An optional that holds nothing."""


EMPTY_OPTIONAL = EmptyOptional()
