"""How a model's inputs and outputs, among them sequences and optionals, are laid out in its graph.

A graph takes and gives tensors. An input or output of the model that is a sequence becomes one of the graph
per element, called "name.0", "name.1"...; an optional that holds nothing becomes none. A `Form` records that;
it is

    an int           a tensor: its place among the graph's inputs or outputs
    a tuple          a sequence of Forms
    None             an optional that holds nothing

What an input holds is not in the model where it is a sequence, an optional, or a tensor of unknown rank: the
caller says it by a `Given`, a TensorType, a list of Givens, or None; `given_of(value)` is the one of a value.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.capture.onnx.model import Model
from planish.errors import SignatureError
from planish.ir import Graph
from planish.types import TensorType, dtype_of

Form = int | None | tuple["Form", ...]
Given = TensorType | None | Sequence["Given"]


@dataclass(frozen=True)
class CapturedModel:
    """A model's graph, and the Forms of the model's inputs (those given as constants are left out) and
    outputs by name, in the model's order."""

    graph: Graph
    inputs: Mapping[str, Form]
    outputs: Mapping[str, Form]

    def arrays(self, feeds: Mapping[str, Any]) -> list[Any]:
        """What the graph takes, of the model's inputs by name: arrays, lists of them, None.

        Raises SignatureError for a value that is not laid out as its Form.
        """
        placed: dict[int, Any] = {}
        for name, form in self.inputs.items():
            placed.update(_leaves(form, feeds[name], name))
        return [placed[i] for i in range(len(placed))]

    def values(self, arrays: Sequence[Any], names: Iterable[str] | None = None) -> list[Any]:
        """The model's outputs (all, or those of `names`) of what the graph gave: arrays, lists, None."""
        return [_value(self.outputs[n], arrays) for n in (self.outputs if names is None else names)]


def given_of(value: Any) -> Given:
    """What an input of this value holds: an array's type, all sizes fixed; that of a list; None."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [given_of(v) for v in value]
    array = np.asarray(value)
    return TensorType(dtype_of(array), array.shape)


def open_inputs(model: Model) -> tuple[str, ...]:
    """The inputs whose type the model leaves open: `types` is to have them."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    return tuple(v.name for v in model.graph.input if v.name not in defaults and is_open(v))


def is_open(value: Any) -> bool:
    """Whether a ValueInfoProto says too little: it is no tensor, or one of unknown rank."""
    return value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape")


def _leaves(form: Form, value: Any, name: str) -> Iterator[tuple[int, Any]]:
    """(place, array) of each tensor in a value."""
    if form is None or isinstance(form, int):
        if (value is None) is not (form is None) or isinstance(value, (list, tuple)):
            raise SignatureError(f"input {name}: expected {_described(form)}, got {_kind(value)}")
        if form is not None:
            yield form, value
        return
    if not isinstance(value, (list, tuple)) or len(value) != len(form):
        raise SignatureError(f"input {name}: expected {_described(form)}, got {_kind(value)}")
    for i, (part, element) in enumerate(zip(form, value)):
        yield from _leaves(part, element, f"{name}.{i}")


def _described(form: Form) -> str:
    if form is None:
        return "None (it was compiled without this input)"
    return "an array" if isinstance(form, int) else f"a list of {len(form)}"


def _kind(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__


def _value(form: Form, arrays: Sequence[Any]) -> Any:
    if isinstance(form, tuple):
        return [_value(part, arrays) for part in form]
    return None if form is None else arrays[form]
