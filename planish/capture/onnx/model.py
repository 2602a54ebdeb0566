"""Reading ONNX models: a path, bytes or a ModelProto goes in; a checked `Model` comes out.

Checked here: the protobuf parses, the model has a graph and an opset of the default domain that is in range,
and every name is written once and before it is read. What nodes mean is checked where they are translated.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from planish.capture.onnx.mapped import MappedFile
from planish.capture.onnx.wire import take_weights
from planish.errors import ModelError, PlanishError, UnreadableModel

OLDEST_OPSET = 6  # of older models, operators that have not changed until then
MISSING = "reading ONNX models needs the package onnx: pip install 'planish[onnx]'"


@dataclass(frozen=True)
class Model:
    """A model whose graph is well formed. `file` is for messages; `folder` is where external data may lie.
    `arrays` are the initialisers read so far, shared by all graphs that are captured of the model; who puts
    one there before gives an initialiser from outside. `contents` are the bytes of large initialisers, which
    `proto` does not have (wire.py); they lie in the file `mapped`, where the model came from one."""

    proto: Any
    file: str
    folder: Path | None
    opsets: dict[str, int]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    contents: Mapping[str, np.ndarray] = field(default_factory=dict)
    mapped: MappedFile | None = None

    @property
    def short_file(self) -> str:
        return Path(self.file).name

    @property
    def graph(self) -> Any:
        return self.proto.graph

    @property
    def functions(self) -> dict[tuple[str, str], Any]:
        return {(domain_of(f), f.name): f for f in self.proto.functions}


def domain_of(proto: Any) -> str:
    """The domain of a node, function or opset, with the default one as ''."""
    return "" if proto.domain == "ai.onnx" else proto.domain


def import_onnx() -> Any:
    """The onnx package. Raises PlanishError with the pip line where it is missing."""
    try:
        import onnx
    except ImportError as error:
        raise PlanishError(MISSING) from error
    return onnx


def read_model(source: Any, folder: str | PathLike[str] | None = None) -> Model:
    """The model of a path, bytes or ModelProto. `folder` is where the external data of one that does not come
    from a file may lie.

    Raises ModelError; FileNotFoundError for a path without a file.
    """
    onnx = import_onnx()
    beside = None if folder is None else Path(folder).resolve()
    if isinstance(source, onnx.ModelProto):
        return _check(source, "model", beside)
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = memoryview(source).cast("B")
        return _read(onnx, data if data.readonly else memoryview(bytes(data)), "model bytes", beside)
    path = Path(source)
    if path.is_dir():
        raise UnreadableModel(f"{path} is a folder, not an ONNX file")
    folder = beside or path.resolve().parent
    if not path.is_file() or not path.stat().st_size:
        return _read(onnx, memoryview(path.read_bytes()), str(path), folder)
    mapped = MappedFile.of(path)
    return _read(onnx, mapped.data, str(path), folder, mapped)


def _read(onnx: Any, data: memoryview, file: str, folder: Path | None,
          mapped: MappedFile | None = None) -> Model:
    rest, weights = take_weights(data)
    proto = _parse(onnx, rest, file)
    contents = {proto.graph.initializer[i].name: content for i, content in weights.items()}
    return replace(_check(proto, file, folder), contents=contents, mapped=mapped)


def _parse(onnx: Any, data: bytes, file: str) -> Any:
    from google.protobuf.message import DecodeError
    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise UnreadableModel(
            f"{file} is not an ONNX model, or is cut off: {len(data)} bytes that do not parse"
        ) from error


def _texts(message: Any) -> Iterator[Any]:
    """Every string anywhere in a message; one that is not UTF-8 comes as bytes."""
    for entry, value in message.ListFields():
        values = [value] if isinstance(value, (str, bytes)) or hasattr(value, "ListFields") else value
        if entry.type == entry.TYPE_STRING:
            yield from values
        elif entry.type == entry.TYPE_MESSAGE:
            for inner in values:
                yield from _texts(inner)


def _check(proto: Any, file: str, folder: Path | None) -> Model:
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise UnreadableModel(f"{file} holds no graph: it is not an ONNX model, or is cut off")
    garbled = next((text for text in _texts(proto) if isinstance(text, bytes)), None)
    if garbled is not None:
        raise ModelError(f"{file} has a name that is not UTF-8, {garbled[:40]!r}: the file is corrupt")
    opsets = {domain_of(entry): entry.version for entry in proto.opset_import}
    model = Model(proto, file, folder, opsets)
    _check_opset([node for node in proto.graph.node if domain_of(node) == ""], opsets.get(""), file)
    _check_order(proto.graph, file)
    return model


def _check_opset(nodes: list[Any], version: int | None, file: str) -> None:
    """`nodes` are those of the default domain."""
    if version is None:
        if nodes:
            raise ModelError(f"{file} does not say which opset of the default domain it uses")
        return
    changed = [node for node in nodes if version < OLDEST_OPSET and _has_changed(node.op_type, version)]
    if changed:
        raise ModelError(f"{file} uses opset {version}, in which {changed[0].op_type} has another meaning; "
                         f"the oldest supported is {OLDEST_OPSET}: convert it with onnx.version_converter")


def _has_changed(op_type: str, version: int) -> bool:
    defs = import_onnx().defs
    try:
        now, then = (defs.get_schema(op_type, v, "").since_version for v in (OLDEST_OPSET, version))
    except defs.SchemaError:
        return True
    return now != then


def label(node: Any) -> str:
    """How messages name a node."""
    name = f" {node.name!r}" if node.name else ""
    return f"node{name} ({node.op_type} -> {', '.join(map(repr, filter(None, node.output))) or 'nothing'})"


def _check_order(graph: Any, file: str) -> None:
    """Each name is written once, and before it is read."""
    stored = Counter(tensor.name for tensor in graph.initializer)
    if twice := [name for name, count in stored.items() if count > 1]:
        raise ModelError(f"{file}: initialiser {twice[0]!r} is there twice")
    written = {value.name for value in (*graph.input, *graph.initializer)}
    written |= {sparse.values.name for sparse in graph.sparse_initializer}
    writers = dict(_writers(graph.node))
    for node in graph.node:
        for name in _reads(node):
            if name not in written:
                raise ModelError(f"{file}: {_unwritten(node, name, writers.get(name))}")
        for name in filter(None, node.output):
            if name in written:
                raise ModelError(f"{file}: {label(node)} writes {name!r}, which is written before")
            written.add(name)
    for output in graph.output:
        if output.name not in written:
            raise ModelError(f"{file}: graph output {output.name!r} is written by no node")


def _writers(nodes: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((name, node) for node in nodes for name in node.output)


def _reads(node: Any) -> Iterator[str]:
    return (name for name in node.input if name)


def _unwritten(node: Any, name: str, writer: Any) -> str:
    if writer is None:
        return f"{label(node)} reads {name!r}, which no input, initialiser or node gives"
    return (f"{label(node)} reads {name!r}, which only a later {label(writer)} gives: "
            "the graph has a cycle or is not sorted")
