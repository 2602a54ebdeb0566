"""docs/from_scratch.py runs, stays short enough to read in one sitting, and is right in the corners too."""
from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "docs" / "from_scratch.py"


@pytest.fixture(scope="module")
def scratch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("from_scratch", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["from_scratch"] = module
    spec.loader.exec_module(module)
    return module


def test_it_runs_as_a_script() -> None:
    run = subprocess.run([sys.executable, str(FILE)], capture_output=True, text=True, check=True)
    for stage in ("captured", "rules", "fired", "rewritten", "kernel", "code", "result"):
        assert f"\n{stage}\n" in f"\n{run.stdout}"


def test_it_stays_short() -> None:
    assert len(FILE.read_text().splitlines()) <= 500


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 17), (5, 24), (64, 100), (0, 8), (7, 1024)])
def test_program_equals_float64(scratch: ModuleType, shape: tuple[int, int]) -> None:
    x = (4 * np.random.default_rng().normal(size=shape)).astype(np.float32)
    truth = scratch.program(x.astype(np.float64))
    np.testing.assert_allclose(scratch.jit(scratch.program)(x), truth, rtol=1e-5)


@pytest.mark.parametrize("function", [
    lambda x: x,
    lambda x: x * 2.0 - 1.0,
    lambda x: np.tanh(x),
    lambda x: np.exp(x),
    lambda x: x - np.sum(x, axis=-1, keepdims=True) / 8.0,
    lambda x: x + (np.max(x, axis=-1, keepdims=True) - np.sum(x, axis=-1, keepdims=True)),
    lambda x: np.exp(x) / np.max(np.exp(x), axis=-1, keepdims=True) + np.sum(x, axis=-1, keepdims=True) * 2.0,
])
@pytest.mark.parametrize("columns", [1, 8, 20])
def test_functions_equal_numpy(scratch: ModuleType, function, columns: int) -> None:
    x = np.random.default_rng().normal(size=(6, columns)).astype(np.float32)
    np.testing.assert_allclose(scratch.jit(function)(x), function(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("function", [np.exp, np.tanh, lambda x: x * 1.0, lambda x: x / 8.0])
def test_special_values(scratch: ModuleType, function) -> None:
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 88.72, 88.73, -87.5, -103.0, -200.0, 3e38]
    x = np.array([[*values, 1.0, -1.0]], np.float32)
    with np.errstate(all="ignore"):
        expected = function(x)
    actual = scratch.jit(function)(x)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-45)
    assert (np.signbit(actual) == np.signbit(expected))[~np.isnan(expected)].all()


def test_nan_reaches_the_reductions(scratch: ModuleType) -> None:
    x = np.ones((3, 24), np.float32)
    x[0, 5], x[1, 23] = np.nan, np.inf
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(scratch.jit(scratch.program)(x), scratch.program(x), rtol=1e-5)


def test_every_rule_passes_its_check(scratch: ModuleType) -> None:
    assert [scratch.check(rule) for rule in scratch.RULES] == [None] * len(scratch.RULES)


def test_unsound_rules_are_refused(scratch: ModuleType) -> None:
    X, C, zero = scratch.X, scratch.C, scratch.as_node(0.0)
    for rule in (
        scratch.Rule("sub_self", X - X, zero, "exact"),
        scratch.Rule("sub_self", X - X, zero, "default"),
        scratch.Rule("add_zero", X + 0.0, X, "exact"),
        scratch.Rule("any_division", X / C, X * (1.0 / C), "exact"),
        scratch.Rule("wrong", X * 1.0, X * 2.0, "fast"),
    ):
        assert scratch.check(rule).startswith(f"{rule.name} is not {rule.numerics}")


def test_numerics_class_chooses_the_rules(scratch: ModuleType) -> None:
    graph = scratch.capture(lambda x: (x + 0.0) * 1.0 + x**3, (2, 8))
    fired = {numerics: set(scratch.rewrite(graph, numerics)[1]) for numerics in scratch.CLASSES}
    assert fired["exact"] == {"mul_one"}
    assert fired["default"] == {"mul_one", "cube"}
    assert fired["fast"] == {"mul_one", "cube", "add_zero"}


def test_common_subexpressions_are_one_node(scratch: ModuleType) -> None:
    graph = scratch.capture(lambda x: np.exp(x * 2.0) + np.exp(2.0 * x), (2, 8))
    assert graph.args[0] is graph.args[1]


def test_endless_rewriting_is_named(scratch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    X = scratch.X
    there = scratch.Rule("there", X * 2.0, X + X, "exact")
    back = scratch.Rule("back", X + X, X * 2.0, "exact")
    monkeypatch.setattr(scratch, "RULES", [there, back])
    with pytest.raises(RuntimeError, match=r"does not end.*there.*back"):
        scratch.rewrite(scratch.capture(lambda x: x * 2.0, (2, 8)), fuel=50)


@pytest.mark.parametrize(("function", "error", "message"), [
    (lambda x: x if x else -x, TypeError, "a branch depends on values"),
    (lambda x: np.sin(x), TypeError, r"cannot capture numpy\.sin"),
    (lambda x: np.max(x), TypeError, "use max or sum, axis=-1"),
    (lambda x: np.sum(x, axis=-1, keepdims=True), TypeError, "must be a table"),
    (lambda x: x**2.5, NotImplementedError, "no code for 'pow'"),
])
def test_errors_say_what_to_do(scratch: ModuleType, function, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        scratch.Program(function, (2, 8))


def test_wrong_arrays_are_refused(scratch: ModuleType) -> None:
    program = scratch.Program(lambda x: x + 1.0, (2, 8))
    x = np.zeros((2, 8), np.float32)
    strided = np.zeros((2, 16), np.float32)[:, ::2]
    for bad in (x.astype(np.float64), x.T, np.zeros((2, 9), np.float32), strided):
        with pytest.raises(TypeError, match="compiled for contiguous float32"):
            program(bad)
    with pytest.raises(ValueError, match="must not overlap"):
        program(x, out=x)
