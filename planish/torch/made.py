"""The backend of `planish.compile`: planish's, which remembers what it made of each variant until the short
way has taken it over (`direct.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planish.torch.dynamo import compile_dynamo
from planish.torch.settings import Settings


@dataclass
class Made:
    """What is known of a variant when it is made: the graph's program (where AOTAutograd only passes the call
    on), whether sizes are open, Dynamo's guards."""

    program: Any = None
    has_symbols: bool = False
    guards: Sequence[Any] = ()


class Backend:
    """Called by Dynamo with a graph. Two with the same settings are equal: functions that share code then
    share its variants."""

    __name__ = "planish"
    compiles = 0  # of all of them: while it is the same, Dynamo has no new variant for any

    def __init__(self, settings: Settings):
        self.settings = settings
        self.made: dict[Any, Made] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash(self.settings)

    def __call__(self, module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        Backend.compiles += 1
        made = self.made.setdefault(_compile_id(), Made())
        made.has_symbols = any(map(_is_symbolic, example_inputs))

        def keep(program: Any) -> None:
            made.program = program

        return compile_dynamo(module, example_inputs, self.settings, keep)

    def keep_guards(self, guards: Any) -> None:
        """Called by Dynamo when a variant is done."""
        self.made.setdefault(_compile_id(), Made()).guards = list(guards)


def _compile_id() -> Any:
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


def _is_symbolic(value: Any) -> bool:
    import torch

    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes)
