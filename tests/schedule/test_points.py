"""Points of loop nests against plain Python loops."""
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planish.schedule.kernel import Axis
from planish.schedule.points import corner_points, dim_values, loop_points
from planish.types import Dim, Symbol, evaluate_dim, parse_dim, symbol
from planish.types.dim import maximum, minimum

I, J = symbol("i", 0, 6), symbol("j", 0, 4)
LEAVES = st.sampled_from([I, J]) | st.integers(-5, 12)


def combined(parts: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    two = st.tuples(parts, parts)
    return (two.map(lambda p: p[0] + p[1]) | two.map(lambda p: p[0] - p[1]) | two.map(lambda p: p[0] * p[1])
            | two.map(lambda p: maximum(*p)) | two.map(lambda p: minimum(*p))
            | st.tuples(parts, st.integers(1, 7)).map(lambda p: p[0] // p[1])
            | st.tuples(parts, st.integers(1, 7)).map(lambda p: p[0] % p[1]))


EXPRESSIONS = st.recursive(LEAVES, combined, max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_all_points_at_once_as_one_by_one(dim: Dim) -> None:
    points, count = loop_points((Axis("i", 7), Axis("j", 5)), {})
    values = dim_values(dim, points)
    assert count == 35
    for n, (i, j) in enumerate((i, j) for i in range(7) for j in range(5)):
        assert (values if isinstance(values, int) else values[n]) == evaluate_dim(dim, {"i": i, "j": j})


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_index_expressions_print_and_parse(dim: Dim) -> None:
    again = parse_dim(str(dim), {"i": I, "j": J})
    assert str(parse_dim(str(again), {"i": I, "j": J})) == str(again)


def test_extents_may_depend_on_outer_axes() -> None:
    outer = Axis("o", parse_dim("(N + 3) // 4"))
    inner = Axis("i", minimum(4, symbol("N") - outer.symbol * 4))
    points, count = loop_points((outer, inner), {"N": 10})
    assert count == 10
    assert (points["o"] * 4 + points["i"]).tolist() == list(range(10))
    assert loop_points((outer, inner), {"N": 0})[1] == 0


def test_corners_are_points_that_the_loops_reach() -> None:
    sizes = (Symbol("N", 2, 9), Symbol("M", 0))
    axes = (Axis("i", symbol("N")), Axis("j", symbol("i") + 1), Axis("k", symbol("M")))
    points, count = corner_points(sizes, axes)
    assert count and {int(n) for n in points["N"]} == {2, 9}
    for c in range(count):
        at = {name: int(values[c]) for name, values in points.items()}
        assert all(0 <= at[a.name] < evaluate_dim(a.extent, at) for a in axes)
