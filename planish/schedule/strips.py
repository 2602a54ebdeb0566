"""Chains of kernels whose rows are independent: a thread takes its rows through all of them.

    for t in 2 parallel {           two strips of 32 rows
      k0(x_t, w0) -> (a_t)
      k1(a_t, w1) -> (b_t)
    }

No thread waits between k0 and k1, and what one hands to the other stays in the cache of its core. A kernel is
cut along its outermost axis, where all it writes lies along that axis with no other outside of it: equal
parts of the axis are then equal parts of memory, and it matters not that the next kernel calls them otherwise
(128 rows here, 16384 elements there). What it reads is cut alike, or read whole; what the chain itself writes
must be cut alike.

In: the kernels of a graph in order, fused and laid out, of known sizes. Out: which of them are chains
(`runs`), and the kernel of one strip (`Cut.strip`), which is scheduled as any other. As many strips are made
as the machine has threads, whatever number later runs them, and what a row comes to does not depend on its
strip: results are the same for any number of threads.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from planish.ir.node import Node
from planish.schedule.access import Access, kernel_accesses
from planish.schedule.attention_points import is_attention
from planish.schedule.buffers import Buffers
from planish.schedule.kernel import (
    Axis,
    Buffer,
    Index,
    Kernel,
    Sort,
    own_dims,
    stage_axes,
    stage_values,
    walk,
)
from planish.schedule.rebuild import is_scalar, replace_buffers, substitute_axes
from planish.schedule.roles import contraction_of
from planish.types import Dim, TensorType, is_static, symbols_of

LEAST_ROWS = 16       # of a strip of a product: its weights are read once for so many
MOST_WEIGHTS = 32 << 20  # bytes of weights that are packed before a chain: they are all there until its end
LEAST_WORK = 1 << 16  # multiply-adds, or points, of a strip that are worth a thread
MOST_WORK = 1 << 22   # multiply-adds of a strip of a product of constants: beside it a barrier is little


@dataclass(frozen=True)
class Cut:
    """A kernel to be cut along `axis`, and with it the buffers called `cut`; the others it reads whole."""

    kernel: Kernel
    axis: Axis
    cut: frozenset[str]

    def strip(self, count: int, counter: Dim, buffers: Buffers) -> Kernel:
        """The kernel of strip `counter` of `count`; its buffers are slices, which are entered in
        `buffers`."""
        assert is_static(self.axis.extent)
        axis = replace(self.axis, extent=self.axis.extent // count)
        kernel = substitute_axes(self.kernel, {axis.name: axis.symbol})
        shared = tuple(axis if a.name == axis.name else a for a in kernel.shared)
        pieces = {b.name: _piece(b, count, counter, buffers) for b in kernel.arguments if b.name in self.cut}
        return replace(replace_buffers(kernel, pieces), shared=shared)


def _piece(buffer: Buffer, count: int, counter: Dim, buffers: Buffers) -> Buffer:
    """One of `count` equal parts of a buffer's memory."""
    place = _outermost(buffer)
    assert place is not None
    size = buffer.shape[place]
    assert is_static(size)
    shape = (*buffer.shape[:place], size // count, *buffer.shape[place + 1:])
    type_ = TensorType(buffer.dtype, shape)
    piece = replace(buffer, name=f"{buffer.name}_{counter}", type=type_)
    if piece.name not in buffers.slices:
        buffers.add(piece)
        buffers.slices[piece.name] = buffers.owner(buffer.name), counter * (type_.size * type_.dtype.itemsize)
    return piece


def runs(kernels: Sequence[Kernel | Node], count: int,
         buffers: Buffers) -> Iterator[list[Cut] | Kernel | Node]:
    """The kernels in order, those of a chain together."""
    run: list[Cut] = []
    for kernel in kernels:
        cut = None if isinstance(kernel, Node) else cut_of(kernel, count, buffers)
        if cut is None or not _follows(cut, run, buffers) or _weights([*run, cut], buffers) > MOST_WEIGHTS:
            yield from _chain(run, count, buffers)
            run = []
        if cut is None:
            yield kernel
        else:
            run.append(cut)
    yield from _chain(run, count, buffers)


def _chain(run: list[Cut], count: int, buffers: Buffers) -> Iterator[list[Cut] | Kernel]:
    """A run as a chain if it saves a barrier and has work for every thread; else its kernels."""
    if barriers(run, buffers) and sum(_work(c.kernel) for c in run) >= LEAST_WORK * count:
        yield run
    else:
        yield from (c.kernel for c in run)


def barriers(run: Sequence[Cut], buffers: Buffers) -> int:
    """How many kernels of a run read what one before them wrote, since the last that did."""
    written: set[str] = set()
    found = 0
    for one in run:
        if written & {buffers.owner(b.name) for b in one.kernel.inputs}:
            found, written = found + 1, set()
        written |= {buffers.owner(b.name) for b in one.kernel.outputs}
    return found


def told(run: Sequence[Cut], count: int, buffers: Buffers) -> str:
    """The decision as the report has it: kernels, barriers saved, and bytes that stay with a thread."""
    written = {buffers.owner(b.name): b for c in run for b in c.kernel.outputs}
    read = {buffers.owner(b.name) for c in run for b in c.kernel.inputs}
    kept = sum(b.type.size * b.dtype.itemsize for name, b in written.items()
               if name in read and is_static(b.type.size))
    return (f"{run[0].kernel.name} to {run[-1].kernel.name}: {count} strips of {len(run)} kernels, "
            f"{barriers(run, buffers)} barriers less, {kept} bytes from kernel to kernel on one thread")


def _follows(cut: Cut, run: Sequence[Cut], buffers: Buffers) -> bool:
    """Whether a kernel reads what the run has written at its own rows only."""
    written = {buffers.owner(b.name) for c in run for b in c.kernel.outputs}
    whole = (b.name for b in cut.kernel.inputs if b.name not in cut.cut)
    return written.isdisjoint(map(buffers.owner, whole))


def _weights(run: Sequence[Cut], buffers: Buffers) -> int:
    """Bytes of what the products of a run read whole at each call, which may have to be packed."""
    products = [c for c in run if contraction_of(c.kernel)]
    whole = {b.name: b for c in products for b in c.kernel.inputs if b.name not in c.cut}
    return sum(b.type.size * b.dtype.itemsize for b in whole.values()
               if is_static(b.type.size) and not buffers.is_constant(b))


def cut_of(kernel: Kernel, count: int, buffers: Buffers) -> Cut | None:
    """How a kernel is cut in `count` strips; None where it can't be, or a strip would have too few rows."""
    if kernel.serial or kernel.symbols or is_attention(kernel):
        return None
    if any(isinstance(s, Sort) for s in kernel.stages):
        return None
    stores = [a for a in kernel_accesses(kernel) if a.is_store and a.buffer in kernel.outputs]
    axis = next((a for a in kernel.shared if all(_is_along(s, a) for s in stores)), None)
    if axis is None or not is_static(axis.extent) or axis.extent % count:
        return None
    if _moves_otherwise(kernel, axis) or not _suits(kernel, axis, count, buffers):
        return None
    along = [_is_along(a, axis) for a in kernel_accesses(kernel)]
    names = [a.buffer.name for a in kernel_accesses(kernel)]
    cut = frozenset(n for n, is_along in zip(names, along) if is_along)
    whole = {n for n, is_along in zip(names, along) if not is_along}
    return None if cut & whole else Cut(kernel, axis, cut)


def _outermost(buffer: Buffer) -> int | None:
    """The axis of a buffer that has no other outside of it, but those of size 1."""
    order = buffer.order or tuple(range(len(buffer.shape)))
    return next((k for k in order if buffer.shape[k] != 1), None)


def _is_along(access: Access, axis: Axis) -> bool:
    """Whether a place is that of the axis in the buffer's outermost one."""
    place = _outermost(access.buffer)
    return place is not None and access.buffer.shape[place] == axis.extent \
        and access.index[place] == axis.symbol


def _moves_otherwise(kernel: Kernel, axis: Axis) -> bool:
    """Whether the axis counts for more than the outermost place of accesses: for another place, a number,
    the length of a loop."""
    dims: list[Dim] = [a.extent for s in kernel.stages for a in stage_axes(s)]
    dims += [x.dim for s in kernel.stages for x in walk(*stage_values(s)) if isinstance(x, Index)]
    for access in kernel_accesses(kernel):
        place = _outermost(access.buffer) if _is_along(access, axis) else None
        dims += [i for k, i in enumerate(access.index) if k != place and not is_scalar(i)]
    return any(axis.name in symbols_of(d) for d in dims)


def _suits(kernel: Kernel, axis: Axis, count: int, buffers: Buffers) -> bool:
    """Whether a product has enough rows in a strip, and one operand that all strips read whole: weights. In a
    large product of constant weights threads rather take over one another's units."""
    parts = contraction_of(kernel)
    if parts is None:
        return True
    names = [{name for d in own_dims(x) for name in symbols_of(d)} for x in (parts.left, parts.right)]
    whole = [fixed for fixed in names if axis.name not in fixed]
    if len(whole) != 1:
        return False
    moves_left = axis.name in names[0]
    moving, weights = (parts.left, parts.right) if moves_left else (parts.right, parts.left)
    if buffers.is_constant(weights.buffer) and _work(kernel) > MOST_WORK * count:
        return False
    rows = prod(a.extent for a in kernel.shared if a.name not in whole[0] and is_static(a.extent))
    return not buffers.is_constant(moving.buffer) and rows >= LEAST_ROWS * count


def _work(kernel: Kernel) -> int:
    """Points of a kernel's stages."""
    inside = sum(prod(a.extent for a in stage_axes(s) if is_static(a.extent)) for s in kernel.stages)
    return prod((a.extent for a in kernel.shared if is_static(a.extent)), start=inside)
