"""Patterns: expressions written with the same ops and operators as programs, that match nodes and build them.

    x, y = variables("x y")
    x * 1                                   any product with a constant whose elements are all 1
    transpose(transpose(x).named("inner"))  any axes; the inner node is found as `match.inner`
    reduce_sum(x, keepdims=True)            a reduction whose `keepdims` is True

A variable that stands twice matches one node (nodes are interned, so equal expressions are one node).
Operands of a commutative op match in either order. A number matches a constant that is this number
everywhere, also through `broadcast_to` and `reshape`; the sign of a zero counts for floats.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from numbers import Number
from typing import Any

from planish.ir import Node
from planish.ops.algebra import Algebra
from planish.ops.content import ask, unmoved
from planish.ops.record import OPS, Op

SEEN_THROUGH = frozenset({"broadcast_to", "reshape"})  # a number matches a constant under these
Bound = dict[str, Any]  # what the names of a pattern stand for: a node, or a tuple of nodes for `several`


class Pattern(Algebra):
    """What a node may look like. `match` binds names and returns None, or the Mismatch that stopped it."""

    open_attributes = True

    @classmethod
    def apply_op(cls, op: Op, operands: tuple[Any, ...], attributes: Mapping[str, Any]) -> OpPattern:
        return OpPattern(op, tuple(map(as_pattern, operands)), dict(attributes))

    def match(self, node: Node, bound: Bound) -> Mismatch | None:
        raise NotImplementedError

    def may_be(self, op: Op) -> bool:
        """False where no result of `op` can match: what rules are indexed by."""
        return True

    def build(self, bound: Bound) -> Any:
        """The node this pattern stands for where names mean `bound`."""
        raise NotImplementedError

    def orders(self) -> Iterator[Pattern]:
        """This pattern with the operands of its commutative ops in every order that makes a difference."""
        yield self

    def walk(self) -> Iterator[Pattern]:
        yield self


@dataclass(frozen=True)
class Mismatch:
    """A node that is not what the pattern wants there."""

    wanted: Pattern
    node: Node

    def __str__(self) -> str:
        return f"{describe(self.node)} is not {self.wanted}"


@dataclass(frozen=True, eq=False)
class Variable(Pattern):
    """Any node; `kind` narrows it to the results of one op (`const`)."""

    name: str
    op_name: str = ""

    def match(self, node: Node, bound: Bound) -> Mismatch | None:
        if self.op_name and node.op.name != self.op_name:
            return Mismatch(self, node)
        return None if bound.setdefault(self.name, node) is node else Mismatch(self, node)

    def may_be(self, op: Op) -> bool:
        return self.op_name in ("", op.name)

    def build(self, bound: Bound) -> Node:
        return bound[self.name]

    def __str__(self) -> str:
        return f"{self.op_name} {self.name}".strip()


@dataclass(frozen=True, eq=False)
class Several(Pattern):
    """All remaining operands, as a tuple."""

    name: str

    def build(self, bound: Bound) -> tuple[Node, ...]:
        return bound[self.name]

    def __str__(self) -> str:
        return f"*{self.name}"


@dataclass(frozen=True, eq=False)
class Literal(Pattern):
    """A constant with this number everywhere; True and False match bool alone.

    Only numbers that every float dtype holds exactly make sense here.
    """

    number: Any

    def match(self, node: Node, bound: Bound) -> Mismatch | None:
        found = uniform_value(node)
        same = found is not None and found == self.number and _sign(found) == _sign(self.number)
        if not same or (isinstance(self.number, bool) and not isinstance(found, bool)):
            return Mismatch(self, node)
        return None

    def may_be(self, op: Op) -> bool:
        return op.name == "constant" or op.name in SEEN_THROUGH

    def build(self, bound: Bound) -> Any:
        return self.number

    def __str__(self) -> str:
        return str(self.number)


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """An op on operands that match; only the attributes given are compared.

    label     the name its node is bound to: `named`
    alone     its node has one user: `used_once`
    ordered   operands match in this order only: `in_order`
    """

    op: Op
    operands: tuple[Pattern, ...]
    attributes: Mapping[str, Any]
    label: str = ""
    alone: bool = False
    ordered: bool = False

    @property
    def root_ops(self) -> tuple[Op, ...]:
        return (self.op,)

    def named(self, label: str) -> OpPattern:
        return replace(self, label=label)

    def used_once(self, label: str) -> OpPattern:
        """As `named`; the match is refused where other nodes use this one too and so would keep it alive."""
        return replace(self, label=label, alone=True)

    def in_order(self) -> OpPattern:
        """For max and min of floats, whose answer for zeros of both signs depends on the order."""
        return replace(self, ordered=True)

    def match(self, node: Node, bound: Bound) -> Mismatch | None:
        if node.op is not self.op or (self.attributes and not self._attributes_fit(node)):
            return Mismatch(self, node)
        operands: Any = node.operands
        if self.operands and isinstance(self.operands[-1], Several):
            fixed = len(self.operands) - 1
            bound[self.operands[-1].name] = operands[fixed:]
            operands = operands[:fixed]
        for pattern, operand in zip(self.operands, operands):
            mismatch = pattern.match(operand, bound)
            if mismatch is not None:
                return mismatch
        if self.label:
            bound[self.label] = node
        return None

    def may_be(self, op: Op) -> bool:
        return op is self.op

    def may_have(self, operand_ops: tuple[Op, ...]) -> bool:
        """Whether a node of this op on the results of such ops can match."""
        return all(pattern.may_be(op) for pattern, op in zip(self.operands, operand_ops))

    def _attributes_fit(self, node: Node) -> bool:
        return all(getattr(node.attributes, k) == v for k, v in self.attributes.items())

    def build(self, bound: Bound) -> Node:
        operands: list[Any] = []
        for pattern in self.operands:
            built = pattern.build(bound)
            operands += built if isinstance(pattern, Several) else [built]
        return self.op(*operands, **self.attributes)

    def orders(self) -> Iterator[Pattern]:
        for operands in product(*(list(p.orders()) for p in self.operands)):
            yield replace(self, operands=operands)
            if self.op.has("commutative") and not self.ordered and operands[0] is not operands[1]:
                yield replace(self, operands=operands[::-1])

    def walk(self) -> Iterator[Pattern]:
        yield self
        for pattern in self.operands:
            yield from pattern.walk()

    def __str__(self) -> str:
        attributes = [f"{k}={v}" for k, v in self.attributes.items()]
        return f"{self.op.name}({', '.join([*map(str, self.operands), *attributes])})"


@dataclass(frozen=True, eq=False)
class TraitPattern(Pattern):
    """Any op with a trait; `among` names an op that at least one operand is the result of."""

    trait: str
    operands_name: str
    among: str = ""
    label: str = ""

    @property
    def root_ops(self) -> tuple[Op, ...]:
        return tuple(op for op in OPS.values() if op.has(self.trait))

    def named(self, label: str) -> TraitPattern:
        return replace(self, label=label)

    def match(self, node: Node, bound: Bound) -> Mismatch | None:
        if not node.op.has(self.trait) or not self.may_have(tuple(o.op for o in node.operands)):
            return Mismatch(self, node)
        bound[self.operands_name] = node.operands
        if self.label:
            bound[self.label] = node
        return None

    def may_be(self, op: Op) -> bool:
        return op.has(self.trait)

    def may_have(self, operand_ops: tuple[Op, ...]) -> bool:
        return not self.among or any(op.name == self.among for op in operand_ops)

    def __str__(self) -> str:
        return f"{self.trait} op(*{self.operands_name}{f' with {self.among}' * bool(self.among)})"


def variables(names: str) -> tuple[Variable, ...]:
    """`x, y = variables("x y")`."""
    return tuple(map(Variable, names.split()))


def const(name: str) -> Variable:
    """Any constant."""
    return Variable(name, "constant")


def result_of(op: Op, name: str) -> Variable:
    """The result of one op, whatever its operands."""
    return Variable(name, op.name)


def several(name: str) -> Several:
    """All operands of an op that takes any number: `concat(several("xs"))`."""
    return Several(name)


def any_op(trait: str, operands_name: str, *, among: str = "") -> TraitPattern:
    """Any op with a trait; its operands are bound as a tuple, at least one of them a result of the op
    `among`."""
    return TraitPattern(trait, operands_name, among)


def as_pattern(what: Any) -> Pattern:
    if isinstance(what, Pattern):
        return what
    if isinstance(what, Number):
        return Literal(what)
    raise TypeError(f"{type(what).__name__} can't stand in a pattern")


def _sign(number: Any) -> float:
    return math.copysign(1.0, number)


def describe(node: Node) -> str:
    """A node in a few words, for a reason why a rule did not match."""
    if node.op.name == "input":
        return f"input {node.attributes.name}"
    types = node.type if isinstance(node.type, tuple) else (node.type,)
    return f"{node.op.name} of {', '.join(map(str, types))}"


def uniform_value(node: Node) -> Any:
    """The Python number that all elements of a constant are (its bits everywhere the same), else None."""
    while node.op.name in SEEN_THROUGH:
        node = node.operands[0]
    return ask("uniform", unmoved(node.attributes)) if node.op.name == "constant" else None
