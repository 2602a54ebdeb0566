"""`planish.compile`: a torch function or module, compiled at its first call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from planish.torch.around import attend
from planish.torch.direct import shorten
from planish.torch.made import Backend
from planish.torch.settings import settings_of


def compile(
    model: Callable[..., Any],
    *,
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    numerics: str = "default",
    strategy: str = "native",
    freeze: bool = True,
    host: bool = True,
    random: str = "keys",
    disable: Iterable[str] = (),
) -> Any:
    """Compile a torch module or function of torch tensors; the result is called as it is.

    mode       as torch.compile's; "max-autotune" measures what is else decided by rules
    dynamic    None: a size that changes becomes a symbol; True: all at once; False: never
    fullgraph  a graph break is an error
    numerics   "strict", "default" or "fast"
    strategy   "native" (compiled code) or "library" (one NumPy kernel per operation)
    freeze     in inference, parameters and buffers are constants, folded and packed
    host       torch runs operators without a native form; False: they are refused
    random     "keys" (native; torch.manual_seed seeds them) or "eager" (torch draws the numbers, in order)
    disable    names of compiler passes to leave out

    Raises PlanishError for what is none of these.
    """
    import torch

    options = {"numerics": numerics, "strategy": strategy, "freeze": freeze, "host": host, "random": random}
    backend = Backend(settings_of(mode, {**options, "disable": disable}))
    optimize = torch._dynamo.optimize(
        backend, nopython=fullgraph, dynamic=dynamic, guard_export_fn=backend.keep_guards
    )
    attend()
    return shorten(optimize(model), backend)
