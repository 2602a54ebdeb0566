"""Arrays that a traced function allocates with np.zeros, np.ones, np.empty, np.full: real ones, until it
writes to them.

A `Buffer` is a real ndarray, so that C and Cython code which allocates during a trace gets what it expects.
To Python it behaves as the traced array over its memory, and goes on as one when a traced value is written to
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planish.capture.numpy.tracer import ACTIVE, Tracer, known


class Buffer(np.ndarray):
    """`tracer` is what it stands for; None for a view that compiled code made of one."""

    tracer: Tracer | None = None


def buffer(array: np.ndarray) -> Buffer:
    made = array.view(Buffer)
    made.tracer = known(array)
    return made


def _forward(name: str, of_tracer: Any, of_array: Any) -> Any:
    def method(self: Buffer, *args: Any, **keywords: Any) -> Any:
        tracer = self.tracer
        if tracer is None or tracer.storage.trace is not ACTIVE.trace:
            return of_array(self.view(np.ndarray), *args, **keywords)
        return of_tracer(tracer, *args, **keywords)

    method.__name__ = name
    return method


def _array_ufunc(self: Buffer, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
    if ACTIVE.trace is not None:
        return Tracer.__array_ufunc__(None, ufunc, method, *inputs, **keywords)  # type: ignore[attr-defined]
    return getattr(ufunc, method)(*map(_plain, inputs), **{k: _plain(v) for k, v in keywords.items()})


def _array_function(self: Buffer, function: Any, types: Any, args: Any, keywords: Any) -> Any:
    if ACTIVE.trace is not None:
        return Tracer.__array_function__(None, function, types, args, keywords)  # type: ignore[attr-defined]
    return function(*_plain(args), **_plain(keywords))


def _plain(value: Any) -> Any:
    if isinstance(value, Buffer):
        return value.view(np.ndarray)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


def install_forwards() -> None:
    """Every method that a traced array has goes to the traced array."""
    own = {
        "__init__",
        "__getattr__",
        "__array__",
        "__repr__",
        "__hash__",
        "__array_ufunc__",
        "__array_function__",
        "through",
        "assign",
        "concrete",
    }
    for name, value in vars(Tracer).items():
        if name not in own and callable(value) and hasattr(np.ndarray, name):
            setattr(Buffer, name, _forward(name, value, getattr(np.ndarray, name)))
    for name in ("T", "mT", "flat", "real"):
        setattr(
            Buffer,
            name,
            property(_forward(name, getattr(Tracer, name).fget, getattr(np.ndarray, name).__get__)),
        )
    Buffer.__array_ufunc__ = _array_ufunc  # type: ignore[method-assign, assignment]
    Buffer.__array_function__ = _array_function  # type: ignore[method-assign, assignment]
    Buffer.__hash__ = None
