"""Linked native code at rest: one flat, position-independent image, and its byte form for caches and engine
files.

In: pieces from the linker, or bytes from a disk that nobody vouches for. Out: a `Blob` whose every offset is
inside it. The byte form is: magic, version, sha256 of the rest, length of a JSON head, the head, the code,
the data. No pickle.
"""
from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

from planish.errors import LinkError

_MAGIC, _VERSION = b"PLBLOB", 1
_HEAD = struct.Struct("<6sH32sQ")
_LIMIT = 1 << 31  # the small code model reaches this far
PAGE = {"x86_64": 1 << 12, "aarch64": 1 << 16}


@dataclass(frozen=True)
class Import:
    """A symbol from outside; the loader stores its address plus `addend` in the 8 bytes at `at`."""

    name: str
    at: int
    addend: int = 0


@dataclass(frozen=True)
class Blob:
    """`code` lies at offset 0 and becomes executable, `data` at `data_at` (whole pages on) and stays
    writable.

    `symbols`: offset of each exported name. `fixups`: (place, target) pairs; the loader stores base + target
    at place.
    """

    machine: str
    code: bytes
    data: bytes
    data_at: int
    symbols: dict[str, int]
    imports: tuple[Import, ...]
    fixups: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return self.data_at + len(self.data)

    def to_bytes(self) -> bytes:
        head = json.dumps({
            "machine": self.machine, "code": len(self.code), "data": len(self.data), "data_at": self.data_at,
            "symbols": self.symbols, "imports": [[i.name, i.at, i.addend] for i in self.imports],
            "fixups": self.fixups}, separators=(",", ":")).encode()
        rest = struct.pack("<Q", len(head)) + head + self.code + self.data
        return _HEAD.pack(_MAGIC, _VERSION, hashlib.sha256(rest).digest(), len(rest)) + rest

    @staticmethod
    def from_bytes(data: bytes) -> Blob:
        """Read back what `to_bytes` wrote. LinkError for anything else: wrong kind, cut short, altered, out
        of bounds."""
        head, body = _open(bytes(data))
        try:
            blob = _build(head, body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LinkError(f"native code image has a malformed head: {error!r}") from None
        check(blob)
        return blob


def _open(data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) < _HEAD.size or data[:len(_MAGIC)] != _MAGIC:
        raise LinkError("not a planish native code image")
    _, version, digest, length = _HEAD.unpack_from(data)
    rest = data[_HEAD.size:]
    if version != _VERSION:
        raise LinkError(f"native code image of format {version}; this planish reads format {_VERSION}")
    if length != len(rest) or length < 8:
        raise LinkError(f"native code image is cut short: {len(rest)} bytes, {length} expected")
    if hashlib.sha256(rest).digest() != digest:
        raise LinkError("native code image is altered: its sha256 does not match")
    head_length = int.from_bytes(rest[:8], "little")
    if head_length > length - 8:
        raise LinkError("native code image has a head longer than itself")
    try:
        head = json.loads(rest[8:8 + head_length])
    except (ValueError, RecursionError) as error:
        raise LinkError(f"native code image has a malformed head: {error}") from None
    if not isinstance(head, dict):
        raise LinkError("native code image has a malformed head: not an object")
    return head, rest[8 + head_length:]


def _build(head: dict[str, Any], body: bytes) -> Blob:
    code, data = _whole(head["code"]), _whole(head["data"])
    if code + data != len(body):
        raise ValueError(f"code {code} and data {data} bytes, {len(body)} present")
    return Blob(
        str(head["machine"]), body[:code], body[code:], _whole(head["data_at"]),
        {str(name): _whole(at) for name, at in head["symbols"].items()},
        tuple(Import(str(name), _whole(at), int(addend)) for name, at, addend in head["imports"]),
        tuple((_whole(place), _whole(target)) for place, target in head["fixups"]))


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} where a size or offset belongs")
    return number


def check(blob: Blob) -> None:
    """LinkError unless every offset of the blob points inside it."""
    if blob.machine not in PAGE:
        raise LinkError(f"native code image for {blob.machine!r}; planish knows {', '.join(PAGE)}")
    if blob.size > _LIMIT or blob.data_at % PAGE[blob.machine] or blob.data_at < len(blob.code):
        raise LinkError("native code image has an impossible layout")
    for name, at in blob.symbols.items():
        if not _inside(blob, at, 0):
            raise LinkError(f"native code image: symbol {name!r} lies outside")
    places = [i.at for i in blob.imports] + [place for place, _ in blob.fixups]
    if not all(_inside(blob, place, 8) for place in places):
        raise LinkError("native code image: an address to fill in lies outside")
    if not all(_inside(blob, target, 0) for _, target in blob.fixups):
        raise LinkError("native code image: a fixup's target lies outside")


def _inside(blob: Blob, at: int, size: int) -> bool:
    end = at + size
    return (at >= 0 and end <= len(blob.code)) or (at >= blob.data_at and end <= blob.size)
