"""The function that Dynamo is capturing, read from the stack.

In: nothing. Out: its code, the scope of the call and the backend, or None.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from planish.torch.recompiles import Recompile, recompile_of

CONVERT_FRAME = "torch._dynamo.convert_frame"


@dataclass(frozen=True)
class CapturedFrame:
    """The function that Dynamo is capturing: its code, the scope of the call, the backend."""

    code: CodeType
    local: Mapping[str, Any]
    world: Mapping[str, Any]
    backend: Any

    @property
    def function(self) -> str:
        """Its name: of a module's `forward`, with the class."""
        first = self.local.get(next(iter(self.code.co_varnames), ""))
        owner = self.local.get("fn", first)  # torch's `inner` holds the module that it calls as `fn`
        if self.code.co_name in ("forward", "inner") and hasattr(owner, "forward"):
            return f"{type(owner).__name__}.forward"
        return self.code.co_name

    @property
    def place(self) -> str:
        return f"{self.code.co_filename}:{self.code.co_firstlineno}"

    def recompile(self, reason: str) -> Recompile:
        """The record of a guard that failed for this call."""
        scope = {**self.local, "L": self.local, "G": self.world}
        return recompile_of(self.function, self.place, reason, scope)


def captured_frame() -> CapturedFrame | None:
    """The function that Dynamo is capturing in this thread: the arguments of its `_compile`, on the stack.
    None outside, and where a version of torch calls them something else."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == CONVERT_FRAME:
            found = frame.f_locals
            names = ("code", "locals", "globals", "compiler_fn")
            return CapturedFrame(*(found[n] for n in names)) if all(n in found for n in names) else None
        frame = frame.f_back
    return None


def is_ours(backend: Any) -> bool:
    """Whether a backend, unwrapped, is planish's."""
    for _ in range(10):
        if str(getattr(backend, "__module__", "")).partition(".")[0] == "planish":
            return True
        names = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")
        inner = next((getattr(backend, n) for n in names if hasattr(backend, n)), None)
        if inner is None:
            return False
        backend = inner
    return False
