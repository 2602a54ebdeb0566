"""The oracle: the same function run by NumPy itself, on copies of the same arguments."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planish
from planish.capture.pytree import flatten


@pytest.fixture(params=["library", "native"])
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


RTOL = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-13}


def assert_same(got: Any, expected: Any) -> None:
    """Same structure, types, dtypes, shapes; floats to a few units in the last place, all else exactly."""
    got_leaves, got_tree = flatten(got)
    leaves, tree = flatten(expected)
    assert got_tree == tree
    for g, e in zip(got_leaves, leaves):
        assert type(g) is type(e), f"{type(g).__name__}, NumPy gives {type(e).__name__}"
        if isinstance(e, (np.ndarray, np.generic)):
            assert g.dtype == e.dtype and g.shape == e.shape, (
                f"{g.dtype}{g.shape}, NumPy gives {e.dtype}{e.shape}"
            )
        name = str(getattr(e, "dtype", "float64" if isinstance(e, float) else ""))
        if name in RTOL:
            scale = np.max(np.abs(np.asarray(e, np.float64)), initial=0.0, where=np.isfinite(e))
            np.testing.assert_allclose(
                np.asarray(g, np.float64),
                np.asarray(e, np.float64),
                rtol=RTOL[name],
                atol=RTOL[name] * float(scale),
            )
        else:
            np.testing.assert_array_equal(g, e)


def outcome(function: Callable[..., Any], args: Any) -> tuple[Any, Any]:
    """What a function returns or raises, and its arguments afterwards."""
    args = copy.deepcopy(args)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*args), args
        except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            return error, args


@pytest.fixture
def agree(strategy: str) -> Callable[..., Any]:
    """agree(f, *args): f compiled does what f does: same result, or an error of the same kind, same
    writes."""

    def check(function: Callable[..., Any], *args: Any) -> Any:
        expected, args_then = outcome(function, args)
        jitted = planish.jit(function, strategy=strategy)
        for _ in range(2):
            got, args_now = outcome(jitted, args)
            if isinstance(expected, Exception):
                builtin = next(c for c in type(expected).__mro__ if c.__module__ == "builtins")
                assert isinstance(got, builtin), f"{got!r}, NumPy raises {expected!r}"
                continue
            if isinstance(got, Exception):
                raise got
            assert_same(got, expected)
            assert_same(args_now, args_then)
        return jitted

    return check
