"""The process-wide native runtime: thread pool, memory pool and call path, loaded once.

In: nothing, or an image that an engine file carries. Out: `runtime()`. Its code is generated once, kept in
the disk cache and reloaded without LLVM. It is never unloaded: workers may be running in it until the process
ends.
"""
from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np

from planish.codegen.llvm.version import generator_version
from planish.errors import LinkError
from planish.runtime import cache, digest, entry, memory, openmp, packing, pool, tables, tensors, threads
from planish.runtime.blob import Blob
from planish.runtime.link import link
from planish.runtime.loader import RUNTIME_NAMES, LoadedCode
from planish.runtime.resident import leave_libraries

# How long a waiter spins before it sleeps: much longer than a sleeper takes to wake, 15 us on bare metal and
# more on a virtual CPU. With 50 us a late thread sent the other to sleep, whose waking was late for the next
# barrier, and a program of many barriers stayed in that state.
SPIN_SECONDS = 500e-6
_PROVIDED = ("planish_parallel", "planish_barrier", "planish_claim")
_METH_FASTCALL, _METH_KEYWORDS = 0x80, 0x02


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


class Runtime:
    """The loaded runtime. Use `runtime()`; there is one per process.

    `provided`: addresses of what compiled programs may import from it. `why_not_direct`: why arrays are not
    read directly in this interpreter; empty where they are.
    """

    def __init__(self, blob: Blob):
        self.code = LoadedCode(blob, _numpy_symbols(), RUNTIME_NAMES)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.code))  # for ever: see above
        self.memory = memory.Counters.from_address(self.code.address("planish_memory"))
        self.memory.limit = memory.default_limit()
        self.pool = self.code.address("planish_pool")
        self._process = os.getpid()
        self.provided = {name: self.code.address(name) for name in _PROVIDED}
        self._threads = ctypes.c_int64.from_address(self.code.address("planish_threads"))
        self._call("planish_start_memory")
        self._call("planish_start_pool")
        self._rounds = self._spin_rounds()
        self.apply_threads(threads.get_num_threads())
        self.why_not_direct = _layout_fault()
        self._methods = {name: _MethodDef(b"planish_program", self.code.address(name),
                                          _METH_FASTCALL | _METH_KEYWORDS, b"A compiled program.")
                         for name in ("planish_entry", "planish_tensors")}
        self.reads_tensors = False
        if self.why_not_direct:
            warnings.warn("planish calls programs through ctypes, about 50 us slower per call: "
                          f"{self.why_not_direct}", RuntimeWarning, stacklevel=3)

    def trim(self, keep: int) -> None:
        self._call("planish_trim", ctypes.c_int64(keep))

    def apply_threads(self, count: int) -> None:
        """Set the thread count; with more threads than CPUs a waiter sleeps at once."""
        rounds = self._rounds if count <= threads.available_cpus() else 0
        ctypes.c_int32.from_address(self.pool + pool.SPINS).value = rounds
        ctypes.c_int32.from_address(self.pool + pool.LIMIT).value = pool.MAX_THREADS
        self._threads.value = count

    def parallel(self, body: int, frame: int, count: int) -> None:
        """Run a native body on `count` threads, without the interpreter's lock."""
        self._call("planish_parallel", *map(ctypes.c_void_p, (self.pool, body, frame)), ctypes.c_int64(count))

    def join_openmp(self) -> None:
        """From now on programs marked so (tables.OPENMP) run on the threads of the OpenMP library that the
        process has loaded, if it has. Not in a child after a fork, where the library's threads are gone."""
        found = openmp.addresses()
        if found and os.getpid() == self._process:
            place = self.code.address("planish_openmp")
            (ctypes.c_void_p * len(found)).from_address(place)[:] = list(found)

    def read_tensors(self, functions: tuple[int, int], types: tuple[type, type]) -> None:
        """Let builtins take tensors. `functions`: addresses of DLPack's dltensor_from_py_object_no_sync and
        managed_tensor_to_py_object_no_sync; `types`: Tensor and Parameter, which live for ever."""
        self._is_neg = "is_neg"
        held: list[Any] = [*functions, *map(id, types), id(self._is_neg), id(False)]
        place = self.code.address("planish_dlpack")
        (ctypes.c_void_p * len(tensors.DLPACK)).from_address(place)[:] = held
        self.reads_tensors = True

    def builtin(self, table: tables.ProgramTable, owner: Any, entry: str = "planish_entry") -> Any:
        """A builtin that runs the program of `table`, on arrays or ("planish_tensors") on tensors. It keeps
        `owner`, which keeps all that the table points to."""
        capsule = _new_capsule(ctypes.addressof(table), None, self.code.address("planish_program_free"))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        _set_context(capsule, id(owner))
        return _new_builtin(ctypes.addressof(self._methods[entry]), capsule, None)

    def _call(self, name: str, *arguments: Any) -> None:
        _procedure(self.code.address(name))(*arguments)

    def _spin_rounds(self) -> int:
        """How many spin rounds fill SPIN_SECONDS on this CPU: the length of a pause differs fourfold between
        them."""
        word = (ctypes.c_int32 * 2)(0, 0)
        trial = 2000
        wait = _procedure(self.code.address("planish_spin"))
        start = time.perf_counter()
        wait(ctypes.byref(word), ctypes.c_int32(trial))
        return max(1, int(trial * SPIN_SECONDS / max(time.perf_counter() - start, 1e-9)))


_procedure = ctypes.CFUNCTYPE(None)  # arguments are passed as ctypes values
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_set_context = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetContext", ctypes.pythonapi))
_new_builtin = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi))

_running: Runtime | None = None
_starting = threading.Lock()


def runtime(blob: Blob | None = None) -> Runtime:
    """The process's runtime, started on first use: from `blob` (an engine file's), else from the cache, else
    generated."""
    global _running
    if _running is None:
        with _starting:
            if _running is None:
                _running = Runtime(blob or runtime_blob())
                _running.apply_threads(threads.get_num_threads())  # another thread may have set it meanwhile
    return _running


def running() -> Runtime | None:
    """The runtime if it has been started."""
    return _running


def load(blob: Blob) -> LoadedCode:
    """Load a compiled program's code, its imports from our runtime resolved."""
    return LoadedCode(blob, runtime().provided)


def runtime_blob(machine: str | None = None, head: int = object.__basicsize__) -> Blob:
    """The linked runtime for a machine ("x86_64", "aarch64") and an object head size; engine files carry
    one."""
    machine = machine or {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in pool.WORDS:
        raise LinkError(f"planish runs on {' and '.join(pool.WORDS)}, this machine is {machine!r}")
    key = f"runtime {machine} {head} {generator_version()}"
    return cache.cached_blob(key, lambda: _generate(machine, head))


def _generate(machine: str, head: int) -> Blob:
    from planish.codegen.llvm.emit import emit_each, start_llvm

    start_llvm()
    leave_libraries("llvmlite")
    triple = pool.WORDS[machine].triple
    modules = (packing.ir(triple), tensors.ir(machine, head), pool.ir(machine), entry.ir(machine, head),
               memory.ir(machine), digest.ir(triple), openmp.ir(triple))   # the longest to compile first
    # Rotated, packing's loops run as fast as by all of LLVM's passes, which take three times as long.
    return link(emit_each(modules, triple, "rotate"))


def _numpy_table() -> ctypes.Array[ctypes.c_void_p]:
    package = "numpy._core" if int(np.__version__.split(".")[0]) >= 2 else "numpy.core"
    numpy_core = importlib.import_module(f"{package}._multiarray_umath")
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi))
    return (ctypes.c_void_p * 300).from_address(pointer(numpy_core._ARRAY_API, None))


def _numpy_symbols() -> dict[str, int]:
    """Slots of NumPy's function table, as numbered in numpy/_core/include/numpy/__multiarray_api.h."""
    table = _numpy_table()
    slots = {"PyArray_Type": 2, "PyArray_NewFromDescr": 94, "PyArray_SetBaseObject": 282}
    return {name: table[slot] or 0 for name, slot in slots.items()}


def _layout_fault() -> str:
    """Why arrays can't be read directly, found by reading one; empty when all is as NumPy's headers say."""
    if sys.implementation.name != "cpython":
        return f"the interpreter is {sys.implementation.name}, not CPython"
    if _numpy_table()[2] != id(np.ndarray):
        return "NumPy's function table does not start as documented"
    probe = np.zeros((2, 3), np.float32)
    head = object.__basicsize__
    def read(kind: Any, offset: int) -> Any:
        return kind.from_address(id(probe) + offset).value
    shape = read(ctypes.c_void_p, head + 16)
    sizes = tuple((ctypes.c_int64 * 2).from_address(shape or id(probe)))
    number = ctypes.c_int.from_address(id(probe.dtype) + head + 12).value
    seen = (read(ctypes.c_void_p, head - 8), read(ctypes.c_void_p, head), read(ctypes.c_int, head + 8), sizes,
            read(ctypes.c_void_p, head + 40), read(ctypes.c_int, head + 48) & 0x501, number)
    expected = (id(np.ndarray), probe.ctypes.data, 2, (2, 3), id(probe.dtype), 0x501, probe.dtype.num)
    return "" if seen == expected else f"an array's fields read {seen}, expected {expected}"
