"""Values with a place of their own: `OrtValue`, and `IOBinding`, which ties them to a session's names.

All memory is the CPU's. An OrtValue refers to the array it is made from, without a copy.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planish.onnx.description import spell_element
from planish.onnx.errors import InvalidArgument

if TYPE_CHECKING:
    from planish.onnx.session import InferenceSession


def _require_cpu(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise InvalidArgument(f"there is no device {device_type!r}; planish's session runs on the cpu")


class OrtDevice:
    """Where memory lies. There is one place: the CPU's."""

    def __init__(self, device_type: int = 0, memory_type: int = 0, device_id: int = 0):
        self._parts = device_type, memory_type, device_id

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def default_memory() -> int:
        return 0

    @staticmethod
    def make(device_type: str, device_id: int = 0) -> OrtDevice:
        _require_cpu(device_type)
        return OrtDevice(0, 0, device_id)

    def device_type(self) -> str:
        return "cpu"

    def device_id(self) -> int:
        return self._parts[2]


class OrtValue:
    """A tensor (an array), a sequence (a list of arrays), or nothing (None)."""

    def __init__(self, value: Any):
        self._value = value

    # --- making one

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        _require_cpu(device_type)
        return cls(np.asarray(array))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """Bits of an element type that NumPy has no name for, held in integers of the same width."""
        return cls(np.asarray(data).view(_numpy_type(onnx_element_type)))

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu",
                                     device_id: int = 0) -> OrtValue:
        """A tensor of zeros; `element_type` is a NumPy dtype, or an ONNX number."""
        _require_cpu(device_type)
        dtype = _numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
        return cls(np.zeros(tuple(shape), dtype))

    # --- asking it

    def numpy(self) -> np.ndarray:
        if not self.is_tensor():
            raise RuntimeError("Only OrtValues that are Tensors are convertible to Numpy objects")
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)
        return array.copy() if copy else array

    def update_inplace(self, array: np.ndarray) -> None:
        """Overwrite the tensor with another of the same dtype and shape."""
        ours = self.numpy()
        if (array.dtype, array.shape) != (ours.dtype, ours.shape):
            raise InvalidArgument(f"{array.dtype}{list(array.shape)} in the place of "
                                  f"{ours.dtype}{list(ours.shape)}")
        np.copyto(ours, array)

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def shape(self) -> list[int]:
        return list(self.numpy().shape)

    def element_type(self) -> int:
        from onnx import helper

        array = self.numpy()
        return 8 if array.dtype.kind in "OU" else int(helper.np_dtype_to_tensor_dtype(array.dtype))

    def data_type(self) -> str:
        """`tensor(float)`, `seq(tensor(int64))`."""
        if self.is_tensor_sequence():
            return f"seq({OrtValue(self._value[0]).data_type()})" if self._value else "seq(tensor(float))"
        return f"tensor({spell_element(self.element_type())})"

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self.numpy().ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return self.numpy().nbytes


def _numpy_type(number: int) -> np.dtype:
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


def unwrapped(value: Any) -> Any:
    """The array, list or None of a value that may be an OrtValue."""
    return value._value if isinstance(value, OrtValue) else value


class IOBinding:
    """Inputs and outputs of a session, bound by name; `session.run_with_iobinding` runs on them."""

    def __init__(self, session: InferenceSession):
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, np.ndarray | None] = {}  # output -> memory it is written to
        self._outputs: list[OrtValue] = []
        self._known = ({a.name for a in (*session.get_inputs(), *session.get_overridable_initializers())},
                       {a.name for a in session.get_outputs()})

    # --- inputs

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        self._inputs[self._input(name)] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[self._input(name)] = unwrapped(ortvalue)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int],
                   buffer_ptr: int) -> None:
        """Bind memory of the caller's by its address; it must stay while the binding is used."""
        _require_cpu(device_type)
        self._inputs[self._input(name)] = _at_address(buffer_ptr, element_type, shape)

    # --- outputs

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
                    shape: Sequence[int] | None = None, buffer_ptr: int | None = None) -> None:
        """Let a run give this output, in new memory or in the caller's."""
        _require_cpu(device_type)
        memory = None if buffer_ptr is None else _at_address(buffer_ptr, element_type, shape or ())
        self._targets[self._output(name)] = memory

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._targets[self._output(name)] = ortvalue.numpy()

    def get_outputs(self) -> list[OrtValue]:
        """What the last run gave, in the order in which outputs were bound."""
        return self._outputs

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [unwrapped(value) for value in self._outputs]

    # --- the rest

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._targets.clear()
        self._outputs = []

    def synchronize_inputs(self) -> None:
        """Memory of the CPU is always up to date."""

    def synchronize_outputs(self) -> None:
        """Memory of the CPU is always up to date."""

    def run(self, session: InferenceSession, run_options: Any) -> None:
        """Run a session on what is bound."""
        results = session.run(list(self._targets), self._inputs, run_options) if self._targets else []
        self._outputs = [OrtValue(_delivered(name, value, memory))
                         for (name, memory), value in zip(self._targets.items(), results)]

    def _input(self, name: str) -> str:
        if name not in self._known[0]:
            raise InvalidArgument(f"Failed to find input name in the model: {name}")
        return name

    def _output(self, name: str) -> str:
        if name not in self._known[1]:
            raise InvalidArgument(f"Failed to find output name in the model: {name}")
        return name


def _delivered(name: str, value: Any, memory: np.ndarray | None) -> Any:
    """A result, in the memory that was bound for it."""
    if memory is None:
        return value
    if (memory.dtype, memory.shape) != (value.dtype, value.shape):
        raise InvalidArgument(f"output {name} is {value.dtype}{list(value.shape)}; the memory bound for it "
                              f"is {memory.dtype}{list(memory.shape)}")
    np.copyto(memory, value)
    return memory


def _at_address(address: int, element_type: Any, shape: Sequence[int]) -> np.ndarray:
    dtype = _numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_uint8 * count).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8).view(dtype).reshape(tuple(shape))
