"""Reductions and scans: sums, means, extremes, cumulative sums, with NumPy's dtypes, `where`, `initial` and
`out`."""

from __future__ import annotations

from typing import Any

import numpy as np

from planish.capture.numpy.registry import implements
from planish.capture.numpy.shape import axis_tuple, expand_dims, moveaxis, one_axis, reshape, reshape_node
from planish.capture.numpy.tracer import (
    Tracer,
    as_tracer,
    cast,
    cast_node,
    emit,
    fresh,
    full_like_node,
    unsupported,
)
from planish.capture.numpy.ufuncs import write_out
from planish.ir import Node, constant
from planish.types import INT64

# What an empty reduction or an element left out by `where` counts as, by op.
_NEUTRAL = {"reduce_sum": 0, "reduce_prod": 1, "reduce_any": False, "reduce_all": True}
_COMBINE = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_any": "bitwise_or",
    "reduce_all": "bitwise_and",
}


def finish(node: Node, out: Any = None) -> Any:
    """A result: a NumPy scalar where no axis is left, or stored in `out`."""
    return fresh(node, scalar=node.shape == ()) if out is None else write_out(out, node)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Sums and products of small integers are kept in 64 bits."""
    if dtype.kind == "u":
        return np.dtype(np.uint64)
    return np.dtype(np.int64) if dtype.kind in "bi" else dtype


def reduced(op: str, node: Node, axis: Any, keepdims: Any, where: Any = True, initial: Any = None) -> Node:
    axes = axis_tuple(axis, len(node.shape))
    if where is not True:
        node = emit("select", cast(as_tracer(where), np.bool_), node, _left_out(op, node, initial))
    elif initial is not None and op not in _NEUTRAL and any(node.shape[a] == 0 for a in axes):
        shape = tuple(1 if a in axes else s for a, s in enumerate(node.shape))
        node = emit("broadcast_to", cast(as_tracer(initial), node.dtype.numpy), shape=shape)
    elif op not in _NEUTRAL and any(node.shape[a] == 0 for a in axes):
        name = {"reduce_max": "maximum", "reduce_min": "minimum"}[op]
        raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
    result = emit(op, node, axes=axes, keepdims=bool(keepdims))
    if initial is not None:
        result = emit(_COMBINE[op], result, cast(as_tracer(initial), node.dtype.numpy))
    return result


def _left_out(op: str, node: Node, initial: Any) -> Node:
    if op in _NEUTRAL:
        return full_like_node(node, _NEUTRAL[op])
    if initial is None:
        name = {"reduce_max": "maximum", "reduce_min": "minimum"}[op]
        raise ValueError(
            f"reduction operation '{name}' does not have an identity, so to use a where mask one has to "
            "specify 'initial'"
        )
    return cast(as_tracer(initial), node.dtype.numpy)


def _accumulating(op: str) -> Any:
    def reduction(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        x = as_tracer(a)
        kept = np.dtype(dtype) if dtype is not None else out.dtype if out is not None else sum_dtype(x.dtype)
        node = cast(x, kept)
        if node.dtype.kind == "bool":  # dtype=bool: a sum is "any", a product "all"
            return finish(
                reduced(
                    {"reduce_sum": "reduce_any", "reduce_prod": "reduce_all"}[op], node, axis, keepdims, where
                ),
                out,
            )
        return finish(reduced(op, node, axis, keepdims, where, initial), out)

    return reduction


def _extreme(op: str, of_bool: str) -> Any:
    def reduction(
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        x = as_tracer(a)
        chosen = of_bool if x.dtype.kind == "b" and x.size else op
        return finish(reduced(chosen, x.node, axis, keepdims, where, initial), out)

    return reduction


def _logical(op: str) -> Any:
    def reduction(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
    ) -> Any:
        return finish(reduced(op, cast(as_tracer(a), np.bool_), axis, keepdims, where), out)

    return reduction


implements(np.sum, method=True)(_accumulating("reduce_sum"))
implements(np.prod, method=True)(_accumulating("reduce_prod"))
implements(np.max, np.amax)(_extreme("reduce_max", "reduce_any"))
implements(np.min, np.amin)(_extreme("reduce_min", "reduce_all"))
implements(np.any, method=True)(_logical("reduce_any"))
implements(np.all, method=True)(_logical("reduce_all"))
Tracer.max = lambda self, *args, **kw: np.max(self, *args, **kw)  # type: ignore[attr-defined]
Tracer.min = lambda self, *args, **kw: np.min(self, *args, **kw)  # type: ignore[attr-defined]


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    x = as_tracer(a)
    high, low = (reduced(op, x.node, axis, keepdims) for op in ("reduce_max", "reduce_min"))
    return finish(emit("sub", high, low), out)


# --- means


def _mean_dtype(x: Tracer, dtype: Any) -> tuple[np.dtype, np.dtype]:
    """The dtype that a mean is computed in, and the dtype of the result."""
    if dtype is not None:
        return np.dtype(dtype), np.dtype(dtype)
    if x.dtype.kind in "biu":
        return np.dtype(np.float64), np.dtype(np.float64)
    return (np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype), x.dtype


def _count(x: Tracer, axis: Any, keepdims: Any, where: Any, kept: np.dtype) -> Node:
    """How many elements each result is made of."""
    if where is True:
        return constant(
            np.asarray(np.prod([x.shape[i] for i in axis_tuple(axis, x.ndim)], dtype=np.int64), kept)
        )
    mask = emit("broadcast_to", cast(as_tracer(where), np.int64), shape=x.shape)
    return cast_node(reduced("reduce_sum", mask, axis, keepdims), kept)


@implements(np.mean, method=True)
def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:
    x = as_tracer(a)
    kept, result = _mean_dtype(x, dtype)
    total = reduced("reduce_sum", cast(x, kept), axis, keepdims, where)
    floats = np.dtype(np.float64) if kept.kind in "biu" else kept
    node = emit("div", cast_node(total, floats), _count(x, axis, keepdims, where, floats))
    return finish(cast_node(node, result), out)


def _variance(
    x: Tracer, axis: Any, dtype: Any, ddof: Any, keepdims: Any, where: Any, given_mean: Any
) -> tuple[Node, np.dtype]:
    """Two passes: the mean, then the mean square of what is left of it."""
    kept, result = _mean_dtype(x, dtype)
    if kept.kind in "biu":
        raise unsupported(f"a variance in dtype {kept}", "leave dtype out, or give a float one")
    values = cast(x, kept)
    count = _count(x, axis, True, where, kept)
    if given_mean is None:
        center = emit("div", reduced("reduce_sum", values, axis, True, where), count)
    else:
        center = cast(as_tracer(given_mean), kept)
    off = emit("sub", values, center)
    squares = reduced("reduce_sum", emit("mul", off, off), axis, keepdims, where)
    free = emit("sub", _count(x, axis, keepdims, where, kept), cast(as_tracer(ddof), kept))
    return emit("div", squares, emit("maximum", free, full_like_node(free, 0))), result


@implements(np.var, method=True)
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    node, result = _variance(
        as_tracer(a), axis, dtype, ddof if correction is None else correction, keepdims, where, mean
    )
    return finish(cast_node(node, result), out)


@implements(np.std, method=True)
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    node, result = _variance(
        as_tracer(a), axis, dtype, ddof if correction is None else correction, keepdims, where, mean
    )
    return finish(cast_node(emit("sqrt", node), result), out)


@implements(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, *, keepdims: Any = False) -> Any:
    if weights is None:
        return mean(a, axis, keepdims=keepdims)
    x, w = as_tracer(a), as_tracer(weights)
    if w.shape != x.shape:
        if w.ndim != 1 or axis is None or w.shape[0] != x.shape[one_axis(axis, x.ndim)]:
            raise TypeError(
                "Axis must be specified when shapes of a and weights differ; 1-d weights of its length are "
                "taken"
            )
        w = moveaxis(reshape(w, (1,) * (x.ndim - 1) + w.shape), -1, axis)
    w = np.broadcast_to(w, x.shape)  # type: ignore[assignment]
    dtype = np.result_type(x.dtype, w.dtype, *([np.float64] if x.dtype.kind in "biu" else []))
    products = emit("mul", cast(x, dtype), cast(w, dtype))
    total, scale = (reduced("reduce_sum", n, axis, keepdims) for n in (products, cast(w, dtype)))
    return finish(emit("div", total, scale))


# --- without NaN


def _nan_free(x: Tracer, filler: Any) -> Tracer:
    if x.dtype.kind != "f":
        return x
    return fresh(emit("select", emit("is_nan", x.node), full_like_node(x.node, filler), x.node))


def _not_nan(x: Tracer) -> Any:
    return np.logical_not(np.isnan(x)) if x.dtype.kind == "f" else True


implements(np.nansum)(lambda a, axis=None, **kw: np.sum(_nan_free(as_tracer(a), 0), axis, **kw))
implements(np.nanprod)(lambda a, axis=None, **kw: np.prod(_nan_free(as_tracer(a), 1), axis, **kw))
implements(np.nanmean)(lambda a, axis=None, **kw: mean(a, axis, where=_not_nan(as_tracer(a)), **kw))
implements(np.nanvar)(lambda a, axis=None, **kw: var(a, axis, where=_not_nan(as_tracer(a)), **kw))
implements(np.nanstd)(lambda a, axis=None, **kw: std(a, axis, where=_not_nan(as_tracer(a)), **kw))


def _nan_extreme(function: Any, filler: float) -> Any:
    def reduction(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        x = as_tracer(a)
        result = function(_nan_free(x, filler), axis, keepdims=keepdims)
        if x.dtype.kind == "f":
            result = np.where(np.all(np.isnan(x), axis, keepdims=keepdims), x.dtype.type(np.nan), result)
        return finish(result.node, out)

    return reduction


implements(np.nanmax)(_nan_extreme(np.max, -np.inf))
implements(np.nanmin)(_nan_extreme(np.min, np.inf))


# --- positions


def _position(op: str) -> Any:
    def search(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        x = as_tracer(a)
        rank = x.ndim
        flat = reshape(x, (-1,)) if axis is None else x
        along = 0 if axis is None else one_axis(axis, rank)
        if flat.shape[along] == 0:
            raise ValueError(f"attempt to get {op} of an empty sequence")
        node = emit(op, flat.node, axis=along, keepdims=bool(keepdims) and axis is not None)
        if keepdims and axis is None:
            node = reshape_node(node, (1,) * rank)
        return finish(node, out)

    return search


implements(np.argmax, method=True)(_position("argmax"))
implements(np.argmin, method=True)(_position("argmin"))


_COUNTS_AS_PYTHON_INT = not isinstance(np.count_nonzero(np.zeros(1)), np.generic)  # older releases of NumPy


@implements(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    counted = emit("cast", cast(as_tracer(a), np.bool_), dtype=INT64)
    node = reduced("reduce_sum", counted, axis, keepdims)
    python = _COUNTS_AS_PYTHON_INT and axis is None and not keepdims
    return fresh(node, scalar=True, weak=int) if python else finish(node)


# --- scans


def _scan(op: str) -> Any:
    def scan(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x = as_tracer(a)
        x, along = (reshape(x, (-1,)), 0) if axis is None else (x, one_axis(axis, x.ndim))
        kept = np.dtype(dtype) if dtype is not None else sum_dtype(x.dtype)
        node = emit(op, cast(x, kept), axis=along, reverse=False, exclusive=False)
        return fresh(node) if out is None else write_out(out, node)

    return scan


implements(np.cumsum, method=True)(_scan("cumsum"))
implements(np.cumprod, method=True)(_scan("cumprod"))


@implements(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1) -> Tracer:
    x = as_tracer(a)
    axis = one_axis(axis, x.ndim)
    for _ in range(n):
        head, tail = ((slice(None),) * axis + (part,) for part in (slice(1, None), slice(None, -1)))
        x = (np.not_equal if x.dtype.kind == "b" else np.subtract)(x[head], x[tail])  # type: ignore[index]
    return x


@implements(np.trace, method=True)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    return np.sum(np.diagonal(as_tracer(a), offset, axis1, axis2), -1, dtype, out)


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """Vector norms of any order, and the Frobenius norm."""

    array = as_tracer(x)
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    if axis is None and (ord is None or array.ndim == 1):
        flat = reshape(array, (-1,))
        result = _vector_norm(flat, 2 if ord is None else ord, -1, False)
        return np.reshape(result, (1,) * array.ndim) if keepdims else result
    if (ord in (None, "fro") and np.ndim(axis) == 1) or (ord is None and axis is not None):
        return _vector_norm(array, 2, axis, keepdims)
    if axis is None or np.ndim(axis) == 1:
        raise unsupported(f"np.linalg.norm with ord={ord!r} of matrices")
    return _vector_norm(array, ord, axis, keepdims)


def _vector_norm(x: Tracer, ord: Any, axis: Any, keepdims: Any) -> Any:
    size = np.abs(x)
    if ord == np.inf:
        return np.max(size, axis, keepdims=keepdims)
    if ord == -np.inf:
        return np.min(size, axis, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis, keepdims=keepdims)  # type: ignore[attr-defined, comparison-overlap]
    if ord == 1:
        return np.sum(size, axis, keepdims=keepdims)
    if ord == 2:
        return np.sqrt(np.sum(x * x, axis, keepdims=keepdims))  # type: ignore[operator]
    return np.sum(size**ord, axis, keepdims=keepdims) ** (1 / ord)


implements(np.linalg.vector_norm)(
    lambda x, /, *, axis=None, keepdims=False, ord=2: _vector_norm(
        as_tracer(x) if axis is not None else reshape(x, (-1,)), ord, -1 if axis is None else axis, keepdims
    )
)
__all__ = ["expand_dims", "finish", "reduced", "sum_dtype"]
