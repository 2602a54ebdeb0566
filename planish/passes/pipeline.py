"""The pipeline: one list. Every position has its reason here and a test that fails when it moves."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from time import perf_counter
from typing import Any

from planish.ir import Graph, Node
from planish.ir.graph import rebuild
from planish.ir.node import make_node
from planish.passes.canonicalise import Canonicalise
from planish.passes.decompose import Decompose
from planish.passes.drop_dead import DropDead
from planish.passes.fold_constants import FoldConstants
from planish.passes.fold_normalisation import FoldNormalisation
from planish.passes.hooks import Hook, hook_of_knobs
from planish.passes.protocol import Context, Pass, PassRecord
from planish.passes.rewriting import Rewriting
from planish.passes.share import Share
from planish.rewrite import Numerics
from planish.rewrite.driver import Observer
from planish.rewrite.rules import ALGEBRA, FOLD_SCALE, MOVEMENT, RECOGNISE, SUBSTITUTE

decompose = Decompose()
canonicalise = Canonicalise()
fold_constants = FoldConstants()
fold_normalisation = FoldNormalisation()
simplify = Rewriting("simplify", "after folding: its rules look for 1, 0 and whole constants", ALGEBRA)
substitute = Rewriting("substitute", "after the algebra: it brings together what this looks for",
                        SUBSTITUTE + MOVEMENT)
fold_scale = Rewriting("fold_scale", "after substitution: a division by 8 is a scale by then", FOLD_SCALE)
share = Share()
recognise = Rewriting("recognise", "after sharing: it looks for exponentials over their own sum", RECOGNISE)
drop_dead = DropDead()

PIPELINE: tuple[Pass, ...] = (
    decompose,
    canonicalise,
    fold_constants,
    fold_normalisation,
    simplify,
    substitute,
    fold_scale,
    share,
    recognise,
    drop_dead,
)


def run_pipeline(graph: Graph, *, numerics: Numerics = "default", disable: frozenset[str] = frozenset(),
                 hook: Hook | None = None, passes: Sequence[Pass] = PIPELINE, observe: Observer | None = None,
                 strict_fuel: bool = False) -> tuple[Graph, list[PassRecord]]:
    """The optimised graph and what each pass did.

    `disable` holds names of passes, and of single rules. `hook` is called after every pass (without one:
    PLANISH_TRACE decides). `observe(rule, before, after)` sees every firing. Graphs inside control ops go
    through the same passes.
    """
    hook = hook or hook_of_knobs()
    captured = frozenset(graph.nodes())
    records: list[PassRecord] = []
    count = len(captured)
    for position, one in enumerate((p for p in passes if p.name not in disable), start=1):
        context = Context(numerics, disable, captured, observe, strict_fuel)
        start = perf_counter()
        after = run_everywhere(one, graph, context)
        seconds = perf_counter() - start
        fired = {name: count for name, count in context.fired.items() if count}
        before, count = count, len(after.nodes()) if after is not graph else count
        records.append(PassRecord(one.name, seconds, before, count, fired, one.reason))
        if hook is not None:
            hook(position, graph, after, records[-1])
        graph = after
    return graph, records


def run_everywhere(one: Pass, graph: Graph, context: Context) -> Graph:
    """The pass on the graphs inside control ops, innermost first, then on the graph itself."""
    def change(node: Node, operands: tuple[Node, ...]) -> Node:
        if not node.op.has("control"):
            return rebuild(node, operands)
        return make_node(node.op, operands, _with_inner(one, node.attributes, context))
    if any(n.op.has("control") for n in graph.nodes()):
        graph = graph.map(change)
    return one.run(graph, context)


def _with_inner(one: Pass, attributes: Any, context: Context) -> Any:
    assert is_dataclass(attributes) and not isinstance(attributes, type)
    inner = {f.name: getattr(attributes, f.name) for f in fields(attributes)}
    context = replace(context, captured=frozenset())
    changed = {name: run_everywhere(one, g, context) for name, g in inner.items() if isinstance(g, Graph)}
    return replace(attributes, **changed)
