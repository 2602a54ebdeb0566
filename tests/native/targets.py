"""One set of programs for every target, and how to run and judge them.

In: a target. Out: the programs' results there: in this process where this CPU can run the code, else under
qemu-user. The programs leave out what calls the C library (fmod, lgamma, sin of huge numbers): the emulated
machine has none.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planish.codegen.llvm.host import Target
from planish.codegen.llvm.native import NativeCode, generate
from planish.compiler import Options, compile_graph, machine_of
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.ops.samples import random_array, special_values
from planish.ops.tolerance import tolerance
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
    TensorType,
    dtype_of,
    evaluate_dim,
    symbol,
)
from tests.native.harness import Judgement, faults
from tests.qemu import run_aarch64

# generic machines to compile for, whatever this one is
SSE2 = Target("x86_64-unknown-linux-gnu", "x86-64", "", "sse2", vector_bytes=16, registers=16,
              l1=32 << 10, l2=512 << 10, l3=16 << 20, cores=2)
_AVX2 = "+avx2,+fma,+f16c,+bmi,+bmi2,+movbe"
AVX2 = replace(SSE2, cpu="x86-64-v3", isa="avx2", features=_AVX2, vector_bytes=32)
AVX512 = replace(SSE2, cpu="x86-64-v4", isa="avx512", vector_bytes=64, registers=32,
                 features=f"{_AVX2},+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl,-prefer-256-bit")


@dataclass(frozen=True)
class Case:
    """A program, the class of its tolerance, and data for its inputs; sizes stand for its symbols."""

    graph: Graph
    kind: str
    arrays: list[np.ndarray]
    sizes: dict[str, int]


# --- the programs

def gelu_chain(x: Node, b: Node) -> Node:
    return ops.mul(ops.gelu(ops.add(ops.mul(x, constant(0.125, FLOAT32)), b)), b)


def row_softmax(x: Node) -> Node:
    return ops.softmax(x, axis=1)


def layer_norm(x: Node, scale: Node, shift: Node) -> Node:
    return ops.layer_norm(x, scale, shift, axes_count=1, epsilon=1e-5)


def matmul_epilogue(x: Node, b: Node) -> Node:
    rng = np.random.default_rng(7)
    weight = random_array(rng, x.dtype, (x.shape[1], b.shape[0]))
    return ops.relu(ops.add(ops.matmul(x, constant(weight, x.dtype)), b))


def packed_transposed(x: Node, y: Node) -> Node:
    """Batches of x @ y.T: the right operand lies along k and is packed at run time."""
    return ops.matmul(x, ops.transpose(y, axes=(0, 2, 1)))


def conv(x: Node, w: Node) -> Node:
    return ops.conv(x, w, **conv_case(2, strides=(2, 1), padding=((1, 1), (0, 2))))


def convolutions(x: Node) -> list[Node]:
    """Between values that are laid out channels innermost: every channel by itself, groups, transposed, and
    a pooling."""
    rng = np.random.default_rng(5)

    def one(y: Node, out: int, size: int, **changes: Any) -> Node:
        shape = (out, y.shape[1] // changes.get("groups", 1), size, size)
        weight = constant(random_array(rng, y.dtype, shape), y.dtype)
        return ops.conv(y, weight, **conv_case(2, padding=((size // 2, size // 2),) * 2, **changes))

    y = ops.relu(one(x, 12, 1))
    middles = [one(y, 12, 3, groups=12), one(y, 36, 3, groups=3), one(y, 12, 4, lhs_dilation=(2, 2)),
               ops.reduce_window(y, kind="max", window=(1, 1, 3, 3), strides=(1, 1, 2, 2), dilation=(1,) * 4,
                                 padding=((0, 0), (0, 0), (1, 1), (1, 1)))]
    return [one(ops.relu(middle), 5, 1) for middle in middles]


def wrapped(x: Node, y: Node) -> list[Node]:
    """Integer semantics: wrap at the width, floor, shifts beyond the width, division by zero."""
    return [ops.mul(x, y), ops.floor_div(x, y), ops.mod(x, y), ops.shift_left(x, y), ops.shift_right(x, y),
            ops.cast(ops.add(x, y), dtype=INT64), ops.cast(x, dtype=FLOAT32)]


def casts(x: Node) -> list[Node]:
    return [ops.cast(x, dtype=d) for d in (INT8, UINT8, INT32, INT64, FLOAT16, BFLOAT16, FLOAT64)]


def narrow(x: Node, y: Node) -> list[Node]:
    """Rounded at every op; sums in float32."""
    z = ops.add(ops.mul(x, y), y)
    return [z, ops.reduce_sum(z, axes=(1,))]


def elementary(x: Node) -> list[Node]:
    positive = ops.add(ops.abs(x), constant(0.5, x.dtype))
    return [ops.exp(x), ops.log(positive), ops.tanh(x), ops.sigmoid(x), ops.gate(positive, x),
            ops.sqrt(positive), ops.round(x), ops.floor(x)]


def scans(x: Node) -> list[Node]:
    return [ops.cumsum(x, axis=0), ops.cumsum(x, axis=1, reverse=True, exclusive=True)]


def sums_of_columns(x: Node) -> list[Node]:
    return [ops.reduce_sum(x, axes=(0,)), ops.reduce_max(x, axes=(0,)), ops.reduce_sum(x, axes=(0, 1))]


def winners(x: Node) -> list[Node]:
    return [ops.argmax(x, axis=1), ops.argmin(x, axis=1), ops.argmax(x, axis=0)]


def attention(q: Node, k: Node, v: Node, mask: Node) -> list[Node]:
    return [ops.attention(q, k, v, causal=True), ops.attention(q, k, v, mask)]


def masked_attention(q: Node, k: Node, v: Node) -> list[Node]:
    """With a causal mask, of which both forms are compiled."""
    return [ops.attention(q, k, v, constant(np.tri(q.shape[-2], dtype=bool), BOOL))]


def weighted(x: Node) -> Node:
    weights = random_array(np.random.default_rng(3), x.dtype, (x.shape[1], 45))
    return ops.matmul(x, constant(weights, x.dtype))


def quantised(x: Node) -> Node:
    """Weights of bytes, with zero points and a scale of each column and 16 rows; no whole number of panels
    and too many to be widened before."""
    rng = np.random.default_rng(3)
    q = constant(rng.integers(0, 256, (x.shape[1], 250)).astype(np.uint8))
    zero = constant(rng.integers(100, 156, 250).astype(np.int32))
    scale = constant((rng.random((x.shape[1] // 16, 1, 250)) * 0.01).astype(np.float32))
    each = ops.reshape(ops.broadcast_to(scale, shape=(x.shape[1] // 16, 16, 250)), shape=q.shape)
    return ops.relu(ops.matmul(x, ops.cast(ops.cast(q, dtype=INT32) - zero, dtype=FLOAT32) * each))


BATCH = symbol("B", 1)
Spec = tuple[Callable, str, Sequence[tuple[DType, tuple]]]
F = FLOAT32
PROGRAMS: dict[str, Spec] = {
    "gelu chain": (gelu_chain, "composite", [(F, (37, 45)), (F, (45,))]),
    "past the caches": (gelu_chain, "composite", [(F, (1040, 512)), (F, (512,))]),
    "row softmax": (row_softmax, "composite", [(F, (9, 77))]),
    "layer norm": (layer_norm, "composite", [(F, (7, 61)), (F, (61,)), (F, (61,))]),
    "column reduction": (sums_of_columns, "reduction", [(F, (53, 39))]),
    "argmax": (winners, "exact", [(F, (11, 43))]),
    "cumsum": (scans, "reduction", [(F, (13, 27))]),
    **{f"matmul {m}x{k}x{n} {d}": (matmul_epilogue, "contraction", [(d, (m, k)), (d, (n,))])
       for m, k, n, d in ((1, 64, 70, F), (5, 33, 65, F), (12, 17, 64, F), (29, 40, 37, F),
                          (23, 31, 29, FLOAT64))},
    "batched matmul": (packed_transposed, "contraction", [(F, (3, 19, 21)), (F, (3, 35, 21))]),
    **{f"attention {s}x{t}": (attention, "composite", [
        (F, (2, s, 20)), (F, (2, t, 20)), (F, (2, t, 37)), (F, (s, t))])
       for s, t in ((21, 19), (67, 290), (3, 41))},
    "attention, causal mask": (masked_attention, "composite", [(F, (2, 67, 20))] * 3),
    **{f"weights {m} {d}": (weighted, "contraction", [(d, (m, 33))])
       for m, d in ((1, FLOAT16), (7, BFLOAT16))},
    **{f"quantised weights {m}": (quantised, "contraction", [(F, (m, 288))]) for m in (1, 7)},
    "conv": (conv, "contraction", [(F, (2, 5, 13, 11)), (F, (9, 5, 3, 3))]),
    "laid-out convolutions": (convolutions, "contraction", [(F, (1, 3, 9, 7))]),
    "gather": (lambda x, i: ops.take(x, i, axis=0), "exact", [(F, (21, 19)), (INT32, (33,))]),
    "integers int32": (wrapped, "exact", [(INT32, (75,)), (INT32, (75,))]),
    "integers int8": (wrapped, "exact", [(INT8, (75,)), (INT8, (75,))]),
    "integers uint8": (wrapped, "exact", [(UINT8, (75,)), (UINT8, (75,))]),
    "casts": (casts, "exact", [(F, (83,))]),
    "narrow float16": (narrow, "reduction", [(FLOAT16, (17, 39)), (FLOAT16, (17, 39))]),
    "narrow bfloat16": (narrow, "reduction", [(BFLOAT16, (17, 39)), (BFLOAT16, (17, 39))]),
    "elementary float32": (elementary, "transcendental", [(F, (203,))]),
    "elementary float64": (elementary, "transcendental", [(FLOAT64, (203,))]),
    "dynamic softmax": (row_softmax, "composite", [(F, (BATCH, BATCH + 3))]),
    "dynamic matmul": (matmul_epilogue, "contraction", [(F, (BATCH, 33)), (F, (21,))]),
    "dynamic column": (sums_of_columns, "reduction", [(F, (BATCH, 39))]),
}


def case(name: str) -> Case:
    """The program of that name with fresh data; symbols take a size that is no whole number of vectors."""
    make, kind, operands = PROGRAMS[name]
    inputs = tuple(input_node(f"x{i}", TensorType(d, s)) for i, (d, s) in enumerate(operands))
    made = make(*inputs)
    sizes = {"B": 14} if name.startswith("dynamic") else {}
    rng = np.random.default_rng()
    arrays = [_data(rng, name, d, tuple(evaluate_dim(n, sizes) for n in shape)) for d, shape in operands]
    return Case(Graph(inputs, tuple(made) if isinstance(made, list) else (made,)), kind, arrays, sizes)


def _data(rng: np.random.Generator, name: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    array = random_array(rng, dtype, shape, *((-21, 21) if name == "gather" and dtype.is_integer else ()))
    if name in ("argmax", "casts") or name.startswith("integers"):
        special = special_values(dtype)
        array.reshape(-1)[:special.size] = rng.permutation(special)
    return array


# --- where they run

def code_for(target: Target, graph: Graph, hint: dict[str, int] | None = None) -> NativeCode:
    """What `compile_graph` makes, not loaded."""
    optimized, _ = run_pipeline(graph, numerics="default")
    built = build_program(optimized, machine_of(target), hint or {})
    assert built.outputs == tuple(("program", k) for k in range(len(graph.outputs)))
    return generate(built.program, built.outputs, optimized, target, "default")


def run_here(target: Target, one: Case) -> Sequence[np.ndarray]:
    return compile_graph(one.graph, Options(target=target))(*one.arrays)


def run_emulated(target: Target, one: Case) -> Sequence[np.ndarray]:
    code = code_for(target, one.graph)
    outputs = [(tuple(evaluate_dim(d, one.sizes) for d in t.shape), t.dtype.numpy) for t in code.output_types]
    dims = [one.sizes[s.name] for s in code.program.symbols]
    return run_aarch64(code.objects(), one.arrays, outputs, code.constants, dims,
                       len(dims) + len(code.code.derived), evaluate_dim(code.program.arena_bytes, one.sizes))


def check(one: Case, results: Sequence[np.ndarray]) -> None:
    """AssertionError where a result is further from the reference than the table allows: the class's ULP, and
    its share of the largest magnitude (of a sum: of its terms), plus twice the reference's own error against
    float64."""
    with np.errstate(all="ignore"):
        expected = interpret(one.graph, one.arrays)
        exact = interpret(one.graph, one.arrays, precision="float64")
        terms = interpret(one.graph, [np.abs(a) for a in one.arrays], precision="float64")
    for k, (got, own, wide) in enumerate(zip(results, expected, exact, strict=True)):
        assert got.dtype == own.dtype and got.shape == own.shape, f"output {k}: {got.dtype}{got.shape}"
        with np.errstate(invalid="ignore"):
            wrong = faults(got, own, _judgement(one.kind, own, wide, terms[k]))
        shown = [f"{at}: {got[at]!r}, not {own[at]!r}" for at in map(tuple, np.argwhere(wrong)[:4].tolist())]
        assert not shown, f"output {k}: {np.count_nonzero(wrong)} of {wrong.size} differ: {'; '.join(shown)}"


def _judgement(kind: str, own: np.ndarray, wide: np.ndarray, terms: np.ndarray) -> Judgement:
    bound = tolerance(kind, dtype_of(own))
    most = np.zeros(())
    if bound.scale:
        most = max(np.max(np.abs(wide)), np.max(np.abs(terms)))
        most += 2 * np.max(np.abs(own.astype(np.float64) - wide)) / bound.scale
    return Judgement(bound, np.full(own.shape, most), np.zeros(own.shape, bool))
