"""Attention as one kernel: a tile of queries sees the keys block by block; scores never leave the cache.

    for a tile of queries:
      turn the queries: they are the lanes of all that follows
      for a block of keys {
        scores = keys queries^T, masked
        the largest score so far; what was summed before fades by how much it grew
        weights = exp(scores - largest); their sum; the values times the weights
      }
      result = sum of the values times the weights / sum of the weights

The running maximum is Milakov and Gimelshein's (Online normalizer calculation for softmax, 2018), the
tiling that of Dao et al. (FlashAttention, 2022). A causal tile stops at the last key that one of its
queries sees, and masks only the keys that not all of them see. Where all keys are one block there is no
loop, and nothing fades. A query that sees no key gives NaN, as the formula does, or 0 (`unseen`); one of
whose scores is NaN or inf has weights of 0 where that is asked for, which nothing seen outweighs. Where
queries are few, a tile is all of them, with those of the heads that share their keys, and lanes are features
and keys.

Training also wants log(sum(exp(scores))) of each query: an `attention_logsumexp` of the same scores is one
more stage at the end of a tile. One that stands alone is a tile without values.

In: a graph's `attention` node whose features are of known number. Out: stages in the tile's loops, to which
`schedule_points` gives vectors and register tiles.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from math import inf, sqrt
from typing import TYPE_CHECKING

from planish.ir.node import Node
from planish.schedule.access import depends_on
from planish.schedule.kernel import (
    Axis,
    Buffer,
    Const,
    Index,
    Load,
    Scalar,
    Store,
    walk,
)
from planish.schedule.scalars import Point, apply, cast_to
from planish.types import BOOL, FLOAT32, INT32, Dim, DType, TensorType, is_static, symbols_of
from planish.types.dim import maximum, minimum

if TYPE_CHECKING:
    from planish.schedule.nests import Writer

ATTENTION = {"attention", "attention_logsumexp"}

GROUP = 16          # queries side by side: a whole number of vectors on every machine
ROWS = 3 * GROUP    # of a tile, by which keys and values are read once
MOST_ROWS = 7 * GROUP  # where the keys are one block that all queries see: values are copied for fewer tiles
KEYS = 128          # of a block, whose scores stay in the first-level cache
WHOLE = 256         # keys up to which they are one block, of FEATURES or fewer
FEATURES = 64
FEW = 4             # queries up to which a lane each would be a waste
LOG2_E = 1.4426950408889634
SHARING = 8         # heads that may share their keys in one tile of few


def batch_rank(node: Node) -> int:
    """How many axes of an attention its tiles are counted along."""
    return node.operands[0].ndim - (3 if _is_shared(node) else 2)


def is_sums(node: Node) -> bool:
    """Whether a node gives the sums of an attention, not its values."""
    return node.op.name == "attention_logsumexp"


def masks_of(node: Node) -> tuple[Node, ...]:
    return node.operands[2 if is_sums(node) else 3:]


def have_same_scores(one: Node, other: Node) -> bool:
    """Of an attention and an attention_logsumexp, whether they are of the same scores, in the same tiles."""
    if {one.op.name, other.op.name} != ATTENTION:
        return False
    made_of = [(n.operands[:2], masks_of(n), n.attributes, batch_rank(n)) for n in (one, other)]
    return made_of[0] == made_of[1]


def _is_shared(node: Node) -> bool:
    """Whether the heads along the axis before the queries have one query each and the same keys."""
    q, *keys = node.operands[:2 if is_sums(node) else 3]
    if q.ndim < 3 or node.attributes.causal or q.shape[-2] != 1 or any(k.shape[-3] != 1 for k in keys):
        return False
    heads = q.shape[-3]
    return is_static(heads) and 1 < heads <= SHARING


def _is_few(node: Node) -> bool:
    queries = node.operands[0].shape[-2]
    return is_static(queries) and queries <= FEW


def _are_one_block(node: Node) -> bool:
    """Whether all keys are so few that their values fit in cache at once."""
    keys, width = node.operands[1].shape[-2], 1 if is_sums(node) else node.shape[-1]
    assert is_static(width)
    return is_static(keys) and keys <= WHOLE and keys * max(width, FEATURES) <= WHOLE * FEATURES


def _rows(node: Node) -> int:
    """How many queries a tile has: where it may have many, even parts of them in whole groups."""
    queries = node.operands[0].shape[-2]
    if not is_static(queries) or queries <= ROWS or node.attributes.causal or not _are_one_block(node):
        return ROWS
    tiles = -(-queries // MOST_ROWS)
    return -(-queries // (tiles * GROUP)) * GROUP


@dataclass
class Tile:
    """What the stages of one attention are made of: `used` queries of `rows` from `first`, and the block of
    keys at hand, `length` of `held` from `start`. `runs`: others came before it."""

    w: Writer
    node: Node
    few: bool
    rows: int
    first: Dim
    used: Dim
    held: Dim
    start: Dim = 0
    length: Dim = 0
    runs: bool = False
    loop: Axis | None = None
    scale: float = 1.0
    made: dict[str, Buffer] = field(default_factory=dict)

    def axis(self, extent: Dim) -> Axis:
        self.w.axes_made += 1
        return Axis(f"a{self.w.axes_made - 1}", extent)

    def row(self, name: str, *shape: Dim, dtype: DType = FLOAT32) -> Buffer:
        """Scratch of the tile; made where it is first asked for, and named so unless a size has that name."""
        sizes = {n for o in self.node.operands for d in o.shape for n in symbols_of(d)}
        free = next(n for n in (f"{name}{'_' * k}" for k in count()) if n not in sizes)
        return self.made.setdefault(name, Buffer(free, TensorType(dtype, shape), space="row"))

    def queries(self) -> tuple[tuple[Axis, ...], Dim]:
        """Loops over the queries of the tile, and where one stands; as lanes, the last group is filled up."""
        if self.few:
            row = self.axis(self.used)
            return (row,), row.symbol
        groups, lane = self.axis((self.used + GROUP - 1) // GROUP), self.axis(GROUP)
        return (groups, lane), groups.symbol * GROUP + lane.symbol

    def pair(self, other: Dim, at: Dim) -> tuple[Dim, Dim]:
        """An index by query and something else, the lanes last."""
        return (at, other) if self.few else (other, at)

    def nest(self, other: Axis, queries: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Loops over queries and something else, the lanes last."""
        return (*queries, other) if self.few else (other, *queries)

    # --- operands

    @property
    def queries_in_all(self) -> Dim:
        return self.node.operands[0].shape[-2]

    def query(self, node: Node, at: Dim, last: Dim) -> Scalar:
        """Queries, or a mask, at a query of the tile; lanes beyond the last are that one."""
        if _is_shared(self.node):
            return self.operand(node, at, 0, last)
        return self.operand(node, minimum(self.first + at, self.queries_in_all - 1), last)

    def key(self, node: Node, key: Dim, feature: Dim) -> Scalar:
        """Keys or values, at a key of the block."""
        return self.operand(node, *(0,) * (node.ndim - len(self.w.point) - 2), self.start + key, feature)

    def operand(self, node: Node, *index: Dim) -> Scalar:
        """As float32, or bool."""
        whole = (*self.w.point, *index)
        whole = whole[len(whole) - node.ndim:]
        place = tuple(0 if d == 1 else i for d, i in zip(node.shape, whole, strict=True))
        value = self.w.scalars.at(node, place)
        return value if value.dtype is BOOL else cast_to(value, FLOAT32)

    def result(self, at: Dim) -> tuple[Dim | Scalar, ...]:
        """Where a query of the tile stands in the result."""
        return (*self.w.point, at, 0) if _is_shared(self.node) else (*self.w.point, self.first + at)

    # --- stages

    def put(self, axes: Iterable[Axis], buffer: Buffer, index: Point, value: Scalar) -> None:
        """buffer[index] = value"""
        self.w.stage(list(axes), cast_to(value, buffer.dtype), buffer.dtype, store=Store(buffer, index),
                     inside=self.loop)

    def join(self, combine: str, over: Axis, at: tuple[Axis, ...], buffer: Buffer, index: Point,
             value: Scalar) -> None:
        """buffer[index] = what a reduction comes to; joined with what came before."""
        store = Store(buffer, index, combine if self.runs else "")
        self.w.stage([over], value, FLOAT32, combine=combine, store=store, at=at, inside=self.loop)

    @property
    def due(self) -> float:
        """What scores are still to be scaled by once they are masked."""
        return 1.0 if masks_of(self.node) else self.scale

    def joined_scores(self) -> Buffer:
        return self.row("scores", *self.pair(self.held, self.rows))


def times(value: Scalar, number: float) -> Scalar:
    return value if number == 1 else apply("mul", value, Const(number, FLOAT32))


def write_attention(w: Writer, root: Node) -> None:
    """Add the stages; the tile's own axis is among `w.tiles`. Sums of an attention that has been written are
    had from its tile."""
    for tile in w.attentions:
        if have_same_scores(tile.node, root):
            _finish_sums(tile, root)
            return
    queries, keys = (o.shape[-2] for o in root.operands[:2])
    rows = _rows(root)
    tile = Tile(w, root, _is_few(root), rows, 0, queries, keys if _are_one_block(root) else KEYS)
    if tile.few:
        shared = root.operands[0].shape[-3] if _is_shared(root) else queries
        assert is_static(shared)
        tile.rows, tile.used = shared, shared
    elif not is_static(queries) or queries > rows:
        own = tile.axis((queries + rows - 1) // rows)
        w.tiles.append(own)
        tile.first = own.symbol * rows
        tile.used = minimum(rows, queries - tile.first)
    seen = minimum(keys, tile.first + tile.used) if root.attributes.causal else keys
    _take_queries(tile)
    if _are_one_block(root):
        tile.length = seen
        _block(tile)
    else:
        _begin(tile)
        tile.loop = tile.axis((seen + KEYS - 1) // KEYS)
        tile.start = tile.loop.symbol * KEYS
        tile.length, tile.runs = minimum(KEYS, seen - tile.start), True
        _block(tile)
        tile.loop = None
    w.attentions.append(tile)
    if is_sums(root):
        _finish_sums(tile, root)
    else:
        _finish(tile)


# --- before the keys, and after them

def _take_queries(tile: Tile) -> None:
    """The queries of the tile, turned where they are lanes. Scores are scaled where they are read: a backward
    pass, whose products are scaled too, finds the same. A scale that turns their order is the queries'."""
    depth = tile.node.operands[0].shape[-1]
    a = tile.node.attributes
    assert is_static(depth)
    scale = 1 / sqrt(depth) if a.scale is None else a.scale
    axes, at = tile.queries()
    deep = tile.axis(depth)
    turned = tile.row("turned", *tile.pair(depth, tile.rows))
    value = tile.query(tile.node.operands[0], at, deep.symbol)
    if scale > 0:
        tile.scale = scale
    else:
        value = apply("mul", value, Const(scale, FLOAT32))
    tile.put((*axes, deep), turned, tile.pair(deep.symbol, at), value)


def _begin(tile: Tile) -> None:
    """No key yet: the largest score is -inf, the sums are 0."""
    for name, value in (("top", -inf), ("total", 0.0)):
        axes, at = tile.queries()
        tile.put(axes, tile.row(name, tile.rows), (at,), Const(value, FLOAT32))
    if is_sums(tile.node):
        return
    width = tile.node.shape[-1]
    r, e = tile.axis(tile.used), tile.axis(width)
    tile.put((r, e), tile.row("out", tile.rows, width), (r.symbol, e.symbol), Const(0.0, FLOAT32))


def _finish(tile: Tile) -> None:
    """The sums of values times one over the sum of the weights, which is found by vectors of queries."""
    axes, at = tile.queries()
    total: Scalar = Load(tile.made["total"], (at,))
    if tile.node.attributes.unseen != "nan":
        nothing = apply("eq", total, Const(0.0, FLOAT32), dtype=BOOL)
        total = apply("select", nothing, Const(1.0, FLOAT32), total, dtype=FLOAT32)
    share = tile.row("share", tile.rows)
    tile.put(axes, share, (at,), apply("reciprocal", total))
    r, e = tile.axis(tile.used), tile.axis(tile.node.shape[-1])
    value = apply("mul", Load(tile.made["out"], (r.symbol, e.symbol)), Load(share, (r.symbol,)))
    tile.put((r, e), tile.w.buffer(tile.node), (*tile.result(r.symbol), e.symbol), value)


def _finish_sums(tile: Tile, root: Node) -> None:
    """The largest score and the logarithm of the sum; -inf where nothing was seen."""
    r = tile.axis(tile.used)
    base, total = (Load(tile.made[name], (r.symbol,)) for name in ("base", "total"))
    value = apply("add", times(base, tile.due), apply("log", total))
    tile.put((r,), tile.w.buffer(root), tile.result(r.symbol), value)


# --- a block of keys

def _block(tile: Tile) -> None:
    _scores(tile)
    if tile.node.attributes.causal:
        _hide_later_keys(tile)
    for k, mask in enumerate(masks_of(tile.node)):
        _mask(tile, mask, k)
    _weights(tile)
    if not is_sums(tile.node):
        _values(tile)


def _scores(tile: Tile) -> None:
    """Keys are read where they are; narrow ones, of which every number is read often, from a copy."""
    depth = tile.node.operands[0].shape[-1]
    c, deep = tile.axis(tile.length), tile.axis(depth)
    key = tile.key(tile.node.operands[1], c.symbol, deep.symbol)
    if not isinstance(key, Load) and not tile.few:
        copy = tile.row("keys", tile.held, depth)
        tile.put((c, deep), copy, (c.symbol, deep.symbol), key)
        c, deep = tile.axis(tile.length), tile.axis(depth)
        key = Load(copy, (c.symbol, deep.symbol))
    axes, at = tile.queries()
    product = apply("mul", key, Load(tile.made["turned"], tile.pair(deep.symbol, at)))
    runs, tile.runs = tile.runs, False
    tile.join("add", deep, tile.nest(c, axes), tile.joined_scores(), tile.pair(c.symbol, at), product)
    tile.runs = runs


def _hide_later_keys(tile: Tile) -> None:
    known = maximum(0, minimum(tile.length, tile.first + 1 - tile.start))  # keys that every query here sees
    late = tile.axis(tile.length - known)
    axes, at = tile.queries()
    index = tile.pair(late.symbol + known, at)
    key = tile.start + late.symbol + known - tile.first     # counted from the first query, it is small
    sees = apply("ge", Index(at, INT32), Index(key, INT32), dtype=BOOL)
    score = Load(tile.joined_scores(), index)
    value = apply("select", sees, score, Const(-inf, FLOAT32), dtype=FLOAT32)
    tile.put(tile.nest(late, axes), tile.joined_scores(), index, value)


def _mask(tile: Tile, of: Node, k: int) -> None:
    """The k-th mask on the scores, which are scaled for the first; one that lies along the keys is turned, as
    the queries are."""
    c = tile.axis(tile.length)
    axes, at = tile.queries()
    mask = tile.query(of, at, tile.start + c.symbol)
    loads = [x for x in walk(mask) if isinstance(x, Load)]
    if not tile.few and any(depends_on(x, a.name) for x in loads for a in axes):
        turned = tile.row(f"mask{k}", tile.held, tile.rows, dtype=mask.dtype)
        tile.put((*axes, c), turned, (c.symbol, at), mask)
        c = tile.axis(tile.length)
        axes, at = tile.queries()
        mask = Load(turned, (c.symbol, at))
    index = tile.pair(c.symbol, at)
    score: Scalar = Load(tile.joined_scores(), index)
    if k == 0:
        score = times(score, tile.scale)
    hidden = Const(tile.node.attributes.hidden, FLOAT32)
    value = apply("add", score, mask) if mask.dtype is FLOAT32 else \
        apply("select", mask, score, hidden, dtype=FLOAT32)
    tile.put(tile.nest(c, axes), tile.joined_scores(), index, value)


def _weights(tile: Tile) -> None:
    """exp(scores - largest), in place, and their sum. The largest is not subtracted where it is -inf: nothing
    has been seen, and the weights are to be 0."""
    scores = tile.joined_scores()
    top, base, total = (tile.row(n, tile.rows) for n in ("top", "base", "total"))
    if tile.runs:
        axes, at = tile.queries()
        tile.put(axes, tile.row("last", tile.rows), (at,), Load(top, (at,)))
    c, (axes, at) = tile.axis(tile.length), tile.queries()
    tile.join("maximum", c, axes, top, (at,), Load(scores, tile.pair(c.symbol, at)))
    axes, at = tile.queries()
    largest = Load(top, (at,))
    none = apply("eq", largest, Const(-inf, FLOAT32), dtype=BOOL)
    level = apply("select", none, Const(0.0, FLOAT32), largest, dtype=FLOAT32)
    tile.put(axes, base, (at,), _of_a_number(tile, largest, level, inf))
    if tile.runs:
        _fade(tile, base, total)
    c, (axes, at) = tile.axis(tile.length), tile.queries()
    index = tile.pair(c.symbol, at)
    tile.put(tile.nest(c, axes), scores, index, _weight(tile, Load(scores, index), Load(base, (at,))))
    c, (axes, at) = tile.axis(tile.length), tile.queries()
    tile.join("add", c, axes, total, (at,), Load(scores, tile.pair(c.symbol, at)))


def _weight(tile: Tile, score: Scalar, base: Scalar) -> Scalar:
    """exp(score - base) of what is still to be scaled, as a power of two: that of a small difference is
    exact."""
    away = times(apply("sub", score, base), tile.due * LOG2_E)
    return _of_a_number(tile, score, apply("decay2", away))


def _of_a_number(tile: Tile, score: Scalar, value: Scalar, other: float = 0.0) -> Scalar:
    """The value, but `other` for a score that is NaN or inf where such ones hide the query."""
    if tile.node.attributes.unseen != "zero_nan":
        return value
    below = apply("lt", score, Const(inf, FLOAT32), dtype=BOOL)
    return apply("select", below, value, Const(other, FLOAT32), dtype=FLOAT32)


def _fade(tile: Tile, base: Buffer, total: Buffer) -> None:
    """What was summed while another score was the largest shrinks."""
    fade, last = tile.row("fade", tile.rows), tile.made["last"]
    axes, at = tile.queries()
    tile.put(axes, fade, (at,), _weight(tile, Load(last, (at,)), Load(base, (at,))))
    axes, at = tile.queries()
    tile.put(axes, total, (at,), apply("mul", Load(total, (at,)), Load(fade, (at,))))
    if is_sums(tile.node):
        return
    out, width = tile.made["out"], tile.node.shape[-1]
    r, e = tile.axis(tile.used), tile.axis(width)
    index = (r.symbol, e.symbol)
    tile.put((r, e), out, index, apply("mul", Load(out, index), Load(fade, (r.symbol,))))


def _values(tile: Tile) -> None:
    """The values times the weights. Where many queries read them, from panels that lie side by side in the
    first-level cache: in memory, rows of 256 bytes and more apart push each other out of it."""
    width = tile.node.shape[-1]
    out = tile.row("out", tile.rows, width)
    c, (panels, e, feature) = tile.axis(tile.length), _panels(tile)
    value = tile.key(tile.node.operands[2], c.symbol, feature)
    if not tile.few:
        place = (*(p.symbol for p in panels), c.symbol, e.symbol)
        copy = tile.row("values", *(p.extent for p in panels), tile.held, e.extent)
        tile.put((c, *panels, e), copy, place, value)
        c, (panels, e, feature) = tile.axis(tile.length), _panels(tile)
        value = Load(copy, (*(p.symbol for p in panels), c.symbol, e.symbol))
    r = tile.axis(tile.used)
    weight = Load(tile.joined_scores(), tile.pair(c.symbol, r.symbol))
    tile.join("add", c, (*panels, r, e), out, (r.symbol, feature), apply("mul", weight, value))


def _panels(tile: Tile) -> tuple[tuple[Axis, ...], Axis, Dim]:
    """Loops over features, around the queries by panels; and where a feature stands."""
    width = tile.node.shape[-1]
    assert is_static(width)
    if tile.few or width % GROUP or width == GROUP:
        e = tile.axis(width)
        return (), e, e.symbol
    panel, e = tile.axis(width // GROUP), tile.axis(GROUP)
    return (panel,), e, panel.symbol * GROUP + e.symbol
