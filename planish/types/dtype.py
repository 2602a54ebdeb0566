"""Element types. One frozen record per dtype; NumPy's own dtype beside it (bfloat16 from ml_dtypes)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from planish.errors import UnsupportedDType


@dataclass(frozen=True, eq=False)
class DType:
    """`name` is NumPy's; `short` is what the text forms print; `kind` is one of bool, int, uint, float."""

    name: str
    short: str
    kind: str
    bits: int
    numpy: np.dtype

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
_BY_NUMPY = {d.numpy: d for d in DTYPES}
_BY_NAME = {d.name: d for d in DTYPES} | {d.short: d for d in DTYPES}


def dtype_of(what: Any) -> DType:
    """The DType of a name ("float32", "f32"), a NumPy dtype, scalar type or array. Raises
    UnsupportedDType."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what in _BY_NAME:
        return _BY_NAME[what]
    of = what if isinstance(what, type) else getattr(what, "dtype", what)
    try:
        found = _BY_NUMPY.get(np.dtype(of).newbyteorder("="))
    except TypeError:
        found = None
    if found is None:
        known = ", ".join(d.name for d in DTYPES)
        raise UnsupportedDType(f"dtype {of} is not supported; supported are {known}")
    return found
