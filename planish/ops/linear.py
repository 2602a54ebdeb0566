"""Composite ops around contractions: matmul, attention, one_hot."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from planish.ops.activation import in_accumulator, widened
from planish.ops.derive import by_decomposition
from planish.ops.record import NoAttributes, Sample
from planish.ops.rules import (
    ANY,
    FLOATS,
    INTEGERS,
    NUMBERS,
    apply_nullary,
    cast_to,
    define,
    like,
    no_slope,
    ops,
    require,
    require_at_least,
    require_dtype,
    require_equal_sizes,
    require_same_dtype,
)
from planish.ops.samples import random_array, special_values, strided, with_specials
from planish.types import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Dim,
    DType,
    TensorType,
    broadcast_shapes,
    dtype_of,
    is_static,
)


@dataclass(frozen=True)
class AttentionAttributes:
    """`scale` None is 1 / sqrt(D). Causal: query i sees keys 0 ... i; values it does not see may be anything.
    A bool mask puts `hidden` in the place of a score. `unseen`: what a query gives all of whose scores are
    -inf, "nan" or "zero"; "zero_nan": its weights are 0, also where a score is NaN or inf (what exporters
    write: weights that are NaN become 0)."""

    scale: float | None = None
    causal: bool = False
    hidden: float = -np.inf
    unseen: str = "nan"


@dataclass(frozen=True)
class OneHotAttributes:
    depth: Dim
    dtype: DType = FLOAT32


# --- matmul

def _matmul_rule(attributes: NoAttributes, a: TensorType, b: TensorType) -> TensorType:
    require_same_dtype(a, b)
    require(a.rank >= 1 and b.rank >= 1, "takes operands of one axis or more")
    require_equal_sizes("contracted sizes", a.shape[-1], b.shape[max(b.rank - 2, 0)])
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.with_shape((*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ())))


def _matmul(attributes: NoAttributes, a: Any, b: Any) -> Any:
    return matrix_product(a, b)


def matrix_product(a: Any, b: Any, result: DType | None = None) -> Any:
    """NumPy's: the last axis of a with the second last of b; the axes before them broadcast. `result` is the
    dtype of the sums (None: the operands')."""
    ra, rb = len(a.shape), len(b.shape)
    if rb <= 2:
        return ops.dot_general(a, b, lhs_contract=(ra - 1,), rhs_contract=(max(rb - 2, 0),), result=result)
    batch = broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    a = ops.broadcast_to(a, shape=(*batch, *a.shape[-2:])) if a.shape[:-2] != batch and ra > 1 else a
    b = ops.broadcast_to(b, shape=(*batch, *b.shape[-2:])) if b.shape[:-2] != batch else b
    if ra == 1:
        return ops.dot_general(b, a, lhs_contract=(rb - 2,), rhs_contract=(0,), result=result)
    axes = tuple(range(len(batch)))
    return ops.dot_general(a, b, lhs_contract=(len(batch) + 1,), rhs_contract=(len(batch),), lhs_batch=axes,
                           rhs_batch=axes, result=result)


def _matmul_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape, -1, 1) if dtype.is_float else random_array(rng, dtype, shape)
    for a, b in (((3, 4), (4, 5)), ((17,), (17,)), ((17,), (17, 3)), ((3, 17), (17,)), ((2, 3, 8), (8, 33)),
                 ((2, 3, 8), (2, 8, 5)), ((4, 1, 3, 8), (2, 8, 5)), ((3, 8), (2, 8, 5)), ((8,), (2, 8, 5)),
                 ((2, 3, 8), (8,)), ((3, 0), (0, 5)), ((0, 3, 4), (4, 2)), ((1, 1), (1, 1))):
        yield Sample((x(*a), x(*b)), {}, f"{a} @ {b}")
    yield Sample((strided(x(9, 17)), x(8, 17).T), {}, "strided")
    yield Sample((with_specials(rng, x(5, 9), dtype), x(9, 17)), {}, "special")
    yield Sample((x(150, 128), x(128, 470)), {}, "parallel")


matmul = define("matmul", "linear", _matmul_rule, operands=2, dtypes=NUMBERS,
                traits={"composite", "contraction"}, tolerance="contraction", samples=_matmul_samples,
                decompose=_matmul, gradient=by_decomposition(_matmul))


# --- attention

def _attention_rule(attributes: AttentionAttributes, *operands: TensorType) -> TensorType:
    require(len(operands) >= 3, f"takes q, k, v and perhaps masks, not {len(operands)} operands")
    q, k, v, *mask = operands
    _require_scores(attributes, q, (k, v), mask)
    require_equal_sizes("lengths of k and v", k.shape[-2], v.shape[-2])
    return q.with_shape((*q.shape[:-1], v.shape[-1]))


def _require_scores(attributes: AttentionAttributes, q: TensorType, keys: Sequence[TensorType],
                    mask: Sequence[TensorType]) -> None:
    """Of queries, of keys (and values) and of masks: that there are scores."""
    k = keys[0]
    require_same_dtype(q, *keys)
    require(q.rank >= 2 and all(x.rank == q.rank for x in keys),
            "q, k, v are [..., length, features] of one rank")
    require(all(broadcast_shapes(x.shape[:-2], q.shape[:-2]) == q.shape[:-2] for x in keys),
            "the axes of k and v before the last two are to be those of q, or 1")
    require(attributes.unseen in ("nan", "zero", "zero_nan"),
            f"unseen is 'nan', 'zero' or 'zero_nan', not {attributes.unseen!r}")
    require_equal_sizes("features of q and k", q.shape[-1], k.shape[-1])
    require(attributes.scale is not None or is_static(q.shape[-1]),
            "give a scale where the features are symbolic")
    scores = (*q.shape[:-1], k.shape[-2])
    for m in mask:
        require(m.dtype in (BOOL, q.dtype), f"the mask is bool or {q.dtype.short}, not {m.dtype.short}")
        require(broadcast_shapes(m.shape, scores) == scores,
                f"the mask {m} does not broadcast to {q.with_shape(scores)}")


def _attention(a: AttentionAttributes, q: Any, k: Any, v: Any, *mask: Any) -> Any:
    """softmax(scale * q k^T + mask) v (Vaswani et al., Attention Is All You Need, 2017)."""
    scores, rank = _scores(a, q, k, *mask), len(q.shape)
    batch, last = tuple(range(rank - 2)), (rank - 1,)
    weights = _weights_or_zero(scores) if a.unseen == "zero" else ops.softmax(scores, axis=rank - 1)
    if a.unseen == "zero_nan":
        weights = ops.select(ops.is_nan(weights), like(scores, 0), weights)
    return ops.dot_general(weights, _for_each_head(v, q), lhs_contract=last, rhs_contract=(rank - 2,),
                           lhs_batch=batch, rhs_batch=batch)


def _for_each_head(x: Any, q: Any) -> Any:
    """Keys or values, broadcast to the heads of q."""
    shape = (*q.shape[:-2], *x.shape[-2:])
    return x if tuple(x.shape) == shape else ops.broadcast_to(x, shape=shape)


def _scores(a: AttentionAttributes, q: Any, k: Any, *mask: Any) -> Any:
    """scale * q k^T, masked."""
    rank = len(q.shape)
    batch, last = tuple(range(rank - 2)), (rank - 1,)
    k = _for_each_head(k, q)
    scale = 1 / sqrt(q.shape[-1]) if a.scale is None else a.scale
    scores = ops.dot_general(q, k, lhs_contract=last, rhs_contract=last, lhs_batch=batch, rhs_batch=batch,
                             alpha=scale)
    if a.causal:
        row, column = (apply_nullary(ops.iota, q, shape=tuple(scores.shape[-2:]), axis=i, dtype=INT64)
                       for i in (0, 1))
        scores = ops.select(ops.ge(row, column), scores, like(q, -np.inf))
    for m in mask:
        scores = ops.select(m, scores, like(q, a.hidden)) if dtype_of(m.dtype) is BOOL else ops.add(scores, m)
    return scores


def _weights_or_zero(scores: Any) -> Any:
    """softmax over the last axis; 0 where every score is -inf."""
    largest, e, total = _exponentials(scores)
    blind = ops.eq(largest, like(scores, -np.inf))
    return ops.div(e, ops.select(blind, like(scores, 1), total))


def _exponentials(scores: Any) -> tuple[Any, Any, Any]:
    """The largest score of a row, exp(scores - largest), 0 where every score is -inf, and their sum."""
    last = (len(scores.shape) - 1,)
    largest = ops.reduce_max(scores, axes=last, keepdims=True)
    blind = ops.eq(largest, like(scores, -np.inf))
    e = ops.exp(ops.sub(scores, ops.select(blind, like(scores, 0), largest)))
    return largest, e, ops.reduce_sum(e, axes=last, keepdims=True)


def _attention_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape, -2, 2)
    plain = {"scale": None, "causal": False}
    for s, t, d in ((1, 1, 1), (3, 8, 17), (17, 33, 8), (64, 65, 16)):
        yield Sample((x(2, s, d), x(2, t, d), x(2, t, d)), plain, f"{s} queries, {t} keys, {d} features")
    yield Sample((x(2, 3, 9, 8), x(2, 3, 9, 8), x(2, 3, 9, 5)), {"scale": 0.5, "causal": True},
                 "causal, scale")
    yield Sample((x(9, 8), x(17, 8), x(17, 8), rng.uniform(size=(9, 17)) < 0.7), plain, "bool mask")
    yield Sample((x(2, 9, 8), x(2, 17, 8), x(2, 17, 8), x(9, 17)), plain, "additive mask")
    yield Sample((strided(x(9, 8)), x(8, 17).T, strided(x(17, 8))), plain, "strided")
    mask = rng.uniform(size=(2, 1, 17)) < 0.5
    mask[0] = False
    for unseen in ("nan", "zero", "zero_nan"):
        yield Sample((x(2, 9, 8), x(2, 17, 8), x(2, 17, 8), mask), {**plain, "unseen": unseen},
                     "nothing seen")
    yield Sample((x(2, 6, 70, 20), x(2, 1, 300, 20), x(1, 1, 300, 20)), {"scale": 0.3, "causal": True},
                 "shared keys, blocks")
    yield Sample((x(2, 9, 8), x(2, 17, 8), x(2, 17, 8), rng.uniform(size=(2, 1, 17)) < 0.5, x(9, 1)),
                 {**plain, "hidden": -3.0}, "two masks")
    yield Sample((x(3, 50, 8), x(3, 290, 8), x(3, 290, 12), x(3, 50, 290)), plain, "mask and blocks")
    yield Sample((x(2, 0, 8), x(2, 3, 8), x(2, 3, 8)), plain, "no queries")
    yield Sample((_with_infinities(rng, x(2, 9, 8)), _with_infinities(rng, x(2, 17, 8)), x(2, 17, 8)), plain,
                 "special")
    yield Sample((x(16, 130, 32), x(16, 140, 32), x(16, 140, 32)), plain, "parallel")


def _with_infinities(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """With a NaN and infinities of both signs somewhere."""
    at = rng.choice(array.size, 3, replace=False)
    array.reshape(-1)[at] = np.nan, np.inf, -np.inf
    return array


attention = define("attention", "linear", _attention_rule, operands=None, dtypes=FLOATS,
                   attributes=AttentionAttributes, traits={"composite"}, tolerance="composite",
                   samples=_attention_samples, decompose=in_accumulator(_attention),
                   gradient=by_decomposition(in_accumulator(_attention)))


# --- what the gradient of attention needs of its softmax

def _logsumexp_rule(attributes: AttentionAttributes, *operands: TensorType) -> TensorType:
    require(len(operands) >= 2, f"takes q, k and perhaps masks, not {len(operands)} operands")
    q, k, *mask = operands
    _require_scores(attributes, q, (k,), mask)
    return TensorType(q.dtype.accumulator, q.shape[:-1])


def _logsumexp(a: AttentionAttributes, *operands: Any) -> Any:
    """log(sum(exp(scores))) for each query; -inf for one that sees no key."""
    q, k, *mask = widened(*operands)
    scores = _scores(a, q, k, *mask)
    largest, _, total = _exponentials(scores)
    return ops.reshape(ops.add(largest, ops.log(total)), shape=tuple(scores.shape[:-1]))


def _logsumexp_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for one in _attention_samples(rng, dtype):
        q, k, _, *mask = one.operands
        yield Sample((q, k, *mask), one.attributes, one.label)


attention_logsumexp = define("attention_logsumexp", "linear", _logsumexp_rule, operands=None, dtypes=FLOATS,
                             attributes=AttentionAttributes, traits={"composite"}, tolerance="composite",
                             samples=_logsumexp_samples, decompose=_logsumexp,
                             gradient=by_decomposition(_logsumexp))


# --- one_hot

def _one_hot_rule(attributes: OneHotAttributes, index: TensorType) -> TensorType:
    require_dtype(TensorType(attributes.dtype), ANY, "its dtype is one of")
    require_at_least("depth", attributes.depth, 0)
    return TensorType(attributes.dtype, (*index.shape, attributes.depth))


def _one_hot(a: OneHotAttributes, index: Any) -> Any:
    column = ops.reshape(cast_to(index, INT64), shape=(*index.shape, 1))
    return cast_to(ops.eq(column, apply_nullary(ops.iota, index, shape=(a.depth,), axis=0, dtype=INT64)),
                   a.dtype)


def _one_hot_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape in ((), (1,), (17,), (3, 5), (0, 2), (1000,)):
        for of in (FLOAT32, BOOL, INT32):
            yield Sample((random_array(rng, dtype, shape, -2, 9),), {"depth": 7, "dtype": of},
                         f"{shape} to {of.short}")
    yield Sample((random_array(rng, dtype, (9,)),), {"depth": 0, "dtype": FLOAT32}, "no depth")
    yield Sample((special_values(dtype),), {"depth": 7, "dtype": FLOAT32}, "special")
    yield Sample((strided(random_array(rng, dtype, (5, 7), -2, 9)),), {"depth": 7, "dtype": INT32}, "strided")
    yield Sample((random_array(rng, dtype, (1100,), 0, 64),), {"depth": 64, "dtype": FLOAT32}, "parallel")


one_hot = define("one_hot", "linear", _one_hot_rule, operands=1, dtypes=INTEGERS, attributes=OneHotAttributes,
                 traits={"composite"}, samples=_one_hot_samples, decompose=_one_hot, gradient=no_slope)
