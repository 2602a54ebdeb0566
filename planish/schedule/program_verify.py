"""The verifier of the program IR: launches fit their kernels, values are read while they are there.

In: a program. Out: the same program, or VerificationError with the fault, the line marked and the lines
around it. Where sizes are symbols, offsets are compared at the ends of their ranges.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from math import prod

import numpy as np

from planish.errors import VerificationError
from planish.ops.check import error_class
from planish.schedule.access import step_of
from planish.schedule.expression import spell_load
from planish.schedule.kernel import Axis, Buffer, Kernel, Load, stage_stores, stage_values, walk
from planish.schedule.points import corner_points, dim_values
from planish.schedule.products import TILES
from planish.schedule.program import (
    CONTROL,
    CheckStep,
    For,
    If,
    Launch,
    Place,
    Program,
    Step,
    Timeline,
    While,
    base_of,
    every_step,
    live_ranges,
    phases,
    together,
)
from planish.schedule.program_text import print_steps
from planish.schedule.verify import CONTEXT, verify_kernel
from planish.types import BOOL, is_static, symbols_of

Where = Step | Place | None


def verify_program(program: Program, after: str = "") -> Program:
    """The program itself, if it is well formed, its kernels too. Raises VerificationError."""
    for kernel in program.kernels:
        verify_kernel(kernel, after)
    for where, fault in _faults(program):
        raise VerificationError(_report(program, where, fault, after))
    return program


def _report(program: Program, where: Where, fault: str, after: str) -> str:
    lines = print_steps(program, mark=where).splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("->")), 0)
    around = "\n".join(lines[max(0, at - CONTEXT):at + CONTEXT + 1])
    return f"{f'after {after}: ' if after else ''}program {program.name}: {fault}\n{around}"


def _faults(program: Program) -> Iterator[tuple[Where, str]]:
    yield from _head(program)
    yield from _launches(program)
    yield from _order(program)
    yield from _barriers(program)
    yield from _beside(program.steps)
    yield from _rounds(program)
    yield from _arena(program)


# --- form

def _head(program: Program) -> Iterator[tuple[Where, str]]:
    places = program.places
    if len(places) < len(program.buffers):
        yield None, "two buffers have one name"
    names = [k.name for k in program.kernels]
    yield from ((None, f"two kernels are called {n}") for n in dict.fromkeys(names) if names.count(n) > 1)
    for name in (*program.inputs, *program.outputs):
        if name not in places:
            yield None, f"{name} is not a buffer of the program"
    for i, name in enumerate(program.inputs):
        if (places[name].kind, places[name].position) != ("input", i):
            yield places[name], f"{name} is not in the place of input {i}"
    known = {s.name for s in program.symbols}
    counters = [s.name for s in program.counters]
    doubled = [n for n in counters if n in known or counters.count(n) > 1]
    yield from ((None, f"{n} is the name of two things") for n in doubled)
    for place in program.buffers:
        yield from ((place, fault) for fault in _place(program, place, known))
        if place.kind == "slice":
            yield from ((place, fault) for fault in _slice(program, place))


def _place(program: Program, place: Place, known: set[str]) -> Iterator[str]:
    counters = {s.name for s in program.counters} if place.kind == "slice" else set()
    for dim, names in ((place.offset, known | counters), *((d, known) for d in place.buffer.shape)):
        yield from (f"{n} is not a symbol of the program" for n in symbols_of(dim) if n not in names)
    if place.kind == "output" and program.outputs[place.position:place.position + 1] != (place.name,):
        yield f"{place.name} is not output {place.position}"
    if place.kind != "constant":
        return
    if place.position >= len(program.contents):
        yield f"there is no constant {place.position}"
        return
    type_ = program.contents[place.position].type
    if type_ != place.buffer.type:
        yield f"the constant is {type_.dtype} of shape {type_.shape}"


def _slice(program: Program, place: Place) -> Iterator[str]:
    """The base is declared before, and holds the slice wherever the counters are."""
    base = next((p for p in program.buffers[:program.buffers.index(place)] if p.name == place.base), None)
    if base is None:
        yield f"{place.base} is not a buffer declared before"
        return
    loops = tuple(Axis(s.counter.name, s.length) for s in every_step(program.steps) if isinstance(s, For))
    inside = tuple(a for a in loops if a.name in symbols_of(place.offset))
    points, count = corner_points(program.symbols, inside)
    starts, sizes, wholes = (np.broadcast_to(dim_values(d, points), (count,))
                             for d in (place.offset, place.bytes, base.bytes))
    for i in np.flatnonzero((starts < 0) | (starts + sizes > wholes))[:1]:
        where = f"{starts[i]}..{starts[i] + sizes[i]} of the {wholes[i]} bytes of {base.name}"
        yield f"{place.name} lies at {where}"
    if place.offset % place.buffer.dtype.itemsize != 0:
        yield f"{place.name} is not aligned to its elements"


def _launches(program: Program) -> Iterator[tuple[Where, str]]:
    places, known = program.places, {s.name for s in program.symbols}
    for step in every_step(program.steps):
        missing = [n for n in (*step.reads, *step.writes) if n not in places]
        if missing:
            yield step, f"{missing[0]} is not a buffer of the program"
        elif isinstance(step, CheckStep):
            yield from ((step, fault) for fault in _check(step, places))
        elif isinstance(step, CONTROL):
            yield from ((step, fault) for name in step.reads for fault in _predicate(places[name]))
        else:
            yield from ((step, fault) for fault in _arguments(step, places))
            unknown = [n for n in step.kernel.symbols if n not in known]
            yield from ((step, f"{n} of {step.kernel.name} is not a symbol of the program") for n in unknown)


def _predicate(place: Place) -> Iterator[str]:
    if place.buffer.dtype is not BOOL or place.buffer.type.size != 1:
        yield f"a predicate is one bool; {place.name} is {place.buffer.type}"


def _check(step: CheckStep, places: dict[str, Place]) -> Iterator[str]:
    type_ = places[step.buffer].buffer.type
    if type_.dtype is not BOOL or type_.size != 1:
        yield f"a check looks at one bool; {step.buffer} is {type_}"
    if step.code == 0:
        yield "the code 0 means that all is well"
    if error_class(step.error) is None:
        yield f"{step.error} is not the name of a built-in exception"


def _arguments(step: Launch, places: dict[str, Place]) -> Iterator[str]:
    wanted = step.kernel.arguments
    slices = {p.name: p.base for p in places.values() if p.kind == "slice"}
    if len(step.arguments) != len(wanted):
        yield f"{step.kernel.name} takes {len(wanted)} buffers, not {len(step.arguments)}"
    for name, buffer in zip(step.arguments, wanted, strict=False):
        given = places[name].buffer
        if given.dtype is not buffer.dtype or given.type.size != buffer.type.size:
            yield f"{name} is {given.type}; {step.kernel.name} takes {buffer.type} for {buffer.name}"
    for name in step.writes:
        owner = places[base_of(name, slices)]
        if owner.kind in ("input", "constant"):
            yield f"{step.kernel.name} writes to {name}, which is {owner.kind} {owner.position}"


# --- order

def _order(program: Program) -> Iterator[tuple[Where, str]]:
    written = {p.name for p in program.buffers if p.kind in ("input", "constant")}
    yield from _unwritten(program.steps, written, program.slices)
    yield from ((None, f"the output {n} is never written") for n in program.outputs if n not in written)


def _unwritten(steps: Iterable[Step], written: set[str],
               slices: dict[str, str]) -> Iterator[tuple[Where, str]]:
    """Reads of what is not yet written; adds what the steps write, whatever way they take. A loop that
    stacks slices counts as writing the whole."""
    for step in steps:
        before = set(written)
        if isinstance(step, While):
            yield from _unwritten(step.condition, before, slices)
            written |= before
        unwritten = [n for n in step.reads if n not in before and base_of(n, slices) not in before]
        yield from ((step, f"{name} is read before it is written") for name in unwritten)
        if isinstance(step, While):
            yield from _unwritten(step.body, before, slices)
        elif isinstance(step, If):
            sides = [set(written), set(written)]
            for region, side in zip(step.regions, sides):
                yield from _unwritten(region, side, slices)
            written |= sides[0] & sides[1]
        elif isinstance(step, For):
            yield from _unwritten(step.body, before, slices)
            written |= {n for name in before - written for n in _bases(name, slices)}
        written |= set(step.writes)


def _barriers(program: Program) -> Iterator[tuple[Where, str]]:
    """Launches that may run at the same time: none writes what another touches."""
    together: list[Launch] = []
    last = -1
    for phase, step in phases(program):
        together = together if phase == last else []
        last = phase
        if not isinstance(step, Launch):
            continue
        reads, writes = _memory(step, program)
        for other in together:
            shared = (reads | writes) & _memory(other, program)[1] | writes & _memory(other, program)[0]
            for name in sorted(shared):
                yield step, f"{name} is used by {other.kernel.name} too, with no barrier between"
        together.append(step)


def _beside(steps: Iterable[Step]) -> Iterator[tuple[Where, str]]:
    """Launches that are shared out as one: products of as many rows, with register tiles of one size."""
    for group in together(steps):
        first = group[0]
        if isinstance(first, CONTROL):
            yield from (fault for region in first.regions for fault in _beside(region))
        if not isinstance(first, Launch) or not first.beside:
            continue
        yield from ((step, fault) for step in group
                    if (fault := _beside_fault(first, step, step is group[-1])))


def _beside_fault(first: Launch, step: Step, is_last: bool) -> str:
    if not isinstance(step, Launch) or step.beside == is_last:
        return "a launch stands beside none"
    if step.barrier and not is_last:
        return "a barrier separates launches beside each other"
    name, form = step.kernel.name, _form(step.kernel)
    if form is None:
        return f"{name} is no product that threads share, so it can't run beside others"
    return "" if form == _form(first.kernel) else f"{name} is tiled otherwise than {first.kernel.name}"


def _form(kernel: Kernel) -> tuple | None:
    """What products beside each other have in common: rows, and the size of a register tile."""
    tile = kernel.tile
    if tile is None or tile.product is TILES or tile.batch or not any(a.parallel for a in kernel.shared):
        return None
    rows = prod((a.extent for a in kernel.shared if a.name in tile.m), start=1)
    return rows, tile.rows, tile.vectors, tile.lanes


def _rounds(program: Program) -> Iterator[tuple[Where, str]]:
    """Rounds of a parallel loop, which run at the same time: each writes pieces of its own, and of what is
    written reads its own."""
    for step in every_step(program.steps):
        if isinstance(step, For) and step.parallel:
            yield from _round(program, step)


def _round(program: Program, loop: For) -> Iterator[tuple[Where, str]]:
    places, slices = program.places, program.slices
    written: dict[str, Place] = {}
    for step in loop.body:
        if not isinstance(step, Launch):
            yield step, "a parallel loop has launches only"
            return
        for name in step.writes:
            piece = written.setdefault(base_of(name, slices), places[name])
            if not _are_apart(piece, loop.counter.name):
                yield step, f"{name} is not a piece for each round of the parallel loop around it"
    for step in loop.body:
        for name in (*step.reads, *step.writes):
            mine = written.get(base_of(name, slices))
            if mine is not None and (places[name].base, places[name].offset, places[name].bytes) != (
                    mine.base, mine.offset, mine.bytes):
                yield step, f"{name} is not the piece that its round of the parallel loop writes"


def _are_apart(piece: Place, counter: str) -> bool:
    """Whether a slice is other memory in every round."""
    step = step_of(piece.offset, counter) if piece.kind == "slice" else None
    return is_static(step) and is_static(piece.bytes) and abs(step) >= piece.bytes


def _bases(name: str, slices: dict[str, str]) -> Iterator[str]:
    """What a slice is a piece of, from the nearest on."""
    while name in slices:
        name = slices[name]
        yield name


def _memory(step: Launch, program: Program) -> tuple[set[str], set[str]]:
    slices = program.slices
    return {base_of(n, slices) for n in step.reads}, {base_of(n, slices) for n in step.writes}


# --- the arena

def _arena(program: Program) -> Iterator[tuple[Where, str]]:
    """Buffers that live at the same time lie apart; each lies inside the arena, aligned to its elements. In
    a parallel loop all rounds' pieces live at once, but a round takes turns with itself: the same memory."""
    live = live_ranges(program)
    loops = Timeline(program.steps).parallel
    placed = [p for p in program.buffers if p.kind == "arena" and p.name in live]
    sizes, count = corner_points(program.symbols, ())
    for i in range(count):
        at = {n: int(v[i]) for n, v in sizes.items()}  # type: ignore[index]
        spans = {p.name: _span(p, at) for p in placed}
        where = " at " + ", ".join(f"{n}={v}" for n, v in at.items()) if at else ""
        yield from ((p, fault + where) for p in placed for fault in _inside(p, spans[p.name], program, at))
        for a, b in combinations(placed, 2):
            if not _overlap(spans[a.name], spans[b.name]):
                continue
            if not _meet(live[a.name], live[b.name]):
                if spans[a.name] != spans[b.name] and any(_within(loop, live[a.name], live[b.name])
                                                          for loop in loops):
                    yield b, f"{b.name} overlaps {a.name} in other rounds of a parallel loop{where}"
                continue
            old, new = sorted((a, b), key=lambda p: live[p.name])
            if spans[a.name] != spans[b.name] or not _written_over(program, old.name, new.name):
                yield b, f"{b.name} overlaps {a.name}, which lives at the same time{where}"


def _written_over(program: Program, old: str, new: str) -> bool:
    """Whether one launch is the last to touch `old` and the first to touch `new`, element by element."""
    live = live_ranges(program)
    if live[old][1] != live[new][0]:
        return False
    together = [step for phase, step in phases(program) if phase == live[new][0]]
    users = [step for step in together if {old, new} & {*step.reads, *step.writes}]
    if len(users) != 1 or not isinstance(users[0], Launch) or new not in users[0].writes:
        return False
    kernel = users[0].kernel
    target = kernel.outputs[users[0].writes.index(new)]
    sources = [b for b, name in zip(kernel.inputs, users[0].reads, strict=True) if name == old]
    return all(_same_memory(b, target) and _reads_first(kernel, b.name, target.name) for b in sources)


def _same_memory(a: Buffer, b: Buffer) -> bool:
    return (a.shape, a.order, a.dtype.itemsize) == (b.shape, b.order, b.dtype.itemsize)


def _reads_first(kernel: Kernel, source: str, target: str) -> bool:
    """Every element of `source` is read only where that element of `target` is written, and no later."""
    places: set[str] = set()
    written = False
    for stage in kernel.stages:
        loads = [s for s in walk(*stage_values(stage)) if isinstance(s, Load) and s.buffer.name == source]
        stores = [s for s in stage_stores(stage) if s.buffer.name == target]
        if loads and written:
            return False
        written = written or bool(stores)
        indices = [s.index for s in loads] + [s.index for s in stores]
        places |= {spell_load(kernel.inputs[0], index) for index in indices}
    return len(places) == 1


def _span(place: Place, sizes: dict[str, int]) -> tuple[int, int]:
    start = int(dim_values(place.offset, sizes))
    return start, start + int(dim_values(place.bytes, sizes))


def _inside(place: Place, span: tuple[int, int], program: Program, sizes: dict[str, int]) -> Iterator[str]:
    total = int(dim_values(program.arena_bytes, sizes))
    if span[0] < 0 or span[1] > total:
        yield f"{place.name} lies at {span[0]}..{span[1]}, outside the arena of {total} bytes"
    if span[0] % place.buffer.dtype.itemsize:
        yield f"{place.name} lies at {span[0]}, which is not aligned to its elements"


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _within(span: tuple[int, int], *ranges: tuple[int, int]) -> bool:
    return all(span[0] <= first and last <= span[1] for first, last in ranges)


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) <= min(a[1], b[1])
