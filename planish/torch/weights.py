"""Inference with parameters and buffers as constants: folded and packed at the first call, guarded after.

A parameter is the one that was compiled in as long as its memory and its version counter are: every in-place
operation of torch raises the counter, `load_state_dict`, `.to()` and optimisers among them. Then the program
is compiled anew (its machine code comes from the cache). A module whose parameters go on changing gets a
program that takes them as arguments. Writing through `.data` raises no counter: it is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planish.logs import channel
from planish.torch.program import TorchProgram

PATIENCE = 4  # how often parameters may change before they are arguments

Build = Callable[[Mapping[int, Any]], TorchProgram]


class Guard:
    """That an argument is the tensor that was compiled in. It keeps the tensor's memory alive, so that the
    same address means the same memory."""

    __slots__ = ("address", "index", "storage", "strides", "version")

    def __init__(self, index: int, tensor: Any):
        self.index, self.address, self.version = index, tensor.data_ptr(), tensor._version
        self.storage, self.strides = tensor.untyped_storage(), tensor.stride()

    def holds(self, tensor: Any) -> bool:
        same = tensor.data_ptr() == self.address and tensor._version == self.version
        return same and tensor.stride() == self.strides


class WithWeights:
    """A program over arguments of which those in `static` are parameters or buffers."""

    def __init__(self, build: Build, static: Sequence[int], names: Mapping[int, str]):
        self.build, self.static, self.names = build, static, names
        self.program: TorchProgram | None = None
        self.guards: list[Guard] = []
        self.compiles = 0

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        program = self.program
        if program is None or not all(g.holds(arguments[g.index]) for g in self.guards):
            program = self.compiled(arguments)
        return program(arguments)

    def compiled(self, arguments: Sequence[Any]) -> TorchProgram:
        self._tell(arguments)
        fixed = self.compiles < PATIENCE
        weights = {i: arguments[i] for i in self.static if fixed and not arguments[i].is_inference()}
        self.guards = [Guard(i, t) for i, t in weights.items()]
        self.program = self.build(weights)
        self.compiles += 1
        return self.program

    def _tell(self, arguments: Sequence[Any]) -> None:
        if self.program is None:
            return
        changed = [g for g in self.guards if not g.holds(arguments[g.index])]
        first = changed[0]
        channel("recompiles").info(
            "%s and %d other parameters or buffers have changed (version %d -> %d); %s",
            self.names.get(first.index, f"argument {first.index}"),
            len(changed) - 1,
            first.version,
            arguments[first.index]._version,
            "packed again" if self.compiles < PATIENCE else "from now on they are arguments",
        )
