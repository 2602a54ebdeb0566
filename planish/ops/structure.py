"""The three ops that hold a graph together: input, constant, and item (one result of many)."""
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planish.errors import TypeRuleError
from planish.ops.record import Op, Sample, Types, register
from planish.types import DTYPES, STORAGE, STRING, DType, TensorType, as_text, dtype_of

SMALL = 4096  # bytes up to which constants are compared by content; larger ones are equal when one array


@dataclass(frozen=True, eq=False)
class Content:
    """The attributes of a constant: its array (read-only by agreement) and what makes it equal to another."""

    array: np.ndarray
    key: object

    @staticmethod
    def of(array: np.ndarray) -> Content:
        if dtype_of(array) is STRING:
            return Content._of_text(as_text(array))
        if array.nbytes <= SMALL:
            array = array.copy()
            array.flags.writeable = False
            return Content(array, (array.dtype.str, array.dtype.name, array.shape, array.tobytes()))
        return Content(array, id(array))

    @staticmethod
    def _of_text(array: np.ndarray) -> Content:
        array.flags.writeable = False
        return Content(array, ("text", array.shape, *array.reshape(-1).tolist()))

    @property
    def digest(self) -> str:
        """A hash of dtype, shape and bytes: what tells two large constants of equal content."""
        if self.array.dtype == STRING.numpy:
            return hashlib.sha256(repr(self.key).encode()).hexdigest()
        data = np.ascontiguousarray(self.array)
        head = f"{data.dtype.name}{data.shape}".encode()
        return hashlib.sha256(head + data.tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class InputAttributes:
    name: str
    type: TensorType


@dataclass(frozen=True)
class ItemAttributes:
    index: int


def _constant_type(attributes: Content) -> TensorType:
    return TensorType(dtype_of(attributes.array), attributes.array.shape)


def _item_type(attributes: ItemAttributes, of: Types) -> TensorType:
    if not isinstance(of, tuple) or not 0 <= attributes.index < len(of):
        raise TypeRuleError(f"item {attributes.index} of {of}: there is no such result")
    return of[attributes.index]


def _no_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    return iter(())


def _unbound(attributes: InputAttributes) -> np.ndarray:
    raise TypeRuleError(f"input {attributes.name} has no value")


_ANY = (*DTYPES, *STORAGE)
input_ = register(Op("input", "structure", lambda a: a.type, _unbound, InputAttributes,
                     frozenset({"structure"}), "exact", _no_samples, _ANY))
constant = register(Op("constant", "structure", _constant_type, lambda a: a.array, Content,
                       frozenset({"structure"}), "exact", _no_samples, _ANY))
item = register(Op("item", "structure", _item_type, lambda a, results: results[a.index], ItemAttributes,
                   frozenset({"structure"}), "exact", _no_samples, _ANY))
