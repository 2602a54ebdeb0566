"""What no result needs goes: a graph is what its outputs and effects reach, so this forgets the rest and
counts it.

Checks whose condition is a constant True go as well, and host ops that say sizes which nothing uses. Inputs
stay, used or not: they are the program's signature.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from planish.ir import Graph, Node
from planish.ir.fresh import without_idle_hosts
from planish.passes.protocol import Context
from planish.rewrite import uniform_value


@dataclass(frozen=True)
class DropDead:
    """Counts `check_holds`, `never_used` (written by the user, needed by nothing) and `replaced` (by the
    passes before)."""

    name: str = "drop_dead"
    reason: str = "last: what the passes before left behind is known only now"

    def run(self, graph: Graph, context: Context) -> Graph:
        effects = tuple(e for e in graph.effects if not holds_always(e))
        context.fired["check_holds"] += len(graph.effects) - len(effects)
        kept = without_idle_hosts(replace(graph, effects=effects))
        live = set(kept.nodes())
        if context.captured:
            context.fired["never_used"] += sum(_is_written(n, graph) and n not in context.captured
                                               for n in graph.notes)
            context.fired["replaced"] += len(context.captured - live)
        notes = {n: note for n, note in graph.notes.items() if n in live}
        return replace(kept, notes=MappingProxyType(notes))


def holds_always(effect: Node) -> bool:
    return effect.op.name == "check" and uniform_value(effect.operands[0]) is True


def _is_written(node: Node, graph: Graph) -> bool:
    """Whether a node with a note comes from the program and not from a rule."""
    note = graph.note(node)
    return note.location is not None and not note.rules
