"""Higher-order operators, which take graphs: torch.cond, while_loop, scan and map as native control ops.

torch hands what a graph reads from outside over as operands, so every graph is closed and is translated by
itself. A graph inside a control op runs no host ops and holds no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from planish.capture.torch.call import Call, as_node, reshaped
from planish.ir import Graph, Node
from planish.ops.rules import ops
from planish.types import BOOL

Body = Callable[[Any, Sequence[Any]], Graph]  # an FX graph and what it is called with -> its translation


def cond(call: Call, body: Body, pred: Any, then: Any, otherwise: Any, operands: Sequence[Any]) -> Any:
    if isinstance(pred, bool):
        call.refuse("a condition that is known when the program is captured")
    graphs = [body(branch, operands) for branch in (then, otherwise)]
    condition = reshaped(as_node(pred, BOOL), ())
    return _results(ops.cond(condition, *tensors(call, operands), then_graph=graphs[0], else_graph=graphs[1]))


def while_loop(
    call: Call, body: Body, test: Any, step: Any, state: Sequence[Any], fixed: Sequence[Any]
) -> Any:
    """The state goes through the loop; what it only reads stands beside it."""
    carried = [*state, *fixed]
    graphs = [body(graph, carried) for graph in (test, step)]
    kept = graphs[1].inputs[len(state) :]
    step_graph = _with_outputs(graphs[1], (*graphs[1].outputs, *kept))
    made = ops.while_loop(*tensors(call, carried), condition=graphs[0], body=step_graph)
    return _results(made)[: len(state)]


def scan(
    call: Call,
    body: Body,
    combine: Any,
    first: Sequence[Any],
    stacked: Sequence[Any],
    fixed: Sequence[Any] = (),
) -> Any:
    """`combine` takes the state, a piece of each stacked operand, and what it only reads; and gives the next
    state and pieces of the results."""
    states, whole, read = tensors(call, first), tensors(call, stacked), tensors(call, fixed)
    pieces = [reshaped_piece(x) for x in whole]
    graph = body(combine, [*states, *pieces, *read])
    n, m = len(states), len(whole)
    inner = graph.inputs
    graph = Graph(
        (*inner[:n], *inner[n + m :], *inner[n : n + m]),
        (*graph.outputs[:n], *inner[n + m :], *graph.outputs[n:]),
        name=graph.name,
        notes=graph.notes,
    )
    made = ops.scan_loop(
        *states, *read, *whole, body=graph, length=whole[0].shape[0], carries=n + len(read), reverse=False
    )
    results = _results(made)
    return (*results[:n], *results[n + len(read) :])


def map_(call: Call, body: Body, function: Any, stacked: Sequence[Any], fixed: Sequence[Any]) -> Any:
    return scan(call, body, function, (), stacked, fixed)


def tensors(call: Call, operands: Sequence[Any]) -> list[Node]:
    for x in operands:
        if not isinstance(x, Node):
            call.refuse(f"an operand of type {type(x).__name__} of a graph inside")
    return list(operands)


def reshaped_piece(whole: Node) -> Node:
    """A row, of which only the type is used."""
    first = ops.slice(
        whole, starts=(0,) * whole.ndim, stops=(1, *whole.shape[1:]), steps=(1,) * whole.ndim
    )
    return reshaped(first, whole.shape[1:])


def _with_outputs(graph: Graph, outputs: Sequence[Node]) -> Graph:
    return Graph(graph.inputs, tuple(outputs), name=graph.name, notes=graph.notes)


def _results(made: Any) -> tuple[Node, ...]:
    return made if isinstance(made, tuple) else (made,)


CONTROL: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_,
}

# Operators that only say how their graph is run: (graph, its operands) from their arguments.
INLINED: dict[str, Callable[..., tuple[Any, Sequence[Any]]]] = {
    "invoke_subgraph": lambda graph, identifier, *operands: (graph, operands),
    "wrap_with_set_grad_enabled": lambda enabled, graph, *operands: (graph, operands),
    "tag_activation_checkpoint": lambda graph, *operands, **options: (graph, operands),
    "wrap_with_autocast": lambda device, dtype, enabled, cached, graph, *operands: (graph, operands),
    "wrap": lambda graph, *operands: (graph, operands),
    "hints_wrapper": lambda graph, operands, keywords=(), hints=(): (graph, operands),
}
