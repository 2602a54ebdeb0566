"""A rewrite rule: name, pattern, result, guard, and the numerics class under which it may fire.

In: a node. Out: the node that may stand in its place, of the same type, or the reason why the rule does not
apply. Rules hold no state. A rule is admitted by its machine check (rewrite/check.py), not by being written.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from planish.errors import TypeRuleError
from planish.ir import Node, constant
from planish.ops import get_op
from planish.ops.record import Op
from planish.rewrite.pattern import Bound, OpPattern, Pattern, TraitPattern, describe
from planish.types import TensorType, broadcast_shapes

Numerics = Literal["strict", "default", "fast"]
RuleClass = Literal["exact", "default", "fast"]
ADMITS: dict[str, frozenset[str]] = {
    "strict": frozenset({"exact"}),
    "default": frozenset({"exact", "default"}),
    "fast": frozenset({"exact", "default", "fast"}),
}


class Match:
    """What a pattern found: `match.x` is the node that x stands for, `match.root` the node that matched."""

    __slots__ = ("bound", "root", "uses")

    def __init__(self, root: Node, bound: Bound, uses: Mapping[Node, int]):
        self.root, self.bound, self.uses = root, bound, uses

    def __getattr__(self, name: str) -> Any:
        try:
            return self.bound[name]
        except KeyError:
            raise AttributeError(f"the pattern has no {name}; it has {', '.join(self.bound)}") from None


Root: TypeAlias = "OpPattern | TraitPattern"
Guard: TypeAlias = "Callable[[Match], bool | str]"
Result: TypeAlias = "Pattern | int | float | Callable[[Match], Node]"


@dataclass(frozen=True, eq=False)
class Rule:
    """One rule.

    pattern     what it matches; its root is an op
    result      what takes its place: a pattern over the same names, a number, or a function of the match
    when        guard: True, or the reason why not
    numerics    exact: the same bits, up to which NaN. default, fast: within the tolerance of the ops, NaN and
                inf kept
    relies_on   the fact that makes it true, where it is not plain
    example     (rng, dtype) -> a node that it matches, for its check, where random instances of the pattern
                seldom do
    """

    name: str
    pattern: Root
    result: Result
    when: Guard | None = None
    numerics: RuleClass = "exact"
    relies_on: str = ""
    example: Callable[..., Node] | None = None

    @cached_property
    def orders(self) -> tuple[Root, ...]:
        return tuple(self.pattern.orders())  # type: ignore[arg-type]

    @cached_property
    def alone(self) -> tuple[str, ...]:
        return tuple(p.label for p in self.pattern.walk() if isinstance(p, OpPattern) and p.alone)

    def apply(self, node: Node, uses: Mapping[Node, int]) -> Node | None:
        """The node in place of `node`, or None."""
        for order in self.orders:
            found = self.apply_order(order, node, uses)
            if found is not None:
                return found
        return None

    def apply_order(self, order: Root, node: Node, uses: Mapping[Node, int]) -> Node | None:
        bound: Bound = {}
        if order.match(node, bound) is not None:
            return None
        match = Match(node, bound, uses)
        if self.refusal(match):
            return None
        assert isinstance(node.type, TensorType), "rules are for ops of one result"
        return fitted(self.build(match), node.type, self.name)

    def refusal(self, match: Match) -> str:
        """Why a node of the right form is refused all the same; empty where it is not."""
        for label in self.alone:
            if match.uses.get(match.bound[label], 1) > 1:
                return f"{describe(match.bound[label])} has other users"
        verdict = True if self.when is None else self.when(match)
        if verdict is True:
            return ""
        return verdict or "the guard refused it"

    def build(self, match: Match) -> Any:
        if isinstance(self.result, Pattern):
            return self.result.build(match.bound)
        return self.result(match) if callable(self.result) else self.result

    def why(self, node: Node, uses: Mapping[Node, int] = {}) -> str:
        """Why the rule does not fire on `node`; empty where it does. Of all operand orders, the one that got
        furthest."""
        reasons: list[tuple[int, str]] = []
        for order in self.orders:
            bound: Bound = {}
            mismatch = order.match(node, bound)
            if mismatch is not None:
                reasons.append((len(bound), str(mismatch)))
                continue
            refusal = self.refusal(Match(node, bound, uses))
            if not refusal:
                return ""
            reasons.append((1 << 30, refusal))
        return max(reasons, key=lambda r: r[0])[1]

    def __repr__(self) -> str:
        return f"<rule {self.name}: {self.pattern}>"


def rule(name: str, pattern: Any, result: Result, *, when: Guard | None = None, numerics: RuleClass = "exact",
         relies_on: str = "", example: Callable[..., Node] | None = None) -> Rule:
    """`rule("mul_one", x * 1, x)`. Raises TypeError where the pattern has no op at its root."""
    if not isinstance(pattern, (OpPattern, TraitPattern)):
        raise TypeError(f"rule {name}: its pattern is to have an op at the root, not {pattern}")
    return Rule(name, pattern, result, when, numerics, relies_on, example)


def fitted(made: Any, type_: TensorType, name: str) -> Node:
    """What a rule made, of the type its node had: a number is filled in, a smaller shape is broadcast.

    Raises TypeRuleError where the dtype is another or the shape does not broadcast to the old one.
    """
    node = made if isinstance(made, Node) else constant(made, type_.dtype)
    if node.type == type_:
        return node
    if node.dtype is not type_.dtype or broadcast_shapes(node.shape, type_.shape) != type_.shape:
        raise TypeRuleError(f"rule {name} made {node.type} in place of {type_}")
    return get_op("broadcast_to")(node, shape=type_.shape)


class Rules:
    """Rules in use under a numerics class. Those that a node can match at all are looked up by its op and its
    operands' ops, once for every such combination: a hundred rules cost what a few do."""

    def __init__(self, rules: Iterable[Rule], numerics: Numerics = "default",
                 disable: frozenset[str] = frozenset()):
        self.by_op: dict[Op, list[Rule]] = {}
        for one in rules:
            if one.numerics in ADMITS[numerics] and one.name not in disable:
                for op in one.pattern.root_ops:
                    self.by_op.setdefault(op, []).append(one)
        self.candidates: dict[tuple[Op, ...], list[tuple[Rule, Root]]] = {}

    def step(self, node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
        """What the first rule that fires makes of `node`, and its name."""
        key = (node.op, *[o.op for o in node.operands])
        candidates = self.candidates.get(key)
        if candidates is None:
            found = self.by_op.get(node.op, ())
            candidates = self.candidates[key] = [(one, order) for one in found for order in one.orders
                                                 if order.may_have(key[1:])]
        for one, order in candidates:
            made = one.apply_order(order, node, uses)
            if made is not None:
                return made, one.name
        return None
