"""Constant weights that a program widens: the narrow numbers, and how they become wide.

    (cast(q[k, n], f32) - zero[n]) * scale[k // 32, n]

In: the content of a contraction's right operand, and the view [n, k...] that the contraction has of it. Out:
the narrow numbers, a view of them, and the arithmetic on them, whose other operands hold along k, or along
blocks of it. So panels stay as narrow as what the program was given, and the product widens each vector as
it loads it, with the very operations of the program: the same bits as if they had been done before.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from planish.ops.content import Content, ask, derivation, question
from planish.schedule.kernel import Apply, RegisterTile, Scalar
from planish.schedule.views import View, behind, sizes_of
from planish.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    UINT8,
    UINT16,
    DType,
    TensorType,
    dtype_of,
)

NARROW = (INT8, UINT8, INT16, UINT16, FLOAT16, BFLOAT16, FLOAT32)
IN_BYTES = {"int4": INT8, "uint4": UINT8, "int2": INT8, "uint2": UINT8}  # stored so, one in a byte each
ARITHMETIC = frozenset({"cast", "sub", "add", "mul"})
COMPUTED = (INT16, INT32, FLOAT32, FLOAT64)
MOVEMENT = frozenset({"reshape", "transpose", "broadcast_to", "slice"})
MOST_DEEP = 6       # steps of arithmetic, one on another
MOST_STEPS = 6      # and all together
LEAST_BLOCK = 8     # steps of k that a block has
LEAST_BYTES = 256 << 10  # of wide weights: half of a core's second level
FEW_ROWS = 32       # that weights meet: 32 of them take about as long as to read float32 from memory
CROWDING = 1 << 20  # bytes of wide weights that more rows meet
GROUP_BYTES = 256 << 10  # of panels that are widened at once: half of a core's second level
ONCE = 4            # operations on a vector, of all tiles that meet it, that take as long as to store it wide
KNOWN = 64 << 10    # bytes of zero points, and of scales, that are looked at
MODERATE = 2.0 ** 64  # the largest scale, and one by the smallest, that is taken out of a sum


@dataclass(frozen=True, eq=False)
class Leaf:
    """Numbers that are loaded."""

    content: Content
    view: View

    @property
    def dtype(self) -> DType:
        return self.content.type.dtype

    @property
    def block(self) -> int | None:
        """Along how many steps of k they hold, 0 for all; None where they change from step to step."""
        inner = [digit for digits in self.view.axes[1:] for digit in digits]
        if not any(stride for _, stride in inner):
            return 0
        is_blocked = len(self.view.axes) == 2 and inner[-1][1] == 0 and inner[-1][0] >= LEAST_BLOCK
        return inner[-1][0] if is_blocked else None


@dataclass(frozen=True, eq=False)
class Step:
    """An operation on what is below."""

    op: str
    args: tuple[Form, ...]
    dtype: DType


Form = Leaf | Step


@dataclass(frozen=True, eq=False)
class Widened:
    """`form` has one narrow leaf; the others hold along `block` steps of the one k, or, 0, along all. The sum
    is to be multiplied by `scales`."""

    form: Form
    narrow: Leaf
    block: int
    scales: tuple[Leaf, ...] = ()

    @property
    def sides(self) -> list[Leaf]:
        return [leaf for leaf in (*leaves(self.form), *self.scales) if leaf is not self.narrow]

    @property
    def operations(self) -> int:
        """How many a vector takes beside being widened from one dtype to another."""
        return sum(step.op != "cast" for step in _steps(self.form))

    def taken_out(self) -> Widened:
        """The same with the scales of integers that hold along all of k taken out of the sum:
        x0 * (q0 * s) + x1 * (q1 * s) is (x0 * q0 + x1 * q1) * s."""
        form, scales = self.form, self.scales
        while isinstance(form, Step) and form.op == "mul" and self.narrow.dtype.is_integer:
            found = [(scale, rest) for scale, rest in (form.args, form.args[::-1]) if _is_scale(scale)]
            if not found:
                break
            (scale, form), *_ = found
            assert isinstance(scale, Leaf)
            scales = (*scales, scale)
        return replace(self, form=form, scales=scales)

    def scalar(self, load: Callable[[Leaf], Scalar]) -> Scalar:
        """The widened number, where `load` gives the leaves."""
        def made(form: Form) -> Scalar:
            if isinstance(form, Leaf):
                return load(form)
            return Apply(form.op, tuple(map(made, form.args)), form.dtype)
        return made(self.form)


def widened(content: Content, start: int, sizes: tuple[int, ...],
            strides: tuple[int, ...]) -> Widened | None:
    """How the view [n, k...] of a content follows from narrower numbers; None where it does not so."""
    form = _form(content, View.of(start, sizes, strides))
    found = list(dict.fromkeys(leaves(form)))
    narrow = [leaf for leaf in found if leaf.block is None]
    blocks = {leaf.block for leaf in found if leaf.block}
    if len(narrow) != 1 or len(blocks) > 1 or sum(1 for _ in _steps(form)) > MOST_STEPS:
        return None
    one, = narrow
    if one.dtype not in NARROW or one.dtype.itemsize >= content.type.dtype.itemsize:
        return None
    block = blocks.pop() if blocks else 0
    fits = one.view.strides is not None and sizes[-1] % (block or 1) == 0
    return Widened(form, one, block or 0) if fits else None


def leaves(form: Form) -> Iterator[Leaf]:
    if isinstance(form, Leaf):
        yield form
    for arg in form.args if isinstance(form, Step) else ():
        yield from leaves(arg)


def _steps(form: Form) -> Iterator[Step]:
    if isinstance(form, Step):
        yield form
        for arg in form.args:
            yield from _steps(arg)


def _form(content: Content, view: View, deep: int = MOST_DEEP) -> Form:
    """The arithmetic of a content, down to what is loaded, or to what is made by more than `deep` steps."""
    leaf, made = Leaf(content, view), content.derivation
    if leaf.block is not None or made is None or made.function not in ("op", "transposed"):
        return _in_bytes(leaf)
    name = "transpose" if made.function == "transposed" else made.parameters[0]
    if name in MOVEMENT:
        below = behind(content, view)
        return _in_bytes(leaf) if below is None else _form(made.sources[0], below, deep)
    if name not in ARITHMETIC or content.type.dtype not in COMPUTED or deep == 0:
        return _in_bytes(leaf)
    views = [behind(content, view, k) for k in range(len(made.sources))]
    args = tuple(_form(s, v, deep - 1) for s, v in zip(made.sources, views) if v is not None)
    if len(args) < len(views):
        return leaf
    if name == "cast" and isinstance(args[0], Leaf) and args[0].block is not None:
        return _cast(args[0], made.parameters, content.type.dtype)
    return args[0] if name == "sub" and _is_nothing(args[1]) else Step(name, args, content.type.dtype)


def _cast(leaf: Leaf, parameters: tuple[Any, ...], dtype: DType) -> Leaf:
    """What holds along k, cast before."""
    type_ = replace(leaf.content.type, dtype=dtype)
    return replace(leaf, content=Content.derived("op", parameters, (leaf.content,), type_))


def _in_bytes(leaf: Leaf) -> Leaf:
    """The same numbers in a dtype that is computed with."""
    dtype = IN_BYTES.get(leaf.dtype.name)
    return leaf if dtype is None or leaf.block is not None else _cast(leaf, ("cast", dtype), dtype)


def _is_nothing(form: Form) -> bool:
    """Whether integers are zero points that are all 0."""
    if not isinstance(form, Leaf) or form.block is None or not form.dtype.is_integer:
        return False
    return form.content.nbytes <= KNOWN and ask("uniform", form.content) == 0


def _is_scale(form: Form) -> bool:
    """Whether a factor holds along all of k, and is of a size that sums of integers can do without."""
    if not isinstance(form, Leaf) or form.block != 0 or not form.dtype.is_float:
        return False
    return form.content.nbytes <= KNOWN and ask("moderate", form.content)


@question("moderate")
def _moderate(array: np.ndarray) -> bool:
    """Whether no number is so large or small that it decides where a product over- or underflows."""
    size = np.abs(array)
    return bool(np.all((size >= 1 / MODERATE) & (size <= MODERATE)))


# --- what holds along k, for every column

def columns(leaf: Leaf, blocks: int, count: int, lanes: int) -> Content:
    """`[blocks, lanes]`: what a leaf is along each block of k, for `count` columns; 0 beyond them."""
    n, *inner = leaf.view.axes
    k = [digit for digits in inner for digit in digits if digit[1]]
    parameters = (leaf.view.start, n, tuple(k), blocks, count, lanes)
    return Content.derived("columns", parameters, (leaf.content,), TensorType(leaf.dtype, (blocks, lanes)))


@derivation("columns")
def _columns(parameters: tuple[Any, ...], array: np.ndarray) -> np.ndarray:
    start, n, k, blocks, count, lanes = parameters
    flat = np.ascontiguousarray(array).reshape(-1)
    at = start + np.add.outer(_places(k), _places(n))
    found = np.zeros((blocks, lanes), dtype_of(array).numpy)
    found[:, :count] = np.broadcast_to(flat[at], (blocks, count))
    return found


def _places(digits: tuple[tuple[int, int], ...]) -> np.ndarray:
    found = np.zeros(1, np.int64)
    for size, stride in digits:
        found = np.add.outer(found, np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return found


def is_worth(found: Widened, wide: DType, rows: int) -> bool:
    """Whether weights are to stay narrow, of a product of so many rows. Those that a core's cache holds are
    read as fast when wide; where each meets many rows, widening them in every tile takes more than memory
    does, and only what would crowd the shared cache stays narrow."""
    size = prod(sizes_of(found.narrow.content)) * wide.itemsize
    return size >= (LEAST_BYTES if rows <= FEW_ROWS else CROWDING)


def widens_once(found: Widened, rows: int, tile: RegisterTile, panel: int) -> bool:
    """Whether each panel, of so many bytes when wide, is widened once for all rows that meet it, not in every
    tile of them."""
    return panel <= GROUP_BYTES and found.operations * -(-rows // tile.rows) > ONCE
