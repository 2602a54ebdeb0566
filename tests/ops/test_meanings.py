"""The vectorised NumPy meanings against plain loops that spell out what each op says."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from planish.ops import OPS, Op
from planish.types import FLOAT64, INT32, dtype_of
from tests.ops.cases import evaluate, samples_of

SMALL = 3000
Loop = Callable[..., Any]


def places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return product(*map(range, shape))


def within(index: Any, size: int) -> int:
    index = int(index)
    return min(max(index + size if index < 0 else index, 0), size - 1)


# --- index

def loop_take(a: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    axis = a.axis
    result = np.empty((*x.shape[:axis], *index.shape, *x.shape[axis + 1:]), x.dtype)
    for p in places(result.shape):
        i = index[p[axis:axis + index.ndim]]
        result[p] = x[(*p[:axis], within(i, x.shape[axis]), *p[axis + index.ndim:])]
    return result


def loop_take_along(a: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    result = np.empty(index.shape, x.dtype)
    for p in places(index.shape):
        result[p] = x[(*p[:a.axis], within(index[p], x.shape[a.axis]), *p[a.axis + 1:])]
    return result


def loop_gather_nd(a: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    batch, depth, rows = a.batch_dims, index.shape[-1], index.shape[:-1]
    result = np.empty((*rows, *x.shape[batch + depth:]), x.dtype)
    for p in places(rows):
        at = tuple(within(i, n) for i, n in zip(index[p], x.shape[batch:batch + depth], strict=True))
        result[p] = x[(*p[:batch], *at)]
    return result


def outside(index: Any, size: int) -> int | None:
    index = int(index)
    index = index + size if index < 0 else index
    return index if 0 <= index < size else None


def combined(reduction: str, old: Any, new: Any) -> Any:
    return {"none": lambda: new, "add": lambda: old + new, "mul": lambda: old * new,
            "max": lambda: np.maximum(old, new), "min": lambda: np.minimum(old, new)}[reduction]()


def loop_scatter_along(a: Any, x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result = x.copy()
    for p in places(index.shape):
        i = outside(index[p], x.shape[a.axis])
        if i is not None:
            at = (*p[:a.axis], i, *p[a.axis + 1:])
            result[at] = combined(a.reduction, result[at], updates[p])
    return result


def loop_scatter_nd(a: Any, x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result = x.copy()
    for p in places(index.shape[:-1]):
        at = tuple(outside(i, n) for i, n in zip(index[p], x.shape, strict=False))
        if None not in at:
            result[at] = combined(a.reduction, result[at], updates[p])
    return result


def loop_dynamic_slice(a: Any, x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    return x[window(x.shape, starts, a.sizes)]


def loop_dynamic_update_slice(a: Any, x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[window(x.shape, starts, update.shape)] = update
    return result


def window(shape: Any, starts: Any, sizes: Any) -> tuple[slice, ...]:
    found = []
    for s, n, m in zip(starts, shape, sizes, strict=True):
        start = int(s) + n if s < 0 else int(s)
        start = min(max(start, 0), n - m)
        found.append(slice(start, start + m))
    return tuple(found)


# --- shape

def loop_pad(a: Any, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    shape = [lo + hi + (n + (n - 1) * i if n else 0)
             for n, lo, hi, i in zip(x.shape, a.low, a.high, a.interior, strict=True)]
    result = np.full(shape, fill, x.dtype)
    for p in places(x.shape):
        result[tuple(lo + q * (i + 1) for q, lo, i in zip(p, a.low, a.interior, strict=True))] = x[p]
    return result


# --- scans, sorting

def loop_scan(combine: Callable[[Any, Any], Any], identity: Callable[[np.dtype], Any]) -> Loop:
    def scan(a: Any, x: np.ndarray) -> np.ndarray:
        moved, result = np.moveaxis(x, a.axis, -1), np.empty_like(np.moveaxis(x, a.axis, -1))
        for p in places(moved.shape[:-1]):
            total = x.dtype.type(identity(x.dtype))
            order = range(moved.shape[-1])
            for i in reversed(order) if a.reverse else order:
                before, total = total, combine(total, moved[p][i])
                result[(*p, i)] = before if a.exclusive else total
        return np.moveaxis(result, -1, a.axis)
    return scan


def lowest(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def order(row: np.ndarray, descending: bool) -> list[int]:
    """NaN is the greatest; ties keep their order."""
    def key(i: int) -> tuple[bool, Any]:
        value = row[i]
        nan = bool(np.isnan(value))
        return (nan, 0 if nan else value.item())
    if not descending:
        return sorted(range(len(row)), key=key)
    found = sorted(range(len(row) - 1, -1, -1), key=key)
    return found[::-1]


def loop_argsort(a: Any, x: np.ndarray) -> np.ndarray:
    moved = np.moveaxis(x, a.axis, -1)
    result = np.empty(moved.shape, np.int64)
    for p in places(moved.shape[:-1]):
        result[p] = order(moved[p], a.descending)
    return np.moveaxis(result, -1, a.axis)


def loop_sort(a: Any, x: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, loop_argsort(a, x), a.axis)


def loop_top_k(a: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index = loop_argsort(OPS["argsort"].make_attributes({"axis": a.axis, "descending": a.largest}), x)
    index = np.take(index, range(a.k), a.axis)
    return np.take_along_axis(x, index, a.axis), index


def loop_arg(better: Callable[[Any, Any], bool]) -> Loop:
    def arg(a: Any, x: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(x, a.axis, -1)
        result = np.zeros(moved.shape[:-1], np.int64)
        for p in places(result.shape):
            row, best = moved[p], 0
            for i in range(1, len(row)):
                if not np.isnan(row[best]) and (np.isnan(row[i]) or better(row[i], row[best])):
                    best = i
            result[p] = best
        return np.expand_dims(result, a.axis) if a.keepdims else result
    return arg


# --- windows and contractions

def loop_reduce_window(a: Any, x: np.ndarray) -> np.ndarray:
    start = {"sum": 0, "prod": 1, "max": lowest(x.dtype), "min": highest(x.dtype)}[a.kind]
    combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[a.kind]
    shape = OPS["reduce_window"].infer(a, *types(x)).shape
    result = np.full(shape, start, x.dtype)
    for p in places(shape):
        for q in places(a.window):
            at = tuple(i * s + j * d - lo for i, s, j, d, (lo, _) in
                       zip(p, a.strides, q, a.dilation, a.padding, strict=True))
            if all(0 <= i < n for i, n in zip(at, x.shape, strict=True)):
                result[p] = combine(result[p], x[at])
    return result


def types(*arrays: np.ndarray) -> Any:
    from tests.ops.cases import types_of
    return types_of(arrays)


def loop_conv(a: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    type_ = OPS["conv"].infer(a, *types(x, w))
    result = np.zeros(type_.shape, type_.dtype.numpy)
    inner, outer = w.shape[1], w.shape[0] // a.groups
    for p in places(type_.shape):
        for c, *k in places(w.shape[1:]):
            at = []
            for i, s, j, d, (lo, _), ld, n in zip(p[2:], a.strides, k, a.rhs_dilation, a.padding,
                                                  a.lhs_dilation, x.shape[2:], strict=True):
                q, left = divmod(i * s + j * d - lo, ld)
                at.append(q if left == 0 and 0 <= q < n else None)
            if None not in at:
                value = x[(p[0], p[1] // outer * inner + c, *at)]
                result[p] += result.dtype.type(value) * result.dtype.type(w[(p[1], c, *k)])
    return result


def loop_dot_general(a: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    letters = iter("abcdefghijklmnop")
    left, right = [next(letters) for _ in range(x.ndim)], [next(letters) for _ in range(y.ndim)]
    for i, j in zip(a.lhs_batch + a.lhs_contract, a.rhs_batch + a.rhs_contract, strict=True):
        right[j] = left[i]
    batch = [left[i] for i in a.lhs_batch]
    gone = [left[i] for i in a.lhs_contract]
    out = batch + [c for c in left if c not in batch + gone] + [c for c in right if c not in batch + gone]
    wide = np.float64 if x.dtype.kind == "f" else (a.result or dtype_of(x)).numpy
    result = np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x.astype(wide), y.astype(wide))
    return (result * a.alpha if a.alpha != 1 else result).astype((a.result or dtype_of(x)).numpy)


EXACT: dict[str, Loop] = {
    "take": loop_take, "take_along": loop_take_along, "gather_nd": loop_gather_nd,
    "scatter_along": loop_scatter_along, "scatter_nd": loop_scatter_nd, "dynamic_slice": loop_dynamic_slice,
    "dynamic_update_slice": loop_dynamic_update_slice, "pad": loop_pad, "sort": loop_sort,
    "argsort": loop_argsort, "top_k": loop_top_k, "argmax": loop_arg(lambda a, b: a > b),
    "argmin": loop_arg(lambda a, b: a < b), "cumsum": loop_scan(lambda a, b: a + b, lambda d: 0),
    "cumprod": loop_scan(lambda a, b: a * b, lambda d: 1), "cummax": loop_scan(np.maximum, lowest),
    "cummin": loop_scan(np.minimum, highest),
}
CLOSE: dict[str, Loop] = {"reduce_window": loop_reduce_window, "conv": loop_conv,
                          "dot_general": loop_dot_general}


def cases(op: Op, dtype: Any) -> Iterator[Any]:
    for sample in samples_of(op, dtype, seed=5):
        results = evaluate(op, sample)
        if sum(a.size for a in (*sample.operands, *results)) <= SMALL:
            yield sample, op.make_attributes(sample.attributes), results


@pytest.mark.parametrize("dtype", [INT32, FLOAT64], ids=str)
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_exact(name: str, dtype: Any) -> None:
    for sample, attributes, results in cases(OPS[name], dtype):
        expected = EXACT[name](attributes, *sample.operands)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for r, e in zip(results, expected, strict=True):
            np.testing.assert_array_equal(r, e, err_msg=f"{name} {sample.label}")
            assert r.dtype == e.dtype


@pytest.mark.parametrize("dtype", [INT32, FLOAT64], ids=str)
@pytest.mark.parametrize("name", CLOSE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_close(name: str, dtype: Any) -> None:
    for sample, attributes, results in cases(OPS[name], dtype):
        expected = CLOSE[name](attributes, *sample.operands)
        assert results[0].dtype == expected.dtype
        np.testing.assert_allclose(results[0], expected, rtol=1e-12, atol=1e-12,
                                   err_msg=f"{name} {sample.label}")


def test_int8_dot_and_conv_widen_before_they_multiply() -> None:
    x = np.full((1, 40), 127, np.int8)
    total = OPS["dot_general"](x, x.T, lhs_contract=(1,), rhs_contract=(0,), result=INT32)
    assert total.item() == 40 * 127 * 127
    op = OPS["conv"]
    sample = next(s for s in samples_of(op, dtype_of("int8")) if s.label == "result i32")
    np.testing.assert_array_equal(evaluate(op, sample)[0],
                                  loop_conv(op.make_attributes(sample.attributes), *sample.operands))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_floats_are_accumulated_in_float32(name: str) -> None:
    """4096 ones: a float16 or bfloat16 accumulator would stop at 2048 or 256."""
    x = np.ones((2, 4096), dtype_of(name).numpy)
    assert OPS["reduce_sum"](x, axes=(1,)).tolist() == [4096, 4096]
    assert OPS["cumsum"](x, axis=1)[0, -1] == 4096
    assert OPS["dot_general"](x, x, lhs_contract=(1,), rhs_contract=(1,))[0, 0] == 4096
    assert OPS["mean"](x, axes=(1,)).tolist() == [1, 1]
    kernel = np.ones((1, 1, 4096), x.dtype)
    attributes = {"strides": (1,), "padding": ((0, 0),), "lhs_dilation": (1,), "rhs_dilation": (1,)}
    assert OPS["conv"](x[:1, None], kernel, **attributes).item() == 4096


def test_variance_of_a_large_mean() -> None:
    x = (np.random.default_rng(0).normal(size=(4, 1000)) + 1e4).astype(np.float32)
    np.testing.assert_allclose(OPS["variance"](x, axes=(1,)), x.astype(np.float64).var(axis=1), rtol=1e-5)


def test_softmax_of_large_and_infinite_values() -> None:
    x = np.array([[1e4, 1e4, -np.inf], [-1e4, -1e4, -1e4]], np.float32)
    np.testing.assert_allclose(OPS["softmax"](x, axis=1), [[0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)
    np.testing.assert_allclose(OPS["logsumexp"](np.array([[-np.inf, -np.inf], [np.inf, 0]]), axes=(1,)),
                               [-np.inf, np.inf])


def test_check_raises_what_it_says() -> None:
    check = OPS["check"]
    assert check(np.array(True), error="IndexError", message="out of range")
    with pytest.raises(IndexError, match="out of range"):
        check(np.array(False), error="IndexError", message="out of range")
