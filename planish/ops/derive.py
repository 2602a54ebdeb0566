"""The gradient of a composite op, from its decomposition.

The decomposition is run on operands that remember how they were made; then the gradients of the ops it used
are chained backwards. Whatever the operands are (nodes, arrays), the cotangents are made of the same.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planish.errors import UnsupportedOp
from planish.ops.algebra import Algebra
from planish.ops.record import Op
from planish.ops.rules import cast_to, like
from planish.types import dtype_of


@dataclass(frozen=True)
class Step:
    """One application of an op: what it took and gave, and the traced values that stand for them."""

    op: Op
    attributes: Any
    operands: tuple[Any, ...]
    result: Any
    used: tuple[Any, ...]
    made: tuple[Traced, ...]


class Traced(Algebra):
    """A value that records the ops applied to it. A subclass per run holds the tape."""

    __slots__ = ("value",)
    tape: list[Step]
    world: type

    def __init__(self, value: Any):
        self.value = value

    @classmethod
    def apply_op(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Any:
        values = cls._values(operands)
        apply = getattr(cls.world, "apply_op", None)
        result = op.evaluate(attributes, *values) if apply is None else apply(op, values, attributes)
        made = tuple(map(cls, result)) if isinstance(result, tuple) else (cls(result),)
        cls.tape.append(Step(op, attributes, values, result, tuple(operands), made))
        return made if isinstance(result, tuple) else made[0]

    @classmethod
    def _values(cls, operands: Sequence[Any]) -> tuple[Any, ...]:
        """What the operands stand for; bare numbers as constants of the last operand's dtype."""
        values = [o.value if isinstance(o, Traced) else o for o in operands]
        beside = next((v for v in reversed(values) if hasattr(v, "shape")), None)
        return tuple(v if hasattr(v, "shape") else like(beside, v) for v in values)

    @property
    def shape(self) -> Any:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype


def _tracing(world: type) -> type[Traced]:
    """A kind of traced value with a tape of its own."""
    class Recording(Traced):
        __slots__ = ()
    Recording.tape, Recording.world = [], world
    return Recording


def by_decomposition(decompose: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """A record's gradient that chains the gradients of the ops in `decompose`."""
    def gradient(g: Any, attributes: Any, result: Any, *operands: Any) -> Sequence[Any]:
        kind = _tracing(type(operands[0]))
        inputs = [kind(x) for x in operands]
        cotangents = {id(decompose(attributes, *inputs)): g}
        for step in reversed(kind.tape):
            _hand_on(step, cotangents)
        return tuple(cotangents.get(id(x)) for x in inputs)
    return gradient


def _hand_on(step: Step, cotangents: dict[int, Any]) -> None:
    """Hand the cotangents of a step's results on to its operands; sums run from the last use to the first."""
    given = tuple(cotangents.get(id(m)) for m in step.made)
    if not step.used or all(g is None for g in given):
        return
    if step.op.gradient is None:
        raise UnsupportedOp(f"{step.op} has no gradient")
    g = given if isinstance(step.result, tuple) else given[0]
    parts = step.op.gradient(g, step.attributes, step.result, *step.operands)
    for x, part in zip(step.used, parts, strict=True):
        if part is not None and isinstance(x, Traced):
            cotangents[id(x)] = cotangents[id(x)] + part if id(x) in cotangents else part


def in_float32(formula: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """The gradient of an op of one operand from `formula(g, attributes, result, x)`, in float32 for float16
    and bfloat16 and rounded once."""
    def gradient(g: Any, attributes: Any, result: Any, x: Any) -> Sequence[Any]:
        dtype = dtype_of(x.dtype)
        wide = [cast_to(t, dtype.accumulator) for t in (g, result, x)]
        return (cast_to(formula(wide[0], attributes, *wide[1:]), dtype),)
    return gradient
