"""Contractions on AMX: 32 rows by 32 columns of sums in four tile registers, over all of k.

In: a kernel whose products are taken by tiles. Out: a function of the same form as loops.py writes. The
machine's eight tiles hold 16 rows of 64 bytes each: 0 to 3 the sums (upper left, upper right, lower left,
lower right), 4 and 5 the upper and lower rows of the left operand, 6 and 7 the left and right columns of a
panel. Both operands hold 32 steps of k at a time, the panel in pairs. A step of 32 is four loads and four
products:

    6, 7 = panel[k / 2 : k / 2 + 16, 0:16], panel[k / 2 : k / 2 + 16, 16:32]
    4 = left[0:16, k : k + 32];     0 += 4 * 6;  1 += 4 * 7
    5 = left[16:32, k : k + 32];    2 += 5 * 6;  3 += 5 * 7

How many rows a tile has is configured: a block of fewer than 32 rows reads no more than those. One of at most
16 computes its first row again in the lower tiles. The sums go to memory of the thread, 4 KiB, where the
epilogue takes them. The tiles are released at the end, for a thread that waits with tiles in use keeps its
core awake.
"""
from __future__ import annotations

from collections.abc import Sequence

from planish.codegen.llvm.builder import Builder, Cell, Module, Value
from planish.codegen.llvm.contraction import TileWriter
from planish.codegen.llvm.loops import open_function
from planish.codegen.llvm.tile import LEFT, PAIR, RIGHT, TileSums
from planish.errors import UnsupportedOp
from planish.schedule.access import Access, stride_along
from planish.schedule.kernel import Axis, Kernel
from planish.schedule.products import TILE_BYTES, TILE_ROWS, TILES
from planish.types import is_static

SUMS, ROWS, COLUMNS = (0, 1, 2, 3), (4, 5), (6, 7)  # the tiles
CONFIG_BYTES, WIDTHS_AT, ROWS_AT = 64, 16, 48       # where a configuration has bytes and rows of each tile
PALETTE = 1                                         # of eight tiles
# Rows of tiles 0, 1, 4, of 2, 3, 5, and of 6 and 7, a byte for each
UPPER, LOWER = 0x00_00_00_01_00_00_01_01, 0x00_00_01_00_01_01_00_00
WHOLE = TILE_ROWS * 0x01_01_00_00_00_00_00_00
FASTER = 16  # multiply-adds of a unit of work for one of vectors


def write_tiles(module: Module, kernel: Kernel, name: str, size_slots: dict[str, int],
                numerics: str) -> Builder:
    """Write a contraction by tiles as function `name`. UnsupportedOp where the machine has none."""
    if f"bfloat16 {TILES.name}" in module.lacks:
        raise UnsupportedOp(f"kernel {kernel.name} multiplies by tiles, which this target does not have")
    b = open_function(module, kernel, name)
    MatrixWriter(b, kernel, size_slots, numerics).write()
    b.ret()
    return b


class MatrixWriter(TileWriter):
    """Rows of blocks and panels, as threads and caches share them, are the register tile's."""

    unit_work = FASTER * TileWriter.unit_work

    def __init__(self, b: Builder, kernel: Kernel, size_slots: dict[str, int], numerics: str):
        super().__init__(b, kernel, size_slots, numerics)
        self.matrix = MatrixSums(b, self.e, kernel, self.parts, numerics, self.accumulators)
        stride = stride_along(Access(self.lhs.buffer, self.lhs.index), self.m[-1].name)
        assert stride is not None
        self.between = self.e.dim(stride * self.lhs.dtype.itemsize)

    @property
    def most_kept(self) -> int:
        return self.tile.rows * self.width

    def write(self) -> None:
        b = self.b
        self.config = b.value("ptr", f"alloca [{CONFIG_BYTES} x i8], align {CONFIG_BYTES}")
        self.configured = Cell(b)
        self.configured.set(b.i64(0))
        b.store(b.const("<8 x i64>", 0), self.config, CONFIG_BYTES)
        b.store(Value("i8", str(PALETTE)), self.config)
        b.store(b.const("<8 x i16>", TILE_BYTES), b.gep("i8", self.config, b.i64(WIDTHS_AT)), WIDTHS_AT)
        blocks = b.intrinsic("smax", self.ceil_div(self.rows, self.tile.rows), b.i64(1))
        self.height = self.ceil_div(self.rows, blocks)
        self.tall = b.bin("sub", self.rows, b.mul(blocks, b.add(self.height, b.i64(-1))))
        super().write()
        b.call("llvm.x86.tilerelease", "void", [])

    def row_tiles(self, first: Value, last: Value, first_panel: Value, last_panel: Value) -> None:
        """As few blocks as it takes, of two heights one apart, the tall ones first."""
        b, one = self.b, self.b.i64(1)
        loop = b.loop(first, last, one, hint="block")
        lower = b.add(self.height, b.i64(-1))
        row = b.add(b.mul(loop.index, lower), b.intrinsic("smin", loop.index, self.tall))
        height = b.select(b.cmp("icmp slt", loop.index, self.tall), self.height, lower)
        self.configure(height)
        self.within({}, lambda: self.blocks_of_row(row, height, first_panel, last_panel))
        loop.end()

    def configure(self, height: Value) -> None:
        """Tiles for a block of so many rows, unless they are for that already."""
        b = self.b
        other = b.when(b.cmp("icmp ne", height, self.configured.get()), "configure")
        self.configured.set(height)
        upper = b.intrinsic("smin", height, b.i64(TILE_ROWS))
        lower = b.intrinsic("smax", b.add(height, b.i64(-TILE_ROWS)), b.i64(1))
        rows = b.add(b.mul(upper, b.i64(UPPER)), b.mul(lower, b.i64(LOWER)))
        b.store(b.add(rows, b.i64(WHOLE)), b.gep("i8", self.config, b.i64(ROWS_AT)), 8)
        b.call("llvm.x86.ldtilecfg", "void", [self.config])
        other.end()

    def blocks_of_row(self, row: Value, height: Value, first: Value, last: Value) -> None:
        b = self.b
        has_lower = b.cmp("icmp sgt", height, b.i64(TILE_ROWS))
        below = b.add(row, b.select(has_lower, b.i64(TILE_ROWS), b.i64(0)))
        left = [self.tile_row(at, 0).pointer for at in (row, below)]
        whole = b.bin("udiv", self.columns, b.i64(self.width))
        loop = b.loop(first, b.intrinsic("smin", last, whole), b.i64(1), hint="panel")
        self.within({}, lambda: self.block(left, row, height, loop.index, partial=False))
        loop.end()
        if not is_static(self.n.extent) or self.n.extent % self.width:
            rest = b.when(b.cmp("icmp sgt", last, whole), "partial")
            self.within({}, lambda: self.block(left, row, height, whole, partial=True))
            rest.end()

    def block(self, left: Sequence[Value], row: Value, height: Value, panel: Value, *, partial: bool) -> None:
        b = self.b
        column = b.mul(panel, b.i64(self.width))
        right, = self.panel_pointers(column, 1)
        self.matrix.write_block(left, self.between, right, self.accumulators)
        if partial:
            self.partial_epilogue(row, height, column, self.width)
        else:
            span = b.i64(0), b.i64(self.width)
            self.looped_epilogue(row, height, column, self.width, span, self.tile.lanes)


class MatrixSums(TileSums):
    """The loops over k of one block. Nothing but two offsets is carried through them: the sums are tiles."""

    def write_block(self, left: Sequence[Value], between: Value, right: Value, to: Value) -> None:
        """The sums of a block, at `to`, row by row. `left`: where its upper and lower rows begin (k = 0),
        `between` bytes apart; `right`: its panel."""
        b = self.b
        self.know_steps()
        self.left, self.right, self.between = [b.opaque(p) for p in left], [b.opaque(right)], between
        for tile in SUMS:
            b.call("llvm.x86.tilezero", "void", [_tile(tile)])
        self.loops(self.k, [b.i64(0), b.i64(0)])
        row = self.width * self.dtype.itemsize
        for tile in SUMS:
            place = tile // 2 * TILE_ROWS * row + tile % 2 * TILE_BYTES
            self.move("tilestored64", tile, b.gep("i8", to, b.i64(place)), b.i64(row))

    def know_steps(self) -> None:
        for side in (LEFT, RIGHT):
            for axis in self.k[:-1]:
                self.step(side, axis)

    def innermost(self, axis: Axis, carry: list[Value]) -> list[Value]:
        b, steps = self.b, TILES.steps
        loop = b.loop(b.i64(0), self.e.dim(axis.extent), b.i64(steps), carry, hint="k")
        left_at, right_at = loop.carry
        upper, lower = self.moved(self.left, left_at)
        panel, = self.moved(self.right, right_at)
        across = PAIR * self.width * self.rhs.dtype.itemsize
        for i, tile in enumerate(COLUMNS):
            self.move("tileloadd64", tile, b.gep("i8", panel, b.i64(i * TILE_BYTES)), b.i64(across))
        for i, (tile, pointer) in enumerate(zip(ROWS, (upper, lower))):
            self.move("tileloadd64", tile, pointer, self.between)
            for total, column in zip(SUMS[2 * i:2 * i + 2], COLUMNS):
                b.call("llvm.x86.tdpbf16ps", "void", [_tile(total), _tile(tile), _tile(column)])
        return loop.end([b.add(left_at, b.i64(TILE_BYTES)), b.add(right_at, b.i64(steps // PAIR * across))])

    def move(self, instruction: str, tile: int, pointer: Value, apart: Value) -> None:
        self.b.call(f"llvm.x86.{instruction}", "void", [_tile(tile), pointer, apart])


def _tile(number: int) -> Value:
    return Value("i8", str(number))
