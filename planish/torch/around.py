"""What planish does when Dynamo begins a compile for it, and when that ends.

In: nothing. Out: handlers among Dynamo's own, called when its first compile begins and when its last ends.
Python's collector waits meanwhile: a capture makes very many objects that stay, and the walks over all
objects of the process that they set off are an eighth of BERT's first call. Float arguments are made values
of the call (`floats.py`). planish's native runtime starts meanwhile, on another CPU: where the cache has none
LLVM makes it, a third of what planish adds to a first call. Compiles for other backends are left alone.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from planish.runtime.native import running, runtime, start_ahead
from planish.torch.floats import open_floats
from planish.torch.frames import called_function, captured_frame, is_ours

_was_on: list[bool] = []  # of compiles for planish that run now: whether the collector was on


def attend() -> None:
    """Have the handlers among Dynamo's, if it is loaded: `torch.compiler.reset()` removes them."""
    dynamo = sys.modules.get("torch._dynamo")
    handlers = getattr(dynamo, "callback_handler", None)
    if handlers is not None and _on_start not in handlers.start_callbacks:
        handlers.register_start_callback(_on_start)
        handlers.register_end_callback(_on_end)


def _on_start(*arguments: Any) -> None:
    frame = captured_frame()
    if frame is None or not is_ours(frame.backend):
        return
    called = called_function()
    if called is not None and called.target.__code__ is frame.code:
        open_floats(called)
    _was_on.append(gc.isenabled())
    gc.disable()
    if running() is None:
        start_ahead(lambda: runtime().image("torch"))


def _on_end(*arguments: Any) -> None:
    if _was_on and _was_on.pop():
        if not gc.get_freeze_count():  # what was made counts as old now, without a walk over it
            gc.freeze()
            gc.unfreeze()
        gc.enable()
