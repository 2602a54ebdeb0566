"""Which steps a kernel gets.

In: a fused kernel. Out: the same kernel scheduled: axes collapsed, loops jammed, one axis vectorised,
reductions unrolled, outer axes shared out among threads, large results streamed past the caches, long chains
of operations overlapped.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from planish.schedule import steps
from planish.schedule.access import Access, accesses, depends_on, stride_along
from planish.schedule.choice import ANALYTIC, Choice
from planish.schedule.distribute import TRANSCENDENTAL, distribute
from planish.schedule.kernel import (
    Apply,
    Axis,
    Kernel,
    Load,
    Scalar,
    Sort,
    Stage,
    stage_axes,
    stage_values,
    walk,
)
from planish.schedule.machine import Machine
from planish.schedule.rebuild import is_scalar
from planish.schedule.scalars import hinted
from planish.types import Dim, bounds, is_static, substitute

OPEN = 2            # axes of open sizes that are shared out at most: each costs a division a point
GRAIN = 8           # parallel points per thread that are enough to even out their cost
COLUMNS = 4         # registers of columns that are reduced side by side: independent sums, whole cache lines
REDUCE_UNROLL = 4   # accumulators of a reduction: latency 4 of an addition, hidden
HEAVY = 12          # pointwise ops from which one vector at a time keeps the units busy
PAGE = 4096         # bytes ahead that large inputs are asked for beside reductions
AHEAD = 2048        # and where there is none
PIECE = 64          # points of the vector axis in one piece, when pieces are shared out
LINE = 64           # bytes of a cache line
SMALL = 16 << 10    # elements below which a kernel stays on one thread
PARTS = 3           # of an overlapped chain: each waits for a third of its latency
TURNS = 64          # that a loop should have to be overlapped: it makes PARTS - 1 more
NARROW_WAISTS = {"gate"}  # ops of long chains with places that few values cross: registers hold those


def schedule_loops(kernel: Kernel, machine: Machine, hint: dict[str, int],
                   choice: Choice = ANALYTIC) -> Kernel:
    """Schedule a kernel that has no structured body; `choice` may say what is else decided here."""
    if choice.threads is False:
        machine = replace(machine, threads=1)
    if kernel.serial:
        return _vectorize_rows(kernel, machine, hint)
    if any(isinstance(s, Sort) for s in kernel.stages):
        return share_out(kernel, hint, machine)
    kernel = _interchange(steps.jam(steps.collapse(kernel)), machine, hint)
    if choice.distribute is not False:
        kernel = distribute(kernel) or kernel
    kernel = _vectorize(kernel, machine, hint, choice)
    kernel = share_out(kernel, hint, machine)
    if choice.stream is not False:
        kernel = _stream(kernel, machine, hint)
    return _overlap(_pipeline(kernel, machine, hint), hint)


# --- order of loops

def _interchange(kernel: Kernel, machine: Machine, hint: dict[str, int]) -> Kernel:
    """A map that reads along one axis and writes along another goes by strips of whole cache lines of
    both."""
    if _loops(kernel) or len(kernel.shared) < 2:
        return kernel
    *outer, last = kernel.shared
    strip = LINE // min(b.dtype.itemsize for b in kernel.arguments)
    if _size(last, hint) < strip:
        return kernel
    across = [a for a in outer if _size(a, hint) >= strip and _reads_along(kernel, a.name, last.name)]
    if not across:
        return kernel
    axis = max(across, key=lambda a: _size(a, hint))
    kernel = steps.tile(kernel, axis, strip)
    inner = f"{axis.name}i"
    names = [a.name for a in kernel.shared if a.name != inner]
    return steps.interchange(kernel, (*names, inner))


def _reads_along(kernel: Kernel, axis: str, other: str) -> bool:
    """Whether some load has its neighbours along `axis` and none along `other`."""
    loads = [a for s in kernel.stages for a in accesses(s) if not a.is_store]
    return any(stride_along(a, axis) == 1 and stride_along(a, other) not in (0, 1) for a in loads)


# --- vectors

def _vectorize(kernel: Kernel, machine: Machine, hint: dict[str, int], choice: Choice) -> Kernel:
    loops = _loops(kernel)
    scans = any(s.running for s in loops)
    outer = kernel.shared[-1] if kernel.shared else None
    lanes = 0 if outer is None else _lanes(kernel, machine, _size(outer, hint))
    if outer is not None and not kernel.rows and _size(outer, hint) >= lanes and (
            not loops or scans or _cost(kernel, outer.name) < _inner_cost(kernel)):
        taps = _taps(kernel, machine)
        if taps is not None:
            return _several_places(kernel, taps, machine, hint)
        kernel, name = _cut_for_threads(kernel, outer, machine)
        reduces = any(s.combine for s in loops)
        if reduces and _size(outer, hint) >= 8 * machine.lanes:
            lanes = max(lanes, COLUMNS * machine.lanes)
        return steps.vectorize(kernel, name, choice.lanes or lanes)
    for name in dict.fromkeys(s.axes[-1].name for s in loops if not s.running):
        jammed = [s for s in loops if s.axes[-1].name == name]
        lanes = _lanes(kernel, machine, _size(jammed[0].axes[-1], hint), jammed)
        if _size(jammed[0].axes[-1], hint) < lanes:
            continue
        lanes = choice.lanes or lanes
        kernel = steps.vectorize(kernel, name, lanes)
        factor = _unroll(jammed, _size(jammed[0].axes[-1], hint), lanes, choice.unroll)
        if factor > 1:
            kernel = steps.unroll(kernel, name, factor)
    return kernel


def _vectorize_rows(kernel: Kernel, machine: Machine, hint: dict[str, int]) -> Kernel:
    """The maps of a serial kernel that go along rows: copies, and rows joined with the rows of an index."""
    for stage in _loops(kernel):
        axis, store = stage.axes[-1], stage.store
        lanes = _lanes(kernel, machine, _size(axis, hint), [stage])
        if stage.combine or store is None or _size(axis, hint) < lanes:
            continue
        is_row = stride_along(Access(store.buffer, store.index, True), axis.name) == 1
        is_guarded = store.guard is not None and depends_on(store.guard, axis.name)
        if is_row and not is_guarded and all(stride_along(a, axis.name) in (0, 1) for a in accesses(stage)):
            kernel = steps.vectorize(kernel, axis.name, lanes)
    return kernel


def _taps(kernel: Kernel, machine: Machine) -> Axis | None:
    """The innermost axis of windows over channels, a reduction with nothing but points after it, when it is
    short and its weights are the same from place to place."""
    first, *rest = kernel.stages
    if len(kernel.shared) < 2 or not isinstance(first, Stage) or not first.combine or first.running:
        return None
    if not first.axes or any(stage_axes(s) for s in rest) or not all(is_static(a.extent) for a in first.axes):
        return None
    taps, place = first.axes[-1], kernel.shared[-2]
    loads = [a for a in accesses(first) if not a.is_store]
    moving = [a for a in loads if stride_along(a, place.name) != 0]
    known = all(stride_along(a, name) is not None for a in loads for name in (place.name, taps.name))
    fits = is_static(taps.extent) and 1 < taps.extent <= machine.registers // 2
    return taps if known and fits and 0 < len(moving) < len(loads) else None


def _several_places(kernel: Kernel, taps: Axis, machine: Machine, hint: dict[str, int]) -> Kernel:
    """Windows over channels: one register of channels at several neighbouring places, which share the weights
    and, where their windows overlap, what they read. The taps of the innermost axis are written out: their
    weights, one accumulator a place and what is read fit into the registers. Few rows are shared out by
    groups of channels too."""
    channels, place, width = kernel.shared[-1], kernel.shared[-2], taps.extent
    assert is_static(width)
    rows = prod(_size(a, hint) for a in kernel.shared[:-2])
    count, name = channels.extent, channels.name
    is_long = is_static(count) and count >= 2 * PIECE and count % machine.lanes == 0
    if machine.threads > 1 and rows < GRAIN * machine.threads and is_long:
        kernel = steps.tile(kernel, channels, PIECE)
        *outer, places, pieces, inside = kernel.shared
        kernel = steps.interchange(kernel, tuple(a.name for a in (pieces, *outer, places, inside)))
        name = inside.name
    kernel = steps.vectorize(kernel, name, machine.lanes)
    most = min(machine.registers // 2, machine.registers - width - 2)
    at_once = steps.even_size(place.extent, most) if is_static(place.extent) else most
    return steps.unroll(steps.unroll(kernel, place.name, at_once), taps.name, width)


def _cut_for_threads(kernel: Kernel, axis: Axis, machine: Machine) -> tuple[Kernel, str]:
    """Where the axes around the vector axis may have too few points for the threads, cut it into pieces that
    can be shared out; and the name of the axis inside a piece."""
    around = prod((max(bounds(a.extent)[0] or 1, 1) for a in kernel.shared[:-1]), start=1)
    is_long = is_static(axis.extent) and axis.extent >= 4 * PIECE
    if len(kernel.shared) == 1 or not is_long or around >= 2 * machine.threads or machine.threads == 1:
        return kernel, axis.name
    kernel = steps.tile(kernel, axis, PIECE)
    return kernel, kernel.shared[-1].name


def _lanes(kernel: Kernel, machine: Machine, size: int, loop: Sequence[Stage] = ()) -> int:
    """One float32 register's worth; four where long chains of dependent operations leave the units idle, two
    in loops beside such ones; of bytes only, a whole register."""
    widths = {b.dtype.itemsize for b in (*kernel.arguments, *kernel.rows)}
    if widths == {1} and not _computes_wide(kernel):
        return machine.vector_bytes
    if not _has_chains(kernel) or size < machine.lanes * 8:
        return machine.lanes
    return machine.lanes * (2 if loop and not any(map(_is_chain, walk(*_values(loop)))) else 4)


def _has_chains(kernel: Kernel) -> bool:
    return any(map(_is_chain, _scalars(kernel)))


def _is_chain(scalar: Scalar) -> bool:
    return isinstance(scalar, Apply) and scalar.op in TRANSCENDENTAL


def _computes_wide(kernel: Kernel) -> bool:
    return any(x.dtype.itemsize > 1 for x in _scalars(kernel))


def _unroll(stages: list[Stage], size: int, lanes: int, told: int) -> int:
    if not any(s.combine for s in stages):
        return 1
    scalars = list(walk(*_values(stages)))
    work = sum(isinstance(x, Apply) for x in scalars)
    most = 1 if any(map(_is_chain, scalars)) else REDUCE_UNROLL if work < HEAVY else REDUCE_UNROLL // 2
    wanted = told or most
    while wanted > 1 and size < wanted * lanes:
        wanted //= 2
    return wanted


def _size(axis: Axis, hint: dict[str, int]) -> int:
    """Points of an axis, for estimates; one whose extent depends on outer axes counts as long."""
    try:
        return hinted(axis.extent, hint)
    except KeyError:
        return 1 << 20


def _cost(kernel: Kernel, axis: str) -> float:
    """What the accesses cost when `axis` is the vector: neighbours are cheap, anything else is one access a
    lane."""
    return sum(_access_cost(stride_along(a, axis)) for s in kernel.stages for a in accesses(s))


def _inner_cost(kernel: Kernel) -> float:
    return sum(_access_cost(stride_along(a, s.axes[-1].name)) for s in _loops(kernel) for a in accesses(s))


def _access_cost(stride: Dim | None) -> float:
    if stride == 0:
        return 0.25
    if isinstance(stride, int) and 1 <= stride <= 4:
        return stride  # whole vectors and a shuffle
    return 8


# --- threads

def share_out(kernel: Kernel, hint: dict[str, int], machine: Machine) -> Kernel:
    """Share out leading axes until there are points enough, open sizes counted as small as they may be; the
    vector axis only when it stands alone."""
    work = max((prod(hinted(d, hint) for d in b.shape) for b in kernel.arguments), default=0)
    if machine.threads == 1 or not kernel.shared:
        return kernel
    if work < SMALL and all(is_static(d) for b in kernel.arguments for d in b.shape):
        return kernel
    chosen: list[Axis] = []
    points = 1
    for axis in kernel.shared:
        is_open = sum(not is_static(a.extent) for a in chosen) >= OPEN
        is_inner = (axis.lanes > 1 and len(kernel.shared) > 1) or axis.unroll > 1
        if is_inner or points >= GRAIN * machine.threads or is_open:
            break
        chosen.append(axis)
        points *= max(bounds(axis.extent)[0] or 1, 1)
    return steps.parallel(kernel, [a.name for a in chosen])


# --- results larger than the caches

def _stream(kernel: Kernel, machine: Machine, hint: dict[str, int]) -> Kernel:
    """Stores of whole, aligned vectors into a result that would push everything else out of the caches."""
    for stage in kernel.stages:
        store = stage.store if isinstance(stage, Stage) else None
        if store is None or store.buffer.space != "global" or store.update or store.guard is not None:
            continue
        buffer = store.buffer
        bytes_ = prod(hinted(d, hint) for d in buffer.shape) * buffer.dtype.itemsize
        vector = next((a for a in (*kernel.shared, *stage_axes(stage)) if a.lanes > 1), None)
        if vector is None or bytes_ < max(machine.l3, 2 << 20) or _reads(kernel, buffer.name):
            continue
        whole = vector.lanes * buffer.dtype.itemsize % 16 == 0
        if whole and _starts_vectors(Access(buffer, store.index), vector):
            kernel = steps.stream(kernel, buffer.name)
    return kernel


def _starts_vectors(access: Access, vector: Axis) -> bool:
    """Whether the access walks the vector axis in order, from a multiple of the vector's lanes."""
    if any(map(is_scalar, access.index)) or stride_along(access, vector.name) != 1:
        return False
    start = substitute(access.buffer.offset(access.index), {vector.name: 0})
    return start % vector.lanes == 0


def _pipeline(kernel: Kernel, machine: Machine, hint: dict[str, int]) -> Kernel:
    """Where elements are worked on for long, later ones are asked for meanwhile: the machine's own prefetcher
    stops at the end of a page. Kernels without such work get slower by it."""
    if not _has_chains(kernel):
        return kernel
    distance = PAGE if any(s.combine for s in _loops(kernel)) else AHEAD
    vectors = [a.name for s in kernel.stages for a in (*kernel.shared, *stage_axes(s)) if a.lanes > 1]
    for buffer in kernel.inputs:
        bytes_ = prod(hinted(d, hint) for d in buffer.shape) * buffer.dtype.itemsize
        loads = [x for x in _scalars(kernel) if isinstance(x, Load) and x.buffer == buffer]
        strides = {stride_along(Access(x.buffer, x.index), v) for x in loads for v in vectors}
        if bytes_ >= 4 * machine.l2 and 1 in strides:
            kernel = steps.pipeline(kernel, buffer.name, distance)
    return kernel


# --- chains of dependent operations

def _overlap(kernel: Kernel, hint: dict[str, int]) -> Kernel:
    """A core starts operations as their operands come, out of some hundred that wait. A longer chain leaves
    it idle, unless parts of it wait for less."""
    axis = kernel.shared[-1] if kernel.shared else None
    if axis is None or axis.lanes == 1 or _loops(kernel) or not kernel.stages:
        return kernel
    chains = [x for x in _scalars(kernel) if isinstance(x, Apply) and _is_chain(x)]
    is_cut_well = len(chains) == 1 and chains[0].op in NARROW_WAISTS and chains[0].dtype.itemsize <= 4
    has_turns = _size(axis, hint) >= TURNS * axis.lanes
    changes_input = any(_reads(kernel, b.name) for b in kernel.outputs)
    if not is_cut_well or not has_turns or changes_input:
        return kernel
    return steps.overlap(kernel, axis.name, PARTS)


def _reads(kernel: Kernel, name: str) -> bool:
    return any(isinstance(x, Load) and x.buffer.name == name for x in _scalars(kernel))


# --- parts of a kernel

def _loops(kernel: Kernel) -> list[Stage]:
    """The stages that have loops of their own."""
    return [s for s in kernel.stages if isinstance(s, Stage) and s.axes]


def _values(stages: Sequence[Stage]) -> list[Scalar]:
    return [v for s in stages for v in stage_values(s)]


def _scalars(kernel: Kernel) -> Iterator[Scalar]:
    for stage in kernel.stages:
        yield from walk(*stage_values(stage))
