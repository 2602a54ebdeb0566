"""Random programs as native code give what the reference interpreter gives: this finds faults of fusion."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planish.compiler import Options, compile_graph
from planish.ir import Graph, interpret, parse_graph, print_graph
from planish.types import FLOAT32, INT8, INT32
from tests.native.graphs import RandomProgram

LIMITS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def repro(graph: Graph, arrays: list[np.ndarray]) -> str:
    """A file that shows the fault by itself."""
    shapes = ", ".join(f"rng.uniform(-2, 2, {a.shape}).astype({a.dtype.name!r})" if a.dtype.kind == "f" else
                       f"rng.integers(-100, 100, {a.shape}).astype({a.dtype.name!r})" for a in arrays)
    return f'''
import numpy as np
from planish.compiler import Options, compile_graph
from planish.ir import interpret, parse_graph
graph = parse_graph("""{print_graph(graph)}""")
rng = np.random.default_rng(0)
arrays = [{shapes}]
for got, wanted in zip(compile_graph(graph, Options())(*arrays), interpret(graph, arrays)):
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)
'''


def assert_equal(graph: Graph, arrays: list[np.ndarray], compiled: Any) -> None:
    expected = interpret(graph, arrays)
    wide = interpret(graph, arrays, precision="float64") if arrays[0].dtype.kind == "f" else expected
    for k, (got, own, exact) in enumerate(zip(compiled(*arrays), expected, wide)):
        assert got.dtype == own.dtype and got.shape == own.shape, f"output {k}: {got.shape}, not {own.shape}"
        if own.dtype.kind == "f":
            finite = np.isfinite(exact)
            np.testing.assert_array_equal(got[~finite], own[~finite], err_msg=f"output {k}")
            got, own, exact = got[finite], own[finite], exact[finite]
            room = 4 * np.abs(own - exact) + 1e-5 * np.max(np.abs(exact), initial=1.0)
            assert np.all(np.abs(got - exact) <= room), f"output {k}"
        else:
            np.testing.assert_array_equal(got, own, err_msg=f"output {k}")


@pytest.mark.parametrize("dtype", [INT32, INT8, FLOAT32], ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@LIMITS
@given(data=st.data())
def test_native_is_the_reference(dtype: Any, symbolic: bool, data: Any) -> None:
    def choose(options: Any) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]
    program = RandomProgram(choose, dtype, symbolic)
    graph = program.graph(choose(range(3, 13)))
    compiled = None
    for batch in (1, 8, 19) if symbolic else (1,):
        arrays = program.data(np.random.default_rng(batch), batch)
        try:
            compiled = compiled or compile_graph(graph, Options())
            assert_equal(graph, arrays, compiled)
        except Exception as error:
            raise AssertionError(f"{error}\n{repro(graph, arrays)}") from error


# Found by the test above, and made small.
FOUND = {
    "a scan's rows are not its first axes": """graph graph(%x: i32[2, 1], %y: i32[2, 2]) {
      %0 = cummax(%x) {axis=0, reverse=False, exclusive=False} : i32[2, 1]
      %1 = cumsum(%y) {axis=0, reverse=False, exclusive=False} : i32[2, 2]
      %2 = concat(%0, %1) {axis=1} : i32[2, 3]
      return %2
    }""",
    "one value stored along a vector, and used": """graph graph(%x: i32[1]) {
      %0 = reduce_max(%x) {axes=(0,), keepdims=False} : i32[]
      %1 = broadcast_to(%0) {shape=(8,)} : i32[8]
      %2 = lt(%1, %x) : bool[8]
      %3 = select(%2, %1, %x) : i32[8]
      return %0, %3, %1
    }"""}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    graph = parse_graph(FOUND[name])
    rng = np.random.default_rng()
    arrays = [rng.integers(-100, 100, n.shape).astype(np.int32) for n in graph.inputs]
    assert_equal(graph, arrays, compile_graph(graph, Options()))
