"""Scaled dot product attention of torch is one kernel: masks of either kind, few queries, narrow dtypes."""
from __future__ import annotations

from typing import Any

import pytest

import planish.compiler
from planish.schedule.build import build_program

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional


def operands(*batch: int, s: int = 21, t: int = 37, d: int = 16, dtype: Any = None) -> list[Any]:
    return [torch.randn(*batch, n, d, dtype=dtype or torch.float32) for n in (s, t, t)]


def check(parts: list[Any], **options: Any) -> None:
    """What eager gives, in one kernel."""
    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, **options)

    kernels: list[Any] = []

    def build(*args: Any, **more: Any) -> Any:
        built = build_program(*args, **more)
        kernels.extend(built.program.kernels)
        return built

    torch.compiler.reset()
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(planish.compiler, "build_program", build)
        actual = torch.compile(attend, backend="planish", fullgraph=True)(*parts)
    expected = attend(*parts)
    close = 2e-2 if parts[0].dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=close, atol=close)
    assert "attention" in [op for kernel in kernels for op in kernel.ops]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks(dtype: str) -> None:
    kind = getattr(torch, dtype)
    parts = operands(2, 3, dtype=kind)
    hidden = torch.rand(2, 1, 21, 37) < 0.3
    hidden[0, 0, 4] = True                                  # a query that sees nothing gives 0
    check(parts, attn_mask=~hidden)
    check(parts, attn_mask=torch.zeros(2, 1, 21, 37, dtype=kind).masked_fill(hidden, float("-inf")))
    check(parts, attn_mask=torch.rand(21, 37, dtype=kind))


def test_causal_scale_and_one_query() -> None:
    check(operands(2, 3, s=70, t=70), is_causal=True, scale=0.3)
    check(operands(2, 3, s=1))


def decode(x: Any, past_keys: Any, past_values: Any) -> tuple[Any, ...]:
    """One step with a cache: a length each for keys and values, which nothing in the program compares."""
    keys, values = (torch.cat([past, x], 2) for past in (past_keys, past_values))
    return F.scaled_dot_product_attention(x * 2, keys, values), keys, values


def test_the_lengths_of_a_cache_are_one_size() -> None:
    step = torch.compile(decode, backend="planish", fullgraph=True, options={"host": False})
    keys = values = torch.randn(2, 4, 3, 16)
    torch.compiler.reset()
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 4, 1, 16)
            expected = decode(x, keys, values)
            actual = step(x, keys.clone(), values.clone())
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
            _, keys, values = actual
