"""Whole programs from the cache: the same answers for any weights, and never a wrong one."""
from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from planish import knobs, ops, program_cache
from planish.codegen.llvm.host import host
from planish.compiler import Options, compile_graph
from planish.inspect.explain import explain
from planish.ir import Graph, constant, input_node, interpret
from planish.ops.rules import apply_nullary
from planish.runtime import cache as cache_module
from planish.runtime import load
from planish.tuning.decisions import UNTUNED
from planish.types import BOOL, FLOAT32, INT64, TensorType, symbol


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty folder for each test; `forget` is a new process, but for its time."""
    monkeypatch.setenv(knobs.KNOBS["cache_dir"].env, str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    cache_module._cache_at.cache_clear()
    load._loaded.clear()


PLAIN = Options()
X = input_node("x", TensorType(FLOAT32, (6, 40)))


def layers(seed: int, *, bias: float | None = None, scale: float = 0.125) -> Graph:
    """Two layers; weights from a seed, biases too unless they are one number."""
    rng = np.random.default_rng(seed)
    def weights(*shape):
        return constant(rng.normal(size=shape).astype(np.float32))
    h = X
    for n in (48, 24):
        b = weights(n) if bias is None else constant(np.full(n, bias, np.float32))
        h = ops.maximum(ops.add(ops.matmul(h, weights(h.shape[1], n)), b), 0)
    return Graph((X,), (ops.mul(h, scale),))


def check(graph: Graph, *, stored: bool, options: Options = PLAIN, **more):
    """Compile and compare with the reference; whether the program came from the cache is as said."""
    compiled = compile_graph(graph, options, **more)
    assert compiled.report.stored is stored
    arrays = arrays_for(graph)
    for got, want in zip(compiled(*arrays), interpret(graph, arrays), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return compiled


def arrays_for(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(99)
    shapes = [[d if isinstance(d, int) else 5 for d in n.shape] for n in graph.inputs]
    return [rng.normal(size=s).astype(np.float32) if n.dtype is FLOAT32 else rng.integers(0, 3, s)
            for n, s in zip(graph.inputs, shapes)]


def test_a_second_process_takes_the_program_and_gives_the_same_bits():
    first = check(layers(0), stored=False)
    forget()
    second = check(layers(0), stored=True)
    x = arrays_for(layers(0))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first(*x), second(*x), strict=True))
    assert second.report.cached and list(second.report.seconds) == ["cache", "load"]


def test_other_weights_take_the_same_program():
    check(layers(0), stored=False)
    for seed in (1, 2):
        check(layers(seed), stored=True)


def test_code_is_shared_in_memory():
    first, second = check(layers(0), stored=False), check(layers(1), stored=True)
    assert first.program._core.code is second.program._core.code


def test_weights_that_changed_in_place():
    w = np.random.default_rng(3).normal(size=(40, 64)).astype(np.float32)
    def graph():
        return Graph((X,), (ops.matmul(X, constant(w.view())),))
    check(graph(), stored=False)
    w *= -2
    check(graph(), stored=True)


def test_constants_that_were_looked_at_are_looked_at_again():
    """All biases -0.0 leaves the additions out; the program for them is not one for other biases."""
    zeros = check(layers(0, bias=-0.0), stored=False)
    check(layers(0, bias=0.0), stored=False)
    check(layers(0, bias=0.5), stored=False)
    check(layers(0), stored=False)
    for bias in (0.0, -0.0, 0.5, None):  # each variant is kept
        check(layers(7, bias=bias), stored=True)
    assert not any("add" in k.ops for k in zeros.report.kernels)


def test_single_numbers_are_part_of_the_key():
    check(layers(0, scale=0.125), stored=False)
    check(layers(0, scale=0.25), stored=False)
    check(layers(0, scale=0.125), stored=True)


def folded(seed: int, offset: float = 0.0) -> Graph:
    """A weight that is normalised by constants, as a batch norm behind a layer is."""
    rng = np.random.default_rng(seed)
    w, variance = rng.normal(size=(40, 32)).astype(np.float32), rng.random(32).astype(np.float32) + offset
    scale = ops.div(1.0, ops.sqrt(ops.add(constant(variance), 1e-5)))
    return Graph((X,), (ops.matmul(X, ops.mul(constant(w), scale)),))


def test_what_was_folded_is_folded_again():
    first = check(folded(0), stored=False)
    assert [n.op.name for n in first.optimized.nodes() if n.op.name != "input"] == ["constant", "dot_general"]
    check(folded(1), stored=True)
    check(folded(2, offset=3.0), stored=True)


def test_equal_constants_were_merged_as_equal():
    a, b = (np.random.default_rng(s).normal(size=(40, 64)).astype(np.float32) for s in (0, 1))
    def graph(first, second):
        left, right = (ops.matmul(X, constant(w)) for w in (first, second))
        return Graph((X,), (ops.add(left, ops.exp(right)),))
    check(graph(a, a.copy()), stored=False)
    check(graph(a, b), stored=False)
    check(graph(b, a), stored=True)
    check(graph(b, b.copy()), stored=True)


def test_tables_that_rules_read_whole():
    """A product with a one-hot matrix becomes a look-up if the table is finite."""
    rows = input_node("rows", TensorType(INT64, (5, 1)))
    def graph(table):
        hot = ops.cast(ops.eq(rows, ops.iota(shape=(12,), axis=0, dtype=INT64)), dtype=FLOAT32)
        return Graph((rows,), (ops.matmul(hot, constant(table)),))
    table = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    assert any("take" in k.ops for k in check(graph(table), stored=False).report.kernels)
    check(graph(table * 2), stored=True)
    table[3, 1] = np.inf
    with np.errstate(invalid="ignore"):
        compiled = compile_graph(graph(table))
    assert not compiled.report.stored and not any("take" in k.ops for k in compiled.report.kernels)


def test_constant_outputs_and_copies_of_inputs():
    def graph(seed):
        c = constant(np.random.default_rng(seed).normal(size=(8, 9)).astype(np.float32))
        return Graph((X,), (c, ops.reshape(X, shape=(40, 6)), ops.exp(X)))
    check(graph(0), stored=False)
    check(graph(1), stored=True)


def test_control_flow_and_its_constants():
    flag = input_node("flag", TensorType(BOOL, ()))
    def graph(seed):
        rng = np.random.default_rng(seed)
        w = [constant(rng.normal(size=(40, 8)).astype(np.float32)) for _ in range(2)]
        y = input_node("y", X.tensor)
        then, otherwise = (Graph((y,), (ops.matmul(y, one),)) for one in w)
        return Graph((flag, X), ops.cond(flag, X, then_graph=then, else_graph=otherwise))
    for seed, stored in ((0, False), (1, True)):
        compiled = compile_graph(graph(seed))
        assert compiled.report.stored is stored
        x = arrays_for(Graph((X,), (X,)))[0]
        for choice in (True, False):
            want, = interpret(graph(seed), [np.array(choice), x])
            np.testing.assert_allclose(compiled(np.array(choice), x)[0], want, rtol=1e-5, atol=1e-5)


def test_sizes_with_their_ranges_are_part_of_the_key():
    def graph(low, high):
        x = input_node("x", TensorType(FLOAT32, (symbol("N", low, high), 4)))
        return Graph((x,), (ops.exp(x),))
    check(graph(1, 8), stored=False)
    check(graph(1, 9), stored=False)
    check(graph(1, 8), stored=True)
    check(graph(1, 8), stored=False, hint={"N": 5})


@pytest.mark.parametrize("options", [Options(numerics="fast"), Options(disable=frozenset({"fuse"})),
                                     Options(disable=frozenset({"prepack"}))])
def test_other_options_are_other_programs(options):
    check(layers(0), stored=False)
    check(layers(0), stored=False, options=options)
    check(layers(0), stored=True, options=options)


def test_another_machine_or_planish_is_another_program(monkeypatch):
    check(layers(0), stored=False)
    if host().isa != "sse2":
        with knobs.override(target="sse2"):
            check(layers(0), stored=False)
    monkeypatch.setattr(program_cache, "program_version", lambda: "planish of tomorrow")
    check(layers(0), stored=False)
    monkeypatch.undo()


def _entries(folder):
    return [p for p in folder.rglob("*") if p.is_file() and b'"guards"' in p.read_bytes()]


@pytest.mark.parametrize("damage", [
    lambda d: d[:-7], lambda d: b"", lambda d: d.replace(b'"guards"', b'"guardz"')])
def test_a_damaged_file_is_made_anew(own_cache, damage):
    check(layers(0), stored=False)
    file, = _entries(own_cache)
    file.write_bytes(damage(file.read_bytes()))
    forget()
    check(layers(0), stored=False)
    forget()
    check(layers(0), stored=True)


@pytest.mark.parametrize("change", [
    lambda v: v.pop("spec"), lambda v: v.update(constants=[99]), lambda v: v.update(outputs=[["program"]]),
    lambda v: v["contents"].append(["conjured", [], [], "float32", [1]]), lambda v: v.update(guards=5),
    lambda v: v["guards"].append(["weather", [0], None]), lambda v: v.update(contents="none")])
def test_an_entry_that_says_nonsense_is_made_anew(change):
    check(layers(0), stored=False)
    entry = program_cache.ProgramEntry(layers(0), "_from_captured", ("default", (), UNTUNED), host(), {})
    variant, = json.loads(entry.cache.get(entry.key))
    change(variant)
    entry.cache.put(entry.key, json.dumps([variant]).encode())
    check(layers(0), stored=False)
    check(layers(0), stored=True)


def test_code_that_the_cache_has_lost_is_made_anew(own_cache):
    check(layers(0), stored=False)
    entry = _entries(own_cache)
    for path in own_cache.rglob("*"):
        if path.is_file() and path not in entry:
            path.unlink()
    forget()
    check(layers(0), stored=False)


def test_without_a_disk_cache_a_process_still_remembers(monkeypatch):
    monkeypatch.setenv(knobs.KNOBS["disable_cache"].env, "1")
    check(layers(0), stored=False)
    check(layers(1), stored=True)
    forget()
    check(layers(0), stored=False)


def test_a_traced_compile_is_seen_whole(tmp_path):
    check(layers(0), stored=False)
    with knobs.override(trace=str(tmp_path / "trace")):
        check(layers(0), stored=False)
    assert list((tmp_path / "trace").rglob("*.ir"))


def test_reports_of_a_stored_program():
    """What is asked of a program from the cache is answered as of the one that was compiled."""
    compiled = check(layers(0), stored=False)
    forget()
    stored = check(layers(0), stored=True)
    for stage in ("graph", "optimized", "loops", "program", "llvm"):
        assert stored.text(stage) == compiled.text(stage)
    first, second = explain(compiled), explain(stored)
    for name in ("nodes", "kernels", "bytes", "memory", "kernel_list", "decisions", "captured_ops"):
        assert getattr(first, name) == getattr(second, name)
    assert [(p.name, p.before, p.after, p.fired) for p in first.passes] == \
        [(p.name, p.before, p.after, p.fired) for p in second.passes]
    assert first.origin == "compiled" and second.origin == "program from the cache"


def test_threads_that_compile_the_same_graph():
    faults: list[BaseException] = []

    def compile_some(seed):
        try:
            for k in range(3):
                graph = layers(seed * 3 + k)
                x = arrays_for(graph)
                np.testing.assert_allclose(compile_graph(graph)(*x)[0], interpret(graph, x)[0], rtol=1e-5,
                                           atol=1e-5)
        except BaseException as error:
            faults.append(error)
    threads = [threading.Thread(target=compile_some, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_random_graphs_over_other_constants():
    """Graphs of one structure over constants drawn anew: the program from the cache is right for each."""
    hits = 0
    for shape in range(4):
        for seed in range(6):
            graph = random_graph(np.random.default_rng(shape), np.random.default_rng(100 * shape + seed))
            compiled = compile_graph(graph)
            hits += compiled.report.stored
            x = arrays_for(graph)
            np.testing.assert_allclose(compiled(*x)[0], interpret(graph, x)[0], rtol=1e-4, atol=1e-4)
    assert hits >= 6


def random_graph(shape: np.random.Generator, values: np.random.Generator) -> Graph:
    """`shape` decides the ops, `values` the constants, which are now and then all one number."""
    def drawn(*sizes):
        array = values.normal(size=sizes).astype(np.float32)
        if values.random() < 0.1:
            array[...] = values.choice([0.0, 1.0, -1.0, 2.0])
        return constant(array)
    h = X
    for _ in range(int(shape.integers(2, 5))):
        kind = shape.integers(4)
        if kind == 0:
            h = ops.matmul(h, drawn(h.shape[1], int(shape.integers(20, 50))))
        elif kind == 1:
            h = ops.add(h, ops.mul(drawn(h.shape[1]), drawn(1, h.shape[1])))
        elif kind == 2:
            h = ops.mul(h, drawn(h.shape[1]))
        else:
            h = ops.tanh(ops.div(h, ops.exp(drawn(h.shape[1]))))
    return Graph((X,), (h,))


def test_weights_that_happen_to_be_what_a_pass_makes():
    """A small weight that equals what a pass makes is not taken for it."""
    def graph(bias):
        counted = ops.cast(apply_nullary(ops.iota, X, shape=(40,), axis=0, dtype=INT64), dtype=FLOAT32)
        return Graph((X,), (ops.add(X, constant(bias)), ops.mul(X, counted)))
    check(graph(np.arange(40, dtype=np.float32)), stored=False)
    check(graph(np.full(40, 0.5, np.float32)), stored=False)
    check(graph(np.arange(40, 80, dtype=np.float32)), stored=True)
    check(graph(np.arange(40, dtype=np.float32)), stored=True)
