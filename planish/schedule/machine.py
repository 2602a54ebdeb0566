"""What a schedule must know of a machine: vector width, registers, caches, threads."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """`vector_bytes` of one register, how many `registers`, cache sizes in bytes, `threads` at most;
    `products` names those of bfloat16 that are instructions (products.py). `strict`: of what is computed with
    floats, every operation is rounded as the program has it."""

    vector_bytes: int = 32
    registers: int = 16
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 16 << 20
    threads: int = 1
    products: frozenset[str] = frozenset()
    strict: bool = False

    @property
    def lanes(self) -> int:
        """float32 elements in a register; wider elements take several registers, narrower ones part of
        one."""
        return self.vector_bytes // 4
