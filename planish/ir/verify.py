"""The verifier: what must hold of every graph, between all passes."""
from __future__ import annotations

from planish.errors import TypeRuleError, VerificationError
from planish.ir.fresh import symbols_made, symbols_used
from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.ir.text import print_graph

CONTEXT = 5  # lines of IR shown on each side of a fault


def verify(graph: Graph, stage: str = "") -> Graph:
    """The graph itself, if it is well formed. Raises VerificationError with the stage and the IR around the
    fault.

    Checked: operand types follow each op's type rule; inputs are the graph's own and distinct; an output or
    check is a single tensor; effects are checks and host ops; a size that a host op defines is used after it.
    """
    declared = set(graph.inputs)
    if len(declared) != len(graph.inputs):
        raise VerificationError(_report(graph, graph.inputs[0], "an input is listed twice", stage))
    for node in graph.nodes():
        fault = _fault(node, declared)
        if fault:
            raise VerificationError(_report(graph, node, fault, stage))
    for root in graph.roots:
        if isinstance(root.type, tuple) and not root.op.has("host"):
            raise VerificationError(_report(graph, root, "a result must be one tensor; take an item", stage))
    for effect in graph.effects:
        if not (effect.op.has("effect") or effect.op.has("host")):
            raise VerificationError(_report(graph, effect, f"{effect.op} has no effect", stage))
    if any(n.op.has("host") for n in graph.nodes()):
        _require_order(graph, stage)
    return graph


def _require_order(graph: Graph, stage: str) -> None:
    known = set(graph.symbols())
    for node in graph.nodes():
        if unknown := [name for name in symbols_used(node) if name not in known]:
            fault = f"no input and no host op before it says what {', '.join(unknown)} is"
            raise VerificationError(_report(graph, node, fault, stage))
        known |= set(symbols_made(node))


def _fault(node: Node, declared: set[Node]) -> str | None:
    if node.op.name == "input":
        return None if node in declared else f"input {node.attributes.name} is not among the graph's inputs"
    if not isinstance(node.attributes, node.op.attributes):
        return f"attributes are {type(node.attributes).__name__}, not {node.op.attributes.__name__}"
    try:
        type_ = node.op.infer(node.attributes, *(o.type for o in node.operands))
    except TypeRuleError as error:
        return str(error)
    return None if type_ == node.type else f"its type is {node.type}; the rule gives {type_}"


def _report(graph: Graph, node: Node, fault: str, stage: str) -> str:
    lines = print_graph(graph, mark=node).splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("->")), 0)
    around = "\n".join(lines[max(0, at - CONTEXT):at + CONTEXT + 1])
    note = graph.note(node)
    where = f" (from {note.location})" if note.location else ""
    after = f"after {stage}: " if stage else ""
    return f"{after}{fault}{where}\n{around}"
