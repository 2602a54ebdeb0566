"""ATen's orthogonal polynomials: by their recurrences, for all elements at once up to the greatest degree.

Each is p_0 = 1, p_1, and p_(k+1) from p_k and p_(k-1), DLMF 18.9; degrees below 0 give 0. Computed in float64
and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, translates
from planish.capture.torch.loops import repeat_while
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import FLOAT64, INT64

Recurrence = Callable[[Node, Node, Node, Node], Node]  # (k, x, p_k, p_(k-1)) -> p_(k+1)
First = Callable[[Node], Node]


def evaluated(n: Node, x: Node, first: First, following: Recurrence) -> Node:
    """p_n(x), elementwise; n is int64. What has left the range of float64 is left as it is."""
    one = broadcast(number(1, FLOAT64), x.shape)

    def goes_on(k: Node, q: Node, p: Node, n: Node, x: Node) -> Node:
        return ops.bitwise_and(ops.lt(k, n), ops.is_finite(q))

    def step(k: Node, q: Node, p: Node, n: Node, x: Node) -> tuple[Node, Node, Node]:
        going = goes_on(k, q, p, n, x)
        after = following(cast(k, FLOAT64), x, q, p)
        return k + 1, ops.select(going, after, q), ops.select(going, q, p)

    _, result, _ = repeat_while(goes_on, step, (number(1, INT64), first(x), one), (n, x))
    result = ops.select(ops.eq(n, 0), one, result)
    return ops.select(ops.lt(n, 0), number(0, FLOAT64), result)


def _polynomial(first: First, following: Recurrence, moved: First) -> Callable[..., Node]:
    def translation(call: Call, x: Any, n: Any) -> Node:
        degree = broadcast(cast(as_node(n, FLOAT64), INT64), call.shape)
        place = broadcast(moved(as_node(x, FLOAT64)), call.shape)
        return cast(evaluated(degree, place, first, following), call.dtype)

    return translation


def _chebyshev(k: Node, x: Node, q: Node, p: Node) -> Node:
    return 2 * x * q - p


_SAME: First = lambda x: x  # noqa: E731
_FAMILIES: dict[str, tuple[First, Recurrence, First]] = {
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, q, p: 2 * x * q - 2 * k * p, _SAME),
    "hermite_polynomial_he": (_SAME, lambda k, x, q, p: x * q - k * p, _SAME),
    "laguerre_polynomial_l": (
        lambda x: 1 - x, lambda k, x, q, p: ((2 * k + 1 - x) * q - k * p) / (k + 1), _SAME),
    "legendre_polynomial_p": (_SAME, lambda k, x, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1), _SAME),
}
for _kind, _first in {
    "t": _SAME, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1,
}.items():
    _FAMILIES[f"chebyshev_polynomial_{_kind}"] = (_first, _chebyshev, _SAME)
    _FAMILIES[f"shifted_chebyshev_polynomial_{_kind}"] = (_first, _chebyshev, lambda x: 2 * x - 1)

for _name, _parts in _FAMILIES.items():
    translates(*(f"aten.special_{_name}.{kind}" for kind in ("default", "x_scalar", "n_scalar")))(
        _polynomial(*_parts))
