"""What the tests of torch programs share. Without torch they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

try:
    import torch
except ImportError:  # the tests skip themselves
    torch = None


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No test sees what another compiled, nor its random numbers."""
    if torch is None:
        yield
        return
    torch.manual_seed(0)
    yield
    torch.compiler.reset()
