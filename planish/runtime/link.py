"""The linker: several ELF objects become one flat, position-independent `Blob`.

In: objects of one machine, as LLVM emits them (small code model, position independent). Out: code, read-only
data and address slots in one part, writable data in the other, exported names, and what the loader must fill
in: addresses of imports, and absolute addresses of the image's own places. Local symbols belong to their
object; one global name defined twice is an error, unless weak: then the first definition holds.
"""
from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from planish.errors import LinkError
from planish.runtime import relocation
from planish.runtime.blob import PAGE, Blob, Import, check
from planish.runtime.elf import Object, Relocation, Symbol, read

Place = tuple[int, int]      # (object, section)
Target = int | str           # an offset in the image, or the name of an import

_LINE = 64  # least alignment of a section: a cache line


def link(objects: Sequence[bytes]) -> Blob:
    """Link objects into one image. LinkError: damaged object, mixed machines, duplicate name, unknown
    relocation."""
    if not objects:
        raise LinkError("nothing to link")
    linker = _Linker([read(data) for data in objects])
    try:
        return linker.link()
    except (struct.error, OverflowError) as error:
        raise LinkError(f"damaged ELF object: a relocation does not fit its place ({error})") from None


@dataclass
class _Linker:
    objects: list[Object]
    machine: str = ""
    at: dict[Place, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    slots: dict[Target, int] = field(default_factory=dict)
    stubs: dict[str, int] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    fixups: list[tuple[int, int]] = field(default_factory=list)

    def link(self) -> Blob:
        machines = {o.machine for o in self.objects}
        if len(machines) > 1:
            raise LinkError(f"objects for different machines: {', '.join(sorted(machines))}")
        self.machine, = machines
        end = self.place(writable=False, start=0)
        # names need the place of writable sections, whose start depends on the number of slots: reserve
        # enough
        slots_at = _round_up(end, _LINE)
        data_at = _round_up(slots_at + self.slot_space(), PAGE[self.machine])
        size = self.place(writable=True, start=data_at)
        self.define_names()
        code_end = self.assign_slots(slots_at)
        image = self.image(size)
        self.fill_slots(image)
        self.relocate(image)
        blob = Blob(self.machine, bytes(image[:code_end]), bytes(image[data_at:]), data_at, self.names,
                    tuple(self.imports), tuple(self.fixups))
        check(blob)
        return blob

    # --- layout

    def place(self, writable: bool, start: int) -> int:
        """Give each section its offset; the end of the last one is returned."""
        end = start
        for number, obj in enumerate(self.objects):
            for index, section in obj.sections.items():
                if section.writable == writable:
                    self.at[number, index] = end = _round_up(end, max(_LINE, section.align))
                    end += len(section.data)
        return end

    def slot_space(self) -> int:
        per_symbol = 8 + relocation.STUB_BYTES[self.machine] + 8
        return per_symbol * sum(len(o.symbols) for o in self.objects)

    def define_names(self) -> None:
        weak: set[str] = set()
        for number, obj in enumerate(self.objects):
            for symbol in obj.symbols:
                if symbol.section is not None and symbol.binding != "local":
                    self.define(symbol, self.at[number, symbol.section] + symbol.value, weak)

    def define(self, symbol: Symbol, offset: int, weak: set[str]) -> None:
        if symbol.name in self.names and symbol.name not in weak:
            if symbol.binding == "weak":
                return
            raise LinkError(f"{symbol.name!r} is defined in two objects")
        if symbol.name in self.names and symbol.binding == "weak":
            return
        weak.discard(symbol.name)
        if symbol.binding == "weak":
            weak.add(symbol.name)
        self.names[symbol.name] = offset

    def assign_slots(self, start: int) -> int:
        """A slot for each symbol reached through its address, a slot and a stub for each import that is
        called."""
        wanted: dict[Target, None] = {}
        for number, reloc in self.relocations():
            kind, target = relocation.kind(self.machine, reloc.kind), self.target(number, reloc.symbol)
            if kind.via == "slot" or (kind.call and isinstance(target, str)):
                wanted[target] = None
            if kind.via == "direct" and isinstance(target, str):
                if not kind.call:
                    raise LinkError(f"{kind.name} refers to {target!r}, which no object defines")
                self.stubs[target] = 0
        self.slots = {target: start + 8 * i for i, target in enumerate(wanted)}
        end = start + 8 * len(wanted)
        for name in self.stubs:
            self.stubs[name] = end
            end += relocation.STUB_BYTES[self.machine]
        return end

    # --- contents

    def image(self, size: int) -> bytearray:
        image = bytearray(relocation.TRAP[self.machine]) * size
        for (number, index), offset in self.at.items():
            data = self.objects[number].sections[index].data
            image[offset:offset + len(data)] = data
        return image

    def fill_slots(self, image: bytearray) -> None:
        for target, slot in self.slots.items():
            image[slot:slot + 8] = bytes(8)
            self.store_address(slot, target, 0)
        for name, stub in self.stubs.items():
            relocation.write_stub(self.machine, image, stub, self.slots[name])

    def store_address(self, place: int, target: Target, addend: int) -> None:
        if isinstance(target, str):
            self.imports.append(Import(target, place, addend))
        else:
            self.fixups.append((place, target + addend))

    def relocate(self, image: bytearray) -> None:
        for number, reloc in self.relocations():
            kind, target = relocation.kind(self.machine, reloc.kind), self.target(number, reloc.symbol)
            place = self.at[number, reloc.section] + reloc.offset
            if kind.via == "absolute":
                self.store_address(place, target, reloc.addend)
                continue
            if kind.via == "slot":
                target = self.slots[target]
            elif isinstance(target, str):
                target = self.stubs[target]
            kind.patch(image, place, target + reloc.addend)

    # --- references

    def relocations(self) -> list[tuple[int, Relocation]]:
        return [(number, r) for number, obj in enumerate(self.objects) for r in obj.relocations]

    def target(self, number: int, index: int) -> Target:
        symbol = self.objects[number].symbols[index]
        if symbol.binding == "local":
            if symbol.section is None:
                raise LinkError(f"a relocation refers to {symbol.name!r}, which is not part of the image")
            return self.at[number, symbol.section] + symbol.value
        return self.names.get(symbol.name, symbol.name)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
