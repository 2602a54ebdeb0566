"""host: a Python function on NumPy arrays, for what has no native form.

The function goes by a name, under which `host_function` registered it, so a graph with host ops has a text
form and is equal to another by value. Its results' types are stated by the node; a size in them may be a
fresh symbol, which stands for what the actual result's shape says. Whatever uses that symbol runs after the
op. A host function reads its arrays and never writes to them; what it returns may look at them.

A function that only says sizes returns them by `stated`: results of shape (size, 0), which hold nothing.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.errors import ShapeError, TypeRuleError
from planish.ops.record import Op, Sample, Types, register
from planish.types import DTYPES, UINT8, Dim, DType, TensorType

HOST_FUNCTIONS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class HostFunction:
    """A registered function and the keyword arguments it gets: hashable values, in which sizes may stand."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *arrays: np.ndarray) -> Any:
        return HOST_FUNCTIONS[self.name](*arrays, **dict(self.parameters))

    def __str__(self) -> str:
        return self.name


def host_function(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under a name: `f(*arrays, **parameters)` gives an array, or a tuple of them."""
    def register_it(function: Callable[..., Any]) -> Callable[..., Any]:
        if name in HOST_FUNCTIONS or not name.isidentifier():
            raise ValueError(f"{name!r} can't be the name of another host function")
        HOST_FUNCTIONS[name] = function
        return function
    return register_it


@dataclass(frozen=True)
class HostAttributes:
    function: HostFunction
    results: tuple[TensorType, ...]


def stated(sizes: Iterable[int]) -> tuple[np.ndarray, ...]:
    """The results of a function that says sizes: one empty array each."""
    return tuple(np.empty((int(size), 0), np.uint8) for size in sizes)


def stated_type(size: Dim) -> TensorType:
    """The type of one result of such a function."""
    return TensorType(UINT8, (size, 0))


def _host_rule(attributes: HostAttributes, *operands: Types) -> Types:
    if attributes.function.name not in HOST_FUNCTIONS:
        raise TypeRuleError(f"host: no function is registered as {attributes.function.name!r}")
    if any(isinstance(o, tuple) for o in operands):
        raise TypeRuleError("host: an operand has several results; take one of them")
    if not attributes.results:
        raise TypeRuleError(f"host: {attributes.function} is to have a result")
    return attributes.results[0] if len(attributes.results) == 1 else attributes.results


def _host(a: HostAttributes, *arrays: np.ndarray) -> Any:
    """Results of the stated dtypes (float64 for any float, where the operands are wide) and ranks."""
    made = a.function(*arrays)
    results = [np.asarray(r) for r in (made if isinstance(made, tuple) else (made,))]
    if len(results) != len(a.results):
        raise TypeRuleError(f"{a.function} gave {len(results)} results instead of {len(a.results)}")
    for result, type_ in zip(results, a.results):
        wide = type_.dtype.is_float and result.dtype == np.float64
        if (result.dtype != type_.dtype.numpy and not wide) or result.ndim != type_.rank:
            raise ShapeError(f"{a.function} gave {result.dtype}{list(result.shape)} instead of {type_}")
    return results[0] if len(results) == 1 else tuple(results)


def _no_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    return iter(())


host = register(Op("host", "host", _host_rule, _host, HostAttributes, frozenset({"host"}), "exact",
                   _no_samples, DTYPES))
