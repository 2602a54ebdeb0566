"""What a function reads from outside: whatever changes there between calls, its answer is NumPy's."""

from __future__ import annotations

import functools
import random
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planish
from planish.errors import CaptureError, CaptureWarning

X = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)


def library(function: Any) -> Any:
    return planish.jit(function, strategy="library")


def expect(function: Any, *changes: Callable[[], Any], args: tuple[Any, ...] = ()) -> Any:
    """`function` compiled gives what it gives itself, before any change and after each; and each is noticed
    once."""
    f = library(function)
    for count, change in enumerate([lambda: None, *changes], 1):
        change()
        for _ in range(2):
            np.testing.assert_allclose(f(X, *args), function(X, *args), rtol=1e-6)
        assert f.traces == count
    return f


class Base:
    rate = 2.0
    table = [1.0]  # noqa: RUF012 (changed below)

    def help(self, x: Any) -> Any:
        return x * 2

    @classmethod
    def make(cls, x: Any) -> Any:
        return x * cls.rate + cls.table[0]


class Layer(Base):
    def __init__(self, scale: float = 1.0):
        self._scale = scale
        self.weight = np.full(4, scale, np.float32)

    @property
    def scale(self) -> float:
        return self._scale

    def __call__(self, x: Any) -> Any:
        return self.help(x) * self.weight * self.scale * self.rate


class Slotted:
    __slots__ = ("rate",)


class Table:
    def __init__(self) -> None:
        self.rows = [1.0, 2.0]

    def __getitem__(self, place: int) -> float:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)


class Net:
    def __init__(self) -> None:
        self.layers = [Layer(1.0), Layer(3.0)]
        self.act = "relu"

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return np.maximum(x, 0) if self.act == "relu" else x


def test_attributes_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer()
    expect(
        layer,
        lambda: monkeypatch.setattr(Base, "rate", 3.0),
        lambda: monkeypatch.setattr(Layer, "rate", 5.0, raising=False),
        lambda: setattr(layer, "rate", 7.0),
        lambda: delattr(layer, "rate"),
        lambda: setattr(layer, "_scale", 4.0),                               # read by a property
        lambda: monkeypatch.setattr(Layer, "help", lambda self, x: x * 3, raising=False),
        lambda: setattr(layer, "help", lambda x: x * 4),
    )
    expect(Layer.make, lambda: Base.table.__setitem__(0, 9.0))
    expect(lambda x: x * Base.rate, lambda: monkeypatch.setattr(Base, "rate", 4.0))


def test_modules_of_a_network() -> None:
    net = Net()
    expect(
        net,
        lambda: setattr(net.layers[1], "weight", np.full(4, -2, np.float32)),
        lambda: setattr(net, "act", "none"),
        lambda: setattr(net.layers[0], "_scale", 6.0),
        lambda: net.layers.append(Layer(0.5)),
    )


def test_weights_of_two_modules_are_two_inputs() -> None:
    net = Net()
    f = library(net)
    f(X)
    net.layers[1].weight *= 5
    np.testing.assert_allclose(f(X), net(X), rtol=1e-6)
    assert f.traces == 1
    names = [n.attributes.name for n in f.trace(X).graph.inputs]
    assert names == ["x", "self.layers[0].weight", "self.layers[1].weight"]


def test_objects_without_a_dict_and_with_items() -> None:
    slotted, table = Slotted(), Table()
    slotted.rate = 2.0
    expect(lambda x: x * slotted.rate, lambda: setattr(slotted, "rate", 3.0))
    expect(lambda x: x * table[0] + len(table), lambda: table.rows.append(1.0),
           lambda: table.rows.__setitem__(0, 7.0))


def test_containers_of_every_kind() -> None:
    ordered, default = OrderedDict(k=1.0), defaultdict(float, k=1.0)
    queue, several = deque([1.0, 2.0]), {1, 2}
    expect(
        lambda x: x * ordered["k"] + default["k"] + queue[0] + len(several),
        lambda: ordered.update(k=2.0),
        lambda: default.update(k=3.0),
        lambda: queue.appendleft(4.0),
        lambda: several.add(5),
    )


def test_objects_at_any_depth() -> None:
    root = leaf = types.SimpleNamespace(value=1.0)
    for _ in range(7):
        root = types.SimpleNamespace(next=root)
    expect(lambda x: x * root.next.next.next.next.next.next.next.value, lambda: setattr(leaf, "value", 2.0))


CONFIG = types.SimpleNamespace(a=1.0, b=2.0, inner=types.SimpleNamespace(a=1.0, b=2.0))


def reads_b(x: Any, shift: Any = [0.0]) -> Any:  # noqa: B006 (changed below)
    return x * CONFIG.b + CONFIG.inner.b + shift[0]


def test_one_object_read_by_two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = reads_b.__defaults__
    assert defaults is not None
    expect(
        lambda x: reads_b(x) + CONFIG.a * CONFIG.inner.a,
        lambda: monkeypatch.setattr(CONFIG, "b", 3.0),
        lambda: monkeypatch.setattr(CONFIG.inner, "b", 4.0),
        lambda: monkeypatch.setattr(CONFIG, "a", 5.0),
        lambda: defaults[0].__setitem__(0, 6.0),
    )


def test_functions_around_functions() -> None:
    outer, inner, given = [1.0], [2.0], [3.0]

    def scaled(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(x: Any) -> Any:
            return function(x) * outer[0]
        return wrapper

    @scaled
    def f(x: Any) -> Any:
        return x + inner[0]

    part = functools.partial(lambda k, x: x * k[0], given)
    expect(lambda x: f(x) + part(x), lambda: outer.__setitem__(0, 4.0), lambda: inner.__setitem__(0, 5.0),
           lambda: given.__setitem__(0, 6.0))
    expect(part, lambda: given.__setitem__(0, 7.0))
    f.rate = 2.0
    expect(lambda x: f(x) * f.rate, lambda: setattr(f, "rate", 3.0))


def test_functions_and_objects_among_the_arguments() -> None:
    inner, layer = [1.0], Layer()
    expect(lambda x, function: function(x), lambda: inner.__setitem__(0, 2.0), args=(lambda x: x * inner[0],))
    expect(lambda x, function: function(x), lambda: setattr(layer, "_scale", 2.0), args=(layer.__call__,))
    expect(lambda x, one: one.scale * x, lambda: setattr(layer, "_scale", 3.0), args=(layer,))


def test_names_in_strings_and_imports_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.ModuleType("settings_of_a_test")
    vars(settings)["rate"] = 2.0
    monkeypatch.setitem(__import__("sys").modules, "settings_of_a_test", settings)

    def f(x: Any) -> Any:
        import settings_of_a_test
        return x * getattr(settings_of_a_test, "rate") + vars(CONFIG)["a"]  # noqa: B009

    expect(f, lambda: setattr(settings, "rate", 3.0), lambda: monkeypatch.setattr(CONFIG, "a", 8.0))


@pytest.mark.parametrize("function", [
    lambda x, a: x * int(a[0]),
    lambda x, a: x * a.sum(),
    lambda x, a: x * (a + 1)[0],
    lambda x, a: x[: a[1]],
    lambda x, a: x * 2 if a[0] > 1 else x * 3,
    lambda x, a: x * sum(v for v in a.tolist()),
    lambda x, a: x * (a.reshape(3, 1) * 2).T[0, 2],
], ids=["int", "sum", "plus", "slice", "if", "tolist", "views"])
def test_what_numpy_computes_from_an_array_outside(function: Any) -> None:
    array = np.array([1, 2, 3])
    f = expect(lambda x: function(x, array), lambda: array.__setitem__(slice(None), (2, 1, 5)))
    assert str(f.recompiles[0]) == "array: its content at capture -> other content"


def test_contents_that_simple_checksums_confuse() -> None:
    order = np.array([1, 0, 1])
    expect(lambda x: x[order], lambda: order.__setitem__(slice(None), (0, 2, 0)))


def test_a_plain_array_written_to_while_traced_warns() -> None:
    calls = np.zeros(1)

    def f(x: Any) -> Any:
        calls[0] += 1
        return x + 1

    with pytest.warns(CaptureWarning, match="changed calls while it was traced"):
        library(f)(X)


def test_random_numbers_of_python_are_refused() -> None:
    generator, state = random.Random(1), random.getstate()
    for draw in (lambda x: x * random.random(), lambda x: x * generator.random()):
        with pytest.raises(CaptureError, match=r"test_outside.py:\d+: .*random.* Draw outside|draw outside"):
            library(draw)(X)
    assert random.getstate() == state
    legacy = np.random.RandomState(1)
    with pytest.raises(CaptureError, match="random numbers were drawn from legacy"):
        library(lambda x: x * legacy.rand())(X)


def test_large_arrays_that_numpy_reads_are_worth_freezing() -> None:
    table = np.ones(1 << 14, np.float32)
    f = library(lambda x: x * table.sum())
    f(X)
    told = next(iter(f._programs.values())).compiled.report.decisions
    assert any("table: float32[16384] is read by NumPy itself" in line for line in told)
    planish.freeze(table)
    g = library(lambda x: x * table.sum())
    g(X)
    assert not next(iter(g._programs.values())).compiled.report.decisions
    table.flags.writeable = True
    table[0] = 2
    np.testing.assert_array_equal(g(X), X * table.sum())
