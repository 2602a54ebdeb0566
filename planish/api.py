"""The Python door: `jit` compiles a NumPy function at its first call for each signature, in stages one can
look into.

@planish.jit
def f(x, w): ...

f(x, w)                       # trace, compile, run; the next call with such arguments only runs
f.trace(x, w).graph           # the stages, as JAX names them
f.trace(x, w).lower().as_text("llvm")
f.traces, f.recompiles        # how often it was traced, and why again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from planish import knobs
from planish.capture.numpy import is_frozen
from planish.capture.pytree import flatten
from planish.compiled import Compiled, Mode, Options, Strategy
from planish.compiler import compile_graph
from planish.ir import Graph
from planish.rewrite import Numerics
from planish.variants.function import Jitted, Recompile
from planish.variants.stages import Lowered, Traced


def jit(
    function: Callable[..., Any] | None = None,
    *,
    mode: Mode = "default",
    numerics: Numerics = "default",
    strategy: Strategy = "native",
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    disable: str | Iterable[str] = (),
) -> Any:
    """Compile a NumPy function. Use as a decorator, with or without options, or call it with the function.

    mode             "default", or "max-autotune": what is decided by rules is measured, once per machine (see
                     docs/tuning.md)
    numerics         "strict", "default" or "fast"
    strategy         "native" (compiled code) or "library" (one NumPy kernel per operation, no compile time)
    static_argnums,  arguments whose value, not only whose type, the program may depend on: they must be
                     hashable, and
    static_argnames  each value is compiled anew. str, bool, None and other plain objects are static by
                     themselves
    disable          names of compiler passes to leave out

    With PLANISH_DISABLE=1, read when this is called, the function runs as it is.

    Raises CaptureError, with the line of the program and what to write instead, for what can't be compiled.
    """
    options = _options(mode, numerics, strategy, disable)
    nums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if function is None:
        return lambda wrapped: Jitted(wrapped, options, nums, names)
    return Jitted(function, options, nums, names)


def make_graph(function: Callable[..., Any], **options: Any) -> Callable[..., Graph]:
    """`make_graph(f)(*args)` is the graph that `f` has on such arguments; print it to read it."""
    jitted = function if isinstance(function, Jitted) else jit(function, **options)
    return lambda *args, **keywords: jitted.trace(*args, **keywords).graph


def load_onnx(
    path: Any,
    *,
    mode: Mode = "default",
    numerics: Numerics = "default",
    strategy: Strategy = "native",
    disable: str | Iterable[str] = (),
    symbols: Mapping[str, int | tuple[int, int | None] | tuple[int, int | None, int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    hint: dict[str, int] | None = None,
) -> Compiled:
    """Compile an ONNX model: a path, its bytes or a ModelProto. The result takes arrays in the order of the
    model's inputs and returns a tuple; `.run(names, feeds)` takes and gives them by name.

    symbols    names of sizes that the model leaves open -> a number, or a range (low, high) or
               (low, high, step)
    constants  names of inputs -> arrays that they always have
    types      names of inputs that are sequences, optionals or of unknown rank -> what they hold: a
               TensorType, a list of them (one input "name.0", "name.1"... each), None
    hint       typical sizes of what stays open, for choices; any other size works too

    mode, numerics, strategy and disable are those of `jit`. With PLANISH_DISABLE=1 the strategy is "library".
    Raises ModelError for what is not a valid model, UnsupportedOp for one with operators that planish does
    not have.
    """
    from planish.capture.onnx import load_graph

    graph = load_graph(path, symbols=symbols, constants=constants, types=types)
    return compile_graph(graph, _options(mode, numerics, strategy, disable), hint=hint)


def _options(mode: Mode, numerics: Numerics, strategy: Strategy, disable: str | Iterable[str]) -> Options:
    return Options(
        mode=mode,
        numerics=numerics,
        strategy="library" if knobs.value("disable") else strategy,
        disable=frozenset((disable,) if isinstance(disable, str) else disable),
    )


def freeze(*values: Any) -> Any:
    """Promise that arrays will not change: they are made read-only (with the arrays they are views of), so
    that a compiled function may fold and repack them. Takes arrays and nested containers of arrays, and
    returns what it was given; numbers and strings in them are left alone. TypeError for any other object,
    whose arrays would stay as they are."""
    leaves = flatten(values)[0]
    for leaf in leaves:
        if not isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex, str, bytes)):
            raise TypeError(
                f"freeze takes arrays, and dicts, lists, tuples and dataclasses of arrays, not "
                f"{type(leaf).__name__}; give it the object's arrays, such as vars(model)"
            )
    for leaf in leaves:
        while isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False
            leaf = leaf.base
    return values[0] if len(values) == 1 else values


__all__ = ["Jitted", "Lowered", "Recompile", "Traced", "freeze", "is_frozen", "jit", "load_onnx",
           "make_graph"]
