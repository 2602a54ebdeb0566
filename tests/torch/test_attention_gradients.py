"""Gradients of scaled dot product attention, by every mask; queries that see no key."""

from __future__ import annotations

from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

MASKS = ("none", "causal", "bool", "additive")


def given(mask: str, dtype: Any) -> tuple[list[Any], dict[str, Any]]:
    keys = 9 if mask == "causal" else 13
    q, k, v = (torch.randn(2, 3, length, 16, dtype=dtype) for length in (9, keys, keys))
    seen = torch.rand(2, 1, 9, 13) < 0.6
    seen[0, 0, 2] = False
    options = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": seen},
        "additive": {"attn_mask": torch.randn(2, 1, 9, 13, dtype=dtype)},
    }
    return [q, k, v], options[mask]


@pytest.mark.parametrize("mask, dtype", [*((m, "float32") for m in MASKS), ("bool", "bfloat16")])
def test_gradients(mask: str, dtype: str) -> None:
    arguments, options = given(mask, getattr(torch, dtype))
    near = 1e-5 if dtype == "float32" else 2e-2

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, **options)

    compiled = planish.compile(attend)
    leaves = [x.requires_grad_() for x in arguments]
    got, expected = (
        torch.autograd.grad(call(*leaves).float().square().sum(), leaves) for call in (compiled, attend)
    )
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=5 * near, atol=5 * near)


@pytest.mark.parametrize("queries, keys", [(300, 300), (600, 270), (270, 600)])
def test_causal_queries_by_blocks(queries: int, keys: int) -> None:
    """Blocks leave out keys that they don't see."""
    leaves = [torch.randn(1, 2, n, 8, requires_grad=True) for n in (queries, keys, keys)]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.compiler.reset()
    compiled = torch.compile(attend, backend="planish", options={"host": False})
    got, expected = (torch.autograd.grad(call(*leaves).square().sum(), leaves) for call in (compiled, attend))
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("mask", [m for m in MASKS if m != "causal"] + ["causal heads"])
def test_heads_that_share_keys(mask: str) -> None:
    """enable_gqa, in training and without: natively."""
    _, options = given(mask.removesuffix(" heads"), torch.float32)
    keys = 9 if mask == "causal heads" else 13
    leaves = [torch.randn(2, heads, n, 16, requires_grad=True) for heads, n in ((6, 9), (2, keys), (2, keys))]

    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)

    compiled = torch.compile(attend, backend="planish", options={"host": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), attend(*leaves), rtol=1e-5, atol=1e-5)
    got, expected = (torch.autograd.grad(call(*leaves).square().sum(), leaves) for call in (compiled, attend))
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=5e-5, atol=5e-5)


def test_training_scores_once() -> None:
    """What a training step keeps of the sums comes from the same scores: one kernel forwards, five products
    backwards, none of them of stored weights."""
    from tests.torch.architectures import captured_graphs

    arguments, _ = given("none", torch.float32)
    leaves = [x.requires_grad_() for x in arguments]
    with captured_graphs() as graphs:
        planish.compile(F.scaled_dot_product_attention)(*leaves).sum().backward()
    counts = [sum(n.op.has("contraction") for n in g.nodes()) for g in graphs]
    assert counts == [0, 5]
    assert {"attention", "attention_logsumexp"} <= {n.op.name for n in graphs[0].nodes()}
    assert all("attention" not in n.op.name for n in graphs[1].nodes())


@pytest.mark.parametrize("queries", [3, 20])
def test_weights_of_large_scores(queries: int) -> None:
    """The weight of a key that outweighs all others is 1 in the gradient too: its score is rounded there as
    in the forward pass."""
    q, k = (torch.rand(1, 4, n, 8) * 40 - 20 for n in (queries, 30))
    v, g = torch.randn(1, 4, 30, 8), torch.randn(1, 4, queries, 8)
    scores = (q.double() @ k.double().transpose(-1, -2)) / 8**0.5
    best = scores.topk(2).values
    certain = best[..., :1] - best[..., 1:] > 30
    weight = certain * scores.eq(best[..., :1])
    v.requires_grad_()
    result = planish.compile(F.scaled_dot_product_attention)(q, k, v)
    (found,) = torch.autograd.grad(result, v, g * certain)
    assert certain.any()
    torch.testing.assert_close(found, weight.float().transpose(-1, -2) @ g, rtol=1e-6, atol=1e-6)
