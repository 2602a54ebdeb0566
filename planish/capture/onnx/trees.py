"""ai.onnx.ml: ensembles of decision trees.

The trees are tables: a node's feature, threshold, comparison and two followers. Leaves come behind the nodes
and follow themselves. All rows go down all trees together, one gather of each table per level, and the
leaves' votes are summed (or averaged, or the least or greatest taken) over the trees.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.learned import as_float, as_rows, class_labels, pick, transformed
from planish.capture.onnx.lookup import ML
from planish.capture.onnx.movement import broadcast, reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT32, INT64

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
MEMBER = MODES.index("BRANCH_MEMBER")
DEEPEST = 1024  # levels that are written out
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes 0 to n - 1, then the leaves. `members` has a row for each node that asks for membership, filled
    up with NaN, and `row` says which is a node's. `votes` and `voted`, [leaves, targets], hold what a leaf
    gives each target, and whether it gives it anything."""

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    missing_is_true: np.ndarray
    true: np.ndarray
    false: np.ndarray
    votes: np.ndarray
    voted: np.ndarray
    members: np.ndarray
    row: np.ndarray

    @property
    def inner(self) -> int:
        return len(self.feature)

    @property
    def depth(self) -> int:
        """Levels from the roots to the lowest leaf. Raises ValueError where nodes follow each other round."""
        level, count = np.unique(self.roots), 0
        while (level := level[level < self.inner]).size:
            count += 1
            if count > min(self.inner, DEEPEST):
                raise ValueError(f"the trees have a cycle, or more than {DEEPEST} levels")
            level = np.unique(np.concatenate([self.true[level], self.false[level]]))
        return count


# --- going down

def _leaves(x: Node, trees: Trees) -> Node:
    """[N, trees] int64: the leaf each row of x [N, F] comes to in each tree."""
    at = broadcast(constant(trees.roots), (x.shape[0], len(trees.roots)))
    for _ in range(trees.depth):
        true, false = (_of(trees, table, at, leads_on=True) for table in (trees.true, trees.false))
        at = ops.select(_holds(x, trees, at), true, false)
    return at - number(trees.inner, INT64)


def _of(trees: Trees, table: np.ndarray, at: Node, leads_on: bool = False) -> Node:
    """What a table says of the nodes at `at`; leaves lead on to themselves, else they are as node 0."""
    leaves = np.arange(trees.inner, trees.inner + len(trees.votes)) if leads_on \
        else np.broadcast_to(table[:1], (len(trees.votes), *table.shape[1:]))
    return ops.take(constant(np.concatenate([table, leaves.astype(table.dtype)])), at, axis=0)


def _holds(x: Node, trees: Trees, at: Node) -> Node:
    """Whether each node's comparison holds for its row."""
    value = ops.take_along(x, _of(trees, trees.feature, at), axis=1)
    used = np.unique(trees.mode)
    holds = _compared(trees, used[0], value, at)
    for mode in used[1:]:
        is_mode = ops.eq(_of(trees, trees.mode, at), number(mode, INT64))
        holds = ops.select(is_mode, _compared(trees, mode, value, at), holds)
    if trees.missing_is_true.any():
        missing = ops.bitwise_and(ops.is_nan(value), _of(trees, trees.missing_is_true, at))
        holds = ops.bitwise_or(holds, missing)
    return holds


def _compared(trees: Trees, mode: int, value: Node, at: Node) -> Node:
    if mode != MEMBER:
        return getattr(ops, COMPARISONS[mode])(value, _of(trees, trees.threshold, at))
    members = ops.take(constant(trees.members), _of(trees, trees.row, at), axis=0)
    return ops.reduce_any(ops.eq(reshaped(value, (*value.shape, 1)), members), axes=(2,))


# --- counting votes

def _scores(call: Call, x: Node, trees: Trees, aggregate: str, base: Any = ()) -> Node:
    """[N, targets]"""
    leaves = _leaves(x, trees)
    votes = ops.take(constant(trees.votes), leaves, axis=0)
    if aggregate in ("SUM", "AVERAGE"):
        total = ops.reduce_sum(votes, axes=(1,))
        scores = total if aggregate == "SUM" else total / number(len(trees.roots), x.dtype)
    elif aggregate in ("MIN", "MAX"):
        voted = ops.take(constant(trees.voted), leaves, axis=0)
        worst = np.inf if aggregate == "MIN" else -np.inf
        best = getattr(ops, f"reduce_{aggregate.lower()}")(
            ops.select(voted, votes, number(worst, x.dtype)), axes=(1,))
        scores = ops.select(ops.reduce_any(voted, axes=(1,)), best, number(0, x.dtype))
    else:
        call.invalid(f"aggregate_function {aggregate!r} is not one of {', '.join(AGGREGATES)}")
    return scores + constant(np.array(base, x.dtype.numpy)) if len(base) else scores


# --- TreeEnsemble

@translates("TreeEnsemble", since=5, domain=ML)
def tree_ensemble(call: Call) -> Node:
    x = as_rows(call)
    trees = _trees_of_tensors(call)
    how = call.attribute("aggregate_function", 1)
    scores = _scores(call, x, trees, AGGREGATES[how])
    return transformed(call, scores, TRANSFORMS[call.attribute("post_transform", 0)])


def _trees_of_tensors(call: Call) -> Trees:
    def ints(name: str) -> np.ndarray:
        return np.array(call.attribute(name), np.int64).reshape(-1)
    mode, threshold = call.attribute("nodes_modes").astype(np.int64), call.attribute("nodes_splits")
    weights, targets = call.attribute("leaf_weights").reshape(-1), ints("leaf_targetids")
    n, votes = len(mode), np.zeros((len(weights), call.attribute("n_targets")), weights.dtype)
    votes[np.arange(len(weights)), targets] = weights
    voted = np.zeros(votes.shape, bool)
    voted[np.arange(len(weights)), targets] = True
    true = ints("nodes_truenodeids") + n * ints("nodes_trueleafs")
    false = ints("nodes_falsenodeids") + n * ints("nodes_falseleafs")
    tracks = np.array(call.attribute("nodes_missing_value_tracks_true", (0,) * n), bool)
    members = _members(call.attribute("membership_values"), threshold.dtype)
    row = np.cumsum(mode == MEMBER) - 1
    if (mode == MEMBER).sum() != len(members):
        call.invalid(f"{len(members)} sets of membership_values for {(mode == MEMBER).sum()} nodes with one")
    return Trees(ints("tree_roots"), ints("nodes_featureids"), threshold, mode, tracks, true, false, votes,
                 voted, members, np.maximum(row, 0))


def _members(values: np.ndarray | None, dtype: Any) -> np.ndarray:
    """The sets, each ended by a NaN, as rows that are filled up with NaN."""
    if values is None:
        return np.zeros((0, 0), dtype)
    ends = np.flatnonzero(np.isnan(values))
    sets = [part[~np.isnan(part)] for part in np.split(values, ends + 1)[:len(ends)]]
    rows = np.full((len(sets), max(map(len, sets), default=0)), np.nan, dtype)
    for row, one in zip(rows, sets):
        row[:len(one)] = one
    return rows


# --- TreeEnsembleRegressor, TreeEnsembleClassifier

@translates("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(call: Call) -> Node:
    x = as_float(as_rows(call))
    trees = _trees_of_lists(call, x, "target", call.attribute("n_targets", 1))
    base = _numbers(call, "base_values")
    scores = _scores(call, x, trees, call.attribute("aggregate_function", "SUM"), base)
    return cast(transformed(call, scores), FLOAT32)


@translates("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(call: Call) -> tuple[Node, Node]:
    """The class of the greatest score, and the scores. Where of two classes all votes are for number 0, they
    are, as boosters write it, for the second one: its probability (where no vote is negative), or its side of
    0."""
    x, labels = as_float(as_rows(call)), class_labels(call)
    base = _numbers(call, "base_values")
    if len(labels) == 2 and set(call.attribute("class_ids", ())) == {0}:
        return _one_of_two(call, x, labels, base)
    scores = _scores(call, x, _trees_of_lists(call, x, "class", len(labels)), "SUM", base)
    return pick(labels, scores), cast(transformed(call, scores), FLOAT32)


def _one_of_two(call: Call, x: Node, labels: np.ndarray, base: np.ndarray) -> tuple[Node, Node]:
    trees = _trees_of_lists(call, x, "class", 1)
    score = _scores(call, x, trees, "SUM", base[-1:])
    positive = bool((trees.votes >= 0).all())
    second = ops.gt(score, number(0.5 if positive else 0.0, x.dtype))
    plain = positive and call.attribute("post_transform", "NONE") == "NONE"
    both = ops.concat(1.0 - score if plain else -score, score, axis=1)
    label = ops.take(constant(labels), reshaped(cast(second, INT64), (x.shape[0],)), axis=0)
    return label, cast(transformed(call, both), FLOAT32)


def _numbers(call: Call, name: str) -> np.ndarray:
    """An attribute of floats, or of doubles under the name with _as_tensor."""
    tensor = call.attribute(f"{name}_as_tensor")
    return np.array(call.attribute(name, ()), np.float32) if tensor is None else tensor.reshape(-1)


def _trees_of_lists(call: Call, x: Node, kind: str, targets: int) -> Trees:
    """Nodes, named by tree and number, are put in one order: those that branch, then the leaves."""
    names = list(zip(call.attribute("nodes_treeids"), call.attribute("nodes_nodeids")))
    modes = call.attribute("nodes_modes")
    inner = [i for i, mode in enumerate(modes) if mode != "LEAF"]
    leaves = [i for i, mode in enumerate(modes) if mode == "LEAF"]
    place = {names[i]: at for at, i in enumerate([*inner, *leaves])}
    votes, voted = _votes(call, kind, place, (len(inner), len(leaves), targets), x)

    def column(values: Any, dtype: Any = np.int64) -> np.ndarray:
        return np.array([values[i] for i in inner], dtype)

    def followers(name: str) -> np.ndarray:
        following = call.attribute(name)
        return np.array([place[names[i][0], following[i]] for i in inner], np.int64)
    tracks = call.attribute("nodes_missing_value_tracks_true", ()) or (0,) * len(names)
    mode = np.array([MODES.index(modes[i]) for i in inner], np.int64)
    roots = _roots(call, names, place)
    threshold = column(_numbers(call, "nodes_values"), x.dtype.numpy)
    return Trees(roots, column(call.attribute("nodes_featureids")), threshold, mode, column(tracks, bool),
                 followers("nodes_truenodeids"), followers("nodes_falsenodeids"), votes, voted,
                 np.zeros((0, 0), x.dtype.numpy), np.zeros(len(inner), np.int64))


def _votes(call: Call, kind: str, place: dict[Any, int], sizes: tuple[int, int, int],
           x: Node) -> tuple[np.ndarray, np.ndarray]:
    inner, leaves, targets = sizes
    votes, voted = np.zeros((leaves, targets), x.dtype.numpy), np.zeros((leaves, targets), bool)
    nodes = zip(call.attribute(f"{kind}_treeids"), call.attribute(f"{kind}_nodeids"))
    for name, target, weight in zip(nodes, call.attribute(f"{kind}_ids"), _numbers(call, f"{kind}_weights")):
        leaf = place[name] - inner
        if leaf < 0 or not 0 <= target < targets:
            call.invalid(f"node {name[1]} of tree {name[0]} votes for target {target}: it is no leaf, or "
                         f"there are only {targets} targets")
        votes[leaf, target] += weight
        voted[leaf, target] = True
    return votes, voted


def _roots(call: Call, names: list[tuple[int, int]], place: dict[Any, int]) -> np.ndarray:
    """Of each tree, the node that follows none."""
    modes = call.attribute("nodes_modes")
    followed = {(tree, node) for which in ("nodes_truenodeids", "nodes_falsenodeids")
                for (tree, _), node, mode in zip(names, call.attribute(which), modes) if mode != "LEAF"}
    roots = {tree: place[tree, node] for tree, node in reversed(names) if (tree, node) not in followed}
    if len(roots) != len({tree for tree, _ in names}):
        call.invalid("a tree has no root: its nodes follow each other round")
    return np.array(list(roots.values()), np.int64)
