"""Aliasing, mutation and structure of results: as eager has them, on calls 1, 2 and 3, by both entries."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")

ENTRIES = {
    "planish.compile": planish.compile,
    "torch.compile": lambda function: torch.compile(function, backend="planish"),
}


class Pair(NamedTuple):
    first: Any
    second: Any


Point = namedtuple("Point", "x y")


@dataclass
class Record:
    value: Any
    name: str


def in_place_views(x: Any) -> Any:
    x[:, 1:3].mul_(2)
    x.t()[0].add_(1)
    return x.sum()


def view_of_view(x: Any) -> Any:
    y = x.view(-1)[4:]
    y.view(2, -1)[0].zero_()
    return y


def swap(x: Any, y: Any) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x, y


def resized(x: Any) -> Any:
    return x.unsqueeze_(0), x + 1


def whole_and_part(x: Any) -> Any:
    y = x * 2
    return y, y[1], y.t(), y.view(-1)


def written_after_view(x: Any) -> Any:
    y = x * 2
    part = y[0]
    y.add_(1)
    return part, y


# name: (function, arguments)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "a new tensor": (lambda x: x * 1, lambda: (torch.randn(3, 4),)),
    "the argument": (lambda x: x, lambda: (torch.randn(3, 4),)),
    "argument and result": (lambda x: (x, x + 1, x), lambda: (torch.randn(3, 4),)),
    "a view": (lambda x: x.t(), lambda: (torch.randn(3, 4),)),
    "views of the argument": (lambda x: (x[1:], x.view(-1), x * 2), lambda: (torch.randn(3, 4),)),
    "views of a result": (whole_and_part, lambda: (torch.randn(3, 4),)),
    "a view written to": (written_after_view, lambda: (torch.randn(3, 4),)),
    "one result twice": (lambda x: (lambda y: (y, y, [y]))(x * 2), lambda: (torch.randn(3, 4),)),
    "detached": (lambda x: (x.detach(), x.detach() * 2), lambda: (torch.randn(3, 4),)),
    "chunks": (lambda x: x.chunk(2, 1), lambda: (torch.randn(3, 4),)),
    "unbound": (lambda x: (x * 2).unbind(0), lambda: (torch.randn(3, 4),)),
    "in place": (lambda x: x.mul_(2), lambda: (torch.randn(3, 4),)),
    "in place, nothing returned": (lambda x: x.mul_(2) and None, lambda: (torch.ones(1),)),
    "in place through views": (in_place_views, lambda: (torch.randn(3, 4),)),
    "in place through views of views": (view_of_view, lambda: (torch.randn(3, 4),)),
    "in place of a slice": (lambda x: x[::2].add_(1), lambda: (torch.randn(4, 5),)),
    "in place into columns": (lambda x: x.relu_(), lambda: (torch.randn(4, 5).t(),)),
    "in place of an integer tensor": (lambda x: x.add_(3), lambda: (torch.arange(5),)),
    "two swapped": (swap, lambda: (torch.randn(3), torch.randn(3))),
    "one tensor twice, in place": (lambda x, y: x.add_(y), lambda: (lambda t: (t, t))(torch.randn(3))),
    "two views of one memory": (
        lambda x, y: (x.mul_(2), y + 1)[1],
        lambda: (lambda t: (t[:4], t[2:]))(torch.randn(6)),
    ),
    "other metadata": (resized, lambda: (torch.randn(3, 4),)),
    "written by index": (
        lambda x, i: x.index_fill_(0, i, 7.0),
        lambda: (torch.randn(5), torch.tensor([1, 3])),
    ),
    "out": (lambda x, y: torch.add(x, 1, out=y), lambda: (torch.randn(4), torch.zeros(4))),
    "expanded": (lambda x: x + 1, lambda: (torch.randn(3, 1).expand(3, 4),)),
    "expanded result": (lambda x: (x * 2).expand(3, 4), lambda: (torch.randn(3, 1),)),
    "overlapping": (lambda x: x * 2, lambda: (torch.randn(8).as_strided((3, 4), (2, 1)),)),
    "sliced": (lambda x: x * 2, lambda: (torch.randn(6, 8)[1::2, ::3],)),
    "an offset": (lambda x: x[1:] * 2, lambda: (torch.randn(6, 8)[2:],)),
    "channels last": (
        lambda x: (x * 2, x.mean(1)),
        lambda: (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "transposed result": (lambda x: (x + 1).t() * 2, lambda: (torch.randn(3, 4).t(),)),
    "strided result": (lambda x: torch.empty_strided((3, 4), (1, 3)).copy_(x), lambda: (torch.randn(3, 4),)),
    "none among results": (lambda x: (None, x + 1, None), lambda: (torch.randn(3),)),
    "numbers among results": (lambda x: (x + 1, 3, "a", x.shape[0], 2.5), lambda: (torch.randn(3),)),
    "a dict": (lambda x: {"a": x + 1, "b": [x, {"c": x * 2}]}, lambda: (torch.randn(3),)),
    "a named tuple": (lambda x: Pair(x + 1, x), lambda: (torch.randn(3),)),
    "a namedtuple": (lambda x: Point(x + 1, y=None), lambda: (torch.randn(3),)),
    "a dataclass": (lambda x: Record(x + 1, "one"), lambda: (torch.randn(3),)),
    "torch's named results": (lambda x: x.max(1), lambda: (torch.randn(3, 4),)),
    "empty": (lambda x: (x * 2, x.sum()), lambda: (torch.randn(0, 4),)),
    "scalars": (lambda x: (x + 1, x.sum()), lambda: (torch.randn(()),)),
    "zeros without memory": (lambda x: x + 1, lambda: (torch._efficientzerotensor((2, 3)),)),
    "half": (lambda x: (x * 2, x.t()), lambda: (torch.randn(3, 4).bfloat16(),)),
    "booleans": (lambda x: (~x, x.logical_or_(~x)), lambda: (torch.eye(3).bool(),)),
}


def memory(value: Any) -> int:
    return int(value.untyped_storage().data_ptr())


def tensors_of(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_of(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_of(v)]
    return tensors_of(vars(value)) if isinstance(value, Record) else []


def relations(arguments: Any, results: Any) -> list[tuple[int, int, str]]:
    """Which tensors are one object, which share memory."""
    all_ = [t for t in tensors_of((arguments, results)) if t.numel() and not t._is_zerotensor()]
    pairs = [(i, j) for i in range(len(all_)) for j in range(i)]
    return [
        (i, j, "one" if all_[i] is all_[j] else "memory")
        for i, j in pairs
        if all_[i] is all_[j] or memory(all_[i]) == memory(all_[j])
    ]


def equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
        told = [i for i, n in enumerate(expected.shape) if n > 1] if expected.numel() else []
        assert [got.stride(i) for i in told] == [expected.stride(i) for i in told]
        assert got.storage_offset() == expected.storage_offset() or not told
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            equal(got[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            equal(a, b)
    elif isinstance(expected, Record):
        equal(vars(got), vars(expected))
    else:
        assert got == expected


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", CASES)
def test_as_eager_on_three_calls(name: str, entry: str) -> None:
    function, make = CASES[name]
    compiled = ENTRIES[entry](function)
    kept = []
    for call in range(3):
        torch.manual_seed(call)
        mine = make()
        torch.manual_seed(call)
        its = make()
        got, expected = compiled(*mine), function(*its)
        equal(got, expected)
        equal(mine, its)
        assert relations(mine, got) == relations(its, expected)
        kept.append((mine, got, expected))
    for _, got, expected in kept:
        equal(got, expected)  # no call overwrites what an earlier one gave


@pytest.mark.parametrize("entry", ENTRIES)
def test_batch_norm_statistics(entry: str) -> None:
    import copy

    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
    other = copy.deepcopy(model)
    compiled = ENTRIES[entry](model)
    for step in range(3):
        x = torch.randn(5, 4)
        with torch.set_grad_enabled(step != 1):
            torch.testing.assert_close(compiled(x), other(x))
        for mine, its in zip(model.buffers(), other.buffers()):
            torch.testing.assert_close(mine, its)
    model.eval(), other.eval()
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_counter_in_a_module(entry: str) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.cache: list[Any] = []

        def forward(self, x: Any) -> Any:
            self.seen += 1
            self.cache = [x, *self.cache[:2]]
            return x * self.seen, self.cache[-1]

    mine, its = Counting(), Counting()
    compiled = ENTRIES[entry](mine)
    with torch.no_grad():
        for call in range(4):
            x = torch.full((3,), float(call))
            equal(compiled(x), its(x))
            equal(mine.cache, its.cache)
            assert int(mine.seen) == int(its.seen) == call + 1
