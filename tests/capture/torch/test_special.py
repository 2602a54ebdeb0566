"""Special functions without a host op, against eager's in float64: the formulas here are nearer to that than
eager's own in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
S = torch.special

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 8.0, -2.0, 1e-8, float("inf"), float("-inf"), float("nan"), 100.0]
FUNCTIONS = [
    "digamma", "erfcx", "erfinv", "ndtri", "log_ndtr", "i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1",
    "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
    "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
    "airy_ai",
]  # fmt: skip
POLYNOMIALS = [
    *(f"{kind}chebyshev_polynomial_{letter}" for kind in ("", "shifted_") for letter in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip


def hold(name: str, result: Any, exact: Any, rtol: float, atol: float) -> None:
    limit = torch.finfo(result.dtype).max
    exact = torch.where(exact.abs() > limit, exact.sign() * float("inf"), exact)
    torch.testing.assert_close(
        result.double(), exact, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{name}: {m}"
    )


def against_float64(
    run: Any, cases: dict[str, Callable[..., Any]], *tensors: Any, **tolerance: float
) -> None:
    results = run(lambda *given: [case(*given) for case in cases.values()], *tensors, host=False)
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    for (name, case), result in zip(cases.items(), results):
        hold(name, result, case(*wide), **tolerance)


def test_functions(run: Any) -> None:
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(60) * 5, torch.rand(60) * 3 - 1, torch.rand(30) * 80])
    # eager's Bessel functions and Airy's are themselves within 1e-6 of the function only
    against_float64(run, {n: getattr(S, n) for n in FUNCTIONS}, x, rtol=1e-6, atol=2e-6)


def test_between_zeros_of_the_function_every_digit_counts(run: Any) -> None:
    cases = {n: getattr(S, n) for n in ("digamma", "erfcx", "erfinv", "i0e", "scaled_modified_bessel_k0")}
    against_float64(run, cases, torch.rand(100) * 0.9 + 0.05, rtol=7e-8, atol=0)
    against_float64(run, cases, torch.rand(100, dtype=torch.float64) * 0.9 + 0.05, rtol=1e-13, atol=0)


def test_bessel_functions_where_eager_is_not_near(run: Any) -> None:
    """J0(5.53488), Y1(5.42634) and Ai(-2.34492) to 16 digits by mpmath."""
    x = torch.tensor([5.53488, 5.42634, -2.34492], dtype=torch.float64)
    j, y, ai = run(lambda x: [S.bessel_j0(x), S.bessel_y1(x), S.airy_ai(x)], x, host=False)
    found = torch.stack([j[0], y[1], ai[2]])
    exact = torch.tensor([0.0050296378407907365, 0.001137364392142809, -0.004776974994001658], dtype=x.dtype)
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=0)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_polygamma(run: Any, n: int) -> None:
    x = torch.cat([torch.tensor([0.5, 1.0, -0.5, 1e-3, 90.0]), torch.rand(60) * 12 - 4])
    rtol = 2e-6  # of eager's trigamma in float64
    against_float64(run, {str(n): lambda x: torch.polygamma(n, x)}, x, rtol=rtol, atol=1e-7)


def test_zeta_and_incomplete_gamma(run: Any) -> None:
    a = torch.cat([torch.tensor([0.0, 1.0, 0.0, float("inf"), 2.0, -1.0, 3.0]), torch.rand(60) * 40])
    x = torch.cat([torch.tensor([1.0, 0.0, 0.0, 2.0, float("inf"), 2.0, -2.5]), torch.rand(60) * 40])
    cases = {"zeta": S.zeta, "gammainc": S.gammainc, "gammaincc": S.gammaincc}
    against_float64(run, cases, a, x, rtol=1e-6, atol=1e-12)


def test_polynomials(run: Any) -> None:
    n = torch.randint(-1, 12, (80,))
    x = torch.cat([torch.tensor([0.0, 1.0, -1.0, 3.0]), torch.rand(76) * 2.4 - 1.2])
    against_float64(run, {name: getattr(S, name) for name in POLYNOMIALS}, x, n, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_frexp(run: Any, same: Any, dtype: Any) -> None:
    x = torch.cat([torch.tensor([*SPECIAL, 1e-40, -3e-39]), torch.randn(30) * 1e3]).to(dtype)
    same(run(lambda x: list(torch.frexp(x)), x, host=False), list(torch.frexp(x)), rtol=0, atol=0)


def test_narrow_floats_round_once(run: Any) -> None:
    x = torch.rand(50, dtype=torch.bfloat16) * 4 + 0.1
    for result, case in zip(run(lambda x: [S.digamma(x), S.i0(x)], x, host=False), (S.digamma, S.i0)):
        assert torch.equal(result, case(x.double()).bfloat16())
