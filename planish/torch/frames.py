"""The function that Dynamo is capturing, and the call that it captures it for, read from the stack.

In: nothing. Out: its code, the scope of the call and the backend; the function as the user called it; or
None.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from planish.torch.recompiles import Recompile, recompile_of

CONVERT_FRAME, EVAL_FRAME = "torch._dynamo.convert_frame", "torch._dynamo.eval_frame"


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


@dataclass(frozen=True)
class CalledFunction:
    """A call of a compiled function: what was compiled, and the arguments; of a method without its object."""

    target: FunctionType
    is_method: bool
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


def captured_frame() -> CapturedFrame | None:
    """The function that Dynamo is capturing in this thread: the arguments of its `_compile`, on the stack.
    None outside, and where a version of torch calls them something else."""
    found = _locals_of(CONVERT_FRAME, "_compile", ("code", "locals", "globals", "compiler_fn"))
    return None if found is None else CapturedFrame(*found)


def called_function() -> CalledFunction | None:
    """The innermost call of a compiled function in this thread: the arguments of torch.compile's wrapper, on
    the stack; of a module, its `forward`. None outside, for what is no Python function, and where a version
    of torch calls them something else."""
    found = _locals_of(EVAL_FRAME, "compile_wrapper", ("fn", "args", "kwargs"))
    if found is None:
        return None
    function, arguments, keywords = found
    if getattr(function, "__name__", "") == "_wrapped_call_impl":
        function = function.__self__.forward
    target = getattr(function, "__func__", function)
    if not isinstance(target, FunctionType):
        return None
    return CalledFunction(target, isinstance(function, MethodType), arguments, keywords)


def _locals_of(module: str, function: str, names: Sequence[str]) -> list[Any] | None:
    """Local values of the innermost call of a function on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
            found = frame.f_locals
            return [found[n] for n in names] if all(n in found for n in names) else None
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
