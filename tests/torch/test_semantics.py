"""What docs/semantics.md promises, held to eager torch where no other file of these tests does.

Values of samples are in tests/capture/torch/test_opdb.py, errors in test_wrong_programs.py, aliasing in
test_aliasing.py, random streams in test_random.py, training in test_training.py and test_together.py.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PARALLEL = 1 << 17
WIDTHS = [("int8", 37), ("int16", 37), ("int32", 37), ("int64", 37), ("uint8", 37), ("int32", 1),
          ("int64", PARALLEL)]


def corners(dtype: Any, size: int) -> list[Any]:
    info = torch.iinfo(dtype)
    values = [v for v in (info.min, info.min + 1, -1, 0, 1, 2, 7, 8, info.max) if info.min <= v <= info.max]
    pairs = torch.tensor(list(product(values, values)), dtype=dtype)
    x, y = (torch.randint(info.min, info.max, (size,)).to(dtype) for _ in range(2))
    pairs = pairs[torch.randperm(len(pairs))][:size]
    x[:len(pairs)], y[:len(pairs)] = pairs[:, 0], pairs[:, 1]
    return [x, y]


@pytest.mark.parametrize(("dtype", "size"), WIDTHS)
def test_integers_wrap_shift_and_divide_as_eager(dtype: str, size: int) -> None:
    """The least integer by -1 too; shifts by counts of the width and more, and negative ones."""
    def table(x: Any, y: Any, d: Any) -> Any:
        wide = (x + y).to(torch.int64) + (x * y).double()
        return (x + y, x - y, x * y, -x, abs(x), ~x, x // d, x % d, torch.div(x, d, rounding_mode="trunc"),
                torch.fmod(x, d), x << y, x >> y, x ** (y & 7), x & y, torch.maximum(x, y), wide,
                torch.sign(x), x.sum(), x.cumsum(0), x.argmax(), x.argmin())

    x, y = corners(getattr(torch, dtype), size)
    divisor = torch.where(y == 0, torch.ones_like(y), y)
    if dtype != "uint8":                       # eager's own division faults or wraps, by platform
        x[(x == torch.iinfo(x.dtype).min) & (divisor == -1)] = 5
    expected, got = table(x, y, divisor), torch.compile(table, backend="planish")(x, y, divisor)
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        assert g.dtype == e.dtype and torch.equal(g, e), f"result {i}"


@pytest.mark.parametrize(("dtype", "size"), [("int8", 1), ("uint8", 37), ("int32", 8), ("int64", PARALLEL)])
def test_a_divisor_of_zero_is_eagers_error(dtype: str, size: int) -> None:
    x = torch.ones(size, dtype=getattr(torch, dtype))
    for operation in (lambda x, y: x // y, lambda x, y: x % y,
                      lambda x, y: torch.div(x, y, rounding_mode="trunc")):
        compiled = torch.compile(operation, backend="planish")
        assert torch.equal(compiled(x, x), operation(x, x))
        y = x.clone()
        y[-1] = 0
        for run in (operation, compiled):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                run(x, y)
        assert torch.equal(compiled(x, x), operation(x, x))


def test_floor_division_of_floats_is_exact() -> None:
    x, y = torch.tensor([1.0, -7.5, 6.0, 0.0]), torch.tensor([0.1, 2.0, 0.0, -3.0])
    function = lambda x, y: (x // y, x % y, torch.fmod(x, y))  # noqa: E731
    for g, e in zip(torch.compile(function, backend="planish")(x, y), function(x, y), strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1, 8, 21])
def test_nan_in_every_lane(size: int) -> None:
    def selects(x: Any, y: Any) -> Any:
        return (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), torch.relu(x),
                torch.clamp(x, y, y + 1), x.max(), x.min(), x.argmax(), x.argmin(), *x.sort(),
                torch.fmax(x, y))

    compiled = torch.compile(selects, backend="planish")
    for lane in range(size):
        for which in (0, 1):
            operands = [torch.randn(size), torch.randn(size)]
            operands[which][lane] = float("nan")
            for i, (g, e) in enumerate(zip(compiled(*operands), selects(*operands), strict=True)):
                torch.testing.assert_close(g, e, rtol=0, atol=0, equal_nan=True, msg=f"{i}, lane {lane}")


def test_the_state_of_the_processor_is_left_alone() -> None:
    """Denormals are numbers, or are flushed to 0 where the process has said so: as before, and on return."""
    tiny = torch.tensor([1e-40])
    double = torch.compile(lambda x: x * 2, backend="planish")
    assert float(double(tiny)) == float(tiny * 2) > 0
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine does not flush denormals")
    try:
        double(tiny)
        assert float(tiny * 2) == 0
    finally:
        torch.set_flush_denormal(False)
    assert float(double(tiny)) == float(tiny * 2) > 0


def test_promotion_by_categories_and_ranks() -> None:
    """Tensors with axes, without, and Python's numbers, of every category: the dtype of eager."""
    kinds = [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
             torch.float64]
    values = [torch.ones(shape, dtype=k) for k in kinds for shape in ((2,), ())]

    def sums(values: list[Any]) -> Any:
        numbers = [True, 2, 2.5]
        return [a + b for a in values for b in [*values, *numbers]] + [a / b for a in values for b in numbers]

    for g, e in zip(torch.compile(sums, backend="planish")(values), sums(values), strict=True):
        assert g.dtype == e.dtype and torch.equal(g, e)


def test_gradients_through_where_as_eager() -> None:
    """NaN and infinity of the branch that is not taken reach the gradient, as they do in eager."""
    def function(x: Any) -> Any:
        root = torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))
        return root + torch.where(x != 0, 1 / x, x) + torch.where(x > 1, x.log(), x)

    results = []
    for run in (function, torch.compile(function, backend="planish")):
        x = torch.tensor([4.0, 0.0, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
        y = run(x)
        y.backward(torch.ones_like(y))
        results.append((y.detach(), x.grad))
    for g, e in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(g, e, equal_nan=True)
    assert results[0][1].isnan().any()


@pytest.mark.parametrize("momentum", [None, 0.1])
def test_batch_norm_averages(momentum: float | None) -> None:
    """With momentum None the statistics are the mean of all batches so far."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, momentum=momentum))
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, backend="planish")
    for _ in range(4):
        x = torch.randn(6, 3)
        torch.testing.assert_close(compiled(x), net(x))
    for (name, mine), theirs in zip(twin.state_dict().items(), net.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)


def test_gradients_accumulate() -> None:
    net = torch.nn.Linear(5, 3)
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, backend="planish")
    for _ in range(3):                 # no zero_grad between
        x = torch.randn(4, 5)
        for run in (net, compiled):
            run(x).square().sum().backward()
    for mine, theirs in zip(twin.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_errors_of_long_products_are_at_most_twice_eagers() -> None:
    """Against float64, also where the terms do not cancel."""
    compiled = torch.compile(lambda x, w: (x @ w, x.sum(1)), backend="planish")
    for k, offset in product((300, 1500, 4096), (0, 1)):
        x, w = torch.randn(48, k) + offset, torch.randn(k, 64) + offset
        exact = x.double() @ w.double(), x.double().sum(1)
        for g, e, truth in zip(compiled(x, w), (x @ w, x.sum(1)), exact, strict=True):
            floor = truth.float().abs().mean() * 2 ** -25
            assert (g - truth).abs().mean() <= 2 * torch.maximum((e - truth).abs().mean(), floor)
