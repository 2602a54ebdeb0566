"""What the tests of torch programs share. Without torch they are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

try:
    import torch
except ImportError:  # the tests skip themselves
    torch = None

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No test sees what another compiled, nor its random numbers."""
    if torch is None:
        yield
        return
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def strides(x: Any) -> list[int]:
    """Those that tell: of axes with more than one element."""
    return [s for s, n in zip(x.stride(), x.shape) if n > 1] if x.numel() else []


def assert_same(result: Any, expected: Any, **tolerance: float) -> None:
    """Values, dtypes, shapes and strides, in nested results."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result, expected, equal_nan=True, **tolerance)
        assert strides(result) == strides(expected)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        for key in expected:
            assert_same(result[key], expected[key], **tolerance)
    elif isinstance(expected, (list, tuple)):
        assert type(result) is type(expected) and len(result) == len(expected)
        for a, b in zip(result, expected):
            assert_same(a, b, **tolerance)
    else:
        assert type(result) is type(expected) and result == expected


@pytest.fixture
def same() -> Run:
    return assert_same


@pytest.fixture
def graph_of() -> Run:
    """The functional ATen graph of a function on tensors, by planish's decompositions."""
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    from planish.capture.torch import decompositions

    def trace(function: Run, tensors: Sequence[Any], mode: str = "fake") -> Any:
        return make_fx(dispatch_functionalize(function), decompositions(), tracing_mode=mode)(*tensors)

    return trace


@pytest.fixture
def run(graph_of: Run) -> Run:
    """A function's outputs on tensors: traced, translated and compiled, without Dynamo."""
    from planish.capture.torch import translate
    from planish.torch.dynamo import compile_captured
    from planish.torch.program import TorchProgram
    from planish.torch.settings import settings_of

    def call(function: Run, *tensors: Any, strategy: str = "native", host: bool = True) -> list[Any]:
        settings = settings_of(None, {"strategy": strategy})
        with torch.no_grad():
            captured = translate(graph_of(function, tensors), host=host)
            return list(TorchProgram(captured, compile_captured(captured, settings))(list(tensors)))

    return call
