"""If and Scan as native control ops, and what Loop (loops.py) shares with them.

If       the branch that constants and sizes choose; else `cond` on both
Scan     `scan_loop`; before opset 9, of every element of a batch, one after another
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from planish.capture.onnx.call import Call
from planish.capture.onnx.containers import SequenceValue
from planish.capture.onnx.ends import declared_dtype
from planish.capture.onnx.pointwise import number
from planish.capture.onnx.regions import Carry, NoteOf, Stacked, choose, placeholder, round_numbers, scan
from planish.capture.onnx.sequences import elements_beside, is_laid_out_as, tensors_of, with_tensors
from planish.capture.onnx.sizes import Sizes, Value, as_node, computed, dims_of, known
from planish.errors import ModelError, NeedsValue, UnsupportedOp
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT64, Dim, TensorType, is_static


@dataclass(frozen=True)
class Inner:
    """How the graphs among a node's attributes are read, in the scope of the node: `read(graph, inputs)`
    translates one on these values in the place of the node, `read_body` as the body of an op. `outside` has
    the values of that scope; `note_of` says where a node comes from."""

    read: Callable[[Any, Sequence[Value]], list[Value]]
    read_body: Callable[[Any, Sequence[Value]], list[Value]]
    outside: Mapping[str, Value]
    note_of: NoteOf


def single(value: Value | None) -> Dim | None:
    """The one element of a value, where it follows from constants and sizes."""
    elements = known(value)
    if elements is None and isinstance(value, Node):
        elements = computed(value)
    return None if elements is None else dims_of(elements).reshape(-1)[0]


def scalar(value: Value) -> Node:
    node = as_node(value)
    return node if node.shape == () else ops.reshape(node, shape=())


def needs_value(call: Call, i: int, what: str) -> NoReturn:
    """Raise NeedsValue for `what`, which is as the value of operand `i` says."""
    dims = known(call.operands[i])
    if dims is None:
        call.needs_value(i, what)
    call.needs_size(f"{what} (operand {i})", *dims.flat)


class StateChanges(UnsupportedOp):
    """A loop whose state changes its shape from round to round."""


def require_state(call: Call, carries: Sequence[Carry]) -> None:
    """Raises ModelError for a state whose dtype changes, StateChanges for one whose shape does."""
    for i, carry in enumerate(carries):
        old, new = carry.first.tensor, carry.following.tensor
        if old.dtype is not new.dtype:
            call.invalid(f"its state {i} is {old} at first and {new} after a round")
        if old.shape != new.shape:
            raise StateChanges(f"{call.where}: its state {i} is {old} at first and {new} after a round; "
                               "only a loop of a constant number of rounds may change a shape")


# --- If

def branch(call: Call, inner: Inner) -> Sequence[Value | None]:
    """The results of the branch that is taken; where only the run can tell, of either."""
    condition = single(call.operands[0])
    if is_static(condition):
        return inner.read(call.attribute("then_branch" if condition else "else_branch"), ())
    then, otherwise = (_branch(call, inner, name) for name in ("then_branch", "else_branch"))
    differ = [i for i, (a, b) in enumerate(zip(then, otherwise, strict=True)) if not _is_one_value(a, b)]
    pairs = [pair for i in differ for pair in _pairs(call, i, then[i], otherwise[i])]
    before = [node for value in inner.outside.values() for node in tensors_of(value)]
    sides = [a for a, _ in pairs], [b for _, b in pairs]
    chosen = iter(choose(scalar(call[0]), *sides, before, inner.note_of))
    return [with_tensors(value, chosen) if i in differ else value for i, value in enumerate(then)]


def _branch(call: Call, inner: Inner, name: str) -> list[Value]:
    """A branch that may not be taken; one that never is need not even fit its operands."""
    try:
        return inner.read_body(call.attribute(name), ())
    except ModelError as error:
        needs_value(call, 0, f"whether a branch that does not fit ({error}) is taken")
    except NeedsValue as error:
        needs_value(call, 0, f"whether a branch with sizes that depend on values ({error}) is taken")


def _pairs(call: Call, i: int, then: Value, otherwise: Value) -> list[tuple[Node, Node]]:
    """The tensors of output `i` by either branch."""
    if not is_laid_out_as(then, otherwise):
        needs_value(call, 0, f"what its output {i} holds")
    pairs = list(zip(tensors_of(then), tensors_of(otherwise)))
    for a, b in pairs:
        if a.type != b.type:
            needs_value(call, 0, f"the type of its output {i}, {a.type} or {b.type},")
    return pairs


def _is_one_value(a: Value, b: Value) -> bool:
    if isinstance(a, Sizes) and isinstance(b, Sizes):
        return a.dtype is b.dtype and a.shape == b.shape and bool((a.dims == b.dims).all())
    return a is b


# --- Scan

@dataclass(frozen=True)
class _Scan:
    """A Scan node. Of each scanned operand and output: its axis, and whether it is walked from the end."""

    call: Call
    inner: Inner
    body: Any
    axes: tuple[int, ...]
    backward: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_backward: tuple[bool, ...]

    @classmethod
    def of(cls, call: Call, inner: Inner) -> _Scan:
        body, n = call.attribute("body"), call.attribute("num_scan_inputs")
        pieces = len(body.output) - (len(body.input) - n)
        if pieces < 0 or n < 1:
            call.invalid(f"its body has {len(body.input)} inputs, {n} of them scanned, and "
                         f"{len(body.output)} outputs")

        def given(name: str, count: int) -> tuple[int, ...]:
            return tuple(call.attribute(name, (0,) * count))
        backward = given("scan_input_directions" if call.opset >= 9 else "directions", n)
        output_backward = given("scan_output_directions", pieces)
        return cls(call, inner, body, given("scan_input_axes", n), tuple(map(bool, backward)),
                   given("scan_output_axes", pieces), tuple(map(bool, output_backward)))

    def results(self, operands: Sequence[Node]) -> list[Node]:
        n = len(self.axes)
        scanned = [_moved(x, axis, 0) for x, axis in zip(operands[-n:], self.axes, strict=True)]
        last, outputs = self.run(operands[:-n], scanned)
        return last + [_moved(y, 0, axis) for y, axis in zip(outputs, self.output_axes, strict=True)]

    def run(self, states: Sequence[Node], scanned: Sequence[Node],
            count: Node | None = None) -> tuple[list[Node], list[Node]]:
        """The last states and the outputs, all along axis 0; with a `count`, of so many rounds only."""
        reverse = self.backward[0]
        whole = [_turned(x, back is not reverse) for x, back in zip(scanned, self.backward)]
        length = whole[0].shape[0]
        inputs = [placeholder("state", s.tensor) for s in states]
        pieces = [placeholder("piece", x.tensor.with_shape(x.shape[1:])) for x in whole]
        results = list(map(as_node, self.inner.read_body(self.body, [*inputs, *pieces])))
        carries = [Carry(i, f, n) for i, f, n in zip(inputs, states, results)]
        require_state(self.call, carries)
        outputs, stacked = results[len(states):], [Stacked(p, x) for p, x in zip(pieces, whole)]
        if count is not None:
            stacked.append(Stacked(placeholder("round", TensorType(INT64)), round_numbers(length)))
            carries, outputs = while_active(ops.lt(stacked[-1].inside, count), carries, outputs)
        last, outputs = scan(carries, stacked, outputs, length, self.inner.note_of, reverse=reverse)
        return last, [_turned(y, back is not reverse) for y, back in zip(outputs, self.output_backward)]

    def of_batch(self, counts: Node | None, operands: Sequence[Node]) -> list[Node]:
        """Of every element of a batch, which lie along axis 0: one after another."""
        if counts is not None and any(self.backward):
            self.call.refuse("sequence_lens and a direction from the end")
        whole = [*operands, *([] if counts is None else [counts])]
        one = [placeholder("one", x.tensor.with_shape(x.shape[1:])) for x in whole]
        n = len(operands) - len(self.axes)
        last, outputs = self.run(one[:n], one[n:len(operands)], None if counts is None else one[-1])
        stacked = [Stacked(i, x) for i, x in zip(one, whole, strict=True)]
        return scan([], stacked, [*last, *outputs], whole[0].shape[0], self.inner.note_of)[1]


def while_active(active: Node, carries: Sequence[Carry],
                 pieces: Sequence[Node]) -> tuple[list[Carry], list[Node]]:
    """A round that counts only where `active` is true: else the state stays, and what it gives is 0."""
    kept = [Carry(c.inside, c.first, ops.select(active, c.following, c.inside)) for c in carries]
    return kept, [ops.select(active, y, number(0, y.dtype)) for y in pieces]


def _moved(x: Node, axis: int, to: int) -> Node:
    """x with one axis at another place."""
    order = list(range(x.ndim))
    order.insert(to % x.ndim, order.pop(axis))
    return x if order == sorted(order) else ops.transpose(x, axes=tuple(order))


def _turned(x: Node, turn: bool) -> Node:
    return ops.reverse(x, axes=(0,)) if turn else x


def scan_batch(call: Call, inner: Inner) -> list[Node]:
    """Opset 8: operand 0 has the lengths of the sequences, all others have the batch along axis 0."""
    return _Scan.of(call, inner).of_batch(call.get(0), [call[i] for i in range(1, len(call.operands))])


def scan_axes(call: Call, inner: Inner) -> list[Node]:
    return _Scan.of(call, inner).results(call.nodes())


# --- SequenceMap

def sequence_map(call: Call, inner: Inner) -> list[Value]:
    """The sequences of what the body gives for each element of the first operand, and of others."""
    body = call.attribute("body")
    rows = [inner.read(body, operands) for operands in elements_beside(call)]
    dtypes = [declared_dtype(value.type, call.where) for value in body.output]
    return [SequenceValue(tuple(row[i] for row in rows), dtype) for i, dtype in enumerate(dtypes)]
