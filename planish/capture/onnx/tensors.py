"""Tensor content of ONNX files: a TensorProto goes in, a read-only array comes out.

Raw bytes are not copied again, but for elements of less than 8 bits, which get a byte each. External data is
mapped, not read, and confined to the model's folder: a relative path without "..", no link on the way, a
regular file, a range inside it. Whatever does not fit is a ModelError.
"""
from __future__ import annotations

import os
import stat
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from planish.errors import ModelError, UnsupportedDType
from planish.ops.mapped import map_file
from planish.types import STRING, DType, dtype_of

MOST_DENSE = 2 << 30  # bytes of a sparse tensor that is stored densely


def onnx_dtype(elem_type: int, what: str) -> DType:
    """The dtype of an ONNX element type number. Raises UnsupportedDType naming `what` has it."""
    from onnx import TensorProto, helper
    try:
        return dtype_of(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, UnsupportedDType) as error:
        known = elem_type in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(elem_type) if known else f"number {elem_type}"
        raise UnsupportedDType(f"{what} has element type {name}, which planish does not have") from error


def onnx_type_number(dtype: DType) -> int:
    """The inverse of `onnx_dtype`."""
    from onnx import helper
    return helper.np_dtype_to_tensor_dtype(dtype.numpy)


def to_array(tensor: Any, folder: Path | None, what: str, content: np.ndarray | None = None) -> np.ndarray:
    """The array of a TensorProto. `folder` is where external data may lie (None: the model came as bytes);
    `content` are its bytes where they were taken out of it."""
    from onnx import TensorProto, numpy_helper
    dtype = onnx_dtype(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise ModelError(f"{what} has a negative size: {shape}")
    if dtype is STRING:
        array = _text(tensor, prod(shape), what)
    elif tensor.data_location == TensorProto.EXTERNAL:
        array = _external(tensor, dtype, prod(shape), folder, what)
    elif content is not None:
        array = _from_bytes(content, dtype, prod(shape), what)
    elif tensor.HasField("raw_data"):
        array = _from_bytes(tensor.raw_data, dtype, prod(shape), what)
    else:
        array = _from_fields(numpy_helper, tensor, dtype, prod(shape), what)
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def to_dense(sparse: Any, folder: Path | None, what: str) -> np.ndarray:
    """The array of a SparseTensorProto: `values` stand at `indices`, which count the elements ([NNZ]) or
    each axis ([NNZ, rank]); zeros elsewhere."""
    values, indices = to_array(sparse.values, folder, what), to_array(sparse.indices, folder, what)
    shape = tuple(sparse.dims)
    if values.ndim != 1 or indices.shape not in ((values.size,), (values.size, len(shape))):
        raise ModelError(f"{what}: values {values.shape}, indices {indices.shape} for {len(shape)} axes")
    if any(size < 0 for size in shape) or prod(shape) * values.itemsize > MOST_DENSE:
        raise ModelError(f"{what} is not stored as a dense tensor: its sizes are {shape}")
    per_axis = indices.T if indices.ndim == 2 else indices[None]
    limits = np.array(shape if indices.ndim == 2 else (prod(shape),), np.int64)[:, None]
    if ((per_axis < 0) | (per_axis >= limits)).any():
        raise ModelError(f"{what} has indices outside {shape}")
    dense = np.zeros(shape if indices.ndim == 2 else prod(shape), values.dtype)
    dense[tuple(per_axis)] = values
    dense = dense.reshape(shape)
    dense.flags.writeable = False
    return dense


def _text(tensor: Any, count: int, what: str) -> np.ndarray:
    if len(tensor.string_data) != count:
        raise ModelError(f"{what} needs {count} strings and has {len(tensor.string_data)}")
    array = np.empty(count, object)
    array[:] = [decoded(value, what) for value in tensor.string_data]
    return array


def decoded(value: bytes, what: str) -> str:
    """Text of a model. Raises ModelError for what is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} has text that is not UTF-8: {value[:40]!r}") from error


def _from_bytes(data: bytes | np.ndarray, dtype: DType, count: int, what: str) -> np.ndarray:
    if len(data) != _stored_bytes(dtype, count):
        raise ModelError(f"{what} needs {_stored_bytes(dtype, count)} bytes and has {len(data)}")
    return _decoded(data, dtype, count)


def _is_packed(dtype: DType) -> bool:
    return dtype.is_storage and dtype.bits < 8


def _stored_bytes(dtype: DType, count: int) -> int:
    """In raw form; elements of less than 8 bits lie close to one another, the first in the lowest bits."""
    return -(-count * dtype.bits // 8) if _is_packed(dtype) else count * dtype.itemsize


def _decoded(data: Any, dtype: DType, count: int) -> np.ndarray:
    """The elements in a buffer of as many bytes as they need."""
    if not _is_packed(dtype):
        return np.frombuffer(data, dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False)
    packed = np.frombuffer(data, np.uint8)
    if 8 % dtype.bits == 0:
        elements = packed[:, None] >> np.arange(0, 8, dtype.bits, dtype=np.uint8) & (2 ** dtype.bits - 1)
    else:
        bits = np.unpackbits(packed, count=count * dtype.bits, bitorder="little")
        elements = np.packbits(bits.reshape(count, dtype.bits), axis=1, bitorder="little")
    return elements.reshape(-1)[:count].view(dtype.numpy)


_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _from_fields(numpy_helper: Any, tensor: Any, dtype: DType, count: int, what: str) -> np.ndarray:
    stored = max(len(getattr(tensor, field)) for field in _FIELDS)
    in_bytes = dtype.is_storage and 8 % dtype.bits == 0  # a number of a field is one packed byte
    wanted = _stored_bytes(dtype, count) if in_bytes else count
    if stored != wanted:
        raise ModelError(f"{what} needs {wanted} elements and has {stored}")
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{what} can't be read: {error}") from error


def _external(tensor: Any, dtype: DType, count: int, folder: Path | None, what: str) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _confined(entries.get("location", ""), folder, what)
    size, offset = _stored_bytes(dtype, count), _number(entries, "offset", 0, what)
    length, held = _number(entries, "length", size, what), path.stat().st_size
    if length != size:
        raise ModelError(f"{what} needs {size} bytes; its external data has {length}")
    if offset + length > held:
        raise ModelError(f"{what} needs bytes {offset} to {offset + length} of {path.name}, which has {held}")
    if count == 0:
        return np.empty(0, dtype.numpy)
    mapped, _ = map_file(path)
    return _decoded(np.frombuffer(mapped, np.uint8, length, offset), dtype, count)


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise ModelError(f"{what}: {key} of its external data is {text!r}, not a number of bytes")
    return int(text)


def _confined(location: str, folder: Path | None, what: str) -> Path:
    """The file external data lies in, provably inside `folder` and not reached through a link."""
    if folder is None:
        raise ModelError(f"{what} is external data; load the model by its path, not as bytes")
    parts = PurePosixPath(location).parts
    absolute = location.startswith(("/", "\\")) or bool(PureWindowsPath(location).drive)
    if not parts or absolute or ".." in parts or "\\" in location or "\0" in location:
        raise ModelError(f"{what}: external data {location!r} is not a plain path inside the model's folder")
    path = folder
    for part in parts:
        path = path / part
        mode = _mode(path, what)
        if stat.S_ISLNK(mode):
            raise ModelError(f"{what}: external data {location!r} goes through a link, {part!r}")
    if not stat.S_ISREG(mode):
        raise ModelError(f"{what}: external data {location!r} is not a regular file")
    return path


def _mode(path: Path, what: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError as error:
        raise ModelError(f"{what}: external data file {path.name!r} is missing beside the model") from error
