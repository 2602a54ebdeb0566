"""Every function of the tables beside NumPy: values, dtypes, shapes, scalars and errors, on random data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng(7)
DATA: dict[str, Any] = {
    "x": RNG.standard_normal((3, 4)).astype(np.float32),
    "y": RNG.standard_normal((3, 4)).astype(np.float32),
    "v": RNG.standard_normal(4).astype(np.float32),
    "d": RNG.standard_normal((3, 4)),
    "h": RNG.standard_normal((3, 4)).astype(np.float16),
    "t": RNG.standard_normal((2, 3, 4)).astype(np.float32),
    "u": RNG.standard_normal((2, 4, 3)).astype(np.float32),
    "s": RNG.standard_normal((3, 3)).astype(np.float32),
    "i": RNG.integers(-9, 9, (3, 4)).astype(np.int32),
    "j": RNG.integers(1, 5, (3, 4)).astype(np.int32),
    "k": RNG.integers(-9, 9, (3, 4)),
    "b": RNG.integers(0, 255, (3, 4)).astype(np.uint8),
    "c": RNG.integers(-128, 127, (3, 4)).astype(np.int8),
    "q": RNG.integers(0, 9, (3, 4)).astype(np.uint64),
    "m": RNG.integers(0, 2, (3, 4)).astype(bool),
    "n": RNG.integers(0, 2, (3, 4)).astype(bool),
    "e": np.array([0.5, np.nan, -0.0, np.inf, -np.inf, 2.0], np.float32),
    "z": np.float32(1.5),
    "o": np.zeros((0, 4), np.float32),
    "p": np.array([2, 0, 1, -1]),
    "w": np.array([0, 3, 1], np.int32),
    "a": 2.5,
    "g": 3,
    "l": np.array([0.1, 0.4, 0.9, 1.5]),
}


def function_of(source: str) -> tuple[Callable[..., Any], list[Any]]:
    names = sorted(set(compile(source, "case", "eval").co_names) & set(DATA))
    made = eval(f"lambda {', '.join(names)}: {source}", {"np": np})
    return made, [DATA[n] for n in names]


def cases(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


OPERATORS = [
    f"{a} {op} {b}"
    for a, b in [
        "xy",
        "xv",
        "xd",
        "xi",
        "ij",
        "ib",
        "bc",
        "kq",
        "mn",
        "mi",
        "hx",
        "hi",
        "xz",
        "ia",
        "xa",
        "xg",
        "bg",
        "cg",
        "ag",
        "ga",
        "gz",
    ]
    for op in ["+", "-", "*", "/", "//", "%", "**", "<", ">=", "==", "!="]
]
OPERATORS += [
    f"{a} {op} {b}"
    for a, b in ["ij", "bc", "mn", "mi", "kg", "xy", "qg"]
    for op in ["&", "|", "^", "<<", ">>"]
]
OPERATORS += cases("""
    2 * x
    2.5 - i
    1 / j
    2 ** j
    7 // j
    7 % i
    x ** 2
    i ** 2
    x ** 0.5
    x ** -1
    x ** 3
    d ** -2
    i ** -1
    b + 300
    b < 300
    b == -1
    c >= -200
    b * 2.5
    -x
    -m
    ~m
    ~i
    ~x
    +x
    abs(i)
    abs(c)
    divmod(i, j)
    divmod(x, y)
    True + x
    x + np.float64(2)
    x + np.int64(2)
    h + 1e6
    x @ u[0].T
    x @ v
    v @ v
    t @ u
    v @ x.T
    i @ j.T
    m @ n.T
    x @ d.T
    h @ h.T
    x @ x
    x + np.ones((2, 4), np.float32)
    x > 0
    0 < x
    [1, 2, 3, 4] + x
    x < y < 1
    x and y
    x + 'a'
    x @ 2
""")

UNARY = [
    f"np.{name}({arg})"
    for name in [
        "negative",
        "positive",
        "absolute",
        "fabs",
        "sign",
        "square",
        "reciprocal",
        "sqrt",
        "cbrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "arcsinh",
        "arccosh",
        "arctanh",
        "deg2rad",
        "degrees",
        "radians",
        "rad2deg",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "isnan",
        "isinf",
        "isfinite",
        "signbit",
        "modf",
        "logical_not",
        "conj",
        "invert",
    ]
    for arg in ["x", "e", "i", "b", "m", "h", "z"]
]
BINARY = [
    f"np.{name}({a}, {b})"
    for name in [
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "arctan2",
        "hypot",
        "copysign",
        "nextafter",
        "fmod",
        "remainder",
        "logaddexp",
        "logaddexp2",
        "heaviside",
        "float_power",
        "power",
        "logical_and",
        "logical_or",
        "logical_xor",
        "floor_divide",
    ]
    for a, b in ["xy", "ee", "ij", "mn", "xg", "dx"]
]
KEYWORDS = cases("""
    np.add(x, y, dtype=np.float64)
    np.add(i, j, dtype=np.int8)
    np.add(i, j, dtype=np.int8, casting='unsafe')
    np.add(x, y, where=m, out=np.zeros((3, 4), np.float32))
    np.exp(x, out=np.empty_like(x))
    np.add(x, y, out=i)
    np.multiply(x, y, out=x)
    np.add.reduce(x)
    np.add.reduce(x, axis=None)
    np.multiply.reduce(x, axis=1, keepdims=True)
    np.maximum.reduce(t, axis=(0, 2))
    np.logical_or.reduce(m)
    np.add.accumulate(x)
    np.multiply.outer(v, v)
    np.subtract.outer(x, v)
""")
REDUCE = [
    f"{call}"
    for name in [
        "sum",
        "prod",
        "max",
        "min",
        "mean",
        "std",
        "var",
        "any",
        "all",
        "argmax",
        "argmin",
        "cumsum",
        "cumprod",
    ]
    for call in (
        f"np.{name}(x)",
        f"x.{name}(axis=0)",
        f"np.{name}(x, axis=-1)",
        f"np.{name}(i, 1)",
        f"np.{name}(b)",
        f"np.{name}(m, axis=0)",
        f"np.{name}(h)",
    )
]
REDUCE += cases("""
    np.sum(t, axis=(0, -1))
    t.sum(axis=(0, 1, 2), keepdims=True)
    x.sum(1, keepdims=True)
    np.sum(c)
    np.sum(i, dtype=np.int32)
    np.sum(x, dtype=np.float64)
    np.sum(i, dtype=np.float32)
    np.sum(m, dtype=bool)
    np.sum(x, initial=10)
    np.sum(x, where=m)
    np.max(x, axis=1, where=m, initial=-5)
    np.max(x, where=m)
    np.max(e)
    np.min(x, initial=-100)
    np.mean(x, where=m)
    np.mean(x, axis=(0, 1), keepdims=True)
    np.mean(i, dtype=np.float32)
    np.var(x, ddof=1, axis=0)
    np.std(t, axis=(1, 2), keepdims=True)
    np.sum(o)
    np.max(o)
    np.max(o, axis=1)
    np.sum(o, axis=0)
    np.prod(o, axis=1)
    np.argmax(e)
    np.argmin(o)
    np.argmax(x, axis=1, keepdims=True)
    np.argmax(x, keepdims=True)
    np.sum(x, axis=5)
    np.sum(x, axis=(0, 0))
    np.sum(z)
    np.ptp(x, axis=0)
    np.average(x, axis=1, weights=v)
    np.average(x)
    np.average(i, weights=x)
    np.nansum(e)
    np.nanmean(e[:3])
    np.nanmax(e)
    np.nanmin(e)
    np.nanprod(e[:3])
    np.nanstd(e[:3])
    np.count_nonzero(i)
    np.count_nonzero(x > 0, axis=1)
    np.diff(x)
    np.diff(k, n=2, axis=0)
    np.diff(m, axis=0)
    np.trace(x)
    np.trace(i, offset=1)
    np.cumsum(t, axis=1)
    np.cumsum(b, axis=0)
    np.linalg.norm(x)
    np.linalg.norm(x, axis=1)
    np.linalg.norm(v, ord=1)
    np.linalg.norm(v, ord=np.inf)
    np.linalg.norm(x, ord=3, axis=0, keepdims=True)
    np.linalg.norm(i)
    np.median(x)
    np.median(x, axis=1)
    np.median(i, axis=0, keepdims=True)
    np.median(e)
    np.sum(np.array([x, y]), axis=0)
    sum(x)
    len(x)
""")
SHAPE = cases("""
    x.T
    t.T
    x.reshape(4, 3)
    x.reshape(-1)
    x.reshape((2, -1))
    x.reshape(5, 2)
    x.reshape(-1, -1)
    x.T.reshape(-1)
    np.reshape(x, (4, 3), order='F')
    x.ravel()
    x.flatten()
    t.transpose(1, 0, 2)
    t.transpose((2, 0, 1))
    np.transpose(t, (0, 2, 1))
    np.transpose(t, (0, 1))
    t.swapaxes(0, -1)
    np.moveaxis(t, 0, -1)
    np.moveaxis(t, (0, 1), (-1, 0))
    np.rollaxis(t, 2)
    np.expand_dims(x, 1)
    np.expand_dims(x, (0, -1))
    x[None].squeeze()
    np.squeeze(x[:, None], axis=1)
    np.squeeze(x, axis=0)
    np.atleast_1d(z)
    np.atleast_2d(v)
    np.atleast_3d(x)
    np.broadcast_to(v, (3, 4))
    np.broadcast_to(v, (3, 5))
    np.broadcast_arrays(v, x)
    np.flip(x)
    np.flip(t, (0, 2))
    np.flipud(x)
    np.fliplr(x)
    np.rot90(x)
    np.rot90(x, 2)
    np.rot90(x, 3)
    np.roll(x, 1)
    np.roll(x, -2, axis=1)
    np.roll(x, (1, 2), axis=(0, 1))
    np.concatenate([x, y])
    np.concatenate([x, i], axis=1)
    np.concatenate([x, y], axis=None)
    np.concatenate([x, v])
    np.concatenate([x, y], dtype=np.float64)
    np.concatenate((x, np.ones((2, 4))))
    np.stack([x, y], axis=-1)
    np.stack([x, y])
    np.stack([x, v])
    np.vstack([x, v])
    np.hstack([x, y])
    np.hstack([v, v])
    np.dstack([x, y])
    np.column_stack([v, v])
    np.append(x, 3)
    np.split(x, 2, axis=1)
    np.split(x, [1, 2])
    np.split(x, 2)
    np.array_split(x, 3, axis=1)
    np.hsplit(x, 2)
    np.vsplit(x, 3)
    np.tile(x, 2)
    np.tile(v, (2, 3))
    np.repeat(x, 2)
    np.repeat(x, 3, axis=1)
    np.repeat(x, [1, 0, 2], axis=0)
    np.pad(x, 1)
    np.pad(x, ((0, 1), (2, 0)), constant_values=5)
    np.pad(x, 2, mode='edge')
    np.pad(x, 2, mode='reflect')
    np.pad(x, (1, 2), mode='wrap')
    np.pad(x, 1, mode='symmetric')
    np.pad(x, 1, constant_values=((1, 2), (3, 4)))
    x.astype(np.int32)
    x.astype('float64')
    i.astype(bool)
    e.astype(bool)
    x.astype(np.int8, casting='safe')
    i.astype(np.float16)
    x.view(np.int32)
    x.copy()
    x.shape
    x.size + x.ndim + x.itemsize + x.nbytes
    np.shape(x)
    np.ndim(t)
    np.size(x, 1)
    x.dtype
    np.result_type(x, d)
    np.asarray(x) + 1
    np.array(x, dtype=np.float64)
    np.array([[1, 2], [3, g]])
    np.ascontiguousarray(x.T)
    np.asarray([z, z, 2])
    z + z
    z.reshape(1)
    np.round(x, 2)
    x.round()
    np.round(i)
    np.round(z, 1)
    [r.sum() for r in x]
    [p for p in v]
    {'a': x, 'b': (y, None, [x + 1])}
    (x, 3, 'text', None)
""")
INDEX = cases("""
    x[0]
    x[-1]
    x[0, 1]
    x[3]
    x[1:, ::2]
    x[::-1]
    x[:, ::-2]
    x[5:]
    x[..., 0]
    x[None, :, None]
    t[:, 1]
    t[0, ..., ::-1]
    t[1, 2, 3]
    t[1, 2, 3, 0]
    x[...]
    v[()]
    z[()]
    z[None]
    x[[0, 2]]
    x[[0, -1], [1, 2]]
    x[np.array([[0, 1], [2, 0]])]
    x[:, p]
    x[w]
    x[p]
    v[p]
    x[1, p]
    t[0, :, p]
    t[:, [0, 1], [1, 2]]
    t[[0, 1], :, [1, 2]]
    t[[1], None, 0]
    v[p[0]]
    x[np.argmax(v) - np.argmax(v)]
    x[w[0], p[1]]
    x[np.array([True, False, True])]
    v[np.array([True, False, True, False])]
    x[[]]
    x[1.5]
    x['a']
    x[..., ...]
    np.take(x, p, axis=1)
    np.take(x, [0, 5])
    np.take(x, 2)
    np.take(x, [7, 9], axis=0, mode='clip')
    np.take(x, [7, 9], axis=0, mode='wrap')
    np.take(x, [7, 9], axis=0)
    np.take_along_axis(x, np.argsort(x, axis=1), axis=1)
    np.take_along_axis(x, np.argmax(x, axis=0)[None], axis=0)
    np.diagonal(x)
    np.diagonal(t, 1, 1, 2)
    np.diag(v)
    np.diag(x, 1)
    np.diagflat(v, -1)
    np.tril(x)
    np.triu(t, 1)
    np.tril(v, -1)
    np.delete(x, 1, axis=0)
    np.insert(v, 1, 9)
    np.insert(x, 1, v, axis=0)
""")
SELECT = cases("""
    np.where(m, x, y)
    np.where(x > 0, x, 0)
    np.where(x > 0, 1, 0)
    np.where(x > 0, i, 2.5)
    np.where(x > 0, x, np.nan)
    np.where(z > 0, x, 1)
    np.clip(x, -0.5, 0.5)
    np.clip(x, 0, None)
    np.clip(x, None, v)
    np.clip(i, -2, 2)
    np.clip(b, 10, 300)
    np.clip(i, 0, 2.5)
    np.clip(e, 0, 1)
    x.clip(0)
    x.clip(max=0.1)
    np.select([x > 1, x > 0], [x, -x], default=7)
    np.nan_to_num(e)
    np.nan_to_num(e, nan=3, posinf=1, neginf=-1)
    np.isclose(x, y)
    np.isclose(e, e, equal_nan=True)
    np.allclose(x, x)
    np.array_equal(x, y)
    np.array_equal(x, v)
    np.isposinf(e)
    np.isneginf(e)
    np.sinc(x)
    np.sort(x)
    np.sort(x, axis=0)
    np.sort(x, axis=None)
    np.sort(e)
    np.argsort(x, axis=0)
    np.argsort(i, kind='stable')
    np.searchsorted(l, x.ravel())
    np.searchsorted(l, d, side='right')
    np.digitize(x, l)
    np.interp(d, l, np.arange(4.0))
    np.interp(x, l, l, left=-1)
    np.zeros_like(x)
    np.ones_like(i)
    np.full_like(x, 2)
    np.full_like(x, z)
    np.empty_like(x).shape
    np.zeros(x.shape[1]) + v
    np.full(3, a)
    np.full((2, 2), z)
    np.arange(x.shape[1]) * x
    np.eye(3) @ x
    np.linspace(0, 1, 4) + v
    np.vander(v, 3)
    np.meshgrid(v, l)
    np.meshgrid(v, l, indexing='ij', sparse=True)
    np.maximum(x, [1, 2, 3, 4])
""")
CONTRACT = cases("""
    np.dot(x, v)
    np.dot(v, v)
    np.dot(x, u)
    np.dot(x, 2)
    x.dot(y.T)
    np.dot(x, y)
    np.inner(x, y)
    np.inner(v, v)
    np.outer(v, x)
    np.vdot(x, y)
    np.tensordot(t, u, axes=([2, 1], [1, 2]))
    np.tensordot(x, u[0], 1)
    np.tensordot(x, v, 0)
    np.tensordot(x, y, 1)
    np.kron(x, v)
    np.cross(s, s[::-1])
    np.matmul(t, u)
    np.vecdot(x, y) if hasattr(np, 'vecdot') else 0
    np.linalg.multi_dot([x, y.T, x])
    np.linalg.matrix_power(s, 5)
    np.linalg.matrix_power(s, 0)
    np.einsum('ij,jk->ik', x, u[0])
    np.einsum('ij,kj', x, y)
    np.einsum('ij->', x)
    np.einsum('ij->ji', x)
    np.einsum('ii->i', s)
    np.einsum('ii', s)
    np.einsum('bij,bjk->bik', t, u)
    np.einsum('...ij,...jk->...ik', t, u)
    np.einsum('i,j->ij', v, v)
    np.einsum('ij,j,k->ik', x, v, v)
    np.einsum('ij,ij->ij', x, y)
    np.einsum('ij,ij->i', i, j)
    np.einsum('ij,jk->ik', x, y)
    np.einsum('bij,bkj,bil->bkl', t, t, t)
    np.einsum('ij,ij', x, v[None])
    np.einsum('i...->...', t)
    np.einsum('ij,jk->ik', x[None], y)
""")
ELEMENTWISE = OPERATORS + UNARY + BINARY + KEYWORDS
OTHERS = REDUCE + SHAPE + INDEX + SELECT + CONTRACT


@pytest.mark.parametrize("strategy", ["library"])  # native code for each op and dtype is tested with the ops
@pytest.mark.parametrize("source", ELEMENTWISE)
def test_elementwise_as_numpy(source: str, agree: Callable[..., Any], strategy: str) -> None:
    function, args = function_of(source)
    agree(function, *args)


@pytest.mark.parametrize("source", OTHERS)
def test_as_numpy(source: str, agree: Callable[..., Any]) -> None:
    function, args = function_of(source)
    agree(function, *args)
