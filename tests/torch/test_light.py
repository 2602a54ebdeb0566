"""Which road a graph takes to its ATen calls, and that both give what eager gives."""

from __future__ import annotations

from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch")

from planish.torch.watch import watching  # noqa: E402


def captured(function: Any, *arguments: Any) -> tuple[Any, list[str]]:
    """What the compiled function gives, and for each of its graphs why AOTAutograd captured it."""
    torch._dynamo.reset()
    with watching() as watch:
        result = planish.compile(function)(*arguments)
    return result, [graph.full_capture for graph in watch.graphs.values()]


def held(function: Any, *arguments: Any) -> list[str]:
    """The reasons, where results and arguments afterwards are eager's."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    want = function(*copies)
    got, reasons = captured(function, *arguments)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(arguments, tuple(copies))
    return reasons


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.heads = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x: Any) -> Any:
        y = torch.nn.functional.gelu(self.norm(self.inner(x) + self.shift))
        z, _ = self.heads(y, y, y, need_weights=False)
        return torch.dropout(z, 0.1, self.training).transpose(1, 2), y.split(4, -1)[1] * 2


LIGHT = {
    "pointwise": lambda x: (x.sin() + 1).relu() / 3,
    "views of what was computed": lambda x: (x * 2).t()[1:],
    "a number made inside": lambda x: x + torch.tensor(2.5),
    "several results": lambda x: torch.topk(x, 2),
    "a list of results": lambda x: x.unbind(0)[1] + 1,
    "decomposed": lambda x: torch.nn.functional.huber_loss(x, x + 1, reduction="none"),
    "no result": lambda x: (x.exp(), None),
    "created": lambda x: x + torch.arange(x.shape[1]) + torch.ones_like(x),
    "an argument passed on": lambda x: (x, x + 1),
    "one result twice": lambda x: [x.exp()] * 2,
    "half": lambda x: x.bfloat16() @ x.t().bfloat16(),
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_capture(name: str) -> None:
    assert held(LIGHT[name], torch.randn(4, 6)) == [""]


def test_a_module_in_inference() -> None:
    block = Block().eval()
    with torch.no_grad():
        assert held(block, torch.randn(2, 5, 8)) == [""]


def test_open_sizes_and_numbers() -> None:
    """Results of open size are AOTAutograd's to mark; what is reduced away is not."""

    def f(x: Any, n: int) -> Any:
        return (x.reshape(-1, 2) * n + x.shape[0]).sum(), torch.zeros(3) + n

    torch._dynamo.reset()
    compiled = planish.compile(f, dynamic=True)
    with watching() as watch:
        for size, n in ((4, 3), (6, 5), (10, -2)):
            x = torch.randn(size, 3)
            torch.testing.assert_close(compiled(x, n), f(x, n))
    assert next(iter(watch.graphs.values())).full_capture == ""


def in_place(x: Any) -> Any:
    return x.add_(1) * 2


def with_autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def batch_norm(x: Any) -> Any:
    mean, variance = torch.zeros(6), torch.ones(6)
    return torch.nn.functional.batch_norm(x, mean, variance, training=True), mean


def writing(x: Any) -> Any:
    y = x * 2
    y[0] = 1
    return y


FULL = {
    "an argument is written": (in_place, "writes in place"),
    "what was computed is written": (writing, "writes in place"),
    "statistics are written": (batch_norm, "writes in place"),
    "a view of an argument": (lambda x: x.t(), "shares memory"),
    "two views of one": (lambda x: (x + 1).split(2), "shares memory"),
    "autocast": (with_autocast, "changes how torch calls"),
    "a graph inside": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
        "get_attr",
    ),
    "vmap": (lambda x: torch.vmap(torch.sum)(x), "changes how torch calls"),
    "an error that is checked": (lambda x: torch.linalg.inv(x @ x.t()), "only does something"),
}


@pytest.mark.parametrize("name", FULL)
def test_a_full_capture_says_why(name: str) -> None:
    function, reason = FULL[name]
    reasons = held(function, torch.randn(4, 6))
    assert len(reasons) == 1 and reason in reasons[0]


def test_gradients_are_for_autograd() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    result, reasons = captured(lambda x: x.sin() * 2, x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * 2)
    assert reasons[0] == "gradients go to an argument"


def test_explain_says_it() -> None:
    text = str(planish.explain(in_place)(torch.randn(3, 3)))
    assert "captured by AOTAutograd: aten.add_.Tensor writes in place" in text
    assert "AOTAutograd" not in str(planish.explain(lambda x: x.sin() * 2)(torch.randn(3, 3)))
