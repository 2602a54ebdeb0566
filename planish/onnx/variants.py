"""The compiled programs of one model: one for all sizes and values where that can be, else one for each.

In: a checked `Model` and what the session was told. Out: for the values of a call, the `Variant` that takes
them. Where capture says that it must know an input's value or a size (`NeedsValue`), or that two sizes must
be the same number, programs are made for these values, and the ones not used for longest go first. So they
are where the model does not say what an input holds: a rank, the elements of a sequence.
"""
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planish import knobs
from planish.capture.onnx.model import Model
from planish.capture.onnx.structure import CapturedModel, Given, is_open, open_inputs
from planish.capture.onnx.symbols import LONGEST, SymbolTable, fixed_size
from planish.capture.onnx.translate import translate_model
from planish.compiler import Compiled, Options, check_options, compile_graph
from planish.errors import ModelError, NeedsValue, TypeRuleError
from planish.ir import Graph
from planish.ir.specialize import bind_symbols
from planish.logs import channel
from planish.onnx.options import GraphOptimizationLevel, SessionOptions
from planish.types import Dim, Expr, TensorType, dtype_of, symbol, symbols_of

KEPT = 16

_PLAIN = frozenset({"canonicalise", "fold_constants", "simplify", "substitute", "fold_scale", "share",
                    "recognise", "fuse", "assign_layouts", "beside", "register_tile", "prepack", "in_place"})

# What each level leaves out: all rewriting; fusion; changes of layout. LAYOUT and ALL leave out nothing.
LEVELS: dict[GraphOptimizationLevel, frozenset[str]] = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: _PLAIN,
    GraphOptimizationLevel.ORT_ENABLE_BASIC: frozenset({"recognise", "fuse", "assign_layouts", "prepack"}),
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: frozenset({"assign_layouts", "prepack"}),
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: frozenset(),
    GraphOptimizationLevel.ORT_ENABLE_ALL: frozenset(),
}


def compiler_options(options: SessionOptions) -> Options:
    """What the compiler is told, of what the session is."""
    config = options._config
    disable = config.get("planish.disable", "")
    strategy = "library" if knobs.value("disable") else config.get("planish.strategy", "native")
    return Options(numerics=config.get("planish.numerics", "default"), strategy=strategy,  # type: ignore[arg-type]
                   disable=LEVELS[options.graph_optimization_level] | set(filter(None, disable.split(","))),
                   mode=config.get("planish.mode", "default"),  # type: ignore[arg-type]
                   threads=options.intra_op_num_threads)


@dataclass(frozen=True)
class Variant:
    """A compiled program, and how the model's inputs and outputs lie in its."""

    captured: CapturedModel
    compiled: Compiled

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        results = self.compiled(*self.captured.arrays(feeds))
        return self.captured.values(results, names)

    def direct(self) -> tuple[list[str], dict[str, int]] | None:
        """The names of the inputs in the program's order, and the place of each output, where each of the
        model's is one tensor; else None."""
        inputs, outputs = self.captured.inputs, self.captured.outputs
        if not all(isinstance(form, int) for form in (*inputs.values(), *outputs.values())):
            return None
        ordered = sorted(inputs, key=lambda name: inputs[name])  # type: ignore[arg-type, return-value]
        return ordered, dict(outputs)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Request:
    """What a call's program is to be made for: values of inputs, sizes, what open inputs hold, and inputs
    that are fed in the place of their defaults. `key` tells requests apart."""

    constants: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    types: dict[str, Given] = field(default_factory=dict)
    free: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[Any, ...]:
        values = tuple((name, _key_of(value)) for name, value in self.constants.items())
        return values, tuple(self.sizes.items()), str(self.types) if self.types else "", self.free

    def differences(self, other: Request) -> Iterator[str]:
        """What differs from an earlier request, in words."""
        for name in self.constants.keys() | other.constants.keys():
            new, old = self.constants.get(name), other.constants.get(name)
            if _key_of(new) != _key_of(old):
                yield f"the value of {name}: {_short(old)} -> {_short(new)}"
        for name, size in self.sizes.items():
            if other.sizes.get(name) != size:
                yield f"the size {name}: {other.sizes.get(name, 'any')} -> {size}"
        for name, given in self.types.items():
            if str(other.types.get(name)) != str(given):
                yield f"what {name} holds: {_short(other.types.get(name))} -> {_short(given)}"
        if self.free != other.free:
            yield f"defaults that are fed: {', '.join(sorted(other.free))} -> {', '.join(sorted(self.free))}"


def _key_of(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_key_of, value))
    if value is None:
        return None
    array = np.asarray(value)
    return array.dtype.str, array.shape, tuple(array.flat) if array.dtype.hasobject else array.tobytes()


def _short(value: Any) -> str:
    text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 60 else text[:57] + "..."


class Variants:
    """The programs of a model. Safe from many threads.

    `fixed` are sizes that the model names and the caller knows. `compiles` counts how often a program was
    made, `reasons` says for each but the first why.
    """

    def __init__(self, model: Model, options: Options, fixed: Mapping[str, int] | None = None):
        check_options(options)
        self.model, self.options, self.fixed = model, options, dict(fixed or {})
        self.compiles = 0
        self.reasons: list[str] = []
        self.open = [v for v in model.graph.input if v.name in open_inputs(model)]
        self.valued: frozenset[str] = frozenset()    # inputs whose value the program depends on
        self._sized: frozenset[str] = frozenset()    # sizes, likewise
        self._kept: OrderedDict[tuple[Any, ...], Variant] = OrderedDict()
        self._last: Request | None = None
        self._looking, self._making = threading.Lock(), threading.Lock()
        self.defaults = {t.name for t in model.graph.initializer}
        self.defaults |= {s.values.name for s in model.graph.sparse_initializer}
        self.defaults &= {v.name for v in model.graph.input}
        self.graph: Graph | None = None              # the first that was captured
        self._free = [v for v in model.graph.input if v.name not in self.defaults]
        self.types = self._declared_types()

    def _declared_types(self) -> dict[str, Given]:
        """The types of the inputs that the model does not leave open. ModelError for sizes to be fixed that
        it does not have."""
        declared = [v for v in self._free if not is_open(v)]
        return SymbolTable(self.model.file, self.fixed).input_types(declared, {})

    @property
    def is_single(self) -> bool:
        """Whether one program serves all calls that feed no defaults."""
        return not (self.open or self.valued or self._sized)

    # --- the program of a call

    def find(self, feeds: Mapping[str, Any]) -> Variant:
        """The program for these values, which are of the model's types; made if there is none."""
        request = self._request(feeds)
        return self._look_up(request.key) or self._make(feeds)

    def prepare(self) -> Variant | None:
        """Before any call: the program for all of them, where that can be told and nothing stays open that
        the first call would say. Raises what is wrong with the model."""
        if self.open:
            return None
        try:
            captured = self._capture(Request())
        except NeedsValue as need:
            if not self._learn(need):
                raise
            return None
        if captured.graph.symbols():
            return None
        return self._keep(Request(), Variant(captured, self._compile(captured, {})))

    def _look_up(self, key: tuple[Any, ...]) -> Variant | None:
        with self._looking:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def capture(self, feeds: Mapping[str, Any]) -> CapturedModel:
        """The graph for these values. Raises NeedsValue where that takes others too."""
        while True:
            try:
                return self._capture(self._request(feeds))
            except NeedsValue as need:
                if not self._learn(need):
                    raise (need.__cause__ or need) from None

    def _make(self, feeds: Mapping[str, Any]) -> Variant:
        with self._making:
            found = self._look_up(self._request(feeds).key)  # another thread may have made it
            if found is not None:
                return found
            captured = self.capture(feeds)
            request = self._request(feeds)  # as what was learnt has it
            known = self._look_up(request.key)
            return known or self._keep(request, Variant(captured, self._compile(captured, feeds)))

    def _keep(self, request: Request, variant: Variant) -> Variant:
        self._note(request)
        with self._looking:
            self._kept[request.key] = variant
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return variant

    def _note(self, request: Request) -> None:
        self.compiles += 1
        if self._last is not None:
            reason = "; ".join(request.differences(self._last)) or "it was dropped from the variants kept"
            self.reasons.append(reason)
            channel("recompiles").info("%s: compiled again: %s", self.model.file, reason)
        self._last = request

    # --- making one

    def _capture(self, request: Request) -> CapturedModel:
        try:
            captured = translate_model(self.model, {**self.fixed, **request.sizes}, request.constants,
                                       request.types, request.free)
        except ModelError as error:
            if sizes := _sizes_at_odds(error):
                raise NeedsValue(str(error), sizes=sizes) from error
            raise
        self.graph = self.graph or captured.graph
        return captured

    def _compile(self, captured: CapturedModel, feeds: Mapping[str, Any]) -> Compiled:
        """The sizes of the first call are its hint."""
        graph = captured.graph
        hint = {}
        if graph.symbols():
            hint = bind_symbols(graph, [np.shape(array) for array in captured.arrays(feeds)])
        return compile_graph(graph, self.options, hint=hint)

    def _learn(self, need: NeedsValue) -> bool:
        """Take up what programs depend on. Whether that is anything new that calls can say."""
        inputs = need.inputs & {v.name for v in self.model.graph.input} - self.valued
        sizes = need.sizes - self._sized - self.fixed.keys()
        self.valued, self._sized = self.valued | inputs, self._sized | sizes
        return bool(inputs or sizes)

    def _request(self, feeds: Mapping[str, Any]) -> Request:
        constants = {name: feeds[name] for name in sorted(self.valued) if name in feeds}
        free = frozenset(self.defaults & feeds.keys()) if self.defaults else frozenset()
        if not (self._sized or self.open):
            return Request(constants, {}, {}, free)
        held = {v.name: _given_of(v.type, feeds.get(v.name), v.name) for v in self.open}
        seen: dict[str, int] = {}
        for name, given in (*self.types.items(), *held.items()):
            _bind(given, feeds.get(name), seen)
        sizes = {name: seen[name] for name in sorted(self._sized) if name in seen}
        own = {s for given in held.values() for s in _symbols(given)}
        types = {name: _fixed(given, sizes) for name, given in held.items() if name not in constants}
        return Request(constants, {n: s for n, s in sizes.items() if n not in own}, types, free)


def _sizes_at_odds(error: ModelError) -> list[str]:
    """The symbols of sizes that differ as far as can be told, and may be the same number in a call."""
    cause = error.__cause__
    sizes = cause.sizes if isinstance(cause, TypeRuleError) else ()
    return [name for size in sizes for name in symbols_of(size)]


def _given_of(type_: Any, value: Any, name: str) -> Given:
    """What an open input of TypeProto `type_` holds: a size that the type does not fix is a symbol of its
    own, called after the place it stands in."""
    if value is None:
        return None
    kind = type_.WhichOneof("value")
    if kind != "tensor_type":
        inner = getattr(type_, kind).elem_type
        if kind == "optional_type":
            return _given_of(inner, value, name)
        return [_given_of(inner, element, f"{name}_{i}") for i, element in enumerate(value)]
    base = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    dims: list[Dim] = [symbol(f"size_of_{base}_{axis}", 0, LONGEST) for axis in range(np.ndim(value))]
    for axis, dim in enumerate(type_.tensor_type.shape.dim):
        fixed = fixed_size(dim)
        if fixed is not None:
            dims[axis] = fixed
    return TensorType(dtype_of(np.asarray(value)), tuple(dims))


def _walk(given: Given, change: Callable[[Dim], Dim]) -> Given:
    if isinstance(given, TensorType):
        return given.with_shape(tuple(map(change, given.shape)))
    return None if given is None else [_walk(part, change) for part in given]


def _fixed(given: Given, sizes: Mapping[str, int]) -> Given:
    return _walk(given, lambda dim: sizes.get(str(dim), dim))


def _symbols(given: Given) -> list[str]:
    if isinstance(given, TensorType):
        return [name for dim in given.shape for name in symbols_of(dim)]
    return [] if given is None else [name for part in given for name in _symbols(part)]


def _bind(given: Given, value: Any, seen: dict[str, int]) -> None:
    """Put the sizes of a value's symbols into `seen`."""
    if isinstance(given, TensorType) and value is not None:
        for dim, size in zip(given.shape, np.shape(value)):
            if isinstance(dim, Expr):
                seen.setdefault(str(dim), size)
    elif isinstance(given, (list, tuple)):
        for part, element in zip(given, value):
            _bind(part, element, seen)
