"""The integer semantics in full: every width, op and pair of special values, against Python's integers."""
from __future__ import annotations

from collections.abc import Callable
from math import trunc
from typing import Any

import numpy as np
import pytest

from planish.ops import OPS
from planish.ops.rules import INTEGERS
from planish.ops.samples import special_pairs, special_values
from planish.types import DType


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def truncated(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def power(x: int, y: int, bits: int) -> int:
    if y >= 0:
        return pow(x, y, 1 << bits)
    return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)


def shifted_right(x: int, y: int, bits: int) -> int:
    return x >> y if 0 <= y < bits else -1 if x < 0 else 0


Table = dict[str, Callable[[int, int, int], int]]
BINARY: Table = {
    "add": lambda x, y, n: x + y,
    "sub": lambda x, y, n: x - y,
    "mul": lambda x, y, n: x * y,
    "floor_div": lambda x, y, n: x // y if y else 0,
    "mod": lambda x, y, n: x % y if y else 0,
    "trunc_div": lambda x, y, n: truncated(x, y) if y else 0,
    "rem": lambda x, y, n: x - y * truncated(x, y) if y else 0,
    "pow": power,
    "maximum": lambda x, y, n: max(x, y),
    "minimum": lambda x, y, n: min(x, y),
    "fmax": lambda x, y, n: max(x, y),
    "fmin": lambda x, y, n: min(x, y),
    "bitwise_and": lambda x, y, n: x & y,
    "bitwise_or": lambda x, y, n: x | y,
    "bitwise_xor": lambda x, y, n: x ^ y,
    "shift_left": lambda x, y, n: x << y if 0 <= y < n else 0,
    "shift_right": shifted_right,
    "mul_high": lambda x, y, n: (x * y) >> n,
    "eq": lambda x, y, n: x == y,
    "ne": lambda x, y, n: x != y,
    "lt": lambda x, y, n: x < y,
    "le": lambda x, y, n: x <= y,
    "gt": lambda x, y, n: x > y,
    "ge": lambda x, y, n: x >= y,
}
UNARY: dict[str, Callable[[int], int]] = {
    "neg": lambda x: -x, "abs": abs, "sign": lambda x: (x > 0) - (x < 0), "bitwise_not": lambda x: ~x,
    "square": lambda x: x * x, "relu": lambda x: max(x, 0)}


def random_pairs(dtype: DType, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(dtype.bits)
    info = np.iinfo(dtype.numpy)
    return tuple(rng.integers(info.min, info.max, count, dtype=dtype.numpy, endpoint=True) for _ in range(2))


def test_the_table_is_complete() -> None:
    binary = {op.name for op in OPS.values() if op.family == "binary" and set(INTEGERS) <= set(op.dtypes)}
    unary = {op.name for op in OPS.values() if op.family in ("unary", "activation")
             and set(INTEGERS) <= set(op.dtypes)}
    assert binary == set(BINARY)
    assert unary - {"clip"} == set(UNARY)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("error")
def test_binary(name: str, dtype: DType) -> None:
    for x, y in (special_pairs(dtype), random_pairs(dtype)):
        result = OPS[name](x, y)
        for a, b, r in zip(x.tolist(), y.tolist(), result.tolist(), strict=True):
            expected: Any = BINARY[name](a, b, dtype.bits)
            expected = expected if isinstance(expected, bool) else wrap(expected, dtype)
            assert r == expected, f"{name}({a}, {b}) of {dtype} is {expected}, not {r}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.filterwarnings("error")
def test_unary(name: str, dtype: DType) -> None:
    x = np.concatenate([special_values(dtype), random_pairs(dtype)[0]])
    for a, r in zip(x.tolist(), OPS[name](x).tolist(), strict=True):
        assert r == wrap(UNARY[name](a), dtype), f"{name}({a}) of {dtype}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_scalars_and_fma(dtype: DType) -> None:
    """0-d arrays follow the same table, and so does x * y + z."""
    x, y = special_pairs(dtype)
    z = y[::-1]
    for a, b, c, r in zip(x.tolist(), y.tolist(), z.tolist(), OPS["fma"](x, y, z).tolist(), strict=True):
        assert r == wrap(a * b + c, dtype)
    for name in ("floor_div", "pow", "mul_high", "shift_left"):
        one = OPS[name](x[-1], y[-1])
        assert one.dtype == dtype.numpy and one.shape == () and one == OPS[name](x, y)[-1]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("to", INTEGERS, ids=str)
def test_casts_wrap(dtype: DType, to: DType) -> None:
    x = np.concatenate([special_values(dtype), random_pairs(dtype)[0]])
    for a, r in zip(x.tolist(), OPS["cast"](x, dtype=to).tolist(), strict=True):
        assert r == wrap(a, to)


def test_casts_of_floats_go_towards_zero() -> None:
    x = np.array([2.9, -2.9, 0.5, -0.5, 127.9, -128.9])
    assert OPS["cast"](x, dtype=INTEGERS[0]).tolist() == [trunc(v) for v in x]


def test_bool() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    for name, expected in (("add", x | y), ("mul", x & y), ("bitwise_xor", x ^ y), ("maximum", x | y),
                           ("minimum", x & y)):
        result = OPS[name](x, y)
        assert result.dtype == bool and result.tolist() == expected.tolist()
    assert OPS["bitwise_not"](x).tolist() == OPS["logical_not"](x).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_sums_and_products_keep_the_dtype_and_wrap(dtype: DType) -> None:
    x = random_pairs(dtype)[0]
    assert OPS["reduce_sum"](x, axes=(0,)) == wrap(sum(x.tolist()), dtype)
    assert OPS["reduce_prod"](x, axes=(0,)) == wrap(int(np.prod(x.astype(object))), dtype)
    total = OPS["dot_general"](x, x, lhs_contract=(0,), rhs_contract=(0,))
    assert total.dtype == dtype.numpy and total == wrap(sum(v * v for v in x.tolist()), dtype)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_float_division_is_numpys(name: str) -> None:
    one, tenth = np.array(1.0, name), np.array(0.1, name)
    assert OPS["floor_div"](one, tenth) == np.floor_divide(one, tenth)
    assert OPS["floor_div"](1.0, np.array(0.1)) == 9
    x, y = np.array([5.5, -5.5, 5.5, -5.5, 0.0, -0.0], name), np.array([2, 2, -2, -2, 3, 3], name)
    assert OPS["mod"](x, y).tolist() == np.mod(x, y).tolist()
    assert OPS["rem"](x, y).tolist() == np.fmod(x, y).tolist()
    assert OPS["trunc_div"](x, y).tolist() == [2, -2, -2, 2, 0, -0.0]
