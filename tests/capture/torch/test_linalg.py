"""Factorizations and solvers of small matrices without a host op, against eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
L = torch.linalg

Cases = list[Callable[..., Any]]


def hold(run: Any, cases: Cases, *tensors: Any, tolerance: float = 2e-6) -> None:
    """float32 results are float64's, rounded; indices are equal."""

    def program(*given: Any) -> list[Any]:
        return [one for case in cases for one in case(*given)]

    for result, exact in zip(run(program, *tensors, host=False), program(*[t.double() for t in tensors])):
        assert result.shape == exact.shape
        if result.is_floating_point():
            assert result.dtype is torch.float32
            torch.testing.assert_close(result, exact.float(), rtol=tolerance, atol=tolerance)
        else:
            assert torch.equal(result, exact)


def matrices(*shape: int) -> Any:
    a = torch.randn(*shape)
    a[..., 0, 0] = 0.0  # asks for an exchange of rows
    return a


@pytest.mark.parametrize("n", [1, 6])
def test_systems(run: Any, n: int) -> None:
    a, b = matrices(2, n, n) + 2 * torch.eye(n).flip(0), torch.randn(2, n, 3)
    cases: Cases = [
        lambda a, b: [*L.lu_factor_ex(a)],
        lambda a, b: [*L.lu(a)],
        lambda a, b: [*L.inv_ex(a)],
        lambda a, b: [L.solve_ex(a, b)[0], L.solve_ex(a, b.mT, left=False)[0], L.solve_ex(a, b[..., 0])[0]],
        lambda a, b: [L.lu_solve(*L.lu_factor_ex(a)[:2], b, adjoint=adjoint) for adjoint in (False, True)],
        lambda a, b: [L.det(a), *L.slogdet(a), torch.logdet(a @ a.mT)],
    ]
    hold(run, cases, a, b, tolerance=2e-5)


@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 5), (1, 4)])
def test_factors_of_any_matrix(run: Any, shape: tuple[int, ...]) -> None:
    cases: Cases = [
        lambda a: [*L.lu_factor_ex(a)],
        lambda a: [*L.qr(a), *L.qr(a, mode="complete")],
        lambda a: [
            torch.ormqr(*torch.geqrf(a), a if left else a.mT, left, transpose)
            for left in (False, True) for transpose in (False, True)],
        lambda a: [*torch.geqrf(a), L.householder_product(*torch.geqrf(a[..., : min(a.shape[-2:])]))],
    ]  # fmt: skip
    hold(run, cases, matrices(*shape))


def test_triangles(run: Any) -> None:
    a, b = torch.randn(2, 6, 6) + 4 * torch.eye(6), torch.randn(2, 6, 3)
    cases: Cases = [
        lambda a, b: [
            L.solve_triangular(a, b if left else b.mT, upper=upper, left=left, unitriangular=unit)
            for upper in (False, True) for left in (False, True) for unit in (False, True)],
        lambda a, b: [*torch.triangular_solve(b, a, upper=False, transpose=True)],
    ]  # fmt: skip
    hold(run, cases, a.tril() / 4 + a.triu(1) / 4, b)


def test_cholesky(run: Any) -> None:
    a = torch.randn(3, 6, 6)
    spd = a @ a.mT + torch.eye(6)
    cases: Cases = [
        lambda a: [*L.cholesky_ex(a), *L.cholesky_ex(a, upper=True), torch.cholesky(a)],
        lambda a: [torch.cholesky_inverse(L.cholesky_ex(a)[0])],
        lambda a: [torch.cholesky_solve(a[:, :, :2], L.cholesky_ex(a)[0])],
    ]
    hold(run, cases, spd)


def test_what_can_not_be_factored(run: Any) -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    lu, pivots, info = run(lambda a: [*L.lu_factor_ex(a)], singular, host=False)
    assert info == 2 and torch.equal(lu, L.lu_factor_ex(singular)[0]) and pivots.tolist() == [2, 2]
    assert run(lambda a: [L.cholesky_ex(a)[1]], indefinite, host=False)[0] == 2
    with pytest.raises(RuntimeError, match="positive"):
        run(lambda a: [torch.cholesky(a)], indefinite, host=False)


def test_empty_matrices(run: Any) -> None:
    cases: Cases = [lambda a: [L.det(a), *L.slogdet(a), *L.inv_ex(a), *L.cholesky_ex(a), *L.lu_factor_ex(a)]]
    hold(run, cases, torch.randn(2, 0, 0))


def test_large_matrices_are_lapacks(graph_of: Any) -> None:
    from planish.capture.torch import translate

    graph = translate(graph_of(lambda a: [L.det(a)], [torch.randn(64, 64)])).graph
    assert any(n.op.name == "host" for n in graph.nodes())


def test_gradients(same: Any) -> None:
    a, b = torch.randn(4, 4), torch.randn(4, 2)

    def gradients(of: Callable[..., Any]) -> Any:
        x = (a + 3 * torch.eye(4)).requires_grad_()
        y = b.clone().requires_grad_()
        return list(torch.autograd.grad(of(x, y), [x, y]))

    def loss(a: Any, b: Any) -> Any:
        spd = a @ a.mT + torch.eye(4)
        return L.solve_ex(a, b)[0].sum() + L.slogdet(a)[1] + L.qr(a)[1].sum() + L.cholesky_ex(spd)[0].sum()

    compiled = torch.compile(loss, backend="planish", options={"host": False})
    same(gradients(compiled), gradients(loss), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [4, 40])
@pytest.mark.parametrize("by_rows", [True, False])
def test_gradients_of_determinants_by_layout(same: Any, by_rows: bool, n: int) -> None:
    """torch factors the transpose of a matrix that lies by rows; its backward pass reads those factors."""
    a = torch.randn(n, n) / n + torch.eye(n).flip(0)

    def gradient(of: Callable[..., Any]) -> Any:
        x = (a.clone() if by_rows else a.clone().mT).requires_grad_()
        return torch.autograd.grad(of(x), x)[0]

    def loss(a: Any) -> Any:
        return L.slogdet(a)[1] + L.det(a)

    same(gradient(torch.compile(loss, backend="planish")), gradient(loss), rtol=1e-3, atol=1e-4)
