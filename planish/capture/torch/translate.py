"""FX graph of ATen calls -> our graph: walks the nodes in order and looks each overload up in the table.

In: a functional FX graph with `meta["val"]` on its nodes, as AOTAutograd and torch.export give it. Out: a
`Captured`. Every overload without a translation is listed in one error, with the user's lines, before
anything is built. A translation's result is held to the dtype and shape that torch has worked out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import mul
from types import MappingProxyType
from typing import Any

import numpy as np

from planish.capture.torch.call import Call, find_translation, transposed
from planish.capture.torch.captured import (
    ArgumentResult,
    Captured,
    Feed,
    KeyFeed,
    NoneResult,
    NumberFeed,
    ProgramResult,
    Result,
    SizeResult,
    SizesFeed,
    TensorFeed,
    ViewResult,
)
from planish.capture.torch.host import can_host, effect, hosted, is_random
from planish.capture.torch.layouts import inverse, memory_order
from planish.capture.torch.promotion import Number, own_dtype
from planish.capture.torch.sizes import Sizes
from planish.capture.torch.tensors import constant_array
from planish.errors import CaptureError, TypeRuleError, UnsupportedOp
from planish.ir import Graph, Location, Node, Note, constant, input_node
from planish.ir.node import make_node
from planish.ops.record import get_op
from planish.ops.rules import ops
from planish.types import (
    FLOAT64,
    INT64,
    UINT8,
    UINT32,
    Expr,
    TensorType,
    is_static,
    symbols_of,
)

CHECKED = {  # calls that only say what AOTAutograd and torch.export have seen to
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
    "aten._assert_scalar.default",
}

EFFECTS = "with_effects"  # AOTAutograd's: (token, overload, *arguments) -> (next token, *results)

_NUMBERS = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def translate(
    module: Any, name: str = "torch", constants: Mapping[int, Any] = MappingProxyType({}), host: bool = True
) -> Captured:
    """The graph of an FX module.

    constants  places of placeholders -> tensors that they always are
    host       torch runs operators without a translation, as host ops; False: they are refused

    Raises UnsupportedOp and UnsupportedDType, naming operator and line; CaptureError where a translation
    does not give what torch gives.
    """
    return Translator(module, name, constants, host).captured()


class Translator:
    """Builds one graph. `values` holds, for each FX node, what stands for it. With `host`, torch runs what
    has no translation."""

    def __init__(self, module: Any, name: str, constants: Mapping[int, Any], host: bool):
        self.module, self.name, self.constants, self.host = module, name, constants, host
        self.sizes = Sizes()
        self.values: dict[Any, Any] = {}
        self.notes: dict[Node, Note] = {}
        self.effects: list[Node] = []
        self.inputs: list[Node] = []
        self.feeds: list[Feed] = []
        self.arguments: dict[Any, int] = {}
        self.places: dict[str, tuple[int, int | None]] = {}
        self.integers: dict[str, Node] = {}
        self.keys = 0
        self.key_input: Node | None = None

    def captured(self) -> Captured:
        nodes = list(self.module.graph.nodes)
        refuse_unsupported(nodes, self.host)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for index, node in enumerate(placeholders):
            self.arguments[node] = index
            self.values[node] = self._placeholder(index, node)
        for node in nodes:
            if node.op in ("call_function", "get_attr"):
                self.values[node] = self._value(node)
        outputs, results = self._results(nodes[-1])
        self._carry_sizes()
        graph = Graph(
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.effects),
            self.name,
            tuple(f"output_{i}" for i in range(len(outputs))),
            MappingProxyType(self.notes),
        )
        return Captured(
            graph,
            tuple(self.feeds),
            tuple(results),
            self.places,
            self.sizes.hints,
            tuple(self.constants),
            len(placeholders),
        )

    # --- inputs

    def _placeholder(self, index: int, node: Any) -> Any:
        value = node.meta.get("val")
        if any(str(user.target) == EFFECTS and user.args[0] is node for user in node.users):
            return constant(np.zeros(0, np.float32))  # a token: the caller passes None
        if index in self.constants:
            found = constant(constant_array(self.constants[index]))
            self._note(found, None, node.name)
            return found
        if _is_tensor(value):
            return self._tensor_input(index, node, value)
        if _is_symbolic_int(value):
            dim = self.sizes.dim(value)
            if isinstance(dim, Expr) and str(dim) in self.sizes.symbols:
                self.places.setdefault(str(dim), (index, None))
            return dim
        if _is_symbolic_float(value):
            return Number(self._input(node.name, TensorType(FLOAT64), NumberFeed(index, "float64")))
        if value is None or isinstance(value, (int, float, bool, str)):
            return value
        raise UnsupportedOp(f"an argument of type {type(value).__name__}")

    def _tensor_input(self, index: int, node: Any, value: Any) -> Node:
        shape = tuple(map(self.sizes.dim, value.shape))
        order = memory_order(value, self.sizes)
        lying = tuple(range(len(shape))) if order is None else order
        type_ = TensorType(own_dtype(value.dtype), tuple(shape[i] for i in lying))
        taken = self._input(node.name, type_, TensorFeed(index, order))
        for axis, dim in enumerate(shape):
            if str(dim) in self.sizes.symbols:
                self.places[str(dim)] = (index, axis)
        return transposed(taken, inverse(lying))

    def _input(self, name: str, type_: TensorType, feed: Feed) -> Node:
        node = input_node(name, type_)
        self.inputs.append(node)
        self.feeds.append(feed)
        self._note(node, None, name)
        return node

    def _carry_sizes(self) -> None:
        """Sizes that no input's shape says by itself come as the shape of an empty array."""
        bound = {str(d) for n in self.inputs for d in n.shape if isinstance(d, Expr)}
        sizes = {name: s for name, d in self.sizes.symbols.items() for s in symbols_of(d).values()}
        known = bound | self.sizes.fresh
        missing = [name for name, s in sizes.items() if name not in known and s.low >= 0]
        for name in missing:
            if name not in self.places:
                raise UnsupportedOp(f"{self.name}: no argument says the size {name} by itself")
        if missing:
            shape = (0, *(self.sizes.symbols[name] for name in missing))
            feed = SizesFeed(tuple(self.places[name][0] for name in missing))
            self._input("sizes", TensorType(UINT8, shape), feed)

    def key(self) -> Node:
        """The next key of this call: one part of the key that the call is given."""
        if self.key_input is None:
            self.key_input = self._input("key", TensorType(UINT32, (2,)), KeyFeed())
        self.keys += 1
        # The stream of key k is that of the call's key with k added: keys differ, and so do their streams.
        step = constant([self.keys & 0xFFFFFFFF, 0x9E3779B9], UINT32)
        return ops.bitwise_xor(self.key_input, step)

    # --- nodes

    def _value(self, node: Any) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        if node.target is operator.getitem:
            return self._argument(node.args[0])[node.args[1]]
        value = node.meta.get("val")
        if _is_symbolic_int(value) or (isinstance(value, (int, bool)) and not _is_overload(node.target)):
            return self.sizes.dim(value) if not isinstance(value, bool) else value
        name = str(node.target)
        if name in CHECKED:
            return None
        if name == EFFECTS:
            return self._effect(node)
        call = Call(name, self._types(value), location_of(node), self.effects, self.key, self._orders(node))
        result = self._translated(call, node)
        self._hold(call, result)
        for one in result if isinstance(result, tuple) else (result,):
            self._note(one, call.location, node.name)
        return result

    def _translated(self, call: Call, node: Any) -> Any:
        function, arguments = find_translation(call.overload), self._arguments(node)
        if function is None:
            return self._hosted(call, node, arguments)
        effects = len(self.effects)
        try:
            result = function(call, *arguments)
        except (TypeRuleError, UnsupportedOp) as error:
            if self.host and can_host(node.target):
                del self.effects[effects:]
                return self._hosted(call, node, arguments)
            if isinstance(error, UnsupportedOp):
                raise
            raise UnsupportedOp(f"{call.where}: {error}") from error
        return tuple(result) if isinstance(result, list) else result

    def _hosted(self, call: Call, node: Any, arguments: Sequence[Any]) -> Any:
        """A host op: torch runs the call. One that says sizes stands among the effects."""
        types = [t for t in call.types if t is not None]
        if len(types) != len(call.types):
            call.refuse("it gives what is no tensor")
        result = hosted(node.target, arguments, types, [self.key()] if is_random(node.target) else [])
        if self.sizes.is_fresh(*(d for t in types for d in t.shape)):
            self.effects.append(result[0].operands[0] if isinstance(result, tuple) else result)
        is_list = isinstance(node.meta["val"], (list, tuple)) and not isinstance(result, tuple)
        return (result,) if is_list else result

    def _effect(self, node: Any) -> tuple[Any, ...]:
        """(the next token, nothing): a call that only does something."""
        token, overload, *args = node.args
        arguments = self._bound(overload._schema, args, node.kwargs)
        return effect(overload, arguments, self.values[token]), None

    def _arguments(self, node: Any) -> list[Any]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return [self._argument(a) for a in node.args]
        return self._bound(schema, node.args, node.kwargs)

    def _bound(self, schema: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """The arguments in the order of the operator's schema, defaults filled in."""
        given = dict(zip((a.name for a in schema.arguments), args))
        given.update(keywords)
        return [
            self._of_schema(a, self._argument(given.get(a.name, a.default_value))) for a in schema.arguments
        ]

    def _of_schema(self, argument: Any, value: Any) -> Any:
        """A size where the operator takes a number or a tensor is a number known at run time."""
        takes = str(argument.type)
        return Number(self._scalar(value)) if isinstance(value, Expr) and takes in _NUMBERS else value

    def _scalar(self, dim: Expr) -> Node:
        """The value of a size. One that may be negative (an int argument) is computed from the arguments."""
        if all(s.low >= 0 for s in symbols_of(dim).values()):
            return make_node(get_op("size"), (), get_op("size").make_attributes({"dim": dim, "dtype": INT64}))
        total = constant(np.asarray(0, np.int64))
        for monomial, coefficient in dim.terms:
            total = total + reduce(
                mul, map(self._integer, monomial), constant(np.asarray(coefficient, np.int64))
            )
        return total

    def _integer(self, atom: Any) -> Node:
        name = str(atom)
        if name not in self.integers:
            if name not in self.places:
                raise UnsupportedOp(f"{self.name}: the number {name}, which may be negative")
            feed = NumberFeed(self.places[name][0], "int64")
            self.integers[name] = self._input(name, TensorType(INT64), feed)
        return self.integers[name]

    def _argument(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return tuple(map(self._argument, value))
        if isinstance(value, torch.dtype):
            return own_dtype(value)
        return value

    def _attribute(self, node: Any) -> Any:
        import torch

        found = self.module
        for part in node.target.split("."):
            found = getattr(found, part)
        if not isinstance(found, torch.Tensor):
            raise UnsupportedOp(f"{location_of(node)}: {type(found).__name__} in the graph")
        result = constant(constant_array(found).copy())
        self._note(result, None, node.target)
        return result

    def _types(self, value: Any) -> tuple[TensorType | None, ...]:
        values = value if isinstance(value, (list, tuple)) else (value,)
        return tuple(
            TensorType(own_dtype(v.dtype), tuple(map(self.sizes.dim, v.shape))) if _is_tensor(v) else None
            for v in values
        )

    def _orders(self, node: Any) -> Callable[[int], tuple[int, ...] | None]:
        """Operand -> its axes, slowest in memory first; None where it starts elsewhere or has gaps."""

        def order(i: int) -> tuple[int, ...] | None:
            tensor = node.args[i].meta["val"]
            return memory_order(tensor, self.sizes) if tensor.storage_offset() == 0 else None

        return order

    def _hold(self, call: Call, result: Any) -> None:
        """Refuse a result that is not of the types torch gives."""
        results = result if isinstance(result, tuple) else (result,)
        for i, (got, want) in enumerate(zip(results, call.types)):
            if want is None or got is None:
                continue
            fits = (
                isinstance(got, Node)
                and got.dtype is want.dtype
                and got.ndim == len(want.shape)
                and not any(is_static(a) and is_static(b) and a != b for a, b in zip(got.shape, want.shape))
            )
            if not fits:
                raise CaptureError(
                    f"{call.where}: result {i} is {getattr(got, 'type', got)}, torch has {want}"
                )

    def _note(self, node: Any, location: Location | None, name: str) -> None:
        if isinstance(node, Node):
            self.notes.setdefault(node, Note(location, (), name))

    # --- outputs

    def _results(self, output: Any) -> tuple[list[Node], list[Result]]:
        outputs: list[Node] = []
        results: list[Result] = []
        made: dict[Any, ProgramResult] = {}
        for node in _flat(output.args[0]):
            results.append(self._result(node, outputs, made))
        return outputs, results

    def _result(self, node: Any, outputs: list[Node], made: dict[Any, ProgramResult]) -> Result:
        value = self._argument(node) if node is not None else None
        if value is None:
            return NoneResult()
        if not isinstance(value, Node):
            if isinstance(value, Number):
                raise UnsupportedOp(f"{self.name}: a number computed at run time as a result")
            if isinstance(value, Expr) and self.sizes.is_fresh(value):
                raise UnsupportedOp(f"{self.name}: the size {value} as a result, which depends on values")
            return SizeResult(value)
        if node in self.arguments and self.arguments[node] not in self.constants:
            return ArgumentResult(self.arguments[node])
        base = _base(node)
        is_view = base is not node and not self.sizes.is_fresh(*value.shape)
        of = self._base_result(base, outputs, made) if is_view else None
        if of is not None:
            return self._view(node, base, of)
        return self._program_result(node, value, outputs, made)

    def _base_result(
        self, base: Any, outputs: list[Node], made: dict[Any, ProgramResult]
    ) -> ProgramResult | ArgumentResult | None:
        """The tensor that a view is of: an argument, or a result whose memory lies as torch's does."""
        if base in self.arguments:
            index = self.arguments[base]
            return None if index in self.constants else ArgumentResult(index)
        if memory_order(base.meta["val"], self.sizes) is None or base.meta["val"].storage_offset() != 0:
            return None
        return self._program_result(base, self.values[base], outputs, made)

    def _program_result(
        self, node: Any, value: Node, outputs: list[Node], made: dict[Any, ProgramResult]
    ) -> ProgramResult:
        if node not in made:
            order = memory_order(node.meta["val"], self.sizes) or tuple(range(value.ndim))
            outputs.append(transposed(value, order))
            made[node] = ProgramResult(len(outputs) - 1, inverse(order))
        return made[node]

    def _view(self, node: Any, base: Any, of: ProgramResult | ArgumentResult) -> ViewResult:
        tensor = node.meta["val"]
        start = base.meta["val"].storage_offset()
        shape, strides = (tuple(map(self.sizes.dim, dims)) for dims in (tensor.shape, tensor.stride()))
        return ViewResult(of, shape, strides, self.sizes.dim(tensor.storage_offset() - start))


def _base(node: Any) -> Any:
    """What a chain of views looks at."""
    while _is_overload(node.target) and node.target.is_view and node.args and _shares(node, node.args[0]):
        node = node.args[0]
    return node


def _shares(node: Any, other: Any) -> bool:
    """Whether two FX nodes are tensors over the same memory."""
    a, b = node.meta.get("val"), getattr(other, "meta", {}).get("val")
    return a is not None and b is not None and _is_tensor(a) and _is_tensor(b) and a.dtype is b.dtype


# --- what can be translated


def refuse_unsupported(nodes: Sequence[Any], host: bool) -> None:
    """Raises one UnsupportedOp that lists every call without a translation, with the user's lines. With
    `host`, those that torch can run for us are none."""
    missing: dict[str, list[str]] = {}
    for node in nodes:
        if node.op == "call_function" and not _is_known(node, host):
            missing.setdefault(str(node.target), []).append(str(location_of(node) or f"%{node.name}"))
        elif node.op in ("call_module", "call_method"):
            missing.setdefault(f"{node.op} {node.target}", []).append(
                str(location_of(node) or f"%{node.name}")
            )
    if missing:
        lines = [f"    {name}: {_some(places)}" for name, places in missing.items()]
        raise UnsupportedOp("planish has no translation of\n" + "\n".join(lines))


def _some(places: Sequence[str]) -> str:
    few = list(dict.fromkeys(places))
    return ", ".join(few[:3]) + (f" and {len(few) - 3} more" if len(few) > 3 else "")


def _is_known(node: Any, host: bool) -> bool:
    value = node.meta.get("val")
    if node.target is operator.getitem:
        return True
    if _is_symbolic_int(value):
        return str(node.target) != "aten._local_scalar_dense.default"
    if str(node.target) == EFFECTS:
        return host and can_host(node.args[1]) and not node.args[1]._schema.returns
    if not _is_overload(node.target):
        return isinstance(value, (int, bool))
    name = str(node.target)
    return name in CHECKED or find_translation(name) is not None or (host and can_host(node.target))


def _is_overload(target: Any) -> bool:
    import torch

    return isinstance(target, torch._ops.OpOverload)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_symbolic_int(value: Any) -> bool:
    import torch

    return isinstance(value, torch.SymInt)


def _is_symbolic_float(value: Any) -> bool:
    import torch

    return isinstance(value, torch.SymFloat)


def _flat(value: Any) -> list[Any]:
    return [x for v in value for x in _flat(v)] if isinstance(value, (list, tuple)) else [value]


_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)')


def location_of(node: Any) -> Location | None:
    """The innermost line of the user's program that an FX node comes from."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return None
    last = frames[-1]
    return Location(last["file"], int(last["line"]), last["function"].strip())
