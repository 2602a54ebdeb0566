"""cond, while_loop and scan_loop as native code beside the reference interpreter, and as programs without a
machine."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planish.compiler import Compiled, compile_graph
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.passes.pipeline import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.machine import Machine
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program, program_constants
from planish.schedule.program_verify import verify_program
from planish.types import BOOL, FLOAT32, INT32, INT64, TensorType, dtype_of, symbol

F = TensorType(FLOAT32, (6,))
I, P, S = TensorType(INT64), TensorType(BOOL), TensorType(FLOAT32)


def compiled(f: Callable[..., Any], *types: TensorType) -> Compiled:
    return compile_graph(build_graph(f, *types))


def check(f: Callable[..., Any] | Compiled, *arrays: np.ndarray) -> Compiled:
    """The native program and its program IR, interpreted harshly, mean what the graph does."""
    made = f if isinstance(f, Compiled) else compiled(f, *(TensorType(dtype_of(a), a.shape) for a in arrays))
    expected = interpret(made.captured, arrays)
    for y, right in zip(made(*arrays), expected, strict=True):
        np.testing.assert_allclose(y, right, 1e-5, 1e-6)
        assert y.dtype == right.dtype and y.shape == right.shape
    check_program(made.captured, arrays, expected)
    return made


def check_program(graph: Graph, arrays: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    built = build_program(run_pipeline(graph)[0], Machine(threads=2), {})
    text = print_program(verify_program(built.program))
    assert print_program(parse_program(text, program_constants(built.program))) == text
    results = interpret_program(built.program, arrays, harsh=True)
    for right, (kind, k) in zip(expected, built.outputs):
        if kind == "program":
            np.testing.assert_allclose(results[k].reshape(right.shape), right, 1e-5, 1e-6, err_msg=text)


def vector(n: int = 6) -> np.ndarray:
    return np.random.default_rng().standard_normal(n).astype(np.float32)


# --- cond

def choose(p: Node, x: Node, then: Callable[..., Any], otherwise: Callable[..., Any]) -> Any:
    return ops.cond(p, x, then_graph=build_graph(then, x.type), else_graph=build_graph(otherwise, x.type))


@pytest.mark.parametrize("p", [False, True])
def test_cond(p: bool) -> None:
    check(lambda p, x: choose(p, x, lambda x: x * 2, ops.neg), np.array(p), vector())


@pytest.mark.parametrize("p", [False, True])
def test_cond_whose_results_are_its_operands_constants_and_each_other(p: bool) -> None:
    def f(p: Node, x: Node) -> Any:
        a, b, c = choose(p, x, lambda x: (x, x + 1, x + 1),
                         lambda x: (constant(np.arange(6, dtype=np.float32)), x, ops.exp(x)))
        return a, b * 2, c, a + b
    check(f, np.array(p), vector())


@pytest.mark.parametrize("n", [-3, 0, 4])
def test_nested_cond_on_a_computed_predicate(n: int) -> None:
    def sign(x: Node) -> Any:
        return choose(ops.lt(ops.reduce_sum(x, axes=(0,)), 0), x, lambda x: x - 1, lambda x: x + 1)

    def f(i: Node, x: Node) -> Any:
        y, = choose(ops.gt(i, 0), x, sign, lambda x: ops.softmax(x, axis=0))
        return ops.reduce_sum(y, axes=(0,)), y
    check(f, np.array(n), vector())


def test_only_the_results_that_are_used() -> None:
    def f(p: Node, x: Node) -> Any:
        return choose(p, x, lambda x: (x * 2, ops.exp(x)), lambda x: (x * 3, ops.log(x)))[0]
    made = check(f, np.array(True), vector())
    assert not any("exp" in k.ops for k in made.report.kernels)


# --- while_loop

def repeat(condition: Callable[..., Any], body: Callable[..., Any], *state: Node) -> Any:
    types = [s.type for s in state]
    return ops.while_loop(*state, condition=build_graph(condition, *types), body=build_graph(body, *types))


@pytest.mark.parametrize("start", [9, 4, 0, -100])
def test_while(start: int) -> None:
    def f(i: Node, x: Node) -> Any:
        return repeat(lambda i, x: ops.lt(i, 5), lambda i, x: (i + 1, x * 0.5 + 1), i, x)
    check(f, np.array(start), vector())


def test_while_hands_its_state_round() -> None:
    """Three values change places, one never changes, one is a constant from the first round on."""
    def body(i: Node, a: Node, b: Node, c: Node, kept: Node, last: Node) -> Any:
        return i + 1, b, c, a, kept, constant(np.ones(6, np.float32))

    def f(n: Node, a: Node, b: Node, c: Node, d: Node) -> Any:
        return repeat(lambda i, *_: ops.lt(i, 7), body, n, a, b, c, d, a)
    for n in (0, 2, 7):
        check(f, np.array(n), vector(), vector(), vector(), vector())


def test_newton_until_it_is_near() -> None:
    """The trips depend on the data."""
    def f(a: Node) -> Any:
        def far(x: Node, a: Node) -> Any:
            return ops.reduce_any(ops.gt(ops.abs(x * x - a), a * 1e-3), axes=(0,))
        root, _ = repeat(far, lambda x, a: ((x + a / x) * 0.5, a), a, a)
        return root
    for scale in (1, 1e6):
        a = (np.abs(vector()) + 0.1) * np.float32(scale)
        check(f, a)


def test_nested_loops_with_a_cond_inside() -> None:
    """Collatz steps of every start from 1 to 20, one after another."""
    def step(n: Node, count: Node) -> Any:
        even = ops.eq(ops.mod(n, 2), 0)
        following, = ops.cond(even, n, then_graph=build_graph(lambda n: ops.floor_div(n, 2), I),
                              else_graph=build_graph(lambda n: n * 3 + 1, I))
        return following, count + 1

    def outer(start: Node, total: Node, most: Node) -> Any:
        _, steps = repeat(lambda n, c: ops.gt(n, 1), step, start, start * 0)
        return start + 1, total + steps, ops.maximum(most, steps)

    def f(start: Node, zero: Node) -> Any:
        return repeat(lambda s, t, m: ops.le(s, 20), outer, start, zero, zero)
    check(f, np.array(1), np.array(0))


def test_a_state_that_is_read_in_pieces() -> None:
    """Inner loops read slices of the old state after the next one is known, and of the next."""
    def body(i: Node, x: Node, total: Node) -> Any:
        grown = x * 2 + 1
        add = build_graph(lambda c, r: (c + ops.reduce_sum(r, axes=(0,)), r * c), S, F)
        total, scaled = ops.scan_loop(total, x, body=add, length=4, carries=1)
        more, _ = ops.scan_loop(total, grown, body=add, length=4, carries=1)
        return i + 1, grown, more * 0.01 + ops.reduce_sum(scaled, axes=(0, 1)) * 0.001

    def f(x: Node) -> Any:
        zeros = constant(np.array(0)), constant(np.float32(0))
        return repeat(lambda i, *_: ops.lt(i, 3), body, zeros[0], x, zeros[1])
    check(f, np.random.default_rng().standard_normal((4, 6)).astype(np.float32))


def test_one_value_for_two_states_and_for_later() -> None:
    def f(x: Node) -> Any:
        y = ops.exp(x)
        flat = ops.reshape(y, shape=(2, 3))
        a, b, c = repeat(lambda a, *_: ops.lt(ops.reduce_sum(a, axes=(0,)), 50),
                         lambda a, b, c: (a + 1, a + b, c * 2), y, y, flat)
        return a, b * x, c, y + 1
    check(f, vector())


def test_large_state_on_all_threads() -> None:
    def f(i: Node, x: Node, w: Node) -> Any:
        def body(i: Node, x: Node, w: Node) -> Any:
            return i + 1, ops.tanh(x + ops.reduce_sum(x, axes=(1,), keepdims=True) * 0.001 + w), w
        i, x, _ = repeat(lambda i, x, w: ops.lt(i, 50), body, i, x, w)
        return i, ops.reduce_sum(x, axes=(0,)), x
    rng = np.random.default_rng()
    x, w = (rng.standard_normal((300, 256)).astype(np.float32) for _ in range(2))
    made = compiled(f, I, *[TensorType(FLOAT32, x.shape)] * 2)
    expected = interpret(made.captured, [np.array(0), x, w])
    for _ in range(20):
        for y, right in zip(made(np.array(0), x, w), expected, strict=True):
            np.testing.assert_allclose(y, right, 1e-3, 1e-3)


def test_many_short_rounds_on_all_threads() -> None:
    """Threads meet thousands of times; one that ran ahead would see another predicate."""
    def f(i: Node, n: Node, x: Node) -> Any:
        return repeat(lambda i, n, x: ops.lt(i, n), lambda i, n, x: (i + 1, n, x + 1), i, n, x)
    made = compiled(f, I, I, TensorType(INT32, (80_000,)))
    for n in (0, 1, 3000):
        i, _, x = made(np.array(0), np.array(n), np.zeros(80_000, np.int32))
        assert i == n and (x == n).all()


def test_a_loop_is_shared_among_threads_where_its_size_is_worth_it() -> None:
    """The size is known at run time; a large loop stands around a small one, and beside it."""
    n = symbol("N", 0)

    def f(x: Node, c: Node) -> Any:
        def add(x: Node, c: Node) -> Any:
            c, _ = repeat(lambda c, d: ops.lt(c, d), lambda c, d: (c + 1, d), c, c + 3)
            return x * 0.5 + ops.reshape(ops.cast(c, dtype=FLOAT32), shape=(1,)), c
        return repeat(lambda x, c: ops.lt(c, 90), add, x, c)
    made = compiled(f, TensorType(FLOAT32, (n,)), I)
    for size in (0, 5, 400_000):
        x = np.random.default_rng().standard_normal(size).astype(np.float32)
        for y, right in zip(made(x, np.array(0)), interpret(made.captured, [x, np.array(0)]), strict=True):
            np.testing.assert_allclose(y, right, 1e-5)


# --- scan_loop

@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_scan_loop(length: int, reverse: bool) -> None:
    def body(c: Node, count: Node, x: Node, y: Node) -> Any:
        return ops.maximum(c, x) + y, count + 1, c * x, x, count

    def f(c: Node, count: Node, xs: Node, ys: Node) -> Any:
        graph = build_graph(body, F, I, F, F)
        return ops.scan_loop(c, count, xs, ys, body=graph, length=length, carries=2, reverse=reverse)
    xs, ys = (np.random.default_rng().standard_normal((length, 6)).astype(np.float32) for _ in range(2))
    check(f, vector(), np.array(5), xs, ys)


def test_scan_of_run_time_length() -> None:
    n = symbol("N", 0)
    xs = TensorType(FLOAT32, (n, 6))

    def f(c: Node, xs: Node) -> Any:
        body = build_graph(lambda c, x: (c * 0.5 + x, ops.reduce_sum(c, axes=(0,))), F, F)
        return ops.scan_loop(c, xs, body=body, length=n, carries=1)
    made = compiled(f, F, xs)
    for length in (0, 1, 13):
        check(made, vector(), np.random.default_rng().standard_normal((length, 6)).astype(np.float32))


def test_recurrent_network() -> None:
    """Weights as constants in the body, a batch of run-time size, results used after the loop."""
    rng = np.random.default_rng()
    w, u = (rng.standard_normal((8, 8)).astype(np.float32) / 4 for _ in range(2))
    batch = symbol("B", 1)
    h, xs = TensorType(FLOAT32, (batch, 8)), TensorType(FLOAT32, (9, batch, 8))

    def cell(h: Node, x: Node) -> Any:
        h = ops.tanh(ops.matmul(h, constant(w)) + ops.matmul(x, constant(u)))
        return h, h

    def f(h: Node, xs: Node) -> Any:
        last, hs = ops.scan_loop(h, xs, body=build_graph(cell, h.type, h.type), length=9, carries=1)
        return last, ops.reduce_max(hs, axes=(0,))
    made = compiled(f, h, xs)
    for b in (1, 5):
        check(made, *(rng.standard_normal(shape).astype(np.float32) for shape in ((b, 8), (9, b, 8))))


def test_control_in_float64() -> None:
    """What validation measures against: bodies are carried in float64 too."""
    rng = np.random.default_rng()

    def cell(h: Node, x: Node) -> Any:
        y, = choose(ops.gt(ops.reduce_sum(x, axes=(0,)), 0), x, ops.exp, ops.neg)
        h = ops.tanh(h + y * 1e-3)
        return h, h

    def f(h: Node, xs: Node) -> Any:
        last, hs = ops.scan_loop(h, xs, body=build_graph(cell, F, F), length=9, carries=1)
        _, z = repeat(lambda i, x: ops.lt(i, 5), lambda i, x: (i + 1, x / 3), constant(np.array(0)), last)
        return z, hs
    xs = TensorType(FLOAT32, (9, 6))
    arrays = vector(), rng.standard_normal((9, 6)).astype(np.float32)
    wide = interpret(build_graph(f, F, xs), arrays, precision="float64")
    h, hs = arrays[0].astype(np.float64), []
    for x in arrays[1].astype(np.float64):
        h = np.tanh(h + (np.exp(x) if arrays[1][len(hs)].sum() > 0 else -x) * np.float32(1e-3))
        hs.append(h)
    np.testing.assert_allclose(wide[1], hs, 1e-12)
    np.testing.assert_allclose(wide[0], h / 3**5, 1e-12)


def test_scan_inside_a_scan() -> None:
    """Slices of slices: running sums of every row, and of the rows before."""
    def inner(c: Node, x: Node) -> Any:
        return c + x, c + x

    def outer(c: Node, row: Node) -> Any:
        return ops.scan_loop(c, row, body=build_graph(inner, S, S), length=5, carries=1)

    def f(c: Node, x: Node) -> Any:
        graph = build_graph(outer, S, TensorType(FLOAT32, (5,)))
        return ops.scan_loop(c, x, body=graph, length=4, carries=1, reverse=True)
    check(f, np.array(0, np.float32), np.random.default_rng().standard_normal((4, 5)).astype(np.float32))


# --- checks

def with_checks(f: Callable[..., Any], *types: TensorType) -> Graph:
    """A graph of `f`, whose second result is its effects."""
    inputs = tuple(input_node(f"x{i}", t) for i, t in enumerate(types))
    outputs, effects = f(*inputs)
    return Graph(inputs, outputs, effects)


def run_both(graph: Graph, *arrays: np.ndarray) -> list[Any]:
    """What the native program, the interpreter of programs and the reference give or raise."""
    program = build_program(graph, Machine(threads=2), {}).program
    runs = [lambda: compile_graph(graph)(*arrays), lambda: interpret(graph, arrays),
            lambda: interpret_program(verify_program(program), arrays, harsh=True)]
    return [_outcome(run) for run in runs]


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return [y.tolist() for y in run()]
    except (IndexError, ValueError) as error:
        return type(error).__name__, str(error)


def test_a_failing_check_ends_a_loop() -> None:
    """Without the check it would run for ever."""
    def body(i: Node) -> Any:
        return (i + 1,), (ops.check(ops.lt(i, 100), error="ValueError", message="too far"),)

    def f(i: Node) -> Any:
        always = build_graph(lambda i: ops.ne(i, 50), I)
        return (ops.while_loop(i, condition=always, body=with_checks(body, I))[0],), ()
    graph = with_checks(f, I)
    assert run_both(graph, np.array(60)) == [("ValueError", "too far")] * 3
    assert run_both(graph, np.array(7)) == [[50]] * 3


def test_a_check_that_fails_on_one_thread_ends_the_loops_of_all() -> None:
    """The first loop is too small to share out; without the check the second would run for ever."""
    def body(i: Node) -> Any:
        return (i + 1,), (ops.check(ops.lt(i, 100), error="ValueError", message="too far"),)

    def f(i: Node, x: Node) -> Any:
        always = build_graph(lambda i: ops.ne(i, 50), I)
        i = ops.while_loop(i, condition=always, body=with_checks(body, I))[0]
        j, y = repeat(lambda j, y: ops.ne(j, 50), lambda j, y: (j * 1, y + 1), i, x)
        return (j, y), ()
    graph = with_checks(f, I, TensorType(INT32, (200_000,)))
    zeros = np.zeros(200_000, np.int32)
    made = compile_graph(graph)
    assert made(np.array(7), zeros)[0] == 50
    for _ in range(20):
        with pytest.raises(ValueError, match="too far"):
            made(np.array(60), zeros)


def test_a_check_in_one_branch() -> None:
    def branch(x: Node) -> Any:
        positive = ops.reduce_all(ops.gt(x, 0), axes=(0,))
        return (x * 2,), (ops.check(positive, error="IndexError", message="negative"),)

    def f(p: Node, x: Node) -> Any:
        y, = ops.cond(p, x, then_graph=with_checks(branch, F), else_graph=build_graph(lambda x: x, F))
        return (y,), (ops.check(ops.logical_not(p), error="ValueError", message="after"),)
    graph = with_checks(f, P, F)
    x = np.ones(6, np.float32)
    assert run_both(graph, np.array(False), -x) == [[[-1.0] * 6]] * 3
    assert [kind for kind, _ in run_both(graph, np.array(True), x)] == ["ValueError"] * 3
    assert run_both(graph, np.array(True), -x)[0][0] in ("IndexError", "ValueError")


def test_a_check_in_a_scan() -> None:
    def body(c: Node, x: Node) -> Any:
        return (c + x, c), (ops.check(ops.ge(x, 0), error="ValueError", message="negative x"),)

    def f(c: Node, xs: Node) -> Any:
        return ops.scan_loop(c, xs, body=with_checks(body, S, S), length=8, carries=1), ()
    graph = with_checks(f, S, TensorType(FLOAT32, (8,)))
    xs = np.arange(8, dtype=np.float32)
    right = run_both(graph, np.array(1, np.float32), xs)
    assert right[0] == right[1] == right[2]
    assert run_both(graph, np.array(1, np.float32), xs - 3) == [("ValueError", "negative x")] * 3
