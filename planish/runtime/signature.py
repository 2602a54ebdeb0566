"""The unusual half of a call: arguments that are not exactly what a program takes.

In: whatever a caller passed. Out: arrays as the builtin takes them, or the one error that names argument,
expected and got. A contiguous copy is made of a strided or misaligned array, a subclass is read as the array
it is; a dtype is never changed.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from planish.errors import ShapeError, SignatureError
from planish.runtime.loader import LoadedCode
from planish.runtime.spec import ArraySpec, DimRef, ProgramSpec
from planish.types import dtype_of

_derive_function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Signature:
    """A program's inputs, and the sizes that follow from them. `derive` is planish_derive's address, 0
    without symbols."""

    def __init__(self, code: LoadedCode, spec: ProgramSpec):
        self.code, self.spec = code, spec  # the code is held because `derive` lies in it
        self.dtypes = [dtype_of(s.dtype).numpy for s in spec.inputs]
        self.derive = code.address("planish_derive") if spec.n_dims else 0

    def normalise(self, names: tuple[str, ...], *values: Any) -> tuple[np.ndarray, ...]:
        """Arguments as the builtin takes them: plain, contiguous, aligned arrays of the native byte order.
        The last values belong to the keywords `names`."""
        positional = len(values) - len(names)
        given = self._bind(values[:positional], dict(zip(names, values[positional:], strict=True)))
        taken = tuple(self._plain(i, a) for i, a in enumerate(given))
        self.dims_of(taken)
        return taken

    def _bind(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        names = [s.name for s in self.spec.inputs]
        given = dict(zip(names, arrays, strict=False))
        unknown = [n for n in named if n not in names or n in given]
        takes = f"the program takes {len(names)} arrays ({', '.join(names)})"
        if len(arrays) > len(names) or unknown:
            extra = f"{unknown[0]!r} is unknown or given twice" if unknown else f"{len(arrays)} are given"
            raise SignatureError(f"{takes}; {extra}")
        given |= named
        if missing := [n for n in names if n not in given]:
            raise SignatureError(f"{takes}; missing: {', '.join(missing)}")
        return [given[n] for n in names]

    def _plain(self, index: int, array: Any) -> np.ndarray:
        spec, dtype = self.spec.inputs[index], self.dtypes[index]
        where = f"argument {spec.name!r}: expected"
        if not isinstance(array, (np.ndarray, np.generic)) or isinstance(array, np.ma.MaskedArray):
            raise SignatureError(f"{where} a NumPy array {spec}, got {type(array).__name__}")
        plain = np.asarray(array)
        got = f"got {plain.dtype}{list(plain.shape)}"
        if plain.dtype.newbyteorder("=") != dtype:
            raise SignatureError(f"{where} {spec}, {got}; convert it with .astype({spec.dtype!r}), "
                                 f"or compile for {plain.dtype}")
        if not self._fits(spec, plain.shape):
            raise ShapeError(f"{where} {spec}, {got}")
        ready = np.require(plain.astype(dtype, copy=False), requirements=["C", "A"]).reshape(plain.shape)
        return ready if ready.dtype is dtype else ready.view(dtype)

    @staticmethod
    def _fits(spec: ArraySpec, shape: tuple[int, ...]) -> bool:
        return len(spec.shape) == len(shape) and all(
            isinstance(want, DimRef) or want == got for want, got in zip(spec.shape, shape, strict=True))

    def dims_of(self, arrays: Sequence[np.ndarray]) -> Any:
        """The call's dims: symbols from the shapes, the rest by planish_derive. ShapeError when they do not
        agree."""
        spec = self.spec
        dims = (ctypes.c_int64 * (spec.n_dims + 1))()
        first: dict[int, str] = {}
        for array, s in zip(arrays, spec.inputs, strict=True):
            for axis, (want, got) in enumerate(zip(s.shape, array.shape, strict=True)):
                if isinstance(want, DimRef) and want.index < spec.n_symbols:
                    self._bind_symbol(dims, first, want.index, got, f"{s.name!r} axis {axis}")
        if spec.n_dims:
            self._derive(dims, arrays)
        for array, s in zip(arrays, spec.inputs, strict=True):
            self._hold_derived(dims, array, s)
        return dims

    def _bind_symbol(self, dims: Any, first: dict[int, str], index: int, size: int, place: str) -> None:
        if index in first and dims[index] != size:
            raise ShapeError(f"sizes must agree: {first[index]} is {dims[index]}, {place} is {size}")
        first.setdefault(index, place)
        dims[index] = size

    def _derive(self, dims: Any, arrays: Sequence[np.ndarray]) -> None:
        code = _derive_function(self.derive)(ctypes.addressof(dims))
        if code:
            unknown = ("ShapeError", "sizes outside the range the program was compiled for")
            _, text = self.spec.messages.get(code, unknown)
            pairs = zip(self.spec.inputs, arrays, strict=True)
            given = ", ".join(f"{s.name}{list(a.shape)}" for s, a in pairs)
            raise ShapeError(f"{text}; got {given}")

    def _hold_derived(self, dims: Any, array: np.ndarray, spec: ArraySpec) -> None:
        for axis, (want, got) in enumerate(zip(spec.shape, array.shape, strict=True)):
            if isinstance(want, DimRef) and dims[want.index] != got:
                expected = dims[want.index]
                raise ShapeError(f"argument {spec.name!r} axis {axis}: expected {expected}, got {got}")
