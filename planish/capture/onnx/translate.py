"""ONNX graph -> our graph: walks the nodes in order and looks each operator up in the table of translations.

In: a checked `Model`. Out: a Graph with the model's input and output names and a note (file, node name) on
every node. Functions, those of the model and those that define an operator of the standard, are expanded in
place. Every operator without a translation is listed in one error before anything is built.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, Translation, find_translation
from planish.capture.onnx.containers import EmptyOptional, SequenceValue
from planish.capture.onnx.control import Inner
from planish.capture.onnx.ends import (
    GraphInputs,
    GraphOutputs,
    constant_value,
    declared_dtype,
    dtype_in,
    given_as,
)
from planish.capture.onnx.fresh import FreshSizes, dependencies
from planish.capture.onnx.implied import Range, implied_range
from planish.capture.onnx.loops import find_control
from planish.capture.onnx.model import Model, domain_of, import_onnx, label
from planish.capture.onnx.pointwise import align_operands
from planish.capture.onnx.sizes import Value, fold, make_source
from planish.capture.onnx.structure import CapturedModel, Form, Given, is_open
from planish.capture.onnx.symbols import Known, SymbolTable
from planish.capture.onnx.tensors import decoded, onnx_type_number, to_array, to_dense
from planish.errors import ModelError, NeedsValue, PlanishError, TypeRuleError, UnsupportedOp
from planish.ir import Graph, Location, Node, Note
from planish.ir.fresh import without_idle_hosts
from planish.ir.node import constant_of
from planish.ops.content import Content
from planish.ops.rules import ops
from planish.types import INT64, Dim, is_static, substitute, symbols_of

MOST_AGAIN = 1 << 13   # nodes of graphs inside nodes that are read, beyond a few times all there are

Scope = dict[str, Value]


def translate_model(model: Model, known: Known | None, constants: Mapping[str, Any] | None,
                    types: Mapping[str, Given] | None = None, free: Collection[str] = ()) -> CapturedModel:
    """The graph of a model, and how its inputs and outputs lie in it. `free` are inputs with a default
    (initialisers) that are to be inputs none the less. Raises ModelError and UnsupportedOp.

    Sizes are held to what the model implies about them (implied.py). One that depends on values and stands
    where another is needed is that other one, and a call checks it (fresh.py).
    """
    if model.mapped is not None:
        model.mapped.check_unchanged()
    known = dict(known or {})
    found: dict[str, Range] = {}
    equal: dict[str, Dim] = {}
    while True:
        translator = Translator(model, free, equal)
        try:
            return translator.captured({**known, **found}, dict(constants or {}), dict(types or {}))
        except (ModelError, NeedsValue) as error:
            same = translator.fresh.implied_equal(error.__cause__)
            implied = implied_range(error.__cause__, found, translator.fresh.order)
            if same is not None:
                equal |= [same]
            elif implied is not None and implied[0] not in known:
                found[implied[0]] = implied[1]
            else:
                raise


@dataclass(frozen=True)
class Frame:
    """What the nodes of a graph share: the versions of the domains, the attributes of the function that it is
    the body of, and whether it is that of a loop or choice (see Call)."""

    opsets: Mapping[str, int]
    outer: Mapping[str, Any] = field(default_factory=dict)
    is_body: bool = False


class Translator:
    """Builds one graph; `notes` say where each node comes from."""

    def __init__(self, model: Model, free: Collection[str] = (), equal: Mapping[str, Dim] | None = None):
        self.model, self.free = model, frozenset(free)
        self.notes: dict[Node, Note] = {}
        self.effects: list[Node] = []
        self.read_inside, self.most_inside = 0, MOST_AGAIN + 4 * _count(model.graph)
        self.fresh = FreshSizes(self.effects, equal)

    def captured(self, known: Known | None, constants: dict[str, Any],
                 types: dict[str, Given]) -> CapturedModel:
        proto = self.model.graph
        self._refuse_unsupported(proto.node, self.model.opsets)
        scope = self._initialisers(proto, self.model.arrays, self.free)
        free = [v for v in proto.input if v.name not in scope]
        inputs, table = GraphInputs(self._note_end), SymbolTable(self.model.file, known)
        input_forms = self._bind_inputs(inputs, free, scope, table, constants, types)
        self.fresh.taken.update(table.dims)
        self._hold_steps(table, scope, inputs.nodes)
        self.run(proto.node, scope, Frame(self.model.opsets))
        outputs = GraphOutputs()
        output_forms = {value.name: self._bind_output(outputs, value, scope) for value in proto.output}
        graph = Graph(
            tuple(inputs.nodes),
            tuple(outputs.nodes),
            name=proto.name or "model",
            output_names=tuple(outputs.names),
            effects=tuple(self.effects),
            notes=MappingProxyType(self.notes),
        )
        return CapturedModel(without_idle_hosts(graph), input_forms, output_forms)

    # --- ends

    def _initialisers(self, graph: Any, arrays: dict[str, np.ndarray] | None = None,
                      free: Collection[str] = ()) -> Scope:
        """The initialisers as constants, those of `free` left out. `arrays` are those that were read before,
        and takes up the others."""
        arrays = {} if arrays is None else arrays
        overridable = {value.name for value in graph.input}
        scope: Scope = {}
        contents = self.model.contents if arrays is self.model.arrays else {}
        for name, read in _stored(graph, self.model, contents):
            if name in free:
                continue
            if name not in arrays:
                arrays[name] = read()
            is_lent = (self.model.mapped is not None and name in contents
                       and np.may_share_memory(arrays[name], contents[name]))
            node = scope[name] = constant_of(Content.of(arrays[name], is_lent=is_lent))
            rules = ("onnx: a default of the input, taken as constant",) if name in overridable else ()
            self.notes.setdefault(node, Note(Location(self.model.short_file, 0, name), rules, name))
        return scope

    def _bind_inputs(self, inputs: GraphInputs, protos: list[Any], scope: Scope, table: SymbolTable,
                     constants: dict[str, Any], types: dict[str, Given]) -> dict[str, Form]:
        """Put the values of the model's inputs into `scope`; the Forms of those that are not constants."""
        names = [value.name for value in protos]
        unknown = set(constants) - set(names)
        if unknown:
            raise ModelError(f"{self.model.file} has no input called {', '.join(sorted(unknown))}; "
                             f"its inputs are {', '.join(names)}")
        for value in protos:
            if value.name in constants and is_open(value):
                what = f"{self.model.file}: the constant for input {value.name!r}"
                types = {**types, value.name: given_as(value.type, constants[value.name], what)}
        given, forms = table.input_types(protos, types), {}
        for value in protos:
            name, what = value.name, f"{self.model.file}: the constant for input {value.name!r}"
            dtype = declared_dtype(value.type, what)
            if name in constants:
                scope[name] = constant_value(what, given[name], constants[name], dtype)
                self._note_end(scope[name], name)
            else:
                scope[name], forms[name] = inputs.bind(name, given[name], dtype)
        return forms

    def _note_end(self, value: Value, name: str) -> None:
        if isinstance(value, Node):
            self.notes.setdefault(value, Note(Location(self.model.short_file, 0, name), name=name))

    def _hold_steps(self, table: SymbolTable, scope: Scope, inputs: Sequence[Node]) -> None:
        """Inputs with a size that is to be a multiple of a number are cut there, which makes it one; a check
        holds that nothing is lost."""
        stepped = {name: step for name, step in table.steps.items() if step > 1}
        even = {name: table.dims[name] // step * step for name, step in stepped.items()}
        for node in inputs:
            stops = tuple(substitute(d, even) for d in node.shape)
            if stops != node.shape and scope.get(node.attributes.name) is node:
                zeros, ones = (0,) * node.ndim, (1,) * node.ndim
                scope[node.attributes.name] = ops.slice(node, starts=zeros, stops=stops, steps=ones)
        for name, step in stepped.items():
            rest = make_source("size", dim=table.dims[name] % step, dtype=INT64)
            message = f"{self.model.short_file}: the size {name} is to be a multiple of {step}"
            self.effects.append(ops.check(ops.eq(rest, 0), error="ValueError", message=message))

    def _bind_output(self, outputs: GraphOutputs, proto: Any, scope: Scope) -> Form:
        value, what = scope[proto.name], f"{self.model.file}: output {proto.name!r}"
        declared, computed = declared_dtype(proto.type, what), dtype_in(value)
        if declared is not None and computed is not None and declared is not computed:
            raise ModelError(f"{what} is declared {declared.name} and computed {computed.name}")
        return outputs.bind(proto.name, value)

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

    def run(self, nodes: Iterable[Any], scope: Scope, frame: Frame) -> None:
        """Translate nodes in order, adding their outputs to `scope`."""
        for node in nodes:
            call = self._call(node, scope, frame)
            results = self._results(node, call, scope, frame)
            wanted = [(i, name) for i, name in enumerate(node.output) if name]
            for i, name in wanted:
                value = results[i] if i < len(results) else None
                if value is None:
                    call.refuse(f"its output {name!r} is not supported")
                scope[name] = value
                self._note(value, call.note)

    def _call(self, node: Any, scope: Scope, frame: Frame) -> Call:
        where = f"{self.model.file}: {label(node)}"
        for name in filter(None, node.input):
            if name not in scope:
                raise ModelError(f"{where} reads {name!r}, which nothing before it gives")
        operands = tuple(scope[name] if name else None for name in node.input)
        attributes = dict(_attributes(node, frame.outer, self.model.folder, where))
        domain = domain_of(node)
        return Call(node.op_type, domain, frame.opsets[domain], where, operands, attributes,
                    tuple(node.output), self.fresh, frame.is_body, self._origin(node))

    def _results(self, node: Any, call: Call, scope: Scope, frame: Frame) -> Sequence[Value | None]:
        """What the node gives; whatever goes wrong names the node."""
        try:
            control = find_control(call.domain, call.op_type, call.opset)
            if control is None:
                return self._translated(node, call)
            read = partial(self._read_inner, scope, frame)
            read_body = partial(self._read_inner, scope, replace(frame, is_body=True))
            return control(call, Inner(read, read_body, scope, lambda n: self.notes.get(n, call.note)))
        except TypeRuleError as error:
            self._blame_fresh(call, error)
            raise ModelError(f"{call.where}: {error}") from error
        except PlanishError:
            raise
        except _FAULTS as error:
            raise ModelError(f"{call.where}: {_fault(node, call) or error}") from error

    def _blame_fresh(self, call: Call, error: TypeRuleError) -> None:
        """Raises NeedsValue where types do not fit whose sizes depend on values."""
        sizes = error.sizes or [d for v in call.operands if isinstance(v, Node) for d in v.shape]
        fresh = [d for d in sizes if not symbols_of(d).keys().isdisjoint(self.fresh.order)]
        if fresh:
            inputs, sizes = dependencies((), fresh, self.fresh)
            raise NeedsValue(f"{call.where}: {error}; these sizes depend on values of {', '.join(inputs)}: "
                             "give them as constants", inputs, sizes) from error

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
        return result if isinstance(result, (tuple, list)) else (result,)

    def _read_inner(self, scope: Scope, frame: Frame, graph: Any, inputs: Sequence[Value]) -> list[Value]:
        """What a graph inside a node of `scope` gives on these inputs."""
        self._refuse_unsupported(graph.node, frame.opsets)
        self.read_inside += 1 + len(graph.node)
        if self.read_inside > self.most_inside:
            raise UnsupportedOp(f"{self.model.file}: loops and choices one in another, or written out round "
                                f"by round, come to more than {self.most_inside} nodes")
        inner = {**scope, **self._initialisers(graph),
                 **dict(zip((value.name for value in graph.input), inputs, strict=True))}
        self.run(graph.node, inner, frame)
        for value in graph.output:
            if value.name not in inner:
                raise ModelError(f"{self.model.file}: output {value.name!r} of the inner graph "
                                 f"{graph.name!r} is written by no node")
        return [inner[value.name] for value in graph.output]

    def _expand(self, function: Any, call: Call) -> tuple[Value | None, ...]:
        """The outputs of a function's body on the call's operands."""
        opsets = self._opsets_of(function)
        self._refuse_unsupported(function.node, opsets)
        bound = dict(zip_longest(function.input, call.operands))
        scope: Scope = {name: value for name, value in bound.items() if value is not None}
        absent = set(bound) - set(scope)
        attributes = {**_defaults(function, call, self.model.folder), **call.attributes}
        self.run([_without_absent(n, absent) for n in function.node], scope,
                 Frame(opsets, attributes, call.is_body))
        return tuple(scope.get(name) for name in list(function.output)[:len(call.outputs)])

    def _origin(self, proto: Any) -> Note:
        """The note of what a node gives."""
        name = next(filter(None, proto.output), "")
        return Note(Location(self.model.short_file, 0, proto.name or name), name=name)

    def _note(self, value: Value, note: Note) -> None:
        """Give the nodes this translation made (those without a note, down from its result) their origin."""
        if not isinstance(value, Node):
            return
        stack = [value]
        while stack:
            node = stack.pop()
            if node not in self.notes:
                self.notes[node] = note
                stack.extend(node.operands)


def _count(graph: Any) -> int:
    """How many nodes a graph has, with those inside its nodes."""
    inner = (a for node in graph.node for a in node.attribute if a.HasField("g"))
    return len(graph.node) + sum(_count(a.g) for a in inner)


# What goes wrong in Python where a node has attributes or operands that its operator does not take.
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


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


def _stored(graph: Any, model: Model,
            contents: Mapping[str, np.ndarray]) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The name of each initialiser, and what reads it."""
    what = f"{model.file}: initialiser"
    for tensor in graph.initializer:
        name = tensor.name
        yield name, partial(to_array, tensor, model.folder, f"{what} {name!r}", contents.get(name))
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        yield name, partial(to_dense, sparse, model.folder, f"{what} {name!r}")


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
        return decoded(value, f"{where}: attribute {proto.name!r}")
    if proto.type == AttributeProto.STRINGS:
        return tuple(decoded(item, f"{where}: attribute {proto.name!r}") for item in value)
    return tuple(value) if proto.type in (AttributeProto.FLOATS, AttributeProto.INTS) else value


# --- functions

def _is_supported(domain: str, op_type: str, opset: int) -> bool:
    return (find_control(domain, op_type, opset) is not None
            or find_translation(domain, op_type, opset) is not None
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
    return _type_of(onnx.helper, value).SerializeToString() if value is not None else \
        onnx.TypeProto().SerializeToString()


def _type_of(helper: Any, value: Value) -> Any:
    if isinstance(value, EmptyOptional):
        return helper.make_optional_type_proto(helper.make_tensor_type_proto(0, None))
    if isinstance(value, SequenceValue):
        first = value.elements[0] if value.elements else None
        number = 0 if value.dtype is None else onnx_type_number(value.dtype)
        return helper.make_sequence_type_proto(
            helper.make_tensor_type_proto(number, None) if first is None else _type_of(helper, first)
        )
    dims = [d if is_static(d) else str(d) for d in value.shape]
    return helper.make_tensor_type_proto(onnx_type_number(value.dtype), dims)


def _list_missing(file: str, missing: dict[tuple[str, str, int], list[Any]]) -> str:
    count = len(missing)
    lines = [f"{file} uses {count} operator{'s' * (count != 1)} that planish does not have:"]
    for (domain, op_type, opset), nodes in sorted(missing.items()):
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        lines.append(f"  {op_type} (domain {domain or 'ai.onnx'!r}, opset {opset}): {label(nodes[0])}{more}")
    lines.append("Export the model with other operators in their place, "
                 "or take the part without them (onnx.utils.extract_model).")
    return "\n".join(lines)
