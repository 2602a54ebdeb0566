"""Loop: `scan_loop` where the number of rounds is known before it starts, else `while_loop`.

Rounds whose number only the run can tell and that give outputs are counted first, by a `while_loop` of what
the end of the loop hangs on. A loop of a constant number of rounds is written out, round by round, where it
can be no op: its state changes its type or is no tensor, or a shape in it hangs on the number of the round.

The inputs of the body are placeholders (regions.py). What a body hands on as it came is no state: the body is
read again with the first value in its place, so that a constant or a size stays one.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from planish.capture.onnx.call import Call
from planish.capture.onnx.control import (
    Inner,
    StateChanges,
    branch,
    needs_value,
    require_state,
    scalar,
    scan_axes,
    scan_batch,
    sequence_map,
    single,
)
from planish.capture.onnx.fresh import dependencies
from planish.capture.onnx.pointwise import number
from planish.capture.onnx.regions import (
    Carry,
    Stacked,
    is_placeholder,
    placeholder,
    repeat,
    round_numbers,
    scan,
)
from planish.capture.onnx.sequences import is_laid_out_as, tensors_of, with_tensors
from planish.capture.onnx.sizes import Value, as_node, known, sizes_value
from planish.capture.onnx.symbols import LONGEST
from planish.errors import NeedsValue
from planish.ir import Node
from planish.ir.graph import topological
from planish.ops.rules import ops
from planish.types import BOOL, INT64, Dim, TensorType, is_static
from planish.types.dim import maximum

MOST_ROUNDS = 1024   # of a loop that is written out


def changes(error: StateChanges | NeedsValue) -> bool:
    """Whether what is not known of a body changes from round to round."""
    return isinstance(error, StateChanges) or any(map(is_placeholder, error.inputs))


def loop(call: Call, inner: Inner) -> Sequence[Value | None]:
    """The last state, then the outputs of all rounds, stacked along a new axis 0."""
    return _Loop(call, inner).results()


@dataclass(frozen=True, eq=False)
class _Loop:
    """At most `trips` rounds (None: any number), each while `starts`, and what the last one says, is true."""

    call: Call
    inner: Inner

    @cached_property
    def body(self) -> Any:
        body, count = self.call.attribute("body"), len(self.first)
        if len(body.input) != 2 + count or len(body.output) < 1 + count:
            self.call.invalid(f"its body has {len(body.input)} inputs and {len(body.output)} outputs for "
                              f"{count} values of state")
        return body

    @property
    def trips(self) -> Value | None:
        return self.call.operands[0] if self.call.has(0) else None

    @property
    def starts(self) -> Value:
        given = self.call.operands[1] if self.call.has(1) else None
        return number(True, BOOL) if given is None else given

    @property
    def first(self) -> list[Value]:
        values = self.call.operands[2:]
        if None in values:
            self.call.invalid(f"operand {2 + values.index(None)} is missing")
        return [v for v in values if v is not None]

    @cached_property
    def most(self) -> Dim | None:
        """The most rounds there can be, where it is known."""
        trips = 0 if single(self.starts) == 0 else single(self.trips)
        return None if trips is None else maximum(0, trips)

    def results(self) -> Sequence[Value | None]:
        if self.most == 1:
            return self.written_out()
        try:
            return self.as_op()
        except (StateChanges, NeedsValue) as error:
            if is_static(self.most) and self.most <= MOST_ROUNDS:
                return self.written_out()
            if is_static(self.most) or self.trips is None or not changes(error):
                raise
            needs_value(self.call, 0, f"the number of rounds to be written out ({error})")

    # --- as an op

    def as_op(self) -> list[Value | None]:
        at = placeholder("round", TensorType(INT64))
        inputs, results = self.read(at)
        n = len(inputs)
        state = zip(inputs, self.first, results[1:])
        carries = [carry for values in state for carry in self.carries(*values)]
        require_state(self.call, carries)
        goes_on, pieces = as_node(results[0]), [as_node(y) for y in results[1 + n:]]
        unending = single(goes_on) == 1 and single(self.starts) is not None
        if self.most is not None and (unending or self.most == 0):
            length = self.most
        elif pieces:
            length = self.said(self.counted(at, carries, goes_on, unending))
        else:
            return self.ends(inputs, self.while_(at, carries, goes_on)[0])
        last, stacks = scan(carries, [Stacked(at, round_numbers(length))], pieces, length, self.inner.note_of)
        return [*self.ends(inputs, last), *stacks]

    def carries(self, inside: Value, first: Value, following: Value) -> list[Carry]:
        """What is handed on of one value of the state: its tensors, or nothing where it stays as it is."""
        if not is_laid_out_as(first, following):
            raise StateChanges(f"{self.call.where}: its state holds other tensors after a round; only a loop "
                               "of a constant number of rounds may change that")
        if inside is first:
            return []
        return [Carry(*nodes) for nodes in zip(tensors_of(inside), tensors_of(first), tensors_of(following))]

    def ends(self, inputs: Sequence[Value], last: Sequence[Node]) -> list[Value | None]:
        """The state after the last round."""
        nodes = iter(last)
        return [first if i is first else with_tensors(first, nodes) for i, first in zip(inputs, self.first)]

    def read(self, at: Node) -> tuple[list[Value], list[Value]]:
        """The inputs of the body that stand for the state, or the first value where that is all there is;
        what the body gives."""
        names = [value.name for value in self.body.input[2:]]
        inputs = [with_tensors(v, iter([placeholder(n, t.tensor) for t in tensors_of(v)]))
                  for n, v in zip(names, self.first)]
        while True:
            results = self.inner.read_body(self.body, [at, number(True, BOOL), *inputs])
            same = [i for i, (now, first, following) in enumerate(zip(inputs, self.first, results[1:]))
                    if now is not first and (following is now or following is first)]
            if not same:
                return inputs, results
            for i in same:
                inputs[i] = self.first[i]

    def counted(self, at: Node, carries: Sequence[Carry], goes_on: Node, unending: bool) -> Node:
        """The number of rounds, from a loop of the state alone that the end hangs on."""
        if unending and self.trips is not None:
            return ops.maximum(scalar(self.trips), 0)
        needed: set[Node] = set()
        waiting = [goes_on]
        while waiting:
            found = {*topological(waiting)} - needed
            needed |= found
            waiting = [c.following for c in carries if c.inside in found]
        return self.while_(at, [c for c in carries if c.inside in needed], goes_on)[1]

    def said(self, count: Node) -> Dim:
        """A number as a size."""
        if self.call.fresh is None or self.call.is_body:
            self.needs("its number of rounds, the size of an output,", count)
        return self.call.fresh.sizes("sizes", [count], [LONGEST])[0]

    def needs(self, what: str, node: Node) -> NoReturn:
        inputs, sizes = dependencies([node], (), self.call.fresh)
        raise NeedsValue(f"{self.call.where}: {what} depends on the values of inputs; give "
                         f"{', '.join(inputs)} as constants: load_graph(..., constants={{name: array}})",
                         inputs, sizes)

    def while_(self, at: Node, carries: Sequence[Carry], goes_on: Node) -> tuple[list[Node], Node]:
        """The last state and the number of rounds."""
        open_ = placeholder("goes_on", TensorType(BOOL))
        own = [Carry(at, number(0, INT64), at + 1), Carry(open_, scalar(self.starts), scalar(goes_on))]
        condition = open_ if self.trips is None else ops.bitwise_and(open_, ops.lt(at, scalar(self.trips)))
        rounds, _, *last = repeat([*own, *carries], condition, self.inner.note_of)
        return last, rounds

    # --- written out

    def written_out(self) -> list[Value | None]:
        """Round by round; each has its number as a constant."""
        if self.most is not None and not is_static(self.most):
            needs_value(self.call, 0, "its number of rounds, as its state is no tensor or changes its type,")
        state, goes_on = self.first, self.starts
        stacks: list[list[Value]] = [[] for _ in self.body.output[1 + len(state):]]
        at = 0
        while (self.most is None or at < self.most) and self.is_true(goes_on):
            if at == MOST_ROUNDS:
                self.call.refuse(f"more than {MOST_ROUNDS} rounds that are written out one by one")
            goes_on, *results = self.inner.read(self.body, [number(at, INT64), number(True, BOOL), *state])
            state, pieces = results[:len(state)], results[len(state):]
            for stack, piece in zip(stacks, pieces):
                stack.append(piece)
            at += 1
        outputs = self.nothing() if stacks and at == 0 else [self.stacked(stack) for stack in stacks]
        return [*state, *outputs]

    def nothing(self) -> list[Value]:
        """The outputs of no round, of the types that those of the first would have."""
        results = self.inner.read_body(self.body, [number(0, INT64), number(True, BOOL), *self.first])
        pieces = [as_node(piece) for piece in results[1 + len(self.first):]]
        return [ops.broadcast_to(number(0, p.dtype), shape=(0, *p.shape)) for p in pieces]

    def is_true(self, goes_on: Value) -> bool:
        value = single(goes_on)
        if not is_static(value):
            self.needs("when it ends, as its rounds are to be written out,", as_node(goes_on))
        return bool(value)

    def stacked(self, pieces: Sequence[Value]) -> Value:
        elements, nodes = [e for e in map(known, pieces) if e is not None], list(map(as_node, pieces))
        if len(elements) == len(pieces):
            return sizes_value(np.stack(elements), nodes[0].dtype)
        rows = [ops.reshape(p, shape=(1, *p.shape)) for p in nodes]
        return rows[0] if len(rows) == 1 else ops.concat(*rows, axis=0)


Control = Callable[[Call, Inner], Sequence["Value | None"]]

CONTROL: dict[str, dict[int, Control]] = {
    "If": {1: branch},
    "Loop": {1: loop},
    "Scan": {8: scan_batch, 9: scan_axes},
    "SequenceMap": {17: sequence_map},
}


def find_control(domain: str, op_type: str, opset: int) -> Control | None:
    """How an operator with graphs among its attributes is translated, as of an opset; None for any other."""
    versions = {} if domain else CONTROL.get(op_type, {})
    held = [since for since in versions if since <= opset]
    return versions[max(held)] if held else None
