"""What looks elements up in lists of the model: LabelEncoder, CategoryMapper, OneHotEncoder, TfIdfVectorizer.

Numbers are found by a binary search in native code, strings by a host function.
"""
from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import broadcast, reshaped, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import make_source
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT32, INT64, STRING, TensorType
from planish.types.dim import maximum, minimum

ML = "ai.onnx.ml"


# --- places in a list

def place_in(call: Call, x: Node, keys: np.ndarray) -> Node:
    """The int64 place of the last key that each element equals, -1 where none does. NaN equals NaN since
    version 4 of ai.onnx.ml."""
    if x.dtype is STRING:
        return call.host("places", [x, constant(keys)], TensorType(INT64, x.shape))
    ordered, places = _sorted(keys.astype(x.dtype.numpy))
    if not ordered.size:
        return broadcast(number(-1, INT64), x.shape)
    at = _last_not_above(x, constant(ordered), ordered.size)
    same = ops.eq(ops.take(constant(ordered), at, axis=0), x)
    found = ops.select(same, ops.take(constant(places), at, axis=0), number(-1, INT64))
    nans = np.flatnonzero(keys != keys) if call.opset >= 4 else np.empty(0)
    return ops.select(ops.is_nan(x), number(nans[-1], INT64), found) if nans.size else found


def _sorted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys in order and their last places, both padded to a power of two with the last of them."""
    last = {key: i for i, key in enumerate(keys.tolist()) if key == key}
    places = np.array([last[key] for key in sorted(last)], np.int64)
    padded = (0, (1 << max(0, len(last) - 1).bit_length()) - len(last)) if last else (0, 0)
    places = np.pad(places, padded, "edge") if last else places
    return keys[places], places


def _last_not_above(x: Node, keys: Node, count: int) -> Node:
    """The last place among `count` (a power of two) of ordered keys whose key is not above x, or 0."""
    at, step = broadcast(number(0, INT64), x.shape), count // 2
    while step:
        further = at + number(step, INT64)
        at = ops.select(ops.le(ops.take(keys, further, axis=0), x), further, at)
        step //= 2
    return at


def strings(values: Any) -> np.ndarray:
    return np.array(list(values), dtype=object)


# --- LabelEncoder, CategoryMapper

_KINDS: dict[str, tuple[Any, Any]] = {"strings": (object, "_Unused"), "int64s": (np.int64, -1),
                                      "floats": (np.float32, -0.0)}
_DEFAULTS = {"strings": "default_string", "int64s": "default_int64", "floats": "default_float"}


def _listed(call: Call, what: str) -> tuple[str, np.ndarray]:
    """The kind and elements of the one attribute among keys_* (or values_*) that is given."""
    kinds = [kind for kind in ("tensor", *_KINDS) if f"{what}_{kind}" in call.attributes]
    if len(kinds) != 1:
        call.invalid(f"one of {what}_strings, _int64s, _floats and _tensor is to be given, not {len(kinds)}")
    given = call.attributes[f"{what}_{kinds[0]}"]
    return kinds[0], given.reshape(-1) if kinds[0] == "tensor" else np.array(given, dtype=_KINDS[kinds[0]][0])


def _default(call: Call, kind: str, values: np.ndarray) -> Any:
    if kind != "tensor":
        return call.attribute(_DEFAULTS[kind], _KINDS[kind][1])
    given = call.attribute("default_tensor")
    if given is not None:
        return given.reshape(-1)[0]
    return {"O": "_Unused", "f": -0.0}.get(values.dtype.kind, -1)


def _mapped(call: Call, keys: np.ndarray, values: np.ndarray, default: Any) -> Node:
    if len(keys) != len(values):
        call.invalid(f"{len(keys)} keys for {len(values)} values")
    table = np.concatenate([values, np.array([default], values.dtype)])
    return ops.take(constant(table), place_in(call, call[0], keys), axis=0)


@translates("LabelEncoder", since=2, domain=ML)
def label_encoder(call: Call) -> Node:
    _, keys = _listed(call, "keys")
    kind, values = _listed(call, "values")
    return _mapped(call, keys, values, _default(call, kind, values))


@translates("LabelEncoder", domain=ML)
def label_encoder_of_classes(call: Call) -> Node:
    """Strings to their place among the classes, numbers to the class at that place."""
    return _either_way(call, strings(call.attribute("classes_strings", ())), None)


@translates("CategoryMapper", domain=ML)
def category_mapper(call: Call) -> Node:
    names = strings(call.attribute("cats_strings", ()))
    return _either_way(call, names, np.array(call.attribute("cats_int64s", ()), np.int64))


def _either_way(call: Call, names: np.ndarray, numbers: np.ndarray | None) -> Node:
    numbers = np.arange(len(names)) if numbers is None else numbers
    if call.dtype(0) is STRING:
        return _mapped(call, names, numbers, call.attribute("default_int64", -1))
    return _mapped(call, numbers, names, call.attribute("default_string", "_Unused"))


# --- OneHotEncoder

@translates("OneHotEncoder", domain=ML)
def one_hot_encoder(call: Call) -> Node:
    """float32 rows with a 1 at the place of the category; numbers are compared as whole ones."""
    if not call.flag("zeros", True):
        call.refuse("it is to fail for an unknown category (zeros=0)", "let it give zeros: zeros=1")
    x = call[0]
    names, numbers = call.attribute("cats_strings", ()), call.attribute("cats_int64s", ())
    keys = strings(names) if x.dtype is STRING else np.array(numbers, np.int64)
    at = place_in(call, x if x.dtype is STRING else cast(x, INT64), keys)
    columns = make_source("iota", shape=(*[1] * x.ndim, len(keys)), axis=x.ndim, dtype=INT64)
    return cast(ops.eq(reshaped(at, (*at.shape, 1)), columns), FLOAT32)


# --- TfIdfVectorizer

@translates("TfIdfVectorizer", since=9)
def tf_idf(call: Call) -> Node:
    """How often each n-gram of the pool occurs, elements 1 + skip places apart, by the mode and weights."""
    x = call[0]
    if x.ndim not in (1, 2):
        call.invalid(f"its operand has {x.ndim} axes, not 1 or 2")
    pool, x = _pool(call, x)
    ends = np.array(call.attribute("ngram_indexes"), np.int64)
    shortest, longest = call.attribute("min_gram_length"), call.attribute("max_gram_length")
    counts = []
    for n, grams in _grams(call, pool):
        skips = range(1 if n == 1 else call.attribute("max_skip_count") + 1)
        used = shortest <= n <= longest
        counts += [sum((_occurrences(x, grams, skip + 1) for skip in skips[1:]), _occurrences(x, grams, 1))
                   if used else broadcast(number(0, INT64), (*x.shape[:-1], len(grams)))]
    found = counts[0] if len(counts) == 1 else ops.concat(*counts, axis=x.ndim - 1)
    if len(ends) != found.shape[-1]:
        call.invalid(f"{len(ends)} ngram_indexes for {found.shape[-1]} n-grams")
    return _columns(_weighted(call, cast(found, FLOAT32)), ends)


def _pool(call: Call, x: Node) -> tuple[np.ndarray, Node]:
    """The pool's elements and those of the operand, as int64: strings go by their place in the pool."""
    if x.dtype is not STRING:
        return np.array(call.attribute("pool_int64s", ()), np.int64), cast(x, INT64)
    names = call.attribute("pool_strings", ())
    known = strings(dict.fromkeys(names))
    places = {name: i for i, name in enumerate(known)}
    return np.array([places[name] for name in names], np.int64), place_in(call, x, known)


def _grams(call: Call, pool: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(n, the n-grams as rows) for each n of which there are some."""
    starts = [*call.attribute("ngram_counts"), len(pool)]
    parts = [(n, pool[a:b]) for n, (a, b) in enumerate(zip(starts, starts[1:]), 1)]
    if any(len(part) % n for n, part in parts):
        call.invalid(f"ngram_counts {starts[:-1]} do not divide a pool of {len(pool)}")
    return [(n, part.reshape(-1, n)) for n, part in parts if len(part)]


def _occurrences(x: Node, grams: np.ndarray, step: int) -> Node:
    """How often each gram stands along the last axis, its elements `step` apart."""
    axis, n = x.ndim - 1, grams.shape[1]
    size = maximum(0, x.shape[-1] - step * (n - 1))
    hits = []
    for j in range(n):
        at = minimum(step * j, x.shape[-1] - size)
        window = sliced(x, axis, at, at + size)
        hits.append(ops.eq(reshaped(window, (*window.shape, 1)), constant(grams[:, j])))
    return ops.reduce_sum(cast(reduce(ops.bitwise_and, hits), INT64), axes=(axis,))


def _weighted(call: Call, counts: Node) -> Node:
    mode = call.attribute("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        call.invalid(f"mode {mode!r} is not one of TF, IDF, TFIDF")
    if mode == "IDF":
        counts = cast(ops.gt(counts, number(0, FLOAT32)), FLOAT32)
    weights = call.attribute("weights")
    return counts if mode == "TF" or not weights else counts * constant(np.array(weights, np.float32))


def _columns(counts: Node, ends: np.ndarray) -> Node:
    """The n-grams' counts at their columns, 0 in a column of none."""
    rows = ops.transpose(counts, axes=(counts.ndim - 1, *range(counts.ndim - 1)))
    empty = broadcast(number(0, FLOAT32), (int(ends.max(initial=-1)) + 1, *rows.shape[1:]))
    placed = ops.scatter_nd(empty, constant(ends[:, None]), rows, reduction="add")
    return ops.transpose(placed, axes=(*range(1, counts.ndim), 0))
