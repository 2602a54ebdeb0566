"""Nested containers taken apart and put back."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from planish.capture.pytree import LEAF, flatten

Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Layer:
    w: Any
    b: Any = None


@pytest.mark.parametrize(
    ("value", "leaves", "paths"),
    [
        (1, [1], [""]),
        (None, [], []),
        ((), [], []),
        ([1, (2, 3)], [1, 2, 3], ["[0]", "[1][0]", "[1][1]"]),
        ({"b": 1, "a": [None, 2]}, [1, 2], ["['b']", "['a'][1]"]),
        (Point(1, [2]), [1, 2], [".x", ".y[0]"]),
        (Layer(1, Layer("w")), [1, "w"], [".w", ".b.w"]),
        (OrderedDict(k=1), [1], ["['k']"]),
    ],
)
def test_round_trip(value: Any, leaves: list[Any], paths: list[str]) -> None:
    found, tree = flatten(value)
    assert found == leaves and list(tree.paths()) == paths
    assert tree.unflatten(found) == value and type(tree.unflatten(found)) is type(value)
    assert flatten(value)[1] == tree and hash(flatten(value)[1]) == hash(tree)


def test_structures_differ() -> None:
    values = [1, None, (1,), [1], {"a": 1}, {"b": 1}, Point(1, 2), (1, 2), Layer(1, 2)]
    assert len({flatten(v)[1] for v in values}) == len(values)
    assert flatten(1)[1] is LEAF


def test_too_many_leaves() -> None:
    with pytest.raises(ValueError, match="more leaves"):
        LEAF.unflatten([1, 2])
