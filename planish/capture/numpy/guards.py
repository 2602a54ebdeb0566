"""Guards: what a function read from outside its arguments, and whether it is still the same.

Read through closures, globals, `self` and the helper functions it calls: numbers, strings, tuples, lists,
dicts, arrays, functions and attributes of objects. An array is guarded by identity: its content is read at
every call, or the array is frozen. What is reached in another way (a file, a C library, an object's property)
is not guarded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from planish.capture.numpy.tracer import digest
from planish.capture.pytree import flatten, parts_of

DEPTH = 4  # objects within objects that are looked into
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_MISSING = object()
_FOREIGN = {"numpy", "planish", "builtins", *sys.stdlib_module_names}


_is_writeable = attrgetter("flags.writeable")


class Container:
    """A container as it was: its leaves, and of every list and dict in it the children, which are looked at
    first. They are what can change: a tuple that is the same one has the same children."""

    def __init__(self, value: Any, name: str):
        self.value, self.name = value, name
        self.leaves, self.tree = flatten(value)
        self.parts: list[tuple[Any, tuple[Any, ...]]] = []
        self.is_plain = self._look(value)

    def _look(self, value: Any) -> bool:
        """Enter the lists and dicts; False if something else in it may change."""
        found = parts_of(value)
        if found is None:
            return True
        keys, children = found
        if type(value) is dict:
            self.parts += [(value, keys), (value.values(), tuple(children))]
        elif type(value) is list:
            self.parts.append((value, tuple(children)))
        elif not isinstance(value, tuple):
            return False
        return all(map(self._look, children))

    def holds(self) -> bool:
        if self.is_plain and all(len(now) == len(old) and all(map(is_, now, old)) for now, old in self.parts):
            return True
        now, tree = flatten(self.value)
        return tree == self.tree and all(map(_same, self.leaves, now))


@dataclass
class Guards:
    """`entries` are (where it is looked up, key, value then, name); cells of closures are looked up in their
    own way."""

    entries: list[tuple[Mapping[Any, Any], Any, Any, str]] = field(default_factory=list)
    cells: list[tuple[CellType, Any, str]] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    frozen: list[np.ndarray] = field(default_factory=list)
    contents: list[tuple[np.ndarray, int]] = field(
        default_factory=list
    )  # index arrays compiled in, and their checksum
    arrays: dict[int, str] = field(default_factory=dict)
    generators: list[tuple[Any, Any, str]] = field(default_factory=list)

    def holds(self) -> bool:
        """Whether everything is as it was. Fast: identities first."""
        for place, key, old, _ in self.entries:
            new = place.get(key, _MISSING)
            if new is not old and not _same(old, new):
                return False
        for cell, old, _ in self.cells:
            if cell.cell_contents is not old and not _same(old, cell.cell_contents):
                return False
        if not all(container.holds() for container in self.containers):
            return False
        if any(map(_is_writeable, self.frozen)):
            return False
        return all(digest(array) == old for array, old in self.contents)

    def change(self) -> tuple[str, str, str] | None:
        """Name, old and new value of the first thing that changed."""
        for place, key, old, name in self.entries:
            new = place.get(key, _MISSING)
            if new is not old and not _same(old, new):
                return name, _show(old), _show(new)
        for cell, old, name in self.cells:
            if not _same(old, cell.cell_contents):
                return name, _show(old), _show(cell.cell_contents)
        for container in self.containers:
            if not container.holds():
                return container.name, "its elements at capture", "others"
        for array in self.frozen:
            if array.flags.writeable:
                return self.arrays.get(id(array), "an array"), "frozen", "writeable"
        for array, old in self.contents:
            if digest(array) != old:
                return self.arrays.get(id(array), "an index array"), "its content at capture", "other content"
        return None

    def names(self) -> list[str]:
        """A line for each thing that is guarded."""
        lines = [f"{name} is {_show(old)}" for _, _, old, name in self.entries]
        lines += [f"{name} is {_show(old)}" for _, old, name in self.cells]
        lines += [f"{c.name} has the elements it had" for c in self.containers]
        lines += [f"{self.arrays.get(id(a), 'an array')} is frozen" for a in self.frozen]
        lines += [f"{self.arrays.get(id(a), 'an index array')} has its content" for a, _ in self.contents]
        return lines

    @property
    def is_empty(self) -> bool:
        return not (self.entries or self.cells or self.containers or self.frozen or self.contents)


def _same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and isinstance(old, _PLAIN) and bool(old == new))


def _show(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype.name}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__} {text[:30]}..."


def guards_of(function: Any, objects: Sequence[Any] = ()) -> Guards:
    """What the function can read by name, as it is now, and the attributes of `objects` among its
    arguments."""
    guards = Guards()
    walk = _Walk(guards)
    walk.callable(function, 0)
    for one in objects:
        if not isinstance(one, _PLAIN):
            walk.members(one, _names(function), 0, type(one).__name__)
    return guards


class _Walk:
    def __init__(self, guards: Guards):
        self.guards, self.seen = guards, set[int]()
        self.owner: Any = None  # the object whose methods are being looked into

    def callable(self, function: Any, depth: int) -> None:
        owner = function.__self__ if isinstance(function, MethodType) else None
        function = getattr(function, "__func__", function)
        function = getattr(function, "__wrapped__", function)
        if (
            not isinstance(function, FunctionType)
            or id(function) in self.seen
            or _is_foreign(function.__module__)
        ):
            return
        self.seen.add(id(function))
        names = _names(function)
        if owner is not None:
            self.members(owner, names, depth, "self")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            value = _contents(cell)
            if value is not _MISSING and self.value(value, names, depth + 1, name):
                self.guards.cells.append((cell, value, name))
        for name in names:
            if name in function.__globals__:
                self.entry(function.__globals__, name, names, depth + 1, name)

    def entry(
        self, place: Mapping[Any, Any], key: str, names: tuple[str, ...], depth: int, name: str
    ) -> None:
        if any(p is place and k == key for p, k, _, _ in self.guards.entries):
            return
        value = place[key]
        if self.value(value, names, depth, name):
            self.guards.entries.append((place, key, value, name))

    def value(self, value: Any, names: tuple[str, ...], depth: int, name: str) -> bool:
        """Look into a value that the function reads; whether its identity is to be guarded."""
        if isinstance(value, _PLAIN):
            return True
        if isinstance(value, np.ndarray):
            self.guards.arrays[id(value)] = name
            return True
        if isinstance(value, (np.random.Generator, np.random.RandomState)):
            self.guards.generators.append((value, generator_state(value), name))
            return True
        if isinstance(value, (FunctionType, MethodType)) or hasattr(value, "__wrapped__"):
            self.callable(value, depth)
            return not _is_foreign(getattr(value, "__module__", None))
        if isinstance(value, (type, BuiltinFunctionType, np.ufunc)):
            return False
        if isinstance(value, ModuleType):
            if not _is_foreign(value.__name__):
                self.members(value, names, depth, name)
            return False
        if isinstance(value, (list, tuple, dict)):
            self.container(value, names, depth, name)
            return True
        self.members(value, names, depth, name)
        return True

    def container(self, value: Any, names: tuple[str, ...], depth: int, name: str) -> None:
        container = Container(value, name)
        self.guards.containers.append(container)
        for leaf, path in zip(container.leaves, container.tree.paths(name)):
            if depth < DEPTH:
                self.value(leaf, names, depth + 1, path)

    def members(self, owner: Any, names: tuple[str, ...], depth: int, name: str) -> None:
        """The attributes of an object that the function names, and its methods."""
        attributes = getattr(owner, "__dict__", None)
        if attributes is None or depth > DEPTH or (id(owner) in self.seen and owner is not self.owner):
            return
        self.seen.add(id(owner))
        for attribute in names:
            if attribute in attributes:
                self.entry(attributes, attribute, names, depth + 1, f"{name}.{attribute}")
        outer, self.owner = self.owner, owner
        for attribute in ("__call__", *names):
            method = getattr(type(owner), attribute, None)
            if isinstance(method, FunctionType):
                self.callable(method.__get__(owner), depth + 1)
        self.owner = outer


def _names(function: Any) -> tuple[str, ...]:
    """All names that the code and the code inside it (lambdas, comprehensions) look up."""
    return tuple(dict.fromkeys(_code_names(function.__code__))) if hasattr(function, "__code__") else ()


def _code_names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if hasattr(inner, "co_names"):
            yield from _code_names(inner)


def _is_foreign(module: str | None) -> bool:
    return (module or "").split(".")[0] in _FOREIGN


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def generator_state(generator: Any) -> str:
    state = (
        generator.bit_generator.state
        if isinstance(generator, np.random.Generator)
        else generator.getgenerator_state(legacy=False)
    )
    return repr(state)
