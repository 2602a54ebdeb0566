"""The report: what was done, as data."""
from __future__ import annotations

import io
import json

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.errors import PlanishError
from planish.inspect import tables
from planish.inspect.bench import Contestant, bench, steps
from planish.inspect.explain import as_json, explain, firings, formula
from planish.ir import Graph, constant
from planish.ir.graph import build_graph
from planish.ops import exp, gelu, reduce_sum, sqrt
from planish.types import FLOAT32, TensorType, symbol

N = symbol("N", 1, 1000)


def chain(x, w, b):  # type: ignore[no-untyped-def]
    scale = 1.0 / sqrt(constant(np.float32(64)))
    return gelu((x @ w) * scale + b, approximate="none") + constant(np.float32(0))


def graph() -> Graph:
    types = (TensorType(FLOAT32, shape) for shape in ((N, 64), (64, 32), (32,)))
    return build_graph(chain, *types, names=("x", "w", "b"), name="chain")


@pytest.mark.parametrize(("numerics", "folded", "gone"),
                         [("strict", 0, 0), ("default", 1, 0), ("fast", 1, 1)])
def test_five_ops_are_one_kernel(numerics: str, folded: int, gone: int) -> None:
    what = explain(compile_graph(graph(), Options(numerics=numerics), hint={"N": 500}))  # type: ignore[arg-type]
    assert (what.kernels.before, what.kernels.after) == (5, 1)
    fired = {p.name: p.fired for p in what.passes}
    assert fired["fold_constants"] == {"sqrt": 1, "div": 1}
    assert fired["fold_scale"].get("scale_into_alpha", 0) == folded
    assert fired["simplify"].get("add_zero", 0) == gone
    assert what.bytes.ratio > 2 and what.memory.planned == 0 and what.hint == {"N": 500}


def test_bytes_are_those_of_the_hint() -> None:
    double = build_graph(lambda x: exp(x) * x, TensorType(FLOAT32, (N,)))
    what = explain(compile_graph(double, hint={"N": 100}))
    assert (what.bytes.before, what.bytes.after) == (5 * 400, 2 * 400)
    assert what.bytes.ratio == 2.5


def test_memory_has_a_bound_that_the_plan_keeps() -> None:
    def two_sums(x):  # type: ignore[no-untyped-def]
        y = reduce_sum(x, axes=(0,), keepdims=True) + x
        return reduce_sum(y, axes=(1,), keepdims=True) * y

    what = explain(compile_graph(build_graph(two_sums, TensorType(FLOAT32, (300, 200)))))
    assert 0 < what.memory.lower_bound <= what.memory.planned <= what.memory.naive


def test_firings_say_what_became_of_what() -> None:
    found = {f.rule: f for f in firings(graph(), Options(numerics="fast"))}
    fold = found["div"]
    assert (fold.pass_name, fold.before, fold.after) == ("fold_constants", "div(1, 8)", "0.125")
    scale = found["scale_into_alpha"]
    assert scale.before == "mul(dot_general(x, w), 0.125)" and scale.after == "dot_general(x, w) * 0.125"
    without = {f.rule for f in firings(graph(), Options(disable=frozenset({"fold_scale"})))}
    assert "scale_into_alpha" not in without and "div" in without


def test_formula_is_cut_at_its_depth() -> None:
    (output,) = graph().outputs
    assert formula(output, 1) == "add(gelu(...), 0)"
    assert formula(output, 2) == "add(gelu(add(...)), 0)"


def test_names_that_switch_nothing_off_are_refused() -> None:
    with pytest.raises(PlanishError, match="nothing to disable is called fuze, tile; passes and steps are "):
        compile_graph(graph(), Options(disable=frozenset({"fuze", "fuse", "add_zero", "tile"})))


@pytest.mark.parametrize("strategy", ["native", "library"])
def test_everything_prints_and_is_json(strategy: str) -> None:
    from rich.console import Console

    program = compile_graph(graph(), Options(strategy=strategy), hint={"N": 3})  # type: ignore[arg-type]
    what = explain(program)
    found = json.loads(json.dumps(as_json(what)))
    assert found["strategy"] == strategy and found["kernels"]["before"] == 5
    console = Console(width=110, file=io.StringIO())
    console.print(tables.explanation(what), tables.rewrites(firings(graph(), Options())))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{strategy} strategy, numerics default, at N=3" in text and "5 ->" in text


def test_json_has_no_infinities() -> None:
    found = as_json({"a": [float("inf"), float("nan"), 1.5], 2: ("x", None)})
    assert found == {"a": ["inf", "nan", 1.5], "2": ["x", None]}


# --- bench

def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((4, 64), (64, 32), (32,))]


def test_a_wrong_contestant_gets_no_time() -> None:
    right = compile_graph(graph(), Options(strategy="library"))

    def missing() -> object:
        raise ImportError("no such runtime")

    said: list[str] = []
    contestants = [Contestant("right", lambda: right),
                   Contestant("wrong", lambda: lambda *a: (right(*a)[0] * np.float32(1.001),)),
                   Contestant("missing", missing)]  # type: ignore[arg-type]
    found = bench(graph(), contestants, inputs(), rounds=2, say=said.append)
    assert [t.name for t in found.timings] == ["right"]
    assert found.refused["missing"] == "ImportError: no such runtime"
    assert "gives another answer; output 0: " in found.refused["wrong"]
    assert len(said) == steps(3, 2)
    assert found.ratio("right", "wrong") is None and found.ratio("right", "right") == 1.0


def test_times_are_of_calls_after_the_first() -> None:
    right = compile_graph(graph(), Options(strategy="library"))
    calls: list[int] = []

    def counted(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        calls.append(1)
        return right(*arrays)

    found = bench(graph(), [Contestant("one", lambda: counted)], inputs(), rounds=3)
    (timing,) = found.timings
    assert timing.calls == len(calls) - 1 - 3  # the first call, and the first of each turn
    assert timing.min <= timing.median <= timing.p90 <= timing.p99
    assert found.inputs == ["float32[4, 64]", "float32[64, 32]", "float32[32]"]
