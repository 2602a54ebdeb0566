"""While Dynamo captures for planish Python's collector is off, and on again after, whatever happens; the
native runtime starts meanwhile."""

from __future__ import annotations

import gc
import threading

import pytest

torch = pytest.importorskip("torch")

import planish  # noqa: E402
from planish.errors import LinkError  # noqa: E402
from planish.torch import around, dynamo  # noqa: E402


@pytest.fixture
def seen(monkeypatch):
    """Whether the collector was on when planish was given a graph."""
    found = []
    capture = dynamo.capture_light

    def watched(module):
        found.append(gc.isenabled())
        return capture(module)

    monkeypatch.setattr(dynamo, "capture_light", watched)
    torch.compiler.reset()
    assert gc.isenabled()
    yield found
    assert gc.isenabled()


def f(x):
    return torch.sin(x) + 1


def test_off_while_a_capture_is_for_planish(seen):
    x = torch.rand(4)
    torch.testing.assert_close(planish.compile(f)(x), f(x))
    assert gc.isenabled()
    torch.compiler.reset()  # forgets what hears Dynamo
    torch.testing.assert_close(planish.compile(lambda x: torch.cos(x))(x), torch.cos(x))
    assert seen == [False, False] and gc.get_freeze_count() == 0


def test_left_alone_where_it_was_off_or_is_another_backends(seen):
    x = torch.rand(4)
    planish.compile(f)(x)
    others = []

    def other(module, inputs):
        others.append(gc.isenabled())
        return module.forward

    torch.compile(lambda x: x * 2, backend=other)(x)
    gc.disable()
    try:
        planish.compile(lambda x: x * 3)(x)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False, False] and others == [True]


def test_on_after_a_capture_that_fails(seen):
    def wrong(x):
        return x @ torch.ones(7, 7)

    with pytest.raises(RuntimeError):
        planish.compile(wrong)(torch.rand(4, 4))
    assert gc.isenabled()


@pytest.mark.parametrize("fails", [False, True])
def test_the_runtime_starts_meanwhile(monkeypatch, fails):
    started = []

    def start():
        started.append(threading.current_thread().name)
        if fails:
            raise LinkError("told when it is needed")

    monkeypatch.setattr(around, "running", lambda: None)
    monkeypatch.setattr(around, "runtime", start)
    x = torch.rand(4)
    torch.testing.assert_close(planish.compile(lambda x: x * 5)(x), x * 5)
    for thread in threading.enumerate():
        if thread.name == "planish starts":
            thread.join()
    assert started == ["planish starts"]
