"""The two ends of a model: its inputs become values and inputs of the graph, its outputs the graph's outputs.

In: names with what they hold. Out: for each a `Form`, which says where in the graph it lies (structure.py).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planish.capture.onnx.containers import EMPTY_OPTIONAL, EmptyOptional, SequenceValue
from planish.capture.onnx.sizes import Value, as_node
from planish.capture.onnx.structure import Form, Given
from planish.capture.onnx.tensors import onnx_dtype
from planish.errors import ModelError
from planish.ir import Node, constant, input_node
from planish.types import DType, TensorType, is_static


@dataclass
class GraphInputs:
    """The graph's inputs, as the model's are bound one after the other."""

    note: Callable[[Node, str], None]
    nodes: list[Node] = field(default_factory=list)

    def bind(self, name: str, given: Given, dtype: DType | None) -> tuple[Value, Form]:
        """The value an input starts as. `dtype` is that of the tensors in it."""
        if given is None:
            return EMPTY_OPTIONAL, None
        if isinstance(given, TensorType):
            node = input_node(name, given)
            self.note(node, name)
            self.nodes.append(node)
            return node, len(self.nodes) - 1
        parts = [self.bind(f"{name}.{i}", part, dtype) for i, part in enumerate(given)]
        return SequenceValue(tuple(value for value, _ in parts), dtype), tuple(form for _, form in parts)


@dataclass
class GraphOutputs:
    """The graph's outputs and their names, as the model's are bound one after the other."""

    nodes: list[Node] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def bind(self, name: str, value: Value) -> Form:
        if isinstance(value, EmptyOptional):
            return None
        if isinstance(value, SequenceValue):
            return tuple(self.bind(f"{name}.{i}", element) for i, element in enumerate(value.elements))
        self.nodes.append(as_node(value))
        self.names.append(name)
        return len(self.nodes) - 1


def constant_value(what: str, given: Given, value: Any, dtype: DType | None) -> Value:
    """What an input that always has this value is. Raises ModelError where it is not of the input's type."""
    if given is None:
        return EMPTY_OPTIONAL
    if not isinstance(given, TensorType):
        parts = [constant_value(what, g, v, dtype) for g, v in zip(given, value, strict=True)]
        return SequenceValue(tuple(parts), dtype)
    array = np.array(value, dtype=given.dtype.numpy)
    array.flags.writeable = False
    if array.ndim != given.rank or any(is_static(d) and d != n for d, n in zip(given.shape, array.shape)):
        raise ModelError(f"{what} has shape {array.shape}; it is {given}")
    return constant(array)


def dtype_in(value: Value) -> DType | None:
    """The dtype of the tensors in a value, None where there are none."""
    return None if isinstance(value, EmptyOptional) else value.dtype


def declared_dtype(type_: Any, what: str) -> DType | None:
    """The dtype of the tensors in a TypeProto, None where it does not say one."""
    kind = type_.WhichOneof("value")
    if kind in ("optional_type", "sequence_type"):
        return declared_dtype(getattr(type_, kind).elem_type, what)
    number = type_.tensor_type.elem_type
    return onnx_dtype(number, what) if number else None


def given_as(type_: Any, value: Any, what: str) -> Given:
    """What an input of TypeProto `type_` holds where it has `value`."""
    kind = type_.WhichOneof("value")
    if kind == "optional_type":
        return None if value is None else given_as(type_.optional_type.elem_type, value, what)
    if kind == "sequence_type" and isinstance(value, (list, tuple)):
        return [given_as(type_.sequence_type.elem_type, element, what) for element in value]
    if kind == "tensor_type" and value is not None:
        return TensorType(onnx_dtype(type_.tensor_type.elem_type, what), np.shape(value))
    raise ModelError(f"{what}: {type(value).__name__} is not a value of a {describe(type_)}")


def check_given(type_: Any, given: Given, what: str) -> None:
    """Raises ModelError where `given` is no type of a value that TypeProto `type_` has."""
    kind = type_.WhichOneof("value")
    if kind == "optional_type" and (given is None or type_.optional_type.HasField("elem_type")):
        return None if given is None else check_given(type_.optional_type.elem_type, given, what)
    if kind == "sequence_type" and isinstance(given, (list, tuple)):
        for i, part in enumerate(given):
            check_given(type_.sequence_type.elem_type, part, f"{what}, element {i}")
        return None
    if kind == "tensor_type" and isinstance(given, TensorType) and _holds(type_.tensor_type, given, what):
        return None
    raise ModelError(f"{what} is a {describe(type_)}; the type given for it is {given}")


def _holds(tensor: Any, given: TensorType, what: str) -> bool:
    if onnx_dtype(tensor.elem_type, what) is not given.dtype:
        return False
    if not tensor.HasField("shape"):
        return True
    sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in tensor.shape.dim]
    differs = [size >= 0 and is_static(d) and size != d for size, d in zip(sizes, given.shape)]
    return len(sizes) == given.rank and not any(differs)


_WORDS = {"optional_type": "optional", "sequence_type": "seq"}


def describe(type_: Any) -> str:
    """A TypeProto in the standard's own words: seq(tensor(float))."""
    kind = type_.WhichOneof("value")
    if kind in _WORDS:
        return f"{_WORDS[kind]}({describe(getattr(type_, kind).elem_type)})"
    if kind != "tensor_type":
        return str(kind).removesuffix("_type")
    from onnx import TensorProto
    return f"tensor({TensorProto.DataType.Name(type_.tensor_type.elem_type).lower()})"
