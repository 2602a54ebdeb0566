"""The three ops that hold a graph together: input, constant, and item (one result of many)."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planish.errors import TypeRuleError
from planish.ops.content import Content
from planish.ops.record import Op, Sample, Types, register
from planish.types import DTYPES, STORAGE, DType, TensorType


@dataclass(frozen=True)
class InputAttributes:
    name: str
    type: TensorType


@dataclass(frozen=True)
class ItemAttributes:
    index: int


def _constant_type(attributes: Content) -> TensorType:
    return attributes.type


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
constant = register(Op("constant", "structure", _constant_type, lambda a: a.value, Content,
                       frozenset({"structure"}), "exact", _no_samples, _ANY))
item = register(Op("item", "structure", _item_type, lambda a, results: results[a.index], ItemAttributes,
                   frozenset({"structure"}), "exact", _no_samples, _ANY))
