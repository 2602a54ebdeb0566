"""What a schedule may be told instead of deciding it: one kernel's choices, as data.

In: nothing but numbers and words. Out: a `Choice`, which `schedule_kernel` follows where the kernel has the
thing chosen. Every choice gives a correct kernel; which is fastest is what tuning asks the machine. A kernel
goes by the hash of its text before it is scheduled, of which of its buffers are constants, and of the sizes
that its open dimensions are taken to have.
"""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from planish.schedule.buffers import Buffers
from planish.schedule.kernel import Kernel
from planish.schedule.rebuild import canonical
from planish.schedule.text import print_kernel

Grid = Literal["", "rows", "panels"]


@dataclass(frozen=True)
class Choice:
    """None, 0 and "" leave the decision where it is.

    tile        of a contraction: rows by vectors of accumulators that stay in registers
    unroll      of a contraction: steps of k in one trip; of a reduction: accumulators
    group       of a contraction: bytes of panels that stay in the second-level cache while all rows pass
    grid        of a contraction: what threads share out, rows or panels
    lanes       of loops: points of one vector step
    distribute  of loops: False, a long chain stays one loop
    threads     False: the kernel runs on one thread
    stream      of loops: False, stores of large results go through the caches
    """

    tile: tuple[int, int] | None = None
    unroll: int = 0
    group: int = 0
    grid: Grid = ""
    lanes: int = 0
    distribute: bool | None = None
    threads: bool | None = None
    stream: bool | None = None

    def __str__(self) -> str:
        """`tile 4x3, group 131072`; "as chosen" where nothing is told."""
        said = (f"{name} {_text(value)}" for name, value in self.to_json().items())
        return ", ".join(said) or "as chosen"

    def to_json(self) -> dict[str, Any]:
        """What is told, as plain values."""
        return {name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(self).items() if value != _DEFAULTS[name]}

    @staticmethod
    def from_json(value: Any) -> Choice:
        """The choice of a `to_json` value. ValueError for anything else."""
        if not isinstance(value, dict) or value.keys() - _DEFAULTS.keys():
            raise ValueError(f"{value!r} is no choice of a schedule")
        given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in value.items()}
        choice = Choice(**given)
        _check(choice)
        return choice


_DEFAULTS = {f.name: f.default for f in fields(Choice)}
_FLAGS = ("distribute", "threads", "stream")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _check(choice: Choice) -> None:
    """Numbers that a kernel could be made of."""
    tile = (1, 1) if choice.tile is None else choice.tile
    is_pair = isinstance(tile, tuple) and len(tile) == 2
    numbers = (*(tile if is_pair else (0,)), choice.unroll or 1, choice.group or 1, choice.lanes or 1)
    whole = all(type(n) is int and n >= 1 for n in numbers)
    flags = all(getattr(choice, name) in (None, True, False) for name in _FLAGS)
    if not (whole and flags and choice.grid in get_args(Grid)):
        raise ValueError(f"{choice!r} is no choice of a schedule")


ANALYTIC = Choice()


def kernel_key(kernel: Kernel, buffers: Buffers, hint: Mapping[str, int]) -> str:
    """Names a kernel before its schedule: equal kernels have equal keys in every process."""
    constant = [buffers.is_constant(b) for b in kernel.arguments]
    sizes = sorted((name, hint.get(name, 0)) for name in kernel.symbols)
    text = f"{print_kernel(canonical(kernel))}\n{constant}\n{sizes}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
