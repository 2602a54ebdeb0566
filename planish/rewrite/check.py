"""The check that admits a rule: machine evidence that it keeps the answer, lowers the cost, and ends.

In: a rule. Out: a CheckReport, or UnsoundRule with the counterexample. Random instances of the pattern are
run before and after on random and special values (NaN, inf, -0.0, subnormals, INT_MIN) by the reference
interpreter.
exact          the same bits, up to which NaN
default, fast  within the tolerance of the ops, or twice the error that the graph before has itself; NaN and
               inf where they were. Their special values leave out the extremes: an intermediate result may
               overflow on one side only
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from planish.errors import TypeRuleError, UnsoundRule
from planish.ir import Graph, Node, interpret, print_graph
from planish.ops.rules import INTEGERS
from planish.ops.samples import random_array, special_values
from planish.ops.tolerance import tolerance
from planish.rewrite.cost import graph_cost
from planish.rewrite.driver import apply_steps
from planish.rewrite.instances import Instances
from planish.rewrite.rule import Rule, Rules
from planish.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType

CHECKED = (FLOAT32, BOOL, *INTEGERS, FLOAT16, FLOAT64, BFLOAT16)
INSTANCES = 4   # per dtype that the rule fires on
ATTEMPTS = 120  # to find them on a first dtype
FEWER = 30      # on the others
TIMES_OWN_ERROR = 2.0  # of a graph's own error, which what takes its place may have
KINDS = ("random", "special", "few", "zeros")  # what the inputs of one comparison hold


@dataclass(frozen=True)
class CheckReport:
    """What the verdict rests on: instances of the pattern, comparisons of outputs, and the dtypes the rule
    fired on."""

    rule: str
    instances: int
    comparisons: int
    dtypes: tuple[str, ...]


def check_rule(rule: Rule, *, seed: int = 0, instances: int = INSTANCES) -> CheckReport:
    """Evidence for a rule. Raises UnsoundRule with the graph before and after and the values where they
    differ."""
    rng = np.random.default_rng([seed, *rule.name.encode()])
    made = comparisons = 0
    dtypes = []
    for dtype in CHECKED:
        for node in matching_nodes(rule, rng, dtype, instances, FEWER if made else ATTEMPTS):
            comparisons += _check_instance(rule, node, rng)
            made += 1
            dtypes.append(dtype.short)
    if not made:
        instance = f"fires on no random instance of {rule.pattern}"
        raise UnsoundRule(f"rule {rule.name} {instance}: give it an example")
    return CheckReport(rule.name, made, comparisons, tuple(dict.fromkeys(dtypes)))


def matching_nodes(rule: Rule, rng: np.random.Generator, dtype: DType, count: int,
                   attempts: int) -> Iterator[Node]:
    """Up to `count` random nodes on which the rule fires."""
    found = 0
    for _ in range(attempts):
        if found == count:
            return
        node = _random_node(rule, rng, dtype)
        if node is not None and rule.apply(node, {}) is not None:
            found += 1
            yield node


def _random_node(rule: Rule, rng: np.random.Generator, dtype: DType) -> Node | None:
    """None where the shapes or dtypes drawn do not go together."""
    try:
        if rule.example is not None:
            return rule.example(rng, dtype)
        return Instances(rng).draw(rule.orders[int(rng.integers(len(rule.orders)))], dtype)
    except (TypeRuleError, OverflowError):
        return None


def _check_instance(rule: Rule, node: Node, rng: np.random.Generator) -> int:
    before = graph_of(node)
    once = rule.apply(node, {})
    assert once is not None
    _check_cost(rule, before, Graph(before.inputs, (once,)))
    step = Rules((rule,), "fast").step
    after, _ = apply_steps(before, step, strict_fuel=True)
    again, fired = apply_steps(after, step, strict_fuel=True)
    if fired:
        graphs = f"{print_graph(after)}\n{print_graph(again)}"
        raise UnsoundRule(f"rule {rule.name} fires on its own result\n{graphs}")
    for kind in KINDS:
        arrays = [random_data(rng, n, kind, extremes=rule.numerics == "exact") for n in before.inputs]
        _compare(rule, before, after, arrays)
    return len(KINDS)


def graph_of(node: Node) -> Graph:
    """A graph with this one output, over the inputs it needs."""
    inputs = tuple(n for n in Graph((), (node,)).nodes() if n.op.name == "input")
    return Graph(inputs, (node,))


def _check_cost(rule: Rule, before: Graph, after: Graph) -> None:
    old, new = graph_cost(before), graph_cost(after)
    if new >= old:
        raise UnsoundRule(f"rule {rule.name} does not lower the cost: {old:.2f} before, {new:.2f} after\n"
                          f"{print_graph(before)}\n{print_graph(after)}")


def random_data(rng: np.random.Generator, node: Node, kind: str, *, extremes: bool) -> np.ndarray:
    """Values for an input: random; special; a few special ones, which gives ties; zeros of both signs.

    Without `extremes`, special values are NaN, inf, zeros and numbers near 1.
    """
    shape = tuple(int(d) for d in node.shape)  # type: ignore[arg-type]
    if kind == "random" or not prod(shape):
        return random_array(rng, node.dtype, shape)
    values = special_values(node.dtype)
    size = np.abs(values.astype(np.float64))
    if kind == "zeros":
        values = values[size == 0]
    elif not extremes and node.dtype.is_float:
        values = values[~(size < np.inf) | (size == 0) | ((size > 0.1) & (size < 10))]
    return rng.choice(rng.choice(values, 3) if kind == "few" else values, size=shape)


# --- comparing

def _compare(rule: Rule, before: Graph, after: Graph, arrays: Sequence[np.ndarray]) -> None:
    expected, = interpret(before, arrays)
    found, = interpret(after, arrays)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        was = f"{expected.dtype}{expected.shape}"
        raise UnsoundRule(f"rule {rule.name} made {found.dtype}{found.shape} of {was}")
    if rule.numerics == "exact":
        wrong = ~same_bits(expected, found)
    else:
        wrong = ~is_close(expected, found, *_allowance(before, after, arrays, expected))
    if np.any(wrong):
        raise UnsoundRule(_counterexample(rule, before, after, arrays, expected, found, wrong))


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elementwise: the same bits, or both NaN."""
    if a.dtype.kind in "biu":
        return a == b
    bits = np.dtype(f"u{a.dtype.itemsize}")
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    with np.errstate(all="ignore"):
        return same.reshape(a.shape) | (np.isnan(a) & np.isnan(b))


def is_close(a: np.ndarray, b: np.ndarray, relative: float, absolute: float) -> np.ndarray:
    """Elementwise: within the tolerance, NaN where NaN was, inf where the same inf was."""
    if a.dtype.kind in "biu":
        return a == b
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(wide_a - wide_b) <= absolute + relative * np.abs(wide_a)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    return np.where(finite, near, same_bits(a, b))


def _allowance(before: Graph, after: Graph, arrays: Sequence[np.ndarray],
               expected: np.ndarray) -> tuple[float, float]:
    """(relative, absolute): the tolerance of every op on either side, sums relative to the magnitudes that
    went in."""
    if expected.dtype.kind in "biu":
        return 0.0, 0.0
    rows = [tolerance(n.op.tolerance, n.dtype) for g in (before, after) for n in g.nodes()
            if not isinstance(n.type, tuple)]
    dtype = before.outputs[0].dtype
    import ml_dtypes
    limits = ml_dtypes.finfo(dtype.numpy)
    ulps = sum(row.ulp + 1 for row in rows)
    magnitude, = interpret(before, [np.abs(a) if a.dtype.kind not in "bu" else a for a in arrays])
    sizes = np.abs(np.concatenate([expected.ravel(), magnitude.ravel()]).astype(np.float64))
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    scale = sum(row.scale for row in rows)
    own = TIMES_OWN_ERROR * _own_error(before, arrays, expected)
    return ulps * float(limits.eps), scale * largest + ulps * float(limits.smallest_subnormal) + own


def _own_error(graph: Graph, arrays: Sequence[np.ndarray], results: np.ndarray) -> float:
    """The largest error of a graph's results against its value in float64."""
    exact, = interpret(graph, arrays, precision="float64")
    with np.errstate(all="ignore"):
        error = np.abs(results.astype(np.float64) - exact)
    return float(np.max(error, initial=0.0, where=np.isfinite(error)))


def _counterexample(rule: Rule, before: Graph, after: Graph, arrays: Sequence[np.ndarray], expected: Any,
                    found: Any, wrong: np.ndarray) -> str:
    at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    index = at if wrong.ndim else ()
    values = "\n".join(f"  {n.attributes.name} = {np.array2string(a, threshold=40)}"
                       for n, a in zip(before.inputs, arrays))
    return (f"rule {rule.name} ({rule.numerics}) changes the answer at {index}: {expected[index]!r} before, "
            f"{found[index]!r} after\n{print_graph(before)}\n{print_graph(after)}\nwith\n{values}")
