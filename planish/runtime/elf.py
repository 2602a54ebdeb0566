"""Reader of ELF relocatable objects (64-bit little endian), as LLVM emits them.

In: bytes of one object. Out: `Object` with the sections that take memory, the symbols, and the relocations
against those sections. Every offset is checked against the file's length: the bytes may come from a disk
cache or a stranger's engine.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass

from planish.errors import LinkError

MACHINES = {62: "x86_64", 183: "aarch64"}
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL = 1, 2, 4, 8, 9
_UNDEFINED, _RESERVED = 0, 0xFF00
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Section:
    name: str
    data: bytes
    align: int
    writable: bool


@dataclass(frozen=True)
class Symbol:
    """`section` is None where the symbol is defined elsewhere. Binding: local, global or weak."""

    name: str
    binding: str
    section: int | None
    value: int


@dataclass(frozen=True)
class Relocation:
    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Object:
    """Sections by their ELF index; relocations refer to sections and symbols by index."""

    machine: str
    sections: dict[int, Section]
    symbols: list[Symbol]
    relocations: list[Relocation]


def read(data: bytes) -> Object:
    """Read one object. LinkError for bytes that are no such object or point outside themselves."""
    try:
        return _Reader(bytes(data)).object()
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise LinkError(f"damaged ELF object: {error}") from None


class _Reader:
    def __init__(self, data: bytes):
        if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
            raise LinkError("not a 64-bit little-endian ELF object")
        kind, machine = struct.unpack_from("<HH", data, 16)
        if kind != 1 or machine not in MACHINES:
            raise LinkError(f"not a relocatable object for {' or '.join(MACHINES.values())}")
        self.data, self.machine, self.read = data, MACHINES[machine], 0
        table, = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        if size != _SECTION_HEADER.size:
            raise LinkError("damaged ELF object: section headers of an unknown size")
        self.headers = [_SECTION_HEADER.unpack_from(data, table + i * size) for i in range(count)]
        self.names = self.content(self.headers[names])

    def content(self, header: tuple[int, ...]) -> bytes:
        offset, size = header[4], header[5]
        self.read += size
        if self.read > _MOST_BYTES:
            raise LinkError("damaged ELF object: sections of more than 256 MiB")
        if header[1] == _NOBITS:
            return bytes(size)
        if offset + size > len(self.data):
            raise LinkError("damaged ELF object: a section lies outside the file")
        return self.data[offset:offset + size]

    def object(self) -> Object:
        sections = {i: self.section(h) for i, h in enumerate(self.headers) if self.is_kept(h)}
        tables = [h for h in self.headers if h[1] == _SYMTAB]
        symbols = self.symbols(tables[0], sections) if tables else []
        relocations = [r for h in self.headers for r in self.relocations(h, sections, len(symbols))]
        return Object(self.machine, sections, symbols, relocations)

    def is_kept(self, header: tuple[int, ...]) -> bool:
        """Sections that take memory at run time; unwinding tables are not used by code without exceptions."""
        if header[2] & _TLS:
            raise LinkError("thread-local variables are not supported in generated code")
        in_memory = header[2] & _ALLOC and header[1] in (_PROGBITS, _NOBITS)
        return bool(in_memory) and self.name(header) != ".eh_frame"

    def name(self, header: tuple[int, ...]) -> str:
        return _string(self.names, header[0])

    def section(self, header: tuple[int, ...]) -> Section:
        align = max(header[8], 1)
        if align & (align - 1) or align > 1 << 16:
            raise LinkError(f"damaged ELF object: section {self.name(header)} has alignment {align}")
        return Section(self.name(header), self.content(header), align, bool(header[2] & _WRITE))

    def symbols(self, table: tuple[int, ...], sections: dict[int, Section]) -> list[Symbol]:
        strings = self.content(self.headers[table[6]])
        return [self.symbol(entry, strings, sections) for entry in _SYMBOL.iter_unpack(self.content(table))]

    def symbol(self, entry: tuple[int, ...], strings: bytes, sections: dict[int, Section]) -> Symbol:
        name_at, info, _, section, value, _ = entry
        name, binding = _string(strings, name_at), {0: "local", 1: "global", 2: "weak"}.get(info >> 4)
        if binding is None or (section >= _RESERVED and info & 15 != 4):  # 4: the source file's name
            raise LinkError(f"symbol {name!r} has a kind planish does not link")
        if section in sections and value > len(sections[section].data):
            raise LinkError(f"damaged ELF object: symbol {name!r} lies outside its section")
        return Symbol(name, binding, section if section in sections else None, value)

    def relocations(self, header: tuple[int, ...], sections: dict[int, Section],
                    symbols: int) -> list[Relocation]:
        if header[1] == _REL and header[7] in sections:
            raise LinkError("relocations without addends are not supported")
        if header[1] != _RELA or header[7] not in sections:
            return []
        found = [Relocation(header[7], offset, info & 0xFFFFFFFF, info >> 32, addend)
                 for offset, info, addend in _RELOCATION.iter_unpack(self.content(header))]
        size = len(sections[header[7]].data)
        if any(r.symbol >= symbols or r.offset + 4 > size for r in found):
            raise LinkError("damaged ELF object: a relocation lies outside its section")
        return found


def _string(table: bytes, at: int) -> str:
    return table[at:table.index(b"\0", at)].decode() if at < len(table) else ""
