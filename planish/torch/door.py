"""The native call path of a captured graph: a builtin that takes torch's tensors and gives torch's tensors.

In: a `Captured` and its native program. Out: the builtin; or None where there can't be one, and the call goes
through NumPy's arrays (`program.py`): the library strategy, host ops, random keys, dtypes that DLPack does
not know, an interpreter or a torch without the interfaces that `planish.runtime.tensors` needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from planish.capture.torch.captured import Captured, Feed, NumberFeed, ProgramResult, SizesFeed, TensorFeed
from planish.compiled import Compiled, NativeCompiled
from planish.runtime import program, tables
from planish.runtime.native import runtime

_NUMBERS = {"float64": tables.FLOAT, "int64": tables.INTEGER}
_MAJOR = 1  # of DLPack's exchange interface


def open_door(
    captured: Captured,
    compiled: Compiled,
    missed: Callable[..., Any],
    *,
    plain: bool = False,
    unwrap: bool = False,
) -> Callable[..., Any] | None:
    """A builtin that takes the FX graph's arguments one by one and gives the graph's outputs as a tuple of
    tensors, with the axes of the FX graph's; for any other call it is `missed(*arguments)`.

    `plain`: tensors are known to be no lazy negatives, and those with attributes of their own are not taken.
    `unwrap`: one output is given bare.
    """
    if not isinstance(compiled, NativeCompiled) or not compiled.is_direct or not _connected():
        return None
    feeds = [_feed(feed, plain) for feed in captured.feeds]
    known = [feed for feed in feeds if feed is not None]
    if len(known) < len(feeds):
        return None
    return compiled.program.tensor_door(known, output_orders(captured), captured.arguments, missed, unwrap)


def output_orders(captured: Captured) -> list[tuple[int, ...]]:
    """For each output of the graph, which of its axes is the tensor's first, second..."""
    of = (getattr(result, "of", result) for result in captured.results)
    orders = {one.index: one.order for one in of if isinstance(one, ProgramResult)}
    return [orders.get(i, tuple(range(o.ndim))) for i, o in enumerate(captured.graph.outputs)]


def gives_outputs(captured: Captured) -> bool:
    """Whether the FX graph's outputs are the graph's, one after the other."""
    indices = [r.index if isinstance(r, ProgramResult) else None for r in captured.results]
    return indices == list(range(len(captured.graph.outputs)))


def _feed(feed: Feed, plain: bool) -> program.TensorFeed | None:
    if isinstance(feed, TensorFeed):
        if feed.order is None:
            return None
        return program.TensorFeed(tables.PLAIN if plain else tables.TENSOR, feed.index, feed.order)
    if isinstance(feed, NumberFeed):
        source = _NUMBERS.get(feed.dtype)
        return None if source is None else program.TensorFeed(source, feed.index)
    if isinstance(feed, SizesFeed):
        return program.TensorFeed(tables.SIZES, feed.indices[0], feed.indices)
    return None


def _connected() -> bool:
    """Whether the runtime reads tensors; the first call sees to it."""
    native = runtime()
    if native.why_not_direct:
        return False
    if not native.reads_tensors:
        import torch

        functions = _exchange(torch.Tensor)
        if functions is None:
            return False
        native.read_tensors(functions, (torch.Tensor, torch.nn.Parameter))
    return True


def _exchange(tensor: type) -> tuple[int, int] | None:
    """Addresses of dltensor_from_py_object_no_sync and managed_tensor_to_py_object_no_sync, from the struct
    DLPackExchangeAPI of dlpack.h: {u32 major, minor; ptr previous; five functions}."""
    capsule = getattr(tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = pointer(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(address).value != _MAJOR:
        return None
    words = (ctypes.c_void_p * 7).from_address(address)
    read, make = words[5], words[4]
    return (read, make) if read and make else None
