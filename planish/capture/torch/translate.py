"""FX graph of ATen calls -> our graph: walks the nodes in order and looks each overload up in the tables.

In: a functional FX graph with `meta["val"]` on its nodes, as AOTAutograd and torch.export give it. Out: a
`Captured`. Every overload without a translation is listed in one error, with the user's lines, before
anything is built. A translation's result is held to the dtype and shape that torch has worked out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from planish.capture.torch.call import Call, Translation, cast, find_translation, reshaped
from planish.capture.torch.captured import Captured
from planish.capture.torch.complex import Complex, find_complex_translation, has_complex
from planish.capture.torch.control import CONTROL, INLINED
from planish.capture.torch.expand import EXPANDED, expanded
from planish.capture.torch.fx import (
    EFFECTS,
    flat,
    is_complex,
    is_control,
    is_overload,
    is_symbolic_int,
    is_symbolic_number,
    is_tensor,
    location_of,
    symbols_in_shape,
    used_results,
)
from planish.capture.torch.host import can_host, effect, hosted, is_random, said
from planish.capture.torch.inputs import Inputs
from planish.capture.torch.layouts import memory_order
from planish.capture.torch.promotion import Number, own_dtype, part_dtype
from planish.capture.torch.results import Results
from planish.capture.torch.scalars import scalar_of
from planish.capture.torch.sizes import Sizes, is_polynomial
from planish.capture.torch.supported import ASSERTION, CHECKED, READ, refuse_unsupported
from planish.capture.torch.tensors import constant_array
from planish.errors import CaptureError, TypeRuleError, UnsupportedDType, UnsupportedOp
from planish.ir import Graph, Location, Node, Note, constant, input_node
from planish.types import FLOAT64, INT64, UINT32, Expr, TensorType, is_static, symbols_of

_NUMBERS = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")


def translate(
    module: Any,
    name: str = "torch",
    constants: Mapping[int, Any] = MappingProxyType({}),
    host: bool = True,
    random: str = "keys",
) -> Captured:
    """The graph of an FX module.

    constants  places of placeholders -> tensors that they always are
    host       torch runs operators without a translation, as host ops; False: they are refused
    random     "keys": random numbers come from keys, in native code; "eager": torch draws them, in order

    Raises UnsupportedOp and UnsupportedDType, naming operator and line; CaptureError where a translation
    does not give what torch gives.
    """
    return Translator(module, name, constants, host, random, Sizes()).captured()


class Translator:
    """Builds one graph. `values` holds, for each FX node, what stands for it. With `host`, torch runs what
    has no translation; where `random` is "eager", what draws random numbers too. `in_shapes` are the symbols
    that shapes are made of."""

    def __init__(
        self, module: Any, name: str, constants: Mapping[int, Any], host: bool, random: str, sizes: Sizes
    ):
        self.module, self.name, self.host, self.random, self.sizes = module, name, host, random, sizes
        self.inputs = Inputs(name, constants, sizes, lambda node, name: self._note(node, None, name))
        self.values: dict[Any, Any] = {}
        self.floats: dict[str, Node] = {}
        self.notes: dict[Node, Note] = {}
        self.effects: list[Node] = []
        self.in_shapes: set[str] = set()
        sizes.say = self._say

    def captured(self) -> Captured:
        nodes = self._known_nodes()
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for index, node in enumerate(placeholders):
            self.values[node] = self.inputs.placeholder(index, node)
            if isinstance(self.values[node], Number):
                self.floats[str(node.meta["val"].node.expr)] = self.values[node].node
        self._walk(nodes)
        results = Results(self.inputs, self._argument)
        given = tuple(map(results.result, flat(nodes[-1].args[0])))
        self.inputs.carry_sizes()
        return Captured(
            self._graph(self.inputs.nodes, results.outputs),
            tuple(self.inputs.feeds),
            given,
            self.inputs.places,
            self.sizes.hints,
            tuple(self.inputs.constants),
            len(placeholders),
        )

    def _known_nodes(self) -> list[Any]:
        nodes = list(self.module.graph.nodes)
        refuse_unsupported(nodes, self.host)
        for node in nodes:
            for value in filter(is_tensor, flat(node.meta.get("val"))):
                self.in_shapes |= symbols_in_shape(value)
        return nodes

    def _graph(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
        names = tuple(f"output_{i}" for i in range(len(outputs)))
        effects, notes = tuple(self.effects), MappingProxyType(self.notes)
        return Graph(tuple(inputs), tuple(outputs), effects, self.name, names, notes)

    # --- nodes

    def _walk(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            if node.op in ("call_function", "get_attr"):
                try:
                    self.values[node] = self._value(node)
                except UnsupportedDType as error:
                    raise UnsupportedDType(f"{node.target} at {location_of(node)}: {error}") from None

    def _value(self, node: Any) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        if node.target is operator.getitem:
            return self._argument(node.args[0])[node.args[1]]
        value, name = node.meta.get("val"), str(node.target)
        if name in READ:
            return self._read(value, self._argument(node.args[0]))
        if is_symbolic_int(value) or is_symbolic_number(value):
            return self._number(value)
        if not is_overload(node.target) and isinstance(value, (int, float, bool)):
            return value
        if name in CHECKED:
            return None
        if name == EFFECTS:
            return self._effect(node)
        return self._called(node, name)

    def _called(self, node: Any, name: str) -> Any:
        value = node.meta.get("val")
        types = self._types(value, node, name)
        orders, used = self._orders(node), tuple(used_results(node))
        call = Call(name, types, location_of(node), self.effects, self.inputs.key, orders, used)
        if name == ASSERTION:
            return self._assert(call, node)
        if is_control(node.target):
            result = self._control(call, node)
        else:
            result = self._translated(call, node)
        self._hold(call, result)
        for one in result if isinstance(result, tuple) else (result,):
            self._note(one.node if isinstance(one, Complex) else one, call.location, node.name)
        return result

    def _translated(self, call: Call, node: Any) -> Any:
        arguments = self._arguments(node)
        if self.random == "eager" and is_random(node.target):
            return self._hosted(call, node, arguments)
        function = self._function(call, node, arguments)
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

    def _function(self, call: Call, node: Any, arguments: Sequence[Any]) -> Translation | None:
        """The translation of a call, if it has one: there are two tables."""
        if any(map(is_complex, flat(node.meta.get("val")))) or any(map(has_complex, arguments)):
            return find_complex_translation(call.overload)
        if any(map(_is_late_size, node.target._schema.arguments, arguments)):
            return None
        return find_translation(call.overload)

    def _hosted(self, call: Call, node: Any, arguments: Sequence[Any]) -> Any:
        """A host op: torch runs the call. One that says sizes stands among the effects, as one that draws
        eager's random numbers does: they run in the program's order."""
        if not self.host:
            call.refuse("it has no native form")
        values = flat(node.meta["val"])
        types: dict[int, TensorType] = {}
        for i in used_results(node):
            type_ = call.types[i]
            if type_ is None:
                call.refuse("it gives what is no tensor")
            types[i] = type_.with_shape((*type_.shape, 2)) if is_complex(values[i]) else type_
        draws = is_random(node.target)
        ordered = draws and self.random == "eager"
        # A key that is not read tells two draws apart; in eager's stream taking one would be a draw itself.
        key = constant([len(self.effects)], UINT32) if ordered else self.inputs.key() if draws else None
        made = hosted(node.target, arguments, types, [] if key is None else [key])
        if ordered or self.sizes.is_fresh(*(d for t in types.values() for d in t.shape)):
            self.effects.append(made[0].operands[0] if isinstance(made, tuple) else made)
        results: list[Any] = [None] * len(values)
        for i, one in zip(types, made if isinstance(made, tuple) else (made,)):
            results[i] = Complex(one) if is_complex(values[i]) else one
        return tuple(results) if isinstance(node.meta["val"], (list, tuple)) else results[0]

    def _effect(self, node: Any) -> tuple[Any, ...]:
        """(the next token, nothing): a call that only does something."""
        token, overload, *args = node.args
        arguments = self._bound(overload._schema, args, node.kwargs)
        return effect(overload, arguments, self.values[token]), None

    # --- numbers

    def _number(self, value: Any) -> Any:
        """A size, or a number known at run time."""
        if is_symbolic_int(value) and is_polynomial(value.node.expr):
            return self.sizes.dim(value)
        if value.node.is_constant():
            return value.node.maybe_as_int() if is_symbolic_int(value) else value.node.expr
        return Number(scalar_of(value.node.expr, self._symbol))

    def _symbol(self, name: str) -> Node:
        if name in self.floats:
            return self.floats[name]
        if name not in self.sizes.symbols:
            raise UnsupportedOp(f"{self.name}: nothing says the number {name}")
        found = self.sizes.symbols[name]
        assert isinstance(found, Expr)
        return self.inputs.scalar(found)

    def _read(self, value: Any, tensor: Node) -> Any:
        """The number that a tensor holds. Where it is a size as well, a host op says it."""
        one = reshaped(tensor, ())
        if not (is_symbolic_int(value) or is_symbolic_number(value)):
            return value
        symbols = [str(s) for s in value.node.expr.free_symbols]
        if one.dtype.is_float:
            self.floats.update(dict.fromkeys(symbols, cast(one, FLOAT64)))
            return self._number(value)
        for name in symbols:
            self.inputs.integers[name] = cast(one, INT64)
            if name in self.in_shapes:
                self.effects.append(said(self.inputs.integers[name], self.sizes.fresh_symbol(name)))
            else:
                self.sizes.fresh_symbol(name)
        return self._number(value)

    def _say(self, expr: Any) -> Expr:
        """A size that is no polynomial of others: a host op says it."""
        size = self.sizes.fresh_symbol(f"n{len(self.sizes.symbols)}", 0)
        self.effects.append(said(scalar_of(expr, self._symbol), size))
        return size

    def _assert(self, call: Call, node: Any) -> None:
        """What torch could not see to when it traced: a condition on numbers read from tensors."""
        condition, message = self._arguments(node)
        if isinstance(condition, Number):
            call.check(condition.node, "RuntimeError", message)

    # --- graphs inside

    def _control(self, call: Call, node: Any) -> Any:
        arguments = [self._argument(a) for a in node.args]
        keywords = {name: self._argument(a) for name, a in node.kwargs.items()}
        if call.overload in INLINED:
            return self._inlined(*INLINED[call.overload](*arguments, **keywords))
        if call.overload in EXPANDED:
            graph, taken = expanded(node, self._graph_at)
            return self._inlined(graph, [self.values[n] for n in taken])
        try:
            return CONTROL[call.overload](call, self._body, *arguments, **keywords)
        except TypeRuleError as error:
            raise UnsupportedOp(f"{call.where}: {error}") from error

    def _body(self, module: Any, operands: Sequence[Any]) -> Graph:
        """The closed graph of an FX module on operands of these types."""
        inner = Translator(module, "body", {}, False, self.random, self.sizes)
        inputs = []
        nodes = inner._known_nodes()
        for index, (node, x) in enumerate(zip(nodes, operands)):
            inputs.append(input_node(f"{node.name}.{index}", x.tensor))
            inner.values[node] = inputs[-1]
        outputs = flat(inner._run(nodes))
        if inner.effects or inner.inputs.nodes:
            raise UnsupportedOp(f"{self.name}: a graph of a control operator with checks or random numbers")
        return inner._graph(inputs, outputs)

    def _inlined(self, module: Any, operands: Sequence[Any]) -> Any:
        inner = list(module.graph.nodes)
        refuse_unsupported(inner, self.host)
        self.values.update(zip(inner, operands))
        return self._run(inner)

    def _run(self, nodes: Sequence[Any]) -> Any:
        self._walk(nodes)
        return self._argument(nodes[-1].args[0])

    def _graph_at(self, node: Any) -> Any:
        import torch

        found = self.values[node]
        return found if isinstance(found, torch.fx.GraphModule) else None

    # --- arguments

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
        """A size where the operator takes a number or a tensor is a number known at run time; so is one that
        was read from a tensor and that no shape has."""
        if isinstance(value, tuple):
            return tuple(self._late(v) for v in value)
        if isinstance(value, Expr) and str(argument.type) in _NUMBERS:
            return Number(self.inputs.scalar(value))
        return self._late(value)

    def _late(self, value: Any) -> Any:
        if not isinstance(value, Expr):
            return value
        read = self.inputs.integers.keys() - self.in_shapes
        return Number(self.inputs.scalar(value)) if read & symbols_of(value).keys() else value

    def _argument(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return tuple(map(self._argument, value))
        if isinstance(value, torch.dtype) and not value.is_complex:
            return own_dtype(value)
        return value

    def _attribute(self, node: Any) -> Any:
        import torch

        found = node.graph.owning_module
        for part in node.target.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.fx.GraphModule):
            return found
        if not isinstance(found, torch.Tensor):
            raise UnsupportedOp(f"{location_of(node)}: {type(found).__name__} in the graph")
        return self.inputs.constant(constant_array(found).copy(), found.is_complex(), node.target)

    def _types(self, value: Any, node: Any, name: str) -> tuple[TensorType | None, ...]:
        """Those of a call's results; of complex ones, their parts'."""
        values = value if isinstance(value, (list, tuple)) else (value,)
        for v in values:
            if is_tensor(v) and str(v.layout) != "torch.strided":
                raise UnsupportedOp(
                    f"{name} at {location_of(node) or node.name}: it gives a sparse tensor, which no "
                    "compiled graph holds; leave what makes and uses it out by torch.compiler.disable"
                )
        return tuple(
            TensorType(part_dtype(v.dtype), tuple(map(self.sizes.dim, v.shape))) if is_tensor(v) else None
            for v in values
        )

    def _orders(self, node: Any) -> Callable[[int], tuple[int, ...] | None]:
        """Operand -> its axes, slowest in memory first; None where it starts elsewhere or has gaps."""

        def order(i: int) -> tuple[int, ...] | None:
            tensor = node.args[i].meta["val"]
            return memory_order(tensor, self.sizes) if tensor.storage_offset() == 0 else None

        return order

    # --- results

    def _hold(self, call: Call, result: Any) -> None:
        """Refuse a result that is not of the types torch gives."""
        results = result if isinstance(result, tuple) else (result,)
        for i, (got, want) in enumerate(zip(results, call.types)):
            if want is None or got is None:
                continue
            fits = (
                isinstance(got, (Node, Complex))
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


def _is_late_size(argument: Any, value: Any) -> bool:
    """Whether a size is a number that was read from a tensor: native code takes it as it is only where any
    number may stand."""
    values = value if isinstance(value, tuple) else (value,)
    return str(argument.type) not in _NUMBERS and any(isinstance(v, Number) for v in values)
