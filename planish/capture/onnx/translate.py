"""ONNX graph -> our graph: walks the nodes in order and looks each operator up in the table of translations.

In: a checked `Model`. Out: a Graph with the model's input and output names and a note (file, node name) on
every node. Functions, those of the model and those that define an operator of the standard, are expanded in
place. Every operator without a translation is listed in one error before anything is built.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, Translation, find_translation
from planish.capture.onnx.implied import Range, implied_range
from planish.capture.onnx.model import Model, domain_of, import_onnx, label
from planish.capture.onnx.pointwise import align_operands
from planish.capture.onnx.sizes import Sizes, Value, as_node, fold, make_source
from planish.capture.onnx.symbols import Known, SymbolTable
from planish.capture.onnx.tensors import onnx_dtype, onnx_type_number, to_array
from planish.errors import ModelError, PlanishError, TypeRuleError, UnsupportedOp
from planish.ir import Graph, Location, Node, Note, constant, input_node
from planish.ops.rules import ops
from planish.types import INT64, TensorType, dtype_of, is_static, substitute

Scope = dict[str, Value]


def translate_model(model: Model, known: Known | None, constants: Mapping[str, Any] | None) -> Graph:
    """The graph of a model. Raises ModelError and UnsupportedOp.

    Sizes are held to what the model implies about them (implied.py).
    """
    known = dict(known or {})
    found: dict[str, Range] = {}
    while True:
        try:
            return Translator(model).graph({**known, **found}, dict(constants or {}))
        except ModelError as error:
            implied = implied_range(error.__cause__, found)
            if implied is None or implied[0] in known:
                raise
            found[implied[0]] = implied[1]


class Translator:
    """Builds one graph; `notes` say where each node comes from."""

    def __init__(self, model: Model):
        self.model = model
        self.notes: dict[Node, Note] = {}
        self.effects: list[Node] = []

    def graph(self, known: Known | None, constants: dict[str, Any]) -> Graph:
        proto = self.model.graph
        self._refuse_unsupported(proto.node, self.model.opsets)
        scope = self._initialisers(proto)
        free = [v for v in proto.input if v.name not in scope]
        table = SymbolTable(self.model.file, known)
        inputs = self._inputs(table.input_types(free), scope, constants)
        self._hold_steps(table, scope, inputs)
        self.run(proto.node, scope, self.model.opsets)
        outputs = tuple(self._output(value, scope) for value in proto.output)
        names = tuple(value.name for value in proto.output)
        return Graph(
            inputs,
            outputs,
            name=proto.name or "model",
            output_names=names,
            effects=tuple(self.effects),
            notes=MappingProxyType(self.notes),
        )

    # --- ends

    def _initialisers(self, graph: Any) -> Scope:
        file = self.model.file
        if graph.sparse_initializer:
            raise UnsupportedOp(
                f"{file}: sparse initialiser {graph.sparse_initializer[0].values.name!r}; store it densely"
            )
        overridable = {value.name for value in graph.input}
        scope: Scope = {}
        for tensor in graph.initializer:
            node = constant(to_array(tensor, self.model.folder, f"{file}: initialiser {tensor.name!r}"))
            rules = ("onnx: a default of the input, taken as constant",) if tensor.name in overridable else ()
            self.notes.setdefault(
                node, Note(Location(self.model.short_file, 0, tensor.name), rules, tensor.name)
            )
            scope[tensor.name] = node
        return scope

    def _inputs(
        self, types: dict[str, TensorType], scope: Scope, constants: dict[str, Any]
    ) -> tuple[Node, ...]:
        unknown = set(constants) - set(types)
        if unknown:
            raise ModelError(f"{self.model.file} has no input called {', '.join(sorted(unknown))}; "
                             f"its inputs are {', '.join(types)}")
        for name, type_ in types.items():
            given = name in constants
            node = self._given(name, type_, constants[name]) if given else input_node(name, type_)
            self.notes.setdefault(node, Note(Location(self.model.short_file, 0, name), name=name))
            scope[name] = node
        return tuple(as_node(scope[name]) for name in types if name not in constants)

    def _hold_steps(self, table: SymbolTable, scope: Scope, inputs: tuple[Node, ...]) -> None:
        """Inputs with a size that is to be a multiple of a number are cut there, which makes it one; a check
        holds that nothing is lost."""
        stepped = {name: step for name, step in table.steps.items() if step > 1}
        even = {name: table.dims[name] // step * step for name, step in stepped.items()}
        for node in inputs:
            stops = tuple(substitute(d, even) for d in node.shape)
            if stops != node.shape:
                zeros, ones = (0,) * node.ndim, (1,) * node.ndim
                scope[node.attributes.name] = ops.slice(node, starts=zeros, stops=stops, steps=ones)
        for name, step in stepped.items():
            rest = make_source("size", dim=table.dims[name] % step, dtype=INT64)
            message = f"{self.model.short_file}: the size {name} is to be a multiple of {step}"
            self.effects.append(ops.check(ops.eq(rest, 0), error="ValueError", message=message))

    def _given(self, name: str, type_: TensorType, value: Any) -> Node:
        array = np.array(value, dtype=type_.dtype.numpy)
        array.flags.writeable = False
        fits = array.ndim == type_.rank and all(
            d == n or not is_static(d) for d, n in zip(type_.shape, array.shape)
        )
        if not fits:
            raise ModelError(
                f"{self.model.file}: the constant for input {name!r} has shape {array.shape}; it is {type_}"
            )
        return constant(array)

    def _output(self, value: Any, scope: Scope) -> Node:
        node = as_node(scope[value.name])
        declared = value.type.tensor_type.elem_type
        if declared and onnx_dtype(declared, f"{self.model.file}: output {value.name!r}") is not node.dtype:
            raise ModelError(
                f"{self.model.file}: output {value.name!r} is declared {onnx_dtype(declared, '').name} "
                f"and computed {node.dtype.name}"
            )
        return node

    # --- what can be translated

    def _refuse_unsupported(self, nodes: Iterable[Any], opsets: Mapping[str, int]) -> None:
        missing: dict[tuple[str, str, int], list[Any]] = {}
        for node, versions in self._all_nodes(nodes, opsets):
            domain = domain_of(node)
            if domain not in versions:
                raise ModelError(f"{self.model.file}: {label(node)} is of domain {domain!r}, "
                                 "whose version the model does not say")
            if not _is_supported(domain, node.op_type, versions[domain]):
                missing.setdefault((domain, node.op_type, versions[domain]), []).append(node)
        if missing:
            raise UnsupportedOp(_list_missing(self.model.file, missing))

    def _all_nodes(self, nodes: Iterable[Any], opsets: Mapping[str, int],
                   within: tuple[tuple[str, str], ...] = ()) -> Iterator[tuple[Any, Mapping[str, int]]]:
        """The nodes and those of the model's own functions they call."""
        for node in nodes:
            key = (domain_of(node), node.op_type)
            if key in within:
                raise ModelError(f"{self.model.file}: function {node.op_type!r} calls itself")
            function = self.model.functions.get(key)
            if function is None:
                yield node, opsets
            else:
                yield from self._all_nodes(function.node, self._opsets_of(function), (*within, key))

    def _opsets_of(self, function: Any) -> dict[str, int]:
        """What a function imports; what it does not say is as in the model."""
        newest = {"": import_onnx().defs.onnx_opset_version()}
        return {
            **newest,
            **self.model.opsets,
            **{domain_of(entry): entry.version for entry in function.opset_import},
        }

    # --- nodes

    def run(self, nodes: Iterable[Any], scope: Scope, opsets: Mapping[str, int],
            outer: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Translate nodes in order, adding their outputs to `scope`. `outer` has a function's attributes."""
        for node in nodes:
            call = self._call(node, scope, opsets, outer)
            results = self._results(node, call, scope, opsets, outer)
            wanted = [(i, name) for i, name in enumerate(node.output) if name]
            for i, name in wanted:
                value = results[i] if i < len(results) else None
                if value is None:
                    call.refuse(f"its output {name!r} is not supported")
                scope[name] = value
                self._note(value, node)

    def _call(self, node: Any, scope: Scope, opsets: Mapping[str, int], outer: Mapping[str, Any]) -> Call:
        where = f"{self.model.file}: {label(node)}"
        for name in filter(None, node.input):
            if name not in scope:
                raise ModelError(f"{where} reads {name!r}, which nothing before it gives")
        operands = tuple(scope[name] if name else None for name in node.input)
        attributes = dict(_attributes(node, outer, self.model.folder, where))
        domain = domain_of(node)
        return Call(node.op_type, domain, opsets[domain], where, operands, attributes, tuple(node.output))

    def _results(self, node: Any, call: Call, scope: Scope, opsets: Mapping[str, int],
                 outer: Mapping[str, Any]) -> Sequence[Value | None]:
        """What the node gives; whatever goes wrong names the node."""
        try:
            if (call.domain, call.op_type) == ("", "If"):
                return self._branch(call, scope, opsets, outer)
            return self._translated(node, call)
        except TypeRuleError as error:
            raise ModelError(f"{call.where}: {error}") from error
        except PlanishError:
            raise
        except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            raise ModelError(f"{call.where}: {_fault(node, call) or error}") from error

    def _translated(self, node: Any, call: Call) -> Sequence[Value | None]:
        function = self.model.functions.get((call.domain, call.op_type))
        if function is not None:
            return self._expand(function, call)
        call = align_operands(call)
        folded = fold(call)
        if folded is not None:
            return (folded,)
        translation: Translation | None = find_translation(call.domain, call.op_type, call.opset)
        if translation is None:
            return self._expand(_body(node, call), call)
        result = translation(call)
        return (result,) if isinstance(result, (Node, Sizes)) else result

    def _branch(self, call: Call, scope: Scope, opsets: Mapping[str, int],
                outer: Mapping[str, Any]) -> Sequence[Value | None]:
        """The branch of an If whose condition follows from constants and sizes, in place of the node."""
        (condition,) = call.sizes(0, "condition")
        if not is_static(condition):
            call.needs_size("its condition", condition)
        branch = call.attribute("then_branch" if condition else "else_branch")
        self._refuse_unsupported(branch.node, opsets)
        inner = {**scope, **self._initialisers(branch)}
        self.run(branch.node, inner, opsets, outer)
        return [inner.get(value.name) for value in branch.output]

    def _expand(self, function: Any, call: Call) -> tuple[Value | None, ...]:
        """The outputs of a function's body on the call's operands."""
        opsets = self._opsets_of(function)
        self._refuse_unsupported(function.node, opsets)
        bound = dict(zip_longest(function.input, call.operands))
        scope: Scope = {name: value for name, value in bound.items() if value is not None}
        absent = set(bound) - set(scope)
        self.run([_without_absent(n, absent) for n in function.node], scope, opsets,
                 {**_defaults(function, call, self.model.folder), **call.attributes})
        return tuple(scope.get(name) for name in list(function.output)[:len(call.outputs)])

    def _note(self, value: Value, proto: Any) -> None:
        """Give the nodes this translation made (those without a note, down from its result) their origin."""
        if not isinstance(value, Node):
            return
        note = Note(Location(self.model.short_file, 0, proto.name or proto.output[0]), name=proto.output[0])
        stack = [value]
        while stack:
            node = stack.pop()
            if node not in self.notes:
                self.notes[node] = note
                stack.extend(node.operands)


def _fault(node: Any, call: Call) -> str:
    """What the standard's own checker says of a node that could not be translated; "" where it has no
    objection."""
    checker = import_onnx().checker
    context = checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 8, {call.domain: call.opset}
    try:
        checker.check_node(node, context)
    except checker.ValidationError as error:
        return " ".join(str(error).split())
    return ""


# --- attributes

def _attributes(node: Any, outer: Mapping[str, Any], folder: Any, where: str) -> Iterator[tuple[str, Any]]:
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            yield attribute.name, _attribute(attribute, folder, where)
        elif attribute.ref_attr_name in outer:
            yield attribute.name, outer[attribute.ref_attr_name]


def _attribute(proto: Any, folder: Any, where: str) -> Any:
    """Strings are decoded, tensors become arrays, repeated values tuples."""
    from onnx import AttributeProto, helper
    if proto.type == AttributeProto.TENSOR:
        return to_array(proto.t, folder, f"{where}, attribute {proto.name!r}")
    try:
        value = helper.get_attribute_value(proto)
    except ValueError as error:
        raise ModelError(f"{where}: attribute {proto.name!r} can't be read: {error}") from error
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if proto.type == AttributeProto.STRINGS:
        return tuple(item.decode("utf-8", "replace") for item in value)
    return tuple(value) if proto.type in (AttributeProto.FLOATS, AttributeProto.INTS) else value


# --- functions

def _is_supported(domain: str, op_type: str, opset: int) -> bool:
    return ((domain, op_type) == ("", "If") or find_translation(domain, op_type, opset) is not None
            or _standard_function(domain, op_type, opset) is not None)


def _defaults(function: Any, call: Call, folder: Any) -> dict[str, Any]:
    """Attribute values that a function, or the standard operator it defines, has where a call says
    nothing."""
    schema = _standard_function(call.domain, call.op_type, call.opset)
    standard = [] if schema is None else [a.default_value for a in schema.attributes.values()]
    return {
        a.name: _attribute(a, folder, call.where) for a in (*standard, *function.attribute_proto) if a.type
    }


def _without_absent(node: Any, absent: set[str]) -> Any:
    """The node with operands that the caller left out written as left out."""
    if not absent.intersection(node.input):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend("" if name in absent else name for name in node.input)
    return copy


def _standard_function(domain: str, op_type: str, opset: int) -> Any:
    """The schema of a standard operator that is defined by a function, or None."""
    defs = import_onnx().defs
    try:
        schema = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _body(node: Any, call: Call) -> Any:
    """The function that defines a standard operator, for the types of this call's operands."""
    onnx = import_onnx()
    schema = _standard_function(call.domain, call.op_type, call.opset)
    if schema.has_function:
        return schema.function_body
    types = [_type_proto(onnx, v) for v in call.operands]
    body = schema.get_context_dependent_function(_resolved(onnx, node, call).SerializeToString(), types)
    return onnx.FunctionProto.FromString(body)


def _resolved(onnx: Any, node: Any, call: Call) -> Any:
    """The node with attributes that refer to an outer function's replaced by their values."""
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(a for a in node.attribute if not a.ref_attr_name)
    copy.attribute.extend(onnx.helper.make_attribute(a.name, call.attributes[a.name])
                          for a in node.attribute if a.ref_attr_name and a.name in call.attributes)
    return copy


def _type_proto(onnx: Any, value: Value | None) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    dims = [d if is_static(d) else str(d) for d in value.shape]
    return onnx.helper.make_tensor_type_proto(
        onnx_type_number(dtype_of(value.dtype)), dims
    ).SerializeToString()


def _list_missing(file: str, missing: dict[tuple[str, str, int], list[Any]]) -> str:
    count = len(missing)
    lines = [f"{file} uses {count} operator{'s' * (count != 1)} that planish does not have:"]
    for (domain, op_type, opset), nodes in sorted(missing.items()):
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        lines.append(f"  {op_type} (domain {domain or 'ai.onnx'!r}, opset {opset}): {label(nodes[0])}{more}")
    lines.append("Export the model with other operators in their place, "
                 "or take the part without them (onnx.utils.extract_model).")
    return "\n".join(lines)
