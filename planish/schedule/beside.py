"""Products of one left operand, side by side: queries, keys and values.

    k1(x, wq) -> (q) beside
    k2(x, wk) -> (k) beside
    k3(x, wv) -> (v)

Threads share out the work of all three as one: no barrier stands between them, none of the three is divided
by itself, and what lays the left operand out for them runs once. Each keeps its own panels, epilogue and
result, so nothing is concatenated, weights stay as they were, and widths and epilogues may differ.

In: the steps of a program, scheduled, without barriers; launches that other work stands between are moved to
the first of them. Out: the steps, and a line for each decision. Products stay apart where that would cost
memory, a barrier, or more work for the busiest thread.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from planish.schedule.buffers import Buffers
from planish.schedule.kernel import Axis, Kernel
from planish.schedule.plan import least_memory, with_barriers
from planish.schedule.products import TILES
from planish.schedule.program import Launch, Step, base_of, every_step
from planish.schedule.rebuild import canonical
from planish.schedule.roles import contraction_of
from planish.schedule.scalars import hinted
from planish.schedule.steps import HARDLY, heights
from planish.schedule.text import print_kernel
from planish.types import Dim, substitute, symbol

PREPARES = ("pack",), ("cast",)  # ops of the kernels that lay operands out


@dataclass(frozen=True, eq=False)
class Part:
    """A product, and the launches right before it that lay out its operands."""

    before: tuple[Launch, ...]
    product: Launch

    @property
    def launches(self) -> tuple[Launch, ...]:
        return *self.before, self.product

    @property
    def kernel(self) -> Kernel:
        return self.product.kernel

    @property
    def left(self) -> str:
        """The buffer of the left operand, as the product reads it."""
        parts = contraction_of(self.kernel)
        assert parts is not None
        names = [b.name for b in self.kernel.arguments]
        return self.product.arguments[names.index(parts.left.buffer.name)]

    @property
    def column(self) -> Axis:
        tile = self.kernel.tile
        assert tile is not None
        return next(a for a in self.kernel.shared if a.name in tile.n)

    def source(self) -> tuple[str, ...]:
        """What the left operand is: a buffer, or what a launch makes of some."""
        for one in self.before:
            if self.left in one.writes:
                return print_kernel(canonical(one.kernel)), *one.reads
        return (self.left,)

    def walk(self) -> tuple[object, ...]:
        """How the product goes through its left operand, whatever its axes are called."""
        tile, parts = self.kernel.tile, contraction_of(self.kernel)
        assert tile is not None and parts is not None
        axes = {a.name: a for a in (*self.kernel.shared, *parts.sum.axes)}
        ordered = [axes[name] for name in (*tile.m, *tile.k)]
        places = {a.name: symbol(f"place{i}", 0, a.extent - 1) for i, a in enumerate(ordered)}
        at = substitute(parts.left.buffer.offset(_known(parts.left.index)), places)
        return len(tile.m), tuple(str(a.extent) for a in ordered), str(at), parts.left.dtype, parts.sum.dtype

    def refusal(self, first: Part) -> str:
        """Why threads can't share out this product with another of the same left operand; "" if they can."""
        tile, other = self.kernel.tile, first.kernel.tile
        assert tile is not None and other is not None
        if TILES in (tile.product, other.product):
            return "tiles of the machine are set up for one product at a time"
        if any(s.name in ("share", "group") for k in (self.kernel, first.kernel) for s in k.steps):
            return "the work of one is shared out as tuning found best"
        if (tile.rows, tile.vectors, tile.lanes) != (other.rows, other.vectors, other.lanes):
            return "their register tiles differ"
        return ""


@dataclass(frozen=True)
class Saved:
    """By products side by side: bytes that are not laid out again, bytes of the most alive at once, barriers;
    and the multiply-adds of the thread that has the most of them, so and with each product by itself."""

    laid: int
    alive: int
    barriers: int
    busiest: int
    apart: int
    threads: int

    @property
    def loses(self) -> bool:
        return min(self.alive, self.barriers, self.apart - self.busiest) < 0

    def __str__(self) -> str:
        return (f"{self.laid} bytes laid out less, {self.alive} alive at once less, {self.barriers} barriers "
                f"less, {self.busiest} multiply-adds for the busiest of {self.threads} threads instead of "
                f"{self.apart}")


@dataclass
class SideBySide:
    """`fixed` are the buffers of inputs, outputs and constants."""

    buffers: Buffers
    fixed: set[str]
    hint: dict[str, int]
    threads: int
    decisions: list[str]

    def __post_init__(self) -> None:
        self.bases = self.buffers.bases
        self.scratch = {b.name for b in self.buffers.scratch}
        self.known: tuple[int, int, int] | None = None  # what the steps so far measure

    def steps(self, steps: Sequence[Step]) -> list[Step]:
        """The steps with products of one left operand side by side."""
        done = list(steps)
        for run in _runs(steps):
            for parts in self.groups(run):
                done = self.joined(done, parts)
        return done

    def groups(self, run: Sequence[Launch]) -> Iterator[list[Part]]:
        """Products of launches in a row that read the same left operand in the same way."""
        alike: dict[object, list[Part]] = {}
        for part in self.parts(run):
            alike.setdefault((part.source(), part.walk()), []).append(part)
        for parts in alike.values():
            while len(parts) > 1:
                first, *rest = parts
                refused = {p: reason for p in rest if (reason := p.refusal(first))}
                self.decisions += [_apart([first, p], reason) for p, reason in refused.items()]
                yield [first, *(p for p in rest if p not in refused)]
                parts = list(refused)

    def parts(self, run: Sequence[Launch]) -> Iterator[Part]:
        """The products that threads share, each with what prepares it."""
        for at, launch in enumerate(run):
            tile = launch.kernel.tile
            if tile is None or tile.batch or not any(a.parallel for a in launch.kernel.shared):
                continue
            start = at
            while start and self.prepares(run[start - 1], launch):
                start -= 1
            yield Part(tuple(run[start:at]), launch)

    def prepares(self, one: Launch, product: Launch) -> bool:
        own = set(one.writes) <= self.scratch and set(one.writes) <= set(product.reads)
        return own and one.kernel.ops in PREPARES

    def joined(self, steps: list[Step], parts: list[Part]) -> list[Step]:
        """The steps with the parts side by side where the first is, if that costs nothing."""
        first, *rest = parts
        waiting = [p for p in rest if not self.may_move(steps, first, p)]
        self.decisions += [_apart([first, p], "one has to wait for the other") for p in waiting]
        parts = [p for p in parts if p not in waiting]
        if len(parts) < 2:
            return steps
        made = _gathered(steps, parts)
        saved = self.saved(steps, made, parts)
        if not saved.loses:
            self.decisions.append(f"{_names(parts, ', ')}: side by side over {first.source()[-1]}, {saved}")
            return made
        self.decisions.append(_apart(parts, f"side by side: {saved}"))
        return steps

    def saved(self, steps: Sequence[Step], made: Sequence[Step], parts: Sequence[Part]) -> Saved:
        """What the second of two orders has less than the first, the parts apart there."""
        busiest, apart = self.busiest(parts), sum(self.busiest([p]) for p in parts)
        if _order(steps) == _order(made):
            return Saved(0, 0, 0, busiest, apart, self.threads)
        before, after = self.known or self.measured(steps), self.measured(made)
        laid, alive, barriers = (old - new for old, new in zip(before, after))
        saved = Saved(laid, alive, barriers, busiest, apart, self.threads)
        self.known = before if saved.loses else after
        return saved

    def measured(self, steps: Sequence[Step]) -> tuple[int, int, int]:
        """Bytes that launches write which lay operands out, the most bytes alive at once, and barriers."""
        waiting = with_barriers(steps, self.bases)
        barriers = (isinstance(s, Launch) and s.barrier for s in every_step(waiting))
        laid = [b.type for s in steps if isinstance(s, Launch) and s.kernel.ops in PREPARES
                for b in s.kernel.outputs]
        return (sum(hinted(t.size, self.hint) * t.dtype.itemsize for t in laid),
                least_memory(waiting, self.buffers, self.fixed, self.hint), sum(barriers))

    def may_move(self, steps: Sequence[Step], first: Part, part: Part) -> bool:
        """Whether a part may run as early as another before it."""
        own, ids = set(map(id, part.launches)), list(map(id, steps))
        start, end = ids.index(id(first.launches[0])), ids.index(id(part.product))
        reads, writes = self.touched(part.launches)
        read, written = self.touched([s for s in steps[start:end] if id(s) not in own])
        return not (written & (reads | writes) or read & writes)

    def touched(self, launches: Sequence[Step]) -> tuple[set[str], set[str]]:
        """The memory that launches read, and what they write."""
        reads, writes = (n for s in launches for n in s.reads), (n for s in launches for n in s.writes)
        return {base_of(n, self.bases) for n in reads}, {base_of(n, self.bases) for n in writes}

    def busiest(self, parts: Sequence[Part]) -> int:
        """Multiply-adds of the thread with the most of what threads share out as one."""
        kernel = parts[0].kernel
        tile, sums = kernel.tile, contraction_of(kernel)
        assert tile is not None and sums is not None
        width, axes = tile.vectors * tile.lanes, {a.name: a for a in kernel.shared}
        rows = self.points([axes[name] for name in tile.m])
        tall, many = heights(rows, tile.rows)
        tiles = -(-rows // tile.rows)
        panels = sum(-(-self.points([p.column]) // width) for p in parts)
        share = -(-tiles // self.threads)
        by_rows = (share * tall - max(share - many, 0)) * panels
        by_panels = rows * -(-panels // self.threads)
        fewest = by_rows if by_rows <= by_panels + (by_panels >> HARDLY) else by_panels
        return fewest * width * self.points(sums.sum.axes)

    def points(self, axes: Sequence[Axis]) -> int:
        return prod(hinted(a.extent, self.hint) for a in axes)


def _known(index: tuple) -> tuple[Dim, ...]:
    return index  # of the operands of a product, none is a scalar (roles.py)


def _runs(steps: Sequence[Step]) -> Iterator[list[Launch]]:
    """Launches with nothing else between them."""
    for is_launch, group in groupby(steps, lambda s: isinstance(s, Launch)):
        if is_launch:
            yield [s for s in group if isinstance(s, Launch)]


def _names(parts: Sequence[Part], between: str) -> str:
    return between.join(p.kernel.name for p in parts)


def _apart(parts: Sequence[Part], reason: str) -> str:
    return f"{_names(parts, ' | ')}: apart, {reason}"


def _order(steps: Sequence[Step]) -> list[int]:
    return [id(s.kernel if isinstance(s, Launch) else s) for s in steps]


def _gathered(steps: Sequence[Step], parts: Sequence[Part]) -> list[Step]:
    """The steps with parts where the first of them was: what prepares them, each thing once, then the
    products."""
    made: dict[tuple[str, ...], Launch] = {}
    same: dict[str, str] = {}
    for one in (s for p in parts for s in p.before):
        first = made.setdefault((print_kernel(canonical(one.kernel)), *one.reads), one)
        same |= zip(one.writes, first.writes)
    products = [replace(p.product, arguments=tuple(same.get(n, n) for n in p.product.arguments),
                        beside=p is not parts[-1]) for p in parts]
    moving = {id(s) for p in parts for s in p.launches}
    at = next(i for i, s in enumerate(steps) if id(s) in moving)
    rest = [s for s in steps[at:] if id(s) not in moving]
    return [*steps[:at], *made.values(), *products, *rest]
