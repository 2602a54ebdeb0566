"""The pipeline as a whole: each position, each switch, what is recorded, and a chain of five that becomes
one."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from planish import knobs
from planish.errors import VerificationError
from planish.ir import Graph, Location, Node, Note, constant, input_node, interpret, parse_graph, print_graph
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.passes import PIPELINE, PassRecord, run_pipeline
from planish.passes.hooks import all_of, compare_each, print_each, save_each, verify_each
from planish.passes.pipeline import fold_constants
from planish.types import BOOL, FLOAT32, INT32, TensorType, symbol

N = symbol("N", 1, 64)


def f32(*shape: object) -> TensorType:
    return TensorType(FLOAT32, shape)


def number(value: float, dtype: type = np.float32) -> Node:
    return constant(dtype(value))


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes() if n.op.name not in ("input", "constant")]


# --- every position

def left_constants(graph: Graph) -> bool:
    return not any(n.op.has("commutative") and n.operands[0].op.name == "constant" for n in graph.nodes())


def notes_are_live(graph: Graph) -> bool:
    return set(graph.notes) <= set(graph.nodes())


def noted(function: Callable[..., object], *types: TensorType) -> Graph:
    graph = build_graph(function, *types)
    return graph.with_notes({n: Note(Location("user.py", i)) for i, n in enumerate(graph.nodes())})


def scaled_twice(x: Node, w: Node, y: Node) -> tuple[Node, Node]:
    """Two products that are one as soon as the scale is folded, in sums whose order differs."""
    plain = ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,)) * 0.5
    folded = ops.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,), alpha=0.5)
    return plain + y, y + folded


def attention(q: Node, k: Node, v: Node, mask: Node) -> Node:
    """Whose exponentials are one as soon as equal values are shared."""
    scores = ops.matmul(q, ops.transpose(k, axes=(0, 2, 1))) * 0.5
    largest = ops.reduce_max(scores + mask, axes=(2,), keepdims=True)
    e, same = ops.exp(scores + mask - largest), ops.exp(mask + scores - largest)
    return ops.matmul(e / ops.reduce_sum(same, axes=(2,), keepdims=True), v)


def conv(x: Node) -> Node:
    weights = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    return ops.conv(x, constant(weights), strides=(1,), padding=((0, 0),), lhs_dilation=(1,),
                    rhs_dilation=(1,))


POSITIONS = {
    "canonicalise": (build_graph(lambda low, high: ops.clip(number(3), low, high), f32(4), f32(4)),
                     left_constants),
    "fold_constants": (build_graph(lambda x: (x + number(1, np.int32)) + number(2, np.int32),
                                   TensorType(INT32, (4,))),
                       lambda g: names(g) == ["add"]),
    "fold_normalisation": (build_graph(lambda x: conv(x) * ops.rsqrt(number(4)), f32(1, 2, 5)),
                           lambda g: names(g) == ["conv"]),
    "simplify": (build_graph(lambda x: conv(x) - number(3) + number(3), f32(1, 2, 5)),
                 lambda g: names(g) == ["conv"]),
    "substitute": (build_graph(lambda x: ops.reciprocal(ops.sqrt(x) * number(1)), f32(4)),
                   lambda g: names(g) == ["rsqrt"]),
    "fold_scale": (build_graph(lambda x, w: (x @ w) / number(8), f32(4, 8), f32(8, 2)),
                   lambda g: names(g) == ["dot_general"]),
    "share": (build_graph(scaled_twice, f32(4, 8), f32(8, 2), f32(4, 2)),
              lambda g: g.outputs[0] is g.outputs[1]),
    "recognise": (build_graph(attention, *[f32(2, 5, 4)] * 3, f32(5, 5)),
                  lambda g: names(g) == ["attention"]),
    "drop_dead": (noted(attention, *[f32(2, 5, 4)] * 3, f32(5, 5)), notes_are_live),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_no_pass_moves_before_the_one_it_follows(name: str) -> None:
    graph, holds = POSITIONS[name]
    place = [one.name for one in PIPELINE].index(name)
    moved = [*PIPELINE[:place - 1], PIPELINE[place], PIPELINE[place - 1], *PIPELINE[place + 1:]]
    assert holds(run_pipeline(graph)[0])
    assert not holds(run_pipeline(graph, passes=moved)[0])


def test_every_position_is_tested() -> None:
    assert list(POSITIONS) == [one.name for one in PIPELINE[1:]]
    assert all(one.reason and "\n" not in one.reason for one in PIPELINE)


# --- the chain of five that becomes one

def chain(x: Node, w: Node, b: Node) -> Node:
    scaled = (x @ w) * (1.0 / ops.sqrt(number(64)))
    return ops.gelu(scaled + b, approximate="none") + number(0)


CHAIN = build_graph(chain, f32(N, 64), f32(64, 32), f32(32))


def by_name(records: list[PassRecord]) -> dict[str, dict[str, int]]:
    return {r.name: r.fired for r in records}


def test_chain_of_five_keeps_dot_bias_and_gelu() -> None:
    graph, records = run_pipeline(CHAIN, numerics="fast", strict_fuel=True, hook=verify_each)
    assert names(graph) == ["dot_general", "add", "mul", "mul", "erf", "add", "mul"]
    dot = next(n for n in graph.nodes() if n.op.name == "dot_general")
    assert dot.attributes.alpha == 0.125
    fired = by_name(records)
    assert fired["decompose"] == {"matmul": 1, "gelu": 1}
    assert fired["fold_constants"] == {"sqrt": 1, "div": 1}
    assert fired["simplify"] == {"add_zero": 1}
    assert fired["fold_scale"] == {"scale_into_alpha": 1}
    assert graph.note(dot).rules == ("scale_into_alpha",)


@pytest.mark.parametrize(("numerics", "alpha", "zero_stays"),
                         [("strict", 1.0, True), ("default", 0.125, True), ("fast", 0.125, False)])
def test_numerics_decides_what_may_happen_to_the_chain(numerics: str, alpha: float, zero_stays: bool) -> None:
    graph, _ = run_pipeline(CHAIN, numerics=numerics)
    assert {n.attributes.alpha for n in graph.nodes() if n.op.name == "dot_general"} == {alpha}
    assert any(n.op.name == "add" and n.operands[1] is number(0) for n in graph.nodes()) == zero_stays


@pytest.mark.parametrize("numerics", ["strict", "default", "fast"])
def test_chain_keeps_its_value(numerics: str) -> None:
    rng = np.random.default_rng(1)
    graph, _ = run_pipeline(CHAIN, numerics=numerics, hook=compare_each(rng))
    inputs = [rng.normal(size=s).astype(np.float32) for s in ((5, 64), (64, 32), (32,))]
    (before,), (after,) = interpret(CHAIN, inputs), interpret(graph, inputs)
    if numerics == "strict":
        np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


# --- the first layer of a model of bytes

def one_hot_layer(ids: Node) -> Node:
    rng = np.random.default_rng(7)
    numbers = constant(np.arange(257, dtype=np.int32).reshape(1, 1, 257))
    wide = ops.broadcast_to(ops.reshape(ids, shape=(N, 16, 1)), shape=(N, 16, 257))
    table = constant(rng.normal(size=(257, 8)).astype(np.float32))
    return ops.cast(ops.eq(wide, numbers), dtype=FLOAT32) @ table


def test_one_hot_times_table_is_a_look_up() -> None:
    captured = build_graph(one_hot_layer, TensorType(INT32, (N, 16)))
    graph, records = run_pipeline(captured, numerics="strict", hook=verify_each, strict_fuel=True)
    assert "dot_general" not in names(graph) and "take" in names(graph)
    assert by_name(records)["substitute"] == {"one_hot_dot": 1, "reshape_reshape": 1, "reshape_to_own": 1}
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 257, (3, 16)).astype(np.int32)
    ids[0, :4] = [-1, 257, 2 ** 31 - 1, -2 ** 31]
    (before,), (after,) = interpret(captured, [ids]), interpret(graph, [ids])
    np.testing.assert_array_equal(after, before)
    assert not after[0, :4].any()


def test_one_hot_of_an_infinite_table_stays_a_product() -> None:
    def layer(ids: Node) -> Node:
        table = np.ones((9, 2), np.float32)
        table[4, 1] = np.inf
        return ops.cast(ops.eq(ids, constant(np.arange(9, dtype=np.int32))), dtype=FLOAT32) @ constant(table)
    graph, _ = run_pipeline(build_graph(layer, TensorType(INT32, (5, 1))), numerics="fast")
    assert "dot_general" in names(graph)


# --- single passes in the corners

def test_folding_dequantises_weights() -> None:
    """Four times the bytes of the constants, which only a contraction is worth."""
    quantised = np.random.default_rng(0).integers(-128, 128, (300, 400)).astype(np.int8)

    def program(x: Node, y: Node) -> tuple[Node, ...]:
        weights = ops.cast(constant(quantised), dtype=FLOAT32) * constant(np.float32(0.1))
        return ops.dot_general(x, weights, lhs_contract=(1,), rhs_contract=(0,)), y + weights
    graph, records = run_pipeline(build_graph(program, f32(2, 300), f32(300, 400)), passes=[fold_constants],
                                  hook=verify_each)
    assert by_name(records)["fold_constants"] == {"weights": 1}
    product, total = graph.outputs
    assert product.operands[1].op.name == "constant" and total.operands[1].op.name == "mul"


def test_folding_leaves_what_is_large_but_folds_what_it_shrinks_to() -> None:
    def program(x: Node) -> tuple[Node, Node, Node]:
        large = ops.broadcast_to(number(2), shape=(1 << 20,)) + number(1)
        total = ops.reduce_sum(large, axes=(0,))
        return x * large, x * total, x * (ops.broadcast_to(number(2), shape=(4, 4)) * number(4))
    graph, records = run_pipeline(build_graph(program, f32(1)), passes=[fold_constants], hook=verify_each)
    assert records[0].fired == {"reduce_sum": 1, "mul": 1}
    kept, total, small = graph.outputs
    assert kept.operands[1].op.name == "add"
    assert total.operands[1] is number(3 * (1 << 20))
    assert small.operands[1] is ops.broadcast_to(number(8), shape=(4, 4))


def test_equal_weights_in_different_arrays_become_one() -> None:
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    graph = build_graph(lambda x: (x @ constant(weights)) + (x @ constant(weights.copy())), f32(4, 64))
    after, records = run_pipeline(graph)
    assert by_name(records)["share"] == {"equal_constant": 1}
    assert names(after) == ["dot_general", "add"]


def test_unused_inputs_stay_and_unused_nodes_are_counted() -> None:
    x, unused = input_node("x", f32(4)), input_node("unused", f32(4))
    wasted = ops.exp(x)
    graph = Graph((x, unused), (x * number(1),)).with_notes({wasted: Note(Location("user.py", 3))})
    after, records = run_pipeline(graph)
    assert after.inputs == (x, unused) and after.outputs == (x,)
    assert by_name(records)["drop_dead"] == {"never_used": 1, "replaced": 2}
    assert not set(after.notes) - set(after.nodes())


@pytest.mark.parametrize("name", [one.name for one in PIPELINE])
def test_each_pass_has_a_switch(name: str) -> None:
    _, records = run_pipeline(CHAIN, numerics="fast", disable=frozenset({name}), hook=verify_each)
    assert name not in [r.name for r in records] and len(records) == len(PIPELINE) - 1


def test_each_rule_has_a_switch() -> None:
    graph, records = run_pipeline(CHAIN, numerics="fast", disable=frozenset({"scale_into_alpha", "gelu"}))
    assert by_name(records)["fold_scale"] == {} and "gelu" in names(graph)


def test_records_say_what_happened() -> None:
    graph, records = run_pipeline(CHAIN, numerics="fast")
    assert [r.name for r in records] == [one.name for one in PIPELINE]
    assert records[0].before == len(CHAIN.nodes()) and records[-1].after == len(graph.nodes())
    assert all(a.after == b.before for a, b in zip(records, records[1:]))
    assert all(r.seconds >= 0 and r.reason for r in records)


def test_steps_can_be_observed() -> None:
    steps = []

    def observe(rule: str, before: Node, after: Node) -> None:
        steps.append((rule, before.op.name, after.op.name))
    run_pipeline(CHAIN, numerics="fast", observe=observe)
    assert ("add_zero", "add", "mul") in steps and ("scale_into_alpha", "mul", "dot_general") in steps


def test_a_second_run_changes_nothing() -> None:
    once, _ = run_pipeline(CHAIN, numerics="fast")
    again, records = run_pipeline(once, numerics="fast")
    assert again.outputs == once.outputs
    assert not any(r.fired for r in records)


# --- graphs inside control ops

def test_graphs_inside_control_ops_are_optimised_too() -> None:
    inner = build_graph(lambda x: ops.gelu(x * number(1), approximate="none"), f32(4), name="then")
    other = build_graph(lambda x: x - number(0), f32(4), name="other")
    def program(p: Node, x: Node) -> Node:
        return ops.cond(p, x, then_graph=inner, else_graph=other)
    captured = build_graph(program, TensorType(BOOL), f32(4))
    graph, records = run_pipeline(captured, numerics="fast", hook=verify_each)
    held = next(n for n in graph.nodes() if n.op.name == "cond").attributes
    assert names(held.else_graph) == [] and "gelu" not in names(held.then_graph)
    assert by_name(records)["simplify"] == {"mul_one": 1, "sub_zero": 1}
    x = np.linspace(-2, 2, 4, dtype=np.float32)
    for p in (True, False):
        np.testing.assert_allclose(interpret(graph, [np.array(p), x])[0],
                                   interpret(captured, [np.array(p), x])[0], rtol=1e-6)


# --- hooks

@dataclass(frozen=True)
class Broken:
    """A pass that does what `change` says to the graph."""

    change: Callable[[Graph], Graph]
    name: str = "broken"
    reason: str = "for a test"

    def run(self, graph: Graph, context: object) -> Graph:
        return self.change(graph)


def test_verify_and_compare_name_the_pass_that_is_wrong() -> None:
    graph = build_graph(lambda x: ops.tanh(x), f32(N, 4))
    stranger = input_node("stranger", f32(N, 4))
    with pytest.raises(VerificationError, match="after broken: input stranger is not among"):
        run_pipeline(graph, passes=[Broken(lambda g: Graph(g.inputs, (stranger,)))], hook=verify_each)
    compare = compare_each(np.random.default_rng(0))
    with pytest.raises(VerificationError, match="after broken: output 0 is another"):
        run_pipeline(graph, passes=[Broken(lambda g: Graph(g.inputs, (ops.sin(g.inputs[0]),)))], hook=compare)


def test_trace_saves_every_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with knobs.override(trace=str(tmp_path / "trace")):
        graph, _ = run_pipeline(CHAIN, numerics="fast")
    files = sorted(p.name for p in (tmp_path / "trace").iterdir())
    assert files == ["00_captured.ir", "01_decompose.ir", "02_canonicalise.ir", "03_fold_constants.ir",
                     "04_fold_normalisation.ir", "05_simplify.ir", "06_substitute.ir", "07_fold_scale.ir",
                     "08_share.ir", "09_recognise.ir", "10_drop_dead.ir"]
    assert parse_graph((tmp_path / "trace" / files[-1]).read_text()).outputs == graph.outputs
    run_pipeline(CHAIN, hook=all_of(print_each, save_each(tmp_path)))
    assert "# 03 fold_constants" in capsys.readouterr().out and (tmp_path / "10_drop_dead.ir").exists()


def test_no_hook_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_pipeline(CHAIN)
    assert not list(tmp_path.iterdir())


def test_text_of_a_result_parses_back() -> None:
    graph, _ = run_pipeline(CHAIN, numerics="fast")
    assert parse_graph(print_graph(graph)).outputs == graph.outputs
