"""Barriers: none between what one thread does alone, one wherever work passes between threads."""
from __future__ import annotations

import numpy as np

import planish

SMALL, LARGE = 24, 640


def barriers(lowered) -> int:  # type: ignore[no-untyped-def]
    body = lowered.as_text("llvm").split("define void @planish_body")[1]
    return body.count("call void @planish_barrier")


def chain(x, w, rounds):  # type: ignore[no-untyped-def]
    """Products one after the other, each normalised over the whole result of the one before."""
    for _ in range(rounds):
        y = x @ w
        x = y / np.sqrt(np.sum(y * y) + np.float32(1))
    return x


def test_small_steps_need_none() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(SMALL, SMALL)).astype(np.float32) for _ in range(2))
    jitted = planish.jit(chain, static_argnums=2)
    lowered = jitted.lower(x, w, 5)
    assert len(lowered.program.report.kernels) >= 10 and barriers(lowered) == 0
    np.testing.assert_allclose(jitted(x, w, 5), chain(x, w, 5), rtol=2e-5, atol=1e-6)


def test_between_one_thread_and_many() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=(n, n)).astype(np.float32) for n in (SMALL, SMALL))
    large = rng.normal(size=(LARGE, LARGE)).astype(np.float32)

    def mixed(x, w, large):  # type: ignore[no-untyped-def]
        small = chain(x, w, 3)                              # thread 0 alone
        wide = large * np.sum(small) + np.float32(1)        # all threads read what it made
        total = np.sum(wide, axis=0)[:SMALL]                # one small result of what all made
        return chain(small + total, w, 2)

    jitted = planish.jit(mixed)
    assert 1 <= barriers(jitted.lower(x, w, large)) < len(jitted.lower(x, w, large).program.report.kernels)
    want = mixed(*(a.astype(np.float64) for a in (x, w, large)))
    for _ in range(50):
        np.testing.assert_allclose(jitted(x, w, large), want, rtol=1e-3, atol=1e-4)
