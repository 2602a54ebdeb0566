"""Matrix products and convolutions by oneDNN, on NumPy arrays.

In: float32 arrays and the attributes of the op. Out: a new array. A kernel is made once for each shape: a
primitive, which says how it likes its arrays best, and primitives that lay out what lies otherwise. Weights
that are a constant of their program are laid out once, and kept so for as long as their array lives.

A call uses as many threads as planish does, and leaves OpenMP's own setting as it was.
"""
from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from planish.ops.contract import free_axes, window_positions
from planish.ops.host import host_function
from planish.runtime.native import running
from planish.runtime.threads import get_num_threads
from planish.tuning.onednn import (
    ALIGNED,
    DST,
    SCRATCHPAD,
    SRC,
    WEIGHTS,
    Layout,
    Library,
    Memory,
    Primitive,
    aligned,
    library,
)
from planish.types import DType

KERNELS = 256  # that are kept, of the last shapes
Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class _Call:
    """Primitives one after another: the caller places `ends`, and `inner` is what is between them."""

    def __init__(self, of: Library, steps: Sequence[tuple[Primitive, Mapping[int, Memory]]],
                 ends: Sequence[Memory], inner: Sequence[Memory] = ()):
        self.space, self.ends, self.inner = of.space, ends, inner
        self.scratch = [Memory(of, primitive.layout(SCRATCHPAD)) for primitive, _ in steps]
        self.runs = [primitive.on({**arrays, SCRATCHPAD: scratch})
                     for (primitive, arrays), scratch in zip(steps, self.scratch)]
        sizes = [*(m.layout.nbytes for m in inner), max(m.layout.nbytes for m in self.scratch)]
        *self.starts, self.nbytes = accumulate((-(-n // ALIGNED) * ALIGNED for n in sizes), initial=0)

    def __call__(self, *addresses: int) -> None:
        for memory, address in zip(self.ends, addresses):
            memory.place(address)
        base = self.space.address(self.nbytes)
        for memory, start in zip(self.inner, self.starts):
            memory.place(base + start)
        for memory in self.scratch:
            memory.place(base + self.starts[-1])
        for run in self.runs:
            run()


class Kernel:
    """A primitive for arrays that lie as `given`, for a number of threads. `is_constant`: the weights never
    change."""

    def __init__(self, of: Library, primitive: Primitive, given: Mapping[int, Layout], is_constant: bool,
                 threads: int):
        self.of, self.primitive, self.threads = of, primitive, threads
        self.given, self.liked = dict(given), {n: primitive.layout(n) for n in given}
        self.loose: Layout | None = None  # how weights come that are laid out once
        if is_constant and given[WEIGHTS] != self.liked[WEIGHTS]:
            self.loose, self.given[WEIGHTS] = given[WEIGHTS], self.liked[WEIGHTS]
        self.moves = {n: of.reorder(*((liked, layout) if n == DST else (layout, liked)))
                      for n, layout in self.given.items() if layout != (liked := self.liked[n])}
        self.idle: list[_Call] = []
        self.kept: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}

    def __call__(self, src: np.ndarray, weights: np.ndarray, out: np.ndarray, constant: np.ndarray) -> None:
        """Fill `out`. `constant` is the array that weights which never change look at."""
        with self.of.threads(self.threads):
            laid = weights if self.loose is None else self._laid_out(self.loose, weights, constant)
            try:
                call = self.idle.pop()
            except IndexError:
                call = self._call()
            call(src.ctypes.data, laid.ctypes.data, out.ctypes.data)
        self.idle.append(call)

    def _call(self) -> _Call:
        """On memory of its own: another thread may be in the midst of one."""
        given = {n: Memory(self.of, layout) for n, layout in self.given.items()}
        liked = {n: Memory(self.of, self.liked[n]) for n in self.moves}
        steps = [(move, {SRC: given[n], DST: liked[n]}) for n, move in self.moves.items() if n != DST]
        steps.append((self.primitive, {**given, **liked}))
        if DST in self.moves:
            steps.append((self.moves[DST], {SRC: liked[DST], DST: given[DST]}))
        return _Call(self.of, steps, [given[SRC], given[WEIGHTS], given[DST]], list(liked.values()))

    def _laid_out(self, loose: Layout, weights: np.ndarray, constant: np.ndarray) -> np.ndarray:
        """The weights as the primitive likes them, kept for as long as `constant` lives."""
        key, liked = id(constant), self.liked[WEIGHTS]
        if key in self.kept:
            return self.kept[key][1]
        made, ends = aligned(liked.nbytes), (Memory(self.of, loose), Memory(self.of, liked))
        move = _Call(self.of, [(self.of.reorder(loose, liked), dict(zip((SRC, DST), ends)))], ends)
        move(weights.ctypes.data, made.ctypes.data)
        self.kept[key] = weakref.ref(constant, partial(_forget, weakref.ref(self), key)), made
        return made


def _forget(kernel: weakref.ref[Kernel], key: int, dead: object) -> None:
    if (living := kernel()) is not None:
        living.kept.pop(key, None)


def release() -> None:
    """Let go of all kernels and of the memory between their steps; what runs again makes its own again."""
    for cache in (_product, _convolution):
        cache.cache_clear()
    if library.cache_info().currsize:
        library().space.release()


@host_function("onednn_dot_general")
def product(a: np.ndarray, b: np.ndarray, *, lhs_contract: Sizes, rhs_contract: Sizes, lhs_batch: Sizes,
            rhs_batch: Sizes, alpha: float, result: DType | None, is_constant: bool = False,
            threads: int = 0) -> np.ndarray:
    """The op dot_general. `is_constant`: `b` never changes; `threads`: 0, as many as planish uses."""
    lhs_free = free_axes(a.ndim, lhs_batch, lhs_contract)
    rhs_free = free_axes(b.ndim, rhs_batch, rhs_contract)
    batch, depth = [a.shape[i] for i in lhs_batch], prod(a.shape[i] for i in lhs_contract)
    m, n = [a.shape[i] for i in lhs_free], [b.shape[i] for i in rhs_free]
    count = [prod(batch)] if batch else []
    left = _matrices(a.transpose(lhs_batch + lhs_free + lhs_contract), (*count, prod(m), depth))
    right = _matrices(b.transpose(rhs_batch + rhs_contract + rhs_free), (*count, depth, prod(n)))
    out = np.empty((*count, prod(m), prod(n)), np.float32)
    if out.size and depth:
        kernel = _product(left.shape, _steps(left), right.shape, _steps(right), is_constant,
                          _threads(threads))
        kernel(left, right, out, b)
        if alpha != 1:
            out *= np.float32(alpha)
    else:
        out[...] = 0
    return out.reshape((*batch, *m, *n))


@host_function("onednn_conv")
def convolution(x: np.ndarray, w: np.ndarray, *, strides: Sizes, padding: Pairs, rhs_dilation: Sizes,
                lhs_dilation: Sizes, groups: int, result: DType | None, is_constant: bool = False,
                threads: int = 0, is_moved: bool = True) -> np.ndarray:
    """The op conv, with an operand that is not dilated. `is_constant`: `w` never changes; `is_moved`: images
    are laid out as the primitive likes them, and back, else they are read and written as they lie."""
    windows = zip(x.shape[2:], w.shape[2:], strides, rhs_dilation, padding)
    out = np.empty((x.shape[0], w.shape[0], *(window_positions(*window) for window in windows)), np.float32)
    if out.size and w.size:
        grouped = (groups, w.shape[0] // groups) if groups > 1 else (w.shape[0],)
        shapes = x.shape, (*grouped, *w.shape[1:]), out.shape
        kernel = _convolution(shapes, (strides, rhs_dilation, padding), is_constant, is_moved,
                              _threads(threads))
        kernel(_contiguous(x), _contiguous(w), out, w)
    else:
        out[...] = 0
    return out


@host_function("onednn_conv_plain")
def plain_convolution(x: np.ndarray, w: np.ndarray, **parameters: Any) -> np.ndarray:
    """The same on images as they lie: for a kernel of one point that is a matrix product."""
    return convolution(x, w, **parameters, is_moved=False)


# --- kernels by shape

@lru_cache(KERNELS)
def _product(left: Sizes, left_steps: Sizes, right: Sizes, right_steps: Sizes, is_constant: bool,
             threads: int) -> Kernel:
    of, shape = library(), (*left[:-1], right[-1])
    lies, made = of.layout(left, left_steps), of.layout(shape, _packed(shape))
    with of.threads(threads):
        if is_constant and len(right) == 2:
            loose, weights = of.layout(right[::-1], right_steps[::-1]), of.layout(right[::-1])
            primitive = of.product_with(lies, weights, made)
        else:
            loose = of.layout(right, right_steps)
            primitive = of.product(lies, loose, made)
        return Kernel(of, primitive, {SRC: lies, WEIGHTS: loose, DST: made}, is_constant, threads)


@lru_cache(KERNELS)
def _convolution(shapes: tuple[Sizes, Sizes, Sizes], window: tuple[Sizes, Sizes, Pairs], is_constant: bool,
                 is_moved: bool, threads: int) -> Kernel:
    of = library()
    lie = [of.layout(shape, _packed(shape)) for shape in shapes]
    any_ = [of.layout(shape) for shape in shapes]
    src, weights, dst = any_ if is_moved else (lie[0], any_[1], lie[2])
    with of.threads(threads):
        primitive = of.convolution(src, weights, dst, *window)
        return Kernel(of, primitive, dict(zip((SRC, WEIGHTS, DST), lie)), is_constant, threads)


def _threads(wanted: int) -> int:
    """So many, or as many as native code uses."""
    started = running()
    return library().most_threads(wanted or (started.threads if started else get_num_threads()))


# --- how arrays lie

def _matrices(view: np.ndarray, shape: Sizes) -> np.ndarray:
    """The view in this shape, copied where oneDNN could not read it as it lies: of each matrix one axis has
    neighbours next to each other."""
    made = view.reshape(shape)
    is_plain = made.flags.aligned and all(s > 0 and s % made.itemsize == 0 for s in made.strides)
    return made if is_plain and made.itemsize in made.strides[-2:] else np.ascontiguousarray(made)


def _contiguous(array: np.ndarray) -> np.ndarray:
    return np.require(array, np.float32, ["C", "A"])


def _steps(array: np.ndarray) -> Sizes:
    return tuple(s // array.itemsize for s in array.strides)


def _packed(shape: Sizes) -> Sizes:
    """The strides of an array without gaps."""
    return tuple(prod(shape[i + 1:]) for i in range(len(shape)))
