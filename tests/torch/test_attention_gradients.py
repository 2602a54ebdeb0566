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
