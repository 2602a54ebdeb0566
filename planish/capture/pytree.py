"""Nested arguments and results as flat lists: dict, list, tuple, namedtuple, dataclass, None; all else is a
leaf.

`flatten` gives the leaves and a hashable `Tree`; `Tree.unflatten` puts leaves back in the same containers.
Dicts keep their own order of keys in what is rebuilt, and are told apart by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Tree:
    """The structure around leaves. `kind` is the container's type, or None for a leaf; `keys` its keys or
    fields."""

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.keys, self.children)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        rest = iter(leaves)
        result = self._build(rest)
        if next(rest, rest) is not rest:
            raise ValueError("there are more leaves than the tree has places")
        return result

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        if self.kind is type(None):
            return None
        parts = [child._build(leaves) for child in self.children]
        if issubclass(self.kind, tuple):
            return self.kind._make(parts) if hasattr(self.kind, "_make") else self.kind(parts)
        if issubclass(self.kind, list):
            return self.kind(parts)
        named = dict(zip(self.keys, parts))
        if issubclass(self.kind, dict):
            return self.kind(named)
        made = object.__new__(self.kind)
        for name, part in named.items():
            object.__setattr__(made, name, part)
        return made

    def paths(self, prefix: str = "") -> Iterator[str]:
        """A name for each leaf, in order: `params['w'][0]`."""
        if self.kind is None:
            yield prefix
        for key, child in zip(self.keys or range(len(self.children)), self.children):
            yield from child.paths(prefix + self._step(key))

    def _step(self, key: Any) -> str:
        attribute = self.kind is not None and (is_dataclass(self.kind) or hasattr(self.kind, "_make"))
        return f".{key}" if attribute else f"[{key!r}]"


LEAF = Tree(None)
NONE = Tree(type(None))


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of `value` from left to right, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves)


def _flatten(value: Any, leaves: list[Any]) -> Tree:
    if value is None:
        return NONE
    parts = parts_of(value)
    if parts is None:
        leaves.append(value)
        return LEAF
    keys, children = parts
    return Tree(type(value), keys, tuple(_flatten(child, leaves) for child in children))


def parts_of(value: Any) -> tuple[tuple[Any, ...], Sequence[Any]] | None:
    """Keys and children of a container, or None for a leaf. Subclasses of dict with their own making are
    leaves."""
    kind = type(value)
    if kind in (list, tuple):
        return (), value
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return kind._fields, value
    if kind is dict or kind.__name__ == "OrderedDict":
        return tuple(value), list(value.values())
    if is_dataclass(kind):
        names = tuple(f.name for f in fields(kind))
        return names, [getattr(value, n) for n in names]
    return None
