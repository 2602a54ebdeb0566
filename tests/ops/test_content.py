"""Constants: what is derived is derived again from other values; what was looked at is known."""
from __future__ import annotations

import numpy as np

from planish import ops
from planish.ir import constant, input_node
from planish.ir.graph import Graph
from planish.ops.content import Content, Looks, ask, dependencies, watched
from planish.passes import run_pipeline
from planish.types import FLOAT32, TensorType


def _content(*values: float) -> Content:
    return Content.of(np.array(values, np.float32))


def _looks(*given: Content) -> Looks:
    return Looks({c: i for i, c in enumerate(given)})


def test_derived_contents_are_equal_when_derived_alike():
    a, b = _content(1, 2), _content(3, 4)
    def add(x, y):
        return Content.derived("op", ("add",), (x, y), TensorType(FLOAT32, (2,)))
    assert add(a, b) == add(a, b) and add(a, b) != add(b, a)
    assert add(add(a, b), a).value.tolist() == [5, 8]
    assert len(dependencies([add(add(a, b), a)])) == 4


def test_looks_are_noted_with_their_answers():
    given, other = _content(2, 2), _content(5, 6)
    made = Content.derived("op", ("neg",), (given,), given.type)
    with watched(_looks(given)) as looks:
        assert ask("uniform", given) == 2 and ask("uniform", other) is None and ask("uniform", made) == -2
        assert ask("uniform", given) == 2  # a second time: from memory, still noted
    assert looks.answers == {("uniform", (given,)): 2, ("uniform", (made,)): -2}
    with watched(_looks(given)) as looks:
        assert given.value.tolist() == [2, 2] and looks.answers == {}
        assert given.array.tolist() == [2, 2]
    assert list(looks.answers) == [("digest", (given,))]
    assert ask("uniform", given) == 2 and len(looks.answers) == 1  # nobody watches any more


def test_a_number_is_known_and_what_follows_from_it():
    number, row = _content(3).value.reshape(()), _content(3, 4)
    known = Content.of(number)
    assert known.is_known and not row.is_known
    assert Content.derived("op", ("neg",), (known,), known.type).is_known
    assert not Content.derived("op", ("mul",), (known, row), row.type).is_known


def test_equal_constants_are_groups():
    a, b = (Content.of(np.arange(3000, dtype=np.float32)) for _ in range(2))
    other = np.arange(3000, dtype=np.float32)
    other[1] = 7  # not among the elements that are glanced at
    assert a != b and ask("equal", a, b, Content.of(other)) == (0, 0, 2)


def test_folding_computes_and_only_asks_for_one_number():
    rng = np.random.default_rng(0)
    w, b = (rng.normal(size=(40, 50)).astype(np.float32) for _ in range(2))
    x = input_node("x", TensorType(FLOAT32, (3, 40)))
    graph = Graph((x,), (ops.matmul(x, ops.add(constant(w), constant(b))),))
    given = [n.attributes for n in graph.nodes() if n.op.name == "constant"]
    with watched(_looks(*given)) as looks:
        optimized, _ = run_pipeline(graph)
    assert {name for name, _ in looks.answers} <= {"uniform", "equal"}
    made, = (n.attributes for n in optimized.nodes() if n.op.name == "constant")
    np.testing.assert_array_equal(made.value, w + b)
    assert made.derivation is not None and set(made.derivation.sources) == set(given)


def test_a_constant_made_equal_to_a_given_one_is_a_look_at_it():
    given = _content(1, 2)
    with watched(_looks(given)) as looks:
        assert _content(1, 2) == given and _content(1, 3) != given
        assert Content.of(given.value, is_known=True) != given
    assert looks.answers == {("digest", (given,)): None}


def test_what_was_doubled_often_is_compared_at_once() -> None:
    def doubled(array: np.ndarray) -> Content:
        content = Content.of(array)
        for _ in range(60):
            content = Content.derived("op", ("add",), (content, content), content.type)
        return content

    ones, twos = np.ones(3, np.float32), np.full(3, 2, np.float32)
    assert doubled(ones) == doubled(ones)
    assert doubled(ones) != doubled(twos)
