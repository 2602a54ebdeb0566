"""planish: a graph compiler for deep learning that shows every decision it makes.

`import planish` is cheap: it loads neither NumPy, llvmlite, onnx, torch nor jax. A public name is resolved at
its first use (PEP 562) from the table below, and then stays in the module like any other name.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> "module" (the submodule itself) or "module:attribute". No name of the second kind may equal
# the name of a submodule: importing that submodule would put the module in the place of the attribute.
_LAZY = {
    "capture": "planish.capture",
    "compile": "planish.torch.entry:compile",
    "compile_graph": "planish.compiler:compile_graph",
    "errors": "planish.errors",
    "explain": "planish.inspect.explain:explain",
    "freeze": "planish.api:freeze",
    "from_exported": "planish.torch.exported:from_exported",
    "get_num_threads": "planish.runtime.threads:get_num_threads",
    "jit": "planish.api:jit",
    "load_onnx": "planish.api:load_onnx",
    "make_graph": "planish.api:make_graph",
    "onnx": "planish.onnx",
    "profile": "planish.inspect.profile:profile",
    "set_num_threads": "planish.runtime.threads:set_num_threads",
}

__all__ = ["__version__", *_LAZY]

if TYPE_CHECKING:  # the same table for type checkers and editors
    from planish import capture as capture
    from planish import errors as errors
    from planish import onnx as onnx
    from planish.api import freeze as freeze
    from planish.api import jit as jit
    from planish.api import load_onnx as load_onnx
    from planish.api import make_graph as make_graph
    from planish.compiler import compile_graph as compile_graph
    from planish.inspect.explain import explain as explain
    from planish.inspect.profile import profile as profile
    from planish.runtime.threads import get_num_threads as get_num_threads
    from planish.runtime.threads import set_num_threads as set_num_threads
    from planish.torch.entry import compile as compile
    from planish.torch.exported import from_exported as from_exported


def __getattr__(name: str) -> Any:
    """Resolve a public name at its first use; raise AttributeError for any other."""
    if name not in _LAZY:
        raise AttributeError(f"module 'planish' has no attribute {name!r}")
    module_name, _, attribute = _LAZY[name].partition(":")
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
