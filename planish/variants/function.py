"""`Jitted`: a function that finds the compiled variant of a call, or traces and compiles it."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import numpy as np

from planish import knobs
from planish.capture.location import user_location
from planish.capture.numpy import ACTIVE, Captured, NeedsValue, trace_function
from planish.capture.pytree import Tree
from planish.compiler import Compiled, Options, Report, compile_graph
from planish.errors import SignatureError
from planish.logs import channel
from planish.variants.program import Program
from planish.variants.signature import (
    Signature,
    Static,
    describe,
    flat_key,
    flatten_arguments,
    is_hashable,
    is_runtime,
    leaf_key,
    parameters_of,
    positional_count,
    static_parameters,
    unwrapped,
)
from planish.variants.stages import Lowered, Traced

VARIANTS = 64  # signatures kept per function; the one not used for longest goes first


@dataclass(frozen=True)
class Recompile:
    """Why a function was traced again: what changed, from what, to what."""

    argument: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.argument}: {self.old} -> {self.new}"


class Jitted:
    """A function that compiles itself; see `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        static_nums: tuple[int, ...],
        static_names: tuple[str, ...],
    ):
        if not callable(function):
            raise TypeError(f"jit compiles functions; {type(function).__name__} is not callable")
        update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.function, self.options, self._given = function, options, (static_nums, static_names)
        self._plain = knobs.value("disable")
        self.traces = 0
        self.recompiles: list[Recompile] = []
        self._parameters = parameters_of(function)
        self._has_defaults = inspect.isfunction(function) or inspect.ismethod(
            function
        )  # C functions know their own
        self._static = static_parameters(self._parameters, static_nums, static_names)
        self._positional = positional_count(self._parameters) if not self._static else None
        self._valued: dict[Tree, frozenset[int]] = {}  # leaves that are numbers used as Python values
        self._programs: OrderedDict[Signature, Program] = OrderedDict()
        self._lock = threading.RLock()
        self._flat: dict[tuple[Any, ...], Program] = {}  # the programs for calls with plain arrays only
        self._fast: Program | None = None  # the latest program that takes such calls natively

    # --- calling

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        fast = self._fast
        if fast is not None and not keywords and fast.guards_hold():
            return fast.direct(*args)
        return self._call(args, keywords)

    def _call(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._plain or ACTIVE.trace is not None:
            return self.function(*args, **keywords)  # jit inside jit: traced through
        flat = flat_key(args) if not keywords else None
        known = self._flat.get(flat) if flat is not None else None
        if known is not None and known.guards_hold():
            self._fast = known if known.has_door else None
            return known.run_flat(args)
        leaves, tree = self._leaves(args, keywords)
        program = self._program(leaves, tree)
        if flat is not None and len(flat) == len(leaves):
            self._flat[flat] = program
            program.open_door(self._missed)
            self._fast = program if program.has_door else None
        return program.run(leaves)

    def _missed(self, *args: Any) -> Any:
        """The native door did not know these arguments."""
        return self._call(args, {})

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else partial(self, instance)

    def __repr__(self) -> str:
        return f"<jit of {self._place()}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """As functions are: by name where that leads here, else by what it is made of. What was compiled is
        not taken along; copies of what a name leads to are the thing itself."""
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self:
            return self.__qualname__
        return Jitted, (self.function, self.options, *self._given)

    # --- stages

    def trace(self, *args: Any, **keywords: Any) -> Traced:
        """Trace for such arguments, without compiling; does not count as a trace of a call."""
        leaves, tree = self._leaves(args, keywords)
        _, captured = self._capture(leaves, tree)
        return Traced(captured, self.options)

    def lower(self, *args: Any, **keywords: Any) -> Lowered:
        return self.trace(*args, **keywords).lower()

    def prepared(self, *args: Any, **keywords: Any) -> tuple[Compiled, list[np.ndarray]]:
        """The compiled graph of such a call, and the arrays that go into it."""
        leaves, tree = self._leaves(args, keywords)
        program = self._program(leaves, tree)
        return program.compiled, program.arrays(leaves)

    # --- arguments

    def _leaves(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], Tree]:
        """The leaves of the arguments with defaults filled in, static ones wrapped."""
        if keywords or len(args) != self._positional:
            bound = self._bound(args, keywords)
            if self._has_defaults:
                bound.apply_defaults()
            for name in self._static:
                if name in bound.arguments:
                    bound.arguments[name] = Static(bound.arguments[name])
            args, keywords = bound.args, bound.kwargs
        leaves: list[Any] = []
        return leaves, flatten_arguments(args, keywords, leaves)

    def _bound(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> inspect.BoundArguments:
        try:
            return self._parameters.bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{self.__name__}() {error}") from None

    def _names(self, tree: Tree) -> list[str]:
        positional, keyword = tree.children
        parameters = list(self._parameters.parameters.values())
        found: list[str] = []
        for i, child in enumerate(positional.children):
            parameter = parameters[min(i, len(parameters) - 1)]
            variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            found += child.paths(
                f"{parameter.name}[{i - parameters.index(parameter)}]" if variadic else parameter.name
            )
        for name, child in zip(keyword.keys, keyword.children):
            found += child.paths(name)
        return found

    def _signature(self, leaves: list[Any], tree: Tree) -> Signature:
        keys = tuple(map(leaf_key, leaves))
        for position in self._valued.get(tree, ()):
            keys = (*keys[:position], (type(leaves[position]), leaves[position]), *keys[position + 1 :])
        return Signature(tree, keys)

    # --- programs

    def _program(self, leaves: list[Any], tree: Tree) -> Program:
        signature = self._signature(leaves, tree)
        program = self._found(signature)
        if program is not None and program.captured.guards.holds():
            return program
        with self._lock:
            return self._compiled(leaves, tree)

    def _found(self, signature: Signature) -> Program | None:
        try:
            return self._programs.get(signature)
        except TypeError as error:
            culprit = next(
                (n for n, k in zip(self._names(signature.tree), signature.keys) if not is_hashable(k)),
                "an argument",
            )
            raise SignatureError(
                f"{self.__name__}: {culprit} is neither an array, a number nor hashable ({error}); "
                "pass arrays (np.asarray of a subclass), or containers of arrays, or a hashable static value"
            ) from None

    def _compiled(self, leaves: list[Any], tree: Tree) -> Program:
        signature = self._signature(leaves, tree)
        program = self._programs.get(signature)
        if program is not None and program.captured.guards.holds():
            self._programs.move_to_end(signature)
            return program
        self._note_reason(signature, program)
        signature, captured = self._capture(leaves, tree)
        self.traces += 1
        program = Program(captured, compile_graph(captured.graph, self.options))
        self._tell(captured, program.compiled.report)
        self._programs[signature] = program
        while len(self._programs) > VARIANTS:
            self._programs.popitem(last=False)
            self._flat.clear()
        return program

    def _note_reason(self, signature: Signature, old: Program | None) -> None:
        if old is not None:
            change = old.captured.guards.change()
            self._note(Recompile(*(change or ("a guard", "held", "failed"))))
        elif self._programs:
            self._note(self._difference(next(reversed(self._programs)), signature))

    def _note(self, recompile: Recompile) -> None:
        self.recompiles.append(recompile)
        channel("recompiles").info("%s, called at %s: %s", self._place(), user_location(), recompile)

    def _tell(self, captured: Captured, report: Report) -> None:
        """Log what the program relies on; report and log what would make it faster."""
        place, guards, hints = self._place(), channel("guards"), channel("perf_hints")
        if guards.isEnabledFor(logging.INFO):  # what is guarded may be long to print
            for guard in captured.guards.names():
                guards.info("%s: %s", place, guard)
        for hint in _hints(captured):
            report.decisions.append(hint)
            hints.info("%s: %s", place, hint)

    def _place(self) -> str:
        """The function's name, file and line."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        return self.__name__ + where

    def _difference(self, old: Signature, new: Signature) -> Recompile:
        if old.tree != new.tree:
            return Recompile(
                "the arguments' structure", ", ".join(self._names(old.tree)), ", ".join(self._names(new.tree))
            )
        changes = [(n, a, b) for n, a, b in zip(self._names(new.tree), old.keys, new.keys) if a != b]
        name, a, b = changes[0]
        return Recompile(name, describe(a), describe(b))

    def _capture(self, leaves: list[Any], tree: Tree) -> tuple[Signature, Captured]:
        """Trace; a number that turns out to be used as a Python value is made static, and the trace begins
        anew."""
        names = self._names(tree)
        while True:
            signature = self._signature(leaves, tree)
            static = frozenset(i for i, key in enumerate(signature.keys) if not is_runtime(key))
            try:
                return signature, trace_function(
                    self.function,
                    [unwrapped(x) for x in leaves],
                    tree.unflatten,
                    static,
                    names,
                    self.__name__,
                )
            except NeedsValue as need:
                position = need.argument.position
                self._valued[tree] = self._valued.get(tree, frozenset()) | {position}
                self._note(
                    Recompile(names[position], "any number", f"its value, which {need.location} needs")
                )


WEIGHT = 1 << 16  # bytes from which folding and packing an array from outside pays


def _hints(captured: Captured) -> list[str]:
    """What the user could do for speed: freeze large arrays that the function reads from outside."""
    names = captured.guards.arrays
    checked = [
        f"{names.get(id(array), 'an array')}: {array.dtype.name}{list(array.shape)} is read by NumPy itself, "
        "so its content is checked at every call; planish.freeze makes it read-only"
        for array, _ in captured.guards.contents
        if array.nbytes >= WEIGHT
    ]
    return checked + [
        f"{names.get(id(array), 'an array')}: {array.dtype.name}{list(array.shape)} can be written to, so "
        "it is read at every call; planish.freeze makes it read-only, to be folded and packed"
        for array in captured.feeds
        if isinstance(array, np.ndarray) and array.nbytes >= WEIGHT
    ]
