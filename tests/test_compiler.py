"""What compile_graph is told: hints and switches that do not exist are refused by name."""
from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import planish
from planish import compiler, knobs, ops
from planish.compiler import LibraryProgram, Options, compile_graph
from planish.errors import PlanishError
from planish.ir import Graph, input_node
from planish.schedule.build import SWITCHES, build_program
from planish.schedule.machine import Machine
from planish.types import FLOAT32, TensorType, symbol


def doubled(*shape) -> Graph:
    x = input_node("x", TensorType(FLOAT32, shape))
    return Graph((x,), (ops.add(x, x),), name="doubled")


def test_a_hint_names_symbols_of_the_graph():
    graph = doubled(symbol("N"), symbol("M"))
    with pytest.raises(PlanishError, match=r"hint: doubled has no symbol 'n', 'K'; its symbols are N, M$"):
        compile_graph(graph, hint={"N": 3, "n": 4, "K": 5})
    with pytest.raises(PlanishError, match="hint: doubled has no symbol 'N'; all its sizes are known"):
        compile_graph(doubled(3, 4), Options(strategy="library"), hint={"N": 3})
    assert compile_graph(graph, Options(strategy="library"), hint={"N": 3}).report.hint == {"N": 3}


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_is_known_everywhere(name):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    compiled = compile_graph(doubled(3, 4), Options(disable=frozenset({name})))
    np.testing.assert_array_equal(compiled(x)[0], x + x)


def test_what_is_no_switch_is_refused():
    with pytest.raises(PlanishError, match=f"nothing to disable is called tiles; .*{', '.join(SWITCHES)}"):
        compile_graph(doubled(3), Options(disable=frozenset({"tiles", "fuse"})))
    with pytest.raises(PlanishError, match=f"no step called share, tiles; it has {', '.join(SWITCHES)}"):
        build_program(doubled(3), Machine(), {}, disable=frozenset({"tiles", "fuse", "share"}))


def test_a_graph_that_computes_nothing_has_a_program():
    x = input_node("x", TensorType(FLOAT32, (3,)))
    built = build_program(Graph((x,), (x,)), Machine(), {})
    assert built.program.steps == () and built.outputs == (("input", 0),)


def test_a_disabled_planish_runs_models_by_the_library(tmp_path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    value = make.make_tensor_value_info
    graph = make.make_graph([make.make_node("Add", ["x", "x"], ["y"])], "doubled",
                            [value("x", 1, [3])], [value("y", 1, [3])])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)]), tmp_path / "model.onnx")
    with knobs.override(disable=True):
        compiled = planish.load_onnx(tmp_path / "model.onnx")
    assert isinstance(compiled, LibraryProgram)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(compiled(x)[0], x + x)


def test_compiles_side_by_side_leave_the_process_as_it_was():
    was_on, turn = gc.isenabled(), sys.getswitchinterval()
    first, second = compiler._compiling(), compiler._compiling()
    first.__enter__()
    second.__enter__()
    assert not gc.isenabled() and sys.getswitchinterval() <= compiler.TURN
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled() == was_on and sys.getswitchinterval() == turn


def test_a_compile_that_fails_leaves_the_process_as_it_was():
    was_on, turn = gc.isenabled(), sys.getswitchinterval()
    assert was_on
    with pytest.raises(ZeroDivisionError), compiler._compiling():
        raise ZeroDivisionError
    assert gc.isenabled() and sys.getswitchinterval() == turn
