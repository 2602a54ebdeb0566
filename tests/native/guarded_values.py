"""Programs each of whose values, also those between kernels, has memory of its own that ends, or begins,
where no page may be touched.

In: convolutions of every kind and poolings between values that are laid out channels innermost. Out:
`python -m tests.native.guarded_values` prints each name before it runs it; an element too many ends it, and
first, as guarded.py does, what ends a child that touches one.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.host import host
from planish.codegen.llvm.native import NativeCode, generate
from planish.compiler import machine_of
from planish.ir import Graph, Node, input_node
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.runtime import tables
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode
from planish.runtime.native import runtime
from planish.schedule.build import build_program
from planish.schedule.program import Program
from planish.types import FLOAT32, TensorType
from tests.native.guarded import PAGE, Guarded, no_access, print_signals
from tests.native.targets import Case, check
from tests.native.test_convolution import KINDS, SPREAD, between


def pooled(x: Node, kind: str, size: int, stride: int, pad: int) -> Node:
    return ops.reduce_window(x, kind=kind, window=(1, 1, size, size), strides=(1, 1, stride, stride),
                             padding=((0, 0), (0, 0), (pad, pad), (pad, pad)), dilation=(1,) * 4)


POOLS: dict[str, Callable] = {
    "largest of 3 x 3": lambda x, rng: pooled(x, "max", 3, 1, 1),
    "largest of 3 x 3, strided": lambda x, rng: pooled(x, "max", 3, 2, 1),
    "sum of 2 x 2": lambda x, rng: pooled(x, "sum", 2, 2, 0),
    "mean of all": lambda x, rng: x * ops.mean(x, axes=(2, 3), keepdims=True),
}
PLACES = ((4, 5), (5, 11), (9, 8))
ALONE = ("largest of 3 x 3", "largest of 3 x 3, strided", "sum of 2 x 2")   # rows innermost, too


def graph_of(function: Callable[[Node], Node], places: tuple[int, int]) -> Graph:
    x = input_node("x", TensorType(FLOAT32, (2, 3, *places)))
    return Graph((x,), (function(x),))


def apart(program: Program, place: str) -> tuple[Program, list[int]]:
    """The program with every value in pages of its own, at their end or start, and where in the arena the
    pages between them lie."""
    moved, gaps, at = [], [0], PAGE
    for one in program.buffers:
        if one.kind == "arena":
            size = one.buffer.type.size * one.buffer.dtype.itemsize
            pages = -(-size // PAGE) * PAGE
            one = replace(one, offset=at + (pages - size if place == "end" else 0))
            at += pages + PAGE
            gaps.append(at - PAGE)
        moved.append(one)
    return replace(program, buffers=tuple(moved), arena_bytes=at), gaps


def code_of(graph: Graph, place: str) -> tuple[NativeCode, list[int]]:
    optimized, _ = run_pipeline(graph)
    built = build_program(optimized, machine_of(host()), {})
    program, gaps = apart(built.program, place)
    return generate(program, built.outputs, optimized, host(), "default"), gaps


_made: dict[str, bytes] = {}   # objects of kernels: only the body knows where values lie


def objects_of(code: NativeCode) -> list[bytes]:
    target, missing = code.target, [n for n in code.code.kernels if n not in _made]
    texts = [*(code.code.kernels[n]() for n in missing), code.code.body]
    *kernels, body = (emit_object(t, target.triple, target.cpu, target.features) for t in texts)
    _made.update(zip(missing, kernels, strict=True))
    return [*(_made[n] for n in code.code.kernels), body]


def run(code: NativeCode, gaps: list[int], array: np.ndarray, place: str, threads: int) -> list[np.ndarray]:
    memory, loaded = Guarded(place), LoadedCode(link(objects_of(code)), runtime().provided)
    outputs = [memory.empty(t.shape, t.dtype.numpy) for t in code.output_types]
    arena = memory.empty([code.program.arena_bytes], np.dtype(np.uint8))
    for gap in gaps:
        no_access(arena.ctypes.data + gap)
    held = [memory.copy(array), *outputs, *map(memory.copy, code.constants), arena]
    buffers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
    frame = tables.Frame(ctypes.addressof(buffers), 0, runtime().pool, 0, 0)
    runtime().parallel(loaded.address("planish_body"), ctypes.addressof(frame), threads)
    assert frame.status == 0
    return [np.array(o) for o in outputs]


def run_program(name: str, graph: Graph) -> None:
    array = np.random.default_rng().normal(size=graph.inputs[0].shape).astype(np.float32)
    for place, threads in (("end", 1), ("start", 2)):
        code, gaps = code_of(graph, place)
        print(name, place, flush=True)
        check(Case(graph, "contraction", [array], {}), run(code, gaps, array, place, threads))


def run_all() -> None:
    rng = np.random.default_rng()
    for k, (name, make) in enumerate({**KINDS, **SPREAD, **POOLS}.items()):
        run_program(name, graph_of(between(make, 12, rng), PLACES[k % len(PLACES)]))
    for name in ALONE:
        for places in PLACES:
            run_program(f"{name} alone", graph_of(lambda x: POOLS[name](x, rng), places))  # noqa: B023


def touch_between(place: str) -> None:
    """What the pages between values must catch: the code of a program whose value is said to be shorter than
    it is."""
    rng = np.random.default_rng()
    graph = graph_of(between(KINDS["plain"], 12, rng), (4, 5))
    code, gaps = code_of(graph, place)
    shift = 4 if place == "end" else -4
    moved = [replace(b, offset=b.offset + shift) if b.kind == "arena" else b for b in code.program.buffers]
    wrong = generate(replace(code.program, buffers=tuple(moved)), (("program", 0),), graph, host(), "default")
    run(wrong, gaps, np.zeros((2, 3, 4, 5), np.float32), place, 1)


if __name__ == "__main__":
    print_signals(touch_between)
    run_all()
