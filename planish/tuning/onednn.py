"""oneDNN's shared library, as its wheel brings it, by its C API of version 3.

In: the distributions that are installed. Out: the `Library`, which makes layouts and primitives for the CPU.
Nothing is looked for before somebody asks for `library()`.

Which file of an environment it is, a wheel's own list of files says. Taken is a build whose threads are
OpenMP's: their number can be set for a call. The wheels whose threads are SYCL's or TBB's are refused.

Source: oneDNN's developer guide, https://uxlfoundation.github.io/oneDNN/ (Memory Descriptors, Primitives,
Primitive Attributes: Scratchpad). Numbers of enumerations are those of `dnnl_types.h` and
`dnnl_common_types.h`, which hold for all of version 3.
"""
from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np

from planish.errors import LibraryError

WHEELS = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn-cpu-tbb", "onednn")
FILE = "libdnnl.so.3"
INSTALL = "pip install 'planish[onednn]'"

SRC, DST, WEIGHTS, SCRATCHPAD = 1, 17, 33, 80                    # DNNL_ARG_*
_LAYOUTS = {SRC: 129, WEIGHTS: 131, DST: 133, SCRATCHPAD: 136}   # dnnl_query_*_md
_CPU, _F32, _ANY, _IN_ORDER = 1, 3, 1, 1    # dnnl_cpu, dnnl_f32, dnnl_format_tag_any, dnnl_stream_in_order
_USER, _STRICT = 1, 0                       # dnnl_scratchpad_mode_user, dnnl_fpmath_mode_strict
_INFERENCE, _DIRECT = 96, 1                 # dnnl_forward_inference, dnnl_convolution_direct
_OPENMP = 2                                 # DNNL_RUNTIME_OMP
_RUNTIMES = {1: "no threads", 4: "TBB's threads", 8: "its caller's threads", 512: "SYCL's threads"}
_FAULTS = {1: "out of memory", 2: "invalid arguments", 3: "there is no kernel for it", 5: "it failed"}
ALIGNED = 64                               # bytes

_Pointer = ctypes.c_void_p
_Sizes = ctypes.c_int64 * 12                # dnnl_dims_t


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int),
                ("hash", ctypes.c_char_p), ("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint))


class _Argument(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", _Pointer))


class Layout:
    """How an array of floats lies: a memory descriptor. `keeps` is what it belongs to, if not to itself."""

    def __init__(self, library: Library, pointer: int | None, keeps: object = None):
        self.library, self.pointer, self.keeps = library, _Pointer(pointer), keeps
        self.nbytes = int(library.dnnl.dnnl_memory_desc_get_size(self.pointer))
        if keeps is None:
            library.owned(self, "memory_desc")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and bool(
            self.library.dnnl.dnnl_memory_desc_equal(self.pointer, other.pointer))

    __hash__ = None  # type: ignore[assignment]


class Memory:
    """An array for primitives: its layout, and where it is now."""

    def __init__(self, library: Library, layout: Layout):
        self.library, self.layout, self.pointer, self.address = library, layout, _Pointer(), 0
        library.call("memory_create", ctypes.byref(self.pointer), layout.pointer, library.engine, None)
        library.owned(self, "memory")

    def place(self, address: int) -> None:
        if address != self.address:
            self.library.call("memory_set_data_handle", self.pointer, _Pointer(address))
            self.address = address


class Primitive:
    """One computation on arrays of certain layouts. Threads may run it at the same time, each on its own
    memory."""

    def __init__(self, library: Library, description: _Pointer):
        self.library, self.pointer, self.description = library, _Pointer(), _Description(library, description)
        library.call("primitive_create", ctypes.byref(self.pointer), description)
        library.owned(self, "primitive")

    def layout(self, argument: int) -> Layout:
        """How the array of an argument is to lie; the scratchpad's is of no bytes where none is needed."""
        pointer = self.library.dnnl.dnnl_primitive_desc_query_md(self.description.pointer,
                                                                 _LAYOUTS[argument], 0)
        return Layout(self.library, pointer, self.description)

    def on(self, arrays: Mapping[int, Memory]) -> Callable[[], None]:
        """What computes on these arrays, wherever they are then."""
        given = [_Argument(number, memory.pointer) for number, memory in arrays.items()]
        arguments, library = (_Argument * len(given))(*given), self.library
        return lambda: library.call("primitive_execute", self.pointer, library.stream, len(given), arguments)


class _Description:
    """A primitive's descriptor, which its layouts belong to."""

    def __init__(self, library: Library, pointer: _Pointer):
        self.pointer = pointer
        library.owned(self, "primitive_desc")


class _Space(threading.local):
    """A thread's memory for what is between primitives: as large as the largest call needed."""

    def __init__(self) -> None:
        self.release()

    def release(self) -> None:
        self._bytes, self._address = aligned(0), 0

    def address(self, count: int) -> int:
        """Where so many bytes are, aligned; what they hold is lost at the thread's next call."""
        if count > self._bytes.nbytes:
            self._bytes = aligned(count)
            self._address = self._bytes.ctypes.data
        return self._address


def aligned(count: int) -> np.ndarray:
    """So many bytes, of any content."""
    whole = np.empty(count + ALIGNED, np.uint8)
    start = -whole.ctypes.data % ALIGNED
    return whole[start:start + count]


class Library:
    """The loaded library. LibraryError where `path` can't be loaded, or its threads are not OpenMP's."""

    def __init__(self, path: str, wheel: str):
        try:
            self.dnnl = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
            self.dnnl.dnnl_version.restype = ctypes.POINTER(_Version)
            version = self.dnnl.dnnl_version().contents
        except (OSError, AttributeError) as error:
            raise LibraryError(f"oneDNN of {wheel} can't be loaded: {error}. {_instead(wheel)}") from None
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.cpu_runtime != _OPENMP:
            runtime = _RUNTIMES.get(version.cpu_runtime, "threads of another kind")
            raise LibraryError(f"oneDNN {self.version} of {wheel} is built for {runtime}, whose number "
                               f"planish can't set for a call. {_instead(wheel)}")
        self.path, self.wheel, self.space, self._process = path, wheel, _Space(), os.getpid()
        self.dnnl.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.dnnl.dnnl_primitive_desc_query_md.restype = _Pointer
        self.engine, self.stream, self.attributes = _Pointer(), _Pointer(), _Pointer()
        self.call("engine_create", ctypes.byref(self.engine), _CPU, ctypes.c_size_t(0))
        self.call("stream_create", ctypes.byref(self.stream), self.engine, _IN_ORDER)
        self.call("primitive_attr_create", ctypes.byref(self.attributes))
        self.call("primitive_attr_set_scratchpad_mode", self.attributes, _USER)
        self.call("primitive_attr_set_fpmath_mode", self.attributes, _STRICT)

    def __str__(self) -> str:
        return f"onednn {self.version} ({self.wheel})"

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that gives a status. LibraryError for all but success."""
        status = getattr(self.dnnl, f"dnnl_{name}")(*arguments)
        if status:
            raise LibraryError(f"oneDNN {self.version}, {name}: {_FAULTS.get(status, f'status {status}')}")

    def owned(self, owner: Layout | Memory | Primitive | _Description, kind: str) -> None:
        """Destroy the object of oneDNN's together with its owner."""
        destroy = getattr(self.dnnl, f"dnnl_{kind}_destroy")
        weakref.finalize(owner, destroy, owner.pointer).atexit = False

    def most_threads(self, count: int) -> int:
        """The threads that there are, of so many. After a fork OpenMP's are gone, and who waits for them
        waits for ever."""
        return count if os.getpid() == self._process else 1

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """What this thread makes and runs in the block is for `count` threads; both are to be the same."""
        before = self.dnnl.omp_get_max_threads()
        if before == count:
            yield
            return
        self.dnnl.omp_set_num_threads(count)
        try:
            yield
        finally:
            self.dnnl.omp_set_num_threads(before)

    # --- layouts and primitives

    def layout(self, shape: Sequence[int], strides: Sequence[int] | None = None) -> Layout:
        """Of a float32 array: strides in elements, or as a primitive likes it best."""
        made, sizes = _Pointer(), _sizes(shape)
        if strides is None:
            self.call("memory_desc_create_with_tag", ctypes.byref(made), len(shape), sizes, _F32, _ANY)
        else:
            self.call("memory_desc_create_with_strides", ctypes.byref(made), len(shape), sizes, _F32,
                      _sizes(strides))
        return Layout(self, made.value)

    def product(self, src: Layout, weights: Layout, dst: Layout) -> Primitive:
        """src [..., m, k] x weights [..., k, n] -> dst [..., m, n]: the primitive Matrix Multiplication."""
        return self._primitive("matmul", self.engine, src.pointer, weights.pointer, None, dst.pointer)

    def product_with(self, src: Layout, weights: Layout, dst: Layout) -> Primitive:
        """src [m, k] x weights [n, k] -> dst [m, n]: the primitive Inner Product, which may like its
        weights in panels where Matrix Multiplication packs them at each call."""
        return self._primitive("inner_product_forward", self.engine, _INFERENCE, src.pointer, weights.pointer,
                               None, dst.pointer)

    def convolution(self, src: Layout, weights: Layout, dst: Layout, strides: Sequence[int],
                    dilations: Sequence[int], padding: Sequence[tuple[int, int]]) -> Primitive:
        """src [n, c, sizes...] with weights [o, c, kernel...] or [g, o/g, c/g, kernel...]: the primitive
        Convolution, direct: others round otherwise. Dilation 1 is none, as everywhere in planish."""
        low, high = zip(*padding)
        window = map(_sizes, (strides, [d - 1 for d in dilations], low, high))
        return self._primitive("convolution_forward", self.engine, _INFERENCE, _DIRECT, src.pointer,
                               weights.pointer, None, dst.pointer, *window)

    def reorder(self, src: Layout, dst: Layout) -> Primitive:
        """The same elements in another layout."""
        return self._primitive("reorder", src.pointer, self.engine, dst.pointer, self.engine)

    def _primitive(self, name: str, *arguments: object) -> Primitive:
        made = _Pointer()
        self.call(f"{name}_primitive_desc_create", ctypes.byref(made), *arguments, self.attributes)
        return Primitive(self, made)


def _sizes(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return _Sizes(*values)


def _instead(wheel: str) -> str:
    other = f"; {INSTALL} takes {WHEELS[0]}" if wheel != WHEELS[0] else ""
    return f"Mend or uninstall {wheel}{other}."


# --- finding it

@functools.cache
def library() -> Library:
    """The library of the first wheel that brings one. LibraryError where none does, or none can be used."""
    faults = []
    for wheel, path in _files():
        try:
            return Library(path, wheel)
        except LibraryError as error:
            faults.append(str(error))
    raise LibraryError(" ".join(faults) or f"oneDNN is not installed: {INSTALL}")


def is_installed() -> bool:
    """Whether a wheel brings the library; nothing is loaded."""
    return next(_files(), None) is not None


def _files() -> Iterator[tuple[str, str]]:
    """The wheels that bring the library, and where it is."""
    for wheel in WHEELS:
        try:
            files = distribution(wheel).files or ()
        except PackageNotFoundError:
            continue
        yield from ((wheel, str(file.locate())) for file in files if file.name == FILE)
