"""The step `overlap`: a loop whose turns do not depend on one another, with parts of several side by side.

    for i in n: y[i] = h(g(f(x[i])))   ->   for i in n + 2: y[i-2] = h(q); q = g(p); p = f(x[i])

In: a function that writes one turn as instructions of one block. Out: the loop in a function that is being
written, with the same results to the bit. A core starts operations as their operands come, out of some
hundred that it holds waiting; the chain of a gelu, twenty operations of three or four cycles, is longer than
that for as many vectors as it takes to fill the multipliers. Parts of it wait for less. (Modulo scheduling,
B. R. Rau 1994, with parts for steps; the registers are left to LLVM.) The schedule says which loops; where a
chain is cut is seen in its instructions, since one op is many of them: where few values cross, in parts of
about the same work.

Assumed: a turn reads nothing that another writes. Each part loads again what it needs. Parts of turns before
the first and after the last take the first's and the last's operands; their results go to a place of the
stack that nobody reads.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planish.codegen.llvm.builder import Builder, Value

_NAME = re.compile(r"%v\d+")
_CYCLES = {"fadd": 3, "fsub": 3, "fmul": 3, "call": 4, "fdiv": 11, "bitcast": 0}  # others 1
_WORK = {"fadd": 3, "fsub": 3, "fmul": 3, "call": 3, "fdiv": 4, "bitcast": 0}       # others 1
_APART = 3          # work that parts may differ by to carry a value less


@dataclass
class _Line:
    """An instruction of a turn: what it names (if anything), and what of the turn it takes."""

    name: str
    type: str
    text: str
    uses: list[str]

    @property
    def opcode(self) -> str:
        return self.text.split(" ", 1)[0]

    @property
    def is_store(self) -> bool:
        return self.opcode == "store"


def overlapped_loop(b: Builder, start: Value, stop: Value, step: int, parts: int,
                    body: Callable[[Value], None]) -> None:
    """`for index in range(start, stop, step): body(index)`, with parts of `parts` turns side by side."""
    before, block = len(b.lines), b.block
    loop = b.loop(start, stop, b.i64(step), hint="vector")
    first = len(b.lines)
    body(loop.index)
    assert b.block == loop.body, "a turn with branches can't be overlapped"
    turn = _Turn(b, b.lines[first:], loop.index, parts)
    del b.lines[before:]
    b.block = block
    turn.write(start, stop, step)


class _Turn:
    """The instructions of one turn, and the part of each."""

    def __init__(self, b: Builder, lines: Sequence[str], index: Value, parts: int):
        self.b, self.index, self.parts = b, index, parts
        self.lines = list(_parsed(b, lines))
        assert all(map(_is_understood, self.lines)), "a turn computes, asks for memory and stores"
        self.by_name = {x.name: x for x in self.lines if x.name}
        self.again = self._again()
        self.finish = self._finish()
        self.depth = max(self.finish.values(), default=0)
        cuts = [self._cut(self._work(self.depth) * k / parts) for k in range(1, parts)]
        self.part = {name: sum(at > cut for cut in cuts) for name, at in self.finish.items()}

    def _again(self) -> set[str]:
        """What each part does for itself: loads, and scalars (they are addresses)."""
        found: set[str] = set()
        for x in self.lines:
            is_address = x.type[:1] != "<" and (x.opcode != "call" or "@llvm." in x.text)
            if x.name and (x.opcode == "load" or is_address) and found.issuperset(x.uses):
                found.add(x.name)
        return found

    def _finish(self) -> dict[str, int]:
        """Cycles from the loads to each result."""
        found: dict[str, int] = {}
        for x in self.lines:
            if x.name and x.name not in self.again:
                found[x.name] = max((found.get(u, 0) for u in x.uses), default=0) + _CYCLES.get(x.opcode, 1)
        return found

    def _cut(self, ideal: float) -> int:
        """The place before which about `ideal` of the work is, and over which few values are carried."""
        def cost(cut: int) -> float:
            return self._carried(cut) + abs(self._work(cut) - ideal) / _APART
        return min(sorted(set(self.finish.values()) - {self.depth}), key=cost, default=0)

    def _work(self, until: int) -> int:
        return sum(_WORK.get(self.by_name[name].opcode, 1) for name, at in self.finish.items() if at <= until)

    def _carried(self, cut: int) -> int:
        over = {u for x in self.lines for u in x.uses
                if self.finish.get(u, cut + 1) <= cut < self.finish.get(x.name, self.depth + 1)}
        return len(over)

    def write(self, start: Value, stop: Value, step: int) -> None:
        b = self.b
        last, first = b.add(stop, b.i64(-step)), b.add(start, b.i64((self.parts - 1) * step))
        end = b.select(b.cmp("icmp slt", start, stop), b.add(stop, b.i64((self.parts - 1) * step)), stop)
        ages = self._ages()
        zeros = [Value(self.by_name[name].type, "zeroinitializer") for name, _ in ages]
        loop = b.loop(start, end, b.i64(step), [*zeros, *[start] * (self.parts - 1)], hint="vector")
        carried = dict(zip(ages, loop.carry[:len(ages)], strict=True))
        indices = [b.intrinsic("smin", loop.index, last), *loop.carry[len(ages):]]
        is_real = b.cmp("icmp sge", loop.index, first)
        made: dict[str, Value] = {}
        for part in reversed(range(self.parts)):
            known = {name: value for (name, age), value in carried.items() if self.part[name] + age == part}
            made |= self._write_part(part, known | {self.index.name: indices[part]}, is_real)
        loop.end([*(made[name] if age == 1 else carried[name, age - 1] for name, age in ages), *indices[:-1]])

    def _ages(self) -> list[tuple[str, int]]:
        """What is carried from turn to turn: a value, and how many turns ago it was made."""
        oldest: dict[str, int] = {}
        for x in self.lines:
            part = self.parts - 1 if x.is_store else self.part.get(x.name, 0)
            for u in x.uses:
                if u in self.part and part > self.part[u]:
                    oldest[u] = max(oldest.get(u, 0), part - self.part[u])
        return [(name, age) for name, most in oldest.items() for age in range(1, most + 1)]

    def _write_part(self, part: int, known: dict[str, Value], is_real: Value) -> dict[str, Value]:
        """The instructions of one part of a turn; `known` is what they take of others."""
        own = dict(known)
        wanted = self._wanted(part)
        for x, is_wanted in zip(self.lines, wanted, strict=True):
            if not is_wanted:
                continue
            text = _NAME.sub(lambda m: own[m[0]].name if m[0] in own else m[0], x.text)
            if x.name:
                own[x.name] = self.b.value(x.type, text)
            else:
                self.b.do(self._aside(text, is_real) if x.is_store else text)
        return own

    def _wanted(self, part: int) -> list[bool]:
        """Which instructions a part has: its own, and what is made again for these."""
        needed: set[str] = set()
        wanted = []
        for x in reversed(self.lines):
            own = self.part.get(x.name) if x.name else self.parts - 1 if x.is_store else 0
            wanted.append(own == part or (x.name in self.again and x.name in needed))
            if wanted[-1]:
                needed.update(x.uses)
        return wanted[::-1]

    def _aside(self, text: str, is_real: Value) -> str:
        """A store that goes to a place of the stack unless its turn is one of the loop's."""
        b = self.b
        value, pointer, rest = text.removeprefix("store ").split(", ", 2)
        b.count += 1
        aside = Value("ptr", f"%v{b.count}")
        b.lines.insert(1, f"  {aside.name} = alloca {value.rsplit(' ', 1)[0]}, align 64")
        chosen = b.select(is_real, Value("ptr", pointer.removeprefix("ptr ")), aside)
        return f"store {value}, {chosen}, {rest}"


def _is_understood(line: _Line) -> bool:
    return bool(line.name) or line.is_store or "@llvm.prefetch." in line.text


def _parsed(b: Builder, lines: Sequence[str]) -> Iterator[_Line]:
    inside: set[str] = set()
    for line in lines:
        name, _, text = line.strip().partition(" = ") if line.startswith("  %v") else ("", "", line.strip())
        yield _Line(name, b.types.get(name, ""), text, [u for u in _NAME.findall(text) if u in inside])
        inside.add(name)
