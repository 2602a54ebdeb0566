"""A compiled program as a person calls it: arrays in, new arrays out.

In: loaded code that exports planish_body (and planish_derive, for programs with symbols), a `ProgramSpec`,
the constants. Out: `NativeProgram`; its `call` attribute is a builtin that does the work without Python code.
The other road, `call_ctypes`, runs the same code with arrays made by NumPy; it is the tests' oracle, and what
is used where the builtin can't be (a warning then says why).
"""
from __future__ import annotations

import builtins
import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from planish import errors
from planish.errors import PlanishError
from planish.runtime import native, tables, threads
from planish.runtime.loader import LoadedCode
from planish.runtime.signature import Signature
from planish.runtime.spec import ArraySpec, Dim, DimRef, ProgramSpec
from planish.types import dtype_of

ALIGN = 64  # constants, arenas, and outputs of tables.LARGE bytes and more start on a cache line


class NativeProgram:
    """A compiled program. Call it with arrays; a hot caller keeps `program.call`, which skips one
    Python-level call.

    Results are new arrays, never overwritten by a later call. SignatureError: wrong number, kind or dtype of
    arguments; ShapeError: wrong shape, or sizes outside what was compiled; else what the program itself
    raises. `threads` is how many a call uses; 0: as many as the process does.
    """

    def __init__(self, code: LoadedCode, spec: ProgramSpec, constants: Sequence[np.ndarray] = (),
                 threads: int = 0):
        self.spec = spec
        self._core = core = _Core(code, spec, constants, threads)
        runtime = native.runtime()
        self.call = core.call_ctypes if runtime.why_not_direct else runtime.builtin(core.table, core)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        return self.call(*arrays, **named)

    def use_openmp(self) -> None:
        """Run on the threads of the process's OpenMP library, if one is loaded: for programs that take turns
        with its parallel regions (openmp.py). To be said before doors are opened."""
        native.runtime().join_openmp()
        self._core.table.flags |= tables.OPENMP

    def door(self, missed: Callable[..., Any]) -> Callable[..., Any] | None:
        """A builtin for the hot path of a caller that handles other cases itself: plain arrays of the
        program's signature give its one output; any other call is `missed(*args, **kwargs)`. None where the
        program can't be entered directly."""
        runtime = native.runtime()
        if runtime.why_not_direct or len(self.spec.outputs) != 1:
            return None
        door = _Door(self._core, missed)
        return runtime.builtin(door.table, door)

    @property
    def constants(self) -> Sequence[np.ndarray]:
        """Its constants, as its code reads them."""
        return self._core.constants

    def with_constants(self, constants: Sequence[np.ndarray]) -> NativeProgram:
        """The same code over other constants."""
        return NativeProgram(self._core.code, self.spec, constants, self._core.threads)

    def call_ctypes(self, *arrays: Any, **named: Any) -> Any:
        """The same by ctypes, outputs and scratch memory from NumPy."""
        return self._core.call_ctypes(*arrays, **named)

    def call_over_zeros(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The same; what of an output the program does not write is 0. For code that is a part of a program.
        """
        taken = self._core.normalise((), *arrays)
        dims = self._core.signature.dims_of(taken)
        outputs = self._core.empty_outputs(dims)
        for output in outputs:
            output[...] = 0
        self._core.run_into(outputs, taken, dims)
        return tuple(outputs)

    def tensor_door(self, feeds: Sequence[TensorFeed], orders: Sequence[Sequence[int]], n_arguments: int,
                    missed: Callable[..., Any], unwrap: bool = False) -> Callable[..., Any] | None:
        """A builtin that takes tensors and numbers, one feed for each input of the program, and gives
        tensors: axis i of output k is the program's axis orders[k][i]. Any other call is
        `missed(*args, **kwargs)`. With `unwrap` a program with one output gives it bare. None where there
        can't be such a builtin."""
        runtime = native.runtime()
        known = all(s.dtype in tables.DLPACK_DTYPES for s in (*self.spec.inputs, *self.spec.outputs))
        if not (runtime.reads_tensors and known):
            return None
        door = _TensorDoor(self._core, feeds, orders, n_arguments, missed, unwrap)
        return runtime.builtin(door.table, door, on_tensors=True)


@dataclass(frozen=True)
class TensorFeed:
    """How a call's arguments make an input: `source` is one of tables.TENSOR, PLAIN, FLOAT, INTEGER, SIZES.

    A tensor is argument `argument`, and its axis order[i] is the program's axis i; sizes are the arguments
    `order`."""

    source: int
    argument: int
    order: tuple[int, ...] = ()


class _Door:
    """A second entrance to a program: plain arrays in, the one output out; any other call goes to
    `missed`."""

    def __init__(self, core: _Core, missed: Callable[..., Any], flags: int = tables.UNWRAP):
        def elsewhere(names: tuple[str, ...], *values: Any) -> Any:
            split = len(values) - len(names)
            return missed(*values[:split], **dict(zip(names, values[split:], strict=True)))

        self.core, self.elsewhere = core, elsewhere
        self.table = tables.ProgramTable()
        ctypes.pointer(self.table)[0] = core.table
        self.table.flags = core.table.flags & ~tables.UNWRAP | flags | tables.ANSWERS
        self.table.normalise = id(elsewhere)


class _TensorDoor(_Door):
    """An entrance for tensors; any other call goes to `missed`."""

    def __init__(self, core: _Core, feeds: Sequence[TensorFeed], orders: Sequence[Sequence[int]],
                 n_arguments: int, missed: Callable[..., Any], unwrap: bool):
        super().__init__(core, missed, tables.UNWRAP if unwrap else 0)
        self.keep: list[Any] = []
        inputs = [self._input(s, f) for s, f in zip(core.spec.inputs, feeds, strict=True)]
        outputs = [self._output(s, o) for s, o in zip(core.spec.outputs, orders, strict=True)]
        self.table.n_arguments = n_arguments
        self.table.inputs, self.table.outputs = self._kept(inputs), self._kept(outputs)

    def _input(self, spec: ArraySpec, feed: TensorFeed) -> tables.ArrayTable:
        shape = spec.shape[1:] if feed.source == tables.SIZES else spec.shape
        kind = id(float) if feed.source == tables.FLOAT else id(int)
        return self._array(spec, shape, feed.order, kind, feed.argument, feed.source)

    def _output(self, spec: ArraySpec, order: Sequence[int]) -> tables.ArrayTable:
        return self._array(spec, spec.shape, order)

    def _array(self, spec: ArraySpec, shape: Sequence[Dim], order: Sequence[int], kind: int = 0,
               argument: int = 0, source: int = 0) -> tables.ArrayTable:
        sizes, axes = ((ctypes.c_int64 * len(n))(*n) for n in ([_code(d) for d in shape], order))
        self.keep += [sizes, axes]
        return tables.ArrayTable(
            kind, tables.DLPACK_DTYPES[spec.dtype], len(shape), dtype_of(spec.dtype).numpy.itemsize,
            ctypes.addressof(sizes), argument, ctypes.addressof(axes), source)

    def _kept(self, entries: Sequence[tables.ArrayTable]) -> int:
        table = (tables.ArrayTable * len(entries))(*entries)
        self.keep.append(table)
        return ctypes.addressof(table)


class _Core:
    """What the builtin keeps: tables, code, constants, and the two callables for what is unusual. It never
    refers to the builtin, so there is no cycle."""

    def __init__(self, code: LoadedCode, spec: ProgramSpec, constants: Sequence[np.ndarray], threads: int):
        self.code, self.spec, self.threads = code, spec, threads
        self.constants = [_aligned_copy(c) for c in constants]
        self.signature = Signature(code, spec)
        self.output_dtypes = [dtype_of(s.dtype).numpy for s in spec.outputs]
        self.keep: list[Any] = []
        self.body = code.address("planish_body")
        self.table = self._table()

    # --- the builtin's tables

    def _table(self) -> tables.ProgramTable:
        spec = self.spec
        pointers = (ctypes.c_void_p * len(self.constants))(*(c.ctypes.data for c in self.constants))
        self.normalise, self.fail = self.signature.normalise, _failing(spec)
        return tables.ProgramTable(
            self.body, self.signature.derive, len(spec.inputs), len(spec.outputs), len(self.constants),
            spec.n_dims, _flags(spec), _code(spec.arena), _code(spec.work), id(self.normalise), id(self.fail),
            self._kept(pointers), self._arrays(spec.inputs, self.signature.dtypes),
            self._arrays(spec.outputs, self.output_dtypes), self.threads, len(spec.inputs))

    def _arrays(self, specs: Sequence[ArraySpec], dtypes: Sequence[np.dtype]) -> int:
        return self._kept((tables.ArrayTable * len(specs))(*(
            tables.ArrayTable(id(d), d.num, len(s.shape), d.itemsize, self._dims(s), i)
            for i, (s, d) in enumerate(zip(specs, dtypes, strict=True)))))

    def _dims(self, spec: ArraySpec) -> int:
        return self._kept((ctypes.c_int64 * len(spec.shape))(*map(_code, spec.shape)))

    def _kept(self, table: Any) -> int:
        self.keep.append(table)
        return ctypes.addressof(table)

    # --- the road by ctypes

    def call_ctypes(self, *arrays: Any, **named: Any) -> Any:
        taken = self.normalise(tuple(named), *arrays, *named.values())
        dims = self.signature.dims_of(taken)
        outputs = self.empty_outputs(dims)
        self.run_into(outputs, taken, dims)
        return outputs[0] if self.spec.unwrap_single else tuple(outputs)

    def empty_outputs(self, dims: Any) -> list[np.ndarray]:
        made = zip(self.spec.outputs, self.output_dtypes, strict=True)
        return [_empty(_shape(s, dims), dtype) for s, dtype in made]

    def run_into(self, outputs: Sequence[np.ndarray], taken: Sequence[np.ndarray], dims: Any) -> None:
        """One run on arrays and sizes of the program's signature; `outputs` are as `empty_outputs` has them.
        """
        arena = _empty((_size(self.spec.arena, dims),), np.dtype(np.uint8))
        held = [*taken, *outputs, *self.constants, arena]
        buffers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
        runtime = native.runtime()
        frame = tables.Frame(ctypes.addressof(buffers), ctypes.addressof(dims), runtime.pool, 0, 0)
        pays = _size(self.spec.work, dims) >= tables.WORTH_THREADS
        count = (self.threads or threads.get_num_threads()) if pays else 1
        runtime.parallel(self.body, ctypes.addressof(frame), count)
        if frame.status:
            self.fail(frame.status)


def _failing(spec: ProgramSpec) -> Any:
    """A function status -> the error it means, raised."""
    def fail(status: int) -> NoReturn:
        if status == tables.NORMALISE_FAILED:
            raise AssertionError("arguments changed while the call was looking at them")
        kind, text = spec.messages.get(status, ("PlanishError", f"the program failed with status {status}"))
        raise _exception(kind)(text)
    return fail


def _exception(name: str) -> type[Exception]:
    """An exception type by name: one of planish's own or a builtin; PlanishError for any other name."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else PlanishError


def _flags(spec: ProgramSpec) -> int:
    return tables.RELEASE_GIL * spec.release_gil | tables.UNWRAP * spec.unwrap_single


def _code(dim: Dim) -> int:
    return ~dim.index if isinstance(dim, DimRef) else dim


def _size(dim: Dim, dims: Any) -> int:
    return int(dims[dim.index]) if isinstance(dim, DimRef) else dim


def _shape(spec: ArraySpec, dims: Any) -> tuple[int, ...]:
    return tuple(_size(d, dims) for d in spec.shape)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that starts on a cache line."""
    bytes_ = math.prod(shape) * dtype.itemsize
    raw = np.empty(bytes_ + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start:start + bytes_].view(dtype).reshape(shape)


def _aligned_copy(constant: np.ndarray) -> np.ndarray:
    """The constant itself where it is contiguous and aligned, else a copy that is. It must not change
    afterwards."""
    if constant.flags.c_contiguous and constant.ctypes.data % ALIGN == 0:
        return constant
    copy = _empty(constant.shape, constant.dtype)
    copy[...] = constant
    return copy
