"""Tree ensembles on random trees: against ONNX Runtime, and against a walk down the trees in Python."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError
from tests.capture.onnx.running import (
    STRATEGIES,
    corrected_runtime,
    make_model,
    onnxruntime_outputs,
    reference,
    run,
)

ML = "ai.onnx.ml"
LEQ = ("BRANCH_LEQ",)
ALL = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Nodes = list[tuple[str, int, float, int, int]]  # mode, feature, threshold, true, false


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


def random_tree(rng: np.random.Generator, depth: int, features: int, modes: tuple[str, ...]) -> Nodes:
    nodes: Nodes = []

    def grow(left: int) -> int:
        at = len(nodes)
        nodes.append(("LEAF", 0, 0.0, 0, 0))
        if left and (left == depth or rng.random() > 0.25):
            mode = modes[rng.integers(len(modes))]
            whole = mode in ("BRANCH_EQ", "BRANCH_NEQ")
            threshold = float(rng.integers(-2, 3)) if whole else float(np.float32(rng.normal()))
            nodes[at] = (mode, int(rng.integers(features)), threshold, grow(left - 1), grow(left - 1))
        return at
    grow(depth)
    return nodes


def ensemble(rng: np.random.Generator, trees: list[Nodes], kind: str, targets: int, *, doubles: bool = False,
             positive: bool = False, only: int | None = None) -> dict[str, Any]:
    """The attributes of the trees; leaves vote for some targets (those of the first tree for all), or one."""
    columns = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids",
               "missing_value_tracks_true")
    listed = [(t, i, *node, int(rng.integers(2)))
              for t, nodes in enumerate(trees) for i, node in enumerate(nodes)]
    given: dict[str, Any] = {f"nodes_{c}": list(v) for c, v in zip(columns, zip(*listed))}
    votes = []
    for t, i, mode, *_ in listed:
        if mode == "LEAF":
            count = targets if t == 0 else rng.integers(1, targets + 1)
            chosen = [only] if only is not None else rng.choice(targets, count, replace=False)
            weights = np.abs(rng.normal(size=targets)) if positive else rng.normal(size=targets)
            votes += [(t, i, int(e), float(np.float32(w))) for e, w in zip(chosen, weights)]
    given |= {f"{kind}_{c}": list(v) for c, v in zip(("treeids", "nodeids", "ids", "weights"), zip(*votes))}
    if doubles:
        for name in ("nodes_values", f"{kind}_weights"):
            given[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(given.pop(name), np.float64))
    return given


def features(rng: np.random.Generator, dtype: Any = np.float32) -> np.ndarray:
    x = rng.normal(size=(40, 4))
    x[:, 3] = rng.integers(-2, 3, size=40)
    x[::7, 1] = np.nan
    return x.astype(dtype)


def check(op_type: str, x: np.ndarray, outputs: int = 1, **given: Any) -> None:
    results = [f"y{i}" for i in range(outputs)]
    made = helper.make_node(op_type, ["x"], results, domain=ML, **given)
    model = make_model([made], {"x": x}, results, domains={ML: 3})
    wanted = onnxruntime_outputs(model, {"x": x})
    graph = load_graph(make_model([made], {"x": (x.dtype, ("N", x.shape[1]))}, results, domains={ML: 3}))
    for strategy in STRATEGIES:
        for one, want in zip(run(graph, {"x": x}, strategy), wanted, strict=True):
            assert one.dtype == np.asarray(want).dtype
            np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "modes"), [(np.float32, ALL), (np.float64, LEQ)])
@pytest.mark.parametrize(("aggregate", "targets"),
                         [("SUM", 1), ("SUM", 3), ("AVERAGE", 3), ("MIN", 3), ("MAX", 1)])
def test_regressor(rng: np.random.Generator, modes: tuple[str, ...], dtype: Any, aggregate: str,
                   targets: int) -> None:
    trees = [random_tree(rng, int(rng.integers(1, 6)), 4, modes) for _ in range(5)]
    given = ensemble(rng, trees, "target", targets, doubles=dtype is np.float64)
    if dtype is np.float32:
        given["base_values"] = rng.normal(size=targets).tolist()
    given |= {"n_targets": targets, "aggregate_function": aggregate}
    check("TreeEnsembleRegressor", features(rng, dtype), **given)


def test_regressor_of_whole_numbers(rng: np.random.Generator) -> None:
    """Computed as float32."""
    trees = [random_tree(rng, 3, 4, LEQ) for _ in range(3)]
    given = ensemble(rng, trees, "target", 1)
    made = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, **given)
    whole = rng.integers(-3, 3, size=(20, 4))
    got, want = (run(load_graph(make_model([made], {"x": x}, ["y"], domains={ML: 3})), {"x": x}, "native")[0]
                 for x in (whole, whole.astype(np.float32)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier(rng: np.random.Generator, transform: str, positive: bool) -> None:
    trees = [random_tree(rng, 4, 4, ALL) for _ in range(5)]
    given = ensemble(rng, trees, "class", 3, positive=positive)
    check("TreeEnsembleClassifier", features(rng), 2, classlabels_int64s=[7, 3, 5], post_transform=transform,
          base_values=rng.normal(size=3).tolist(), **given)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier_of_two_by_one_score(rng: np.random.Generator, transform: str, positive: bool) -> None:
    if positive and transform == "LOGISTIC" and not corrected_runtime():
        pytest.skip("this ONNX Runtime leaves the scores as they are")
    trees = [random_tree(rng, 4, 4, LEQ) for _ in range(5)]
    given = ensemble(rng, trees, "class", 1, positive=positive, only=0)
    check("TreeEnsembleClassifier", features(rng), 2, classlabels_int64s=[0, 1], post_transform=transform,
          base_values=[0.25], **given)


def test_labels_that_are_text(rng: np.random.Generator) -> None:
    given = ensemble(rng, [random_tree(rng, 3, 4, LEQ)], "class", 3)
    made = helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "z"], domain=ML,
                            classlabels_strings=["low", "mid", "high"], **given)
    x = features(rng)
    model = make_model([made], {"x": x}, ["y", "z"], domains={ML: 3})
    labels, _ = run(load_graph(model), {"x": x}, "native")
    np.testing.assert_array_equal(labels, onnxruntime_outputs(model, {"x": x})[0])


# --- TreeEnsemble

def tree_ensemble(**changes: Any) -> Any:
    """One tree: x[0] <= 3.14, then x[0] in {1.2, 3.7}, {8, 9} or x[1] > 0.5."""
    def tensor(values: Any, dtype: Any) -> Any:
        return numpy_helper.from_array(np.array(values, dtype))
    given = {
        "n_targets": 2, "aggregate_function": 1, "tree_roots": [0],
        "nodes_modes": tensor([0, 6, 6, 3], np.uint8), "nodes_splits": tensor([3.14, 0, 0, 0.5], np.float32),
        "nodes_featureids": [0, 0, 0, 1], "nodes_truenodeids": [1, 0, 2, 4], "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 3], "nodes_falseleafs": [0, 1, 0, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0, 1],
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": tensor([5.23, 12.12, -12.23, 7.21, 1.5], np.float32),
        "membership_values": tensor([1.2, 3.7, np.nan, 8, 9, np.nan], np.float32), **changes,
    }
    made = helper.make_node("TreeEnsemble", ["x"], ["y"], domain=ML, **given)
    return make_model([made], {"x": (np.float32, ("N", 2))}, ["y"], domains={ML: 5})


@pytest.mark.parametrize("aggregate", [0, 1])
def test_tree_ensemble(aggregate: int) -> None:
    x = np.array([[1.2, 0], [1.3, 0], [3.7, 0], [8, 1], [9, 0], [10, 1], [10, 0], [np.nan, 0.7],
                  [5, np.nan]], np.float32)
    model = tree_ensemble(aggregate_function=aggregate)
    for strategy in STRATEGIES:
        np.testing.assert_allclose(run(load_graph(model), {"x": x}, strategy)[0],
                                   reference(model, {"x": x})[0], rtol=1e-6)


def test_the_least_and_greatest_vote() -> None:
    """A target that no leaf votes for has 0."""
    x = np.array([[1.2, 0], [10, 1]], np.float32)
    for aggregate in (2, 3):
        got = run(load_graph(tree_ensemble(aggregate_function=aggregate)), {"x": x}, "native")[0]
        np.testing.assert_allclose(got, np.float32([[5.23, 0], [1.5, 0]]))


def test_nodes_that_follow_each_other_round() -> None:
    with pytest.raises(ModelError, match="cycle"):
        load_graph(tree_ensemble(nodes_truenodeids=[1, 0, 2, 0], nodes_trueleafs=[0, 1, 1, 0]))


def test_sets_that_are_missing() -> None:
    with pytest.raises(ModelError, match="0 sets of membership_values for 2 nodes"):
        load_graph(tree_ensemble(membership_values=numpy_helper.from_array(np.zeros(0, np.float32))))
