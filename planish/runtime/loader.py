"""Puts a `Blob` into memory and makes it runnable.

In: a checked blob, and addresses of symbols that others provide (our runtime's own, NumPy's table). Out:
`LoadedCode`. Memory is written first and made executable after: no page is ever both. Imports come from a
fixed allowlist of the C and math libraries and of CPython's own C interface, so that a hostile engine file
can't name anything else.
"""
from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
from collections.abc import Mapping

from planish.errors import LinkError
from planish.runtime.blob import Blob, check

_MATH = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot",
    "ldexp", "lgamma", "log", "log10", "log1p", "log2", "modf", "nearbyint", "nextafter", "pow", "remainder",
    "rint", "round", "roundeven", "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc")

# What compiled programs may import beside our runtime's own functions; what only the runtime itself may.
PROGRAM_NAMES = frozenset((
    *_MATH, *(f"{name}f" for name in _MATH), "memcpy", "memmove", "memset", "memcmp", "bcmp"))
SYSTEM_NAMES = frozenset((
    "aligned_alloc", "free", "mmap", "munmap", "madvise", "syscall", "pthread_create", "pthread_detach",
    "pthread_sigmask", "__register_atfork"))
PYTHON_NAMES = frozenset((
    "Py_IncRef", "Py_DecRef", "PyCapsule_New", "PyCapsule_GetPointer", "PyCapsule_GetContext",
    "PyCapsule_SetContext", "PyObject_CallObject", "PyTuple_New", "PyTuple_SetItem", "PyTuple_GetItem",
    "PyTuple_Size", "PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_NoMemory", "PyLong_FromLong",
    "PyErr_Clear", "PyErr_Occurred", "PyFloat_AsDouble", "PyLong_AsLongLong", "PyObject_VectorcallMethod",
    "PyDict_Size", "_PyObject_GetDictPtr"))
RUNTIME_NAMES = PROGRAM_NAMES | SYSTEM_NAMES | PYTHON_NAMES

_READ_EXECUTE = 1 | 4


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def import_address(name: str, allowed: frozenset[str] = PROGRAM_NAMES) -> int:
    """The address of an allowed C or CPython symbol. LinkError for any other name, or where this system lacks
    it."""
    if name not in allowed:
        raise LinkError(f"native code wants {name!r}, which is not on the list of allowed imports")
    library = ctypes.pythonapi if name in PYTHON_NAMES else _c_library()
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise LinkError(f"native code wants {name!r}, which this system's libraries do not have") from None


class LoadedCode:
    """A blob in memory. Its pages live as long as this object: whoever holds an address must hold the object
    too."""

    def __init__(self, blob: Blob, provided: Mapping[str, int] | None = None,
                 allowed: frozenset[str] = PROGRAM_NAMES):
        check(blob)
        if blob.machine != _machine():
            raise LinkError(f"native code for {blob.machine} can't run on this {_machine()}")
        self.symbols = blob.symbols
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a forked child gets its own copy of the data
        self._memory = mmap.mmap(-1, max(blob.size, mmap.PAGESIZE), flags=private)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._memory[:len(blob.code)] = blob.code
        self._memory[blob.data_at:blob.size] = blob.data
        self._fill(blob, provided or {}, allowed)
        self._protect(blob)

    def _fill(self, blob: Blob, provided: Mapping[str, int], allowed: frozenset[str]) -> None:
        for item in blob.imports:
            known = item.name in provided
            address = provided[item.name] if known else import_address(item.name, allowed)
            struct.pack_into("<Q", self._memory, item.at, (address + item.addend) % (1 << 64))
        for place, target in blob.fixups:
            struct.pack_into("<Q", self._memory, place, self.base + target)

    def _protect(self, blob: Blob) -> None:
        length = -(-len(blob.code) // mmap.PAGESIZE) * mmap.PAGESIZE
        if blob.data and length > blob.data_at:
            raise LinkError(f"pages of {mmap.PAGESIZE} bytes here would be both writable and executable")
        if _c_library().mprotect(ctypes.c_void_p(self.base), ctypes.c_size_t(length), _READ_EXECUTE):
            raise LinkError(f"the system refuses executable memory (errno {ctypes.get_errno()})")
        if blob.machine == "aarch64":
            _flush_instructions(self.base, length)

    def address(self, symbol: str) -> int:
        """Where an exported symbol lies. LinkError when there is none of that name."""
        if symbol not in self.symbols:
            raise LinkError(f"native code exports no {symbol!r}; it has {', '.join(sorted(self.symbols))}")
        return self.base + self.symbols[symbol]


def _machine() -> str:
    name = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _flush_instructions(start: int, length: int) -> None:
    """Arm does not keep instruction caches coherent with stores; libgcc has the sequence."""
    try:
        clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError):
        raise LinkError("libgcc_s.so.1 is needed on Arm to publish new code") from None
    clear(ctypes.c_void_p(start), ctypes.c_void_p(start + length))
