"""What machine code is generated for: this machine's CPU, or a generic one to cross-compile to.

In: /proc/cpuinfo, /sys/devices/system/cpu (Linux). Out: a `Target`. LLVM is not loaded here: features are
taken from what the kernel reports, because a virtual machine may mask features that its CPU model's name
would imply.
"""
from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from planish import knobs
from planish.codegen.llvm.products import FORMS, instructions

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")

# The kernel's word for a feature -> LLVM's.
_X86_FEATURES = {
    "sse3": "sse3", "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2",
    "popcnt": "popcnt", "cx16": "cx16", "movbe": "movbe", "abm": "lzcnt", "bmi1": "bmi", "bmi2": "bmi2",
    "avx": "avx", "f16c": "f16c", "fma": "fma", "avx2": "avx2", "avx_vnni": "avxvnni",
    "avx512f": "avx512f", "avx512cd": "avx512cd", "avx512bw": "avx512bw", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq",
    "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
}
_ARM_FEATURES = {"bf16"}  # that code is made for where they are there; the kernel and LLVM call them alike
_LEVELS = ("sse2", "avx2", "avx512")
_NEEDS = {
    "avx512": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"},
    "sse2": set(),
}
_ASK_FOR_TILES = 158, 0x1023, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
_NAMES = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "sse2": "x86-64"}


@dataclass(frozen=True)
class Target:
    """A machine: `features` as LLVM takes them ("+avx2,+fma"), `isa` the vector level, sizes in bytes,
    `cores` usable CPUs."""

    triple: str
    cpu: str
    features: str
    isa: str
    vector_bytes: int
    registers: int
    l1: int
    l2: int
    l3: int
    cores: int

    def has(self, feature: str) -> bool:
        """Whether LLVM's feature name is on: `target.has("avx512bf16")`."""
        return f"+{feature}" in self.features.split(",")

    @property
    def products(self) -> frozenset[str]:
        """The forms in which bfloat16 is multiplied by an instruction (products.py)."""
        return instructions(self.triple, self.features)

    @property
    def lacks(self) -> frozenset[str]:
        """What there is no instruction for, as `Module` has it."""
        old = {"fma", "half"} if self.isa == "sse2" else set()
        return frozenset(old | {f"bfloat16 {form}" for form in FORMS - self.products})

    @property
    def code_key(self) -> str:
        """What of the target decides the generated code."""
        return f"{self.triple} {self.cpu} {self.features} l1={self.l1} l2={self.l2} l3={self.l3}"


def host() -> Target:
    """This machine, limited to the instruction set of the knob `target`. RuntimeError for a CPU planish has
    no code for."""
    return _host(knobs.target)


def aarch64(*more: str) -> Target:
    """A generic 64-bit Arm machine with NEON, and `more` features, to cross-compile for."""
    features = ",".join(["+neon,+fp-armv8", *(f"+{f}" for f in sorted(more))])
    return Target("aarch64-unknown-linux-gnu", "generic", features, "neon", 16, 32,
                  l1=64 << 10, l2=1 << 20, l3=0, cores=1)


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _host(limit: str) -> Target:
    machine = platform.machine()
    cores = usable_cpus()
    l1, l2, l3 = _cache_sizes()
    if machine in ("aarch64", "arm64"):
        return replace(aarch64(*(_ARM_FEATURES & _cpu_flags("Features"))), l1=l1, l2=l2, l3=l3, cores=cores)
    if machine not in ("x86_64", "AMD64"):
        raise RuntimeError(f"planish generates code for x86-64 and aarch64, this machine is {machine!r}")
    flags = _cpu_flags("flags")
    if not flags:
        raise RuntimeError("/proc/cpuinfo has no line 'flags': the CPU's instruction sets can't be known")
    isa = _x86_level(flags, limit)
    features = _x86_features(flags, isa)
    width, registers = {"avx512": (64, 32), "avx2": (32, 16), "sse2": (16, 16)}[isa]
    return Target("x86_64-unknown-linux-gnu", _NAMES[isa], features, isa, width, registers, l1, l2, l3, cores)


def _cpu_flags(line: str) -> set[str]:
    """The words of a line of what the kernel says of the CPU; none where it does not say."""
    path = Path("/proc/cpuinfo")
    texts = path.read_text().splitlines() if path.exists() else []
    return next((set(t.split(":", 1)[1].split()) for t in texts if t.startswith(line)), set())


def _x86_level(flags: set[str], limit: str) -> str:
    allowed = _LEVELS[:_LEVELS.index(limit) + 1] if limit else _LEVELS
    return next(level for level in reversed(allowed) if _NEEDS[level] <= flags)


def _x86_features(flags: set[str], isa: str) -> str:
    """Present features on; under a lower level, what belongs to a higher one stays off."""
    on = sorted({_X86_FEATURES[f] for f in flags & set(_X86_FEATURES)})
    if isa == "avx512" and any(f.startswith("amx") for f in on) and not _may_use_tiles():
        on = [f for f in on if not f.startswith("amx")]
    if isa != "avx512":
        on = [f for f in on if not f.startswith(("avx512", "amx"))]
    if isa == "sse2":
        on = [f for f in on if not f.startswith("avx") and f not in ("fma", "f16c", "bmi", "bmi2", "movbe")]
    # full 512-bit vectors also where LLVM would prefer 256
    return ",".join([f"+{f}" for f in on] + (["-prefer-256-bit"] if isa == "avx512" else []))


def _may_use_tiles() -> bool:
    """Asks Linux for the tile registers, whose state it saves only for processes that have asked; all threads
    may use them then. Without leave the first of their instructions would end the process."""
    import ctypes

    return sys.platform == "linux" and ctypes.CDLL(None).syscall(*map(ctypes.c_long, _ASK_FOR_TILES)) == 0


def _cache_sizes() -> tuple[int, int, int]:
    """Data cache bytes of CPU 0 by level; usual sizes where the machine does not say, 0 for a missing third
    level."""
    sizes = {1: 32 << 10, 2: 512 << 10, 3: 0}
    for index in sorted(_CPU.glob("index*")) if _CPU.exists() else ():
        try:
            if (index / "type").read_text().strip() != "Instruction":
                sizes[int((index / "level").read_text())] = _size((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue  # a sandbox may hide some of these files
    return sizes[1], sizes[2], sizes[3]


def _size(text: str) -> int:
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1:] in "KM" else int(text)
