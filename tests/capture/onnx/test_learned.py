"""ai.onnx.ml and TfIdfVectorizer against ONNX Runtime and, where that has no kernel, the formulas."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError, UnsupportedOp
from tests.capture.onnx.running import STRATEGIES, corrected_runtime, make_model, onnxruntime_outputs, run

ML = "ai.onnx.ml"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


def model_of(op_type: str, arrays: list[np.ndarray], *, outputs: int = 1, domain: str = ML, version: int = 3,
             **attributes: Any) -> tuple[Any, dict[str, Any]]:
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    results = [f"y{i}" for i in range(outputs)]
    made = helper.make_node(op_type, list(feeds), results, name="it", domain=domain, **attributes)
    return make_model([made], feeds, results, opset=17, domains={ML: version}), feeds


def check(op_type: str, arrays: list[np.ndarray], expected: list[Any] | None = None, **given: Any) -> None:
    """Equal to ONNX Runtime (or `expected`), floats within 1e-5 of the largest."""
    model, feeds = model_of(op_type, arrays, **given)
    wanted = expected or onnxruntime_outputs(model, feeds)
    for strategy in STRATEGIES:
        for one, other in zip(run(load_graph(model), feeds, strategy), wanted, strict=True):
            want = np.asarray(other)
            assert (one.dtype, one.shape) == (want.dtype, want.shape)
            if want.dtype.kind != "f":
                np.testing.assert_array_equal(one, want)
            else:
                scale = np.abs(want[np.isfinite(want)]).max(initial=1)
                np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5 * scale)


def text(*values: str) -> np.ndarray:
    return np.array(values, object)


def rows(rng: np.random.Generator, dtype: Any = np.float32, n: int = 5, columns: int = 3) -> np.ndarray:
    x = (rng.normal(size=(n, columns)) * 3).astype(dtype)
    x[1] = 0
    return x


DTYPES = (np.float32, np.float64, np.int64, np.int32)


# --- columns and scales

@pytest.mark.parametrize("dtype", DTYPES)
def test_scales(rng: np.random.Generator, dtype: Any) -> None:
    x = rows(rng, dtype)
    check("Scaler", [x], offset=[1.0, 2.0, 3.0], scale=[0.5, 0.25, 3.0])
    check("Scaler", [x], offset=[1.0], scale=[0.5])
    for norm in ("MAX", "L1", "L2"):
        check("Normalizer", [x], norm=norm)
    check("Binarizer", [x], [(x > 0.5).astype(dtype)], threshold=0.5)


def test_columns(rng: np.random.Generator) -> None:
    x = rows(rng)
    check("ArrayFeatureExtractor", [x, np.array([2, 0])])
    check("ArrayFeatureExtractor", [x[0], np.array([[2, 0]])])
    check("ArrayFeatureExtractor", [np.array([["a", "b"], ["c", "d"]], object), np.array([1])])
    check("FeatureVectorizer", [x, x * 2], inputdimensions=[2, 5])
    check("FeatureVectorizer", [x[0], x[1]], [np.concatenate([x[0], x[1]])[None]], inputdimensions=[3, 3])
    holes = np.where(x > 0, np.nan, x).astype(np.float32)
    check("Imputer", [holes], imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=np.nan)
    check("Imputer", [x], imputed_value_floats=[9.0], replaced_value_float=0.0)
    check("Imputer", [x.astype(np.int64)], imputed_value_int64s=[11], replaced_value_int64=0)


# --- linear models

@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_linear_models(rng: np.random.Generator, transform: str) -> None:
    x, how = rows(rng), {"post_transform": transform}
    check("LinearRegressor", [x], coefficients=rng.normal(size=6).tolist(), intercepts=[0.5, 0.25], targets=2,
          **how)
    check("LinearClassifier", [x], outputs=2, coefficients=rng.normal(size=6).tolist(),
          intercepts=[0.5, 0.25], classlabels_strings=["a", "b"], **how)
    if transform == "NONE" or (transform == "LOGISTIC" and corrected_runtime()):
        check("LinearClassifier", [x], outputs=2, coefficients=rng.normal(size=3).tolist(), intercepts=[0.5],
              classlabels_ints=[4, 6], **how)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_classifier_of_each_dtype(rng: np.random.Generator, dtype: Any) -> None:
    check("LinearClassifier", [rows(rng, dtype)], outputs=2, coefficients=rng.normal(size=9).tolist(),
          intercepts=[0.5, 0.25, -0.1], classlabels_ints=[5, 7, 9])


def test_probit(rng: np.random.Generator) -> None:
    """The inverse of the normal distribution function, on probabilities."""
    low = rng.uniform(0.01, 0.4, size=(20, 1)).astype(np.float32)
    x = np.concatenate([low, 1 - low])
    check("LinearRegressor", [x], coefficients=[1.0], intercepts=[0.0], post_transform="PROBIT")


# --- support vectors

@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vectors(rng: np.random.Generator, kernel: str, one_class: int) -> None:
    check("SVMRegressor", [rows(rng)], coefficients=rng.normal(size=4).tolist(), n_supports=4, rho=[0.25],
          support_vectors=rng.normal(size=12).tolist(), kernel_type=kernel, kernel_params=[0.3, 1.5, 3.0],
          one_class=one_class)


def test_a_machine_without_support_vectors(rng: np.random.Generator) -> None:
    check("SVMRegressor", [rows(rng)], coefficients=rng.normal(size=3).tolist(), rho=[0.25],
          kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0])


# --- lookup

@pytest.mark.parametrize("version", [2, 4])
def test_labels(version: int) -> None:
    words, numbers = text("a", "z", "c"), np.array([[1, 2], [3, -5]])
    check("LabelEncoder", [words], version=version, keys_strings=["c", "a"], values_strings=["x", "y"])
    check("LabelEncoder", [words], version=version, keys_strings=["c", "a"], values_int64s=[4, 8])
    check("LabelEncoder", [numbers], version=version, keys_int64s=[3, -5, 1], values_strings=["x", "y", "w"],
          default_string="none")
    check("LabelEncoder", [numbers], version=version, keys_int64s=[3, -5], values_floats=[0.5, 0.25])
    x = np.array([1, np.nan, 3, -5, 2.5, -0.0], np.float32)
    check("LabelEncoder", [x], version=version, keys_floats=[3, np.nan, 1, 0.0],
          values_floats=[0.5, 9, 2.0, 7], default_float=-1.0)


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_labels_of_many_keys(rng: np.random.Generator, count: int) -> None:
    keys, x = rng.choice(4000, count, replace=False) - 2000, rng.integers(-2000, 2000, (50, 70))
    check("LabelEncoder", [x], version=2, keys_int64s=keys.tolist(),
          values_int64s=rng.integers(0, 99, count).tolist())


def test_labels_as_tensors() -> None:
    def tensor(*values: Any, dtype: Any) -> Any:
        return numpy_helper.from_array(np.array(values, dtype))
    check("LabelEncoder", [np.array([1, 7, 3], np.int16)], [np.array([2.5, -1.0, 0.5])], version=4,
          keys_tensor=tensor(3, 1, dtype=np.int16), values_tensor=tensor(0.5, 2.5, dtype=np.float64),
          default_tensor=tensor(-1.0, dtype=np.float64))
    check("LabelEncoder", [text("b", "?")], [text("y", "_Unused")], version=4,
          keys_tensor=tensor("a", "b", dtype=object), values_tensor=tensor("x", "y", dtype=object))
    check("LabelEncoder", [np.array([3, 3, 4])], [np.array([8, 8, -1])], version=4, keys_int64s=[3, 3],
          values_int64s=[7, 8])  # of a repeated key the last counts


def test_classes_and_categories() -> None:
    check("LabelEncoder", [text("a", "z", "c")], version=1, classes_strings=["c", "a"])
    check("LabelEncoder", [np.array([0, 1, 5])], version=1, classes_strings=["c", "a"])
    check("CategoryMapper", [text("a", "z", "c")], cats_strings=["c", "a"], cats_int64s=[4, 8])
    check("CategoryMapper", [np.array([4, 5, 8])], cats_strings=["c", "a"], cats_int64s=[4, 8])


def test_one_hot() -> None:
    check("OneHotEncoder", [np.array([[1, 5], [2, 9]])], cats_int64s=[5, 1, 2])
    check("OneHotEncoder", [np.array([1.7, 5, 2], np.float32)], cats_int64s=[5, 1, 2])
    check("OneHotEncoder", [text("a", "z", "c")], cats_strings=["c", "a"])
    with pytest.raises(UnsupportedOp, match="zeros=1"):
        load_graph(model_of("OneHotEncoder", [np.array([1])], cats_int64s=[1], zeros=0)[0])


# --- n-grams

POOL = [0, 1, 2, *(1, 2, 3, 3, 0, 5), *(1, 2, 3, 4, 4, 4)]


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 2), (2, 2), (1, 3)])
def test_n_grams(rng: np.random.Generator, mode: str, lengths: tuple[int, int]) -> None:
    given: dict[str, Any] = {
        "domain": "", "mode": mode, "min_gram_length": lengths[0], "max_gram_length": lengths[1],
        "max_skip_count": int(rng.integers(4)), "ngram_counts": [0, 3, 9],
        "ngram_indexes": rng.permutation(8).tolist(), "weights": rng.normal(size=8).tolist(),
    }
    if mode != "TF" and not corrected_runtime():
        pytest.skip("this ONNX Runtime gives the weights in another order")
    x = rng.integers(0, 6, size=(3, 12))
    part = {"TF": x, "IDF": x[0], "TFIDF": x[:, :1].astype(np.int32)}[mode]
    check("TfIdfVectorizer", [part], pool_int64s=POOL, **given)
    names = np.array(["zero", "one", "two", "three", "four", "five"], object)
    check("TfIdfVectorizer", [names[x]], pool_strings=names[POOL].tolist(), **given)


def test_n_grams_of_open_length(rng: np.random.Generator) -> None:
    given = {"mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 2,
             "ngram_counts": [0, 3], "ngram_indexes": [0, 1, 2, 3], "pool_int64s": [0, 1, 2, 0, 1]}
    x = rng.integers(0, 3, size=(4, 9))
    made = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **given)
    graph = load_graph(make_model([made], {"x": (np.int64, ("N", "C"))}, ["y"]))
    for n, c in ((4, 9), (1, 5), (2, 1)):
        with_sizes = make_model([made], {"x": x[:n, :c]}, ["y"])
        (want,) = onnxruntime_outputs(with_sizes, {"x": x[:n, :c]})
        for strategy in STRATEGIES:
            np.testing.assert_array_equal(run(graph, {"x": x[:n, :c]}, strategy)[0], want)


@pytest.mark.parametrize(("op_type", "given", "message"), [
    ("LabelEncoder", {"keys_int64s": [1, 2], "values_int64s": [1]}, "2 keys for 1 values"),
    ("LabelEncoder", {"keys_int64s": [1], "values_int64s": [1], "values_floats": [1.0]}, "one of values_"),
    ("Normalizer", {"norm": "L7"}, "norm 'L7'"),
    ("LinearRegressor", {"coefficients": [1.0] * 3, "targets": 2}, "3 coefficients for 2 rows"),
    ("LinearRegressor", {"coefficients": [1.0] * 3, "post_transform": "HALF"}, "post_transform 'HALF'"),
    ("FeatureVectorizer", {"inputdimensions": [1, 2]}, "2 inputdimensions for 1 operands"),
    ("SVMRegressor", {"coefficients": [1.0], "n_supports": 1, "support_vectors": [1.0]}, "1 numbers in 1"),
])
def test_refused(op_type: str, given: dict[str, Any], message: str) -> None:
    x = np.ones((2, 3), np.int64 if op_type == "LabelEncoder" else np.float32)
    with pytest.raises(ModelError, match=message):
        load_graph(model_of(op_type, [x], version=2, **given)[0])
