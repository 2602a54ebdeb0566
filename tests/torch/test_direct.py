"""The short way into functions of planish.compile: what it takes, and what it leaves to torch.compile."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")
from planish.torch import direct  # noqa: E402

nn = torch.nn
SCALE = 2.0


@pytest.fixture
def slow(monkeypatch: Any) -> list[Any]:
    """The calls that went to torch.compile."""
    calls: list[Any] = []
    original = direct.Direct.slow

    def counted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(direct.Direct, "slow", counted)
    return calls


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def mixed(a: Any, b: Any, c: Any, d: Any) -> Any:
    return torch.relu(a + b) * c + d


def four(shape: tuple[int, ...] = (4, 6)) -> list[Any]:
    return [torch.randn(shape) for _ in range(4)]


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected)
    assert type(got) is type(expected) and got.stride() == expected.stride()
    assert got.requires_grad == expected.requires_grad and got.is_inference() == expected.is_inference()


def test_tensors_take_the_quick_way(slow: Any) -> None:
    compiled = planish.compile(mixed)
    for _ in range(4):
        arguments = four()
        same(compiled(*arguments), mixed(*arguments))
    assert len(slow) == 1 and compiled.__name__ == "mixed"


def test_results_are_new_tensors(no_grad: None) -> None:
    compiled, arguments = planish.compile(mixed), four((300, 400))
    first = compiled(*arguments)
    kept = first.clone()
    second = compiled(*[a + 1 for a in arguments])
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()
    del first, second
    pointers = {compiled(*arguments).data_ptr() for _ in range(10)}
    assert len(pointers) == 1  # the pool's block comes back when the tensor dies


def with_subclass(tensors: list[Any]) -> list[Any]:
    class Own(torch.Tensor):
        pass

    return [t.as_subclass(Own) for t in tensors]


OTHERS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "another shape": lambda ts: [t[:2].clone() for t in ts],
    "another dtype": lambda ts: [t.double() for t in ts],
    "other strides": lambda ts: [t.t().contiguous().t() for t in ts],
    "one slice": lambda ts: [*ts[:3], torch.randn(4, 12)[:, ::2]],
    "expanded": lambda ts: [*ts[:3], torch.randn(6).expand(4, 6)],
    "a gradient": lambda ts: [*ts[:3], ts[3].requires_grad_()],
    "a parameter": lambda ts: [nn.Parameter(ts[0]), *ts[1:]],
    "a lazy negative": lambda ts: [torch._neg_view(ts[0]), *ts[1:]],
    "an imaginary part": lambda ts: [torch.randn(4, 6, dtype=torch.complex64).conj().imag, *ts[1:]],
    "one tensor twice": lambda ts: [ts[0], ts[0], *ts[2:]],
    "an integer": lambda ts: [*ts[:3], 3],
    "a subclass": with_subclass,
    "marked dynamic": lambda ts: [torch._dynamo.mark_dynamic(t, 0) or t for t in ts],
    "zeros without memory": lambda ts: [*ts[:3], torch._efficientzerotensor((4, 6))],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments(name: str, slow: Any) -> None:
    compiled = planish.compile(mixed)
    compiled(*four())
    arguments = OTHERS[name](four())
    for _ in range(2):
        same(compiled(*arguments), mixed(*arguments))
    assert len(slow) >= 2
    plain = four()
    same(compiled(*plain), mixed(*plain))


def test_gradients_go_on() -> None:
    compiled, arguments = planish.compile(mixed), four()
    compiled(*arguments)
    leaves = [a.clone().requires_grad_() for a in arguments]
    others = [a.clone().requires_grad_() for a in arguments]
    for _ in range(2):
        compiled(*leaves).sum().backward()
        mixed(*others).sum().backward()
    for a, b in zip(leaves, others):
        same(a.grad, b.grad)
    with torch.no_grad():
        assert not compiled(*leaves).requires_grad


# --- the state of torch


def product(a: Any, b: Any) -> Any:
    return a @ b


def test_autocast(slow: Any) -> None:
    compiled, a, b = planish.compile(product), torch.randn(4, 4), torch.randn(4, 4)
    compiled(a, b)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert compiled(a, b).dtype is product(a, b).dtype is torch.bfloat16
        assert compiled(a, b).dtype is torch.float32


def test_inference_mode_and_grad_mode() -> None:
    compiled, arguments = planish.compile(mixed), four()
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            same(compiled(*arguments), mixed(*arguments))


def test_transforms() -> None:
    def of_rows(x: Any, y: Any) -> Any:
        return torch.sin(x) * y

    compiled, x, y = planish.compile(of_rows), torch.randn(3, 5), torch.randn(3, 5)
    compiled(x, y)
    compiled(x[0], y[0])
    same(torch.vmap(compiled)(x, y), of_rows(x, y))
    slope = torch.func.grad(lambda v: compiled(v, y[0]).sum())(x[0])
    same(slope, torch.func.grad(lambda v: of_rows(v, y[0]).sum())(x[0]))


def test_modes_of_dispatch_and_of_functions() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return function(*args, **(kwargs or {}))

    compiled, arguments = planish.compile(mixed), four()
    compiled(*arguments)
    with Functions():
        same(compiled(*arguments), mixed(*arguments))
    with Dispatch() as mode:
        same(compiled(*arguments), mixed(*arguments))
        assert mode.seen


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    compiled, arguments = planish.compile(mixed), four()
    compiled(*arguments)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(a) for a in arguments]
        assert compiled(*fake).shape == (4, 6)


def test_default_dtype_and_device(slow: Any) -> None:
    def made(a: Any) -> Any:
        return a.new_zeros(3) + torch.ones(3)

    compiled, a = planish.compile(made), torch.randn(3)
    compiled(a)
    torch.set_default_dtype(torch.float64)
    try:
        same(compiled(a), made(a))
    finally:
        torch.set_default_dtype(torch.float32)
    same(compiled(a), made(a))


def test_stances_and_reset(slow: Any) -> None:
    seen: list[int] = []

    def traced(a: Any) -> Any:
        if not torch.compiler.is_compiling():
            seen.append(1)
        return a + 1

    compiled, a = planish.compile(traced), torch.randn(3)
    compiled(a)
    compiled(a)
    assert not seen and len(slow) == 1
    with torch.compiler.set_stance("force_eager"):
        same(compiled(a), a + 1)
    assert seen == [1] and len(slow) == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        same(compiled(a), a + 1)
        with pytest.raises(RuntimeError, match="recompile"):
            compiled(torch.randn(3, 3))
    torch.compiler.reset()
    before = len(slow)
    for _ in range(3):
        same(compiled(a), a + 1)
    assert len(slow) == before + 1


# --- what a function reads


def test_globals() -> None:
    global SCALE

    def scaled(a: Any) -> Any:
        return a * SCALE

    compiled, a = planish.compile(scaled), torch.randn(3)
    for value in (2.0, 2.0, 3.0, 2.0, 5.0):
        SCALE = value
        same(compiled(a), scaled(a))
    SCALE = 2.0


def test_functions_of_modules_that_change(monkeypatch: Any) -> None:
    compiled, arguments = planish.compile(mixed), four()
    compiled(*arguments)
    same(compiled(*arguments), mixed(*arguments))
    monkeypatch.setattr(torch, "relu", torch.sigmoid)
    same(compiled(*arguments), mixed(*arguments))


def test_closures() -> None:
    def outer() -> tuple[Any, Any]:
        factor, shift = 2.0, torch.ones(3)

        def inner(a: Any) -> Any:
            return a * factor + shift

        def change(new: float) -> None:
            nonlocal factor, shift
            factor, shift = new, shift + new

        return inner, change

    inner, change = outer()
    compiled, a = planish.compile(inner), torch.randn(3)
    for new in (1.0, 1.0, 4.0, -1.0):
        same(compiled(a), inner(a))
        change(new)


def test_defaults_keywords_and_names() -> None:
    def odd(a: Any, /, b: Any = 2.0, *rest: Any, call: Any = 1.0, **named: Any) -> Any:
        return a * b + sum(rest) + call + named.get("slow", 0)

    compiled, a, b = planish.compile(odd), torch.randn(3), torch.randn(3)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((a,), {}), ((a, b), {}), ((a, b, a), {}), ((a,), {"call": b}), ((a,), {"slow": b}),
        ((a,), {"b": b, "slow": a, "other": 1}),
    ]
    for _ in range(2):
        for args, named in calls:
            same(compiled(*args, **named), odd(*args, **named))
    for wrong in ({}, {"a": a}):
        with pytest.raises(TypeError):
            compiled(**wrong)


def test_attributes_and_methods() -> None:
    class Holder:
        def __init__(self) -> None:
            self.factor, self.on = 2.0, True

        def scale(self, a: Any) -> Any:
            return a * self.factor if self.on else a

    holder, a = Holder(), torch.randn(3)
    compiled = planish.compile(holder.scale)
    for change in ({}, {"factor": 3.0}, {"on": False}, {"on": True}):
        vars(holder).update(change)
        for _ in range(2):
            same(compiled(a), holder.scale(a))


# --- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.0)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        return self.drop(self.norm(self.linear(x)))


@pytest.mark.parametrize("make", [Net, lambda: nn.Sequential(Net(), nn.ReLU())], ids=["own", "torch's"])
def test_modules(make: Any, slow: Any) -> None:
    module = make().eval()
    compiled, x = planish.compile(module), torch.randn(4, 6)
    assert isinstance(compiled, nn.Module) and list(compiled.state_dict()) == [
        f"_orig_mod.{key}" for key in module.state_dict()
    ]
    with torch.no_grad():
        for _ in range(3):
            same(compiled(x), module(x))
        assert len(slow) == 1
        for parameter in module.parameters():
            parameter.mul_(2.0)
        same(compiled(x), module(x))
        module.load_state_dict({k: torch.randn_like(v) if v.dtype.is_floating_point else v
                                for k, v in make().state_dict().items()})
        for buffer in module.buffers():
            if buffer.dtype.is_floating_point:
                buffer.abs_()
        for _ in range(2):
            same(compiled(x), module(x))
    same(compiled(x), module(x))
    other = copy.deepcopy(module).train()
    compiled.train()
    assert module.training
    for _ in range(3):
        same(compiled(x), other(x))
    for mine, its in zip(module.buffers(), other.buffers()):
        same(mine, its)
    compiled.eval()
    other.eval()
    same(compiled(x), other(x))
    same(copy.deepcopy(compiled)(x), other(x))


def test_parts_of_modules_that_change() -> None:
    module, x = Net().eval(), torch.randn(4, 6)
    compiled = planish.compile(module)
    with torch.no_grad():
        for _ in range(2):
            compiled(x)
        module.linear = nn.Linear(6, 6)
        same(compiled(x), module(x))
        module.linear.weight = nn.Parameter(torch.randn(6, 6))
        same(compiled(x), module(x))
        seen: list[int] = []
        handle = module.register_forward_hook(lambda m, args, out: seen.append(1))
        compiled(x)
        assert seen == [1]
        handle.remove()
        module.forward = lambda x: x * 3
        same(compiled(x), x * 3)
        del module.forward
        same(compiled(x), module(x))
        module.to(torch.float64)
        same(compiled(x.double()), module(x.double()))


def test_compiled_inside_compiled(slow: Any) -> None:
    inner = planish.compile(mixed)
    arguments = four()
    inner(*arguments)
    inner(*arguments)

    def outer(*tensors: Any) -> Any:
        return inner(*tensors) * 2

    for compiler in (planish.compile, lambda f: torch.compile(f, backend="planish")):
        compiled = compiler(outer)
        for _ in range(2):
            same(compiled(*arguments), mixed(*arguments) * 2)

    def broken(*tensors: Any) -> Any:
        torch._dynamo.graph_break()
        return inner(*tensors) * 2

    compiled = planish.compile(broken)
    for _ in range(2):
        same(compiled(*arguments), mixed(*arguments) * 2)


def test_graph_breaks_stay_with_dynamo(slow: Any) -> None:
    def branching(x: Any) -> Any:
        y = x * 2
        return y.sin() if y.sum() > 0 else y.cos()

    compiled = planish.compile(branching)
    for sign in (1, -1, 1, -1):
        x = sign * torch.rand(5)
        same(compiled(x), branching(x))
    assert len(slow) == 4


def test_variants_are_looked_for_only_after_a_compile(slow: Any, monkeypatch: Any) -> None:
    adopted: list[Any] = []
    adopt = direct.Direct.adopt
    monkeypatch.setattr(direct.Direct, "adopt", lambda self, a: (adopted.append(self), adopt(self, a)))

    def cut(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin()

    one, other = planish.compile(mixed), planish.compile(mixed)
    broken, x = planish.compile(cut), torch.rand(5)
    for _ in range(4):
        same(broken(x), cut(x))
    assert len(slow) == 4 and len(adopted) == 1
    one(*four())
    other(*four((2, 3)))  # compiles a second variant of the code that both share
    first = len(slow)
    for _ in range(3):
        arguments = four((3, 5))
        same(one(*arguments), mixed(*arguments))
    assert len(slow) == first + 1


def test_nothing_is_kept() -> None:
    compiled = planish.compile(lambda a, b: a * b + 1)
    a, b = torch.randn(3), torch.randn(3)
    for _ in range(3):
        result = compiled(a, b)
    watched = [weakref.ref(t) for t in (a, b, result)]
    del a, b, result
    gc.collect()
    assert not any(w() is not None for w in watched)


def test_a_compiled_module_dies() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    compiled = planish.compile(module)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
    watched = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert watched() is None
