"""Guards: what a function read from outside its arguments, as it was, and whether it is still the same.

`outside.py` finds what that is. Numbers, strings, functions, objects and containers are guarded by identity,
numbers and strings by value too. An array is guarded by identity, since its content is read at every call;
by its content where the program was made from that (`contents`); and to stay read-only where it is compiled
in (`frozen`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter, is_
from types import CellType
from typing import Any

import numpy as np

from planish.capture.numpy.tracer import digest

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
MISSING = object()

_is_writeable = attrgetter("flags.writeable")


class Container:
    """A container as it was: what it and the containers in it held. Looked at first is who is in it: most of
    the time they are the same objects."""

    def __init__(self, value: Any, name: str):
        self.value, self.name = value, name
        self.leaves: list[tuple[Any, str]] = []
        self.parts: list[tuple[Any, tuple[Any, ...]]] = []
        self._seen: set[int] = set()
        self._look(value, name)

    def _look(self, value: Any, path: str) -> None:
        """Enter what may change, and go through what is in it."""
        if not isinstance(value, CONTAINERS):
            self.leaves.append((value, path))
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, dict):
            self.parts += [(value, tuple(value)), (value.values(), tuple(value.values()))]
        elif not isinstance(value, (tuple, frozenset)):
            self.parts.append((value, tuple(value)))
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            self._look(child, f"{path}[{key!r}]")

    def holds(self) -> bool:
        return all(len(now) == len(old) and (all(map(is_, now, old)) or all(map(alike, old, now)))
                   for now, old in self.parts)


def alike(old: Any, new: Any) -> bool:
    """Whether a value may stand for another: the same object, an equal number or string, a container of such
    values."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, PLAIN):
        return bool(old == new)
    if not isinstance(old, CONTAINERS) or len(old) != len(new):
        return False
    if isinstance(old, dict) and not all(map(alike, old.values(), new.values())):
        return False
    return all(map(alike, old, new))


@dataclass
class Guards:
    """`entries` are (where it is looked up, key, value then, name); cells of closures are looked up in their
    own way. `arrays` are the names of arrays. While the function is traced, `contents` are all writeable ones
    that have a name; then those that the program does not read by itself."""

    entries: list[tuple[Mapping[Any, Any], Any, Any, str]] = field(default_factory=list)
    cells: list[tuple[CellType, Any, str]] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    frozen: list[np.ndarray] = field(default_factory=list)
    contents: list[tuple[np.ndarray, int]] = field(default_factory=list)
    arrays: dict[int, str] = field(default_factory=dict)
    generators: list[tuple[Any, Any, str]] = field(default_factory=list)

    def holds(self) -> bool:
        """Whether everything is as it was. Fast: identities first."""
        for place, key, old, _ in self.entries:
            new = place.get(key, MISSING)
            if new is not old and not alike(old, new):
                return False
        for cell, old, _ in self.cells:
            if contents_of(cell) is not old and not alike(old, contents_of(cell)):
                return False
        if not all(container.holds() for container in self.containers):
            return False
        if any(map(_is_writeable, self.frozen)):
            return False
        return all(digest(array) == old for array, old in self.contents)

    def change(self) -> tuple[str, str, str] | None:
        """Name, old and new value of the first thing that changed."""
        for place, key, old, name in self.entries:
            new = place.get(key, MISSING)
            if not alike(old, new):
                return name, _show(old), _show(new)
        for cell, old, name in self.cells:
            if not alike(old, contents_of(cell)):
                return name, _show(old), _show(contents_of(cell))
        for container in self.containers:
            if not container.holds():
                return container.name, "its elements at capture", "others"
        for array in self.frozen:
            if array.flags.writeable:
                return self.arrays.get(id(array), "an array"), "frozen", "writeable"
        for array, before in self.contents:
            if digest(array) != before:
                return self.arrays.get(id(array), "an array"), "its content at capture", "other content"
        return None

    def names(self) -> list[str]:
        """A line for each thing that is guarded."""
        lines = [f"{name} is {_show(old)}" for _, _, old, name in self.entries]
        lines += [f"{name} is {_show(old)}" for _, old, name in self.cells]
        lines += [f"{c.name} has the elements it had" for c in self.containers]
        lines += [f"{self.arrays.get(id(a), 'an array')} is frozen" for a in self.frozen]
        lines += [f"{self.arrays.get(id(a), 'an array')} has its content" for a, _ in self.contents]
        return lines

    @property
    def is_empty(self) -> bool:
        return not (self.entries or self.cells or self.containers or self.frozen or self.contents)


def contents_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet, or deleted
        return MISSING


def _show(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype.name}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__} {text[:30]}..."
