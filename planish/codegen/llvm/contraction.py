"""Contractions as LLVM IR: register tiles over packed panels, the epilogue while the results are in
registers.

In: a kernel with a `RegisterTile`. Out: a function of the same form as loops.py writes. Blocking is by the
left operand's rows and groups of panels: the panels of a group stay in the second-level cache while all rows
pass, a tile's rows in the first while the group's panels pass. Threads take ranges of row tiles or of panels.
The sums are written by tile.py.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Builder, Module, Value, vector
from planish.codegen.llvm.crew import MOST_UNITS, Crew
from planish.codegen.llvm.expressions import Scope
from planish.codegen.llvm.loops import LoopWriter, open_function
from planish.codegen.llvm.tile import LINE_BYTES, TileSums
from planish.codegen.llvm.widening import Filling
from planish.schedule.access import Access, stride_along
from planish.schedule.kernel import Apply, Axis, Kernel, Load, own_dims, stage_values, walk
from planish.schedule.roles import contraction_of
from planish.schedule.steps import HARDLY, even_size, heights
from planish.types import Dim, is_static, substitute

GROUP_BYTES = 256 << 10  # panels that stay in the second-level cache while all rows pass
HALF_A_GROUP = 128 << 10 # the same, where the next ones are asked for meanwhile
FEW_ROWS_BYTES = 512 << 10  # of a left operand, which passes once more for every group, up to which they are
PANELS_AT_ONCE = 4       # panels a tile of few rows takes, so that enough accumulators hide the latency
FILLING_ROWS = 4         # rows that a panel could meet while it is widened
UNIT_WORK = 1 << 19      # multiply-adds of what a thread claims at a time: some 10 us
UNITS_OF_GROUP = 6       # bits: units of one group of panels, at most about 64
IMAGE_AXES = 3           # axes of rows from which they are the places of images
LONG_EPILOGUE = 8        # ops from which the epilogue is a loop over the tile's rows, not unrolled


def write_contraction(module: Module, kernel: Kernel, name: str, size_slots: dict[str, int],
                      numerics: str) -> Builder:
    """Write a tiled contraction as function `name`."""
    b = open_function(module, kernel, name)
    TileWriter(b, kernel, size_slots, numerics).write()
    b.ret()
    return b


@dataclass(frozen=True)
class TileRow:
    """A row of a tile: the values of the m axes, and where the left operand begins there (k = 0)."""

    axes: dict[str, Value]
    pointer: Value


class TileWriter(LoopWriter):
    unit_work = UNIT_WORK

    def __init__(self, b: Builder, kernel: Kernel, size_slots: dict[str, int], numerics: str):
        super().__init__(b, kernel, size_slots, numerics)
        tile, parts = kernel.tile, contraction_of(kernel)
        assert tile is not None and parts is not None
        self.filling = Filling.of(b, self.e, kernel, parts, numerics)
        self.parts = parts if self.filling is None else self.filling.parts
        self.tile, self.width = tile, tile.vectors * tile.lanes
        self.sum, self.lhs, self.rhs, self.epilogue = parts.sum, parts.left, self.parts.right, parts.epilogue
        self.element, self.size = registers.memory_type(self.sum.dtype.name), self.sum.dtype.itemsize
        axes = {a.name: a for a in (*kernel.shared, *self.sum.axes)}
        self.batch, self.m, self.k = ([axes[n] for n in names] for names in (tile.batch, tile.m, tile.k))
        self.n = axes[tile.n[0]]
        self.rows = self.e.dim(self.count(self.m))
        self.overlaps = len(self.m) >= IMAGE_AXES and not is_static(self.count(self.m))
        self.columns = self.e.dim(self.n.extent)
        self.is_shared = any(a.parallel for a in kernel.shared)
        scalars = (x for s in self.epilogue for x in walk(*stage_values(s)))
        self.long = sum(isinstance(x, Apply) for x in scalars) > LONG_EPILOGUE
        self.accumulators = b.value("ptr", f"alloca [{self.most_kept} x {self.element}], align 64")
        self.sums = TileSums(b, self.e, kernel, self.parts, numerics, self.accumulators)

    @property
    def is_tall(self) -> bool:
        """Whether every tile has so many rows that it takes one panel at a time."""
        count = self.count(self.m)
        return is_static(count) and 2 * even_size(count, self.tile.rows) > self.tile.rows + 1

    @property
    def most_kept(self) -> int:
        """How many accumulators are in memory at once."""
        count = self.count(self.m)
        rows = min(self.tile.rows, count) if self.m and is_static(count) else self.tile.rows
        return rows * self.width * PANELS_AT_ONCE

    @staticmethod
    def count(axes: Sequence[Axis]) -> Dim:
        return prod((a.extent for a in axes), start=1)

    # --- the grid

    def write(self) -> None:
        b = self.b
        if not self.is_shared:
            alone = b.when(b.cmp("icmp eq", self.tid, b.i64(0)), "alone")
            self.threads, self.tid = b.i64(1), b.i64(0)
            self.blocks()
            alone.end()
        else:
            self.blocks()

    def blocks(self) -> None:
        """Threads share out batch x row tiles or panels, whichever leaves the busiest thread less to do."""
        b, one = self.b, self.b.i64(1)
        tiles = self.ceil_div(self.rows, self.tile.rows)
        panels = self.ceil_div(self.columns, self.width)
        batches = self.e.dim(self.count(self.batch))
        all_items = b.mul(batches, tiles)
        told = self.told("share", "")
        by_rows = Value("i1", str(told == "rows").lower()) if told else self.pays_by_rows(all_items, panels)
        if self.is_shared and not self.batch:
            self.units(tiles, panels, by_rows)
            return
        first_item, last_item = self.part(all_items, by_rows, self.tid)
        no = b.bin("xor", by_rows, Value("i1", "true"))
        first_panel, last_panel = self.part(panels, no, self.tid)
        items = b.cmp("icmp slt", first_item, last_item)
        busy = b.when(b.bin("and", items, b.cmp("icmp slt", first_panel, last_panel)), "busy")
        first_batch = b.bin("udiv", first_item, tiles)
        last_batch = b.bin("udiv", b.add(last_item, b.i64(-1)), tiles)
        loop = b.loop(first_batch, b.add(last_batch, one), one, hint="batch")
        start = b.intrinsic("smax", b.bin("sub", first_item, b.mul(loop.index, tiles)), b.i64(0))
        stop = b.intrinsic("smin", b.bin("sub", last_item, b.mul(loop.index, tiles)), tiles)
        self.within(self.split(self.batch, loop.index),
                    lambda: self.groups(start, stop, first_panel, last_panel))
        loop.end()
        busy.end()

    def units(self, tiles: Value, panels: Value, by_rows: Value) -> None:
        """A thread's part in units of some row tiles and one group of panels, group by group. Where each
        thread has but one, there is nothing to claim."""
        b, one = self.b, self.b.i64(1)
        crew = Crew(b, self.tid, self.threads, self.pool, self.launch)
        by_panels = b.bin("xor", by_rows, Value("i1", "true"))
        group = self.group()
        rows_of_one = b.select(by_rows, self.share(tiles), tiles)
        panels_of_one = b.select(by_panels, self.share(panels), panels)
        size = self.unit_size(rows_of_one, b.intrinsic("smin", group, panels_of_one))
        most = b.mul(self.ceil_div(panels_of_one, group), self.ceil_div(rows_of_one, size))
        countable = b.bin("and", b.cmp("icmp sgt", most, one), b.cmp("icmp sle", most, b.i64(MOST_UNITS)))
        shares = b.bin("and", crew.shares(), countable)
        size = b.intrinsic("smax", b.select(shares, size, rows_of_one), one)

        def part_of(owner: Value) -> tuple[Value, ...]:
            return *self.part(tiles, by_rows, owner), *self.part(panels, by_panels, owner)

        def total(owner: Value) -> Value:
            first, last, first_panel, last_panel = part_of(owner)
            return b.mul(self.ceil_div(b.bin("sub", last_panel, first_panel), group),
                         self.ceil_div(b.bin("sub", last, first), size))

        def unit(owner: Value, number: Value) -> None:
            first, last, first_panel, last_panel = part_of(owner)
            in_group = self.ceil_div(b.bin("sub", last, first), size)
            panel = b.add(first_panel, b.mul(b.bin("udiv", number, in_group), group))
            end = b.intrinsic("smin", b.add(panel, group), last_panel)
            tile = b.add(first, b.mul(b.bin("urem", number, in_group), size))
            stop = b.intrinsic("smin", b.add(tile, size), last)
            self.within({}, lambda: self.unit(tile, stop, panel, end))

        crew.run(shares, total, unit)

    def unit_size(self, tiles: Value, panels: Value) -> Value:
        """How many of a thread's row tiles are a unit, with so many panels: all where those are widened for
        it."""
        b = self.b
        if self.filling is not None:
            return b.intrinsic("smax", tiles, b.i64(1))
        few = self.tiles_in(self.unit_work, panels)
        return b.add(b.intrinsic("smax", few, b.bin("lshr", tiles, b.i64(UNITS_OF_GROUP))), b.i64(1))

    def tiles_in(self, work: int, panels: Value) -> Value:
        """How many row tiles `work` multiply-adds are enough for, with so many panels."""
        b = self.b
        tile = b.mul(b.mul(panels, b.i64(self.width * self.tile.rows)), self.e.dim(self.count(self.k)))
        return b.bin("udiv", b.i64(work), b.intrinsic("smax", tile, b.i64(1)))

    def pays_by_rows(self, tiles: Value, panels: Value) -> Value:
        """Whether the busiest thread has less to do when tiles are shared out than when panels are, or hardly
        more: then no thread needs all of the left operand. Panels that are widened before are as much work
        as some rows."""
        b = self.b
        more = b.i64(0 if self.filling is None else FILLING_ROWS)
        rows = b.mul(b.add(self.rows_in(self.share(tiles)), more), panels)
        columns = b.mul(b.add(self.rows_in(tiles), more), self.share(panels))
        return b.cmp("icmp sle", rows, b.add(columns, b.bin("lshr", columns, b.i64(HARDLY))))

    def rows_in(self, tiles: Value) -> Value:
        """The rows of the first tiles, of which there may be fewer than they have room for."""
        b, height, count = self.b, self.tile.rows, self.count(self.m)
        if not is_static(count):
            rows = b.mul(tiles, b.i64(height))
            return rows if self.batch else b.intrinsic("smin", rows, self.rows)
        height, tall = heights(count, height)
        low = b.bin("sub", tiles, b.i64(tall)) if not self.batch else b.i64(0)
        return b.bin("sub", b.mul(tiles, b.i64(height)), b.intrinsic("smax", low, b.i64(0)))

    def told(self, step: str, otherwise: int | str) -> int | str:
        """What a step of the schedule says, where it has it."""
        return next((s.arguments[0] for s in self.kernel.steps if s.name == step), otherwise)

    def ceil_div(self, x: Value, size: Value | int) -> Value:
        b = self.b
        by = b.i64(size) if isinstance(size, int) else size
        return b.bin("udiv", b.add(x, b.add(by, b.i64(-1))), by)

    def share(self, total: Value) -> Value:
        """How many of `total` things the busiest thread gets."""
        return self.b.bin("udiv", self.b.add(total, self.b.add(self.threads, self.b.i64(-1))), self.threads)

    def part(self, total: Value, shared: Value, tid: Value) -> tuple[Value, Value]:
        """A thread's range of `total` things if they are shared out, else all of them."""
        b, share = self.b, self.share(total)
        start = b.intrinsic("smin", b.mul(tid, share), total)
        stop = b.intrinsic("smin", b.add(start, share), total)
        return b.select(shared, start, b.i64(0)), b.select(shared, stop, total)

    def split(self, axes: Sequence[Axis], flat: Value) -> dict[str, Value]:
        """The indices of axes at a flat number."""
        found: dict[str, Value] = {}
        for axis in reversed(axes[1:]):
            extent = self.e.dim(axis.extent)
            found[axis.name] = self.b.bin("urem", flat, extent)
            flat = self.b.bin("udiv", flat, extent)
        if axes:
            found[axes[0].name] = flat
        return found

    def groups(self, first_tile: Value, last_tile: Value, first_panel: Value, last_panel: Value) -> None:
        """Groups of panels, and in each all row tiles: whole ones, then the rest of the rows."""
        b, group = self.b, self.group()
        loop = b.loop(first_panel, last_panel, group, hint="group")
        end = b.intrinsic("smin", b.add(loop.index, group), last_panel)
        self.within({}, lambda: self.unit(first_tile, last_tile, loop.index, end))
        loop.end()

    def group(self) -> Value:
        """How many panels stay in the second-level cache."""
        b = self.b
        depth = self.e.dim(self.count(self.k))
        bytes_ = b.mul(depth, b.i64(self.width * self.rhs.dtype.itemsize))
        usual = HALF_A_GROUP if self.brings_next else GROUP_BYTES
        most = b.i64(int(self.told("group", usual)) if self.filling is None else self.filling.bytes)
        fit = b.bin("udiv", most, b.intrinsic("smax", bytes_, b.i64(1)))
        group = b.intrinsic("smax", fit, b.i64(1))
        if not self.is_tall and self.filling is None:
            group = b.mul(self.ceil_div(group, PANELS_AT_ONCE), b.i64(PANELS_AT_ONCE))
        return group

    def unit(self, first: Value, last: Value, first_panel: Value, last_panel: Value) -> None:
        """Some row tiles with a group of panels, which may have to be widened for them."""
        if self.filling is not None:
            self.filling.write(self, first_panel, last_panel)
        self.row_tiles(first, last, first_panel, last_panel)

    def row_tiles(self, first: Value, last: Value, first_panel: Value, last_panel: Value) -> None:
        """Tiles of even heights; where the number of rows is known only at run time, whole tiles, then one
        for each number of rows that may be left. The places of an image are many, so that a last tile that
        computes some row again costs less than the code for every number."""
        b, height = self.b, self.tile.rows
        count = self.count(self.m)
        if self.overlaps:
            loop = b.loop(first, last, b.i64(1), hint="tile")
            row = b.mul(loop.index, b.i64(height))
            self.within({}, lambda: self.panels(row, height, first_panel, last_panel))
            loop.end()
            return
        if is_static(count):
            self.even_tiles(count, first, last, first_panel, last_panel)
            return
        full = b.bin("udiv", self.rows, b.i64(height))
        stop = b.intrinsic("smin", last, full)
        loop = b.loop(first, stop, b.i64(1), hint="tile")
        row = b.mul(loop.index, b.i64(height))
        self.within({}, lambda: self.panels(row, height, first_panel, last_panel))
        loop.end()
        rest = b.bin("sub", self.rows, b.mul(full, b.i64(height)))
        row = b.mul(full, b.i64(height))
        mine = b.cmp("icmp sgt", last, full)
        for left in range(1, height):
            here = b.when(b.bin("and", mine, b.cmp("icmp eq", rest, b.i64(left))), "rest")
            self.within({}, lambda: self.panels(row, left, first_panel, last_panel))  # noqa: B023
            here.end()

    def even_tiles(self, count: int, first: Value, last: Value, first_panel: Value,
                   last_panel: Value) -> None:
        """As few tiles as it takes, of two heights one apart, the tall ones first: 49 rows are four tiles of
        six and five of five rows, none of a single row, which would wait for memory."""
        b = self.b
        height, many = heights(count, self.tile.rows)
        tall = b.i64(many)
        for start, stop, each, skipped in ((first, b.intrinsic("smin", last, tall), height, b.i64(0)),
                                           (b.intrinsic("smax", first, tall), last, height - 1, tall)):
            if count == many * height and each < height:
                continue
            loop = b.loop(start, stop, b.i64(1), hint="tile")
            row = b.add(b.mul(loop.index, b.i64(each)), skipped)
            self.within({}, lambda: self.panels(row, each, first_panel, last_panel))  # noqa: B023
            loop.end()

    def panels(self, row: Value, height: int, first: Value, last: Value) -> None:
        """Every panel of the group for one row tile; a tile of few rows takes several panels at a time."""
        b = self.b
        rows = [self.tile_row(row, i) for i in range(height)]
        whole = b.bin("udiv", self.columns, b.i64(self.width))
        at_once = max(1, min(PANELS_AT_ONCE, self.tile.rows // height))
        stop = b.intrinsic("smin", last, whole)
        if at_once > 1:
            many = b.add(first, b.mul(b.bin("sdiv", b.intrinsic("smax", b.bin("sub", stop, first), b.i64(0)),
                                            b.i64(at_once)), b.i64(at_once)))
            self.panel_loop(rows, row, first, many, at_once)
            first = many
        self.panel_loop(rows, row, first, stop, 1, self.next_group(row, height))
        if not is_static(self.n.extent) or self.n.extent % self.width:
            partial = b.when(b.cmp("icmp sgt", last, whole), "partial")
            self.within({}, lambda: self.tile_at(rows, row, whole, 1, partial=True))
            partial.end()

    def tile_row(self, row: Value, i: int) -> TileRow:
        axes = self.m_axes(row, self.b.i64(i))
        outside, self.e.scope = self.e.scope, Scope(self.e.scope, axes)
        pointer = self.e.pointer(self.lhs.buffer, self.at_k_zero(self.lhs))
        self.e.scope = outside
        return TileRow(axes, pointer)

    def m_axes(self, row: Value, i: Value) -> dict[str, Value]:
        """The values of the m axes at row `i` of a tile; rows past the end are the last one again."""
        at = row if i == self.b.i64(0) else self.b.add(row, i)
        if self.overlaps:
            at = self.b.intrinsic("smin", at, self.b.add(self.rows, self.b.i64(-1)))
        return self.split(self.m, at)

    def panel_loop(self, rows: list[TileRow], row: Value, first: Value, last: Value, at_once: int,
                   beyond: Value | None = None) -> None:
        loop = self.b.loop(first, last, self.b.i64(at_once), hint="panel")
        self.within({}, lambda: self.tile_at(rows, row, loop.index, at_once, partial=False, beyond=beyond))
        loop.end()

    @property
    def brings_next(self) -> bool:
        """Whether tiles ask for the next group of panels while they pass over one. It has to fit into the
        cache beside it; a left operand of many rows, for which each panel is used often, would rather pass
        less often. Where each row has an address of its own no register is left."""
        rows, depth = self.count(self.m), self.count(self.k)
        in_place = not self.tile.packed or self.filling is not None
        if in_place or self.apart() is None or not is_static(rows) or not is_static(depth):
            return False
        left = rows * depth * self.lhs.dtype.itemsize
        return self.sums.panel_bytes(depth) <= HALF_A_GROUP and left <= FEW_ROWS_BYTES

    def next_group(self, row: Value, height: int) -> Value | None:
        """How far from a panel lies what a row tile asks for of the next group: in each trip one of the lines
        that a trip reads, the tile after it the next line, so that a few tiles bring all of it."""
        if not self.brings_next:
            return None
        b = self.b
        lines = b.i64(max(1, self.sums.panel_bytes(self.sums.unroll) // LINE_BYTES))
        line = b.bin("urem", b.bin("udiv", row, b.i64(height)), lines)
        depth = self.count(self.k)
        assert is_static(depth)
        bytes_ = b.mul(self.group(), b.i64(self.sums.panel_bytes(depth)))
        return b.add(bytes_, b.mul(line, b.i64(LINE_BYTES)))

    # --- one register tile

    def tile_at(self, rows: list[TileRow], row: Value, panel: Value, at_once: int, *, partial: bool,
                beyond: Value | None = None) -> None:
        column = self.b.mul(panel, self.b.i64(self.width))
        left = [r.pointer for r in rows]
        right = self.panel_pointers(column, at_once)
        masks = self.column_masks(column) if partial else [None] * self.tile.vectors
        self.b.free_registers(self.tile.lanes * self.size)
        totals = self.sums.write(left, right, masks, self.apart(), self.beside(column, at_once), beyond)
        if partial:
            self.keep(totals)
            self.partial_epilogue(row, self.b.i64(len(rows)), column, len(masks) * self.tile.lanes)
        elif self.long:
            self.keep(totals)
            wide = at_once * self.width
            span = self.b.i64(0), self.b.i64(wide)
            self.looped_epilogue(row, self.b.i64(len(rows)), column, wide, span, self.tile.lanes)
        else:
            for one, values in zip(rows, totals):
                for j, total in enumerate(values):
                    self.vector_epilogue(one.axes, column, j, total)

    def apart(self) -> int | None:
        """Bytes between the rows of a tile in the left operand, where they are known and all the same."""
        if len(self.m) != 1 or self.overlaps:
            return None
        stride = stride_along(Access(self.lhs.buffer, self.lhs.index), self.m[0].name)
        return stride * self.lhs.dtype.itemsize if is_static(stride) else None

    def at_k_zero(self, load: Load) -> tuple[Dim, ...]:
        zero = dict.fromkeys((a.name for a in self.k), 0)
        return tuple(substitute(i, zero) for i in own_dims(load))

    def panel_pointers(self, column: Value, at_once: int, load: Load | None = None) -> list[Value]:
        """Where the panels of the right operand begin, or what lies beside them."""
        load, found = load or self.rhs, []
        for turn in range(at_once):
            at = column if turn == 0 else self.b.add(column, self.b.i64(turn * self.width))
            outside, self.e.scope = self.e.scope, Scope(self.e.scope, {self.n.name: at})
            found.append(self.e.pointer(load.buffer, self.at_k_zero(load)))
            self.e.scope = outside
        return found

    def beside(self, column: Value, at_once: int) -> list[tuple[Value, ...]]:
        """Of each panel, where what widens its numbers begins."""
        loads = [] if self.sums.widening is None else self.sums.widening.beside
        pointers = [self.panel_pointers(column, at_once, load) for load in loads]
        return list(zip(*pointers)) if pointers else [()] * at_once

    def column_masks(self, column: Value) -> list[Value | None]:
        """Which lanes of the last, partial panel may be read, for each of its vectors that has columns."""
        lanes = self.tile.lanes
        if is_static(self.n.extent):
            whole, rest = divmod(self.n.extent % self.width, lanes)
            first = ", ".join(f"i1 {str(k < rest).lower()}" for k in range(lanes))
            last = [None if self.tile.packed else Value(vector("i1", lanes), f"<{first}>")] if rest else []
            return [None] * whole + last
        if self.tile.packed:
            return [None] * self.tile.vectors
        left = self.b.splat(self.b.bin("sub", self.columns, column), lanes)
        numbers = (", ".join(f"i64 {j * lanes + k}" for k in range(lanes)) for j in range(self.tile.vectors))
        steps = [Value(vector("i64", lanes), f"<{n}>") for n in numbers]
        return [self.b.cmp("icmp slt", s, left) for s in steps]

    # --- the epilogue

    def vector_epilogue(self, rows: dict[str, Value], column: Value, j: int, total: Value) -> None:
        """The stages after the sum, for vector `j` of a row of the tile."""
        at = column if j == 0 else self.b.add(column, self.b.i64(j * self.tile.lanes))
        self.run_epilogue({**rows, self.n.name: at}, total, self.tile.lanes)

    def run_epilogue(self, axes: dict[str, Value], total: Value, lanes: int) -> None:
        outside = self.e.scope
        self.e.scope = Scope(outside, axes, self.n.name, lanes) if lanes > 1 else Scope(outside, axes)
        self.e.set_result(self.sum.name, total)
        for stage in self.epilogue:
            self.single(stage, lanes)
        self.e.scope = outside

    def keep(self, totals: list[list[Value]]) -> None:
        """Put the accumulators in memory, rows of the tile one after another."""
        lanes = self.tile.lanes
        for at, total in enumerate(total for values in totals for total in values):
            place = self.b.gep(self.element, self.accumulators, self.b.i64(at * lanes))
            self.b.store(total, place, lanes * self.size)

    def kept(self, row: Value, per_row: int, place: Value, lanes: int) -> Value:
        at = self.b.add(self.b.mul(row, self.b.i64(per_row)), place)
        place = self.b.gep(self.element, self.accumulators, at)
        return self.b.load(vector(self.element, lanes), place, self.size)

    def looped_epilogue(self, row: Value, height: Value, column: Value, per_row: int,
                        span: tuple[Value, Value], lanes: int) -> None:
        """The epilogue of columns `span` of the kept accumulators, `lanes` at a time."""
        b = self.b
        loop = b.loop(b.i64(0), height, b.i64(1), hint="row")
        axes = self.m_axes(row, loop.index)
        inner = b.loop(*span, b.i64(lanes), hint="column")
        total = self.kept(loop.index, per_row, inner.index, lanes)
        self.run_epilogue({**axes, self.n.name: b.add(column, inner.index)}, total, lanes)
        inner.end()
        loop.end()

    def partial_epilogue(self, row: Value, height: Value, column: Value, per_row: int) -> None:
        """A partial panel: whole vectors, then column by column."""
        b, lanes = self.b, self.tile.lanes
        if is_static(self.n.extent):
            left = b.i64(self.n.extent % self.width)
            whole = b.i64(self.n.extent % self.width // lanes * lanes)
        else:
            left = b.bin("sub", self.columns, column)
            whole = b.bin("and", left, b.i64(-lanes))
        for span, wide in (((b.i64(0), whole), lanes), ((whole, left), 1)):
            if span[0] != span[1]:
                self.looped_epilogue(row, height, column, per_row, span, wide)
