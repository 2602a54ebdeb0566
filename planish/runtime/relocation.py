"""What each ELF relocation means: one table per machine, a line per kind.

In: the image being linked, the place to patch and the target's offset in the same image (its addend
included). Out: the image patched. Sources: System V ABI AMD64 supplement, table 4.9; ELF for the Arm 64-bit
Architecture, section 5.7.
"""
from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planish.errors import LinkError

Via = Literal["direct", "slot", "absolute"]


@dataclass(frozen=True)
class Kind:
    """`via`: the target is the symbol itself, the slot holding its address, or (absolute) only known when
    loaded.

    `call`: a branch, which may go through a stub when the symbol is imported."""

    name: str
    patch: Callable[[bytearray, int, int], None]
    via: Via = "direct"
    call: bool = False


def _fits(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise LinkError(f"linked code is too large: a distance of {value} bytes does not fit {bits} bits")
    return value


def _relative32(image: bytearray, place: int, target: int) -> None:
    struct.pack_into("<i", image, place, _fits(target - place, 32))


def _relative64(image: bytearray, place: int, target: int) -> None:
    struct.pack_into("<q", image, place, target - place)


def _nothing(image: bytearray, place: int, target: int) -> None:
    """Absolute addresses are stored by the loader."""


def _field(image: bytearray, place: int, value: int, shift: int, bits: int) -> None:
    """Set one bit field of a 32-bit instruction."""
    word, = struct.unpack_from("<I", image, place)
    mask = (1 << bits) - 1
    struct.pack_into("<I", image, place, word & ~(mask << shift) | (value & mask) << shift)


def _branch26(image: bytearray, place: int, target: int) -> None:
    _field(image, place, _fits(target - place, 28) >> 2, 0, 26)


def _adr21(image: bytearray, place: int, value: int) -> None:
    _fits(value, 21)
    _field(image, place, value, 29, 2)
    _field(image, place, value >> 2, 5, 19)


def _page21(image: bytearray, place: int, target: int) -> None:
    """Distance in 4 KiB pages, exact because images are loaded at a page boundary."""
    _adr21(image, place, (target >> 12) - (place >> 12))


def _near21(image: bytearray, place: int, target: int) -> None:
    _adr21(image, place, target - place)


def _low12(scale: int) -> Callable[[bytearray, int, int], None]:
    """The offset in its page, in units of the access size."""
    def patch(image: bytearray, place: int, target: int) -> None:
        if target & (1 << scale) - 1:
            raise LinkError(f"an operand of {1 << scale} bytes is not aligned in the linked image")
        _field(image, place, (target & 0xFFF) >> scale, 10, 12)
    return patch


KINDS: dict[str, dict[int, Kind]] = {
    "x86_64": {
        1: Kind("R_X86_64_64", _nothing, "absolute"),
        2: Kind("R_X86_64_PC32", _relative32, call=True),
        4: Kind("R_X86_64_PLT32", _relative32, call=True),
        9: Kind("R_X86_64_GOTPCREL", _relative32, "slot"),
        24: Kind("R_X86_64_PC64", _relative64),
        41: Kind("R_X86_64_GOTPCRELX", _relative32, "slot"),
        42: Kind("R_X86_64_REX_GOTPCRELX", _relative32, "slot"),
    },
    "aarch64": {
        257: Kind("R_AARCH64_ABS64", _nothing, "absolute"),
        260: Kind("R_AARCH64_PREL64", _relative64),
        261: Kind("R_AARCH64_PREL32", _relative32),
        274: Kind("R_AARCH64_ADR_PREL_LO21", _near21),
        275: Kind("R_AARCH64_ADR_PREL_PG_HI21", _page21),
        276: Kind("R_AARCH64_ADR_PREL_PG_HI21_NC", _page21),
        277: Kind("R_AARCH64_ADD_ABS_LO12_NC", _low12(0)),
        278: Kind("R_AARCH64_LDST8_ABS_LO12_NC", _low12(0)),
        282: Kind("R_AARCH64_JUMP26", _branch26, call=True),
        283: Kind("R_AARCH64_CALL26", _branch26, call=True),
        284: Kind("R_AARCH64_LDST16_ABS_LO12_NC", _low12(1)),
        285: Kind("R_AARCH64_LDST32_ABS_LO12_NC", _low12(2)),
        286: Kind("R_AARCH64_LDST64_ABS_LO12_NC", _low12(3)),
        299: Kind("R_AARCH64_LDST128_ABS_LO12_NC", _low12(4)),
        311: Kind("R_AARCH64_ADR_GOT_PAGE", _page21, "slot"),
        312: Kind("R_AARCH64_LD64_GOT_LO12_NC", _low12(3), "slot"),
    },
}
# Absolute addresses of 32 bits can't be honoured in an image loaded anywhere.
_REFUSED = {"x86_64": {10: "R_X86_64_32", 11: "R_X86_64_32S"}, "aarch64": {258: "R_AARCH64_ABS32"}}

STUB_BYTES = {"x86_64": 8, "aarch64": 12}
TRAP = {"x86_64": b"\xcc", "aarch64": b"\x00"}  # between sections: int3; udf


def kind(machine: str, number: int) -> Kind:
    """The meaning of a relocation. LinkError for one planish does not know."""
    known = KINDS[machine].get(number)
    if known is not None:
        return known
    refused = _REFUSED[machine].get(number)
    why = f"{refused} needs a fixed 32-bit address; emit with reloc=pic" if refused else f"number {number}"
    raise LinkError(f"unknown {machine} relocation: {why}")


def write_stub(machine: str, image: bytearray, place: int, slot: int) -> None:
    """A jump to the address stored in `slot`."""
    if machine == "x86_64":
        image[place:place + 2] = b"\xff\x25"  # jmp [rip + slot]
        _relative32(image, place + 2, slot - 4)
        return
    # adrp x16, slot; ldr x16, [x16, slot]; br x16
    struct.pack_into("<3I", image, place, 0x90000010, 0xF9400210, 0xD61F0200)
    _page21(image, place, slot)
    _low12(3)(image, place + 4, slot)
