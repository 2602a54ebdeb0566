"""What a model says of itself: its inputs and outputs, and where it comes from.

In: the protobuf messages of a model. Out: `NodeArg` and `ModelMetadata`, which print as ONNX Runtime's do.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planish.capture.onnx.symbols import fixed_size

Size = int | str | None

# ONNX's names of element types that differ from C++'s, which ONNX Runtime prints
_SPELLED = {"FLOAT": "float", "DOUBLE": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, its type as ONNX Runtime spells it, and its sizes: numbers, names of
    those that are open, None for those without a name. No sizes at all where the rank is open."""

    name: str
    type: str
    shape: list[Size]


@dataclass(frozen=True)
class ModelMetadata:
    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


UNKNOWN_VERSION = 2**63 - 1


def metadata_of(proto: Any) -> ModelMetadata:
    """The metadata of a ModelProto."""
    version = proto.model_version if proto.HasField("model_version") else UNKNOWN_VERSION
    return ModelMetadata(proto.producer_name, proto.graph.name, proto.domain, proto.doc_string,
                         proto.graph.doc_string, version, {p.key: p.value for p in proto.metadata_props})


def argument_of(value: Any, inferred: Sequence[Size] = ()) -> NodeArg:
    """The description of a ValueInfoProto; `inferred` are sizes for those it leaves open."""
    kind = value.type.WhichOneof("value")
    shape = declared_sizes(value.type.tensor_type) if kind == "tensor_type" else []
    if len(shape) != len(inferred):
        shape = shape or list(inferred)
    else:
        shape = [b if a is None else a for a, b in zip(shape, inferred)]
    return NodeArg(value.name, spell_type(value.type), shape)


def declared_sizes(tensor: Any) -> list[Size]:
    return [_size(dim) for dim in tensor.shape.dim]


def _size(dim: Any) -> Size:
    fixed = fixed_size(dim)
    return fixed if fixed is not None else dim.dim_param or None


def spell_type(type_: Any) -> str:
    """`tensor(float)`, `seq(tensor(int64))`, `optional(...)`, `map(string,tensor(float))` of a TypeProto."""
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return f"{kind.removesuffix('_type')}({spell_element(getattr(type_, kind).elem_type)})"
    if kind == "sequence_type":
        return f"seq({spell_type(type_.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({spell_type(type_.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({spell_element(type_.map_type.key_type)},{spell_type(type_.map_type.value_type)})"
    return "unknown"


def spell_element(number: int) -> str:
    """The element type of a TensorProto number: float, int64, bfloat16..."""
    from onnx import TensorProto

    if number not in TensorProto.DataType.values():
        return f"number {number}"
    name = TensorProto.DataType.Name(number)
    return _SPELLED.get(name, name.lower())
