"""Products of one left operand as one function: threads share out the panels, or rows, of all of them.

In: canonical kernels with register tiles of one form over the same rows and steps of k (schedule/beside.py).
Out: a function that takes the buffers of one after another, and then what every kernel takes. The panels of
all stand in a row, and a thread gets a range of them, or all panels of a range of row tiles. Its units are
those of a single product (contraction.py): some row tiles with one group of panels, of one of the products.
Equal kernels share their code; which buffers it works on stands in a table.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planish.codegen.llvm.builder import Builder, Module, Value
from planish.codegen.llvm.contraction import TileWriter
from planish.codegen.llvm.crew import MOST_UNITS, Crew
from planish.schedule.kernel import Kernel
from planish.schedule.text import print_kernel

TAKEN = ["i64", "i64", "ptr", "i64"]  # tid, threads, pool, launch: after the buffers and sizes
POINTER = 8


def write_beside(module: Module, kernels: Sequence[Kernel], name: str, size_slots: dict[str, int],
                 numerics: str) -> Builder:
    """Write products beside each other as function `name`."""
    count = sum(len(k.arguments) for k in kernels)
    names = [*(f"p{i}" for i in range(count)), "sizes", "tid", "threads", "pool", "launch"]
    types = ["ptr"] * (count + 1) + TAKEN
    b = module.function(name, list(zip(types, names)), linkage="hidden")
    SideWriter(b, kernels, size_slots, numerics).write()
    b.ret()
    return b


@dataclass(frozen=True)
class Member:
    """One of the products: which of the writers has its code, and where its panels stand among all."""

    writer: TileWriter
    first_panel: Value
    panels: Value
    group: Value


class SideWriter:
    """`writers` has one for each of the kernels that differ, by its text."""

    def __init__(self, b: Builder, kernels: Sequence[Kernel], size_slots: dict[str, int], numerics: str):
        self.b = b
        self.most = max(len(k.arguments) for k in kernels)
        self.table = self.filled_table(kernels)
        self.writers: dict[str, TileWriter] = {}
        self.members: list[Member] = []
        self.panels = b.i64(0)
        for kernel in kernels:
            text = print_kernel(kernel)
            if text not in self.writers:
                self.writers[text] = TileWriter(b, kernel, size_slots, numerics)
            writer = self.writers[text]
            panels = writer.ceil_div(writer.columns, writer.width)
            self.members.append(Member(writer, self.panels, panels, writer.group()))
            self.panels = b.add(self.panels, panels)
        self.one = self.members[0].writer
        self.tiles = self.one.ceil_div(self.one.rows, self.one.tile.rows)

    def filled_table(self, kernels: Sequence[Kernel]) -> Value:
        """The buffers of the products, a row for each."""
        b = self.b
        table = b.value("ptr", f"alloca [{len(kernels) * self.most} x ptr], align {POINTER}")
        given = iter(b.parameters)
        for row, kernel in enumerate(kernels):
            for at, _ in enumerate(kernel.arguments, row * self.most):
                b.store(next(given), b.gep("ptr", table, b.i64(at)), POINTER)
        return table

    def write(self) -> None:
        b, one = self.b, self.one
        crew = Crew(b, one.tid, one.threads, one.pool, one.launch)
        by_rows = one.pays_by_rows(self.tiles, self.panels)
        self.by_rows, self.by_panels = by_rows, b.bin("xor", by_rows, Value("i1", "true"))
        rows_of_one = b.select(by_rows, one.share(self.tiles), self.tiles)
        panels_of_one = b.select(self.by_panels, one.share(self.panels), self.panels)
        group = self.members[0].group
        for member in self.members[1:]:
            group = b.intrinsic("smin", group, member.group)
        widens = next((w for w in self.writers.values() if w.filling is not None), one)
        size = widens.unit_size(rows_of_one, b.intrinsic("smin", group, panels_of_one))
        groups = b.add(one.ceil_div(panels_of_one, group), b.i64(len(self.members)))
        most = b.mul(groups, one.ceil_div(rows_of_one, size))
        shares = b.bin("and", crew.shares(), b.cmp("icmp sle", most, b.i64(MOST_UNITS)))
        self.size = b.intrinsic("smax", b.select(shares, size, rows_of_one), b.i64(1))
        crew.run(shares, self.total, self.unit)

    def rows_of(self, owner: Value) -> tuple[Value, Value, Value]:
        """A thread's row tiles, and how many units they are with one group of panels."""
        first, last = self.one.part(self.tiles, self.by_rows, owner)
        return first, last, self.one.ceil_div(self.b.bin("sub", last, first), self.size)

    def panels_of(self, member: Member, owner: Value) -> tuple[Value, Value, Value]:
        """A thread's panels of a product, and how many groups they are."""
        b = self.b
        first, last = (b.intrinsic("smin", b.intrinsic("smax", b.bin("sub", x, member.first_panel), b.i64(0)),
                                   member.panels) for x in self.one.part(self.panels, self.by_panels, owner))
        return first, last, self.one.ceil_div(b.bin("sub", last, first), member.group)

    def total(self, owner: Value) -> Value:
        groups = self.b.i64(0)
        for member in self.members:
            groups = self.b.add(groups, self.panels_of(member, owner)[2])
        return self.b.mul(groups, self.rows_of(owner)[2])

    def unit(self, owner: Value, number: Value) -> None:
        """The groups of all products are numbered in order, each with its units of row tiles."""
        b, zero = self.b, self.b.i64(0)
        first, last, in_group = self.rows_of(owner)
        tile = b.add(first, b.mul(b.bin("urem", number, in_group), self.size))
        stop = b.intrinsic("smin", b.add(tile, self.size), last)
        place = b.bin("udiv", number, in_group)
        which, panel, end = zero, zero, zero
        for i, member in enumerate(self.members):
            start, beyond, groups = self.panels_of(member, owner)
            here = b.cmp("icmp ult", place, groups)  # below 0 it is a large number, unsigned
            at = b.add(start, b.mul(place, member.group))
            which = b.select(here, b.i64(i), which)
            panel = b.select(here, at, panel)
            end = b.select(here, b.intrinsic("smin", b.add(at, member.group), beyond), end)
            place = b.bin("sub", place, groups)
        for writer in self.writers.values():
            self.run(writer, which, (tile, stop, panel, end))

    def run(self, writer: TileWriter, which: Value, unit: tuple[Value, ...]) -> None:
        """A unit of product `which`, if this writer has its code."""
        b = self.b
        own = [i for i, m in enumerate(self.members) if m.writer is writer]
        mine = Value("i1", "false")
        for i in own:
            mine = b.bin("or", mine, b.cmp("icmp eq", which, b.i64(i)))
        chosen = b.when(mine, "product")
        row = b.gep("ptr", self.table, b.mul(which, b.i64(self.most)))
        buffers = [b.name for b in writer.kernel.arguments]
        writer.e.pointers |= {name: b.load("ptr", b.gep("ptr", row, b.i64(i)), POINTER)
                              for i, name in enumerate(buffers)}
        writer.within({}, lambda: writer.unit(*unit))
        chosen.end()
