"""Complex numbers: complex arguments, complex results, and complex numbers in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

Run = Callable[..., Any]


def numbers(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.complex64)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "there and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, 8), lambda: [torch.randn(3, 8)]),
    "a spectrum as a result": (lambda x: torch.fft.fft(x).conj(), lambda: [torch.randn(2, 6)]),
    "complex arithmetic": (lambda x, y: (x + y) * (x - 1j) / y, lambda: [numbers(4, 3), numbers(3)]),
    "parts": (lambda x: (x.real + x.imag, x.abs(), x.angle()), lambda: [numbers(5)]),
    "from parts": (
        lambda x, y: (torch.complex(x, y), torch.polar(x.abs(), y)),
        lambda: [torch.randn(4), torch.randn(4)],
    ),
    "views": (lambda x: torch.view_as_real(x.t()[1:].contiguous()) + 1, lambda: [numbers(3, 4)]),
    "pairs as numbers": (lambda x: torch.view_as_complex(x) ** 2, lambda: [torch.randn(3, 2)]),
    "a matrix product": (lambda x, y: x @ y, lambda: [numbers(3, 4), numbers(4, 2)]),
    "moved": (lambda x: torch.cat([x.flip(0), x.roll(1, 1)]).reshape(2, -1), lambda: [numbers(3, 4)]),
    "an argument with a lazy conjugate": (lambda x: x * 2, lambda: [numbers(3).conj()]),
    "an argument that lies in another order": (lambda x: x + 1, lambda: [numbers(3, 4).t()]),
    "empty": (lambda x: x * x, lambda: [numbers(0, 3)]),
    "double precision": (lambda x: torch.fft.fft2(x).abs(), lambda: [torch.randn(4, 4, dtype=torch.float64)]),
    "eigenvalues": (lambda x: torch.linalg.eigvals(x).abs().sort()[0], lambda: [torch.randn(3, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str, run: Run, same: Run) -> None:
    function, arguments = CASES[name]
    tensors = arguments()
    expected = function(*tensors)
    same(run(function, *tensors), list(expected) if isinstance(expected, tuple) else [expected])


def test_arithmetic_and_moves_are_native(graph_of: Run) -> None:
    from planish.capture.torch import translate

    graph = graph_of(lambda x: torch.view_as_real((x * x.conj() + 1)[1:].t()), [numbers(3, 4)])
    assert not [n for n in translate(graph, host=False).graph.nodes() if n.op.name == "host"]


def test_training_through_a_spectrum() -> None:
    def loss(x: Any, w: Any) -> Any:
        return (torch.fft.irfft(torch.fft.rfft(x) * w, 8) ** 2).sum()

    x, w = torch.randn(2, 8, requires_grad=True), numbers(5).requires_grad_()
    expected = torch.autograd.grad(loss(x, w), [x, w])
    made = torch.autograd.grad(torch.compile(loss, backend="planish")(x, w), [x, w])
    for a, b in zip(made, expected):
        torch.testing.assert_close(a, b)


def test_gradient_by_a_complex_number() -> None:
    def f(x: Any) -> Any:
        return torch.view_as_real(x * 1j + (2 - 1j)).sum()

    x = numbers(3, 4).requires_grad_()
    expected, = torch.autograd.grad(f(x), [x])
    torch.testing.assert_close(torch.autograd.grad(torch.compile(f, backend="planish")(x), [x])[0], expected)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_short_transforms_are_native_and_as_exact(norm: str, graph_of: Run, run: Run) -> None:
    from planish.capture.torch import translate

    def transformed(x: Any) -> Any:
        spectrum = torch.fft.rfftn(x, norm=norm)
        return spectrum, torch.fft.ifft(spectrum, norm=norm), torch.fft.irfft(spectrum, 7, norm=norm)

    x = torch.randn(3, 4, 7)
    nodes = translate(graph_of(transformed, [x]), host=False).graph.nodes()
    assert "host" not in {n.op.name for n in nodes}
    for made, eager, exact in zip(run(transformed, x), transformed(x), transformed(x.double())):
        assert (made - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-7


def test_long_transforms_are_torchs(graph_of: Run, run: Run) -> None:
    x = torch.randn(2, 100)
    torch.testing.assert_close(run(lambda x: torch.fft.rfft(x), x)[0], torch.fft.rfft(x))
