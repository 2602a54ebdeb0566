"""The quickest way into a function of tensors: its guards are checked by two objects of Dynamo's, the graph's
builtin is called, and nothing else happens.

It is there for a variant whose guards are about its arguments as tensors, about what its global names are,
and about torch's state, and whose code passes arguments to the graph and gives its results back. Tensors are
held by `TensorGuards` (type, dtype, device, dispatch keys with those of the thread, so modes and transforms
too, sizes, strides, requires_grad, no tensor twice), torch's state by `GlobalStateGuard` and the height of
the stack of function modes. Global names are held more strictly than Dynamo does: to the very object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

from planish.torch.door import gives_outputs, open_door
from planish.torch.made import Made
from planish.torch.program import TorchProgram

# Held by GlobalStateGuard and the stack of function modes. SHAPE_ENV says nothing without symbols, the hooks
# on saved tensors nothing where none is saved.
AMBIENT = {
    "SHAPE_ENV",
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
    "DETERMINISTIC_ALGORITHMS",
    "GRAD_MODE",
    "DEFAULT_DEVICE",
    "GLOBAL_STATE",
    "TORCH_FUNCTION_STATE",
}
OF_OBJECT = {"ID_MATCH", "BUILTIN_MATCH", "MODULE_MATCH", "CLASS_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH"}
OF_VALUE = {"CONSTANT_MATCH", "EQUALS_MATCH"}
IMMUTABLE = (int, float, bool, str, type(None))

SOURCE = """
        if __live.cache_entry is not None and __state() and not __functions() and __tensors({tensors}){same}:
            __result = __door({passed})
            if __result is not __missed:
                return __result"""

MISSED = object()


@dataclass(frozen=True)
class Quick:
    """The text of the quick way, in the body of the function's `call`, and the names it uses."""

    source: str
    names: dict[str, Any]


def quick_way(variant: Any, made: Made, local: Mapping[str, Any]) -> Quick | None:
    """The quick way into a variant that was made for a call with the arguments `local`; None where it has
    none."""
    program = made.program
    if made.has_symbols or not isinstance(program, TorchProgram) or not variant.holds(local):
        return None
    sorted_ = sort_guards(made.guards)
    passing = passed_on(variant, list(local))
    same = None if sorted_ is None else identities(sorted_[1], variant.target.__globals__)
    if sorted_ is None or same is None or passing is None or not set(passing.arguments) <= set(sorted_[0]):
        return None
    tensors = sorted_[0]
    if not tensors or any(local[name].is_neg() for name in tensors):
        return None
    outputs = list(range(len(program.captured.graph.outputs)))
    if not gives_outputs(program.captured) or passing.results != outputs:
        return None
    door = open_door(program.captured, program.compiled, _missed, plain=True, unwrap=passing.is_single)
    if door is None:
        return None
    source = SOURCE.format(
        tensors=", ".join(tensors),
        passed=", ".join(passing.arguments),
        same="".join(f" and {place} is __object_{i}" for i, (place, _) in enumerate(same)),
    )
    objects = {f"__object_{i}": value for i, (_, value) in enumerate(same)}
    checks = _checks([local[name] for name in tensors])
    return Quick(
        source, {**objects, **checks, "__live": variant.manager, "__door": door, "__missed": MISSED}
    )


def _missed(*arguments: Any, **keywords: Any) -> Any:
    """The builtin did not know the arguments: they lie otherwise, or have attributes of their own."""
    return MISSED


def _checks(tensors: Sequence[Any]) -> dict[str, Any]:
    """Dynamo's objects that hold tensors and torch's state to what they are now."""
    from torch._C import _len_torch_function_stack
    from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards

    shapes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) for t in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    state = GlobalStateGuard()
    return {"__tensors": guards.check, "__state": state.check, "__functions": _len_torch_function_stack}


# --- guards


def sort_guards(guards: Iterable[Any]) -> tuple[list[str], list[Any]] | None:
    """Names of the arguments that are guarded as tensors, and guards of global names, short paths first; None
    if there are others."""
    from torch._dynamo.source import LocalSource

    tensors, objects = [], []
    for guard in guards:
        kind, source = guard.create_fn_name(), guard.originating_source
        if kind == "TENSOR_MATCH" and type(source) is LocalSource and source.is_input:
            tensors.append(source.local_name)
        elif kind in OF_OBJECT | OF_VALUE:
            objects.append(guard)
        elif kind not in AMBIENT:
            return None
    return tensors, sorted(objects, key=lambda guard: len(guard.name))


def identities(guards: Sequence[Any], scope: dict[str, Any]) -> list[tuple[str, Any]] | None:
    """For each guard the text of what it is about and the object that this is; None where a path does not
    start at a global name, or leaves objects that are held."""
    found: dict[Any, tuple[str, Any]] = {}
    for guard in guards:
        source = guard.originating_source
        place = _place(source, found, scope)
        if place is None or (guard.create_fn_name() in OF_VALUE and not isinstance(place[1], IMMUTABLE)):
            return None
        found.setdefault(source, place)
        if guard.create_fn_name() == "CLOSURE_MATCH":  # a function may get other code
            number = list(found).index(source)
            found.setdefault((source, "code"), (f"__object_{number}.__code__", place[1].__code__))
    return list(found.values())


def _place(
    source: Any, found: Mapping[Any, tuple[str, Any]], scope: Mapping[str, Any]
) -> tuple[str, Any] | None:
    from torch._dynamo.source import AttrSource, GlobalSource

    if type(source) is GlobalSource and source.global_name in scope:
        return f"__globals.get({source.global_name!r})", scope[source.global_name]
    if type(source) is AttrSource and source.base in found and hasattr(found[source.base][1], source.member):
        number = list(found).index(source.base)
        return f"__object_{number}.{source.member}", getattr(found[source.base][1], source.member)
    return None


# --- code


@dataclass(frozen=True)
class Passing:
    """What a variant's code does: the arguments it gives its graph, by name, and the graph's outputs it
    returns: one bare, or a tuple."""

    arguments: list[str]
    results: list[int]
    is_single: bool


@dataclass(frozen=True)
class _Output:
    index: int


class _Outputs:
    """What a graph gives, in a trial of the code around it."""

    def __getitem__(self, index: int) -> _Output:
        return _Output(index)


def passed_on(variant: Any, parameters: Sequence[str]) -> Passing | None:
    """What the code does, found by running it on stand-ins: it sees no global name but the graph's and what
    times the call. None where it does more than to pass things on."""
    stand_ins = {name: object() for name in parameters}
    given: list[Any] = []

    def graph(*arguments: Any) -> _Outputs:
        given.extend(arguments)
        return _Outputs()

    timing = SimpleNamespace(
        record_pregraph_bytecode_enter=lambda: None, record_pregraph_bytecode_exit=lambda timer: None
    )
    scope = {variant.name: graph, "__import_torch_dot__dynamo_dot_utils": timing, "__builtins__": {}}
    if variant.code.co_freevars:
        return None
    try:
        result = FunctionType(variant.code, scope)(*stand_ins.values())
    except Exception:  # anything that is done with a stand-in
        return None
    names = {id(value): name for name, value in stand_ins.items()}
    outputs = result if type(result) is tuple else (result,)
    if not all(id(x) in names for x in given) or not all(isinstance(x, _Output) for x in outputs):
        return None
    return Passing([names[id(x)] for x in given], [x.index for x in outputs], type(result) is not tuple)
