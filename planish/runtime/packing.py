"""Panels of many constants, packed by native code on all threads.

In: parameters of `schedule.packing.packed` with the arrays they are of, and zeroed memory. Out: the panels in
it: most of the time of packing is the first touch of its pages.

Element (panel, k, lane) goes from `source + (panel * width + lane) * lane_step + offsets[k]` to
`target + panel * panel_bytes + lane * lane_place + places[k]`, all in bytes. Every thread fills its share of
each job's panels. Where lanes are neighbours in the source, rows are read in blocks of k from left to right,
so that no page is left before it is used; else lane by lane, of which a cache line holds a block of k.
"""
from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from planish.codegen.llvm.builder import Builder, Module, Value
from planish.schedule.packing import filled

BLOCK = 16                  # steps of k that are packed together
CHUNK = 16                  # bytes of a vector that is copied
LARGE = 2 << 20             # bytes of memory that is mapped for itself
LINE = 64
COMMON, OTHERS = (4,), (1, 2, 8)  # sizes of elements there is code for, in the runtime and beside it
ITEMS = COMMON + OTHERS
SCALED = 4                  # of those that may have a scale: float32


class Job(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in (
        "target", "source", "panels", "columns", "width", "depth", "offsets", "places", "lane_step",
        "lane_place", "panel_bytes", "item", "scale")]


class JobList(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("jobs", ctypes.c_void_p)]


def units_of(parameters: tuple[Any, ...], *, is_scaled: bool) -> int:
    """How many units a packing can be cut into, each of which reads weights that lie together: steps of k
    where lanes are neighbours there, else panels."""
    _, sizes, _, width, *_ = parameters
    return prod(sizes[1:]) if _is_by_steps(parameters, is_scaled) else -(-sizes[0] // width)


def _is_by_steps(parameters: tuple[Any, ...], is_scaled: bool) -> bool:
    _, _, strides, _, pair, _ = parameters
    return strides[0] == 1 and pair == 1 and not is_scaled


def pack_into(targets: Sequence[np.ndarray], jobs: Sequence[tuple[Any, ...]], threads: int,
              shares: Sequence[tuple[int, int]] | None = None) -> None:
    """Fill the panels of every (parameters, array) or, of float32, (parameters, array, scale of each
    column); with `shares` these units of each alone, from the first up to the last."""
    from planish.runtime.native import runtime

    arrays = [[np.ascontiguousarray(a) for a in some] for _, *some in jobs]
    kept: list[np.ndarray] = []
    shares = shares or [(0, units_of(p, is_scaled=len(some) > 1)) for p, *some in jobs]
    made = [_job(p, some, target, share, kept)
            for (p, *_), some, target, share in zip(jobs, arrays, targets, shares)]
    run = runtime()
    for image, items in (("runtime", COMMON), ("packing", OTHERS)):
        own = [job for job in made if job.item in items]
        if own:
            table = (Job * len(own))(*own)
            frame = JobList(len(own), ctypes.addressof(table))
            pack = run.image(image).address("planish_pack")
            run.parallel(pack, ctypes.addressof(frame), threads)


def _job(parameters: tuple[Any, ...], arrays: list[np.ndarray], target: np.ndarray, share: tuple[int, int],
         kept: list[np.ndarray]) -> Job:
    start, sizes, strides, width, pair, whole = parameters
    source, (first, last), columns = arrays[0], share, sizes[0]
    item = source.itemsize
    offsets = _table(sizes[1:], strides[1:])
    depths = (*sizes[1:-1], filled(sizes[-1], pair, whole))
    steps = _table(sizes[1:], [prod(depths[k + 1:]) for k in range(len(depths))])
    places = (steps - steps % pair) * width + steps % pair
    if _is_by_steps(parameters, len(arrays) > 1):
        offsets, places, begin = offsets[first:last], places[first:last], 0
    else:
        target, begin = target[first:last], first * width
        columns = min(columns, last * width) - begin
    tables = [offsets * item, places * item]
    kept += tables
    scale = arrays[1].ctypes.data + begin * item if len(arrays) > 1 else 0
    return Job(target.ctypes.data, source.ctypes.data + (start + begin * strides[0]) * item, target.shape[0],
               columns, width, len(offsets), *(t.ctypes.data for t in tables), strides[0] * item, pair * item,
               prod(depths) * width * item, item, scale)


def _table(sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Where each step of a nest of axes lies."""
    found = np.zeros(1, np.int64)
    for size, stride in zip(sizes, strides):
        found = (found[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return found


# --- arrays in one piece of memory

Wanted = Sequence[tuple[tuple[int, ...], np.dtype]]


def whole_lines(size: int) -> int:
    """Bytes up to the end of a line."""
    return -(-size // LINE) * LINE


def bytes_of(wanted: Wanted) -> int:
    """Those of arrays that lie one behind the other, each on lines of its own."""
    return sum(whole_lines(prod(shape) * dtype.itemsize) for shape, dtype in wanted)


def arrays_over(memory: np.ndarray, wanted: Wanted) -> list[np.ndarray]:
    """The arrays that lie so in memory that begins on a line."""
    found, at = [], 0
    for shape, dtype in wanted:
        size = prod(shape) * dtype.itemsize
        found.append(memory[at:at + size].view(dtype).reshape(shape))
        at += whole_lines(size)
    return found


def zeroed(total: int) -> np.ndarray:
    """Fresh bytes that begin on a line. Huge pages are not asked for: where first touches of free ones go to
    a virtual machine's host, packing took three times as long."""
    if total < LARGE:
        memory = np.zeros(total + LINE, np.uint8)
    else:
        mapping = mmap.mmap(-1, total + LINE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = np.frombuffer(mapping, np.uint8)
    at = -memory.ctypes.data % LINE
    return memory[at:at + total]


# --- the native code

def ir(triple: str, items: Sequence[int]) -> str:
    """The module that exports void planish_pack(ptr list, i64 tid, i64 threads), for elements of these
    sizes."""
    module = Module(triple)
    for item in items:
        _write_pack(module, item)
    _write_body(module, items)
    return str(module)


def _write_body(module: Module, items: Sequence[int]) -> None:
    b = module.function("planish_pack", [("ptr", "list"), ("i64", "tid"), ("i64", "threads")])
    frame, tid, threads = b.parameters
    jobs = b.load("ptr", b.gep("i8", frame, b.i64(JobList.jobs.offset)), 8)
    each = b.loop(b.i64(0), b.load("i64", frame, 8), b.i64(1))
    job = b.gep("i8", jobs, b.mul(each.index, b.i64(ctypes.sizeof(Job))))
    panels = _field(b, job, "panels")
    bounds = [b.bin("sdiv", b.mul(panels, t), threads) for t in (tid, b.add(tid, b.i64(1)))]
    size = _field(b, job, "item")
    for item in items:
        fits = b.when(b.cmp("icmp eq", size, b.i64(item)))
        b.call(f"pack{item}", "void", [job, *bounds])
        fits.end()
    each.end()
    b.ret()


def _field(b: Builder, job: Value, name: str) -> Value:
    return b.load("i64", b.gep("i8", job, b.i64(getattr(Job, name).offset)), 8)


class _Packer:
    """Writes the packing of panels `first` to `last` of a job."""

    def __init__(self, module: Module, item: int, name: str):
        self.item, self.type = item, f"i{8 * item}"
        self.b = b = module.function(name, [("ptr", "job"), ("i64", "first"), ("i64", "last")],
                                     linkage="internal")
        job, self.first, self.last = b.parameters
        names = ("columns", "width", "depth", "lane_step", "lane_place", "panel_bytes")
        self.columns, self.width, self.depth, self.lane_step, self.lane_place, self.panel_bytes = (
            _field(b, job, n) for n in names)
        self.target, self.source, self.offsets, self.places, self.scale = (
            b.cast("inttoptr", _field(b, job, n), "ptr")
            for n in ("target", "source", "offsets", "places", "scale"))

    def panel(self, index: Value) -> tuple[Value, Value, Value]:
        """Of a panel: its source, its target, and how many of its lanes there are."""
        b = self.b
        column = b.mul(index, self.width)
        source = b.gep("i8", self.source, b.mul(column, self.lane_step))
        lanes = b.intrinsic("smin", self.width, b.bin("sub", self.columns, column))
        return source, b.gep("i8", self.target, b.mul(index, self.panel_bytes)), lanes

    def ends(self, source: Value, target: Value, k: Value) -> tuple[Value, Value]:
        """The two addresses of step k."""
        b = self.b
        offset, place = (b.load("i64", b.gep("i64", t, k), 8) for t in (self.offsets, self.places))
        return b.gep("i8", source, offset), b.gep("i8", target, place)

    def block_end(self, start: Value) -> Value:
        return self.b.intrinsic("smin", self.depth, self.b.add(start, self.b.i64(BLOCK)))

    def rows(self) -> None:
        """Lanes that are neighbours in the source and in the target."""
        b = self.b
        block = b.loop(b.i64(0), self.depth, b.i64(BLOCK))
        stop = self.block_end(block.index)
        panel = b.loop(self.first, self.last, b.i64(1))
        source, target, lanes = self.panel(panel.index)
        bytes_ = b.mul(lanes, b.i64(self.item))
        whole = b.bin("and", bytes_, b.i64(-CHUNK))
        step = b.loop(block.index, stop, b.i64(1))
        old, new = self.ends(source, target, step.index)
        for begin, end, size in ((b.i64(0), whole, CHUNK), (whole, bytes_, self.item)):
            type_ = f"<{CHUNK} x i8>" if size == CHUNK else self.type
            chunk = b.loop(begin, end, b.i64(size))
            b.store(b.load(type_, b.gep("i8", old, chunk.index)), b.gep("i8", new, chunk.index))
            chunk.end()
        for loop in (step, panel, block):
            loop.end()

    def lanes(self, is_scaled: bool = False) -> None:
        """Lanes that lie apart; with `is_scaled` of float32, times the scale of their column."""
        b = self.b
        panel = b.loop(self.first, self.last, b.i64(1))
        source, target, lanes = self.panel(panel.index)
        block = b.loop(b.i64(0), self.depth, b.i64(BLOCK))
        stop = self.block_end(block.index)
        lane = b.loop(b.i64(0), lanes, b.i64(1))
        from_, to = (b.gep("i8", base, b.mul(lane.index, step))
                     for base, step in ((source, self.lane_step), (target, self.lane_place)))
        column = b.add(b.mul(panel.index, self.width), lane.index)
        factor = b.load("float", b.gep("float", self.scale, column)) if is_scaled else None
        step = b.loop(block.index, stop, b.i64(1))
        old, new = self.ends(from_, to, step.index)
        if factor is None:
            b.store(b.load(self.type, old), new)
        else:
            b.store(b.bin("fmul", b.load("float", old), factor), new)
        for loop in (step, lane, block, panel):
            loop.end()


def _write_pack(module: Module, item: int) -> None:
    """pack(job, first, last): by rows, or by lanes with a scale or without."""
    packer = _Packer(module, item, f"pack{item}")
    b = packer.b
    if item == SCALED:
        scaled = b.when(b.cmp("icmp ne", packer.scale, Value("ptr", "null")))
        packer.lanes(is_scaled=True)
        b.ret()
        b.place(scaled.exit)
    size = b.i64(item)
    close = b.bin("and", b.cmp("icmp eq", packer.lane_step, size), b.cmp("icmp eq", packer.lane_place, size))
    neighbours = b.when(close)
    packer.rows()
    b.ret()
    b.place(neighbours.exit)
    packer.lanes()
    b.ret()
