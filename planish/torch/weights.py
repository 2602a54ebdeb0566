"""Inference with parameters and buffers as constants: folded and packed at the first call, guarded after.

A parameter is the one that was compiled in as long as its memory and its version counter are: every in-place
operation of torch raises the counter, `load_state_dict` and optimisers among them; `.to()` gives it other
memory. Then its program is made anew (from the cache: only what follows from the values is computed again). A
module whose parameters go on changing gets a program that takes them as arguments. Writing through `.data`
raises no counter: it is not seen.

Modules of one class may share the code that calls here. Each has a program over its own weights, of one
machine code; it goes when the module's first parameter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any
from weakref import finalize

from planish.logs import channel
from planish.torch.program import TorchProgram

PATIENCE = 4  # how often parameters may change before they are arguments
MODULES = 256  # of how many modules the weights are packed; those of others are arguments

Build = Callable[[Mapping[int, Any]], TorchProgram]

_version = attrgetter("_version")


class Packed:
    """A program over the weights of one module. It keeps their memory alive, so that the same address means
    the same memory. Their dtypes, shapes and strides are Dynamo's to guard."""

    __slots__ = ("addresses", "changes", "program", "select", "storages", "versions")

    def __init__(self, program: TorchProgram, weights: Mapping[int, Any], changes: int):
        self.program, self.changes = program, changes
        first = next(iter(weights), None)
        self.select = None if first is None else itemgetter(first, *weights)  # a tuple, also of one weight
        self.storages = [t.untyped_storage() for t in weights.values()]
        chosen = () if self.select is None else self.select(weights)
        self.addresses, self.versions = _addresses(chosen), list(map(_version, chosen))

    def holds(self, arguments: Sequence[Any]) -> bool:
        if self.select is None:
            return True
        chosen = self.select(arguments)
        return list(map(_version, chosen)) == self.versions and _addresses(chosen) == self.addresses


def _addresses(tensors: Sequence[Any]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


class WithWeights:
    """A program over arguments of which those in `static` are parameters or buffers."""

    def __init__(self, build: Build, static: Sequence[int], names: Mapping[int, str]):
        self.build, self.static, self.names = build, static, names
        self.owner = static[0]  # the parameter that stands for a module
        self.packed: dict[int, Packed] = {}
        self.general: TorchProgram | None = None

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        packed = self.packed.get(id(arguments[self.owner]))
        if packed is None or not packed.holds(arguments):
            return self.compiled(arguments)(arguments)
        return packed.program(arguments)

    def compiled(self, arguments: Sequence[Any]) -> TorchProgram:
        """The program for arguments whose weights are new or have changed."""
        owner = arguments[self.owner]
        old = self.packed.get(id(owner))
        if old is None and len(self.packed) >= MODULES:
            return self._general()
        changes = 0 if old is None else old.changes + 1
        fixed = changes < PATIENCE
        weights = {i: arguments[i] for i in self.static if fixed and not arguments[i].is_inference()}
        if old is None:
            finalize(owner, self.packed.pop, id(owner), None).atexit = False
        else:
            self._tell(old, arguments, fixed)
        program = self.build(weights) if weights else self._general()
        self.packed[id(owner)] = Packed(program, weights, changes)
        return program

    def _general(self) -> TorchProgram:
        """The program that takes weights as arguments."""
        if self.general is None:
            self.general = self.build({})
        return self.general

    def _tell(self, old: Packed, arguments: Sequence[Any], fixed: bool) -> None:
        assert old.select is not None
        kept = dict(zip(old.select(range(len(arguments))), zip(old.addresses, old.versions)))
        changed = [i for i, was in kept.items() if was != (arguments[i].data_ptr(), arguments[i]._version)]
        first = changed[0]
        channel("recompiles").info(
            "%s and %d other parameters or buffers have changed (version %d -> %d); %s",
            self.names.get(first, f"argument {first}"),
            len(changed) - 1,
            kept[first][1],
            arguments[first]._version,
            "packed again" if fixed else "from now on they are arguments",
        )
