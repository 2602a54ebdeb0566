"""The Python door: `jit` compiles a NumPy function at its first call for each signature, in stages one can
look into.

@planish.jit
def f(x, w): ...

f(x, w)                       # trace, compile, run; the next call with such arguments only runs
f.trace(x, w).graph           # the stages, as JAX names them
f.trace(x, w).lower().as_text("llvm")
f.traces, f.recompiles        # how often it was traced, and why again
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import numpy as np

from planish import knobs
from planish.capture.location import user_location
from planish.capture.numpy import ACTIVE, Captured, NeedsValue, Result, is_frozen, trace_function
from planish.capture.pytree import LEAF, Tree, flatten
from planish.compiler import Compiled, Numerics, Options, Report, Strategy, compile_graph
from planish.errors import SignatureError
from planish.ir import Graph
from planish.logs import channel

VARIANTS = 64  # signatures kept per function; the one not used for longest goes first


def jit(
    function: Callable[..., Any] | None = None,
    *,
    numerics: Numerics = "default",
    strategy: Strategy = "native",
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    disable: Iterable[str] = (),
) -> Any:
    """Compile a NumPy function. Use as a decorator, with or without options, or call it with the function.

    numerics         "strict", "default" or "fast"
    strategy         "native" (compiled code) or "library" (one NumPy kernel per operation, no compile time)
    static_argnums,  arguments whose value, not only whose type, the program may depend on: they must be
                     hashable, and
    static_argnames  each value is compiled anew. str, bool, None and other plain objects are static by
                     themselves
    disable          names of compiler passes to leave out

    With PLANISH_DISABLE=1, read when this is called, the function runs as it is.

    Raises CaptureError, with the line of the program and what to write instead, for what can't be compiled.
    """
    options = _options(numerics, strategy, disable)
    nums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if function is None:
        return lambda wrapped: Jitted(wrapped, options, nums, names)
    return Jitted(function, options, nums, names)


def make_graph(function: Callable[..., Any], **options: Any) -> Callable[..., Graph]:
    """`make_graph(f)(*args)` is the graph that `f` has on such arguments; print it to read it."""
    jitted = function if isinstance(function, Jitted) else jit(function, **options)
    return lambda *args, **keywords: jitted.trace(*args, **keywords).graph


def load_onnx(
    path: Any,
    *,
    numerics: Numerics = "default",
    strategy: Strategy = "native",
    disable: Iterable[str] = (),
    symbols: Mapping[str, int | tuple[int, int | None] | tuple[int, int | None, int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    hint: dict[str, int] | None = None,
) -> Compiled:
    """Compile an ONNX model: a path, its bytes or a ModelProto. The result takes arrays in the order of the
    model's inputs and returns a tuple; `.run(names, feeds)` takes and gives them by name.

    symbols    names of sizes that the model leaves open -> a number, or a range (low, high) or
               (low, high, step)
    constants  names of inputs -> arrays that they always have
    hint       typical sizes of what stays open, for choices; any other size works too

    With PLANISH_DISABLE=1 the strategy is "library". Raises ModelError for what is not a valid model,
    UnsupportedOp for one with operators that planish does not have.
    """
    from planish.capture.onnx import load_graph

    graph = load_graph(path, symbols=symbols, constants=constants)
    return compile_graph(graph, _options(numerics, strategy, disable), hint=hint)


def _options(numerics: Numerics, strategy: Strategy, disable: Iterable[str]) -> Options:
    return Options(
        numerics=numerics,
        strategy="library" if knobs.value("disable") else strategy,
        disable=frozenset(disable),
    )


def freeze(*values: Any) -> Any:
    """Promise that arrays will not change: they are made read-only (with the arrays they are views of), so
    that a compiled function may fold and repack them. Takes arrays and nested containers of arrays, and
    returns what it was given."""
    for leaf in flatten(values)[0]:
        while isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False
            leaf = leaf.base
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True)
class Recompile:
    """Why a function was traced again: what changed, from what, to what."""

    argument: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.argument}: {self.old} -> {self.new}"


# --- signatures


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


def _describe(key: tuple[Any, ...]) -> str:
    if len(key) == 1:
        return str(key[0].__name__)
    if isinstance(key[0], np.dtype):
        return (
            f"{key[0].name} scalar" if key[1] == "scalar" else f"{key[0].name}[{', '.join(map(str, key[1]))}]"
        )
    return repr(key[1])


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
        self.function, self.options = function, options
        self._plain = knobs.value("disable")
        self.traces = 0
        self.recompiles: list[Recompile] = []
        self._parameters = _signature_of(function)
        self._has_defaults = inspect.isfunction(function) or inspect.ismethod(
            function
        )  # C functions know their own
        self._static = _static_parameters(self._parameters, static_nums, static_names)
        self._positional = _positional_count(self._parameters) if not self._static else None
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
        flat = _flat_key(args) if not keywords else None
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

    # --- stages

    def trace(self, *args: Any, **keywords: Any) -> Traced:
        """Trace for such arguments, without compiling; does not count as a trace of a call."""
        leaves, tree = self._leaves(args, keywords)
        _, captured = self._capture(leaves, tree)
        return Traced(captured, self.options)

    def lower(self, *args: Any, **keywords: Any) -> Lowered:
        return self.trace(*args, **keywords).lower()

    # --- arguments

    def _leaves(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Any], Tree]:
        """The leaves of the arguments with defaults filled in, static ones wrapped."""
        if keywords or len(args) != self._positional:
            bound = self._parameters.bind(*args, **keywords)
            if self._has_defaults:
                bound.apply_defaults()
            for name in self._static:
                if name in bound.arguments:
                    bound.arguments[name] = Static(bound.arguments[name])
            args, keywords = bound.args, bound.kwargs
        leaves: list[Any] = []
        return leaves, _flatten_arguments(args, keywords, leaves)

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
                (n for n, k in zip(self._names(signature.tree), signature.keys) if not _is_hashable(k)),
                "an argument",
            )
            raise SignatureError(
                f"{self.__name__}: {culprit} is neither an array, a number nor hashable ({error}); "
                "pass arrays, or containers of arrays, or a hashable static value"
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
        return Recompile(name, _describe(a), _describe(b))

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
                    [_unwrapped(x) for x in leaves],
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


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _flat_key(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """dtype and shape of each argument, if all are plain arrays."""
    key = []
    for array in args:
        if type(array) is not np.ndarray:
            return None
        key.append((array.dtype, array.shape))
    return tuple(key)


def _unwrapped(leaf: Any) -> Any:
    return leaf.value if type(leaf) is Static else leaf


def _flatten_arguments(args: tuple[Any, ...], keywords: dict[str, Any], leaves: list[Any]) -> Tree:
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


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # some C functions do not tell
        return inspect.signature(lambda *args, **keywords: None)


def _static_parameters(
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


def _positional_count(signature: inspect.Signature) -> int | None:
    """How many arguments a plain call has, if all parameters are positional; else None: every call is bound
    by name."""
    kinds = {p.kind for p in signature.parameters.values()}
    simple = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return len(signature.parameters) if kinds <= simple else None


# --- one signature, compiled


class Program:
    """A compiled signature: feeds the graph, writes what the function wrote, and puts the results
    together."""

    def __init__(self, captured: Captured, compiled: Compiled):
        self.captured, self.compiled = captured, compiled
        self.direct: Callable[..., Any] = compiled
        guards = captured.guards
        self.guards_hold: Callable[[], bool] = _always if guards.is_empty else guards.holds
        self.is_simple = _is_simple(captured)
        self.has_door = False

    def open_door(self, missed: Callable[..., Any]) -> None:
        """Let calls with plain arrays go straight to the compiled program, which calls `missed` for any
        other. That needs a program that offers it (`direct_call`), and is simple."""
        offer = getattr(self.compiled, "direct_call", None)
        direct = offer(missed) if self.is_simple and offer is not None else None
        if direct is not None:
            self.direct, self.has_door = direct, True

    def run_flat(self, arrays: tuple[np.ndarray, ...]) -> Any:
        """`run` where all leaves are arrays."""
        return self.compiled(*arrays)[0] if self.is_simple else self.run(arrays)

    def run(self, leaves: Sequence[Any]) -> Any:
        captured = self.captured
        arrays = [np.asarray(leaves[f]) if isinstance(f, int) else f for f in captured.feeds]
        if captured.writes or captured.contiguous:
            self._check_memory(leaves, arrays)
        outputs = list(self.compiled(*arrays))
        for i in captured.aliased:
            outputs[i] = _own(outputs[i], arrays)
        for position, place in captured.writes:
            np.copyto(leaves[position], outputs[place])
        return captured.tree.unflatten([_result(r, leaves, outputs) for r in captured.results])

    def _check_memory(self, leaves: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        """The function writes to arguments: they may not overlap with others, nor be read-only."""
        for target in (leaves[position] for position, _ in self.captured.writes):
            if not target.flags.writeable:
                raise ValueError("assignment destination is read-only")
            if sum(np.may_share_memory(target, other) for other in arrays) > 1:
                raise SignatureError(
                    "the function writes to an argument that shares memory with another argument; pass a copy"
                )
        for position in self.captured.contiguous:
            if not leaves[position].flags.c_contiguous:
                raise SignatureError(
                    "the function writes through a reshape of an argument, which must be C-contiguous for "
                    "that"
                )


WEIGHT = 1 << 16  # bytes from which folding and packing an array from outside pays


def _hints(captured: Captured) -> list[str]:
    """What the user could do for speed: freeze large arrays that the function reads from outside."""
    names = captured.guards.arrays
    return [
        f"{names.get(id(array), 'an array')}: {array.dtype.name}{list(array.shape)} can be written to, so "
        "it is read at every call; planish.freeze makes it read-only, to be folded and packed"
        for array in captured.feeds
        if isinstance(array, np.ndarray) and array.nbytes >= WEIGHT
    ]


def _is_simple(captured: Captured) -> bool:
    """Whether arrays go in as they are passed and one new array comes out, and nothing else happens."""
    if captured.tree != LEAF or captured.writes or captured.aliased:
        return False
    if [f if isinstance(f, int) else -1 for f in captured.feeds] != list(range(len(captured.feeds))):
        return False
    result = captured.results[0]
    return result.source == "output" and result.kind == "array" and not result.steps


def _always() -> bool:
    return True


def _own(array: np.ndarray, arguments: Sequence[np.ndarray]) -> np.ndarray:
    """A result with memory of its own, where the compiled program may have handed out an argument's or a
    constant's."""
    return (
        array
        if array.base is None and array.flags.writeable and not any(array is a for a in arguments)
        else array.copy()
    )


def _result(result: Result, leaves: Sequence[Any], outputs: Sequence[np.ndarray]) -> Any:
    if result.kind == "object":
        return leaves[result.place] if result.source == "argument" else result.place
    source = {"argument": leaves, "output": outputs}.get(result.source)
    value = (
        result.place.copy()
        if source is None and result.source == "value"
        else result.place
        if source is None
        else source[result.place]
    )
    for step in result.steps:
        value = step.replay(value)
    if result.kind == "number":
        return value.item()
    return value[()] if result.kind == "scalar" else value


# --- stages


@dataclass(frozen=True)
class Traced:
    """A traced function: `.graph`, and `.lower()`."""

    captured: Captured
    options: Options

    @property
    def graph(self) -> Graph:
        return self.captured.graph

    def lower(self) -> Lowered:
        return Lowered(self.captured, compile_graph(self.graph, self.options))


@dataclass(frozen=True)
class Lowered:
    """A compiled graph, open to inspection: `.as_text(stage)`, and `.compile()` for something to call."""

    captured: Captured
    program: Compiled

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage: graph, optimized, loops, program, llvm, asm."""
        return self.program.text(stage)

    def compile(self) -> Compiled:
        """The compiled program: takes the graph's inputs, returns its outputs as a tuple."""
        return self.program


__all__ = [
    "Jitted",
    "Lowered",
    "Recompile",
    "Traced",
    "freeze",
    "is_frozen",
    "jit",
    "load_onnx",
    "make_graph",
]
