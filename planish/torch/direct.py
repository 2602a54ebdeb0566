"""The short way into a compiled function: Dynamo's guards and code, without Dynamo's call.

`torch.compile` evaluates a call's frame with a callback set: 13 us before the first line of a compiled graph.
What decides there is a *variant* of the function: guards, and code that calls the compiled graph. Here both
are taken from Dynamo and run from a function with the signature of the user's, so nothing is decided
otherwise.

    1. Where the guards of a variant are about tensors, their global names and torch's state alone, they are
       checked by two of Dynamo's objects (`TensorGuards`, `GlobalStateGuard`), and the graph's own builtin is
       called: `quick.py`.
    2. Else the variant's guards are run whole (`RootGuardManager.check`), and then its code.
    3. Else, and for all that is unusual (a stance, an active mode of torch, a call from a frame that Dynamo
       evaluates), the call is torch.compile's.

A variant lives as long as Dynamo keeps it: after `torch.compiler.reset()`, or when an object that its guards
name dies, it is not used again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import count
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import finalize

from planish.torch.failures import failing_as_eager
from planish.torch.made import Backend
from planish.torch.quick import Quick, quick_way

_numbers = count()

USUAL = (
    "__frames._stance.stance == 'default' and __callback() is None and not __modes()"
    " and __target.__code__ is __code"
)
USUAL_MODULE = USUAL + " and __kind.forward is __target and 'forward' not in __owner.__dict__"

SOURCE = """
def call({parameters}):
    if {usual}:{quick}
        __found = {{{found}}}
        for __variant in __variants:
            if __variant.manager.cache_entry is not None and __variant.holds(__found):
                return __variant.run({passed})
    return __slow({given})
"""


class Variant:
    """A compiled version of a function: `holds(locals)` are its guards, alive while `manager.cache_entry` is;
    `run` is its code, with the compiled graph in the place of Dynamo's wrapper of it."""

    __slots__ = ("__weakref__", "code", "holds", "id", "manager", "name", "run", "target")

    def __init__(self, entry: Any, target: FunctionType, name: str):
        self.id, self.manager, self.code, self.name = entry.compile_id, entry.guard_manager, entry.code, name
        self.target, self.holds = target, entry.guard_manager.root.check
        alias = f"__planish_graph_{next(_numbers)}"
        names = tuple(alias if n == name else n for n in entry.code.co_names)
        cells = dict(zip(target.__code__.co_freevars, target.__closure__ or ()))
        closure = tuple(cells[n] for n in entry.code.co_freevars)
        target.__globals__[alias] = self.graph
        finalize(self, target.__globals__.pop, alias, None).atexit = False
        self.run = FunctionType(entry.code.replace(co_names=names), target.__globals__, closure=closure)

    @property
    def is_alive(self) -> bool:
        return self.manager.cache_entry is not None

    @property
    def graph(self) -> Any:
        """What the backend gave Dynamo for the variant's graph."""
        return self.target.__globals__[self.name]._torchdynamo_orig_callable


def variant_of(entry: Any, target: FunctionType) -> Variant | None:
    """The variant of an entry of Dynamo's cache; None where its code does more than call one graph and put
    the result together: at a graph break Dynamo must evaluate what follows."""
    names = entry.code.co_names
    graphs = [n for n in names if n.startswith("__compiled_fn")]
    known = set(entry.code.co_freevars) <= set(target.__code__.co_freevars)
    if len(graphs) != 1 or any(n.startswith("__resume_at") for n in names) or not known:
        return None
    return Variant(entry, target, graphs[0])


class Direct:
    """A function's variants, and `call`: a function of its signature that runs one of them, or `slow`.

    target    the function that Dynamo captures
    owner     the object whose method it is; None: it is a function
    compiled  the call as torch.compile does it
    eager     the call that is not compiled

    Default values of parameters are those that the function has now.
    """

    def __init__(
        self,
        target: FunctionType,
        owner: Any,
        compiled: Callable[..., Any],
        eager: Callable[..., Any],
        backend: Backend,
        usual: str = USUAL,
    ):
        self.eager = eager
        self.target, self.owner, self.backend, self.usual = target, owner, backend, usual
        self.compiled, self.refused, self.compiles = compiled, set[Any](), -1
        self.variants: list[Variant] = []
        self.quick: Quick | None = None
        self.space = {**_names_of(target, owner), "__variants": self.variants, "__slow": self.slow}
        self.call = FunctionType(self._code(), self.space, target.__name__, target.__defaults__)
        self.call.__kwdefaults__ = target.__kwdefaults__

    def slow(self, *arguments: Any, **keywords: Any) -> Any:
        """The call as torch.compile does it; what it compiled is taken over. Tensors without values can't
        enter a program: they go through the function itself. A function that a graph break cuts in two comes
        here at each call."""
        kinds = {*map(type, arguments), *map(type, keywords.values())}
        if any(issubclass(kind, _fake_tensor()) for kind in kinds):
            return self.eager(*arguments, **keywords)
        result = self.compiled(*arguments, **keywords)
        if self.compiles != Backend.compiles:
            self.compiles = Backend.compiles
            self.adopt(arguments)
        return result

    def adopt(self, arguments: Sequence[Any]) -> None:
        """Take over the variants that Dynamo has of the function now, after a call with these arguments."""
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list as entries_of

        known = {variant.id: variant for variant in self.variants if variant.is_alive}
        entries = [e for e in entries_of(self.target.__code__) if e.backend == self.backend]
        fresh = [e for e in entries if e.compile_id not in known and e.compile_id not in self.refused]
        if not fresh and len(known) == len(self.variants):
            return
        for entry in fresh:
            variant = variant_of(entry, self.target)
            if variant is None:
                self.refused.add(entry.compile_id)
            else:
                known[entry.compile_id] = variant
                self._open_quick_way(variant, arguments)
        self.backend.made.clear()
        self.variants[:] = reversed(known.values())

    def _open_quick_way(self, variant: Variant, arguments: Sequence[Any]) -> None:
        """The quick way leads to the newest variant that has one."""
        made = self.backend.made.get(variant.id)
        parameters = self.target.__code__.co_varnames[: self.target.__code__.co_argcount]
        if made is None or self.owner is not None or len(arguments) != len(parameters):
            return
        quick = quick_way(variant, made, dict(zip(parameters, arguments)))
        if quick is not None:
            self.quick = quick
            self.space.update(quick.names)
            self.call.__code__ = self._code()

    def _code(self) -> CodeType:
        quick = "" if self.quick is None else self.quick.source
        source = source_of(self.target.__code__, self.owner is not None, self.usual, quick)
        space: dict[str, Any] = {}
        exec(compile(source, f"<planish: {self.target.__qualname__}>", "exec"), space)
        code: CodeType = space["call"].__code__
        skip(code)
        return code


@functools.cache
def _fake_tensor() -> type:
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def _names_of(target: FunctionType, owner: Any) -> dict[str, Any]:
    """The names that the text of a call uses."""
    from torch._C import _len_torch_dispatch_stack
    from torch._C._dynamo.eval_frame import get_eval_frame_callback
    from torch._dynamo import eval_frame

    return {
        "__frames": eval_frame,
        "__callback": get_eval_frame_callback,
        "__modes": _len_torch_dispatch_stack,
        "__target": target,
        "__code": target.__code__,
        "__globals": target.__globals__,
        "__owner": owner,
        "__kind": type(owner),
    }


def source_of(code: CodeType, is_method: bool, usual: str, quick: str) -> str:
    """The text of a function with the parameters of `code`; of a method without its first, which is
    `__owner`."""
    positional = list(code.co_varnames[: code.co_argcount])
    keyword = list(code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount])
    rest = iter(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    several = next(rest) if code.co_flags & inspect.CO_VARARGS else None
    named = next(rest) if code.co_flags & inspect.CO_VARKEYWORDS else None
    found = {name: name for name in (*positional, *keyword, several, named) if name is not None}
    found |= {name: f"__target.__closure__[{i}].cell_contents" for i, name in enumerate(code.co_freevars)}
    if is_method:
        found[positional[0]] = "__owner"
    own = positional[is_method:]
    slash = max(code.co_posonlyargcount - is_method, 0)
    parameters = [*own[:slash], *["/"] * bool(slash), *own[slash:]]
    parameters += [f"*{several}"] if several else ["*"] * bool(keyword)
    parameters += keyword + ([f"**{named}"] if named else [])
    given = [*own, *([f"*{several}"] if several else []), *(f"{k}={k}" for k in keyword)]
    given += [f"**{named}"] if named else []
    return SOURCE.format(
        parameters=", ".join(parameters),
        usual=usual,
        quick=quick,
        found=", ".join(f"{name!r}: {value}" for name, value in found.items()),
        passed=", ".join([*["__owner"] * is_method, *given]),
        given=", ".join(given),
    )


def skip(code: CodeType) -> None:
    """Let Dynamo not evaluate the code's own frame."""
    from torch._dynamo.eval_frame import skip_code

    skip_code(code)


# --- functions and modules


def shorten(compiled: Any, backend: Backend) -> Any:
    """What torch.compile gave, with the short way before it; itself where it has none: what it calls is
    written in C, or is no function."""
    import torch

    if isinstance(compiled, torch.nn.Module):
        compiled.__class__ = direct_module()
        compiled.shorten()
        return compiled
    target = getattr(compiled, "_torchdynamo_orig_callable", None)
    if not isinstance(target, (FunctionType, MethodType)):
        return compiled
    owner, function = getattr(target, "__self__", None), getattr(target, "__func__", target)
    if not isinstance(function, FunctionType) or (owner is not None and not function.__code__.co_argcount):
        return compiled
    call = Direct(function, owner, failing_as_eager(compiled, target), target, backend).call
    functools.update_wrapper(call, compiled)
    return call


@functools.cache
def direct_module() -> type:
    """The class of compiled modules: torch's, with the short way before its call."""
    from torch._dynamo.eval_frame import OptimizedModule
    from torch.compiler import is_dynamo_compiling
    from torch.nn.modules.module import _has_any_global_hook

    class DirectModule(OptimizedModule):
        _direct: Any = None

        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            if is_dynamo_compiling():  # inside another compiled function: part of its graph
                return self._modules["_orig_mod"](*arguments, **keywords)
            if self._direct is None or has_hooks(self, self._modules["_orig_mod"]) or _has_any_global_hook():
                return super().__call__(*arguments, **keywords)
            return self._direct(*arguments, **keywords)

        def _initialize(self) -> None:
            super()._initialize()
            self.shorten()

        def shorten(self) -> None:
            self.forward: Any = failing_as_eager(self.forward, self._orig_mod)
            slow = functools.partial(OptimizedModule.__call__, self)
            self._direct = _direct_of_module(self._orig_mod, self.forward, slow, self.dynamo_ctx.callback)

        def __getstate__(self) -> dict[str, Any]:
            return {**super().__getstate__(), "_direct": None}

        def __reduce_ex__(self, protocol: Any) -> Any:
            return made_again, (self._orig_mod, self.dynamo_ctx)

    return DirectModule


def made_again(module: Any, context: Any) -> Any:
    """A compiled module from a copy or a pickle of its parts."""
    return direct_module()(module, context)


def _direct_of_module(module: Any, forward: Any, slow: Callable[..., Any], callback: Any) -> Any:
    """The short way into a module; None where it has none: `forward` is none that Dynamo wraps, or is no
    method of its class."""
    from torch._dynamo.eval_frame import innermost_backend

    backend = innermost_backend(callback)
    target = getattr(forward, "_torchdynamo_orig_callable", None)
    if not isinstance(backend, Backend):
        return None
    if isinstance(target, FunctionType):  # torch's own modules: a function that calls the module
        return Direct(target, None, slow, module, backend).call
    method = type(module).forward
    if not isinstance(method, FunctionType) or not method.__code__.co_argcount or target is None:
        return None
    return Direct(method, module, slow, module, backend, USUAL_MODULE).call


def has_hooks(*modules: Any) -> bool:
    """Whether a call of one of the modules does more than its `forward`."""
    for module in modules:
        own = module.__dict__
        if (
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or own.get("_compiled_call_impl") is not None
        ):
            return True
    return False
