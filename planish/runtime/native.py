"""The process-wide native runtime: thread pool, memory pool and call path, loaded once.

In: nothing, or an image that an engine file carries. Out: `runtime()`. Its code is generated once, kept in
the disk cache and reloaded without LLVM. It is never unloaded: workers may be running in it until the process
ends. What few programs need is in images of its own (IMAGES), made and loaded when the first of them asks.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

from planish.codegen.llvm.emit import Effort, emit_each
from planish.codegen.llvm.version import generator_version
from planish.errors import LinkError
from planish.runtime import cache, digest, entry, memory, openmp, packing, pool, tables, tensors, threads
from planish.runtime.blob import Blob
from planish.runtime.link import link
from planish.runtime.loader import RUNTIME_NAMES, LoadedCode

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
        self._arrays = _method(self.code.address("planish_entry"))
        self._tensors: _MethodDef | None = None
        self._images = {"runtime": self.code}
        self.loading = threading.Lock()
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

    @property
    def threads(self) -> int:
        """How many a call uses."""
        return int(self._threads.value)

    def parallel(self, body: int, frame: int, count: int) -> None:
        """Run a native body on `count` threads, without the interpreter's lock."""
        self._call("planish_parallel", *map(ctypes.c_void_p, (self.pool, body, frame)), ctypes.c_int64(count))

    def join_openmp(self) -> None:
        """From now on programs marked so (tables.OPENMP) run on the threads of the OpenMP library that the
        process has loaded, if it has. Not in a child after a fork, where the library's threads are gone."""
        found = openmp.addresses()
        if found and os.getpid() == self._process:
            torch = self.image("torch")
            place = torch.address("planish_openmp")
            (ctypes.c_void_p * len(found)).from_address(place)[:] = list(found)
            elsewhere = ctypes.c_void_p.from_address(self.code.address("planish_elsewhere"))
            elsewhere.value = torch.address("planish_parallel_openmp")

    def read_tensors(self, functions: tuple[int, int], types: tuple[type, type]) -> None:
        """Let builtins take tensors. `functions`: addresses of DLPack's dltensor_from_py_object_no_sync and
        managed_tensor_to_py_object_no_sync; `types`: Tensor and Parameter, which live for ever."""
        self._is_neg = "is_neg"
        held: list[Any] = [*functions, *map(id, types), id(self._is_neg), id(False)]
        torch = self.image("torch")
        place = torch.address("planish_dlpack")
        (ctypes.c_void_p * len(tensors.DLPACK)).from_address(place)[:] = held
        self._tensors = self._tensors or _method(torch.address("planish_tensors"))
        self.reads_tensors = True

    def builtin(self, table: tables.ProgramTable, owner: Any, *, on_tensors: bool = False) -> Any:
        """A builtin that runs the program of `table`, on arrays or on tensors. It keeps `owner`, which keeps
        all that the table points to."""
        capsule = _new_capsule(ctypes.addressof(table), None, self.code.address("planish_program_free"))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        _set_context(capsule, id(owner))
        method = self._tensors if on_tensors else self._arrays
        assert method is not None, "read_tensors comes first"
        return _new_builtin(ctypes.addressof(method), capsule, None)

    def image(self, name: str) -> LoadedCode:
        """One of IMAGES, over the runtime itself; loaded at first need, for ever."""
        with self.loading:
            if name not in self._images:
                known = {symbol: self.code.address(symbol) for symbol in self.code.symbols}
                self._images[name] = code = LoadedCode(image_blob(name), known, RUNTIME_NAMES)
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
            return self._images[name]

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


def _method(address: int) -> _MethodDef:
    return _MethodDef(b"planish_program", address, _METH_FASTCALL | _METH_KEYWORDS, b"A compiled program.")


_procedure = ctypes.CFUNCTYPE(None)  # arguments are passed as ctypes values
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_set_context = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetContext", ctypes.pythonapi))
_new_builtin = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi))

_running: Runtime | None = None
_starting = threading.Lock()


def runtime(blob: Blob | None = None, *, spare: int = 0) -> Runtime:
    """The process's runtime, started on first use: from `blob` (an engine file's), else from the cache, else
    generated, on all CPUs but those to `spare`."""
    global _running
    if _running is None:
        with _starting:
            if _running is None:
                _running = Runtime(blob or image_blob(spare=spare))
                _running.apply_threads(threads.get_num_threads())  # another thread may have set it meanwhile
    return _running


def runtime_aside() -> None:
    """Start it while somebody works on a CPU and does not wait for it."""
    runtime(spare=1)


def running() -> Runtime | None:
    """The runtime if it has been started."""
    return _running


def start_ahead(*steps: Callable[[], object]) -> None:
    """Do steps on a thread of their own, for who will need what they start. What is wrong with one is raised
    where it is needed."""
    with suppress(RuntimeError):  # no more threads
        threading.Thread(target=partial(copy_context().run, _start, steps), name="planish starts").start()


def _start(steps: Sequence[Callable[[], object]]) -> None:
    with suppress(Exception):
        for step in steps:
            step()


def _forget_starting() -> None:
    """In a child after a fork there is no thread that starts anything."""
    global _starting
    _starting = threading.Lock()
    if _running is not None:
        _running.loading = threading.Lock()


os.register_at_fork(after_in_child=_forget_starting)


def load(blob: Blob) -> LoadedCode:
    """Load a compiled program's code, its imports from our runtime resolved."""
    return LoadedCode(blob, runtime().provided)


def _hot(text: str) -> Effort:
    """Loops over much data: rotated, they run as fast as by all of LLVM's passes, which take three times as
    long."""
    return Effort(text, "rotate", 2)


def _warm(text: str) -> Effort:
    """What each call runs through once: code generation does nearly all for it."""
    return Effort(text, "none", 2)


def _cold(text: str) -> Effort:
    """What waits and seldom runs: LLVM's quick code, at a third of the time."""
    return Effort(text, "none", 0)


def _base(machine: str, head: int) -> tuple[Effort, ...]:
    triple = pool.WORDS[machine].triple
    return (_warm(entry.ir(machine, head)), _hot(packing.ir(triple, packing.COMMON)), _cold(pool.ir(machine)),
            _hot(digest.ir(triple)), _cold(memory.ir(machine)))


def _for_torch(machine: str, head: int) -> tuple[Effort, ...]:
    return _warm(tensors.ir(machine, head)), _cold(openmp.ir(pool.WORDS[machine].triple))


def _packing(machine: str, head: int) -> tuple[Effort, ...]:
    return (_hot(packing.ir(pool.WORDS[machine].triple, packing.OTHERS)),)


# Modules of a machine ("x86_64", "aarch64") and an object head size; the longest to compile first.
IMAGES: dict[str, Callable[[str, int], Sequence[Effort]]] = {
    "runtime": _base, "torch": _for_torch, "packing": _packing}


def image_blob(name: str = "runtime", machine: str = "", head: int = object.__basicsize__, *,
               spare: int = 0) -> Blob:
    """A linked image, from the cache or made, on all CPUs but those to `spare`; engine files carry "runtime".
    LinkError for a machine that planish does not run on."""
    machine = machine or {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in pool.WORDS:
        raise LinkError(f"planish runs on {' and '.join(pool.WORDS)}, this machine is {machine!r}")
    key, triple = f"{name} {machine} {head} {generator_version()}", pool.WORDS[machine].triple
    return cache.cached_blob(key, lambda: link(emit_each(IMAGES[name](machine, head), triple, spare=spare)))


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
