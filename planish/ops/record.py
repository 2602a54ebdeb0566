"""What an operation is: one record with every fact about it.

An `Op` is called with operands to apply it. What happens depends on the operands: graph nodes build a node,
patterns build a pattern, arrays are evaluated by the op's NumPy meaning. So a gradient or a decomposition is
written once, as a formula, and works on all of them. A front end joins by giving its operand type a
classmethod `apply_op`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from planish.errors import TypeRuleError
from planish.types import DType, TensorType

Types = TensorType | tuple[TensorType, ...]


@dataclass(frozen=True)
class NoAttributes:
    """Of an op that has none."""


@dataclass(frozen=True)
class Sample:
    """One generated test case of an op: operand arrays and attribute values."""

    operands: tuple[np.ndarray, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True, eq=False)
class Op:
    """One operation.

    name        as printed
    family      the file of planish/ops it is recorded in
    infer       (attributes, *operand types) -> result type, or a tuple of them; raises TypeRuleError
    reference   (attributes, *arrays) -> array(s): the NumPy meaning, of the dtype the arrays have. A
                composite op has none of its own: its decomposition, run on arrays, is its meaning
    attributes  frozen dataclass of the attributes; every value hashable
    traits      facts that passes ask for: pointwise, commutative, view, reduction, scan, effect, composite...
    tolerance   the row of the dtype table (ops/tolerance.py) that says how close is the same answer
    samples     (rng, dtype) -> Samples: random, special values, broadcasting, empty, size 1, strided
    dtypes      the element types of its first operand that it takes
    gradient    (g, attributes, result, *operands) -> cotangent or None per operand; None: not differentiable
    decompose   (attributes, *operands) -> result(s) in terms of other ops; composite ops only
    """

    name: str
    family: str
    infer: Callable[..., Types]
    reference: Callable[..., Any]
    attributes: type
    traits: frozenset[str]
    tolerance: str
    samples: Callable[[np.random.Generator, DType], Iterator[Sample]]
    dtypes: tuple[DType, ...]
    gradient: Callable[..., Sequence[Any]] | None = None
    decompose: Callable[..., Any] | None = None

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        for operand in operands:
            apply = getattr(type(operand), "apply_op", None)
            if apply is not None:
                # A pattern may leave attributes out.
                is_open = getattr(type(operand), "open_attributes", False)
                return apply(self, operands, attributes if is_open else self.make_attributes(attributes))
        return self.evaluate(self.make_attributes(attributes), *_as_arrays(operands))

    def make_attributes(self, values: Mapping[str, Any]) -> Any:
        try:
            return self.attributes(**values)
        except TypeError as error:
            known = ", ".join(f.name for f in fields(self.attributes)) or "none"
            given = ", ".join(values) or "none"
            raise TypeRuleError(f"{self.name}: its attributes are {known}; given {given}") from error

    def evaluate(self, attributes: Any, *arrays: np.ndarray) -> Any:
        """The NumPy meaning on arrays, warnings of NumPy silenced."""
        with np.errstate(all="ignore"):
            if self.decompose is not None:
                return self.decompose(attributes, *arrays)
            return self.reference(attributes, *arrays)

    def has(self, trait: str) -> bool:
        return trait in self.traits

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return get_op, (self.name,)


def _as_arrays(operands: Sequence[Any]) -> list[np.ndarray]:
    """Bare numbers take the dtype of the last array beside them, as they do beside nodes."""
    dtype = next((o.dtype for o in reversed(operands) if hasattr(o, "dtype")), None)
    return [o if isinstance(o, np.ndarray) else np.asarray(o, getattr(o, "dtype", dtype)) for o in operands]


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    if op.name in OPS:
        raise ValueError(f"two ops are called {op.name}")
    OPS[op.name] = op
    return op


def get_op(name: str) -> Op:
    """The record of an op by name. Raises KeyError."""
    return OPS[name]
