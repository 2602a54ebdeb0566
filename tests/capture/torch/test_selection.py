"""Masks, sorted search and order statistics without a host op, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


def hold(run: Any, same: Any, cases: list[Callable[..., Any]], *tensors: Any) -> None:
    """Each case gives a list."""

    def program(*given: Any) -> list[Any]:
        return [one for case in cases for one in case(*given)]

    same(run(program, *tensors, host=False), program(*tensors))


def put(x: Any, mask: Any, values: Any, **options: Any) -> Any:
    return torch.index_put(x, (mask,), values, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_masks(run: Any, same: Any, dtype: Any) -> None:
    x = (torch.randn(6, 7) * 10).to(dtype)
    mask, rows = torch.rand(6, 7) < 0.4, torch.tensor([True, False, True, True, False, False])
    source = (torch.randn(60) * 10).to(dtype)
    values, blocks = source[: int(mask.sum())], source[:21].reshape(3, 7)
    cases: list[Callable[..., Any]] = [
        lambda x, m, r, s, v, b: [x.masked_scatter(m, s)],
        lambda x, m, r, s, v, b: [put(x, m, v), put(x, m, v[0]), put(x, m, v[:1])],
        lambda x, m, r, s, v, b: [put(x, r, b), put(x, r, b[0]), put(x, r, b[:1]), put(x, r, b[0, 0])],
        lambda x, m, r, s, v, b: [put(x, m, v, accumulate=True), put(x, r, b, accumulate=True)],
        lambda x, m, r, s, v, b: [torch.nonzero_static(m, size=9), torch.nonzero_static(m, size=99)],
        lambda x, m, r, s, v, b: [torch.nonzero_static(r, size=2, fill_value=7)],
    ]
    hold(run, same, cases, x, mask, rows, source, values, blocks)


def test_too_few_values_for_a_mask(run: Any) -> None:
    x, mask = torch.randn(5), torch.tensor([True, True, False, True, False])
    with pytest.raises(RuntimeError, match="masked_scatter"):
        run(lambda x, m, s: [x.masked_scatter(m, s)], x, mask, torch.randn(2), host=False)
    with pytest.raises(IndexError, match="shape mismatch"):
        run(lambda x, m, s: [put(x, m, s)], x, mask, torch.randn(2), host=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_places_in_an_order(run: Any, same: Any, dtype: Any) -> None:
    row = (torch.randn(13) * 3).to(dtype).sort().values
    rows = (torch.randn(4, 9) * 3).to(dtype)
    order = rows.argsort(-1)
    x = torch.cat([(torch.randn(4, 11) * 3).to(dtype), rows], 1)
    if dtype.is_floating_point:
        x[0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")], dtype=dtype)
    cases: list[Callable[..., Any]] = [
        lambda row, rows, order, x: [
            torch.searchsorted(row, x, right=right, out_int32=narrow)
            for right in (False, True) for narrow in (False, True)],
        lambda row, rows, order, x: [torch.searchsorted(rows, x, sorter=order, side="right")],
        lambda row, rows, order, x: [torch.searchsorted(row, 1), torch.bucketize(x, row)],
        lambda row, rows, order, x: [torch.isin(x, row[:4]), torch.isin(x, row, invert=True)],
    ]  # fmt: skip
    hold(run, same, cases, row, rows, order, x)


def test_order_statistics(run: Any, same: Any) -> None:
    x = torch.randn(5, 8)
    x[0, 2] = x[1] = float("nan")
    n = torch.randint(0, 4, (6, 9))
    cases: list[Callable[..., Any]] = [
        lambda x, n: [x.nanmedian(), x.nanmedian(1).values, *x.nanmedian(0, keepdim=True)],
        lambda x, n: [x.median(), x.median(1).values, n.median(0).values],
        lambda x, n: [*n.mode(1), *n.mode(0, keepdim=True), n.nanmedian(1).values],
    ]
    hold(run, same, cases, x, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_places_of_the_flat_tensor(run: Any, same: Any, dtype: Any) -> None:
    x, source = (torch.randn(4, 5) * 10).to(dtype), (torch.randn(6) * 10).to(dtype)
    index = torch.tensor([3, -1, 7, 3, 0, 12])
    row, many = torch.tensor([1, 3, 1]), (torch.randn(3, 5) * 10).to(dtype)
    cases: list[Callable[..., Any]] = [
        lambda x, i, s, r, m: [x.take(i), x.put(i[3:], s[3:]), x.put(i, s, accumulate=True)],
        lambda x, i, s, r, m: [
            x.index_reduce(0, r, m, how, include_self=own)
            for how in ("prod", "mean", "amax", "amin") for own in (True, False)],
    ]  # fmt: skip
    hold(run, same, cases, x, index, source, row, many)
    with pytest.raises(IndexError):
        run(lambda x, i: [x.take(i)], x, torch.tensor([20]), host=False)
