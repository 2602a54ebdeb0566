"""How the elements of a tensor look in memory and in registers.

In: a dtype's name and a number of lanes. Out: LLVM types, and the loads, stores and roundings between the two
forms.

| dtype | memory | register |
|---|---|---|
| bool | i8, 0 or 1 | i1 |
| int8..uint64 | iN | iN (the sign lives in the operation, as LLVM has it) |
| float16 | half | float, holding a value of the narrow type |
| bfloat16 | i16 | float, holding a value of the narrow type |
| float32, float64 | float, double | float, double |
| those for storage (`STORED`) | i8 | i8: nothing but a cast looks inside |

Values of the two narrow floats are computed in f32 and rounded after every operation (`round_to`), so that
what flows in registers is at any moment what memory would hold.
"""
from __future__ import annotations

import numpy as np

from planish.codegen.llvm import half
from planish.codegen.llvm.builder import Builder, Value, lanes_of, vector
from planish.types import STORAGE, dtype_of

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
NARROW = ("float16", "bfloat16")
FLOATS = (*NARROW, "float32", "float64")
COMPUTED = ("bool", *SIGNED, *UNSIGNED, *FLOATS)
STORED = tuple(d.name for d in STORAGE)
DTYPES = (*COMPUTED, *STORED)

_MEMORY = {"bool": "i8", "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"}
_REGISTER = {"bool": "i1", "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}
_BITS = dict.fromkeys(STORED, 8) | {
    dtype: int("".join(filter(str.isdigit, dtype)) or 8) for dtype in COMPUTED}
_QUIET = 0x00400000  # the bit that keeps a NaN a NaN when its low half is dropped


def bits_of(dtype: str) -> int:
    """The width of one element in memory, in bits."""
    return _BITS[dtype]


def memory_type(dtype: str) -> str:
    return _MEMORY.get(dtype) or f"i{bits_of(dtype)}"


def register_type(dtype: str, lanes: int = 1) -> str:
    return vector(_REGISTER.get(dtype) or f"i{bits_of(dtype)}", lanes)


def constant(b: Builder, dtype: str, number: float | int | bool, lanes: int = 1) -> Value:
    """A literal in register form; `number` must already be a value of the dtype."""
    if dtype in STORED:
        number = int(np.asarray(number).astype(dtype_of(dtype).numpy).view(np.uint8))
    return b.const(register_type(dtype, lanes), number)


def load(b: Builder, dtype: str, pointer: Value, lanes: int = 1, note: str = "") -> Value:
    """Read `lanes` neighbouring elements, in register form; only the element's own alignment is assumed."""
    type_ = memory_type(dtype)
    return from_memory(b, b.load(vector(type_, lanes), pointer, _align(dtype), note), dtype)


def store(b: Builder, x: Value, dtype: str, pointer: Value, note: str = "") -> None:
    b.store(to_memory(b, x, dtype), pointer, _align(dtype), note)


def from_memory(b: Builder, x: Value, dtype: str) -> Value:
    """Memory form -> register form. A bool byte other than 0 and 1 counts as true."""
    lanes = lanes_of(x.type)
    if dtype == "bool":
        return b.cmp("icmp ne", x, b.const(x.type, 0))
    if dtype == "float16":
        return half.widen(b, x)
    if dtype == "bfloat16":
        wide = b.cast("zext", x, vector("i32", lanes))
        return b.cast("bitcast", b.bin("shl", wide, b.const(wide.type, 16)), vector("float", lanes))
    return x


def to_memory(b: Builder, x: Value, dtype: str) -> Value:
    """Register form -> memory form; exact, because narrow floats are already rounded."""
    lanes = lanes_of(x.type)
    if dtype == "bool":
        return b.cast("zext", x, vector("i8", lanes))
    if dtype == "float16":
        return half.narrow(b, x)
    if dtype == "bfloat16":
        high = b.bin("lshr", b.cast("bitcast", x, vector("i32", lanes)), b.const(vector("i32", lanes), 16))
        return b.cast("trunc", high, vector("i16", lanes))
    return x


def round_to(b: Builder, x: Value, dtype: str) -> Value:
    """Round an f32 register to the narrow dtype, ties to even, NaN stays NaN; other dtypes pass unchanged."""
    if dtype == "float16":
        return half.widen(b, half.narrow(b, x))
    if dtype == "bfloat16":
        return _round_to_bfloat16(b, x)
    return x


def _round_to_bfloat16(b: Builder, x: Value) -> Value:
    type_ = vector("i32", lanes_of(x.type))
    bits = b.cast("bitcast", x, type_)
    odd = b.bin("and", b.bin("lshr", bits, b.const(type_, 16)), b.const(type_, 1))
    rounded = b.add(bits, b.add(odd, b.const(type_, 0x7FFF)))
    quiet = b.bin("or", bits, b.const(type_, _QUIET))
    chosen = b.select(b.cmp("fcmp uno", x, x), quiet, rounded)
    return b.cast("bitcast", b.bin("and", chosen, b.const(type_, -0x10000)), x.type)


def _align(dtype: str) -> int:
    return bits_of(dtype) // 8
