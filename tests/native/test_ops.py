"""Every op on every dtype it takes, as native code, beside the NumPy meaning of its record.

The samples of the records cover random and special values, broadcasting, empty and size-1 operands, strides,
and sizes of one lane, whole vectors, vectors with a tail and enough for several threads. Each run draws some
of them anew, more for float32 than for the other dtypes, and some with special values always.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import Graph, input_node
from planish.ops import OPS, Op, Sample
from planish.ops.rules import ops
from planish.runtime.threads import get_num_threads, set_num_threads
from planish.types import BOOL, FLOAT8_E5M2, FLOAT32, INT32, DType, TensorType
from tests.native.harness import PRIMITIVES, check_native, graph_of, operands_of, run_native

DRAWN, DRAWN_FLOAT32 = 2, 12   # samples without special values
SPECIAL, SPECIAL_FLOAT32 = 1, 4
LARGE = 10_000    # elements
# A dtype for storage is a byte where it only moves: ops that look inside see each, the others one of them.
LOOK_INSIDE = {"cast", "bitcast"}
CASES = [(op, dtype) for op in PRIMITIVES for dtype in op.dtypes
         if not dtype.is_storage or op.name in LOOK_INSIDE or dtype is FLOAT8_E5M2]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and overflow are the subject


def chosen(op: Op, dtype: DType, rng: np.random.Generator) -> list[Sample]:
    samples = list(op.samples(rng, dtype))
    special = [s for s in samples if "special" in s.label]
    rest = [s for s in samples if "special" not in s.label]
    main = dtype is FLOAT32
    return [*_drawn(rng, special, SPECIAL_FLOAT32 if main else SPECIAL),
            *_drawn(rng, rest, DRAWN_FLOAT32 if main else DRAWN)]


def _drawn(rng: np.random.Generator, samples: list[Sample], count: int) -> list[Sample]:
    return [samples[i] for i in sorted(rng.permutation(len(samples))[:count])]


@pytest.mark.parametrize("op, dtype", CASES, ids=[f"{op}-{dtype}" for op, dtype in CASES])
def test_op(op: Op, dtype: DType) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    try:
        check_native(op, chosen(op, dtype, np.random.default_rng(seed)))
    except Exception as error:
        raise AssertionError(f"{op} {dtype}, seed {seed}: {error}") from error


@pytest.mark.parametrize("numerics", ["strict", "fast"])
@pytest.mark.parametrize("name", ["exp", "tanh", "add", "div", "reduce_sum", "softmax", "layer_norm", "conv",
                                  "gelu"])
def test_numerics(name: str, numerics: str) -> None:
    rng = np.random.default_rng()
    samples = [s for s in OPS[name].samples(rng, FLOAT32) if "special" not in s.label]
    check_native(OPS[name], _drawn(rng, samples, DRAWN), numerics)


def bits(results: Any) -> list[bytes]:
    return [r.tobytes() for r in results]


@pytest.mark.parametrize("name", ["exp", "reduce_sum", "reduce_max", "argmax", "cumsum", "softmax",
                                  "layer_norm", "conv", "dot_general", "scatter_nd", "take", "reduce_window"])
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    samples = list(OPS[name].samples(np.random.default_rng(), FLOAT32))
    samples = [s for s in samples if sum(a.size for a in s.operands) > LARGE] or samples[-4:]
    compiled = compile_graph(graph_of(OPS[name], samples), Options())
    before = get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            set_num_threads(count)
            found.append(bits(compiled(*operands_of(samples))))
    finally:
        set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_outputs_that_are_inputs_or_one_another() -> None:
    x = input_node("x", TensorType(FLOAT32, (4, 6)))
    y = ops.exp(x)
    shapes = [(4, 6), (24,), (4, 6), (2, 12), (24,), (4, 6)]
    flat, halves = ops.reshape(y, shape=(24,)), ops.reshape(y, shape=(2, 12))
    outputs = (x, ops.reshape(x, shape=(24,)), y, halves, flat, y)
    array = np.random.default_rng().uniform(-1, 1, (4, 6)).astype(np.float32)
    results = run_native(Graph((x,), outputs), [array])
    assert [r.shape for r in results] == shapes
    for result, expected in zip(results, (array, array, np.exp(array), *[np.exp(array)] * 3)):
        np.testing.assert_allclose(result, expected.reshape(result.shape), 1e-6)
        others = [r for r in (*results, array) if r is not result]
        assert not any(np.shares_memory(result, other) for other in others)


def test_a_check_that_fails_raises_what_it_says() -> None:
    good = input_node("good", TensorType(BOOL, ()))
    x = input_node("x", TensorType(INT32, (3,)))
    check = ops.check(good, error="IndexError", message="index 7 is out of range")
    compiled = compile_graph(Graph((good, x), (ops.neg(x),), effects=(check,)), Options())
    array = np.array([1, 2, 3], np.int32)
    assert compiled(np.array(True), array)[0].tolist() == [-1, -2, -3]
    with pytest.raises(IndexError, match="index 7 is out of range"):
        compiled(np.array(False), array)
    assert compiled(np.array(True), array)[0].tolist() == [-1, -2, -3]
