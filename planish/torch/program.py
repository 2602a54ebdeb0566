"""The call: torch's tensors in, a compiled graph over their memory, torch's tensors out.

Arguments are read where they lie: contiguous ones, and those whose axes fill a block in another order, are
not copied; others (slices with steps, expanded axes) are. Results are new tensors over the program's output
memory, with the strides torch gave them at capture; views of arguments and of other results are views. The
usual call is native (`door.py`); what it does not take goes through NumPy's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planish.capture.torch.captured import (
    ArgumentResult,
    Captured,
    ComplexFeed,
    ComplexResult,
    Feed,
    KeyFeed,
    NumberFeed,
    NumberResult,
    ProgramResult,
    Result,
    SizeResult,
    SizesFeed,
    TensorFeed,
    ViewResult,
)
from planish.capture.torch.tensors import to_array, to_complex, to_tensor
from planish.compiled import Compiled, NativeCompiled, SegmentedProgram
from planish.torch.door import gives_outputs, open_door, output_orders
from planish.types import evaluate_dim, is_static


class TorchProgram:
    """A captured graph, compiled. Call it with the FX graph's arguments; it gives the FX graph's outputs.

    `run(*arguments)` gives the graph's outputs as tensors: natively where that can be, else by arrays.
    `in_turns`: what torch computes in parallel goes before and after, as host ops do between segments.
    """

    def __init__(self, captured: Captured, compiled: Compiled, in_turns: bool = False):
        self.captured, self.compiled = captured, compiled
        parts = compiled.parts if isinstance(compiled, SegmentedProgram) else (compiled,) if in_turns else ()
        for part in parts:
            if isinstance(part, NativeCompiled):
                part.program.use_openmp()
        by_arrays = run_by_arrays(captured, compiled)
        self.is_direct = gives_outputs(captured)
        self.run: Callable[..., Sequence[Any]] = (
            open_door(captured, compiled, by_arrays) or by_arrays if captured.graph.roots else _nothing
        )
        self._needs_sizes = any(map(_needs_sizes, captured.results))

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        tensors = self.run(*arguments)
        if self.is_direct:
            return tensors
        sizes = self.captured.sizes(arguments) if self._needs_sizes else {}
        return [_result(r, tensors, arguments, sizes) for r in self.captured.results]


def _nothing(*arguments: Any) -> tuple[Any, ...]:
    """What a graph without outputs and effects gives."""
    return ()


def run_by_arrays(captured: Captured, compiled: Compiled) -> Callable[..., list[Any]]:
    """The call by way of NumPy's arrays: it takes any arguments, and copies those that lie otherwise. It
    refers to no builtin over the same program: that would be a cycle that the garbage collector can't see."""
    feeds = [feeder(feed) for feed in captured.feeds]
    orders = output_orders(captured)

    def run(*arguments: Any) -> list[Any]:
        results = compiled(*[feed(arguments) for feed in feeds])
        return [_ordered(to_tensor(a), order) for a, order in zip(results, orders)]

    return run


def _ordered(tensor: Any, order: tuple[int, ...]) -> Any:
    return tensor if order == tuple(range(len(order))) else tensor.permute(order)


def _needs_sizes(result: Result) -> bool:
    if isinstance(result, SizeResult):
        return not is_static(result.dim)
    return isinstance(result, ViewResult)


# --- arguments to arrays


def feeder(feed: Feed) -> Callable[[Sequence[Any]], np.ndarray]:
    """What takes an input of the graph from the arguments of a call."""
    if isinstance(feed, TensorFeed):
        return _tensor_feeder(feed)
    if isinstance(feed, ComplexFeed):
        taken, order = feed.index, feed.order
        return lambda arguments: to_array(arguments[taken].permute(order).contiguous())
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
        return tensors[result.index]
    if isinstance(result, ComplexResult):
        return to_complex(tensors[result.index]).permute(result.order)
    if isinstance(result, NumberResult):
        return tensors[result.index].item()
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
