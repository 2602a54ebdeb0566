"""ai.onnx.ml: scalers, linear models, and the transforms of their scores.

Formulas are those of the operators' specification; where it is silent (the scores of two classes that one row
of coefficients tells apart), ONNX Runtime's.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.lookup import ML, strings
from planish.capture.onnx.movement import constant_pad, reshaped, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT32, FLOAT64, INT64


def floats(values: Any, like: Node) -> Node:
    return constant(np.array(values, dtype=like.dtype.numpy))


def as_float(x: Node) -> Node:
    """float64 stays; everything else is computed in float32."""
    return x if x.dtype is FLOAT64 else cast(x, FLOAT32)


def as_rows(call: Call, i: int = 0) -> Node:
    """Operand `i` as [N, C]: a vector is one row."""
    x = call[i]
    if x.ndim not in (1, 2):
        call.invalid(f"operand {i} has {x.ndim} axes, not 1 or 2")
    return x if x.ndim == 2 else reshaped(x, (1, *x.shape))


# --- columns

@translates("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call) -> Node:
    """The chosen columns; a vector gives one row."""
    x, at = call[0], call[1]
    picked = ops.take(x, reshaped(at, (at.tensor.size,)), axis=x.ndim - 1)
    return picked if x.ndim > 1 else reshaped(picked, (1, *picked.shape))


@translates("FeatureVectorizer", domain=ML)
def feature_vectorizer(call: Call) -> Node:
    """The operands' columns side by side, each cut or filled with zeros to its size."""
    sizes = call.attribute("inputdimensions", ())
    if len(sizes) != len(call.operands):
        call.invalid(f"{len(sizes)} inputdimensions for {len(call.operands)} operands")
    parts = []
    for i, size in enumerate(sizes):
        x = cast(as_rows(call, i), FLOAT32)
        columns = call.integers_of(x.shape[1:], "its number of columns")[0]
        kept = sliced(x, 1, 0, min(size, columns))
        parts.append(constant_pad(kept, {1: (0, max(0, size - columns))}, number(0, FLOAT32)))
    return parts[0] if len(parts) == 1 else ops.concat(*parts, axis=1)


@translates("Imputer", domain=ML)
def imputer(call: Call) -> Node:
    x = call[0]
    kind = "float" if x.dtype.is_float else "int64"
    values = floats(call.attribute(f"imputed_value_{kind}s", ()), x)
    missing = call.attribute(f"replaced_value_{kind}", 0)
    is_missing = ops.is_nan(x) if missing != missing else ops.eq(x, number(missing, x.dtype))
    return ops.select(is_missing, values, x)


# --- scales

@translates("Binarizer", domain=ML)
def binarizer(call: Call) -> Node:
    x = call[0]
    return cast(ops.gt(x, number(call.attribute("threshold", 0.0), x.dtype)), x.dtype)


@translates("Scaler", domain=ML)
def scaler(call: Call) -> Node:
    """(x - offset) * scale, per column or one for all."""
    x = as_float(call[0])
    offset, scale = floats(call.attribute("offset", (0,)), x), floats(call.attribute("scale", (1,)), x)
    return cast((x - offset) * scale, FLOAT32)


@translates("Normalizer", domain=ML)
def normalizer(call: Call) -> Node:
    """Rows over their greatest element, sum of magnitudes, or length; where that is 0, as they are."""
    x = as_float(call[0])
    last, norm = (x.ndim - 1,), call.attribute("norm", "MAX")
    if norm == "MAX":
        divisor = ops.reduce_max(x, axes=last, keepdims=True)
    elif norm == "L1":
        divisor = ops.reduce_sum(ops.abs(x), axes=last, keepdims=True)
    elif norm == "L2":
        divisor = ops.sqrt(ops.reduce_sum(x * x, axes=last, keepdims=True))
    else:
        call.invalid(f"norm {norm!r} is not one of MAX, L1, L2")
    zero = ops.eq(divisor, number(0, x.dtype))
    return cast(x / ops.select(zero, number(1, x.dtype), divisor), FLOAT32)


# --- scores

def transformed(call: Call, scores: Node, how: str | None = None) -> Node:
    """Scores [N, E] after `how`, or the attribute `post_transform`."""
    how = how or call.attribute("post_transform", "NONE")
    if how not in _TRANSFORMS:
        call.invalid(f"post_transform {how!r} is not one of {', '.join(_TRANSFORMS)}")
    return _TRANSFORMS[how](scores)


def _softmax_zero(scores: Node) -> Node:
    """Softmax over the scores that are not 0, which stay 0."""
    keep = ops.gt(ops.abs(scores), number(1e-7, scores.dtype))
    top = ops.reduce_max(scores, axes=(1,), keepdims=True)
    powers = ops.select(keep, ops.exp(scores - top), number(0, scores.dtype))
    total = ops.reduce_sum(powers, axes=(1,), keepdims=True)
    return powers / ops.select(ops.eq(total, number(0, scores.dtype)), number(1, scores.dtype), total)


def _probit(scores: Node) -> Node:
    """The inverse of the normal distribution, by Winitzki's approximation of the inverse error function."""
    x = scores * 2.0 - 1.0
    log = ops.log((1.0 - x) * (1.0 + x))
    v = log * 0.5 + 2.0 / (3.14159 * 0.147)
    root = ops.sqrt(ops.sqrt(v * v - log * (1.0 / 0.147)) - v)
    return ops.select(ops.lt(x, number(0, x.dtype)), -root, root) * 1.41421356


_TRANSFORMS = {
    "NONE": lambda scores: scores,
    "LOGISTIC": lambda scores: ops.sigmoid(scores),
    "SOFTMAX": lambda scores: ops.softmax(scores, axis=1),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


# --- linear models

def _linear(call: Call, rows: int) -> Node:
    """x @ coefficients' + intercepts."""
    x = as_float(as_rows(call))
    weights = np.array(call.attribute("coefficients", ()), x.dtype.numpy)
    if not rows or weights.size % rows:
        call.invalid(f"{weights.size} coefficients for {rows} rows")
    scores = ops.matmul(x, constant(np.ascontiguousarray(weights.reshape(rows, -1).T)))
    intercepts = call.attribute("intercepts", ())
    return scores + floats(intercepts, x) if intercepts else scores


@translates("LinearRegressor", domain=ML)
def linear_regressor(call: Call) -> Node:
    return cast(transformed(call, _linear(call, call.attribute("targets", 1))), FLOAT32)


@translates("LinearClassifier", domain=ML)
def linear_classifier(call: Call) -> tuple[Node, Node]:
    """The class of the greatest score, and the scores. One row of coefficients tells two classes apart: its
    score is that of the second, and what is left that of the first."""
    labels = class_labels(call, "ints")
    rows = len(call.attribute("intercepts", ())) or len(labels)
    scores = _linear(call, rows)
    if rows == 1 and len(labels) == 2:
        return _two_classes(call, scores, labels)
    if rows == 1:
        call.refuse("one row of coefficients for one class")
    return pick(labels, scores), cast(transformed(call, scores), FLOAT32)


def _two_classes(call: Call, score: Node, labels: np.ndarray) -> tuple[Node, Node]:
    second = ops.gt(score, number(0, score.dtype))
    first = -score if call.attribute("post_transform", "NONE") != "NONE" else 1.0 - score
    both = ops.concat(first, score, axis=1)
    place = reshaped(cast(second, INT64), score.shape[:1])
    return ops.take(constant(labels), place, axis=0), cast(transformed(call, both), FLOAT32)


def class_labels(call: Call, numbers: str = "int64s") -> np.ndarray:
    names, ints = call.attribute("classlabels_strings", ()), call.attribute(f"classlabels_{numbers}", ())
    return strings(names) if names else np.array(ints, np.int64)


def pick(labels: np.ndarray, scores: Node) -> Node:
    """The label of the greatest score of each row."""
    return ops.take(constant(labels), ops.argmax(scores, axis=1, keepdims=False), axis=0)


# --- support vectors

@translates("SVMRegressor", domain=ML)
def svm_regressor(call: Call) -> Node:
    """Sum of coefficients times the kernel of x and each support vector, plus rho; of a one-class machine,
    its sign. Without support vectors it is linear in x."""
    x = as_float(as_rows(call))
    weights, count = floats(call.attribute("coefficients", ()), x), call.attribute("n_supports", 0)
    features = call.integers_of(x.shape[1:], "its number of columns")[0]
    vectors = np.array(call.attribute("support_vectors", ()), x.dtype.numpy)
    if len(weights.attributes.array) != (count or features) or vectors.size != count * features:
        call.invalid(f"{vectors.size} numbers in {count} support vectors of {features}, with "
                     f"{len(weights.attributes.array)} coefficients")
    seen = _kernel(call, x, constant(vectors.reshape(count, features))) if count else x
    rho = floats(call.attribute("rho", (0,))[:1], x)
    score = ops.reduce_sum(seen * weights, axes=(1,), keepdims=True) + rho
    if call.flag("one_class"):
        one = number(1, x.dtype)
        return cast(ops.select(ops.gt(score, number(0, x.dtype)), one, -one), FLOAT32)
    return cast(transformed(call, score), FLOAT32)


def _kernel(call: Call, x: Node, vectors: Node) -> Node:
    """[N, vectors]"""
    gamma, coef0, degree = (*call.attribute("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    kind = call.attribute("kernel_type", "LINEAR")
    if kind == "RBF":
        apart = reshaped(x, (x.shape[0], 1, x.shape[1])) - vectors
        return ops.exp(ops.reduce_sum(apart * apart, axes=(2,)) * -gamma)
    product = ops.matmul(x, ops.transpose(vectors, axes=(1, 0)))
    if kind == "LINEAR":
        return product
    if kind not in ("POLY", "SIGMOID"):
        call.invalid(f"kernel_type {kind!r} is not one of LINEAR, POLY, RBF, SIGMOID")
    shifted = product * gamma + coef0
    return ops.tanh(shifted) if kind == "SIGMOID" else ops.pow(shifted, number(degree, x.dtype))
