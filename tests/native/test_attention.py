"""Attention as one kernel: its formula's answer at odd sizes, under any mask, with any number of threads."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.machine import Machine
from planish.schedule.program import If
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_verify import verify_program
from planish.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, DType, TensorType, dtype_of, symbol

PARTS = Options(disable=frozenset({"recognise"}))


def graph_of(arrays: list[np.ndarray], **attributes: Any) -> Graph:
    inputs = tuple(input_node(f"x{i}", TensorType(dtype_of(a), a.shape)) for i, a in enumerate(arrays))
    return Graph(inputs, (ops.attention(*inputs, **attributes),))


def operands(batch: tuple[int, ...], s: int, t: int, d: int, e: int,
             dtype: DType = FLOAT32) -> list[np.ndarray]:
    rng = np.random.default_rng()
    return [random_array(rng, dtype, (*batch, *shape), -2, 2) for shape in ((s, d), (t, d), (t, e))]


def check(arrays: list[np.ndarray], ulp: float = 2.0 ** -17, **attributes: Any) -> None:
    """One kernel, that gives the formula's answer, the same on one thread and on two and when run again."""
    graph = graph_of(arrays, **attributes)
    expected = interpret(graph, arrays, precision="float64")[0].astype(np.float64)
    compiled = compile_graph(graph)
    assert [k.ops for k in compiled.report.kernels] == [("attention",)]
    actual = compiled(*arrays)[0]
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=ulp, atol=4 * ulp)
    for threads, times in ((1, 1), (2, 2)):
        limited = compile_graph(graph, Options(threads=threads))
        for _ in range(times):
            np.testing.assert_array_equal(limited(*arrays)[0], actual)


def check_sums(arrays: list[np.ndarray], any_order: bool = False, **attributes: Any) -> None:
    """The sums beside the result, in one kernel (whichever is asked for first), and alone."""
    graph = graph_of(arrays, **attributes)
    q, k, _, *masks = graph.inputs
    sums = ops.attention_logsumexp(q, k, *masks, **attributes)
    both = (graph.outputs[0], sums)
    expected = interpret(Graph(graph.inputs, both), arrays, precision="float64")
    wanted = dict(zip(both, expected))
    orders = (both[::-1],) if any_order else ()
    for outputs in (both, *orders, (sums,)):
        compiled = compile_graph(Graph(graph.inputs, outputs))
        kernel, = compiled.report.kernels
        assert set(kernel.ops) == {n.op.name for n in outputs}
        alone = compile_graph(Graph(graph.inputs, outputs), Options(threads=1))
        for node, actual, again in zip(outputs, compiled(*arrays), alone(*arrays)):
            np.testing.assert_allclose(actual, wanted[node], rtol=2.0 ** -16, atol=2.0 ** -15)
            np.testing.assert_array_equal(again, actual)


@pytest.mark.parametrize("sizes", [
    ((2, 3), 5, 7, 3, 4), ((2,), 97, 130, 8, 20), ((2, 1), 100, 300, 20, 48), ((3,), 1, 301, 64, 128),
    ((3,), 4, 400, 9, 70)], ids=str)
def test_sums_of_training(sizes: tuple) -> None:
    check_sums(operands(*sizes), any_order=True)
    check_sums(operands(*sizes), causal=True, scale=0.3, unseen="zero")


def test_sums_with_masks_and_shared_keys() -> None:
    rng = np.random.default_rng()
    mask = rng.random((9, 300)) < 0.5
    mask[[0, 5]] = False                                      # they see nothing: -inf
    check_sums([*operands((2,), 9, 300, 8, 8), mask], unseen="zero")
    check_sums([*operands((2, 4), 60, 70, 8, 8), random_array(rng, FLOAT32, (60, 1), -3, 3)])
    q, k, v = operands((2, 4), 1, 70, 8, 8)
    check_sums([q, k[:, :1], v[:, :1]])                       # one query each: heads are rows of a tile
    q, k, v = operands((2, 4), 50, 70, 8, 8)
    check_sums([q, k[:, :1], v[:, :1]], causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [
    ((2, 3), 5, 7, 3, 4), ((1,), 48, 48, 16, 16), ((2,), 49, 130, 8, 20), ((2,), 97, 16, 5, 1),
    ((), 3, 259, 33, 32), ((2, 1), 100, 300, 20, 48), ((2,), 1, 1, 1, 1), ((3,), 1, 301, 64, 128),
    ((3,), 2, 20, 64, 64), ((3,), 4, 1000, 9, 70)], ids=str)
def test_odd_sizes(sizes: tuple, causal: bool) -> None:
    check(operands(*sizes), causal=causal)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("sizes", [((2,), 9, 17, 8, 24), ((2,), 50, 140, 20, 16)], ids=str)
def test_narrow_dtypes_are_rounded_once(sizes: tuple, dtype: DType) -> None:
    check(operands(*sizes, dtype), 2.0 ** (-8 if dtype is BFLOAT16 else -11), causal=True)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1, 1, 137), (50, 1), (50, 137), (2, 3, 50, 137),
                                   (1, 3, 50, 1)], ids=str)
@pytest.mark.parametrize("kind", [BOOL, FLOAT32], ids=str)
def test_masks_of_any_shape(shape: tuple[int, ...], kind: DType) -> None:
    rng = np.random.default_rng()
    mask = rng.random(shape) < 0.7 if kind is BOOL else random_array(rng, FLOAT32, shape, -3, 3)
    check([*operands((2, 3), 50, 137, 8, 16), mask], unseen="zero", causal=kind is FLOAT32)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_values_are_copied_once_where_heads_are_many(threads: int) -> None:
    """Eight heads are four for each of two threads; causal or not, the interpreter and the kernel agree."""
    for causal in (False, True):
        arrays = operands((8,), 130, 20, 4, 32)
        graph = graph_of(arrays, causal=causal)
        built = build_program(graph, Machine(threads=threads), {})
        kernel, = built.program.kernels
        taken = [s for s in kernel.steps if s.name == "in_turn"]
        assert len(taken) == (threads < 5)
        found, = interpret_program(built.program, arrays)
        expected = interpret(graph, arrays)[0]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)


def test_masks_of_nothing_are_left_out() -> None:
    """What is added is 0, or every score is chosen: the kernel does not ask."""
    q, k, v = (input_node(n, TensorType(FLOAT32, (2, s, 8))) for n, s in (("q", 5), ("k", 7), ("v", 7)))
    scores = ops.dot_general(q, k, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,), rhs_batch=(0,))
    numbers = np.random.default_rng().random((5, 7))
    masks = (np.zeros((5, 7), np.float32), numbers.astype(np.float32), np.full((5, 7), True), numbers < 0.5)
    hidden = constant(np.float32(-3))
    for mask, kept in zip(map(constant, masks), (False, True, False, True)):
        shown = ops.select(mask, scores, hidden) if mask.dtype is BOOL else scores + mask
        out = ops.dot_general(ops.softmax(shown, axis=2), v, lhs_contract=(2,), rhs_contract=(1,),
                              lhs_batch=(0,), rhs_batch=(0,))
        graph, _ = run_pipeline(Graph((q, k, v), (out,)))
        found = [n for n in graph.nodes() if n.op.name == "attention"]
        assert [len(n.operands) for n in found] == [3 + kept]


def test_two_masks_and_a_finite_number_for_hidden_scores() -> None:
    rng = np.random.default_rng()
    added = random_array(rng, FLOAT32, (9, 1), -1, 1)
    check([*operands((2,), 9, 17, 8, 8), rng.random((2, 1, 17)) < 0.5, added], hidden=-3.0)
    check([*operands((2,), 3, 170, 8, 8), rng.random((2, 3, 170)) < 0.5, added[:3]], hidden=-3.0)


@pytest.mark.parametrize("keys", [40, 300])
@pytest.mark.parametrize("unseen", ["nan", "zero", "zero_nan"])
def test_queries_that_see_nothing(keys: int, unseen: str) -> None:
    mask = np.random.default_rng().random((9, keys)) < 0.5
    mask[[0, 5]] = False
    mask[2, :200] = False
    check([*operands((2,), 9, keys, 8, 8), mask], unseen=unseen)


@pytest.mark.parametrize("unseen", ["nan", "zero_nan"])
@pytest.mark.parametrize("queries, keys", [(9, 40), (9, 300), (4, 300)])
def test_special_values(queries: int, keys: int, unseen: str) -> None:
    """NaN and inf in scores and values come out where they do in the formula."""
    for which, value in ((0, np.nan), (1, np.nan), (2, np.nan), (0, np.inf), (1, -np.inf), (2, np.inf)):
        arrays = operands((2,), queries, keys, 8, 8)
        arrays[which][1, 3, 2] = value
        if which != 2:
            arrays[2][0, 1, 1] = np.nan  # in another batch
        check(arrays, unseen=unseen)


def test_a_late_score_that_is_no_number() -> None:
    """In the last block of keys, after sums of numbers: the weights of that query alone are 0."""
    for value in (np.nan, np.inf):
        arrays = [*operands((2,), 20, 400, 8, 8), np.zeros((20, 400), np.float32)]
        arrays[3][[2, 7], [399, 130]] = value
        arrays[2][1, 5, 3] = np.inf
        check(arrays, unseen="zero_nan")
        check(arrays)


def test_shared_heads() -> None:
    q, *_ = operands((2, 4, 3), 11, 19, 8, 8)
    _, k, v = operands((2, 4, 1), 11, 19, 8, 8)
    check([q, k, v])
    check([q, k[:1], v[:, :1]], causal=True)
    check([q[..., :1, :], k, v, np.random.default_rng().random((4, 3, 1, 19)) < 0.5], unseen="zero")


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_repeated_by_hand(queries: int, masked: bool) -> None:
    """Keys of two heads, each repeated for three: read once for the three where they have one query each."""
    rng = np.random.default_rng()
    q, k, v = (random_array(rng, FLOAT32, (2, *s), -2, 2) for s in ((6, queries, 8), (2, 40, 8), (2, 40, 8)))
    arrays = [q, k, v] + ([rng.random((2, 1, 1, 40)) < 0.7] if masked else [])
    inputs = tuple(input_node(f"x{i}", TensorType(dtype_of(a), a.shape)) for i, a in enumerate(arrays))

    def repeated(x: Node) -> Node:
        one = ops.reshape(x, shape=(2, 2, 1, 40, 8))
        return ops.reshape(ops.broadcast_to(one, shape=(2, 2, 3, 40, 8)), shape=(2, 6, 40, 8))
    made = ops.attention(inputs[0], *map(repeated, inputs[1:3]), *inputs[3:], unseen="zero")
    graph = Graph(inputs, (made,))
    compiled = compile_graph(graph)
    np.testing.assert_allclose(compiled(*arrays)[0], interpret(graph, arrays)[0], rtol=1e-4, atol=1e-5)
    kernel, = compiled.code.program.kernels
    assert kernel.ops[-1] == "attention" and "broadcast_to" not in kernel.ops
    assert [a.extent for a in kernel.shared] == [2, 2, 3][:2 + (queries > 1)]


@pytest.mark.parametrize("causal", [False, True])
def test_open_sizes(causal: bool) -> None:
    b, s, t = symbol("B", 0, 8), symbol("S", 0, 4096), symbol("T", 1, 4096)
    shapes: list[tuple] = [(b, s, 8), (b, t, 8), (b, t, 16)]
    inputs = tuple(input_node(f"x{i}", TensorType(FLOAT32, shape)) for i, shape in enumerate(shapes))
    graph = Graph(inputs, (ops.attention(*inputs, causal=causal),))
    compiled = compile_graph(graph)
    for sizes in ((2, 1, 1), (1, 5, 300), (3, 100, 17), (2, 48, 128), (1, 0, 5), (0, 3, 3)):
        arrays = operands(sizes[:1], *sizes[1:], 8, 16)
        expected, = interpret(graph, arrays)
        np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=1e-4, atol=1e-5)


def softmax(x: Node) -> Node:
    return ops.softmax(x, axis=x.ndim - 1)


def merged_heads(x: Node) -> Node:
    """[length, 24] as [3, length, 8]."""
    return ops.transpose(ops.reshape(x, shape=(x.shape[0], 3, 8)), axes=(1, 0, 2))


def test_written_by_hand() -> None:
    """From the projections' own layout, with a mask, and back to it."""
    rng = np.random.default_rng()
    arrays = [random_array(rng, FLOAT32, (37, 24), -1, 1) for _ in range(3)] + [rng.random((37, 37)) < 0.8]
    inputs = tuple(input_node(f"x{i}", TensorType(dtype_of(a), a.shape)) for i, a in enumerate(arrays))
    q, k, v = map(merged_heads, inputs[:3])
    scores = ops.matmul(q, ops.transpose(k, axes=(0, 2, 1))) * 0.25
    made = ops.matmul(softmax(ops.select(inputs[3], scores, -1e9)), v)
    graph = Graph(inputs, (ops.reshape(ops.transpose(made, axes=(1, 0, 2)), shape=(37, 24)),))
    compiled = compile_graph(graph)
    assert "attention" in [op for k in compiled.report.kernels for op in k.ops]
    np.testing.assert_allclose(compiled(*arrays)[0], interpret(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_weights_that_are_made_numbers() -> None:
    """As torch writes attention to ONNX files."""
    arrays = [*operands((2,), 9, 17, 8, 8), np.zeros((9, 17), np.float32)]
    arrays[3][4] = -np.inf
    q, k, v, m = (input_node(f"x{i}", TensorType(dtype_of(a), a.shape)) for i, a in enumerate(arrays))
    weights = softmax(ops.matmul(q * 0.5, ops.transpose(k, axes=(0, 2, 1)) * 0.5) + m)
    shown = ops.select(ops.is_nan(weights), 0.0, weights)
    graph = Graph((q, k, v, m), (ops.matmul(shown, v),))
    compiled = compile_graph(graph)
    assert "attention" in [op for k in compiled.report.kernels for op in k.ops]
    np.testing.assert_allclose(compiled(*arrays)[0], interpret(graph, arrays)[0], rtol=1e-4, atol=1e-5)
    kept = compile_graph(Graph(graph.inputs, (*graph.outputs, weights)))
    assert "attention" not in [op for k in kept.report.kernels for op in k.ops]


def test_not_in_strict_and_not_when_switched_off() -> None:
    arrays = operands((2,), 9, 17, 8, 8)
    for options in (Options(numerics="strict"), PARTS):
        compiled = compile_graph(graph_of(arrays), options)
        assert all(k.ops != ("attention",) for k in compiled.report.kernels)
        expected, = interpret(graph_of(arrays), arrays)
        np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=1e-5, atol=1e-6)


# --- many keys, few heads: in parts of the keys

@pytest.mark.parametrize("batch, shared, queries, features, mask", [
    ((), (), 1, (16, 16), None),
    ((), (), 3, (16, 24), (3, 4096)),
    ((3,), (3,), 4, (8, 16), (4096,)),
    ((2, 5), (2, 1), 1, (16, 8), (2, 1, 1, 4096)),     # heads that share their keys are one tile
    ((1, 3), (1, 3), 2, (16, 16), (3, 2, 1)),
], ids=str)
@pytest.mark.parametrize("kind", [BOOL, FLOAT32], ids=str)
def test_few_queries_to_many_keys(batch: tuple, shared: tuple, queries: int, features: tuple[int, int],
                                  mask: tuple[int, ...] | None, kind: DType) -> None:
    rng = np.random.default_rng()
    d, e = features
    arrays = [random_array(rng, FLOAT32, shape, -2, 2)
              for shape in ((*batch, queries, d), (*shared, 4096, d), (*shared, 4096, e))]
    if mask is not None:
        arrays.append(rng.uniform(size=mask) < 0.5 if kind is BOOL else random_array(rng, kind, mask, -2, 2))
    graph = graph_of(arrays)
    expected = interpret(graph, arrays, precision="float64")[0]
    seen = [compile_graph(graph, Options(threads=threads)) for threads in (1, 2)]
    assert len(seen[0].report.kernels) > 1, "parts, and what joins them"
    results = [compiled(*arrays)[0] for compiled in (*seen, seen[1])]
    np.testing.assert_allclose(results[0], expected, rtol=2.0 ** -15, atol=2.0 ** -17)
    assert all(np.array_equal(results[0], r, equal_nan=True) for r in results)


@pytest.mark.parametrize("unseen", ["nan", "zero"])
def test_parts_in_which_nothing_is_seen(unseen: str) -> None:
    """Some queries see keys of one part only, others none."""
    q, k, v = operands((2,), 3, 4096, 8, 8)
    mask = np.zeros((2, 3, 4096), bool)
    mask[0, 0, 3000:3010] = mask[1, 2, :5] = True
    arrays = [q, k, v, mask]
    graph = graph_of(arrays, unseen=unseen)
    expected = interpret(graph, arrays, precision="float64")[0]
    compiled = compile_graph(graph)
    assert len(compiled.report.kernels) > 1
    np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=2.0 ** -15, atol=2.0 ** -17)
    assert np.isnan(expected).any() == (unseen == "nan")


@pytest.mark.parametrize("batch, queries, keys", [
    ((4,), 1, 4096), ((), 5, 4096), ((), 1, 4099), ((), 1, 1024)])
def test_where_parts_do_not_pay(batch: tuple[int, ...], queries: int, keys: int) -> None:
    check(operands(batch, queries, keys, 8, 8))


@pytest.mark.parametrize("scale", [2.0 ** -2, 2.0 ** 40])
def test_numbers_that_queries_and_keys_are_times(scale: float) -> None:
    """They are the kernel's scale, unless they are so large or small that a product of them may be none."""
    rng = np.random.default_rng()
    arrays = [rng.normal(size=(3, 20, 8)).astype(np.float32) for _ in range(3)]
    q, k, v = (input_node(n, TensorType(FLOAT32, (3, 20, 8))) for n in "qkv")
    scores = ops.matmul(q * np.float32(scale), ops.transpose(k * np.float32(1 / 3), axes=(0, 2, 1)))
    graph = Graph((q, k, v), (ops.matmul(ops.softmax(scores, axis=2), v),))
    compiled = compile_graph(graph)
    expected, = interpret(graph, arrays, precision="float64")
    np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=1e-5, atol=1e-6)
    attention = next(n for n in compiled.optimized.nodes() if n.op.name == "attention")
    alone = [n.op.name for n in compiled.optimized.nodes() if n.op.name == "mul"]
    if scale == 2.0 ** 40:
        assert alone == ["mul"]
    else:
        assert alone == [] and attention.attributes.scale == pytest.approx(scale / 3)


def test_heads_side_by_side_for_the_product_that_sums_over_them() -> None:
    """What the attention gives lies [queries, heads, features]: a row of the product is one stretch."""
    rng = np.random.default_rng()
    w = constant((rng.normal(size=(3 * 16, 40)) / 7).astype(np.float32))
    arrays = [rng.normal(size=(1, 3, 20, 16)).astype(np.float32) for _ in range(3)]
    inputs = tuple(input_node(n, TensorType(FLOAT32, (1, 3, 20, 16))) for n in "qkv")
    heads = ops.transpose(ops.attention(*inputs), axes=(0, 2, 1, 3))
    graph = Graph(inputs, (ops.matmul(ops.reshape(heads, shape=(20, 48)), w),))
    compiled = compile_graph(graph)
    attention, product = compiled.built.program.kernels
    assert attention.outputs[0].order == product.inputs[0].order == (0, 2, 1, 3)
    expected, = interpret(graph, arrays, precision="float64")
    np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=1e-5, atol=1e-6)


# --- masks that are causal

LATER = np.triu(np.ones((70, 70), bool), 1)
HIDING = {"bool": ~LATER, "inf": np.where(LATER, -np.inf, 0).astype(np.float32),
          "lowest": np.where(LATER, np.finfo(np.float32).min, 0).astype(np.float32)[None]}


def masked_graph(mask: Node, batch: tuple[int, ...] = (2,), features: int = 8, **attributes: Any) -> Graph:
    length = mask.shape[-1]
    inputs = tuple(input_node(n, TensorType(FLOAT32, (*batch, length, features))) for n in "qkv")
    return Graph(inputs, (ops.attention(*inputs, mask, **attributes),))


def forms_of(graph: Graph) -> int:
    """How many kernels there are for the one attention."""
    return sum("attention" in k.ops for k in compile_graph(graph).report.kernels)


@pytest.mark.parametrize("kind", HIDING)
@pytest.mark.parametrize("unseen", ["nan", "zero_nan"])
def test_a_causal_mask_is_no_mask_over_usual_numbers(kind: str, unseen: str) -> None:
    """Whatever numbers come, the answer is that of the formula with the mask; NaN that only a hidden score or
    value has is seen in it."""
    mask = HIDING[kind]
    graph = masked_graph(constant(mask, dtype_of(mask)), (2, 3), unseen=unseen)
    assert forms_of(graph) == 2
    ones, twos = (compile_graph(graph, Options(threads=t)) for t in (1, 2))
    usual = operands((2, 3), 70, 70, 8, 8)
    for which, value in ((0, 1.0), *((i, v) for i in range(3) for v in (np.nan, np.inf, -np.inf, 1e30))):
        arrays = [a.copy() for a in usual]
        arrays[which][1, 2, 66, 3] = value
        expected = interpret(graph, arrays, precision="float64")[0]
        actual = ones(*arrays)[0]
        np.testing.assert_allclose(actual, expected, rtol=2.0 ** -16, atol=2.0 ** -15)
        np.testing.assert_array_equal(twos(*arrays)[0], actual)


def test_the_loops_of_both_forms_mean_the_same() -> None:
    machine = Machine(threads=2)
    graph, _ = run_pipeline(masked_graph(constant(HIDING["inf"][:50, :50], FLOAT32)))
    program = verify_program(build_program(graph, machine, {}).program)
    choice, = (s for s in program.steps if isinstance(s, If))
    usual = operands((2,), 50, 50, 8, 8)
    for value in (1.0, np.nan):
        usual[1][1, 44, 3] = value
        expected = interpret(graph, usual, precision="float64")[0]
        np.testing.assert_allclose(interpret_program(program, usual)[0], expected, rtol=1e-5, atol=1e-5)
    assert [len(region) for region in choice.regions] == [1, 1]


def test_a_condition_on_constants_is_a_causal_mask() -> None:
    """As exporters write it: where(condition, 0, lowest)."""
    hidden = constant(np.float32(np.finfo(np.float32).min), FLOAT32)
    seen = constant(np.tri(260, dtype=bool), BOOL)
    mask = ops.select(seen, constant(np.float32(0), FLOAT32), hidden)
    graph = masked_graph(mask, (1, 2), 16)
    assert forms_of(graph) == 2
    arrays = operands((1, 2), 260, 260, 16, 16)
    expected = interpret(graph, arrays, precision="float64")[0]
    np.testing.assert_allclose(compile_graph(graph)(*arrays)[0], expected, rtol=2.0 ** -16, atol=2.0 ** -15)


@pytest.mark.parametrize("place, number", [((0, 69), 0), ((69, 0), -np.inf), ((5, 4), 1e-30), ((3, 60), -1e9),
                                           ((68, 69), np.nan), ((30, 30), np.nan)], ids=str)
def test_masks_that_are_nearly_causal(place: tuple[int, int], number: float) -> None:
    mask = HIDING["inf"].copy()
    mask[place] = number
    graph = masked_graph(constant(mask, FLOAT32))
    assert forms_of(graph) == 1
    arrays = operands((2,), 70, 70, 8, 8)
    expected = interpret(graph, arrays, precision="float64")[0]
    np.testing.assert_allclose(compile_graph(graph)(*arrays)[0], expected, rtol=2.0 ** -16, atol=2.0 ** -15)


def test_masks_that_hide_otherwise() -> None:
    seen = constant(HIDING["bool"], BOOL)
    assert forms_of(masked_graph(seen, hidden=-3.0)) == 1
    assert forms_of(masked_graph(seen, scale=2.0 ** 11)) == 1
    assert forms_of(masked_graph(constant(np.broadcast_to(HIDING["bool"], (2, 70, 70)).copy(), BOOL))) == 1
