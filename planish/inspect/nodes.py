"""Where a model's values begin to diverge: every node's outputs, by everyone, against float64.

In: an ONNX model whose every value is an output (`with_every_value`), captured, and who runs it. Out: a
`NodeError` per node in the model's order: the worst of its outputs for each runner. Asking for every value
changes what is fused: where only the whole program is wrong, and no node by itself, fusion is to blame.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planish.inspect.validate import OutputError, Validation


@dataclass(frozen=True)
class NodeError:
    """The largest errors of one node's outputs, who ran it -> the worst of them."""

    name: str
    op: str
    errors: dict[str, OutputError]

    def is_right_for(self, who: str) -> bool:
        return who not in self.errors or self.errors[who].is_right


@dataclass(frozen=True)
class NodeValidation:
    """The errors of every node, and the first that diverges for each runner; `failures` gave no answer."""

    nodes: list[NodeError]
    first: dict[str, str]
    failures: dict[str, str]


def with_every_value(model: Any) -> Any:
    """The ModelProto with the outputs of all its nodes as outputs too."""
    copy = type(model)()
    copy.CopyFrom(model)
    known = {value.name for value in copy.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                copy.graph.output.add(name=name)
    return copy


def node_errors(model: Any, validation: Validation) -> NodeValidation:
    """What a validation says of each node of the model it was made for."""
    by_output = {who: {e.name: e for e in errors} for who, errors in validation.errors.items()}
    nodes = list(_per_node(model.graph.node, by_output))
    found = {who: next((n for n in nodes if not n.is_right_for(who)), None) for who in by_output}
    return NodeValidation(nodes, {who: n.name for who, n in found.items() if n is not None},
                          validation.failures)


def _per_node(nodes: Sequence[Any], errors: Mapping[str, Mapping[str, OutputError]]) -> Iterator[NodeError]:
    for i, node in enumerate(nodes):
        names = [name for name in node.output if name]
        found = {who: [of_one[n] for n in names if n in of_one] for who, of_one in errors.items()}
        worst = {who: max(mine, key=_badness) for who, mine in found.items() if mine}
        if worst:
            yield NodeError(node.name or f"{node.op_type} {i}", node.op_type, worst)


def _badness(error: OutputError) -> tuple[bool, float]:
    return not error.is_right, error.relative
