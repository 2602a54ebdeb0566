"""Views of constants, followed back through what moves, broadcasts and widens their elements.

In: a view of a derived content. Out: the same view of what the content was derived from, or None where it is
no view of that. An axis of a view is a number of digits (size, stride), the outermost first, in elements of
the row-major array: 4096 steps along blocks of 32 that share a scale are the digits (128, 1) and (32, 0).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from planish.ops.content import Content, Derivation

Digit = tuple[int, int]


@dataclass(frozen=True)
class View:
    """Element `start`, and from there on the digits of each axis."""

    start: int
    axes: tuple[tuple[Digit, ...], ...]

    @staticmethod
    def of(start: int, sizes: Sequence[int], strides: Sequence[int]) -> View:
        return View(start, tuple(((size, stride),) for size, stride in zip(sizes, strides)))

    @property
    def strides(self) -> tuple[int, ...] | None:
        """The stride of each axis, if it has one."""
        if any(len(digits) > 1 for digits in self.axes):
            return None
        return tuple(digits[0][1] if digits else 0 for digits in self.axes)


def behind(content: Content, view: View, source: int = 0) -> View | None:
    """The view of a source of a content each of whose elements follows from one element of that source."""
    made = content.derivation
    assert made is not None
    if made.function == "op" and made.parameters[0] == "reshape":
        return view
    steps, start = _steps(content, made, source)
    return _moved(view, sizes_of(content), steps, start)


def _steps(content: Content, made: Derivation, source: int) -> tuple[list[int], int]:
    """How far apart in a source neighbours along each axis of a content are, and where its first element
    is."""
    old = row_major(sizes_of(made.sources[source]))
    if made.function == "transposed" or made.parameters[0] == "transpose":
        order = made.parameters if made.function == "transposed" else made.parameters[1]
        return [old[k] for k in order], 0
    if made.parameters[0] == "slice":
        starts, _, steps = made.parameters[1:]
        return [o * s for o, s in zip(old, steps)], sum(o * s for o, s in zip(old, starts))
    held = [0 if size == 1 else step for size, step in zip(sizes_of(made.sources[source]), old)]
    return [0] * (len(content.type.shape) - len(held)) + held, 0


def _moved(view: View, shape: Sequence[int], steps: Sequence[int], start: int) -> View | None:
    """A view of an array of this shape as one of memory where its axes have these steps."""
    axes = [axis for axis in zip(row_major(shape), shape, steps) if axis[1] > 1]
    reach = [view.start // old % size for old, size, _ in axes]
    start += sum(at * new for at, (_, _, new) in zip(reach, axes))
    moved = [[_digits(digit, axes, reach) for digit in digits] for digits in view.axes]
    if any(at >= size for at, (_, size, _) in zip(reach, axes)):
        return None
    found = []
    for axis in moved:
        known = [digits for digits in axis if digits is not None]
        if len(known) < len(axis):
            return None
        found.append(_merged([digit for digits in known for digit in digits]))
    return View(start, tuple(found))


def _digits(digit: Digit, axes: Sequence[tuple[int, int, int]], reach: list[int]) -> list[Digit] | None:
    """A digit in new steps, cut where it goes from one axis on to the next; `reach` takes what it reaches of
    each."""
    size, stride = digit
    found: list[Digit] = []
    while size > 1 and stride:
        k = next((k for k, (old, _, _) in enumerate(axes) if stride % old == 0), None)
        if k is None:
            return None
        old, extent, new = axes[k]
        each = stride // old
        here = min(size, max(1, extent // each)) if extent % each == 0 else size
        if size % here or (here < size and k == 0):
            return None
        reach[k] += each * (here - 1)
        found.append((here, each * new))
        size, stride = size // here, old * extent
    return [*([(size, 0)] if size > 1 else []), *reversed(found)]


def _merged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """As few digits as it takes."""
    found: list[Digit] = []
    for size, stride in digits:
        if found and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        elif size > 1:
            found.append((size, stride))
    return tuple(found)


def row_major(shape: Sequence[int]) -> list[int]:
    """Elements between neighbours along each axis."""
    return [prod(shape[k + 1:]) for k in range(len(shape))]


def sizes_of(content: Content) -> tuple[int, ...]:
    """The shape of a constant, which is known."""
    return tuple(d for d in content.type.shape if isinstance(d, int))
