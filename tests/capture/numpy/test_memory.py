"""Memory is shared as in NumPy: views, writes to views and to arguments, results that are arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planish
from planish.errors import CaptureError, SignatureError

X = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
IDX = np.array([1, 3, 1])


def write_slice(x: Any) -> Any:
    y = x * 2
    y[1:3] = 7
    y[0, ::2] = x[0, :3]
    y[:, -1] += 1
    y[::-1, 1] = np.arange(4)
    return y


def write_view(x: Any) -> Any:
    y = x + 0
    z = y.T[1:, ::2]
    z *= 3
    z.reshape(-1)[0] = 100  # a copy: z is not contiguous
    y.reshape(-1)[5] = -1  # a view: y is
    y.ravel()[:2] = 9
    return y, z


def write_flip_and_swap(x: Any) -> Any:
    y = x.copy()
    np.flip(y, 1)[0] = 1
    y.swapaxes(0, 1)[2] -= 5
    y[:, None, :][1, 0, 2] = 8
    y.view(np.int32)[0, 0] = 0x3F800000
    return y


def write_arrays(x: Any) -> Any:
    y = x.copy()
    y[[0, 2]] = 5
    y[[1, 1], [2, 2]] = [3, 4]
    y[y < 0] = 0
    y[IDX] += 1
    y[np.argmax(x[:, 0])] = 42
    y[:, np.array([True, False] * 3)] *= 2
    y[1, IDX] = np.array([7, 8, 9])
    return y


def write_rows_masked(x: Any) -> Any:
    y = x.copy()
    y[x[:, 0] > 0] = x[0]
    np.putmask(y, x > 1, 0)
    np.copyto(y, -y, where=x < -1)
    np.fill_diagonal(y, 4)
    y.sort(axis=1)
    return y


def fill_loop(x: Any) -> Any:
    out = np.zeros(x.shape[0], dtype=np.float32)
    total = np.empty((2, 2))
    total[...] = 3
    total[0, 1] = 5
    for i in range(len(x)):
        out[i] = x[i].sum() + total[0, 1]
    return out, total, total.T


def update_at(x: Any) -> Any:
    y, counts = x.copy(), np.zeros(4, int)
    np.add.at(y, IDX, x[:3])
    np.subtract.at(y, (IDX, [0, 0, 0]), 2)
    np.multiply.at(y, 0, 3)
    np.maximum.at(y[:, 1], IDX, x[0, :3])
    np.add.at(counts, np.argmax(x, axis=1) % 4, 1)
    return y, counts


def put_along(x: Any) -> Any:
    y = x.copy()
    np.put_along_axis(y, np.argmax(x, 1)[:, None], 99, axis=1)
    return y


def write_argument(x: Any) -> Any:
    x[0] = 1
    x += 2
    x.T[0] *= 3
    return x.sum()


def write_argument_out(x: Any) -> Any:
    return np.exp(x, out=x)


def write_and_view(x: Any) -> Any:
    x[1] = 0
    return x[1:], x, x.T


def fill_through(x: Any) -> Any:
    x.reshape(-1)[3] = 5
    x.fill(2)
    return x[0]


def shared_results(x: Any) -> Any:
    y = x * 2
    return y, y, y.T, y[1:]


def plain_copies(x: Any) -> Any:
    return x.copy(), +x, x.T.copy(), x.astype(np.float32), np.array(x), x.reshape(-1).copy()


def read_only(x: Any) -> Any:
    np.broadcast_to(x, (2, 4, 6))[0] = 1


def bad_write(x: Any) -> Any:
    y = x.copy()
    y[0] = np.ones(5)
    return y


def scalar_in_place(x: Any) -> Any:
    total = x.sum()
    before = total
    total += 1
    return before, total


def buffers(x: Any) -> Any:
    buffer = np.empty(6, dtype=np.float32)
    np.add(x[0], 1, out=buffer)
    return buffer, buffer * 2


ALL = [
    write_slice,
    write_view,
    write_flip_and_swap,
    write_arrays,
    write_rows_masked,
    fill_loop,
    put_along,
    update_at,
    write_argument,
    write_argument_out,
    write_and_view,
    fill_through,
    shared_results,
    plain_copies,
    read_only,
    bad_write,
    scalar_in_place,
    buffers,
]


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_as_numpy(function: Callable[..., Any], agree: Callable[..., Any]) -> None:
    agree(function, X)


def _sharing(results: Any, x: np.ndarray) -> Any:
    """Which results share memory with x, and which with each other."""
    return [np.shares_memory(r, x) for r in results], [
        [np.shares_memory(a, b) for a in results] for b in results
    ]


VIEWS = [
    "x",
    "x.T",
    "x[1:]",
    "x[0]",
    "x[::-1, 2]",
    "x.reshape(-1)",
    "x.ravel()",
    "x.flatten()",
    "x[:, None]",
    "x * 1",
    "x.copy()",
    "+x",
    "x[[0, 1]]",
    "np.asarray(x)",
    "np.array(x)",
    "x.astype(np.float32, copy=False)",
    "x.astype(np.float32)",
    "np.broadcast_to(x, (2, 4, 6))",
    "np.flip(x)",
    "x.swapaxes(0, 1)[2:]",
    "np.diagonal(x)",
    "x.view(np.int32)",
    "np.split(x, 2)[1]",
]


@pytest.mark.parametrize("order", ["C", "F"])
def test_results_share_memory_as_in_numpy(strategy: str, order: Any) -> None:
    def views(x: Any) -> Any:
        return [eval(v, {"np": np, "x": x}) for v in VIEWS]

    x = np.array(X, order=order)
    jitted = planish.jit(views, strategy=strategy)
    for _ in range(2):
        expected, got = views(x), jitted(x)
        assert _sharing(got, x) == _sharing(expected, x)
        for e, g, name in zip(expected, got, VIEWS):
            np.testing.assert_array_equal(g, e, err_msg=name)
            if np.shares_memory(e, x):
                assert g.strides == e.strides and g.flags.writeable == e.flags.writeable, name


def test_identity(strategy: str) -> None:
    table = np.ones(3, np.float32)
    jitted = planish.jit(lambda x, n, s: (x, n, s, table, None, x + table), strategy=strategy)
    x, n, s = np.zeros(3, np.float32), 1000.5, "text"
    got = jitted(x, n, s)
    assert got[0] is x and got[1] is n and got[2] is s and got[3] is table and got[4] is None


def test_shared_results_share(strategy: str) -> None:
    a, b, c, d = planish.jit(shared_results, strategy=strategy)(X)
    assert a is b and c.base is a and np.shares_memory(d, a)


def test_results_are_not_overwritten(strategy: str) -> None:
    jitted = planish.jit(lambda x: (x * 2, np.ones(3)), strategy=strategy)
    first, one = jitted(X)
    kept = first.copy()
    one[0] = 5
    second, other = jitted(X + 1)
    np.testing.assert_array_equal(first, kept)
    assert other[0] == 1 and not np.shares_memory(first, second)


def test_writing_needs_memory_of_its_own(strategy: str) -> None:
    def write(x: Any, y: Any) -> Any:
        x[0] = y[1]

    jitted = planish.jit(write, strategy=strategy)
    x = X.copy()
    jitted(x[:2], x[2:])
    with pytest.raises(SignatureError, match="shares memory"):
        jitted(x[:2], x[1:3])
    frozen = planish.freeze(X.copy())
    with pytest.raises(ValueError, match="read-only"):
        jitted(frozen, X.copy()[:4])


def test_plain_array_changed_while_traced() -> None:
    def change(x: Any) -> Any:
        count = np.arange(3.0)
        y = x + count
        count += 1
        return y + count

    with pytest.raises(CaptureError, match=r"test_memory.py:\d+: a plain array .* changed in place"):
        planish.jit(change, strategy="library")(np.ones(3))


def test_writing_to_a_plain_array_is_refused() -> None:
    buffer = np.arange(3.0)
    with pytest.raises(CaptureError, match=r"test_memory.py:\d+: a traced value is written to a plain array"):
        planish.jit(lambda x: np.add(x, 1, out=buffer), strategy="library")(np.ones(3))
