"""Graphs inside graphs, and numbers that are read from tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import planish  # noqa: E402
from planish.errors import ShapeError, UnsupportedOp  # noqa: E402

Run = Callable[..., Any]


class Wrapped(torch.nn.Module):
    def __init__(self, function: Run):
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def exported(function: Run, *tensors: Any, **options: Any) -> Any:
    return planish.from_exported(torch.export.export(Wrapped(function), tensors), **options)


def chosen(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))


def test_cond_takes_either_branch() -> None:
    x = torch.rand(6, 4)
    program = exported(chosen, x, host=False)
    for given in (x, -x):
        torch.testing.assert_close(program(given), chosen(given))


def test_cond_has_a_gradient() -> None:
    for sign in (1, -1):
        x = (torch.rand(5) * sign).requires_grad_()
        (expected,) = torch.autograd.grad(chosen(x).sum(), x)
        (made,) = torch.autograd.grad(torch.compile(chosen, backend="planish", fullgraph=True)(x).sum(), x)
        torch.testing.assert_close(made, expected)


def test_while_loop_and_scan() -> None:
    from torch._higher_order_ops import scan, while_loop

    def looped(x: Any) -> Any:
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 0.5 + a.mean()), (torch.tensor(0), x))

    def scanned(x: Any, first: Any) -> Any:
        return scan(lambda c, y: (c + y.sin(), c * y), first, x)

    x = torch.randn(6, 4)
    torch.testing.assert_close(exported(looped, x, host=False)(x), looped(x))
    program, other = exported(scanned, x, torch.zeros(4), host=False), torch.randn(6, 4)
    torch.testing.assert_close(program(other, torch.ones(4)), scanned(other, torch.ones(4)))


def test_what_has_no_native_form_is_refused_in_a_branch() -> None:
    def branches(x: Any) -> Any:
        return torch.cond(x.sum() > 0, torch.linalg.svdvals, lambda x: x[0].clone(), (x,))

    with pytest.raises(UnsupportedOp, match="linalg_svd"):
        exported(branches, torch.rand(3, 3))


def test_scores_of_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def attended(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)

    q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
    with torch.no_grad():
        made = torch.compile(attended, backend="planish", fullgraph=True)(q, k, v)
    torch.testing.assert_close(made, attended(q, k, v))


def test_a_number_that_is_read_scales() -> None:
    def scaled(x: Any, n: Any) -> Any:
        total, count = x.sum().item(), n.item()
        return x * total + count, count * 2, total > 0

    x, n = torch.rand(4), torch.tensor(-3)
    program = exported(scaled, x, n)
    for given in (x, -x):
        torch.testing.assert_close(program(given, n), scaled(given, n))


def test_a_number_that_is_read_is_a_size() -> None:
    def first(x: Any, n: Any) -> Any:
        size = n.item()
        torch._check(size >= 0)
        torch._check(size <= x.shape[0])
        return x[:size] * 2, torch.zeros(size)

    x = torch.randn(6)
    program = exported(first, x, torch.tensor(4))
    for size in (4, 0, 6):
        torch.testing.assert_close(program(x, torch.tensor(size)), first(x, torch.tensor(size)))
    with pytest.raises((RuntimeError, ShapeError)):
        program(x, torch.tensor(7))
    with pytest.raises((RuntimeError, ShapeError)):
        program(x, torch.tensor(-1))


def test_item_in_torch_compile() -> None:
    def scaled(x: Any) -> Any:
        return x * x.sum().item()

    x = torch.rand(4)
    torch.testing.assert_close(torch.compile(scaled, backend="planish")(x), scaled(x))
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        made = torch.compile(scaled, backend="planish", fullgraph=True)
        torch.testing.assert_close(made(x), scaled(x))
