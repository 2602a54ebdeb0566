"""Histograms, bags, distances, windows that do not repeat and draws, without a host op, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

Cases = list[Callable[..., Any]]


def hold(run: Any, same: Any, cases: Cases, *tensors: Any, **tolerance: float) -> None:
    """Each case gives a list."""

    def program(*given: Any) -> list[Any]:
        return [one for case in cases for one in case(*given)]

    same(run(program, *tensors, host=False), program(*tensors), **tolerance)


def hold_gradients(same: Any, function: Callable[..., Any], *tensors: Any) -> None:
    def gradients(of: Callable[..., Any]) -> list[Any]:
        given = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        torch.manual_seed(1)
        result = of(*given)
        wanted = [g for g in given if g.requires_grad]
        return list(torch.autograd.grad(result, wanted, torch.randn(result.shape)))

    compiled = torch.compile(function, backend="planish", options={"host": False})
    same(gradients(compiled), gradients(function))


def test_histograms(run: Any, same: Any) -> None:
    x = torch.randn(200)
    x[:3] = torch.tensor([-1.0, 1.0, 0.0])
    cases: Cases = [
        lambda x, w: [torch.histc(x, 7), torch.histc(x, 5, -1, 1), torch.histc(x[:1], 3)],
        lambda x, w: [*torch.histogram(x, 6), *torch.histogram(x, 4, range=(-1, 1), weight=w)],
        lambda x, w: [*torch.histogram(x, torch.tensor([-1.0, 0.0, 0.25, 1.0]), density=True)],
    ]
    hold(run, same, cases, x, torch.rand(200))
    with pytest.raises(RuntimeError, match="range is not finite"):
        run(lambda x: [torch.histc(x, 4)], torch.tensor([1.0, float("inf")]), host=False)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(run: Any, same: Any, mode: str) -> None:
    weight, index = torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    offsets = torch.tensor([0, 0, 3, 4])  # an empty bag
    cases: Cases = [
        lambda w, i, o: [F.embedding_bag(i, w, o, mode=mode)],
        lambda w, i, o: [F.embedding_bag(i, w, o, mode=mode, padding_idx=4)],
        lambda w, i, o: [F.embedding_bag(i[:4], w, o, mode=mode, include_last_offset=True)],
        lambda w, i, o: [F.embedding_bag(i.reshape(2, 4), w, mode=mode)],
    ]
    hold(run, same, cases, weight, index, offsets)
    hold_gradients(
        same, lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=4), weight, index, offsets
    )
    with pytest.raises(RuntimeError):
        run(cases[0], weight, torch.tensor([10, 0, 0, 0, 0, 0, 0, 0]), offsets, host=False)


def test_scaled_bags(same: Any) -> None:
    weight, index = torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    offsets, scales = torch.tensor([0, 0, 3, 4]), torch.rand(8)
    hold_gradients(
        same, lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s), weight, index,
        offsets, scales,
    )  # fmt: skip


def test_distances(run: Any, same: Any) -> None:
    x, y = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    y[:, 0] = x[:, 0]
    cases: Cases = [
        lambda x, y: [torch.cdist(x, y, p) for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf"))],
        lambda x, y: [F.pdist(x[0], p) for p in (0.0, 1.0, 2.0, 1.5, float("inf"))],
        lambda x, y: [torch.cdist(x.repeat(1, 6, 1), y)],
    ]
    hold(run, same, cases, x, y, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, float("inf")])
def test_gradients_of_distances(same: Any, p: float) -> None:
    x, y = torch.randn(5, 3), torch.randn(4, 3)
    y[0] = x[0]
    hold_gradients(same, lambda x, y: torch.cdist(x, y, p).sum() + F.pdist(x, p).sum(), x, y)


def test_windows_that_do_not_repeat(run: Any, same: Any) -> None:
    x = torch.randn(2, 3, 7, 8, 5)
    x[0, 0, 1, 1, 1] = float("nan")
    planes, spaces = torch.rand(2, 3, 2), torch.rand(2, 3, 3)
    cases: Cases = [
        lambda x, p, s: [F.adaptive_avg_pool3d(x, (3, 4, 5)), F.adaptive_avg_pool2d(x[:, :, 0], (3, 9))],
        lambda x, p, s: [*F.adaptive_max_pool3d(x, (3, 4, 2), return_indices=True)],
        lambda x, p, s: [*F.adaptive_max_pool2d(x[1], (8, 3), return_indices=True)],
        lambda x, p, s: [
            *F.fractional_max_pool2d(x[..., 2], (2, 3), (5, 4), return_indices=True, _random_samples=p)],
        lambda x, p, s: [
            *F.fractional_max_pool3d(x, 2, (5, 4, 1), return_indices=True, _random_samples=s)],
    ]  # fmt: skip
    hold(run, same, cases, x, planes, spaces)


def test_gradients_of_windows(same: Any) -> None:
    x = torch.randn(2, 3, 7, 8)
    hold_gradients(same, lambda x: F.adaptive_max_pool2d(x, (3, 5)) + F.adaptive_avg_pool2d(x, (3, 5)), x)
    hold_gradients(same, lambda x: F.interpolate(x, (4, 12), mode="bicubic", antialias=True), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_without_aliases(run: Any, same: Any, mode: str) -> None:
    cases: Cases = [
        lambda x: [F.interpolate(x, (4, 12), mode=mode, antialias=True)],
        lambda x: [F.interpolate(x, (3, 5), mode=mode, antialias=True, align_corners=True)],
        lambda x: [F.interpolate(x, scale_factor=(0.4, 1.7), mode=mode, antialias=True)],
    ]
    hold(run, same, cases, torch.randn(2, 3, 9, 8), rtol=1e-4, atol=1e-5)


def test_running_logarithms(run: Any, same: Any) -> None:
    x = torch.randn(6, 5) * 300
    x[1, :2] = float("-inf")
    x[3, 2] = float("inf")
    x[4, 1] = float("nan")
    hold(run, same, [lambda x: [x.logcumsumexp(0), x.logcumsumexp(1)]], x)


def test_common_divisors(run: Any, same: Any) -> None:
    a, b = torch.randint(-60, 60, (50,)), torch.randint(-60, 60, (50,))
    a[:3] = 0
    hold(run, same, [lambda a, b: [torch.gcd(a, b), torch.lcm(a, b), a.int().gcd(b.int())]], a, b)


def test_draws_in_proportion(run: Any) -> None:
    weights = torch.tensor([[1.0, 0.0, 2.0, 5.0], [3.0, 1.0, 0.0, 0.0]])

    def program(w: Any) -> list[Any]:
        return [torch.multinomial(w, 20_000, replacement=True), torch.multinomial(w.expand(2, 4), 2)]

    many, few = run(program, weights, host=False)
    for row, w in zip(many, weights):
        share = torch.bincount(row, minlength=4) / row.numel()
        torch.testing.assert_close(share, w / w.sum(), rtol=0, atol=0.02)
    assert sorted(few[1].tolist()) == [0, 1] and len(set(few[0].tolist())) == 2 and 1 not in few[0]
    with pytest.raises(RuntimeError, match="too few"):
        run(lambda w: [torch.multinomial(w, 3)], weights, host=False)
    with pytest.raises(RuntimeError, match="probability tensor"):
        run(lambda w: [torch.multinomial(-w, 1)], weights, host=False)


def test_draws_without_replacement_follow_the_weights(run: Any) -> None:
    weights = torch.tensor([1.0, 3.0]).expand(20_000, 2).contiguous()
    (first,) = run(lambda w: [torch.multinomial(w, 1)], weights, host=False)
    assert abs(first.float().mean() - 0.75) < 0.02


def test_orders_and_slopes(run: Any) -> None:
    x = torch.randn(4000)
    order, y = run(lambda x: [torch.randperm(100), F.rrelu(x, 0.1, 0.4, training=True)], x, host=False)
    assert sorted(order.tolist()) == list(range(100)) and order.tolist() != list(range(100))
    slope = (y / x)[x < 0]
    assert torch.equal(y[x > 0], x[x > 0]) and slope.min() >= 0.0999 and slope.max() <= 0.4001
    assert abs(slope.mean() - 0.25) < 0.01
