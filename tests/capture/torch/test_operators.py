"""Operators by family against eager, on random and special values, in f32, bf16, i64 and bool.

Every family is one program with many results, so that it is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

Cases = list[Callable[..., Any]]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, float("inf"), float("-inf"), float("nan"), 3e38, -2.5]


def floats(dtype: Any, *shape: int, special: bool = True) -> Any:
    x = torch.randn(*shape).to(dtype)
    if special:
        x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL).to(dtype)[: x.numel()]
    return x


def check(run: Any, same: Any, cases: Cases, *tensors: Any, **tolerance: float) -> None:
    """Each case gives a tensor, or a tuple of them."""

    def program(*given: Any) -> list[Any]:
        return [case(*given) for case in cases]

    expected = program(*[t.clone() for t in tensors])
    results = iter(run(program, *tensors))
    for case_number, want in enumerate(expected):
        for one in want if isinstance(want, (tuple, list)) else (want,):
            try:
                same(next(results), one, **tolerance)
            except AssertionError as error:
                raise AssertionError(f"case {case_number}: {error}") from None


UNARY: Cases = [
    torch.abs,
    torch.neg,
    torch.sign,
    torch.floor,
    torch.ceil,
    torch.trunc,
    torch.round,
    torch.relu,
    torch.sqrt,
    torch.rsqrt,
    torch.reciprocal,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.expm1,
    torch.log1p,
    torch.erf,
    torch.isnan,
    torch.isinf,
    torch.isfinite,
    torch.signbit,
    torch.square,
    torch.logical_not,
    F.gelu,
    F.silu,
    F.elu,
    F.leaky_relu,
    F.hardtanh,
    F.relu6,
    F.softplus,
    F.hardswish,
    F.mish,
    F.logsigmoid,
    F.softsign,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.to(torch.float64),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x**-1,
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: torch.nan_to_num(x),
    lambda x: x.pow(0.5),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unary(run: Any, same: Any, dtype: Any) -> None:
    check(run, same, UNARY, floats(dtype, 40))


BINARY: Cases = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.fmax,
    torch.fmin,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    torch.remainder,
    torch.fmod,
    torch.copysign,
    torch.logical_and,
    torch.logical_xor,
    lambda x, y: torch.add(x, y, alpha=0.3),
    lambda x, y: x - 2 * y,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: x * 3 + y,
    lambda x, y: torch.addcmul(x, x, y, value=0.5),
    lambda x, y: x + torch.tensor(2.5, dtype=torch.float64),
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_binary(run: Any, same: Any, dtype: Any) -> None:
    x, y = floats(dtype, 11, 1), floats(dtype, 1, 11)
    check(run, same, BINARY, x, y)


INTEGER: Cases = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.bitwise_and,
    torch.bitwise_xor,
    torch.eq,
    torch.lt,
    torch.remainder,
    torch.fmod,
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: x << (y % 5),
    lambda x, y: x >> (y % 5),
    lambda x, y: x**2,
    lambda x, y: x * 2.5,
    lambda x, y: x.float().sqrt(),
    lambda x, y: torch.sin(x),
    lambda x, y: x.sum(),
    lambda x, y: x.amax(0),
    lambda x, y: x.cumsum(0),
    lambda x, y: x.to(torch.uint8),
    lambda x, y: x.to(torch.uint8) + y.to(torch.uint8),
    lambda x, y: x.bool() & y.bool(),
    lambda x, y: ~x,
]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers(run: Any, same: Any, dtype: Any) -> None:
    x = torch.randint(-1000, 1000, (6, 7), dtype=dtype)
    y = torch.randint(1, 50, (6, 7), dtype=dtype) * torch.where(torch.rand(6, 7) < 0.5, -1, 1).to(dtype)
    x[0, 0] = torch.iinfo(dtype).min
    check(run, same, INTEGER, x, y)


def test_bool(run: Any, same: Any) -> None:
    cases: Cases = [
        torch.add,
        torch.mul,
        torch.logical_or,
        torch.bitwise_xor,
        torch.eq,
        lambda x, y: ~x,
        lambda x, y: x.sum(),
        lambda x, y: x.any(),
        lambda x, y: x.all(1),
        lambda x, y: x * 2,
        lambda x, y: x.float() + y,
        lambda x, y: torch.where(x, 1, 2.5),
    ]
    check(run, same, cases, torch.rand(5, 7) < 0.5, torch.rand(5, 7) < 0.5)


MOVEMENT: Cases = [
    lambda x: x.transpose(1, 2).contiguous(),
    lambda x: x.permute(2, 0, 1) + 0,
    lambda x: x.reshape(-1, 10) * 1,
    lambda x: x[:, 1:, ::2] * 1,
    lambda x: x[-2:].clone(),
    lambda x: x.select(1, -1).clone(),
    lambda x: x[0, :, 3].clone(),
    lambda x: torch.cat([x, x[:, :1]], 1),
    lambda x: torch.stack([x, x], -1),
    lambda x: [p * 1 for p in x.split(2, 2)],
    lambda x: [p * 1 for p in x.unbind(1)],
    lambda x: x.flip(0, 2),
    lambda x: x.roll(3, 1),
    lambda x: x.roll((1, -2), (0, 2)),
    lambda x: x.roll(7),
    lambda x: x.repeat(2, 1, 3),
    lambda x: F.pad(x, (1, 2, 0, 3), value=2.0),
    lambda x: F.pad(x, (-1, 2)),
    lambda x: x.unfold(2, 3, 2) * 1,
    lambda x: F.pad(x, (2, 1), mode="reflect"),
    lambda x: torch.tril(x),
    lambda x: torch.triu(x, 1),
    lambda x: x.diagonal(0, 1, 2) * 1,
    lambda x: x.diagonal(-1, 2, 1) * 1,
    lambda x: x.expand(2, 3, 4, 5) * 1,
    lambda x: x.movedim(0, 2) * 1,
    lambda x: x.unsqueeze(1) * 1,
    lambda x: x[:, :1].squeeze(1) * 1,
    lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3),
    lambda x: torch.select_scatter(x, x[0] * 2, 0, 1),
    lambda x: torch.slice_scatter(x, x[:, :, :2] * 2, 2, 0, 4, 2),
    lambda x: x.view(torch.int32) + 1,
    lambda x: F.pixel_shuffle(x.reshape(1, 4, 3, 5), 2),
    lambda x: torch.arange(3, 11, 2) + x.sum().long(),
    lambda x: torch.arange(2.1, -2.9, -1.0, dtype=torch.int64) + x.sum().long(),
    lambda x: torch.arange(0.1, 7.9, 2.7, dtype=torch.int32) + x.sum().int(),
    lambda x: torch.linspace(0, 1, 7) * x.sum(),
    lambda x: torch.full((2, 3), 7.0) * x.sum(),
    lambda x: torch.eye(4) + x.sum(),
    lambda x: x.new_zeros(3) + 1,
    lambda x: torch.ones_like(x) * x,
]


def test_movement(run: Any, same: Any) -> None:
    check(run, same, MOVEMENT, torch.randn(3, 4, 5))


def _spaces(dtype: Any) -> Cases:
    return [
        lambda x: torch.linspace(-2.0, 4, 50, dtype=dtype),
        lambda x: torch.linspace(4.3, -3, 51, dtype=dtype),
        lambda x: torch.linspace(x[0], 1, 50, dtype=dtype),
        lambda x: torch.linspace(4.7, 50, 1, dtype=dtype),
        lambda x: torch.linspace(4.7, x[1], 0, dtype=dtype),
        lambda x: torch.logspace(4.3, -3, 50, base=2.0, dtype=dtype),
        lambda x: torch.logspace(x[0], x[1], 4, dtype=dtype),
        lambda x: torch.logspace(3.9, 7, 1, dtype=dtype),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_spaces(run: Any, same: Any, dtype: Any) -> None:
    check(run, same, _spaces(dtype), torch.tensor([-2.7, 3.3]))


REDUCTIONS: Cases = [
    lambda x: x.sum(),
    lambda x: x.sum((0, 2)),
    lambda x: x.sum(1, keepdim=True),
    lambda x: x.mean(),
    lambda x: x.mean(-1),
    lambda x: x.amax(2),
    lambda x: x.amin((0, 1)),
    lambda x: x.max(),
    lambda x: x.min(),
    lambda x: tuple(x.max(1)),
    lambda x: tuple(x.min(-1, keepdim=True)),
    lambda x: x.argmax(),
    lambda x: x.argmin(2),
    lambda x: x.argmax(1, keepdim=True),
    lambda x: x.var(),
    lambda x: x.var(1, correction=0),
    lambda x: x.std(2),
    lambda x: torch.var_mean(x, 2),
    lambda x: x.prod(1),
    lambda x: x.any(1),
    lambda x: x.all(),
    lambda x: x.cumsum(1),
    lambda x: x.logsumexp(2),
    lambda x: x.softmax(-1),
    lambda x: x.softmax(0),
    lambda x: x.log_softmax(1),
    lambda x: tuple(x.sort(1)),
    lambda x: tuple(x.sort(-1, descending=True)),
    lambda x: tuple(x.topk(2, 1)),
    lambda x: x.norm(dim=1),
    lambda x: x.norm(1, dim=2),
    lambda x: x.abs().sum(),
    lambda x: torch.linalg.vector_norm(x),
    lambda x: F.normalize(x, dim=-1),
    lambda x: x.sum(dtype=torch.float64),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reductions(run: Any, same: Any, dtype: Any) -> None:
    check(run, same, REDUCTIONS, floats(dtype, 3, 6, 5, special=False))


def test_reductions_of_specials(run: Any, same: Any) -> None:
    cases: Cases = [
        lambda x: x.max(),
        lambda x: x.amin(1),
        lambda x: x.argmax(1),
        lambda x: tuple(x.max(0)),
        lambda x: x.softmax(0),
        lambda x: x.logsumexp(0),
        lambda x: tuple(x.sort(1)),
    ]
    check(run, same, cases, floats(torch.float32, 4, 6))


def test_indexing(run: Any, same: Any) -> None:
    x, i = torch.randn(6, 5, 4), torch.tensor([[0, 2, 2], [-1, 3, -4]])
    rows = torch.tensor([[0, 2, 2, 1], [3, 0, 1, 1]])
    cases: Cases = [
        lambda x, i, r: x[i],
        lambda x, i, r: x[:, i],
        lambda x, i, r: x[i, i],
        lambda x, i, r: x[i, :, r[:, :3]],
        lambda x, i, r: x[:, i, r[:, :3]],
        lambda x, i, r: x.index_select(1, r[0]),
        lambda x, i, r: F.embedding(r, x[0]),
        lambda x, i, r: torch.gather(x[0], 0, r),
        lambda x, i, r: x[0].scatter(0, r, 7.0),
        lambda x, i, r: x[0].scatter(0, r[:1], x[1]),
        lambda x, i, r: x[0].scatter_add(0, r, x[1]),
        lambda x, i, r: x.index_put((r[0],), x[:4] * 2),
        lambda x, i, r: x.index_put((i, i), x[0, 0, 0]),
        lambda x, i, r: x.index_put((r[0],), x[:4], accumulate=True),
        lambda x, i, r: x.masked_fill(x > 0, -1.0),
        lambda x, i, r: x.index_put((x > 0,), torch.tensor(3.0)),
        lambda x, i, r: x[:2].take_along_dim(r[:, :, None], 1),
        lambda x, i, r: F.one_hot(r, 5),
        lambda x, i, r: x.index_add(0, r[0], x[:4]),
        lambda x, i, r: x.take(r),
    ]
    check(run, same, cases, x, i, rows)


CONTRACTIONS: Cases = [
    lambda a, b, c: a @ b,
    lambda a, b, c: c @ c.transpose(1, 2),
    lambda a, b, c: torch.addmm(b[0], a, b),
    lambda a, b, c: torch.addmm(b[0], a, b, beta=0.5, alpha=2.0),
    lambda a, b, c: a @ b[:, 0],
    lambda a, b, c: torch.einsum("bij,bkj->ikb", c, c),
    lambda a, b, c: c @ b[:5],
    lambda a, b, c: F.linear(a, b.t()),
    lambda a, b, c: torch.baddbmm(c[:, :, :1], c, c.transpose(1, 2)),
    lambda a, b, c: torch.outer(a[0], b[0]),
    lambda a, b, c: F.linear(c, b.t()[:, :5], b[0]),
    lambda a, b, c: torch.tensordot(a, b, 1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_contractions(run: Any, same: Any, dtype: Any) -> None:
    tensors = [torch.randn(s).to(dtype) for s in ((4, 6), (6, 7), (2, 3, 5))]
    check(run, same, CONTRACTIONS, *tensors)


WINDOWS: Cases = [
    lambda x, w: F.conv2d(x, w),
    lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], stride=2, padding=1),
    lambda x, w: F.conv2d(x, w, padding="same", dilation=2),
    lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1)),
    lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1), stride=2, padding=1, output_padding=1),
    lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0], padding=2),
    lambda x, w: F.conv2d(x, w[:4, :2], groups=2),
    lambda x, w: F.max_pool2d(x, 2),
    lambda x, w: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x, w: F.max_pool2d(x, 3, 1, 1, return_indices=True),
    lambda x, w: F.avg_pool2d(x, 3, 2, 1),
    lambda x, w: F.avg_pool2d(x, 2, 2, 0, ceil_mode=True),
    lambda x, w: F.adaptive_avg_pool2d(x, (1, 1)),
    lambda x, w: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x, w: F.adaptive_avg_pool2d(x, (3, 2)),
    lambda x, w: F.interpolate(x, scale_factor=2),
    lambda x, w: F.interpolate(x, (5, 9), mode="bilinear"),
    lambda x, w: F.unfold(x, 3),
    lambda x, w: F.group_norm(x, 2),
    lambda x, w: F.instance_norm(x),
    lambda x, w: F.layer_norm(x, x.shape[1:]),
    lambda x, w: F.rms_norm(x, x.shape[-1:]),
    lambda x, w: F.batch_norm(x, w[:4, 0, 0, 0], w[:4, 1, 0, 0].abs()),
    lambda x, w: F.max_pool1d(x[0], 3, 2),
]


def test_windows(run: Any, same: Any) -> None:
    check(run, same, WINDOWS, torch.randn(2, 4, 7, 8), torch.randn(6, 4, 3, 3), rtol=1e-5, atol=1e-5)


def test_random_numbers_follow_the_seed(run: Any) -> None:
    def program(x: Any) -> list[Any]:
        return [torch.rand_like(x), torch.randn_like(x), F.dropout(x, 0.25, True), torch.rand_like(x)]

    x = torch.ones(200, 100)
    torch.manual_seed(7)
    first, normal, dropped, second = run(program, x)
    torch.manual_seed(7)
    again = run(program, x)
    assert all(torch.equal(a, b) for a, b in zip((first, normal, dropped, second), again))
    assert not torch.equal(first, second)
    assert abs(first.mean() - 0.5) < 0.01 and abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    kept = dropped != 0
    assert abs(kept.float().mean() - 0.75) < 0.01
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.75))
