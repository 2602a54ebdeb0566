"""Operators on sequences and optionals: they run while the model is read, on the values of containers.py.

A position in a sequence is to be known then: a constant, or what follows from sizes.
"""
from __future__ import annotations

from collections.abc import Iterator

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.containers import EMPTY_OPTIONAL, EmptyOptional, SequenceValue
from planish.capture.onnx.movement import reshaped, sliced
from planish.capture.onnx.pointwise import number
from planish.capture.onnx.sizes import Value, as_node, sizes_value
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, FLOAT32, Dim, is_static


def sequence_of(call: Call, i: int) -> SequenceValue:
    """Operand `i`, which is to be a sequence."""
    value = call.operands[i] if call.has(i) else None
    if not isinstance(value, SequenceValue):
        call.invalid(f"operand {i} is to be a sequence")
    return value


def _position(call: Call, i: int, count: int, last: int) -> int:
    """Operand `i`, from -count to `last`, as a position counted from 0; -1 is that of the last element."""
    position = call.integer(i, "position")
    if not -count <= position <= last:
        call.invalid(f"position {position} in a sequence of {count}")
    return position + count if position < 0 else position


# --- values taken apart, for control flow

def tensors_of(value: Value) -> tuple[Node, ...]:
    """The tensors in a value, in order."""
    if isinstance(value, EmptyOptional):
        return ()
    if isinstance(value, SequenceValue):
        return tuple(node for element in value.elements for node in tensors_of(element))
    return (as_node(value),)


def with_tensors(value: Value, nodes: Iterator[Node]) -> Value:
    """A value laid out as `value`, of other tensors: the next of `nodes`."""
    if isinstance(value, EmptyOptional):
        return value
    if isinstance(value, SequenceValue):
        return SequenceValue(tuple(with_tensors(e, nodes) for e in value.elements), value.dtype)
    return next(nodes)


def is_laid_out_as(value: Value, other: Value) -> bool:
    """Whether two values hold the same number of tensors in the same places."""
    if isinstance(value, SequenceValue) and isinstance(other, SequenceValue):
        pairs = list(zip(value.elements, other.elements))
        return len(value.elements) == len(other.elements) and all(is_laid_out_as(a, b) for a, b in pairs)
    plain = (SequenceValue, EmptyOptional)
    return type(value) is type(other) or not (isinstance(value, plain) or isinstance(other, plain))


# --- sequences

@translates("SequenceEmpty")
def sequence_empty(call: Call) -> Value:
    return SequenceValue((), call.dtype_attribute("dtype") if call.attribute("dtype") else FLOAT32)


@translates("SequenceConstruct")
def sequence_construct(call: Call) -> Value:
    return SequenceValue(tuple(call.value(i) for i in range(len(call.operands))), call.dtype(0))


@translates("SequenceInsert")
def sequence_insert(call: Call) -> Value:
    sequence, element = sequence_of(call, 0), call.value(1)
    count = len(sequence.elements)
    at = _position(call, 2, count, count) if call.has(2) else count
    elements = (*sequence.elements[:at], element, *sequence.elements[at:])
    return SequenceValue(elements, sequence.dtype or call.dtype(1))


@translates("SequenceErase")
def sequence_erase(call: Call) -> Value:
    sequence = sequence_of(call, 0)
    count = len(sequence.elements)
    if not count:
        call.invalid("the sequence is empty")
    at = _position(call, 1, count, count - 1) if call.has(1) else count - 1
    return SequenceValue((*sequence.elements[:at], *sequence.elements[at + 1:]), sequence.dtype)


@translates("SequenceAt")
def sequence_at(call: Call) -> Value:
    elements = sequence_of(call, 0).elements
    return elements[_position(call, 1, len(elements), len(elements) - 1)]


@translates("SequenceLength")
def sequence_length(call: Call) -> Value:
    return sizes_value(len(sequence_of(call, 0).elements))


@translates("SplitToSequence")
def split_to_sequence(call: Call) -> Value:
    axis = call.axis()
    parts, keeps = _parts(call, call.shape()[axis])
    x, pieces = call[0], []
    start: Dim = 0
    for part in parts:
        pieces.append(sliced(x, axis, start, start + part))
        start = start + part
    if not keeps:
        rest = [d for i, d in enumerate(x.shape) if i != axis]
        pieces = [reshaped(p, rest) for p in pieces]
    return SequenceValue(tuple(pieces), x.dtype)


def _parts(call: Call, whole: Dim) -> tuple[list[Dim], bool]:
    """Sizes along the axis, and whether the pieces keep it: without `split`, `keepdims` says so."""
    if not call.has(1):
        return [1] * _count(call, whole), call.flag("keepdims", True)
    given = call.sizes(1, "split")
    if call.rank(1):
        total: Dim = sum(given)
        if total != whole and not is_static(total - whole):
            call.needs_size(f"whether its parts {given} make up {whole}", total, whole)
        if total != whole:
            call.invalid(f"parts {given} of {whole} elements")
        return list(given), True
    size = call.integer(1, "split")
    if size <= 0:
        call.invalid(f"parts of {size} elements")
    full, rest = divmod(_count(call, whole), size)
    return [*[size] * full, *[rest] * (rest > 0)], True


def _count(call: Call, whole: Dim) -> int:
    if not is_static(whole):
        call.needs_size(f"the length of its result, {whole},", whole)
    return int(whole)


@translates("ConcatFromSequence")
def concat_from_sequence(call: Call) -> Node:
    parts = [as_node(e) for e in sequence_of(call, 0).elements]
    if not parts:
        call.invalid("nothing to put together: the sequence is empty")
    new = call.flag("new_axis")
    axis = call.axis(rank=parts[0].ndim + new)
    if new:
        parts = [reshaped(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return parts[0] if len(parts) == 1 else ops.concat(*parts, axis=axis)


def elements_beside(call: Call) -> Iterator[tuple[Value, ...]]:
    """Of SequenceMap: the operands of its body, for each element of its first operand; what is no sequence
    is the same for all."""
    count = len(sequence_of(call, 0).elements)
    columns = [call.value(i) for i in range(len(call.operands))]
    for value in columns:
        if isinstance(value, SequenceValue) and len(value.elements) != count:
            call.invalid(f"sequences of {count} and of {len(value.elements)}")
    for k in range(count):
        yield tuple(v.elements[k] if isinstance(v, SequenceValue) else v for v in columns)


# --- optionals

@translates("Optional")
def optional(call: Call) -> Value:
    return call.value(0) if call.has(0) else EMPTY_OPTIONAL


@translates("OptionalHasElement")
def optional_has_element(call: Call) -> Value:
    return number(call.has(0) and not isinstance(call.operands[0], EmptyOptional), BOOL)


@translates("OptionalGetElement")
def optional_get_element(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, EmptyOptional):
        call.invalid("the optional holds nothing")
    return value
