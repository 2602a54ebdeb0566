"""Control flow: cond, while_loop, scan_loop. Attributes hold graphs.

A graph here is anything with `inputs`, `outputs` (of which `type` is read) and `run(*arrays) -> arrays`.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from planish.errors import TypeRuleError
from planish.ops.record import Sample
from planish.ops.rules import STORED, define, require, require_at_least
from planish.types import BOOL, DType, TensorType


class Region(Protocol):
    @property
    def inputs(self) -> Sequence[Any]: ...

    @property
    def outputs(self) -> Sequence[Any]: ...

    def run(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]: ...


@dataclass(frozen=True)
class CondAttributes:
    then_graph: Any
    else_graph: Any


@dataclass(frozen=True)
class WhileAttributes:
    """`condition` gives one bool scalar, `body` the next state; both take the state."""

    condition: Any
    body: Any


@dataclass(frozen=True)
class ScanLoopAttributes:
    """`body` takes the carries (the first `carries` operands) and one slice of each of the others along axis
    0, and gives the next carries and one slice of each stacked result. It runs `length` times, from the end
    where `reverse`."""

    body: Any
    length: int
    carries: int
    reverse: bool = False


def _types(nodes: Sequence[Any]) -> tuple[TensorType, ...]:
    return tuple(node.type for node in nodes)


def _list(types: Sequence[TensorType]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _require_types(what: str, given: Sequence[TensorType], expected: Sequence[TensorType]) -> None:
    require(tuple(given) == tuple(expected), f"{what} is {_list(given)}, to be {_list(expected)}")


def _require_predicate(type_: TensorType) -> None:
    require(type_ == TensorType(BOOL), f"the condition is to be a bool scalar, not {type_}")


# --- cond

def _cond_rule(attributes: CondAttributes, pred: TensorType, *operands: TensorType) -> tuple[TensorType, ...]:
    _require_predicate(pred)
    for name in ("then_graph", "else_graph"):
        _require_types(f"what {name} takes", _types(getattr(attributes, name).inputs), operands)
    results = _types(attributes.then_graph.outputs)
    _require_types("the result of else_graph", _types(attributes.else_graph.outputs), results)
    return results


def _cond(a: CondAttributes, pred: np.ndarray, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple((a.then_graph if pred else a.else_graph).run(*operands))


# --- while_loop

def _while_rule(attributes: WhileAttributes, *state: TensorType) -> tuple[TensorType, ...]:
    for name in ("condition", "body"):
        _require_types(f"what the {name} takes", _types(getattr(attributes, name).inputs), state)
    outputs = _types(attributes.condition.outputs)
    require(len(outputs) == 1, f"the condition is to have one result, not {len(outputs)}")
    _require_predicate(outputs[0])
    _require_types("the result of the body", _types(attributes.body.outputs), state)
    return state


def _while(a: WhileAttributes, *state: np.ndarray) -> tuple[np.ndarray, ...]:
    while a.condition.run(*state)[0]:
        state = tuple(a.body.run(*state))
    return state


# --- scan_loop

def _scan_loop_rule(attributes: ScanLoopAttributes, *operands: TensorType) -> tuple[TensorType, ...]:
    n = attributes.carries
    require(0 <= n <= len(operands), f"carries {n} of {len(operands)} operands")
    require_at_least("length", attributes.length, 0)
    carries, stacked = operands[:n], operands[n:]
    for x in stacked:
        if x.rank == 0 or x.shape[0] != attributes.length:
            raise TypeRuleError(f"{x} is to have the length {attributes.length} along axis 0")
    slices = tuple(x.with_shape(x.shape[1:]) for x in stacked)
    _require_types("what the body takes", _types(attributes.body.inputs), carries + slices)
    results = _types(attributes.body.outputs)
    _require_types("the carries the body gives", results[:n], carries)
    return carries + tuple(y.with_shape((attributes.length, *y.shape)) for y in results[n:])


def _scan_loop(a: ScanLoopAttributes, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
    carries, stacked = operands[:a.carries], operands[a.carries:]
    rows = []
    for i in reversed(range(a.length)) if a.reverse else range(a.length):
        outputs = a.body.run(*carries, *(np.asarray(x[i]) for x in stacked))
        carries = tuple(outputs[:a.carries])
        rows.append(outputs[a.carries:])
    if not rows:
        pieces = [o.type for o in a.body.outputs[a.carries:]]
        return (*carries, *(np.empty((0, *t.shape), t.dtype.numpy) for t in pieces))
    return (*carries, *map(np.stack, zip(*(reversed(rows) if a.reverse else rows))))


# --- records. Graphs are made one folder up, so these have no samples here.

def _no_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    return iter(())


cond = define("cond", "control", _cond_rule, _cond, operands=None, dtypes=(BOOL,), attributes=CondAttributes,
              traits={"control"}, samples=_no_samples)
while_loop = define("while_loop", "control", _while_rule, _while, operands=None, dtypes=STORED,
                    attributes=WhileAttributes, traits={"control"}, samples=_no_samples)
scan_loop = define("scan_loop", "control", _scan_loop_rule, _scan_loop, operands=None, dtypes=STORED,
                   attributes=ScanLoopAttributes, traits={"control"}, samples=_no_samples)
