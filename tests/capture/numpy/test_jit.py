"""The door: signatures, counters, guards, stages, containers, warnings, threads."""

from __future__ import annotations

import builtins
import copy
import enum
import pickle
import re
import threading
import types
import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

import planish
import planish.variants.function
from planish.compiler import LibraryProgram
from planish.errors import CaptureError, CaptureWarning, SignatureError, UnsupportedDType
from planish.ir import Location, print_graph
from planish.variants.function import Jitted

X = np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32)


def library(function: Any = None, **options: Any) -> Any:
    return planish.jit(function, strategy="library", **options)


# --- signatures


def test_one_trace_per_signature(strategy: str) -> None:
    @planish.jit(strategy=strategy)
    def f(x: Any, scale: float = 2.0) -> Any:
        return x * scale

    for scale in (1.0, 2.5, 3.0):
        np.testing.assert_array_equal(f(X, scale), X * np.float32(scale))
    f(X)
    f(x=X, scale=7.0)
    assert f.traces == 1 and f.recompiles == []
    f(X.astype(np.float64))
    assert f.traces == 2 and str(f.recompiles[0]) == "x: float32[3, 4] -> float64[3, 4]"
    f(X[:2])
    f(X, 3)
    assert f.traces == 4 and [r.argument for r in f.recompiles] == ["x", "x", "x"]
    f(X[::-1])
    f(np.asfortranarray(X))
    assert f.traces == 4


def test_python_numbers_stay_weak(agree: Callable[..., Any]) -> None:
    for a, b in [(2, 3), (2.5, 3), (7, -2), (True, 2), (-7, 2.0)]:
        agree(lambda a, b: (a + b, a * b, a - b, a / b, a // b, a % b, a < b, a == b, -a, abs(a)), a, b)
    for value in (1, 1.5, np.float64(1.5), np.int8(3), np.float16(1), True, np.bool_(True)):
        agree(lambda x, s: (x + s, x * s, np.maximum(x, s), np.exp(s), np.where(x > s, x, s)), X, value)
        agree(lambda x, s: (x + s, x * s, x < s), np.arange(6, dtype=np.int16), value)
    agree(lambda x, n: x + n, np.arange(3, dtype=np.uint8), 300)
    agree(lambda x, n: x < n, np.arange(3, dtype=np.uint8), 300)
    agree(lambda x, n: x**n, np.arange(3), -1)


def test_a_number_used_as_a_value_becomes_static() -> None:
    @library
    def f(x: Any, axis: int, count: int) -> Any:
        for _ in range(count):
            x = x + 1
        return x.sum(axis=axis)

    for axis, count in [(0, 2), (1, 2), (0, 3), (0, 2)]:
        np.testing.assert_allclose(f(X, axis, count), f.function(X, axis, count))
    assert f.traces == 3
    assert str(f.recompiles[0]).startswith("count: any number -> its value, which ") and "test_jit.py" in str(
        f.recompiles[0]
    )


def test_static_arguments() -> None:
    class Mode(enum.Enum):
        UP, DOWN = 1, -1

    def f(x: Any, mode: Any, *, how: tuple[str, ...] = ("a",), flag: bool = False) -> Any:
        return x * mode.value + (len(how) if flag else 0)

    jitted = library(f, static_argnums=1, static_argnames="how")
    for mode in Mode:
        for flag in (True, False):
            np.testing.assert_array_equal(
                jitted(X, mode, how=("b", "c"), flag=flag), f(X, mode, how=("b", "c"), flag=flag)
            )
    assert jitted.traces == 4
    with pytest.raises(SignatureError, match="how is neither an array, a number nor hashable"):
        jitted(X, Mode.UP, how=["unhashable"])
    with pytest.raises(
        ValueError, match="static_argnames has 'hwo'; the function's parameters are x, mode, how, flag"
    ):
        library(f, static_argnames="hwo")
    with pytest.raises(TypeError, match="missing a required argument: 'mode'"):
        jitted(X)


def test_call_forms() -> None:
    @library
    def f(a: Any, *rest: Any, scale: Any = 1.0, **more: Any) -> Any:
        return a + sum(rest) * scale + more.get("bias", 0)

    for args, keywords in [
        ((X,), {}),
        ((X, X, X), {}),
        ((X, X), {"scale": 2.0}),
        ((X, X), {"bias": X, "scale": X}),
    ]:
        np.testing.assert_allclose(f(*args, **keywords), f.function(*args, **keywords), rtol=1e-6)
    assert f.__name__ == "f" and f.__wrapped__ is f.function
    assert isinstance(planish.jit(lambda x: x), Jitted)
    np.testing.assert_array_equal(library(partial(np.add, 1))(X), X + 1)
    with pytest.raises(TypeError, match="jit compiles functions; int is not callable"):
        planish.jit(3)


def test_methods() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @library
        def call(self, x: Any) -> Any:
            return self.helper(x) * self.scale

        def helper(self, x: Any) -> Any:
            return x + self.scale

    one, two = Model(2.0), Model(3.0)
    for model in (one, two, one):
        np.testing.assert_array_equal(model.call(X), (X + np.float32(model.scale)) * np.float32(model.scale))
    one.scale = 5.0
    np.testing.assert_array_equal(one.call(X), (X + 5) * 5)


Pair = namedtuple("Pair", "left right")


@dataclass
class Layer:
    w: Any
    b: Any = None


def test_containers(agree: Callable[..., Any]) -> None:
    def f(params: Any, x: Any) -> Any:
        layer, (pair, none) = params["layer"], params["rest"]
        y = x @ layer.w + (0 if layer.b is None else layer.b)
        return {
            "y": y,
            "pair": Pair(pair.right + 1, none),
            "layers": [Layer(y * 2, (x, 3))],
            "n": len(params),
        }

    rng = np.random.default_rng(0)
    agree(
        f,
        {"layer": Layer(rng.standard_normal((4, 2)), rng.standard_normal(2)), "rest": [Pair(X, X), None]},
        X,
    )
    agree(f, {"layer": Layer(rng.standard_normal((4, 2))), "rest": [Pair(X, X), None]}, X)


def test_structure_is_part_of_the_signature() -> None:
    f = library(lambda p: p["a"] + p.get("b", 0))
    f({"a": X})
    f({"a": X, "b": X})
    assert f.traces == 2 and str(f.recompiles[0]) == "the arguments' structure: p['a'] -> p['a'], p['b']"


def test_jit_inside_jit() -> None:
    inner = library(lambda x: np.tanh(x) * 2)
    outer = library(lambda x: inner(x) + inner(x + 1))
    np.testing.assert_allclose(outer(X), np.tanh(X) * 2 + np.tanh(X + 1) * 2, rtol=1e-6)
    assert inner.traces == 0
    assert "tanh" in print_graph(outer.trace(X).graph)


def test_variants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planish.variants.function, "VARIANTS", 3)
    f = library(lambda x: x + 1)
    for n in range(6):
        f(np.zeros(n))
    assert f.traces == 6 and len(f._programs) == 3


# --- stages


def test_stages() -> None:
    def f(x: Any, w: Any) -> Any:
        return np.maximum(x @ w, 0)

    traced = library(f).trace(X, X.T)
    assert [n.op.name for n in traced.graph.nodes()] == ["input", "input", "matmul", "constant", "maximum"]
    lowered = traced.lower()
    assert lowered.as_text("graph") == print_graph(traced.graph)
    np.testing.assert_array_equal(lowered.compile()(X, X.T)[0], f(X, X.T))
    graph = planish.make_graph(f, strategy="library")(X, X.T)
    assert str(graph) == print_graph(graph)
    assert print_graph(graph, notes=False) == (
        "graph f(%x: f32[3, 4], %w: f32[4, 3]) {\n"
        "  %0 = matmul(%x, %w) : f32[3, 3]\n  %1 = constant [0.0] : f32[]\n"
        "  %2 = maximum(%0, %1) : f32[3, 3]\n  return %2\n}"
    )
    where = {n.op.name: graph.note(n).location for n in graph.nodes()}
    line = f.__code__.co_firstlineno + 1
    assert where["maximum"] == where["matmul"] == Location(__file__, line, "f")


# --- guards

SCALE = 2.0
TABLE: Any = np.arange(4, dtype=np.float32)
CONFIG: Any = {"power": 2, "weights": [np.ones(4, np.float32)]}


def helper(x: Any) -> Any:
    return x * SCALE


def test_globals_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    f = library(lambda x: helper(x) + TABLE ** CONFIG["power"] + CONFIG["weights"][0])
    here = globals()

    def expect() -> None:
        np.testing.assert_allclose(f(X), f.function(X), rtol=1e-6)

    expect()
    expect()
    assert f.traces == 1
    monkeypatch.setitem(here, "SCALE", 3.0)
    expect()
    assert f.traces == 2 and str(f.recompiles[-1]) == "SCALE: 2.0 -> 3.0"
    monkeypatch.setitem(here, "TABLE", TABLE + 1)
    expect()
    assert f.traces == 3 and f.recompiles[-1].argument == "TABLE"
    monkeypatch.setitem(CONFIG, "power", 3)
    expect()
    CONFIG["weights"][0] = np.zeros(4, np.float32)
    expect()
    monkeypatch.setitem(here, "helper", lambda x: x - SCALE)
    expect()
    assert f.traces == 6
    expect()
    assert f.traces == 6


def test_closures_are_guarded() -> None:
    factor, weight = 2.0, np.ones(4, np.float32)
    f = library(lambda x: x * factor + weight)
    f(X)
    factor = 5.0
    np.testing.assert_array_equal(f(X), X * 5 + 1)
    assert f.traces == 2 and str(f.recompiles[0]) == "factor: 2.0 -> 5.0"
    weight[1] = 7  # in place: no retrace, and never stale
    np.testing.assert_array_equal(f(X), X * 5 + weight)
    assert f.traces == 2


def test_containers_are_guarded_at_every_depth() -> None:
    settings = {"layers": [(2.0, [np.ones(4, np.float32)]), (3.0, [])], "shift": 1.0}

    def apply(x: Any) -> Any:
        for factor, weights in settings["layers"]:
            x = x * factor + sum(weights)
        return x + settings["shift"]

    f = library(apply)
    changes: list[Callable[[], Any]] = [
        lambda: settings["layers"][0][1].append(np.full(4, 3, np.float32)),
        lambda: settings["layers"].pop(),
        lambda: settings.update(shift=5.0),
        lambda: settings["layers"].__setitem__(0, (7.0, settings["layers"][0][1])),
        lambda: settings["layers"][0][1].__setitem__(0, np.full(4, 9, np.float32)),
    ]
    for count, change in enumerate([lambda: None, *changes], 1):
        change()
        np.testing.assert_allclose(f(X), apply(X), rtol=1e-6)
        f(X)
        assert f.traces == count
    settings["shift"] = float("5.0")  # an equal number is the same number
    f(X)
    assert f.traces == count


def test_writeable_arrays_are_read_at_every_call_and_frozen_ones_folded(strategy: str) -> None:
    weight, frozen = np.ones((4, 2), np.float32), planish.freeze(np.full(2, 3, np.float32))
    assert not frozen.flags.writeable
    f = planish.jit(lambda x: x @ weight + frozen, strategy=strategy)
    f(X)
    graph = f.trace(X).graph
    assert [n.attributes.name for n in graph.inputs] == ["x", "weight"]
    weight *= 2
    np.testing.assert_allclose(f(X), X @ weight + 3, rtol=1e-6)
    frozen.flags.writeable = True
    frozen[:] = 4
    np.testing.assert_allclose(f(X), X @ weight + 4, rtol=1e-6)
    assert f.traces == 2 and str(f.recompiles[0]) == "frozen: frozen -> writeable"


def test_report_says_what_to_freeze() -> None:
    weight = np.ones((4, 5000), np.float32)
    f = library(lambda x: x @ weight)
    f(X)
    (program,) = f._programs.values()
    (hint,) = program.compiled.report.decisions
    assert hint == (
        "weight: float32[4, 5000] can be written to, so it is read at every call; planish.freeze makes it "
        "read-only, to be folded and packed"
    )
    planish.freeze(weight)
    g = library(lambda x: x @ weight)
    g(X)
    (program,) = g._programs.values()
    assert program.compiled.report.decisions == []


def test_arrays_made_inside_are_constants() -> None:
    graph = library(lambda x: x * np.arange(4) + np.eye(4)[1:2] + x[:, np.array([1, 0, 3, 2])]).trace(X).graph
    assert len(graph.inputs) == 1


def test_index_arrays_are_guarded_by_content() -> None:
    order, mask = np.array([2, 0, 1]), np.array([True, False, True])
    f = library(lambda x: (x[order], x[mask]))
    f(X)
    order[0] = mask[1] = 1
    np.testing.assert_array_equal(f(X)[0], X[order])
    np.testing.assert_array_equal(f(X)[1], X)
    assert f.traces == 2 and str(f.recompiles[0]) == "order: its content at capture -> other content"


def test_objects_are_guarded() -> None:
    state = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(bias=np.ones(4, np.float32)))
    f = library(lambda x: x * state.scale + state.inner.bias)
    f(X)
    state.scale = 3.0
    np.testing.assert_array_equal(f(X), X * 3 + 1)
    state.inner.bias = np.zeros(4, np.float32)
    np.testing.assert_array_equal(f(X), X * 3)
    state.inner = types.SimpleNamespace(bias=np.full(4, 2, np.float32))
    np.testing.assert_array_equal(f(X), X * 3 + 2)
    assert f.traces == 4


# --- side effects


def test_print_warns_once_and_is_restored(capsys: pytest.CaptureFixture[str]) -> None:
    original, zeros = builtins.print, np.zeros

    @library
    def f(x: Any) -> Any:
        print("tracing", x.shape)
        return x + 1

    with pytest.warns(CaptureWarning, match=r"test_jit.py:\d+: print runs once") as found:
        f(X)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(X)
    assert capsys.readouterr().out == "tracing (3, 4)\n"
    assert builtins.print is original and np.zeros is zeros


def test_lost_side_effects_warn() -> None:
    runs: list[int] = []

    @library
    def f(x: Any) -> Any:
        runs.append(1)
        return x + 1

    with pytest.warns(CaptureWarning, match=r"f \(.*test_jit.py:\d+\) changed runs while it was traced"):
        f(X)
    f(X)
    assert f.traces == 1 and runs == [1]


def test_an_error_leaves_nothing_behind() -> None:
    original = builtins.print

    @library
    def f(x: Any, fail: bool) -> Any:
        if fail:
            raise KeyError("mine")
        return np.zeros(3) + x

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            f(np.ones(3), True)
    assert builtins.print is original and f.traces == 0
    assert type(np.zeros(2)) is np.ndarray
    np.testing.assert_array_equal(f(np.ones(3), False), np.ones(3))


def test_threads() -> None:
    f = library(lambda x: np.tanh(x) + np.zeros(4))
    results: list[Any] = [None] * 8

    def work(k: int) -> None:
        for _ in range(20):
            results[k] = f(X + k)
            assert type(np.zeros(2)) is np.ndarray

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, np.tanh(X + k))
    assert f.traces == 1


def test_random_numbers_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(CaptureError, match=r"test_jit.py:\d+: np.random.rand would draw once"):
        library(lambda x: x + np.random.rand(4))(X)
    with pytest.raises(CaptureError, match="random numbers were drawn from rng"):
        library(lambda x: x + rng.random(4))(X)
    np.testing.assert_array_equal(
        library(lambda x: x + np.random.default_rng(3).random(4))(X), X + np.random.default_rng(3).random(4)
    )


# --- the native door


def test_plain_calls_go_straight_to_a_program_that_offers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    direct: list[Any] = []

    class Offering(LibraryProgram):
        def direct_call(self, missed: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arrays: Any) -> Any:
                wanted = [n.shape for n in self.captured.inputs]
                fits = [getattr(a, "shape", None) for a in arrays] == wanted
                direct.append(fits)
                return self(*arrays)[0] if fits else missed(*arrays)

            return call

    def compile_graph(graph: Any, options: Any) -> Any:
        made = planish.compiler.compile_graph(graph, options)
        return Offering(made.captured, made.options, made.report)

    monkeypatch.setattr(planish.variants.function, "compile_graph", compile_graph)
    f = library(lambda x, y: x * 2 + y * SCALE)
    for y in (X, X[:1], X, X, 2.0):
        np.testing.assert_array_equal(f(X, y), X * 2 + np.float32(SCALE) * y)
    assert f.traces == 3 and direct == [False, False, True, False]
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    np.testing.assert_array_equal(f(X, X), X * 2 + X * np.float32(5.0))
    assert f.traces == 4 and len(direct) == 4


# --- as an object


@planish.jit
def doubled(x: Any) -> Any:
    return x * 2


class Scaled:
    def __init__(self) -> None:
        self.weight = np.full(4, 3, np.float32)

    @planish.jit
    def forward(self, x: Any) -> Any:
        return x * self.weight


def shifted(x: Any, by: int) -> Any:
    return x + by


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is copy.copy(doubled) is copy.deepcopy(doubled) is doubled
    one = Scaled()
    one.forward(X)
    for twin in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        twin.weight *= 2
        np.testing.assert_array_equal(twin.forward(X), X * 6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(one.forward))(X), X * 3)
    f = library(shifted, static_argnames="by")
    for other in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        np.testing.assert_array_equal(other(X, 2), X + 2)
        assert (other.options, other.traces, f.traces) == (f.options, 1, 0)
    assert copy.deepcopy(library(lambda x: x + 1))(X).shape == X.shape


def test_what_it_is_called() -> None:
    assert re.fullmatch(r"<jit of doubled \(.*test_jit.py:\d+\)>", repr(doubled))
    lowered = doubled.lower(X)
    assert repr(lowered) == "<Lowered doubled(x: f32[3, 4]) -> (f32[3, 4])>"
    assert repr(lowered.compile()) == "<NativeCompiled doubled(x: f32[3, 4]) -> (f32[3, 4])>"
    with pytest.raises(TypeError, match=r"doubled\(\) missing a required argument: 'x'"):
        doubled()
    with pytest.raises(TypeError, match=r"doubled\(\) too many positional arguments"):
        doubled(X, X)


def test_arguments_that_are_no_arrays_of_ours_are_named() -> None:
    f = library(lambda x, y: x)
    with pytest.raises(UnsupportedDType, match=r"argument y\[0\]: dtype complex64 is not supported"):
        f(X, [X.astype(np.complex64)])
    with pytest.raises(SignatureError, match=r"y is neither an array.*MaskedArray.*np\.asarray"):
        f(X, np.ma.masked_array(X, X > 0))


def test_freeze_takes_arrays_only() -> None:
    params = {"w": np.ones(3), "name": "layer", "sizes": [1, 2.0, None]}
    assert planish.freeze(params) is params and not params["w"].flags.writeable  # type: ignore[union-attr]
    one, array = Scaled(), np.ones(3)
    with pytest.raises(TypeError, match=r"not Scaled; give it the object's arrays, such as vars\(model\)"):
        planish.freeze(array, one)
    assert array.flags.writeable and one.weight.flags.writeable


def test_one_name_to_disable() -> None:
    assert planish.jit(doubled.function, disable="fuse").options.disable == {"fuse"}


def test_public_names_are_what_dir_shows() -> None:
    assert {n for n in dir(planish) if not n.startswith("_")} == set(planish.__all__) - {"__version__"}


# --- numbers and shapes


def test_a_number_among_keys_becomes_static() -> None:
    table = {3: 5.0}
    cached = lru_cache(lambda n: n * 2)
    f = library(lambda x, n: x * table[n] + cached(n))
    np.testing.assert_array_equal(f(X, 3), X * 5 + 6)
    with pytest.raises(TypeError, match=r"unhashable type: 'numpy\.ndarray'"):
        library(lambda x: {x: 1})(X)


def test_a_shape_is_set_and_membership_refused() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        y.shape = (4, -1)
        y[0, 1] = 9
        return y

    np.testing.assert_array_equal(library(f)(X), f(X))
    for transposed in (lambda x: setattr(x.T, "shape", 12), library(lambda x: setattr(x.T, "shape", 12))):
        with pytest.raises(AttributeError, match="Incompatible shape for in-place modification"):
            transposed(X)
    with pytest.raises(CaptureError, match="its truth"):
        library(lambda x: x if 3.0 in x else -x)(X)
