"""The table of NumPy functions: `@implements(np.sum)` puts one in, NumPy's own protocol (NEP 18) finds it.

A handler has the parameters of the NumPy function; a keyword it does not know is a CaptureError that names
both. `method=True` makes it a method of traced arrays too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from planish.capture.location import user_location
from planish.capture.numpy.tracer import Tracer, known, unsupported
from planish.errors import CaptureError

FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def implements(*functions: Any, method: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            FUNCTIONS[function] = handler
            if method:
                setattr(Tracer, function.__name__, _method(function))
        return handler

    return add


def _method(function: Any) -> Callable[..., Any]:
    def call(self: Tracer, *args: Any, **keywords: Any) -> Any:
        return dispatch(function, (self, *args), keywords)

    call.__name__ = function.__name__
    return call


def dispatch(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Call the handler of a NumPy function; where no argument of the program goes in, NumPy itself."""
    handler = FUNCTIONS.get(function)
    args, keywords = unbuffered(args), unbuffered(keywords)
    if handler is None:
        if _all_known((args, keywords)):
            return _call_known(function, args, keywords)
        raise unsupported(_name(function))
    keywords = {k: v for k, v in keywords.items() if v is not np._NoValue}
    try:
        bound = inspect.signature(handler).bind(*args, **keywords)
    except TypeError as error:
        if _fits(function, args, keywords):
            raise CaptureError(
                f"{user_location()}: {_name(function)}: {error} in a compiled function; "
                "leave it out or compute outside"
            ) from None
        raise
    return handler(*bound.args, **bound.kwargs)


def _fits(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether NumPy's own function takes these arguments."""
    try:
        inspect.signature(function).bind(*args, **keywords)
    except (TypeError, ValueError):
        return False
    return True


def _name(function: Any) -> str:
    module = (getattr(function, "__module__", None) or "numpy").replace("numpy", "np", 1)
    return f"{module}.{function.__name__}"


def unbuffered(value: Any) -> Any:
    """Arrays that the function allocated, as the traced arrays they stand for."""
    if isinstance(value, dict):
        return {k: unbuffered(v) for k, v in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(unbuffered, value))
    if isinstance(value, np.ndarray) and getattr(value, "tracer", None) is not None:
        return value.tracer  # type: ignore[attr-defined]
    return value


def _all_known(value: Any) -> bool:
    if isinstance(value, Tracer):
        return value.known is not None
    if isinstance(value, dict):
        return all(map(_all_known, value.values()))
    return all(map(_all_known, value)) if isinstance(value, (tuple, list)) else True


def _values(value: Any) -> Any:
    if isinstance(value, Tracer):
        assert value.known is not None
        return value.known.item() if value.weak else value.known[()] if value.scalar else value.known
    if isinstance(value, dict):
        return {k: _values(v) for k, v in value.items()}
    return type(value)(map(_values, value)) if type(value) in (tuple, list) else value


def _call_known(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _wrapped(function(*_values(args), **_values(keywords)))


def _wrapped(made: Any) -> Any:
    if type(made) in (tuple, list):
        return type(made)(map(_wrapped, made))
    if isinstance(made, (np.ndarray, np.generic)) and made.dtype.kind in "biuf":
        return known(np.array(made), scalar=isinstance(made, np.generic))
    return made


def array_function(
    self: Tracer, function: Any, types: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """NumPy's protocol (NEP 18)."""
    return dispatch(function, args, keywords)


Tracer.__array_function__ = array_function  # type: ignore[attr-defined]
