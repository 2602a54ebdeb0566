"""Wrong programs fail as eager fails: with the same type of exception.

Each entry is a function that makes a program and its arguments. Those of DATA are wrong for the values of the
arguments only: what is compiled is a right program, and it is the call that fails.

planish.compile gives exactly eager's type. torch.compile, whatever the backend, wraps what fails while it
traces in its TorchRuntimeError: that is a RuntimeError, as most of eager's are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import planish
from tests.torch.asserting import asserts_shape, asserts_values

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, F = torch.nn, torch.nn.functional


def r(*shape: int) -> Any:
    return torch.rand(*shape)


def ints(*values: int) -> Any:
    return torch.tensor(values)


class OwnError(Exception):
    """An error of the user's."""


def raises_own(x: Any) -> Any:
    if x.shape[0] > 2:
        raise OwnError("too long")
    return x + 1


def raises_after(x: Any) -> Any:
    y = (x * 2).sum()
    raise OwnError(f"no {x.ndim}")
    return y


def checks_values(x: Any) -> Any:
    torch._check(x.sum().item() > 100, lambda: "a large sum")
    return x * 2


def checks_shape(x: Any) -> Any:
    torch._check(x.shape[0] == 7)
    return x * 2


def checks_type(x: Any) -> Any:
    torch._check_type(x.is_floating_point(), lambda: "floats only")
    return x * 2


def in_place_on_leaf(x: Any) -> Any:
    x.add_(1)
    return x * 2


def in_place_on_view_of_leaf(x: Any) -> Any:
    x[0].mul_(2)
    return x * 2


def saved_is_overwritten(x: Any) -> Any:
    y = x.exp()
    z = y * 2
    y.add_(1)
    z.sum().backward()
    return x.grad


def attribute(x: Any) -> Any:
    return x.no_such_attribute + 1


def missing_name(x: Any) -> Any:
    return x + no_such_name  # noqa: F821


def key(x: Any) -> Any:
    return x + {"a": 1}["b"]


def unpacks(x: Any) -> Any:
    a, b = x
    return a + b


def number(x: Any) -> Any:
    return x * int("three")


def divides(x: Any) -> Any:
    return x * (1 // (x.ndim - 1))


SHAPES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "add": (lambda x, y: x + y, [r(3), r(4)]),
    "add in place": (lambda x, y: x.add_(y), [r(3), r(2, 3)]),
    "matmul": (lambda x, y: x @ y, [r(2, 3), r(4, 5)]),
    "matmul of a vector": (lambda x, y: torch.mm(x, y), [r(2, 3), r(3)]),
    "bmm": (lambda x, y: torch.bmm(x, y), [r(2, 3, 4), r(3, 4, 5)]),
    "linear": (lambda x, w: F.linear(x, w), [r(2, 3), r(5, 4)]),
    "cat": (lambda x, y: torch.cat([x, y]), [r(2, 3), r(2, 4)]),
    "cat of nothing": (lambda x: torch.cat([]) + x, [r(2)]),
    "stack": (lambda x, y: torch.stack([x, y]), [r(2), r(3)]),
    "view": (lambda x: x.view(5, 2), [r(3, 4)]),
    "view of a transpose": (lambda x: x.t().view(12), [r(3, 4)]),
    "reshape": (lambda x: x.reshape(-1, 5), [r(3, 4)]),
    "expand": (lambda x: x.expand(4, 5), [r(3, 5)]),
    "permute": (lambda x: x.permute(0, 0), [r(3, 4)]),
    "transpose": (lambda x: x.transpose(0, 2), [r(3, 4)]),
    "dimension of a sum": (lambda x: x.sum(2), [r(3, 4)]),
    "dimension of a softmax": (lambda x: x.softmax(-3), [r(3, 4)]),
    "squeeze": (lambda x: x.squeeze(5), [r(3, 1)]),
    "unsqueeze": (lambda x: x.unsqueeze(4), [r(3)]),
    "split": (lambda x: x.split([2, 2])[0], [r(5)]),
    "chunk": (lambda x: x.chunk(0), [r(5)]),
    "narrow": (lambda x: x.narrow(0, 2, 9), [r(4)]),
    "index of an axis": (lambda x: x[5], [r(3)]),
    "too many indices": (lambda x: x[0, 0], [r(3)]),
    "mask": (lambda x, m: torch.where(m, x, x), [r(3), r(4) > 0.5]),
    "conv channels": (lambda x, w: F.conv2d(x, w), [r(1, 3, 8, 8), r(4, 2, 3, 3)]),
    "conv rank": (lambda x, w: F.conv2d(x, w), [r(8), r(4, 3, 3, 3)]),
    "conv kernel": (lambda x, w: F.conv2d(x, w), [r(1, 3, 2, 2), r(4, 3, 5, 5)]),
    "pool": (lambda x: F.max_pool2d(x, 5), [r(1, 3, 2, 2)]),
    "layer norm": (lambda x: F.layer_norm(x, [5]), [r(2, 4)]),
    "batch norm": (lambda x, m: F.batch_norm(x, m, m), [r(2, 3, 4), r(5)]),
    "batch norm of one value": (
        lambda x, m: F.batch_norm(x, m, m, training=True),
        [r(1, 3), r(3)],
    ),
    "group norm": (lambda x: F.group_norm(x, 2), [r(2, 3, 4)]),
    "pad": (lambda x: F.pad(x, (9, 9), mode="reflect"), [r(1, 2, 3)]),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 3), [r(1, 4, 2, 2)]),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), [r(1, 2, 3, 4), r(1, 2, 3, 5)]),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), [r(2, 3), r(4, 5)]),
    "einsum equation": (lambda x: torch.einsum("ij->ijk", x), [r(2, 3)]),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), [r(3, 4), ints(0, 1)]),
    "nll loss of floats": (lambda x, t: F.nll_loss(x, t), [r(3, 4), r(3)]),
    "cholesky": (lambda x: torch.linalg.cholesky(x), [r(2, 3)]),
    "gather rank": (lambda x, i: x.gather(0, i), [r(3, 4), ints(0, 1)]),
    "scatter size": (
        lambda x, i, s: x.scatter(1, i, s),
        [r(2, 3), torch.zeros(2, 5, dtype=torch.int64), r(2, 2)],
    ),
    "module": (nn.Linear(3, 4), [r(2, 5)]),
}

TYPES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "matmul of two types": (lambda x, y: x @ y, [r(2, 3), r(3, 2).double()]),
    "linear of two types": (lambda x, w: F.linear(x, w), [r(2, 3).bfloat16(), r(4, 3)]),
    "conv of two types": (lambda x, w: F.conv2d(x, w), [r(1, 3, 8, 8), r(4, 3, 3, 3).double()]),
    "bool minus": (lambda x: x - x, [r(3) > 0.5]),
    "minus of a bool": (lambda x: -x, [r(3) > 0.5]),
    "in place to an integer": (lambda x: x.add_(0.5), [ints(1, 2)]),
    "in place division": (lambda x: x.div_(2), [ints(1, 2)]),
    "shift of floats": (lambda x: x << 1, [r(3)]),
    "and of floats": (lambda x: x & x, [r(3)]),
    "mean of integers": (lambda x: x.mean(), [ints(1, 2)]),
    "softmax of integers": (lambda x: x.softmax(0), [ints(1, 2)]),
    "embedding by floats": (lambda i, w: F.embedding(i, w), [r(3), r(4, 2)]),
    "gather by floats": (lambda x, i: x.gather(0, i), [r(3), r(3)]),
    "index by floats": (lambda x, i: x[i], [r(3), r(3)]),
    "scatter of another type": (lambda x, i, s: x.scatter(0, i, s), [r(3), ints(0, 1), ints(5, 6)]),
    "where of floats": (lambda x: torch.where(x, x, x), [r(3)]),
    "dropout": (lambda x: F.dropout(x, 1.5), [r(3)]),
    "argument": (lambda x: torch.relu(x, x), [r(3)]),
    "keyword": (lambda x: x.sum(dimension=0), [r(3)]),
    "string": (lambda x: x + "a", [r(3)]),
    "none": (lambda x: torch.exp(None) + x, [r(3)]),
    "clamp": (lambda x: x.clamp(), [r(3)]),
    "norm of integers": (lambda x: torch.linalg.vector_norm(x), [ints(1, 2)]),
    "reduction": (lambda x, t: F.mse_loss(x, t, reduction="middle"), [r(3), r(3)]),
}

DATA: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "embedding": (lambda i, w: F.embedding(i, w), [ints(0, 1), r(4, 2)], [ints(0, 4), r(4, 2)]),
    "embedding of a negative": (
        lambda i, w: F.embedding(i, w),
        [ints(0, 1), r(4, 2)],
        [ints(0, -1), r(4, 2)],
    ),
    "gather": (lambda x, i: x.gather(0, i), [r(3), ints(0, 1)], [r(3), ints(0, 3)]),
    "gather of a negative": (lambda x, i: x.gather(0, i), [r(3), ints(0, 1)], [r(3), ints(0, -1)]),
    "index_select": (lambda x, i: x.index_select(0, i), [r(3), ints(0, 1)], [r(3), ints(0, 7)]),
    "take": (lambda x, i: torch.take(x, i), [r(3), ints(0, 1)], [r(3), ints(0, 7)]),
    "index": (lambda x, i: x[i], [r(3), ints(0, 1)], [r(3), ints(0, 3)]),
    "index put": (
        lambda x, i: x.index_put((i,), torch.ones(())),
        [r(3), ints(0, 1)],
        [r(3), ints(0, 3)],
    ),
    "scatter": (
        lambda x, i: x.scatter(0, i, 2.0),
        [r(3), ints(0, 1)],
        [r(3), ints(0, 3)],
    ),
    "index_add": (
        lambda x, i: x.index_add(0, i, torch.ones(2)),
        [r(3), ints(0, 1)],
        [r(3), ints(0, 3)],
    ),
    "one hot": (lambda i: F.one_hot(i, 3), [ints(0, 1)], [ints(0, 3)]),
    "integer division": (lambda x, y: x // y, [ints(1, 2), ints(1, 2)], [ints(1, 2), ints(1, 0)]),
    "remainder": (lambda x, y: x % y, [ints(1, 2), ints(1, 2)], [ints(1, 2), ints(1, 0)]),
    "target of a loss": (
        lambda x, t: F.cross_entropy(x, t),
        [r(2, 3), ints(0, 1)],
        [r(2, 3), ints(0, 3)],
    ),
    "target of nll": (lambda x, t: F.nll_loss(x, t), [r(2, 3), ints(0, 1)], [r(2, 3), ints(0, -1)]),
    "binary target": (
        lambda x, t: F.binary_cross_entropy(x, t),
        [r(3), r(3)],
        [r(3) + 2, r(3)],
    ),
    "power": (lambda x, n: x**n, [ints(1, 2), 2], [ints(1, 2), -2]),
    "inverse": (lambda x: torch.linalg.inv(x), [torch.eye(3)], [torch.zeros(3, 3)]),
    "cholesky": (lambda x: torch.linalg.cholesky(x), [torch.eye(3)], [-torch.eye(3)]),
    "multinomial": (lambda x: torch.multinomial(x, 2), [r(3)], [-r(3)]),
    "bernoulli": (lambda x: torch.bernoulli(x), [r(3)], [r(3) + 2]),
    "repeat_interleave": (
        lambda x, n: x.repeat_interleave(n),
        [r(2), ints(1, 2)],
        [r(2), ints(1, -2)],
    ),
    "bincount": (lambda x: torch.bincount(x), [ints(0, 1)], [ints(0, -1)]),
    "assert": (asserts_values, [r(3) + 6], [r(3)]),
    "check": (checks_values, [r(3) + 60], [r(3)]),
    "item of many": (lambda x: x.view(-1).item() + 1, [r(1)], [r(2)]),
    "bool of many": (lambda x: x * 2 if x > 0 else x, [r(1)], [r(2)]),
}

PYTHON: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "own error": (raises_own, [r(3)]),
    "own error after work": (raises_after, [r(3)]),
    "assert of a shape": (asserts_shape, [r(3)]),
    "check of a shape": (checks_shape, [r(3)]),
    "check of a type": (checks_type, [ints(1)]),
    "attribute": (attribute, [r(3)]),
    "name": (missing_name, [r(3)]),
    "key": (key, [r(3)]),
    "unpacking": (unpacks, [r(3)]),
    "int of a word": (number, [r(3)]),
    "zero division": (divides, [r(3)]),
    "missing argument": (lambda x, y: x + y, [r(3)]),
    "extra argument": (lambda x: x, [r(3), r(3)]),
    "not a function": (lambda x: x(3), [r(3)]),
}

GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "in place on a leaf": (in_place_on_leaf, lambda: [r(3).requires_grad_()]),
    "in place on a view of a leaf": (in_place_on_view_of_leaf, lambda: [r(3, 3).requires_grad_()]),
    "saved tensor overwritten": (saved_is_overwritten, lambda: [r(3).requires_grad_()]),
    "backward of many values": (lambda x: (x * 2).backward(), lambda: [r(3).requires_grad_()]),
    "backward without gradients": (lambda x: (x * 2).sum().backward(), lambda: [r(3)]),
    "inference tensor in a graph": (
        lambda x, w: (x * w).sum(),
        lambda: [_inference(), r(3).requires_grad_()],
    ),
    "inference tensor written to": (lambda x: x.add_(1), lambda: [_inference()]),
    "deepcopy of what is no leaf": (
        lambda x: copy.deepcopy(x * 2),
        lambda: [r(3).requires_grad_()],
    ),
}


def _inference() -> Any:
    with torch.inference_mode():
        return r(3) + 1


WAYS = {
    "torch.compile": lambda f: torch.compile(f, backend="planish"),
    "planish.compile": planish.compile,
}


def error_of(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def alike(found: BaseException | None, expected: BaseException, way: str) -> bool:
    if way == "planish.compile" or found is None:
        return type(found) is type(expected)
    return isinstance(found, type(expected))


def fails_alike(function: Callable[..., Any], arguments: Callable[[], list[Any]], way: str) -> None:
    """The same error as eager's, at the first call and at the second."""
    expected = error_of(lambda: function(*arguments()))
    assert expected is not None, "eager takes it"
    compiled = WAYS[way](function)
    for _ in range(2):
        found = error_of(lambda: compiled(*arguments()))
        assert alike(found, expected, way), f"{found!r} instead of {expected!r}"


ALWAYS = {
    f"{group}: {name}": entry
    for group, table in (("shape", SHAPES), ("type", TYPES), ("python", PYTHON))
    for name, entry in table.items()
}


def test_there_are_enough() -> None:
    assert len(ALWAYS) + len(DATA) + len(GRADIENTS) > 100


@pytest.mark.parametrize("name", ALWAYS)
def test_wrong_program(name: str) -> None:
    function, arguments = ALWAYS[name]
    fails_alike(function, lambda: copy.deepcopy(arguments), "planish.compile")


THROUGH = [name for name in ALWAYS if name.startswith("python")] + ["shape: matmul", "type: bool minus"]


@pytest.mark.parametrize("name", THROUGH)
def test_wrong_program_through_torch_compile(name: str) -> None:
    function, arguments = ALWAYS[name]
    fails_alike(function, lambda: copy.deepcopy(arguments), "torch.compile")


def test_wrong_programs_run_as_far_as_in_eager() -> None:
    """What comes before the error happens, once; after a graph break nothing happens twice."""

    def f(x: Any, seen: list[int]) -> Any:
        seen.append(len(seen))
        x.add_(1)
        return x @ torch.ones(7, 7)

    def after_a_break(x: Any, seen: list[int]) -> Any:
        torch._dynamo.graph_break()
        return f(x, seen)

    for function in (f, after_a_break):
        x, seen = torch.zeros(2, 3), []
        with pytest.raises(RuntimeError, match=r"cannot be multiplied|reduction dim"):
            planish.compile(function)(x, seen)
        assert seen in ([0], []) and x.sum() in (0, 6)
    x, seen = torch.zeros(2, 3), []
    assert type(error_of(lambda: planish.compile(f)(x, seen))) is RuntimeError
    assert seen == [0] and x.sum() == 6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_wrong_gradients(name: str, way: str) -> None:
    function, arguments = GRADIENTS[name]
    fails_alike(function, arguments, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DATA)
def test_wrong_values(name: str, way: str) -> None:
    function, right, wrong = DATA[name]
    expected = error_of(lambda: function(*copy.deepcopy(wrong)))
    assert expected is not None, "eager takes it"
    compiled = WAYS[way](function)
    for _ in range(2):
        assert error_of(lambda: compiled(*copy.deepcopy(right))) is None
        found = error_of(lambda: compiled(*copy.deepcopy(wrong)))
        assert alike(found, expected, way), f"{found!r} instead of {expected!r}"


@pytest.mark.parametrize("way", WAYS)
def test_backward_twice(way: str) -> None:
    loss = WAYS[way](lambda x: x.exp().sum())(r(3).requires_grad_())
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("way", WAYS)
def test_saved_tensor_overwritten_after(way: str) -> None:
    x, w = r(3).requires_grad_(), r(3)
    loss = WAYS[way](lambda x, w: (x * w).sum())(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("way", WAYS)
def test_gradient_of_another_shape(way: str) -> None:
    y = WAYS[way](lambda x: x * 2)(r(3).requires_grad_())
    with pytest.raises(RuntimeError, match="shape"):
        y.backward(r(4))
