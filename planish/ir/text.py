"""The graph IR as text: prints, and parses back to an equal graph.

    graph name(%x: f32[N, 4], %y: f32[4]) where N in 1..8 {
      %0 = add(%x, %y) : f32[N, 4]                      # user.py:3
      %1 = reduce_sum(%0) {axes=(1,), keepdims=False} : f32[N]
      check %2
      return %1
    }

Constants of up to 16 elements are written out; larger ones as `@w0`, kept in `weights(graph)`. Graphs inside
control ops follow the one that uses them. `#` begins a comment.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from planish.errors import ParseError, TypeRuleError
from planish.ir.fresh import all_symbols
from planish.ir.graph import Graph
from planish.ir.node import Node, constant, input_node, make_node
from planish.ops.host import HOST_FUNCTIONS, HostFunction
from planish.ops.record import OPS, get_op
from planish.types import (
    STRING,
    Dim,
    DType,
    Expr,
    Symbol,
    TensorType,
    dtype_of,
    evaluate_dim,
    parse_dim,
    python_number,
    symbol,
)

INLINE = 16  # constants up to this many elements are written out


# --- printing

def print_graph(graph: Graph, *, mark: Node | None = None, notes: bool = True) -> str:
    """The text of a graph; `mark` puts an arrow before one node, `notes` adds locations and rule names."""
    printer = _Printer(notes, mark)
    return printer.whole(graph)


def weights(graph: Graph) -> dict[str, np.ndarray]:
    """The large constants by the names the text gives them."""
    printer = _Printer(False, None)
    printer.whole(graph)
    return printer.weights


class _Printer:
    def __init__(self, notes: bool, mark: Node | None):
        self.notes, self.mark = notes, mark
        self.weights: dict[str, np.ndarray] = {}
        self.pending: list[tuple[str, Graph]] = []
        self.inner: dict[Graph, str] = {}

    def whole(self, graph: Graph) -> str:
        texts = [self.graph(graph, _identifier(graph.name))]
        while self.pending:
            name, inner = self.pending.pop(0)
            texts.append(self.graph(inner, name))
        return "\n".join(texts)

    def graph(self, graph: Graph, name: str) -> str:
        names = node_names(graph)
        inputs = ", ".join(f"{names[n]}: {n.type}" for n in graph.inputs)
        lines = [f"graph {name}({inputs}){_where(all_symbols(graph))} {{"]
        lines += [self.line(graph, n, names) for n in graph.nodes() if n.op.name != "input"]
        lines += [f"  effect {names[n]}" for n in graph.effects]
        lines.append("  return " + ", ".join(names[n] for n in graph.outputs))
        return "\n".join(lines) + "\n}"

    def line(self, graph: Graph, node: Node, names: Mapping[Node, str]) -> str:
        if node.op.name == "constant":
            text = f"  {names[node]} = constant {self.content(node.attributes.array)} : {node.type}"
        else:
            operands = ", ".join(names[o] for o in node.operands)
            attributes = self.attributes(node.attributes)
            text = f"  {names[node]} = {node.op.name}({operands}){attributes} : {_types(node)}"
        if node is self.mark:
            text = "->" + text[2:]
        return text + (self.note(graph, node) if self.notes else "")

    def note(self, graph: Graph, node: Node) -> str:
        note = graph.note(node)
        parts = [] if note.location is None else [str(note.location)]
        if note.rules:
            parts.append("by " + " ".join(note.rules))
        return "  # " + ", ".join(parts) if parts else ""

    def content(self, array: np.ndarray) -> str:
        if array.size <= INLINE:
            return "[" + ", ".join(_scalar(v) for v in array.reshape(-1)) + "]"
        name = next((n for n, a in self.weights.items() if a is array), f"w{len(self.weights)}")
        self.weights[name] = array
        return "@" + name

    def attributes(self, attributes: Any) -> str:
        values = [f"{f.name}={self.value(getattr(attributes, f.name))}" for f in fields(attributes)]
        return " {" + ", ".join(values) + "}" if values else ""

    def value(self, value: Any) -> str:
        if isinstance(value, tuple):
            return "(" + ", ".join(map(self.value, value)) + ("," if len(value) == 1 else "") + ")"
        if isinstance(value, (DType, Expr)):
            return str(value)
        if isinstance(value, Graph):
            if value not in self.inner:
                self.inner[value] = f"inner{len(self.inner)}"
                self.pending.append((self.inner[value], value))
            return f"graph_{self.inner[value]}"
        if isinstance(value, TensorType):
            return f"{value.dtype.short}[{', '.join(map(str, value.shape)) or '()'}]"
        if isinstance(value, HostFunction):
            return f"{value.name}({', '.join(f'{name}={self.value(v)}' for name, v in value.parameters)})"
        if isinstance(value, str):
            return _quoted(value)
        if isinstance(value, (int, float, type(None))):
            return repr(value)
        raise ParseError(f"an attribute of type {type(value).__name__} has no text form")


def node_names(graph: Graph) -> dict[Node, str]:
    """The names the text gives to nodes: inputs by their own, the rest by number."""
    names = {n: f"%{_identifier(n.attributes.name)}" for n in graph.inputs}
    if len(set(names.values())) < len(names):
        names = {n: f"%in{i}_{_identifier(n.attributes.name)}" for i, n in enumerate(graph.inputs)}
    for node in graph.nodes():
        names.setdefault(node, f"%{len(names) - len(graph.inputs)}")
    return names


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "_"


def _scalar(value: np.generic | str) -> str:
    return _quoted(value) if isinstance(value, str) else repr(python_number(value))


def _quoted(text: str) -> str:
    """Text as a literal without "#", which begins a comment."""
    return ascii(text).replace("#", "\\x23")


def _types(node: Node) -> str:
    return ", ".join(map(str, node.type if isinstance(node.type, tuple) else (node.type,)))


def _where(symbols: Mapping[str, Symbol]) -> str:
    ranges = [f"{s.name} in {s.low}..{'' if s.high is None else s.high}" for s in symbols.values()]
    return " where " + ", ".join(ranges) if ranges else ""


# --- parsing

_HEAD = re.compile(r"graph (\w+)\((.*)\)(?: where (.*))? \{$")
_LINE = re.compile(r"%(\w+) = (\w+)\((.*?)\)(?: \{(.*)\})? : (.*)$")
_CONSTANT = re.compile(r"%(\w+) = constant (\[.*\]|@\w+) : (.*)$")
_TYPE = re.compile(r"(\w+)\[(.*)\]$")


def parse_graph(text: str, weights: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph a text stands for. Raises ParseError naming the line."""
    chunks = re.split(r"(?m)^(?=graph )", text)
    sources = [c for c in chunks if c.strip()]
    if not sources:
        raise ParseError("no graph in the text")
    return _Parser(sources, weights or {}).graph(0)


class _Parser:
    def __init__(self, sources: list[str], weights: Mapping[str, np.ndarray]):
        self.sources, self.weights = sources, weights
        self.by_name = {m.group(1): i for i, s in enumerate(sources) if (m := re.match(r"graph (\w+)", s))}
        self.symbols: dict[str, Dim] = {}

    def graph(self, index: int) -> Graph:
        lines = [line.split("  # ")[0].strip() for line in self.sources[index].splitlines()]
        lines = [line.removeprefix("->").strip() for line in lines]
        lines = [line for line in lines if line and not line.startswith("#")]
        head = _HEAD.match(lines[0])
        if not head or lines[-1] != "}":
            raise ParseError(f"not a graph: {lines[0]!r}")
        for part in filter(None, (head.group(3) or "").split(", ")):
            self.range(part)
        nodes: dict[str, Node] = {}
        for one in _split(head.group(2)):
            name, _, type_ = one.partition(": ")
            nodes[name.strip()] = input_node(name.strip()[1:], self.type(type_))
        inputs, effects = tuple(nodes.values()), []
        outputs: tuple[Node, ...] = ()
        for line in lines[1:-1]:
            if line.startswith("return"):
                outputs = tuple(self.find(nodes, n, line) for n in _split(line[6:]))
            elif line.startswith("effect "):
                effects.append(self.find(nodes, line[7:], line))
            else:
                self.node(line, nodes)
        return Graph(inputs, outputs, tuple(effects), name=head.group(1))

    def range(self, part: str) -> None:
        name, _, limits = part.partition(" in ")
        low, _, high = limits.partition("..")
        self.symbols[name] = symbol(name, int(low), parse_dim(high, self.symbols) if high else None)

    def find(self, nodes: Mapping[str, Node], name: str, line: str) -> Node:
        if name.strip() not in nodes:
            raise ParseError(f"{name.strip()} is not defined before {line!r}")
        return nodes[name.strip()]

    def node(self, line: str, nodes: dict[str, Node]) -> None:
        found = _CONSTANT.match(line)
        if found:
            nodes["%" + found.group(1)] = self.constant(found.group(2), found.group(3))
            return
        found = _LINE.match(line)
        if not found or found.group(2) not in OPS:
            raise ParseError(f"not a line of a graph: {line!r}")
        name, op_name, operands, attributes, type_ = found.groups()
        op = get_op(op_name)
        try:
            node = make_node(op, tuple(self.find(nodes, o, line) for o in _split(operands)),
                             op.make_attributes(self.attribute_values(attributes or "")))
        except TypeRuleError as error:
            raise ParseError(f"{line!r}: {error}") from error
        stated = _types(node)
        if stated != type_.strip():
            raise ParseError(f"{line!r}: the type by {op_name}'s rule is {stated}")
        nodes["%" + name] = node

    def constant(self, content: str, type_: str) -> Node:
        wanted = self.type(type_)
        if content.startswith("@"):
            if content[1:] not in self.weights:
                raise ParseError(f"no weights for {content}")
            return constant(self.weights[content[1:]])
        values = ast.literal_eval(content) if wanted.dtype is STRING else \
            [_number(v) for v in _split(content[1:-1])]
        shape = [evaluate_dim(d, {}) for d in wanted.shape]
        return constant(np.array(values, wanted.dtype.numpy).reshape(shape))

    def type(self, text: str) -> TensorType:
        found = _TYPE.match(text.strip())
        if not found:
            raise ParseError(f"{text!r} is not a type")
        shape = tuple(parse_dim(d, self.symbols) for d in _split(found.group(2)))
        return TensorType(dtype_of(found.group(1)), shape)

    def attribute_values(self, text: str) -> dict[str, Any]:
        if not text:
            return {}
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {k.arg: self.value(k.value) for k in call.keywords if k.arg is not None}

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            return tuple(map(self.value, node.elts))
        if isinstance(node, ast.Subscript):
            sizes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return TensorType(dtype_of(ast.unparse(node.value)), tuple(map(self.value, sizes)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in HOST_FUNCTIONS:
            given = tuple((k.arg or "", self.value(k.value)) for k in node.keywords)
            return HostFunction(node.func.id, given)
        text = ast.unparse(node)
        if text.startswith("graph_"):
            return self.graph(self.by_name[text[6:]])
        if text.lstrip("-") in ("inf", "nan"):
            return float(text)
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            return ast.literal_eval(node)
        if isinstance(node, ast.Name) and text not in self.symbols:
            return dtype_of(text)
        return parse_dim(text, self.symbols)


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return float(text) if any(c in text for c in ".en") else int(text)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]
