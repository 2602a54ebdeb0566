"""The sums of a register tile: the loops over k.

In: where the rows of the left operand and the panels of the right one begin (k = 0). Out: the accumulators,
[row][vector], after all of k. Accumulation is in one fixed order, with fused multiply-add where the machine
has it (not in strict numerics). Where the tile says so products are added two at a time (products.py). Long
sums of floats are sums of blocks: rounding errors grow with the length of a block and the number of blocks,
not with their product.

An address is `beginning + offset + literal`: one offset per operand is carried through the loops and serves
all its rows. How the beginnings came about LLVM isn't told: its loop strength reduction would write each
address as a polynomial of all loops around, and look among their sums for as long as all the rest of
compiling takes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from planish.codegen.llvm import products, registers
from planish.codegen.llvm.builder import Builder, Value, mangle, vector
from planish.codegen.llvm.expressions import Expressions
from planish.codegen.llvm.products import PAIR
from planish.codegen.llvm.widening import Widening
from planish.schedule.access import Access, stride_along
from planish.schedule.kernel import Axis, Kernel, Load
from planish.schedule.roles import Contraction
from planish.types import INT8, Dim, is_static

FEW_ROWS = 2        # rows of a tile up to which a right operand in place is read faster than it is used
AHEAD_BYTES = 1024  # how far ahead panels are asked for
LINE_BYTES = 64     # what one request brings
BLOCK = 256         # steps of k summed by themselves: of 6 x 16 results 1500 cycles, to 20 of adding them up
LEFT, RIGHT = 0, 1  # the operands

Masks = Sequence["Value | None"]  # of a panel's vectors: which lanes may be read; None: all


class TileSums:
    """Writes the loops over k of one kernel's tiles, of what `parts` says. `memory` has room for the
    accumulators."""

    def __init__(self, b: Builder, e: Expressions, kernel: Kernel, parts: Contraction, numerics: str,
                 memory: Value):
        tile = kernel.tile
        assert tile is not None
        self.b, self.e, self.numerics, self.memory = b, e, numerics, memory
        self.is_x86 = b.module.triple.startswith("x86_64")
        self.packed = tile.packed
        self.lanes, self.width = tile.lanes, tile.vectors * tile.lanes
        self.lhs, self.rhs, self.in_pairs = parts.left, parts.right, tile.product.pair == PAIR
        self.dtype, self.element = parts.sum.dtype, registers.memory_type(parts.sum.dtype.name)
        axes = {a.name: a for a in parts.sum.axes}
        self.k = [axes[name] for name in tile.k if name in axes]
        self.strides = [{a.name: self.stride(load, a) for a in self.k} for load in (self.lhs, self.rhs)]
        self.unroll = next(int(s.arguments[1]) for s in kernel.steps if s.name == "unroll")
        self.widening = None if parts.widened is None else Widening(b, e, parts.widened, self.rhs, self.k[0],
                                                                   tile.lanes, numerics)

    def write(self, left: Sequence[Value], right: Sequence[Value], masks: Masks, apart: int | None,
              beside: Sequence[Sequence[Value]] = (), beyond: Value | None = None) -> list[list[Value]]:
        """The accumulators of a tile after all of k, from where its rows and panels begin. `apart`: bytes
        between its rows, where all lie so. `beside`: of each panel, where what widens it begins. `beyond`:
        bytes from what a trip reads to a line that it asks for, for later tiles."""
        b = self.b
        self.know_steps()
        if self.widening is not None:
            self.widening.begin(beside, len(masks))
        self.beyond = beyond
        self.left, self.right, self.masks = self.beginnings(left, apart), self.beginnings(right, None), masks
        per_row = len(right) * len(masks)
        zero = registers.constant(b, self.dtype.name, 0, self.lanes)
        carry = [b.i64(0), b.i64(0), *[zero] * (len(left) * per_row)]
        _, _, *flat = self.loops(self.k, carry)
        return [flat[i * per_row:(i + 1) * per_row] for i in range(len(left))]

    def panel_bytes(self, steps: int) -> int:
        """What so many steps of k take in a panel."""
        whole = -(-steps // PAIR) * PAIR if self.in_pairs else steps
        return whole * self.width * self.rhs.dtype.itemsize

    def beginnings(self, pointers: Sequence[Value], apart: int | None) -> list[Value]:
        if apart is None:
            return [self.b.opaque(p) for p in pointers]
        first = self.b.opaque(pointers[0])
        return [self.b.gep("i8", first, self.b.i64(i * apart)) for i in range(len(pointers))]

    def know_steps(self) -> None:
        """Distances are computed before the loops that need them, which need not run."""
        for side in (LEFT, RIGHT):
            for axis in self.k[:-1]:
                self.step(side, axis)
            for turn in range(self.unroll + 1):
                self.step(side, self.k[-1], turn)

    def step(self, side: int, axis: Axis, steps: int = 1) -> Value:
        """Bytes between an operand's number and the one some steps along an axis."""
        size = (self.lhs, self.rhs)[side].dtype.itemsize
        return self.e.dim(steps * size * self.strides[side][axis.name])

    def stride(self, load: Load, axis: Axis) -> Dim:
        """Elements between neighbours along an axis; along the last of k in pairs, those of the panel between
        one pair and the next."""
        if self.in_pairs and load is self.rhs and axis is self.k[-1]:
            return PAIR * self.width
        stride = stride_along(Access(load.buffer, load.index), axis.name)
        assert stride is not None
        return stride

    # --- loops; carried through them: the offsets of the left and the right operand, then the accumulators

    def loops(self, axes: Sequence[Axis], carry: list[Value]) -> list[Value]:
        axis, *inner = axes
        if not inner:
            return self.innermost(axis, carry)
        first, last = self.b.i64(0), self.e.dim(axis.extent)
        if self.widening is None or not self.widening.is_blocked:
            return self.rounds(axis, inner, first, last, carry)
        # Of blocks that share what widens them, as many as make up one of a long sum are summed apart.
        count, size = axis.extent, inner[0].extent
        assert is_static(count) and is_static(size)
        each = max(1, BLOCK // size)
        if count <= each:
            return self.rounds(axis, inner, first, last, carry)
        return self.by_blocks(last, each, carry, partial(self.rounds, axis, inner))

    def rounds(self, axis: Axis, inner: Sequence[Axis], first: Value, last: Value,
               carry: list[Value]) -> list[Value]:
        """The loop over an axis that has others inside."""
        b = self.b
        loop = b.loop(first, last, b.i64(1), carry, hint="k")
        if self.widening is not None and self.widening.is_blocked:
            self.widening.load_block(loop.index)
        _, _, *totals = self.loops(inner, loop.carry)
        beyond = [b.add(loop.carry[side], self.step(side, axis)) for side in (LEFT, RIGHT)]
        return loop.end([*beyond, *totals])

    def innermost(self, axis: Axis, carry: list[Value]) -> list[Value]:
        """The loop that does the work, `unroll` steps a trip, then the steps that are left."""
        b = self.b
        at: Value = b.i64(0)
        extent = self.e.dim(axis.extent)
        each = PAIR if self.in_pairs else 1
        is_long = not is_static(axis.extent) or axis.extent > BLOCK
        for factor in dict.fromkeys((self.unroll, each, 1)):
            if is_static(axis.extent):
                stop = b.i64(axis.extent // factor * factor)
                if stop == at:
                    continue
            else:
                stop = b.bin("and", extent, b.i64(-factor)) if factor > 1 else extent
            if factor == self.unroll and is_long and self.dtype.is_float:
                carry, at = self.blocks(axis, stop, carry), stop
                continue
            loop = b.loop(at, stop, b.i64(factor), carry, hint="k")
            carry, at = loop.end(self.trip(axis, factor, loop.carry)), stop
        return carry

    def blocks(self, axis: Axis, stop: Value, carry: list[Value]) -> list[Value]:
        """The steps up to `stop`."""
        def steps(first: Value, last: Value, carry: list[Value]) -> list[Value]:
            loop = self.b.loop(first, last, self.b.i64(self.unroll), carry, hint="k")
            return loop.end(self.trip(axis, self.unroll, loop.carry))
        return self.by_blocks(stop, BLOCK // self.unroll * self.unroll, carry, steps)

    def by_blocks(self, stop: Value, block: int, carry: list[Value],
                  steps: Callable[[Value, Value, list[Value]], list[Value]]) -> list[Value]:
        """`steps` from 0 to `stop`: each block from 0, then added to what is in memory."""
        b, (left, right, *totals), bytes_ = self.b, carry, self.lanes * self.dtype.itemsize
        places = [b.gep("i8", self.memory, b.i64(i * bytes_)) for i in range(len(totals))]
        for total, place in zip(totals, places):
            b.store(total, place, bytes_)
        outer = b.loop(b.i64(0), stop, b.i64(block), [left, right], hint="block")
        end = b.intrinsic("smin", b.add(outer.index, b.i64(block)), stop)
        zero = registers.constant(b, self.dtype.name, 0, self.lanes)
        past_left, past_right, *summed = steps(outer.index, end, [*outer.carry, *[zero] * len(totals)])
        for total, place in zip(summed, places):
            b.store(b.bin("fadd", b.load(total.type, place, bytes_), total), place, bytes_)
        offsets = outer.end([past_left, past_right])
        return [*offsets, *(b.load(t.type, p, bytes_) for t, p in zip(totals, places))]

    def trip(self, axis: Axis, factor: int, carry: list[Value]) -> list[Value]:
        """`factor` steps, in pairs perhaps half as many."""
        left_at, right_at, *totals = carry
        left, right = self.moved(self.left, left_at), self.moved(self.right, right_at)
        turns = range(max(factor // PAIR, 1) if self.in_pairs else factor)
        self.prefetch(right, factor)
        for turn in turns:
            here = self.moved(right, self.step(RIGHT, axis, turn))
            near = self.step(LEFT, axis, PAIR * turn if self.in_pairs else turn)
            rows = self.moved(left, near) if self.is_x86 else self.moved_alike(left_at, near)
            if self.in_pairs:
                self.multiply_pairs(axis, rows, here, totals, whole=factor > 1)
            else:
                self.multiply(rows, here, totals)
        return [self.b.add(left_at, self.step(LEFT, axis, factor)),
                self.b.add(right_at, self.step(RIGHT, axis, len(turns))), *totals]

    def moved_alike(self, offset: Value, near: Value) -> list[Value]:
        """The rows at an offset in one register for all of them. (Given literals, LLVM loads two numbers at a
        time on ARM, for which the tile leaves no registers.)"""
        return self.moved(self.left, self.b.opaque(self.b.add(offset, near)))

    def moved(self, pointers: list[Value], offset: Value) -> list[Value]:
        return [self.b.gep("i8", p, offset) for p in pointers]

    # --- one step, or a pair of them

    def multiply(self, left: list[Value], right: list[Value], totals: list[Value]) -> None:
        """totals[i, j] += left[i] * right[j]. Vectors that are widened take registers: where there are more
        of them than rows, each is multiplied before the next is loaded."""
        element, size = registers.memory_type(self.rhs.dtype.name), self.lanes
        places = [(self.b.gep(element, p, self.b.i64(j * size)), mask)
                  for p in right for j, mask in enumerate(self.masks)]
        count = len(places)
        if self.widening is not None and count > len(left):
            numbers = [self.left_number(pointer) for pointer in left]
            for j in range(count):
                column = self.right_vector(*places[j], j)
                for i, many in enumerate(numbers):
                    at = i * count + j
                    totals[at] = self.plus_product(totals[at], many, column)
            return
        if self.widening is not None and self.widening.is_blocked:
            self.widening.load_again()
        columns = [self.right_vector(*place, j) for j, place in enumerate(places)]
        for i, pointer in enumerate(left):
            many = self.left_number(pointer)
            for at, column in enumerate(columns, i * count):
                totals[at] = self.plus_product(totals[at], many, column)

    def multiply_pairs(self, axis: Axis, left: list[Value], right: list[Value], totals: list[Value], *,
                       whole: bool) -> None:
        """totals[i, j] += left[i] * right[j] of a pair of steps; where not `whole`, of the last one alone."""
        b, lanes = self.b, self.lanes
        columns = [self.right_pairs(p, j * PAIR * lanes) for p in right for j in range(len(self.masks))]
        for i, pointer in enumerate(left):
            pair = self.left_pair(pointer, axis, whole)
            many = b.cast("bitcast", b.splat(pair, lanes), vector("i16", PAIR * lanes))
            for at, column in enumerate(columns, i * len(columns)):
                totals[at] = products.plus_pairs(b, self.lhs.dtype.name, totals[at], many, column)

    def right_pairs(self, pointer: Value, at: int) -> Value:
        """A vector of pairs of the right operand, 16 bits each; of int16 they may be bytes in memory."""
        element, count = "i8" if self.rhs.dtype is INT8 else "i16", PAIR * self.lanes
        place = self.b.gep(element, pointer, self.b.i64(at))
        loaded = self.b.load(vector(element, count), place, self.rhs.dtype.itemsize)
        return self.b.cast("sext", loaded, vector("i16", count))

    def left_pair(self, pointer: Value, axis: Axis, whole: bool) -> Value:
        """Two neighbours along k in one i32, the first in its lower half; one alone is beside 0."""
        b, align = self.b, self.lhs.dtype.itemsize
        if whole and self.strides[LEFT][axis.name] == 1:
            return b.load("i32", pointer, align)
        first = b.cast("zext", b.load("i16", pointer, align), "i32")
        if not whole:
            return first
        second = b.load("i16", b.gep("i8", pointer, self.step(LEFT, axis)), align)
        shifted = b.bin("shl", b.cast("zext", second, "i32"), b.const("i32", 16))
        return b.bin("or", first, shifted)

    def plus_product(self, total: Value, x: Value, y: Value) -> Value:
        """total + x * y: in one operation, but in two where every operation is to be rounded."""
        if not self.dtype.is_float:
            return self.b.add(total, self.b.mul(x, y))
        if self.numerics == "strict":
            return self.b.bin("fadd", total, self.b.bin("fmul", x, y))
        return self.b.multiply_add(x, y, total)

    def prefetch(self, right: list[Value], factor: int) -> None:
        """Ask for what a few trips later reads. Panels lie one after another, so at the end of one it is the
        beginning of the next. And for a line `beyond`, which only the second-level cache takes in."""
        if not self.packed and len(self.left) > FEW_ROWS:
            return
        for pointer in right:
            for near in range(AHEAD_BYTES, AHEAD_BYTES + self.panel_bytes(factor), LINE_BYTES):
                self.b.prefetch(self.b.gep("i8", pointer, self.b.i64(near)))
            if self.beyond is not None and factor == self.unroll:
                self.b.prefetch(self.b.gep("i8", pointer, self.beyond), level=2)

    def left_number(self, pointer: Value) -> Value:
        """A number of the left operand in every lane; a narrow one is widened when it is there."""
        name = self.lhs.dtype.name
        one = self.b.load(registers.memory_type(name), pointer, self.lhs.dtype.itemsize)
        return registers.from_memory(self.b, self.b.splat(one, self.lanes), name)

    def right_vector(self, pointer: Value, mask: Value | None, at: int) -> Value:
        """The `at`-th vector of a step, widened if it is narrow."""
        if mask is None:
            loaded = registers.load(self.b, self.rhs.dtype.name, pointer, self.lanes)
            return loaded if self.widening is None else self.widening.widened(loaded, at)
        type_ = vector(self.element, self.lanes)
        zero = self.b.const(type_, 0)
        name = f"llvm.masked.load.{mangle(type_)}.p0"
        return self.b.call(name, type_, [pointer, Value("i32", str(self.dtype.itemsize)), mask, zero])
