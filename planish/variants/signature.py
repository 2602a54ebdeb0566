"""What a call is compiled for: the structure of its arguments and, per leaf, what the program depends on.

In: a call's arguments. Out: their leaves and a `Signature`, which is the key of a variant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.capture.pytree import LEAF, Tree, flatten


class Static:
    """An argument that is part of the signature by its value."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


@dataclass(frozen=True)
class Signature:
    """What a call is compiled for: the structure of the arguments and a key per leaf. Hash computed at each
    call."""

    tree: Tree
    keys: tuple[Any, ...]


_INT64 = range(-(2**63), 2**63)


def leaf_key(leaf: Any) -> tuple[Any, ...]:
    """What of a leaf the program depends on: dtype and shape of arrays, type of numbers, value of anything
    else."""
    kind = type(leaf)
    if kind is np.ndarray or kind is np.memmap:
        return leaf.dtype, leaf.shape
    if kind is float or (kind is int and leaf in _INT64):
        return (kind,)
    if (isinstance(leaf, np.generic) and leaf.dtype.kind != "b") or kind is np.bool_:
        return leaf.dtype, "scalar"
    if kind is slice:  # hashable itself only since Python 3.12
        return kind, (leaf.start, leaf.stop, leaf.step)
    return kind, leaf.value if kind is Static else leaf


def is_runtime(key: tuple[Any, ...]) -> bool:
    """Whether a leaf with this key is an input of the graph, rather than a value compiled in."""
    return len(key) == 1 or isinstance(key[0], np.dtype)


def describe(key: tuple[Any, ...]) -> str:
    if len(key) == 1:
        return str(key[0].__name__)
    if isinstance(key[0], np.dtype):
        return (
            f"{key[0].name} scalar" if key[1] == "scalar" else f"{key[0].name}[{', '.join(map(str, key[1]))}]"
        )
    return repr(key[1])


def is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def flat_key(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """dtype and shape of each argument, if all are plain arrays."""
    key = []
    for array in args:
        if type(array) is not np.ndarray:
            return None
        key.append((array.dtype, array.shape))
    return tuple(key)


def unwrapped(leaf: Any) -> Any:
    return leaf.value if type(leaf) is Static else leaf


def flatten_arguments(args: tuple[Any, ...], keywords: dict[str, Any], leaves: list[Any]) -> Tree:
    if all(type(a) is np.ndarray for a in args) and not keywords:
        leaves += args
        return _flat_tree(len(args))
    found, tree = flatten((tuple(args), keywords))
    leaves += found
    return tree


_FLAT: dict[int, Tree] = {}


def _flat_tree(count: int) -> Tree:
    if count not in _FLAT:
        _FLAT[count] = Tree(tuple, (), (Tree(tuple, (), (LEAF,) * count), Tree(dict)))
    return _FLAT[count]


def parameters_of(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # some C functions do not tell
        return inspect.signature(lambda *args, **keywords: None)


def static_parameters(
    signature: inspect.Signature, nums: tuple[int, ...], names: tuple[str, ...]
) -> frozenset[str]:
    parameters = list(signature.parameters)
    for name in names:
        if name not in parameters:
            raise ValueError(
                f"static_argnames has {name!r}; the function's parameters are "
                f"{', '.join(parameters) or 'none'}"
            )
    for num in nums:
        if not -len(parameters) <= num < len(parameters):
            raise ValueError(f"static_argnums has {num}; the function has {len(parameters)} parameters")
    return frozenset(names) | {parameters[n] for n in nums}


def positional_count(signature: inspect.Signature) -> int | None:
    """How many arguments a plain call has, if all parameters are positional; else None: every call is bound
    by name."""
    kinds = {p.kind for p in signature.parameters.values()}
    simple = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return len(signature.parameters) if kinds <= simple else None
