"""The host functions on strings, in arrays of dtype object that hold str.

Case is that of Unicode, whatever the locale. RegexFullMatch is defined by RE2's syntax; patterns are read by
Python's `re`, of which it is, but for a few classes, a part.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from planish.errors import ShapeError, TypeRuleError
from planish.ops.host import HostAttributes, HostFunction, host_function
from planish.ops.record import Op, Types, get_op
from planish.types import INT64, STRING, DType, TensorType


def _map(function: Any, x: np.ndarray, dtype: Any = object) -> np.ndarray:
    """`function` of each element."""
    result = np.empty(x.shape, dtype)
    result.reshape(-1)[:] = [function(v) for v in x.reshape(-1)]
    return result


@host_function("places")
def places(x: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The place of the last key that each string equals, -1 where none does."""
    known = {key: i for i, key in enumerate(keys.tolist())}
    return _map(lambda v: known.get(v, -1), x, np.int64)


@host_function("text_ranks")
def text_ranks(x: np.ndarray) -> np.ndarray:
    """The place of each string in the sorted list of the different ones."""
    ranks = {v: i for i, v in enumerate(sorted(set(x.reshape(-1).tolist())))}
    return _map(ranks.__getitem__, x, np.int64)


@host_function("string_concat")
def string_concat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(x + y, object)


@host_function("regex_full_match")
def regex_full_match(x: np.ndarray, *, pattern: str) -> np.ndarray:
    whole = compiled(pattern).fullmatch
    return _map(lambda v: whole(v) is not None, x, bool)


@lru_cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The classes \\w, \\d and \\s are those of ASCII, as RE2 has them. Raises re.error."""
    return re.compile(pattern, re.ASCII)


@host_function("string_split")
def string_split(x: np.ndarray, *, delimiter: str | None, maxsplit: int) -> tuple[np.ndarray, np.ndarray]:
    """The parts along a new last axis, filled up with "", and how many there are of each. Without a
    delimiter, parts are what white space separates."""
    parts = [v.split(delimiter, maxsplit) for v in x.reshape(-1)]
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    width = int(counts.max(initial=0))
    table = np.full((x.size, width), "", object)
    for row, found in zip(table, parts):
        row[:len(found)] = found
    return table.reshape(*x.shape, width), counts


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@host_function("string_normalize")
def string_normalize(x: np.ndarray, *, case: str, is_case_sensitive: bool,
                     stopwords: tuple[str, ...]) -> np.ndarray:
    """The strings of a vector (or of the one row of a matrix) that are no stopwords, in upper or lower case.
    Where none is left, one empty string."""
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ShapeError(f"StringNormalizer takes [C] or [1, C], not {list(x.shape)}")
    change = _CASES[case]
    fold = _CASES["NONE" if is_case_sensitive else "LOWER"]
    stops = set(map(fold, stopwords))
    kept = [change(v) for v in x.reshape(-1) if fold(v) not in stops] or [""]
    return np.array(kept, object).reshape(*x.shape[:-1], -1)


@host_function("text_to_numbers")
def text_to_numbers(x: np.ndarray, *, dtype: DType) -> np.ndarray:
    """As Python reads numbers: "1e-5", "inf", "NaN", " 12 "."""
    if dtype.is_integer:
        return _map(_whole, x).astype(dtype.numpy)
    numbers = _map(float, x, np.float64)
    return (numbers != 0) if dtype.kind == "bool" else numbers.astype(dtype.numpy)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


@host_function("numbers_to_text")
def numbers_to_text(x: np.ndarray) -> np.ndarray:
    """As NumPy prints them: the fewest digits that tell the number in its dtype."""
    return _map(str, x)


# --- ops of the graph, on text

MOVING = frozenset({"reshape", "broadcast_to", "transpose", "slice", "reverse", "pad", "concat", "take",
                    "take_along", "gather_nd", "scatter_along", "scatter_nd", "select", "eq", "ne"})


def is_on_text(attributes: Any, types: Sequence[Types]) -> bool:
    """Whether an op takes or gives text."""
    texts = [t for t in types if isinstance(t, TensorType) and t.dtype is STRING]
    return bool(texts) or getattr(attributes, "dtype", None) is STRING


def on_text(op: Op, attributes: Any, types: Sequence[TensorType]) -> HostAttributes:
    """What an op is whose operands are text: its NumPy meaning, as a host function.

    Raises TypeRuleError for an op that does more than move elements or compare them.
    """
    if op.name == "cast":
        name = "numbers_to_text" if attributes.dtype is STRING else "text_to_numbers"
        parameters = () if attributes.dtype is STRING else (("dtype", attributes.dtype),)
        return HostAttributes(HostFunction(name, parameters), (types[0].with_dtype(attributes.dtype),))
    if op.name not in MOVING:
        raise TypeRuleError(f"{op.name} does not take text")
    numbers = [t.with_dtype(INT64) if t.dtype is STRING else t for t in types]
    result = op.infer(attributes, *numbers)
    if not isinstance(result, TensorType):
        raise TypeRuleError(f"{op.name} does not take text")
    given = tuple((f.name, getattr(attributes, f.name)) for f in fields(attributes))
    function = HostFunction("on_text", (("op", op.name), *given))
    return HostAttributes(function, (result.with_dtype(STRING) if result.dtype is INT64 else result,))


@host_function("on_text")
def run_on_text(*arrays: np.ndarray, op: str, **attributes: Any) -> Any:
    record = get_op(op)
    return record.evaluate(record.make_attributes(attributes), *arrays)
