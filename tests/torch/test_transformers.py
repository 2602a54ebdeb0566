"""Architectures of transformers, forward and backward, in float32 and bfloat16; all of them with -m slow."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import torch  # noqa: E402

from tests.torch.architectures import ARCHITECTURES, compare  # noqa: E402

transformers.logging.set_verbosity_error()

# One of each kind: masked encoder; grouped queries with rotary positions; relative positions between an
# encoder and a decoder; convolutions; a scan over states.
FEW = [
    ("bert", "bfloat16"),
    ("llama", "float32"),
    ("t5", "float32"),
    ("resnet", "float32"),
    ("mamba", "bfloat16"),
]
DTYPES = ("float32", "bfloat16")
REST = [(name, dtype) for name in ARCHITECTURES for dtype in DTYPES if (name, dtype) not in FEW]


def check(name: str, dtype: str) -> None:
    found = compare(name, getattr(torch, dtype))
    assert found.hosts == [] and found.is_equal(), str(found)


@pytest.mark.parametrize("name, dtype", FEW)
def test_equal_to_eager(name: str, dtype: str) -> None:
    check(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name, dtype", REST)
def test_all_are_equal_to_eager(name: str, dtype: str) -> None:
    check(name, dtype)


def test_a_wrong_gradient_is_seen() -> None:
    """The comparison can fail: an error of one part in a hundred is no rounding."""
    from tests.torch.architectures import error

    exact = {"a": torch.randn(5, 5, dtype=torch.float64), "b": torch.randn(3, dtype=torch.float64)}
    near = {k: x.float() for k, x in exact.items()}
    wrong = {**near, "b": near["b"] * 1.01}
    assert error(near, exact) < 1e-6 < 1e-4 < error(wrong, exact)
    assert error({"a": near["a"]}, exact) == float("inf")
