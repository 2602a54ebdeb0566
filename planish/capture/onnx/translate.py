"""ONNX graph -> our graph: walks the nodes in order and looks each operator up in the table of translations.

In: a checked `Model`. Out: a Graph with the model's input and output names and a note (file, node name) on every node.
Functions, those of the model and those that define an operator of the standard, are expanded in place. Every operator
without a translation is listed in one error before anything is built.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, Translation, find_translation
from planish.capture.onnx.model import Model, domain_of, import_onnx, label
from planish.capture.onnx.sizes import Value, as_node, fold
from planish.capture.onnx.symbols import Known, SymbolTable
from planish.capture.onnx.tensors import onnx_dtype, onnx_type_number, to_array
from planish.errors import ModelError, TypeRuleError, UnsupportedOp
from planish.ir import Graph, Location, Node, Note, constant, input_node
from planish.types import TensorType, dtype_of, is_static

Scope = dict[str, Value]


def translate_model(model: Model, known: Known | None, constants: Mapping[str, Any] | None) -> Graph:
    """The graph of a model. Raises ModelError and UnsupportedOp."""
    return Translator(model).graph(known, dict(constants or {}))


class Translator:
    """Builds one graph; `notes` say where each node comes from."""

    def __init__(self, model: Model):
        self.model = model
        self.notes: dict[Node, Note] = {}

    def graph(self, known: Known | None, constants: dict[str, Any]) -> Graph:
        proto = self.model.graph
        self._refuse_unsupported(proto.node)
        scope = self._initialisers()
        free = [v for v in proto.input if v.name not in scope]
        types = SymbolTable(self.model.file, known).input_types(free)
        inputs = self._inputs(types, scope, constants)
        self.run(proto.node, scope, self.model.opsets)
        outputs = tuple(self._output(value, scope) for value in proto.output)
        names = tuple(value.name for value in proto.output)
        return Graph(inputs, outputs, name=proto.name or "model", output_names=names, notes=MappingProxyType(self.notes))

    # --- ends

    def _initialisers(self) -> Scope:
        graph, file = self.model.graph, self.model.file
        if graph.sparse_initializer:
            raise UnsupportedOp(f"{file}: sparse initialiser {graph.sparse_initializer[0].values.name!r}; store it densely")
        overridable = {value.name for value in graph.input}
        scope: Scope = {}
        for tensor in graph.initializer:
            node = constant(to_array(tensor, self.model.folder, f"{file}: initialiser {tensor.name!r}"))
            rules = ("onnx: a default of the input, taken as constant",) if tensor.name in overridable else ()
            self.notes.setdefault(node, Note(Location(self.model.short_file, 0, tensor.name), rules, tensor.name))
            scope[tensor.name] = node
        return scope

    def _inputs(self, types: dict[str, TensorType], scope: Scope, constants: dict[str, Any]) -> tuple[Node, ...]:
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

    def _given(self, name: str, type_: TensorType, value: Any) -> Node:
        array = np.array(value, dtype=type_.dtype.numpy)
        array.flags.writeable = False
        fits = array.ndim == type_.rank and all(d == n or not is_static(d) for d, n in zip(type_.shape, array.shape))
        if not fits:
            raise ModelError(f"{self.model.file}: the constant for input {name!r} has shape {array.shape}; it is {type_}")
        return constant(array)

    def _output(self, value: Any, scope: Scope) -> Node:
        node = as_node(scope[value.name])
        declared = value.type.tensor_type.elem_type
        if declared and onnx_dtype(declared, f"{self.model.file}: output {value.name!r}") is not node.dtype:
            raise ModelError(f"{self.model.file}: output {value.name!r} is declared {onnx_dtype(declared, '').name} "
                             f"and computed {node.dtype.name}")
        return node

    # --- what can be translated

    def _refuse_unsupported(self, nodes: Iterable[Any]) -> None:
        missing: dict[tuple[str, str], list[Any]] = {}
        for node, opsets in self._all_nodes(nodes, self.model.opsets):
            domain = domain_of(node)
            if domain not in opsets:
                raise ModelError(f"{self.model.file}: {label(node)} is of domain {domain!r}, whose version the model lacks")
            if not self._is_supported(node, opsets):
                missing.setdefault((domain, node.op_type), []).append(node)
        if missing:
            raise UnsupportedOp(_list_missing(self.model.file, missing, self.model.opsets))

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
                yield from self._all_nodes(function.node, _opsets_of(function), (*within, key))

    def _is_supported(self, node: Any, opsets: Mapping[str, int]) -> bool:
        domain = domain_of(node)
        return (find_translation(domain, node.op_type, opsets[domain]) is not None
                or _standard_function(domain, node.op_type, opsets[domain]) is not None)

    # --- nodes

    def run(self, nodes: Iterable[Any], scope: Scope, opsets: Mapping[str, int],
            outer: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Translate nodes in order, adding their outputs to `scope`. `outer` has a function's attributes."""
        for node in nodes:
            call = self._call(node, scope, opsets, outer)
            try:
                results = self._results(node, call)
            except TypeRuleError as error:
                raise ModelError(f"{call.where}: {error}") from error
            for name, value in zip(node.output, results):
                if name:
                    scope[name] = value
                    self._note(value, node)
            lacking = [name for name in list(node.output)[len(results):] if name]
            if lacking:
                call.refuse(f"its output {lacking[0]!r} is not supported")

    def _call(self, node: Any, scope: Scope, opsets: Mapping[str, int], outer: Mapping[str, Any]) -> Call:
        where = f"{self.model.file}: {label(node)}"
        for name in filter(None, node.input):
            if name not in scope:
                raise ModelError(f"{where} reads {name!r}, which nothing before it gives")
        operands = tuple(scope[name] if name else None for name in node.input)
        attributes = dict(_attributes(node, outer, self.model.folder, where))
        domain = domain_of(node)
        return Call(node.op_type, domain, opsets[domain], where, operands, attributes, tuple(node.output))

    def _results(self, node: Any, call: Call) -> tuple[Value, ...]:
        function = self.model.functions.get((call.domain, call.op_type))
        if function is not None:
            return self._expand(function, call, _opsets_of(function))
        folded = fold(call)
        if folded is not None:
            return (folded,)
        translation: Translation | None = find_translation(call.domain, call.op_type, call.opset)
        if translation is None:
            return self._expand(_body(node, call), call, None)
        result = translation(call)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def _expand(self, function: Any, call: Call, opsets: Mapping[str, int] | None) -> tuple[Value, ...]:
        """The outputs of a function's body on the call's operands."""
        absent = [None] * (len(function.input) - len(call.operands))
        bound = dict(zip(function.input, (*call.operands, *absent)))
        scope: Scope = {name: value for name, value in bound.items() if value is not None}
        defaults = {a.name: _attribute(a, self.model.folder, call.where) for a in function.attribute_proto}
        body = [_without_absent(n, {name for name, value in bound.items() if value is None}) for n in function.node]
        self.run(body, scope, opsets or _opsets_of(function), {**defaults, **call.attributes})
        return tuple(scope[name] for name in list(function.output)[:len(call.outputs)])

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
    return tuple(value) if isinstance(value, (list, tuple)) or hasattr(value, "MergeFrom") and proto.type in (
        AttributeProto.FLOATS, AttributeProto.INTS) else value


# --- functions

def _opsets_of(function: Any) -> dict[str, int]:
    return {domain_of(entry): entry.version for entry in function.opset_import}


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
    return onnx.FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), types))


def _type_proto(onnx: Any, value: Value | None) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    dims = [d if is_static(d) else str(d) for d in value.shape]
    return onnx.helper.make_tensor_type_proto(onnx_type_number(dtype_of(value.dtype)), dims).SerializeToString()


def _list_missing(file: str, missing: dict[tuple[str, str], list[Any]], opsets: Mapping[str, int]) -> str:
    count = len(missing)
    lines = [f"{file} uses {count} operator{'s' * (count != 1)} that planish does not have:"]
    for (domain, op_type), nodes in sorted(missing.items()):
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        version = opsets.get(domain, "?")
        lines.append(f"  {op_type} (domain {domain or 'ai.onnx'!r}, opset {version}): {label(nodes[0])}{more}")
    lines.append("Export the model with other operators in their place, or take them out of it (onnx.utils.extract_model).")
    return "\n".join(lines)


