"""One variant of a function: what goes into the compiled graph, and what becomes of its outputs.

In: the leaves of a call's arguments. Out: the function's result, with what it wrote to its arguments written.
Assumed: the call has the signature that the variant was traced for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planish.capture.numpy import Captured, Result
from planish.capture.pytree import LEAF
from planish.compiled import Compiled
from planish.errors import SignatureError


class Program:
    """A compiled signature: feeds the graph, writes what the function wrote, and puts the results
    together."""

    def __init__(self, captured: Captured, compiled: Compiled):
        self.captured, self.compiled = captured, compiled
        self.direct: Callable[..., Any] = compiled
        guards = captured.guards
        self.guards_hold: Callable[[], bool] = _always if guards.is_empty else guards.holds
        self.is_simple = _is_simple(captured)
        self.has_door = False

    def open_door(self, missed: Callable[..., Any]) -> None:
        """Let calls with plain arrays go straight to the compiled program, which calls `missed` for any
        other. That needs a program that offers it (`direct_call`), and is simple."""
        offer = getattr(self.compiled, "direct_call", None)
        opens = self.is_simple and not self.captured.faults
        direct = offer(missed) if opens and offer is not None else None
        if direct is not None:
            self.direct, self.has_door = direct, True

    def run_flat(self, arrays: tuple[np.ndarray, ...]) -> Any:
        """`run` where all leaves are arrays."""
        if not self.is_simple:
            return self.run(arrays)
        outputs = self.compiled(*arrays)
        if self.captured.faults:
            self._tell_faults(outputs)
        return outputs[0]

    def run(self, leaves: Sequence[Any]) -> Any:
        captured, arrays = self.captured, self.arrays(leaves)
        if captured.writes or captured.contiguous:
            self._check_memory(leaves, arrays)
        outputs = list(self.compiled(*arrays))
        for i in captured.aliased:
            outputs[i] = _own(outputs[i], arrays)
        for position, place in captured.writes:
            np.copyto(leaves[position], outputs[place])
        self._tell_faults(outputs)
        return captured.tree.unflatten([_result(r, leaves, outputs) for r in captured.results])

    def _tell_faults(self, outputs: Sequence[np.ndarray]) -> None:
        for place, fault in self.captured.faults:
            if outputs[place]:
                fault.tell()

    def arrays(self, leaves: Sequence[Any]) -> list[np.ndarray]:
        """What goes into the graph."""
        return [np.asarray(leaves[f]) if isinstance(f, int) else f for f in self.captured.feeds]

    def _check_memory(self, leaves: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        """The function writes to arguments: they may not overlap with others, nor be read-only."""
        for target in (leaves[position] for position, _ in self.captured.writes):
            if not target.flags.writeable:
                raise ValueError("assignment destination is read-only")
            if sum(np.may_share_memory(target, other) for other in arrays) > 1:
                raise SignatureError(
                    "the function writes to an argument that shares memory with another argument; pass a copy"
                )
        for position in self.captured.contiguous:
            if not leaves[position].flags.c_contiguous:
                raise SignatureError(
                    "the function writes through a reshape of an argument, which must be C-contiguous for "
                    "that"
                )


def _is_simple(captured: Captured) -> bool:
    """Whether arrays go in as they are passed and one new array comes out, and nothing else happens."""
    if captured.tree != LEAF or captured.writes or captured.aliased:
        return False
    if [f if isinstance(f, int) else -1 for f in captured.feeds] != list(range(len(captured.feeds))):
        return False
    result = captured.results[0]
    return result.source == "output" and result.kind == "array" and not result.steps


def _always() -> bool:
    return True


def _own(array: np.ndarray, arguments: Sequence[np.ndarray]) -> np.ndarray:
    """A result with memory of its own, where the compiled program may have handed out an argument's or a
    constant's."""
    return (
        array
        if array.base is None and array.flags.writeable and not any(array is a for a in arguments)
        else array.copy()
    )


def _result(result: Result, leaves: Sequence[Any], outputs: Sequence[np.ndarray]) -> Any:
    if result.kind == "object":
        return leaves[result.place] if result.source == "argument" else result.place
    source = {"argument": leaves, "output": outputs}.get(result.source)
    value = (
        result.place.copy()
        if source is None and result.source == "value"
        else result.place
        if source is None
        else source[result.place]
    )
    for step in result.steps:
        value = step.replay(value)
    if result.kind == "number":
        return value.item()
    return value[()] if result.kind == "scalar" else value
