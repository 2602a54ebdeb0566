"""Sorts as LLVM IR: a stable merge sort of each row, and a selection of the first few.

In: a `Sort` stage at one point of the shared axes. Out: its keys are computed into the thread's scratch
memory, sorted there, and the first `count` stored. Runs of RUN entries are sorted by insertion, then merged
bottom-up from one array into the other and back; two runs already in order are copied. Up to
schedule/sorting.py's SELECT first entries are kept sorted while the row goes by, so that no row is stored.
Entries are keys, in memory form, and positions beside them.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Builder, Cell, Module, Value
from planish.schedule.kernel import Kernel, Sort
from planish.schedule.sorting import selects, work_layout
from planish.types import evaluate_dim, is_static
from planish.types.dim import minimum

if TYPE_CHECKING:
    from planish.codegen.llvm.loops import LoopWriter

RUN = 16   # entries sorted by insertion before the first merge


def usable_threads(b: Builder, kernel: Kernel, threads: Value) -> Value:
    """No more threads than there are rows of scratch memory."""
    rows = {s.work.shape[0] for s in kernel.stages if isinstance(s, Sort) and s.work is not None}
    for count in rows:
        threads = b.intrinsic("smin", threads, b.const("i64", evaluate_dim(count, {})))
    return threads


def write_sort(w: LoopWriter, stage: Sort) -> None:
    """The code of a sort stage, inside the shared loops."""
    if stage.count == 0:
        return
    kind = Entries(stage.key.dtype.name, stage.descending, stage.positions is not None)
    arrays = _arrays(w, stage)
    if selects(stage):
        _select(w, stage, kind, arrays)
    else:
        _fill(w, stage, kind, arrays[0])
        arrays = [_sorted(w, stage, kind, arrays)]
    _store_first(w, stage, kind, arrays[0])


@dataclass(frozen=True)
class Array:
    """Entries in memory: their keys and, where wanted, their positions."""

    keys: Value
    positions: Value | None


@dataclass(frozen=True)
class Entries:
    """What is sorted, and how. A key precedes another when it is smaller (larger, if `descending`); NaN is
    the largest."""

    dtype: str
    descending: bool
    positioned: bool

    @property
    def memory(self) -> str:
        return registers.memory_type(self.dtype)

    @property
    def name(self) -> str:
        return f"{self.dtype}_{'down' if self.descending else 'up'}{'_at' if self.positioned else ''}"

    def precedes(self, b: Builder, x: Value, y: Value) -> Value:
        """Whether key x comes strictly before key y, both in memory form."""
        x, y = (registers.from_memory(b, v, self.dtype) for v in (x, y))
        if self.dtype in registers.FLOATS:
            compare, ordered = ("ugt", y) if self.descending else ("ult", x)
            return b.bin("and", b.cmp(f"fcmp {compare}", x, y), b.cmp("fcmp ord", ordered, ordered))
        sign = "s" if self.dtype in registers.SIGNED else "u"
        return b.cmp(f"icmp {sign}{'gt' if self.descending else 'lt'}", x, y)

    # --- one entry in memory

    def key(self, b: Builder, array: Array, at: Value) -> Value:
        return b.load(self.memory, b.gep(self.memory, array.keys, at))

    def get(self, b: Builder, array: Array, at: Value) -> list[Value]:
        found = [self.key(b, array, at)]
        if array.positions is not None:
            found.append(b.load("i64", b.gep("i64", array.positions, at), 8))
        return found

    def put(self, b: Builder, array: Array, at: Value, entry: list[Value]) -> None:
        b.store(entry[0], b.gep(self.memory, array.keys, at))
        if array.positions is not None:
            b.store(entry[1], b.gep("i64", array.positions, at), 8)


# --- in the kernel

def _arrays(w: LoopWriter, stage: Sort) -> list[Array]:
    """This thread's arrays: one for a selection, two for a sort."""
    b = w.b
    assert stage.work is not None, "a sort needs work memory"
    starts, total = work_layout(stage)
    alone = not any(a.parallel for a in w.kernel.shared)
    mine = b.i64(0) if alone else b.mul(w.tid, w.e.dim(total))
    base = b.gep("i8", w.e.pointers[stage.work.name], mine)
    pointers = [b.gep("i8", base, w.e.dim(s)) for s in starts]
    copies = 1 if selects(stage) else 2
    keys, positions = pointers[:copies], pointers[copies:]
    return [Array(k, p) for k, p in zip_longest(keys, positions)]


def _entry(w: LoopWriter, stage: Sort, kind: Entries, at: Value) -> list[Value]:
    """The entry of the row's element `at`, in the scope where the axis is open."""
    key = registers.to_memory(w.b, w.e.value(stage.key), kind.dtype)
    return [key, at] if kind.positioned else [key]


def _fill(w: LoopWriter, stage: Sort, kind: Entries, array: Array) -> None:
    w.e.hoist([stage.key])
    loop = w.b.loop(w.b.i64(0), w.e.dim(stage.axis.extent), w.b.i64(1), hint="fill")
    w.within({stage.axis.name: loop.index},
             lambda: kind.put(w.b, array, loop.index, _entry(w, stage, kind, loop.index)))
    loop.end()


def _select(w: LoopWriter, stage: Sort, kind: Entries, arrays: list[Array]) -> None:
    """Keep the first `count` of the entries so far; one that is not before the last of them is dropped."""
    b, array = w.b, arrays[0]
    last = b.i64(evaluate_dim(stage.count, {}) - 1)
    insert = _insert_function(b.module, kind)
    w.e.hoist([stage.key])
    loop = b.loop(b.i64(0), w.e.dim(stage.axis.extent), b.i64(1), hint="select")

    def one() -> None:
        entry = _entry(w, stage, kind, loop.index)
        waiting = b.cmp("icmp sle", loop.index, last)
        better = kind.precedes(b, entry[0], kind.key(b, array, last))
        enters = b.when(b.bin("or", waiting, better), "enters")
        at = b.intrinsic("smin", loop.index, last)
        kind.put(b, array, at, entry)
        b.call(insert, "void", [array.keys, array.positions or Value("ptr", "null"), at])
        enters.end()

    w.within({stage.axis.name: loop.index}, one)
    loop.end()


def _sorted(w: LoopWriter, stage: Sort, kind: Entries, arrays: list[Array]) -> Array:
    """Call the sort; the array where its result is."""
    b = w.b
    null = Value("ptr", "null")
    flat = [p for a in arrays for p in (a.keys, a.positions or null)]
    swapped = b.call(_sort_function(b.module, kind), "i1", [*flat, w.e.dim(stage.axis.extent)])
    keys, positions = (b.select(swapped, y, x) for x, y in zip(flat[:2], flat[2:]))
    return Array(keys, positions if kind.positioned else None)


def _store_first(w: LoopWriter, stage: Sort, kind: Entries, array: Array) -> None:
    """Store the first `count` entries; a row of run-time length may have fewer."""
    b = w.b
    count = stage.count if is_static(stage.axis.extent) else minimum(stage.count, stage.axis.extent)
    loop = b.loop(b.i64(0), w.e.dim(count), b.i64(1), hint="first")

    def one() -> None:
        entry = kind.get(b, array, loop.index)
        if stage.values is not None:
            w.e.store(stage.values, registers.from_memory(b, entry[0], kind.dtype), 1)
        if stage.positions is not None:
            w.e.store(stage.positions, entry[1], 1)

    w.within({stage.axis.name: loop.index}, one)
    loop.end()


# --- functions of their own, one for each kind of entries in a module

def _insert_function(module: Module, kind: Entries) -> str:
    """void insert(keys, positions, at): move entry `at` to its place among the sorted ones before it."""
    name = f"insert_{kind.name}"
    if all(f.name != name for f in module.functions):
        b = module.function(name, [("ptr", "keys"), ("ptr", "positions"), ("i64", "at")], linkage="internal")
        keys, positions, at = b.parameters
        _insert(b, kind, Cell(b), Array(keys, positions if kind.positioned else None), b.i64(0), at)
        b.ret()
    return name


def _insert(b: Builder, kind: Entries, place: Cell, array: Array, first: Value, at: Value) -> None:
    """Move entry `at` down, past those of [first, at) that it precedes."""
    entry = kind.get(b, array, at)
    place.set(at)
    move = b.repeat("move")
    here = place.get()
    move.test(b.cmp("icmp sgt", here, first))
    before = b.add(here, b.i64(-1))
    other = kind.get(b, array, before)
    move.test(kind.precedes(b, entry[0], other[0]))
    kind.put(b, array, here, other)
    place.set(before)
    move.end()
    kind.put(b, array, place.get(), entry)


def _sort_function(module: Module, kind: Entries) -> str:
    """i1 sort(keys, positions, other keys, other positions, count): true if the result is in the other
    arrays."""
    name = f"sort_{kind.name}"
    if all(f.name != name for f in module.functions):
        pointers = [("ptr", n) for n in ("keys", "positions", "keys2", "positions2")]
        b = module.function(name, [*pointers, ("i64", "count")], "i1", linkage="internal")
        _Merger(b, kind).write()
    return name


class _Merger:
    """The body of a sort function."""

    def __init__(self, b: Builder, kind: Entries):
        self.b, self.kind = b, kind
        self.count = b.parameters[-1]
        self.left, self.right, self.to = Cell(b), Cell(b), Cell(b)
        self.width, self.swapped = Cell(b), Cell(b, "i1")

    def write(self) -> None:
        b = self.b
        self.runs()
        self.width.set(b.i64(RUN))
        self.swapped.set(Value("i1", "false"))
        rounds = b.repeat("round")
        width = self.width.get()
        rounds.test(b.cmp("icmp slt", width, self.count))
        self.round(width, *self.arrays())
        self.width.set(b.mul(width, b.i64(2)))
        self.swapped.set(b.bin("xor", self.swapped.get(), Value("i1", "true")))
        rounds.end()
        b.ret(self.swapped.get())

    def arrays(self) -> tuple[Array, Array]:
        """The arrays as they stand in this round: from, to."""
        keys, positions, keys2, positions2, _ = self.b.parameters
        swapped = self.swapped.get()
        made = []
        for k, p in (((keys2, keys), (positions2, positions)), ((keys, keys2), (positions, positions2))):
            at = self.b.select(swapped, *p) if self.kind.positioned else None
            made.append(Array(self.b.select(swapped, *k), at))
        return made[0], made[1]

    def runs(self) -> None:
        b = self.b
        keys, positions, *_ = b.parameters
        array = Array(keys, positions if self.kind.positioned else None)
        run = b.loop(b.i64(0), self.count, b.i64(RUN), hint="run")
        stop = b.intrinsic("smin", b.add(run.index, b.i64(RUN)), self.count)
        one = b.loop(b.add(run.index, b.i64(1)), stop, b.i64(1), hint="insert")
        _insert(b, self.kind, self.left, array, run.index, one.index)
        one.end()
        run.end()

    def round(self, width: Value, source: Array, target: Array) -> None:
        """Merge neighbouring runs of `width` entries."""
        b = self.b
        step = b.mul(width, b.i64(2))
        pair = b.loop(b.i64(0), self.count, step, hint="pair")
        middle = b.intrinsic("smin", b.add(pair.index, width), self.count)
        stop = b.intrinsic("smin", b.add(pair.index, step), self.count)
        self.left.set(pair.index)
        self.right.set(middle)
        self.to.set(pair.index)
        two = b.when(b.cmp("icmp slt", middle, stop), "two")
        last, first = self.kind.key(b, source, b.add(middle, b.i64(-1))), self.kind.key(b, source, middle)
        mixed = b.when(self.kind.precedes(b, first, last), "mixed")
        even = b.when(b.cmp("icmp eq", b.add(pair.index, step), stop), "even")
        self.merge_even(pair.index, middle, stop, source, target)
        even.end()
        self.merge(middle, stop, source, target)
        mixed.end()
        two.end()
        self.rest(self.left, middle, source, target)
        self.rest(self.right, stop, source, target)
        pair.end()

    def merge(self, middle: Value, stop: Value, source: Array, target: Array) -> None:
        """Until one run is used up. Of equal keys the left run's go first."""
        b = self.b
        loop = b.repeat("merge")
        left, right, to = self.left.get(), self.right.get(), self.to.get()
        loop.test(b.cmp("icmp slt", left, middle))
        loop.test(b.cmp("icmp slt", right, stop))
        left, right = self.front(source, target, left, right, to)
        self.left.set(left)
        self.right.set(right)
        self.to.set(b.add(to, b.i64(1)))
        loop.end()

    def merge_even(self, start: Value, middle: Value, stop: Value, source: Array, target: Array) -> None:
        """Two runs of equal length from both ends at once: neither is used up before the halves meet, so
        nothing is tested, and two elements are under way at any time (as in Peters' and Bergdoll's
        driftsort)."""
        b, one = self.b, self.b.i64(1)
        last = [b.bin("sub", v, one) for v in (middle, stop, stop)]
        loop = b.loop(start, middle, one, [start, middle, start, *last], hint="even")
        left, right, to, left_end, right_end, to_end = loop.carry
        left, right = self.front(source, target, left, right, to)
        left_end, right_end = self.back(source, target, left_end, right_end, to_end)
        loop.end([left, right, b.add(to, one), left_end, right_end, b.bin("sub", to_end, one)])
        self.left.set(middle)
        self.right.set(stop)

    def front(self, source: Array, target: Array, left: Value, right: Value,
              to: Value) -> tuple[Value, Value]:
        """Store the first of the entries at `left` and `right`; where the runs go on."""
        b, kind = self.b, self.kind
        takes = kind.precedes(b, kind.key(b, source, right), kind.key(b, source, left))
        kind.put(b, target, to, kind.get(b, source, self.either(takes, right, left)))
        moved = b.cast("zext", takes, "i64")
        return b.add(left, b.bin("xor", moved, b.i64(1))), b.add(right, moved)

    def back(self, source: Array, target: Array, left: Value, right: Value, to: Value) -> tuple[Value, Value]:
        """Store the last of two entries."""
        b, kind = self.b, self.kind
        takes = kind.precedes(b, kind.key(b, source, right), kind.key(b, source, left))
        kind.put(b, target, to, kind.get(b, source, self.either(takes, left, right)))
        moved = b.cast("zext", takes, "i64")
        return b.bin("sub", left, moved), b.bin("sub", right, b.bin("xor", moved, b.i64(1)))

    def either(self, takes: Value, x: Value, y: Value) -> Value:
        """x or y by a conditional move: a branch would be guessed wrong every other time."""
        self.b.module.globals.setdefault("!1", "!1 = !{}")
        return self.b.value(x.type, f"select {takes}, {x}, {y}, !unpredictable !1")

    def rest(self, place: Cell, stop: Value, source: Array, target: Array) -> None:
        b = self.b
        loop = b.repeat("rest")
        here, to = place.get(), self.to.get()
        loop.test(b.cmp("icmp slt", here, stop))
        self.kind.put(b, target, to, self.kind.get(b, source, here))
        place.set(b.add(here, b.i64(1)))
        self.to.set(b.add(to, b.i64(1)))
        loop.end()
