"""Fusion: roots that share their outer axes become stages of one kernel.

In: a graph. Out: kernels without a schedule, in an order that respects what they read, and one line per
decision. A root joins a group when every value it reads from the group belongs to the same point of the
shared axes, so that no other point (and no other thread) is needed: a softmax's maximum, exponential and sum;
an epilogue after a contraction; a layer norm and what follows it. What is then read inside the kernel only
never reaches main memory.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.attention import ATTENTION, have_same_scores, is_sums
from planish.schedule.causal import causal_form
from planish.schedule.kernel import (
    Axis,
    Buffer,
    Kernel,
    Load,
    Result,
    Scalar,
    Sort,
    Stage,
    Store,
    stage_stores,
    stage_values,
    walk,
)
from planish.schedule.nests import (
    Writer,
    border_of,
    fixed_rank,
    has_border,
    is_serial,
    kept_axes,
    parted,
    proper,
    stored_at,
)
from planish.schedule.phases import has_phases, in_phases
from planish.schedule.rebuild import Rebuilder
from planish.schedule.roots import choose_roots, has_memory
from planish.schedule.scalars import Scalars, hinted
from planish.types import Shape, is_static

ROW_BYTES = 128 << 10   # scratch of one thread for one point of the shared axes
SMALL_WORK = 16 << 10   # elements below which losing parallelism does not matter
ENOUGH_POINTS = 16      # points of the shared axes that keep the threads busy
MANY_BUFFERS = 24

Stages = list[Stage | Sort]
LoadOrStore = TypeVar("LoadOrStore", Load, Store)


@dataclass(eq=False)
class Group:
    """Roots computed by one kernel; `rank` is how many axes they share (None while any prefix will do). The
    results of a `control` op are a group of their own."""

    roots: list[Node]
    rank: int | None
    needs: set[Group] = field(default_factory=set)
    reads: set[Node] = field(default_factory=set)
    control: Node | None = None

    @property
    def is_contraction(self) -> bool:
        return any(r.op.has("contraction") for r in self.roots)


@dataclass
class Fused:
    """What fusion gives: kernels in order (and control ops, whose graphs have kernels of their own), the
    buffers of the roots, views of buffers, and the decisions. `causal` has the other form of kernels that
    have two, by name (causal.py)."""

    kernels: list[Kernel | Node]
    buffers: dict[Node, Buffer]
    views: dict[str, str]
    decisions: list[str]
    causal: dict[str, Kernel]


def fuse(graph: Graph, hint: dict[str, int], *, disable: frozenset[str] = frozenset(),
         prefix: str = "") -> Fused:
    """Kernels for every root of a prepared graph. `disable` may hold "fuse" to keep one kernel per root;
    `prefix` begins the names of kernels and buffers."""
    return _Fusion(graph, hint, "fuse" not in disable, prefix).run()


class _Fusion:
    def __init__(self, graph: Graph, hint: dict[str, int], merging: bool, prefix: str):
        self.graph, self.hint, self.merging, self.prefix = graph, hint, merging, prefix
        self.roots = choose_roots(graph, hint)
        self.buffers = {n: Buffer(f"{prefix}b{i}", n.tensor) for i, n in enumerate(self.with_memory())}
        self.by_name = {b.name: n for n, b in self.buffers.items()}
        self.group_of: dict[Node, Group] = {}
        self.built: dict[tuple[tuple[Node, ...], int], tuple[Stages, dict[str, str], list[Axis]]] = {}
        self.groups: list[Group] = []
        self.decisions: list[str] = []
        self.views: dict[str, str] = {}
        self.causal: dict[str, Kernel] = {}

    def with_memory(self) -> list[Node]:
        return [n for n in self.graph.nodes() if has_memory(n)] + self.roots

    def run(self) -> Fused:
        for root in self.roots:
            self.place(root)
        kernels = [k for g in self.ordered() for k in ([g.control] if g.control else self.kernels(g))]
        return Fused(kernels, self.buffers, self.views, self.decisions, self.causal)

    # --- grouping

    def place(self, root: Node) -> None:
        if root.op.name == "item" and root.operands[0].op.has("control"):
            self.place_control(root)
            return
        alone = Group([root], fixed_rank(root))
        alone.reads = self.reads_of(*self.build([root], self.own_rank(alone))[:2])
        alone.needs = {self.group_of[n] for n in alone.reads if n in self.group_of}
        for group in self.candidates(alone):
            refusal = self.join(group, alone, root)
            if not refusal:
                return
            self.decisions.append(f"{_label(group.roots[-1])} | {_label(root)}: apart, {refusal}")
        self.groups.append(alone)
        self.group_of[root] = alone

    def place_control(self, item: Node) -> None:
        """The results of a control op are there when it has run, and its operands before."""
        control, = item.operands
        group = next((g for g in self.groups if g.control is control), None)
        if group is None:
            group = Group([], 0, reads=set(control.operands), control=control)
            group.needs = {self.group_of[n] for n in control.operands if n in self.group_of}
            self.groups.append(group)
        group.roots.append(item)
        self.group_of[item] = group

    def candidates(self, alone: Group) -> list[Group]:
        """Groups the root reads from, then groups that read what it reads; the latest first."""
        if not self.merging:
            return []
        shared = {n for n in alone.reads if not self.is_small(n)}
        siblings = {g for g in self.groups
                    if not shared.isdisjoint(g.reads) or _of_one_op(*alone.roots, *g.roots)}
        order = {g: i for i, g in enumerate(self.groups) if g.control is None}
        return sorted(alone.needs & order.keys(), key=order.__getitem__, reverse=True) + \
            sorted((siblings - alone.needs) & order.keys(), key=order.__getitem__, reverse=True)

    def is_small(self, node: Node) -> bool:
        return self.elements(node) <= 64

    def elements(self, node: Node) -> int:
        return prod(hinted(d, self.hint) for d in node.shape)

    def own_rank(self, group: Group) -> int:
        return len(proper(group.roots[0].shape)) if group.rank is None else group.rank

    def join(self, group: Group, alone: Group, root: Node) -> str:
        """Put `root` into `group`; or the reason it can't be."""
        if any(is_serial(r) for r in (*group.roots, root)):
            return "a serial kernel stands alone"
        if any(_reaches(g, group) for g in alone.needs if g is not group):
            return "another kernel stands between"
        if any(r.op.name in ATTENTION for r in (*group.roots, root)):
            return self.join_attention(group, alone)
        if not alone.needs >= {group} and (group.is_contraction or root.op.has("contraction")):
            return "a kernel has one contraction"
        ranks = {r for r in (group.rank, alone.rank) if r is not None}
        if len(ranks) > 1:
            return f"they share different axes ({' and '.join(map(str, sorted(ranks)))})"
        if not ranks and proper(group.roots[0].shape) != proper(root.shape):
            return "different shapes"
        rank = ranks.pop() if ranks else len(proper(root.shape))
        refusal = self.refusal(group, root, rank)
        if refusal:
            return refusal
        group.roots.append(root)
        group.rank = rank if group.rank is not None or alone.rank is not None else None
        group.needs |= alone.needs - {group}
        group.reads |= {n for n in alone.reads if self.group_of.get(n) is not group}
        self.group_of[root] = group
        return ""

    def join_attention(self, group: Group, alone: Group) -> str:
        """Of an attention and its sums the attention goes first: it has what the sums are made of."""
        root, = alone.roots
        if len(group.roots) > 1 or not have_same_scores(group.roots[0], root):
            return "an attention stands alone"
        group.roots = sorted((*group.roots, root), key=is_sums)
        group.needs |= alone.needs
        group.reads |= alone.reads
        self.group_of[root] = group
        return ""

    def refusal(self, group: Group, root: Node, rank: int) -> str:
        spaces = {_shared_shape(r, rank) for r in (*group.roots, root)}
        space = spaces.pop()
        if spaces or space is None:
            return "their shared axes differ in size"
        if _of_one_op(*group.roots, root):
            return ""
        shared = prod(hinted(d, self.hint) for d in space)
        largest = max(map(self.elements, (*group.roots, root)))
        if group.is_contraction and root.op.has("reduction"):
            return "a reduction does not follow a contraction in one kernel"
        whole = root.operands[0] if has_border(root) else root
        if group.is_contraction and rank != len(proper(whole.shape)):
            return "the contraction's rows are not whole"
        if root.op.has("contraction"):
            return "a contraction begins a kernel"
        if shared < ENOUGH_POINTS and largest > SMALL_WORK:
            return f"only {shared} points of work"
        stages, views, _ = self.build([*group.roots, root], rank)
        if not self.reads_own_point((*group.roots, root), rank, stages, views):
            return "it reads other points of the shared axes"
        if len(self.reads_of(stages, views)) > MANY_BUFFERS:
            return "too many buffers"
        if self.row_bytes((*group.roots, root), rank) > ROW_BYTES:
            return "a row does not fit in cache"
        return ""

    def row_bytes(self, roots: Iterable[Node], rank: int) -> int:
        inner = {r: parted(r, r.shape, rank)[1] for r in roots}
        return sum(prod(hinted(d, self.hint) for d in inner[r]) * r.dtype.itemsize for r in inner)

    def reads_own_point(self, roots: tuple[Node, ...], rank: int, stages: Stages,
                        views: dict[str, str]) -> bool:
        """Whether every load of a buffer of the group is at the shared axes' own values."""
        own = {self.buffers[r].name: r for r in roots}
        shared = self.shared_index(roots[0], rank)
        loads = [x for s in stages for x in walk(*stage_values(s)) if isinstance(x, Load)]
        return all(_at_point(own[x.buffer.name], x.index, shared) if x.buffer.name in own
                   else views.get(x.buffer.name) not in own for x in loads)

    # --- writing

    def shared_axes(self, root: Node, rank: int) -> tuple[Axis, ...]:
        return tuple(Axis(f"s{i}", d) for i, d in enumerate(proper(kept_axes(root))[:rank]))

    def shared_index(self, root: Node, rank: int) -> tuple:
        return tuple(a.symbol for a in self.shared_axes(root, rank))

    def build(self, roots: list[Node], rank: int) -> tuple[Stages, dict[str, str], list[Axis]]:
        """The stages of the roots over their first `rank` axes, the views they read, and what further axes
        they share out. A group is asked for when it is tried and again when it is a kernel."""
        key = (tuple(roots), rank)
        if key not in self.built:
            self.built[key] = self.write(roots, rank)
        return self.built[key]

    def write(self, roots: list[Node], rank: int) -> tuple[Stages, dict[str, str], list[Axis]]:
        scalars = Scalars(self.buffers, indexed=frozenset(roots))
        writer = Writer(scalars, self.shared_index(roots[0], rank))
        for root in roots:
            writer.write(root)
        return writer.stages, scalars.views, writer.tiles

    def reads_of(self, stages: Stages, views: dict[str, str]) -> set[Node]:
        """The nodes whose memory the stages read, their own not counted."""
        loaded = {x.buffer.name for s in stages for x in walk(*stage_values(s))
                  if isinstance(x, Load) and x.buffer.space == "global"}
        own = {store.buffer.name for s in stages for store in stage_stores(s)}
        return {self.by_name[views.get(name, name)] for name in loaded - own}

    # --- order and kernels

    def ordered(self) -> list[Group]:
        """Groups after those they need, otherwise in order of their first root."""
        done: dict[Group, None] = {}

        def visit(group: Group) -> None:
            if group not in done:
                for needed in sorted(group.needs, key=self.groups.index):
                    visit(needed)
                done[group] = None
        for group in self.groups:
            visit(group)
        return list(done)

    def kernels(self, group: Group) -> list[Kernel | Node]:
        """The kernel of a group, after those that fill the borders of its values."""
        kernel = self.kernel(group)
        if self.merging and (causal := self.causal_roots(group.roots)):
            self.causal[kernel.name] = replace(self.kernel(group, causal), name=f"{kernel.name}_causal")
        bordered = [r for r in group.roots if has_border(r) and r.shape != r.operands[0].shape]
        borders: list[Kernel | Node] = [border_of(r, self.buffers[r], f"{kernel.name}_border{i or ''}")
                                        for i, r in enumerate(bordered)]
        first = group.roots[0]
        is_spread = first.op.name == "conv" and has_phases(first)
        return [*borders, *(in_phases(kernel, first) if is_spread else (kernel,))]

    def causal_roots(self, roots: list[Node]) -> list[Node]:
        """The roots of an attention as causal ones, which have the same memory; none if they are no such."""
        made = [causal_form(r) for r in roots] if roots[0].op.name in ATTENTION else [None]
        found = [r for r in made if r is not None]
        if len(found) < len(made):
            return []
        self.buffers |= {new: self.buffers[old] for new, old in zip(found, roots)}
        return found

    def kernel(self, group: Group, forms: list[Node] | None = None) -> Kernel:
        """The kernel of a group's roots, perhaps written in other forms of them."""
        rank = self.own_rank(group)
        stages, views, tiles = self.build(forms or group.roots, rank)
        self.views.update(views)
        inside = {r for r in group.roots if self.is_internal(group, r, rank)}
        sorts = {s.buffer.name for stage in stages if isinstance(stage, Sort) for s in stage_stores(stage)}
        local = _Local({self.buffers[r].name: r for r in group.roots}, inside, rank, sorts)
        stages = [s for s in map(local.kept, stages) if s is not None]
        shared = (*self.shared_axes(group.roots[0], rank), *tiles)
        written = tuple(self.buffers[r] for r in group.roots if r not in inside)
        loads = [x for s in stages for x in walk(*stage_values(s)) if isinstance(x, Load)]
        read = {b.name: b for b in (x.buffer for x in loads) if b.space == "global" and b not in written}
        stored = (store.buffer for s in stages for store in stage_stores(s))
        rows = {b.name: b for b in stored if b.space == "row"}
        return Kernel(f"{self.prefix}k{self.groups.index(group)}", shared, tuple(stages),
                      tuple(read.values()), written, tuple({**local.rows, **rows}.values()),
                      serial=any(map(is_serial, group.roots)), ops=tuple(_ops_of(group.roots, self.buffers)))

    def is_internal(self, group: Group, root: Node, rank: int) -> bool:
        """Read by its own group only, and of a size known now: a stack has no room for others."""
        if root in self.graph.roots or not all(map(is_static, parted(root, root.shape, rank)[1])):
            return False
        return all(root not in other.reads for other in self.groups if other is not group)


def _of_one_op(*roots: Node) -> bool:
    """Whether all are results of one op (values and positions of a top_k), which one stage gives."""
    return roots[0].op.name == "item" and all(
        r.op.name == "item" and r.operands == roots[0].operands for r in roots)


def _shared_shape(root: Node, rank: int) -> Shape | None:
    own = fixed_rank(root)
    kept = proper(kept_axes(root))
    if (own is not None and own != rank) or len(kept) < rank:
        return None
    return kept[:rank]


def _at_point(root: Node, index: tuple, shared: tuple) -> bool:
    return parted(root, index, len(shared))[0] == stored_at(root, shared)


def _reaches(start: Group, goal: Group) -> bool:
    stack, seen = [start], set()
    while stack:
        group = stack.pop()
        if group is goal:
            return True
        if group not in seen:
            seen.add(group)
            stack.extend(group.needs)
    return False


def _label(root: Node) -> str:
    return f"{root.op.name} {root.type}"


def _ops_of(roots: list[Node], buffers: dict[Node, Buffer]) -> list[str]:
    """The op names a kernel computes, operands first."""
    seen: dict[Node, None] = {}

    def visit(node: Node, top: bool) -> None:
        if node in seen or (not top and (node in buffers or has_memory(node)) and node not in roots):
            return
        for operand in node.operands:
            visit(operand, False)
        seen[node] = None
    for root in roots:
        visit(root, True)
    return [n.op.name for n in seen if not has_memory(n)]


# --- values that stay inside a kernel

class _Local(Rebuilder):
    """Keeps inside a kernel what nobody else reads: single values per point become results of their stage,
    rows become row buffers. `owned` are the roots by their buffers' names, `inside` those that need no
    memory; `lets` says what is read in place of a buffer."""

    def __init__(self, owned: dict[str, Node], inside: set[Node], rank: int, sorts: set[str]):
        super().__init__(scalar=self.load)
        self.owned, self.inside, self.rank = owned, inside, rank
        self.lets: dict[str, Result] = {}
        self.rows = {name: Buffer(name, root.tensor.with_shape(self.inner(name)), space="row")
                     for name, root in owned.items()
                     if root in inside and (name in sorts or any(d != 1 for d in self.inner(name)))}

    def inner(self, name: str) -> Shape:
        return parted(self.owned[name], self.owned[name].shape, self.rank)[1]

    def in_row(self, access: LoadOrStore) -> LoadOrStore:
        name = access.buffer.name
        row = self.rows.get(name)
        return access if row is None else replace(
            access, buffer=row, index=parted(self.owned[name], access.index, self.rank)[1])

    def load(self, scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Load):
            return scalar
        let = self.lets.get(scalar.buffer.name)
        return self.in_row(scalar) if let is None else let

    def store(self, store: Store | None) -> Store | None:
        made = super().store(store)
        return None if made is None else self.in_row(made)

    def kept(self, stage: Stage | Sort) -> Stage | Sort | None:
        """The stage as it is inside; None when it only gives a result another name."""
        made = self.stage(stage)
        if isinstance(made, Sort) or made.store is None or made.axes or made.combine or made.store.update:
            return made
        name = made.store.buffer.name
        if name not in self.owned or any(d != 1 for d in self.inner(name)):
            return made
        let = made.value if isinstance(made.value, Result) else Result(made.name, made.dtype)
        self.lets[name] = let
        if self.owned[name] not in self.inside:
            return made
        return None if let is made.value else replace(made, store=None)
