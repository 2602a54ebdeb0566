"""The weights of a model file, taken out of it before it is parsed.

In: the bytes of a ModelProto. Out: the same model without the content of its large initialisers, small
enough to parse, and views of that content where it lies, on any byte. So weights are not copied: the parser
would keep one copy, and give out another.

What is read of the encoding (protobuf.dev, "Encoding"): a message is a sequence of fields, each a tag (number
and wire type, a varint) and content; ModelProto.graph is field 7, GraphProto.initializer 5,
TensorProto.raw_data 9. A file that does not read like that is left to the parser as it is, to say what is
wrong.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
LARGE = 4096   # bytes of content from which it is taken out


class Malformed(Exception):
    """Bytes that are not a message, or one that is written in an unusual way."""


@dataclass(frozen=True)
class Field:
    """A field of a message: its number, where it begins, where its content begins, and where both end."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def take_weights(data: memoryview) -> tuple[bytes, dict[int, np.ndarray]]:
    """The model without its large weights, and those: position among the initialisers -> bytes."""
    weights: dict[int, np.ndarray] = {}
    try:
        graph = _only(fields(data, 0, len(data)), GRAPH)
        inner = b"" if graph is None else _without_weights(data, graph, weights)
    except Malformed:
        return bytes(data), {}
    if graph is None or not weights:
        return bytes(data), {}
    return b"".join((data[:graph.start], _head(graph.number, len(inner)), inner, data[graph.end:])), weights


def _without_weights(data: memoryview, graph: Field, weights: dict[int, np.ndarray]) -> bytes:
    parts: list[bytes | memoryview] = []
    copied, position = graph.content, 0
    for tensor in fields(data, graph.content, graph.end):
        if tensor.number != INITIALIZER:
            continue
        raw = _only(fields(data, tensor.content, tensor.end), RAW_DATA)
        if raw is not None and raw.end - raw.content >= LARGE:
            weights[position] = np.frombuffer(data[raw.content:raw.end], np.uint8)
            rest = b"".join((data[tensor.content:raw.start], data[raw.end:tensor.end]))
            parts += (data[copied:tensor.start], _head(INITIALIZER, len(rest)), rest)
            copied = tensor.end
        position += 1
    return b"".join((*parts, data[copied:graph.end]))


def _only(found: Iterator[Field], number: int) -> Field | None:
    """The field of a number that stands once. Malformed where it stands more often: a parser joins them."""
    ours = [one for one in found if one.number == number]
    if len(ours) > 1 or any(one.wire_type != 2 for one in ours):
        raise Malformed
    return ours[0] if ours else None


# --- the encoding

def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in data[at:end]. Raises Malformed."""
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        content, stop = _extent(data, tag & 7, at, end)
        if stop > end:
            raise Malformed
        yield Field(tag >> 3, tag & 7, start, content, stop)
        at = stop


def _extent(data: memoryview, wire_type: int, at: int, end: int) -> tuple[int, int]:
    """Where a field's content begins and ends."""
    if wire_type == 0:
        return at, _varint(data, at, end)[1]
    if wire_type == 2:
        length, content = _varint(data, at, end)
        return content, content + length
    if wire_type in (1, 5):
        return at, at + (8 if wire_type == 1 else 4)
    raise Malformed


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed


def _head(number: int, length: int) -> bytes:
    """Tag and length of a field that holds bytes."""
    return _encoded(number << 3 | 2) + _encoded(length)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
