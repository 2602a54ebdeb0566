"""How often a function is compiled, and what is shared: sizes, numbers, instances, marks, modes, weights."""

from __future__ import annotations

import gc
import resource
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")
from planish.torch import watch  # noqa: E402
from planish.torch.weights import WithWeights  # noqa: E402

nn, F = torch.nn, torch.nn.functional

ENTRIES: dict[str, Callable[..., Any]] = {
    "planish.compile": planish.compile,
    "torch.compile": lambda function, **options: torch.compile(function, backend="planish", **options),
}
INSTANCES = 64  # of one module class

entries = pytest.mark.parametrize("entry", ENTRIES)


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        b, s, w = x.shape
        parts = self.qkv(self.norm(x)).reshape(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts)
        return x + self.out(mixed.transpose(1, 2).reshape(b, s, w))


class Scaled(nn.Module):
    def forward(self, x: Any, rate: float, power: float = 2.0) -> Any:
        return x.pow(power) * rate


def compiles(entry: str, function: Any, calls: list[tuple[Any, ...]], **options: Any) -> int:
    """How often Dynamo called planish for these calls, which are all as eager's, in what is as a new process:
    `torch.compiler.reset()` takes away what hears Dynamo, a compile puts it back."""
    watch.listen()
    compiled = ENTRIES[entry](function, **options)
    counted = []
    original = watch.on_compile
    watch.on_compile = lambda: counted.append(1) or original()  # type: ignore[func-returns-value]
    try:
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-4, atol=1e-5)
    finally:
        watch.on_compile = original
    return len(counted)


# name: (function, calls, most compiles)
CASES: dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]], dict[str, int]]] = {
    "lengths": (lambda: Block().eval(), lambda n: (torch.randn(2, 3 + n, 8),), {}),
    "an int": (lambda: lambda x, n: x * n + n, lambda n: (torch.randn(3), n), {}),
    "an int in an index": (lambda: lambda x, n: x[n:] * 2, lambda n: (torch.randn(24, 2), n), {}),
    "an int that a size follows from": (
        lambda: lambda x, n: x.repeat(n + 1), lambda n: (torch.randn(3), n), {},
    ),
    "ints below 0 that a size follows from": (
        lambda: lambda x, n: x.repeat(n + 4),
        lambda n: (torch.randn(3), n % 4 - 2),
        {"planish.compile": 3, "torch.compile": 3},
    ),
    "a learning rate": (
        lambda: lambda p, g, rate: p - rate * g,
        lambda n: (torch.randn(3), torch.randn(3), 0.1 * 0.9**n),
        {"planish.compile": 1, "torch.compile": 1},
    ),
    "a rate of a module's call": (
        lambda: Scaled(),
        lambda n: (torch.randn(3), 0.1 * 0.9**n),
        {"planish.compile": 1, "torch.compile": 1},
    ),
    "a size that is not used": (
        lambda: lambda x, unused: x * 2,
        lambda n: (torch.randn(3), torch.randn(n + 2, 3)),
        {"planish.compile": 1, "torch.compile": 1},
    ),
}


@entries
@pytest.mark.parametrize("name", CASES)
def test_compiles(name: str, entry: str) -> None:
    make, arguments, most = CASES[name]
    with torch.no_grad():
        calls = [arguments(n) for n in range(20 if name == "lengths" else 10)]
        assert compiles(entry, make(), calls) <= most.get(entry, 2)


@entries
def test_dynamic_from_the_first_call(entry: str) -> None:
    def rows(x: Any) -> Any:
        return torch.softmax(x, -1) * 2

    with torch.no_grad():
        calls = [(torch.randn(n, 6),) for n in (4, 7, 9)]
        assert compiles(entry, rows, calls, dynamic=True) == 1
        torch.compiler.reset()
        assert compiles(entry, rows, calls, dynamic=False) == 3
        torch.compiler.reset()
        for (x,) in calls:
            torch._dynamo.mark_dynamic(x, 0)
        assert compiles(entry, rows, calls) == 1


@entries
def test_floats_stay_constants_where_nothing_is_dynamic(entry: str) -> None:
    calls = [(torch.randn(3), rate) for rate in (0.5, 0.25, 0.125)]
    assert compiles(entry, lambda x, rate: x * rate, calls, dynamic=False) == 3


@entries
def test_instances_share_code(entry: str, monkeypatch: Any) -> None:
    made: list[Any] = []
    original = WithWeights.compiled
    monkeypatch.setattr(WithWeights, "compiled", lambda self, a: made.append(self) or original(self, a))
    modules = [Block().eval() for _ in range(INSTANCES)]
    compiled = [ENTRIES[entry](m) for m in modules]
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        for _ in range(2):
            for mine, its in zip(compiled, modules):
                torch.testing.assert_close(mine(x), its(x), rtol=1e-4, atol=1e-5)
        assert len(made) == INSTANCES and len(set(map(id, made))) == 1
        shared = made[0]
        codes = {id(p.program.compiled.program._core.code) for p in shared.packed.values()}
        assert len(shared.packed) == INSTANCES and len(codes) == 1
        del mine, its, modules[2:], compiled[2:]
        gc.collect()
        assert len(shared.packed) == 2  # what belonged to a module went with it
        torch.testing.assert_close(compiled[0](x), modules[0](x), rtol=1e-4, atol=1e-5)
        assert len(made) == INSTANCES


@entries
def test_weights_are_packed_again_then_arguments(entry: str, monkeypatch: Any) -> None:
    made: list[Any] = []
    original = WithWeights.compiled
    monkeypatch.setattr(WithWeights, "compiled", lambda self, a: made.append(self) or original(self, a))
    module, x = nn.Linear(8, 8), torch.randn(3, 8)
    compiled = ENTRIES[entry](module)
    with torch.no_grad():
        for _ in range(12):
            torch.testing.assert_close(compiled(x), module(x))
            torch.testing.assert_close(compiled(x), module(x))
            module.weight.mul_(1.1)
    assert len(made) == 5 and made[0].general is not None
    module.weight = nn.Parameter(torch.randn(8, 8))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))


def test_weights_are_there_twice_at_most() -> None:
    """The original and the panels packed of it: no third copy."""
    module = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).eval()
    weights = sum(p.nbytes for p in module.parameters())
    compiled, x = planish.compile(module), torch.randn(4, 1024)
    with torch.no_grad():
        planish.compile(lambda x: x + 1)(x)  # torch's and our own machinery is loaded
        before = _resident()
        for _ in range(3):
            compiled(x)
        gc.collect()
        assert _resident() - before < 1.7 * weights


def _resident() -> int:
    """Bytes of memory in use now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@entries
def test_modes_are_taken(entry: str) -> None:
    x = torch.randn(3)
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        compiled = ENTRIES[entry](lambda x: x + 1, mode=mode)
        torch.testing.assert_close(compiled(x), x + 1)


def test_reset_frees() -> None:
    module, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    compiled = planish.compile(module)
    made: list[Any] = []
    original = WithWeights.__init__
    try:
        WithWeights.__init__ = lambda self, *a: made.append(weakref.ref(self)) or original(self, *a)
        with torch.no_grad():
            for _ in range(3):
                compiled(x)
            torch.compiler.reset()
            compiled(x)
            gc.collect()
    finally:
        WithWeights.__init__ = original
    assert len(made) == 2 and made[0]() is None and made[1]() is not None
