"""What a function can read from outside its arguments: found from the names in its code.

In: a function, and the objects among its arguments. Out: `Guards` over what it can reach by name as it is
now: closures, globals, attributes of objects, classes and modules, what is in lists, dicts and sets, default
values, and the same of the Python functions and methods it calls, at any depth. Looked at are the names that
the code uses, strings in it too (`getattr(x, "name")`). What is reached in another way (a file, the
environment, a C library) is not found. Code of Python's own library and of installed packages is not looked
into.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from planish.capture.numpy.guards import CONTAINERS, MISSING, PLAIN, Container, Guards, contents_of
from planish.capture.numpy.tracer import digest, is_frozen

_FOREIGN = {"numpy", "planish", "builtins", *sys.stdlib_module_names} - {"__main__"}
# Methods that Python calls without their name being in the code
_IMPLICIT = tuple(f"__{name}__" for name in (
    "call", "getitem", "getattr", "len", "iter", "contains", "bool", "int", "float", "index", "array", "neg",
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "pow", "rpow"))


def guards_of(function: Any, objects: Sequence[Any] = ()) -> Guards:
    """What the function can read by name, as it is now, and the attributes of `objects` among its
    arguments."""
    walk = _Walk()
    names = walk.callable(function)
    for one in objects:
        walk.value(one, names, type(one).__name__)
    return walk.guards


class _Attributes(Mapping[str, Any]):
    """Attributes of an object that has no dict for them."""

    def __init__(self, owner: Any):
        self.owner = owner

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self.owner))

    def __len__(self) -> int:
        return len(dir(self.owner))


class _Walk:
    def __init__(self) -> None:
        self.guards = Guards()
        self.seen: set[Any] = set()
        self.kept: list[Any] = []  # so that no id is given twice

    def is_new(self, *key: Any) -> bool:
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    # --- functions

    def callable(self, function: Any, name: str = "self") -> tuple[str, ...]:
        """Look into what a call of it runs; the names in its code. `name` is what its owner is called."""
        if isinstance(function, MethodType):
            return self.code(function.__func__, function.__self__, name)
        if isinstance(function, FunctionType):
            return self.code(function, MISSING)
        if isinstance(function, partial):
            names = self.callable(function.func, name)
            for given in (*function.args, *function.keywords.values()):
                self.value(given, names, "an argument of a partial")
            return names
        if _is_wrapper(function):
            return self.callable(function.__wrapped__, name)
        method = type(function).__call__ if callable(function) else None
        return self.code(method, function, name) if isinstance(method, FunctionType) else ()

    def code(self, function: Any, owner: Any, path: str = "self") -> tuple[str, ...]:
        """What a function reads; `owner` is its first argument, if it is a method, and `path` its name."""
        if not isinstance(function, FunctionType):
            return self.callable(function, path)
        names = _names(function)
        if _is_foreign(function.__module__) or not self.is_new(id(function), id(owner)):
            return names
        if owner is not MISSING:
            self.value(owner, names, path)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            value = contents_of(cell)
            if value is not MISSING and self.value(value, names, name):
                self.guards.cells.append((cell, value, name))
        for name in names:
            if name in function.__globals__:
                self.entry(function.__globals__, name, names, name)
            elif name in sys.modules:  # imported inside the function
                self.value(sys.modules[name], names, name)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(default, names, f"a default value of {function.__name__}")
        return names

    # --- values

    def entry(self, place: Mapping[Any, Any], key: str, names: tuple[str, ...], name: str) -> None:
        value = place[key]
        if self.value(value, names, name) and self.is_new("entry", id(place), key):
            self.kept.append(place)
            self.guards.entries.append((place, key, value, name))

    def value(self, value: Any, names: tuple[str, ...], name: str) -> bool:
        """Look into a value that a function with these names reads; whether its identity is to be guarded."""
        if isinstance(value, PLAIN):
            return True
        if isinstance(value, np.ndarray):
            self.array(value, name)
            return True
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            self.guards.generators.append((value, generator_state(value), name))
            return True
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, random.Random):
            return self.value(value.__self__, names, name)
        if isinstance(value, (BuiltinFunctionType, np.ufunc)):
            return False
        if isinstance(value, (FunctionType, MethodType, partial)) or _is_wrapper(value):
            self.callable(value, name)
            self.attributes(getattr(value, "__dict__", {}), names, name)
            return not _is_foreign(getattr(value, "__module__", None))
        if isinstance(value, ModuleType):
            if not _is_foreign(value.__name__) and self.is_new(id(value), names):
                self.attributes(vars(value), names, name)
            return False
        if isinstance(value, CONTAINERS):
            self.container(value, names, name)
            return True
        if self.is_new(id(value), names):
            self.kept.append(value)
            self.object(value, names, name)
        return True

    def array(self, array: np.ndarray, name: str) -> None:
        if id(array) not in self.guards.arrays:
            self.guards.arrays[id(array)] = name
            if is_frozen(array):
                self.guards.frozen.append(array)
            else:
                self.guards.contents.append((array, digest(array)))

    def container(self, value: Any, names: tuple[str, ...], name: str) -> None:
        if not self.is_new(id(value), names):
            return
        container = Container(value, name)
        if self.is_new("container", id(value)):
            self.guards.containers.append(container)
        for leaf, path in container.leaves:
            self.value(leaf, names, path)

    # --- attributes

    def attributes(self, place: Mapping[str, Any], names: tuple[str, ...], name: str) -> None:
        for attribute in names:
            if attribute in place:
                self.entry(place, attribute, names, f"{name}.{attribute}")

    def object(self, owner: Any, names: tuple[str, ...], name: str) -> None:
        """The attributes of an object that the code names, its own and its class's, and its methods."""
        own = getattr(owner, "__dict__", {})
        kind = owner if isinstance(owner, type) else type(owner)
        for attribute in (*names, *_IMPLICIT):
            if attribute in own and kind is not owner:
                self.entry(own, attribute, names, f"{name}.{attribute}")
            else:
                self.inherited(owner, kind, attribute, names, name)
        if kind is owner and not _is_foreign(kind.__module__) and isinstance(kind.__init__, FunctionType):
            self.code(kind.__init__, MISSING)

    def inherited(self, owner: Any, kind: type, attribute: str, names: tuple[str, ...], path: str) -> None:
        """An attribute that the class has, or a class above it."""
        home = next((c for c in kind.__mro__ if attribute in vars(c)), None)
        if home is None or _is_foreign(home.__module__):
            return
        found, name = vars(home)[attribute], f"{path}.{attribute}"
        if isinstance(found, (MemberDescriptorType, GetSetDescriptorType)):
            if owner is not kind and hasattr(owner, attribute) and self.is_new("slot", id(owner), attribute):
                self.entry(_Attributes(owner), attribute, names, name)
            return
        if isinstance(found, FunctionType):
            self.code(found, MISSING if owner is kind else owner, path)
        elif isinstance(found, (staticmethod, classmethod)):
            self.callable(found.__get__(None, kind), path)
        elif isinstance(found, (property, cached_property)):
            if owner is not kind:
                self.code(found.fget if isinstance(found, property) else found.func, owner, path)
            return
        else:
            self.value(found, names, name)
        before = kind.__mro__[:kind.__mro__.index(home)]
        places = [vars(c) for c in before if not _is_foreign(c.__module__)]
        if owner is not kind and hasattr(owner, "__dict__"):
            places.append(owner.__dict__)
        if self.is_new("missing", id(owner), attribute):
            self.guards.entries += [(place, attribute, MISSING, name) for place in places]
        if self.is_new("attribute", id(home), attribute):
            self.guards.entries.append((vars(home), attribute, found, name))


def _is_wrapper(value: Any) -> bool:
    return "__wrapped__" in getattr(value, "__dict__", ())


def _names(function: FunctionType) -> tuple[str, ...]:
    """All names that the code and the code inside it (lambdas, comprehensions) look up."""
    return tuple(dict.fromkeys(_code_names(function.__code__)))


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _code_names(inner)
        elif isinstance(inner, str) and inner.isidentifier():
            yield inner


@cache
def _is_foreign(module: str | None) -> bool:
    """Whether a module is not the user's: NumPy, Python's own, ours, and what else lies among installed
    packages."""
    package = (module or "").split(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in _FOREIGN or "site-packages" in file or "dist-packages" in file


def generator_state(generator: Any) -> str:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    return repr(generator.get_state(legacy=False))
