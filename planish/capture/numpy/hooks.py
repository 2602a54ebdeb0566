"""What NumPy and Python do not let a tracer take part in, for as long as a trace runs.

`np.asarray(x)`, `np.array([x, y])`, `np.zeros(n)` are no part of NumPy's protocols: while a function is
traced they give tracers. `print` warns, and global random numbers, NumPy's and Python's, refuse: both would
happen once, at trace time. The hooks act only for the tracing thread, never inside NumPy itself, and are
taken out when the last trace ends.
"""

from __future__ import annotations

import builtins
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

from planish.capture.location import user_location
from planish.capture.numpy.buffer import buffer, install_forwards
from planish.capture.numpy.create import filled
from planish.capture.numpy.shape import materialised
from planish.capture.numpy.tracer import ACTIVE, Tracer, as_tracer, has_tracer
from planish.errors import CaptureError, CaptureWarning

_lock = threading.Lock()
_users = 0
_undo: list[Callable[[], None]] = []


@contextmanager
def hooked() -> Iterator[None]:
    """Put the hooks in; take them out when no trace is left."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _install()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                while _undo:
                    _undo.pop()()


def _install() -> None:
    _replace(builtins, "print", _warning_print(builtins.print))
    for name, make in _CONVERSIONS.items():
        _replace(np, name, _while_tracing(getattr(np, name), lambda args, kw: has_tracer(args[:1]), make))
    for name, make in _CREATIONS.items():
        _replace(np, name, _while_tracing(getattr(np, name), lambda args, kw: True, make))
    for name, value in vars(np.random).items():
        if isinstance(getattr(value, "__self__", None), np.random.RandomState) and name not in (
            "seed",
            "get_state",
            "set_state",
        ):
            _replace(np.random, name, _while_tracing(value, lambda args, kw: True, _refuse_random(name)))
    for name, value in vars(random).items():
        if isinstance(getattr(value, "__self__", None), random.Random) and name not in (
            "seed",
            "getstate",
            "setstate",
        ):
            _replace(random, name, _while_tracing(value, lambda args, kw: True, _refuse_random(name, "")))
    refuse = _refuse_random("default_rng() without a seed")
    made = _while_tracing(np.random.default_rng, lambda args, kw: not args and not kw, refuse)
    _replace(np.random, "default_rng", made)


def _replace(place: Any, name: str, new: Any) -> None:
    old = getattr(place, name)

    def undo() -> None:
        if getattr(place, name) is new:
            setattr(place, name, old)

    _undo.append(undo)
    setattr(place, name, new)


def _while_tracing(
    original: Any, concerns: Callable[[Any, Any], bool], make: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(original)
    def replacement(*args: Any, **keywords: Any) -> Any:
        tracing = ACTIVE.trace is not None and concerns(args, keywords)
        if tracing and not sys._getframe(1).f_globals.get("__name__", "").startswith(("numpy", "planish")):
            return make(*args, **keywords)
        return original(*args, **keywords)

    return replacement


def _warning_print(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def print_and_warn(*args: Any, **keywords: Any) -> Any:
        if ACTIVE.trace is not None:
            warnings.warn(
                CaptureWarning(
                    f"{user_location()}: print runs once, while the function is traced, not at every "
                    "call; print the result outside"
                ),
                stacklevel=2,
            )
        return original(*args, **keywords)

    return print_and_warn


def _refuse_random(name: str, module: str = "np.") -> Callable[..., Any]:
    def refuse(*args: Any, **keywords: Any) -> Any:
        raise CaptureError(
            f"{user_location()}: {module}random.{name} would draw once, while the function is traced, and "
            "give the same numbers at every call; draw outside and pass them as an argument"
        )

    return refuse


def _asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, like: Any = None, device: Any = None
) -> Tracer:
    x = as_tracer(a)
    if dtype is not None and np.dtype(dtype) != x.dtype:
        return x.astype(dtype)
    return materialised(x) if copy or (x.scalar and x.known is None) else x


def _array(
    object: Any,
    dtype: Any = None,
    *,
    copy: Any = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
    like: Any = None,
) -> Tracer:
    x = _asarray(object, dtype, copy=copy)
    return x if x.ndim >= ndmin else x.reshape((1,) * (ndmin - x.ndim) + x.shape)


def _ascontiguous(a: Any, dtype: Any = None, *, like: Any = None) -> Tracer:
    x = _asarray(a, dtype)
    return x if all(step.is_reshape for step in x.steps) and x.ndim else np.atleast_1d(materialised(x))  # type: ignore[return-value]


_CONVERSIONS: dict[str, Callable[..., Any]] = {
    "asarray": _asarray,
    "asanyarray": _asarray,
    "array": _array,
    "ascontiguousarray": _ascontiguous,
}


def _created(shape: Any, value: Any, dtype: Any, order: Any) -> Any:
    made = filled(shape, value, dtype)
    return made if made.known is None else buffer(np.asarray(made.known, order=order))


_CREATIONS: dict[str, Callable[..., Any]] = {
    "zeros": lambda shape, dtype=np.float64, order="C", **kw: _created(shape, 0, dtype, order),
    "ones": lambda shape, dtype=np.float64, order="C", **kw: _created(shape, 1, dtype, order),
    "empty": lambda shape, dtype=np.float64, order="C", **kw: _created(shape, 0, dtype, order),
    "full": lambda shape, fill_value, dtype=None, order="C", **kw: _created(shape, fill_value, dtype, order),
}
install_forwards()
