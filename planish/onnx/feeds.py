"""What a caller passes for an input -> arrays of the model's types, or the one error that says why not.

Accepted, as ONNX Runtime does: arrays of the input's own dtype, laid out in any way; nested lists of numbers,
which take the input's dtype; OrtValues; a list of such for a sequence; None for an optional. Another dtype,
rank or size is an InvalidArgument.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planish.capture.onnx.symbols import fixed_size
from planish.onnx.description import NodeArg, argument_of, spell_element
from planish.onnx.errors import InvalidArgument
from planish.onnx.values import unwrapped


class Input:
    """An input of a model: its description, and how a value for it is read."""

    def __init__(self, value: Any):
        self.name: str = value.name
        self.proto = value.type
        self.description: NodeArg = argument_of(value)
        self.is_optional = value.type.WhichOneof("value") == "optional_type"

    def converted(self, value: Any) -> Any:
        """An array, a list of them, or None. Raises InvalidArgument."""
        return _converted(self.name, self.proto, unwrapped(value))


def check_names(feeds: Mapping[str, Any], required: Sequence[Input], known: Mapping[str, Input]) -> None:
    """Raises ValueError for inputs that are missing, as ONNX Runtime does, and InvalidArgument for names
    that are no inputs."""
    missing = [one.name for one in required if one.name not in feeds and not one.is_optional]
    if missing:
        raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).")
    for name in feeds:
        if name not in known:
            raise InvalidArgument(f"Invalid input name: {name}")


def _converted(name: str, type_: Any, value: Any) -> Any:
    kind = type_.WhichOneof("value")
    if kind == "optional_type":
        return None if value is None else _converted(name, type_.optional_type.elem_type, unwrapped(value))
    if kind == "sequence_type":
        if not isinstance(value, (list, tuple)):
            raise InvalidArgument(f"input {name}: a sequence is a list, not {type(value).__name__}")
        return [_converted(f"{name}[{i}]", type_.sequence_type.elem_type, unwrapped(element))
                for i, element in enumerate(value)]
    array = _array(name, type_.tensor_type.elem_type, value)
    _check_shape(name, type_.tensor_type, array.shape)
    return array


def _array(name: str, elem_type: int, value: Any) -> np.ndarray:
    from onnx import TensorProto, helper

    if isinstance(value, (list, tuple)):
        return _from_list(name, elem_type, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        raise InvalidArgument(f"input {name}: {type(value).__name__} is not an array")
    array = np.asarray(value)
    if elem_type == TensorProto.STRING:
        if array.dtype.kind in "OUST":
            return array.astype(object)
    elif array.dtype.newbyteorder("=") == helper.tensor_dtype_to_np_dtype(elem_type):
        return array
    raise InvalidArgument(f"Unexpected input data type. Actual: (tensor({_spelled(array.dtype)})) , "
                          f"expected: (tensor({spell_element(elem_type)})), for input {name}")


def _from_list(name: str, elem_type: int, value: Sequence[Any]) -> np.ndarray:
    from onnx import TensorProto, helper

    dtype = object if elem_type == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(elem_type)
    try:
        return np.array(value, dtype)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"input {name}: a list that is no array of {spell_element(elem_type)}: {error}"
                              ) from None


def _spelled(dtype: np.dtype) -> str:
    from onnx import helper

    try:
        return spell_element(8 if dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError):
        return str(dtype)


def _check_shape(name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    """Rank and fixed sizes; that named sizes agree is seen to by the program."""
    if not tensor.HasField("shape"):
        return
    dims = tensor.shape.dim
    advice = "Please fix either the inputs/outputs or the model."
    if len(dims) != len(shape):
        raise InvalidArgument(
            f"Invalid rank for input: {name} Got: {len(shape)} Expected: {len(dims)} {advice}")
    wrong = [(i, got, want) for i, (want, got) in enumerate(zip(map(fixed_size, dims), shape))
             if want is not None and want != got]
    if wrong:
        lines = "".join(f"\n index: {i} Got: {got} Expected: {want}" for i, got, want in wrong)
        raise InvalidArgument(
            f"Got invalid dimensions for input: {name} for the following indices{lines}\n {advice}")
