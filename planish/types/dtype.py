"""Element types. One frozen record per dtype; NumPy's own dtype beside it (those NumPy lacks from ml_dtypes).

`DTYPES` are those that ops compute with. `STORAGE` are floats of 8 bits and less and integers of 4 and 2:
they are read, written, moved and cast, and no arithmetic takes them. In memory each element has its own byte.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from planish.errors import SignatureError, UnsupportedDType


@dataclass(frozen=True, eq=False)
class DType:
    """`name` is NumPy's; `short` is what the text forms print; `kind` is one of bool, int, uint, float.

    `bits` are those that carry the value. `is_storage`: no arithmetic takes it.
    """

    name: str
    short: str
    kind: str
    bits: int
    numpy: np.dtype
    is_storage: bool = False

    @property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_narrow_float(self) -> bool:
        """float16 and bfloat16: computed in float32 and rounded after every operation."""
        return self.is_float and self.bits == 16

    @property
    def accumulator(self) -> DType:
        """The type in which sums and products of many elements are kept."""
        return FLOAT32 if self.is_narrow_float else self

    def __repr__(self) -> str:
        return self.short

    def __reduce__(self) -> str | tuple:
        return dtype_of, (self.name,)


def _integer(bits: int, kind: str) -> DType:
    name = f"{kind}{bits}"
    return DType(name, f"{kind[0]}{bits}", kind, bits, np.dtype(name))


BOOL = DType("bool", "bool", "bool", 8, np.dtype(bool))
INT8, INT16, INT32, INT64 = (_integer(bits, "int") for bits in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (_integer(bits, "uint") for bits in (8, 16, 32, 64))
FLOAT16 = DType("float16", "f16", "float", 16, np.dtype(np.float16))
BFLOAT16 = DType("bfloat16", "bf16", "float", 16, np.dtype(ml_dtypes.bfloat16))
FLOAT32 = DType("float32", "f32", "float", 32, np.dtype(np.float32))
FLOAT64 = DType("float64", "f64", "float", 64, np.dtype(np.float64))

DTYPES = (BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64)


def _stored(name: str, kind: str, bits: int) -> DType:
    """`float8_e4m3fn` is f8e4m3fn for short."""
    short = kind[0] + name.removeprefix(kind).replace("_", "")
    return DType(name, short, kind, bits, np.dtype(getattr(ml_dtypes, name)), is_storage=True)


FLOAT8_E4M3FN = _stored("float8_e4m3fn", "float", 8)
FLOAT8_E4M3FNUZ = _stored("float8_e4m3fnuz", "float", 8)
FLOAT8_E5M2 = _stored("float8_e5m2", "float", 8)
FLOAT8_E5M2FNUZ = _stored("float8_e5m2fnuz", "float", 8)
FLOAT8_E8M0FNU = _stored("float8_e8m0fnu", "float", 8)
FLOAT6_E2M3FN = _stored("float6_e2m3fn", "float", 6)
FLOAT6_E3M2FN = _stored("float6_e3m2fn", "float", 6)
FLOAT4_E2M1FN = _stored("float4_e2m1fn", "float", 4)
INT4, UINT4 = _stored("int4", "int", 4), _stored("uint4", "uint", 4)
INT2, UINT2 = _stored("int2", "int", 2), _stored("uint2", "uint", 2)

STORAGE = (FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU, FLOAT6_E2M3FN,
           FLOAT6_E3M2FN, FLOAT4_E2M1FN, INT4, UINT4, INT2, UINT2)
_ALL = (*DTYPES, *STORAGE)
_BY_NUMPY = {d.numpy: d for d in _ALL}
_BY_NAME = {d.name: d for d in _ALL} | {d.short: d for d in _ALL}


def python_number(value: Any) -> bool | int | float:
    """A NumPy scalar as Python has it: the same number, exactly."""
    dtype = dtype_of(value)
    return float(value) if dtype.is_float else int(value) if dtype.is_integer else bool(value)


TEXT_KINDS = "OUT"  # NumPy's kinds of arrays that may hold text: object, str of fixed and of variable width
STRING = DType("string", "str", "string", 8 * np.dtype(object).itemsize, np.dtype(object))
"""Text, in arrays of dtype object that hold str. Only host functions take it; it is in no list of dtypes."""


def dtype_of(what: Any) -> DType:
    """The DType of a name ("float32", "f32"), a NumPy dtype, scalar type or array. Raises
    UnsupportedDType."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what in (*_BY_NAME, STRING.name, STRING.short):
        return _BY_NAME.get(what, STRING)
    of = what if isinstance(what, type) else getattr(what, "dtype", what)
    try:
        dtype = np.dtype(of)
        found = STRING if dtype.kind in TEXT_KINDS else _BY_NUMPY.get(dtype.newbyteorder("="))
    except TypeError:
        found = None
    if found is None:
        known = ", ".join(d.name for d in _ALL)
        raise UnsupportedDType(f"dtype {of} is not supported; supported are {known}")
    return found


def number_dtype_of(what: Any) -> DType:
    """As `dtype_of`; text raises UnsupportedDType."""
    found = dtype_of(what)
    if found is STRING:
        raise UnsupportedDType(f"dtype {getattr(what, 'dtype', what)} is not supported; supported are "
                               + ", ".join(d.name for d in DTYPES))
    return found


def as_text(array: np.ndarray) -> np.ndarray:
    """An array of text as planish keeps it: dtype object, holding str. UTF-8 bytes are decoded.

    Raises SignatureError for elements that are something else.
    """
    objects = array.astype(object, order="C")
    flat = objects.reshape(-1)
    for i, value in enumerate(flat):
        if isinstance(value, bytes):
            flat[i] = _decoded(value)
        elif not isinstance(value, str):
            raise SignatureError(f"an array of dtype {array.dtype} is to hold text; element {i} is a "
                                 f"{type(value).__name__}")
    return objects


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise SignatureError(f"text is to be UTF-8, not {value[:40]!r}") from error
