"""Programs on memory that ends, or begins, where no page may be touched.

In: compiled code and arrays. Out: results; a load or store of one element too many ends the process. So the
programs below have a process of their own, `python -m tests.native.guarded`, which prints each name before it
runs it; and first, for each place, the signal that ends a child of it which does touch one element too many.
"""
from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np

from planish.codegen.llvm.host import Target, host
from planish.codegen.llvm.native import NativeCode
from planish.ir import Graph, Node, constant, input_node
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.runtime import tables
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode
from planish.runtime.native import runtime
from planish.schedule.products import NUMBERS
from planish.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    DType,
    TensorType,
    evaluate_dim,
    symbol,
)
from tests.native.emulated import AMX, AVX512_BF16, emulated
from tests.native.targets import Case, check, code_for, quantised

PAGE = mmap.PAGESIZE
N = symbol("N", 1, 40)
STATIC = (1, 3, 7, 8, 17, 33, 40)


# --- memory

_protect = ctypes.CDLL(None, use_errno=True).mprotect


def no_access(address: int) -> None:
    """The page at an address may not be touched from now on."""
    assert _protect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0) == 0


class Guarded:
    """Arrays whose last byte lies before a page that may not be touched (`place` "end"), or whose first lies
    after one ("start")."""

    def __init__(self, place: str):
        self.place = place
        self.kept: list[mmap.mmap] = []

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        inside = max(1, -(-size // PAGE)) * PAGE
        memory = mmap.mmap(-1, inside + 2 * PAGE)
        self.kept.append(memory)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for at in (base, base + PAGE + inside):
            no_access(at)
        start = PAGE if self.place == "start" else PAGE + inside - size
        return np.frombuffer(memory, np.uint8, size, start).view(dtype).reshape(shape)

    def copy(self, array: np.ndarray) -> np.ndarray:
        made = self.empty(array.shape, array.dtype)
        made[...] = array
        return made


def run(code: NativeCode, loaded: LoadedCode, one: Case, place: str, threads: int) -> list[np.ndarray]:
    """The outputs of a program all of whose buffers are guarded."""
    memory = Guarded(place)
    dims = (ctypes.c_int64 * (len(one.sizes) + len(code.code.derived) + 1))(*one.sizes.values())
    if one.sizes:
        assert ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(loaded.address("planish_derive"))(dims) == 0
    shapes = [[evaluate_dim(d, one.sizes) for d in t.shape] for t in code.output_types]
    outputs = [memory.empty(s, t.dtype.numpy) for s, t in zip(shapes, code.output_types, strict=True)]
    arena = memory.empty([evaluate_dim(code.program.arena_bytes, one.sizes)], np.dtype(np.uint8))
    held = [*map(memory.copy, one.arrays), *outputs, *map(memory.copy, code.constants), arena]
    buffers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
    frame = tables.Frame(ctypes.addressof(buffers), ctypes.addressof(dims), runtime().pool, 0, 0)
    runtime().parallel(loaded.address("planish_body"), ctypes.addressof(frame), threads)
    assert frame.status == 0
    return [np.array(o) for o in outputs]


# --- programs

def gelu(x: Node, y: Node) -> Node:
    return ops.mul(ops.gelu(x), y)


def rows(x: Node) -> list[Node]:
    return [ops.softmax(x, axis=1), ops.reduce_sum(x, axes=(1,)), ops.argmax(x, axis=1),
            ops.cumsum(x, axis=1)]


def columns(x: Node) -> list[Node]:
    return [ops.reduce_sum(x, axes=(0,)), ops.argmax(x, axis=0), ops.cumsum(x, axis=0)]


def moved(x: Node) -> list[Node]:
    turned = ops.transpose(x, axes=(1, 0))
    padded = ops.pad(x, constant(1, x.dtype), low=(1, 2), high=(0, 3), interior=(0, 1))
    return [turned, ops.reverse(x, axes=(1,)), padded, ops.concat(x, x, axis=1), ops.slice(
        x, starts=(0, 0), stops=x.shape, steps=(1, 2))]


def arithmetic(x: Node, y: Node) -> list[Node]:
    return [ops.add(ops.mul(x, y), y), ops.cast(x, dtype=FLOAT32), ops.maximum(x, y)]


def product(x: Node, y: Node) -> Node:
    return ops.relu(ops.matmul(x, y))


def product_turned(x: Node, y: Node) -> Node:
    return ops.relu(ops.matmul(x, ops.transpose(y, axes=(1, 0))))


def product_of_weights(x: Node) -> Node:
    weights = random_array(np.random.default_rng(3), x.dtype, (x.shape[1], 29))
    return ops.relu(ops.matmul(x, constant(weights, x.dtype)))


def product_of_bytes(x: Node, q: Node, scale: Node) -> Node:
    return ops.relu(ops.matmul(x, ops.cast(q, dtype=FLOAT32) * scale))


def attention(q: Node, k: Node, v: Node) -> list[Node]:
    return [ops.attention(q, k, v, causal=causal) for causal in (False, True)]


def conv(x: Node, w: Node) -> Node:
    return ops.conv(x, w, **conv_case(1, padding=((1, 1),)))


def gathered(x: Node, at: Node) -> Node:
    return ops.take(x, at, axis=0)


def in_order(x: Node) -> Node:
    return ops.sort(x, axis=1)


Program = tuple[Callable, str, tuple[tuple[DType, tuple], ...]]
F = FLOAT32
RUN_TIME: dict[str, Program] = {
    "gelu": (gelu, "composite", ((F, (N,)), (F, (N,)))),
    "gelu f64": (gelu, "composite", ((FLOAT64, (N,)), (FLOAT64, (N,)))),
    **{f"arithmetic {d}": (arithmetic, "rounded", ((d, (N,)), (d, (N,))))
       for d in (INT8, INT32, FLOAT16, BFLOAT16)},
    "rows": (rows, "composite", ((F, (3, N)),)),
    "columns": (columns, "composite", ((F, (N, 3)),)),
    "columns, wide": (columns, "composite", ((F, (5, N)),)),
    "moved": (moved, "exact", ((F, (3, N)),)),
    "moved bytes": (moved, "exact", ((INT8, (N, N)),)),
    "product": (product, "contraction", ((F, (N, N)), (F, (N, N)))),
    "product f64": (product, "contraction", ((FLOAT64, (N, N)), (FLOAT64, (N, N)))),
    "product of transposed": (product_turned, "contraction", ((F, (N, N)), (F, (N, N)))),
    "product of weights": (product_of_weights, "contraction", ((F, (N, 37)),)),
    **{f"product {d}": (product, "contraction", ((d, (N, N)), (d, (N, N)))) for d in (FLOAT16, BFLOAT16)},
    "product of weights bf16": (product_of_weights, "contraction", ((BFLOAT16, (N, 37)),)),
    "product of quantised weights": (quantised, "contraction", ((F, (N, 288)),)),
    "attention": (attention, "composite", ((F, (2, N, 9)), (F, (2, N, 9)), (F, (2, N, 13)))),
    "batches": (product, "contraction", ((F, (3, 5, N)), (F, (3, N, N)))),
    "conv": (conv, "contraction", ((F, (2, 5, N)), (F, (17, 5, 3)))),
    "gather": (gathered, "exact", ((F, (N, 7)), (INT32, (N,)))),
    "sort": (in_order, "exact", ((F, (3, N)),)),
}
B = BFLOAT16
NARROW: dict[str, Program] = {
    "product": (product, "contraction", ((B, (N, N)), (B, (N, N)))),
    "product of whole steps": (product, "contraction", ((B, (N, 64)), (B, (64, N)))),
    "product of weights": (product_of_weights, "contraction", ((B, (N, 64)),)),
}
FIXED: dict[str, Callable[[int], Program]] = {
    "gelu": lambda n: (gelu, "composite", ((F, (n,)), (F, (n,)))),
    "rows": lambda n: (rows, "composite", ((F, (3, n)),)),
    "moved": lambda n: (moved, "exact", ((F, (3, n + 1)),)),
    "product": lambda n: (product, "contraction", ((F, (n, 40 - n + 1)), (F, (40 - n + 1, n + 11)))),
    "product of weights": lambda n: (product_of_weights, "contraction", ((F, (n, 37)),)),
    "product of bytes in place": lambda n: (product_of_bytes, "contraction", (
        (F, (n % 12 + 1, 37)), (INT8, (37, 8 * n)), (F, (8 * n,)))),
    "product of bytes": lambda n: (product_of_bytes, "contraction", (
        (F, (n, 331)), (INT8, (331, n + 231)), (F, (n + 231,)))),
    "attention": lambda n: (attention, "composite", ((F, (2, n, n)), (F, (2, 41 - n, n)),
                                                     (F, (2, 41 - n, n + 3)))),
}


def graph_of(program: Program) -> Graph:
    make, _, operands = program
    inputs = tuple(input_node(f"x{i}", TensorType(d, s)) for i, (d, s) in enumerate(operands))
    made = make(*inputs)
    return Graph(inputs, tuple(made) if isinstance(made, list) else (made,))


def case_of(graph: Graph, kind: str, sizes: dict[str, int]) -> Case:
    rng = np.random.default_rng()
    shapes = [tuple(evaluate_dim(d, sizes) for d in n.shape) for n in graph.inputs]
    arrays = [random_array(rng, n.dtype, s) for n, s in zip(graph.inputs, shapes, strict=True)]
    return Case(graph, kind, arrays, sizes)


def run_program(name: str, program: Program, sizes: Sequence[dict[str, int]],
                foreign: Target | None = None) -> None:
    """The program at all sizes, with buffers at both places and on one and two threads: it is right, and the
    same both times. For a `foreign` machine with functions for its instructions, on one thread."""
    graph = graph_of(program)
    code = code_for(foreign or host(), graph, {"N": 40})
    if foreign is not None:
        assert any(k.tile is not None and k.tile.product is not NUMBERS for k in code.program.kernels)
        code = emulated(code)
    loaded = LoadedCode(link(code.objects()), runtime().provided)
    for values in sizes:
        one = case_of(graph, program[1], values)
        found = []
        for place, threads in (("end", 1), ("start", 2 if foreign is None else 1)):
            print(name, *values.values(), place, flush=True)
            found.append(run(code, loaded, one, place, threads))
        check(one, found[0])
        assert [a.tobytes() for a in found[0]] == [a.tobytes() for a in found[1]]


def run_all() -> None:
    for form, target in (("pairs", AVX512_BF16), ("tiles", AMX)):
        for name, program in NARROW.items():
            run_program(f"{name} by {form}", program, [{"N": n} for n in STATIC], target)
    for name, program in RUN_TIME.items():
        run_program(name, program, [{"N": n} for n in range(1, 41)])
    for name, make in FIXED.items():
        for n in STATIC:
            run_program(f"{name}, fixed {n}", make(n), [{}])


def touch_beyond(place: str) -> None:
    """What the guard must catch."""
    array = Guarded(place).empty([5], np.dtype(np.float32))
    at = array.ctypes.data + (array.nbytes if place == "end" else -4)
    assert ctypes.c_float.from_address(at).value is not None


def print_signals(touch: Callable[[str], None]) -> None:
    """What ends a child that touches too much at either place; 0 for nothing."""
    for place in ("end", "start"):
        child = os.fork()
        if child == 0:
            touch(place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(place, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    print_signals(touch_beyond)
    run_all()
