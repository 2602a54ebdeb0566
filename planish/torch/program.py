"""The call: torch's tensors in, a compiled graph over their memory, torch's tensors out.

Arguments are read where they lie: contiguous ones, and those whose axes fill a block in another order, are
not copied; others (slices with steps, expanded axes) are. Results are new tensors over the program's output
memory, with the strides torch gave them at capture; views of arguments and of other results are views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planish.capture.torch.captured import (
    ArgumentResult,
    Captured,
    Feed,
    KeyFeed,
    NumberFeed,
    ProgramResult,
    Result,
    SizeResult,
    SizesFeed,
    TensorFeed,
    ViewResult,
)
from planish.capture.torch.tensors import to_array, to_tensor
from planish.compiler import Compiled
from planish.types import evaluate_dim, is_static


class TorchProgram:
    """A captured graph, compiled. Call it with the FX graph's arguments; it gives the FX graph's outputs."""

    def __init__(self, captured: Captured, compiled: Compiled):
        self.captured, self.compiled = captured, compiled
        self._feeds = [feeder(feed) for feed in captured.feeds]
        self._needs_sizes = any(map(_needs_sizes, captured.results))

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        arrays = (
            self.compiled(*[feed(arguments) for feed in self._feeds]) if self.captured.graph.roots else ()
        )
        tensors = [to_tensor(a) for a in arrays]
        sizes = self.captured.sizes(arguments) if self._needs_sizes else {}
        return [_result(r, tensors, arguments, sizes) for r in self.captured.results]


def _needs_sizes(result: Result) -> bool:
    if isinstance(result, SizeResult):
        return not is_static(result.dim)
    return isinstance(result, ViewResult)


# --- arguments to arrays


def feeder(feed: Feed) -> Callable[[Sequence[Any]], np.ndarray]:
    """What takes an input of the graph from the arguments of a call."""
    if isinstance(feed, TensorFeed):
        return _tensor_feeder(feed)
    if isinstance(feed, NumberFeed):
        index, dtype = feed.index, np.dtype(feed.dtype)
        return lambda arguments: np.asarray(arguments[index], dtype)
    if isinstance(feed, SizesFeed):
        return lambda arguments: np.empty((0, *(int(arguments[i]) for i in feed.indices)), np.uint8)
    assert isinstance(feed, KeyFeed)
    return lambda arguments: fresh_key()


def _tensor_feeder(feed: TensorFeed) -> Callable[[Sequence[Any]], np.ndarray]:
    index, order = feed.index, feed.order
    if order is None or order == tuple(range(len(order))):
        return lambda arguments: to_array(arguments[index].contiguous())
    return lambda arguments: to_array(arguments[index].permute(order).contiguous())


def fresh_key() -> np.ndarray:
    """64 bits from torch's generator for the CPU."""
    import torch

    return torch.randint(0, 2**32, (2,), dtype=torch.int64).numpy().astype(np.uint32)


# --- arrays to results


def _result(result: Result, tensors: Sequence[Any], arguments: Sequence[Any], sizes: dict[str, int]) -> Any:
    if isinstance(result, ProgramResult):
        tensor = tensors[result.index]
        return tensor if result.order == tuple(range(len(result.order))) else tensor.permute(result.order)
    if isinstance(result, ArgumentResult):
        return arguments[result.index]
    if isinstance(result, ViewResult):
        return _view(result, tensors, arguments, sizes)
    return evaluate_dim(result.dim, sizes) if isinstance(result, SizeResult) else None


def _view(result: ViewResult, tensors: Sequence[Any], arguments: Sequence[Any], sizes: dict[str, int]) -> Any:
    of = result.of
    base = arguments[of.index] if isinstance(of, ArgumentResult) else tensors[of.index]
    shape, strides = ([evaluate_dim(d, sizes) for d in dims] for dims in (result.shape, result.strides))
    return base.as_strided(shape, strides, base.storage_offset() + evaluate_dim(result.offset, sizes))
