"""Random numbers in compiled programs: a seed's own stream, its order and statistics, and eager's stream."""

from __future__ import annotations

import math
from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, F = torch.nn, torch.nn.functional


def draws(x: Any) -> list[Any]:
    """Several kinds of draws, in an order that a compiler could change."""
    first = torch.rand(5, 7)
    kept = F.dropout(x, 0.3)
    second = torch.randn(3)
    noise = torch.rand_like(x) + torch.randn_like(x)
    return [torch.randint(0, 100, (6,)), first, kept, second, noise, torch.bernoulli(torch.full((9,), 0.4))]


def seeded(function: Any, *arguments: Any) -> list[Any]:
    torch.manual_seed(7)
    return [*function(*arguments), *function(*arguments)]


def test_eager_stream_on_request() -> None:
    """Every number is that of eager, in two calls, and the generator is left where eager leaves it."""
    x = torch.randn(17, 5)
    expected, after = seeded(draws, x), torch.rand(2)
    got, then = seeded(planish.compile(draws, random="eager"), x), torch.rand(2)
    for a, b in zip([*got, then], [*expected, after]):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_eager_stream_in_training() -> None:
    """The backward pass uses the mask that the forward pass drew."""
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.4), nn.Linear(32, 8), nn.Dropout(0.1))
    x = torch.randn(9, 16)

    def gradients(call: Any) -> list[Any]:
        net.zero_grad()
        torch.manual_seed(3)
        call(x).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    compiled = torch.compile(net, backend="planish", options={"random": "eager"})
    for a, b in zip(gradients(compiled), gradients(net)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_seed_gives_the_same_numbers_again() -> None:
    x, compiled = torch.randn(17, 5), planish.compile(draws)
    first, again = seeded(compiled, x), seeded(compiled, x)
    half = len(first) // 2
    for a, b in zip(first, again):
        assert torch.equal(a, b)
    assert not any(torch.equal(a, b) for a, b in zip(first[1:half], first[half + 1 :]))


def test_statistics_of_dropout() -> None:
    """A share of p is dropped, the rest scaled to the same mean; both within five standard deviations."""
    p, count = 0.3, 40_000
    y = planish.compile(lambda x: F.dropout(x, p))(torch.ones(count))
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / count)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))


def test_attention_with_dropout_draws_and_differentiates() -> None:
    """In eager's stream attention with dropout is eager's, forwards and backwards."""
    q, k, v = (torch.randn(2, 2, 6, 8, requires_grad=True) for _ in range(3))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)

    def run(call: Any) -> list[Any]:
        torch.manual_seed(5)
        y = call(q, k, v)
        return [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]

    for a, b in zip(run(planish.compile(attend, random="eager")), run(attend)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    twice = [run(planish.compile(attend))[0] for _ in range(2)]
    assert torch.equal(*twice) and not torch.allclose(twice[0], attend(q, k, v))
