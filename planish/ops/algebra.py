"""Python's operators for anything ops can be applied to: graph nodes and rule patterns."""
from __future__ import annotations

from typing import Any

from planish.ops.record import get_op


class Algebra:
    """`x * 2 + y` builds mul and add. Comparison operators build ops too, except == and !=, which stay
    Python's own (identity), since nodes are dict keys: write `eq(x, y)`."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return get_op("add")(self, other)

    def __radd__(self, other: Any) -> Any:
        return get_op("add")(other, self)

    def __sub__(self, other: Any) -> Any:
        return get_op("sub")(self, other)

    def __rsub__(self, other: Any) -> Any:
        return get_op("sub")(other, self)

    def __mul__(self, other: Any) -> Any:
        return get_op("mul")(self, other)

    def __rmul__(self, other: Any) -> Any:
        return get_op("mul")(other, self)

    def __truediv__(self, other: Any) -> Any:
        return get_op("div")(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return get_op("div")(other, self)

    def __neg__(self) -> Any:
        return get_op("neg")(self)

    def __lt__(self, other: Any) -> Any:
        return get_op("lt")(self, other)

    def __le__(self, other: Any) -> Any:
        return get_op("le")(self, other)

    def __gt__(self, other: Any) -> Any:
        return get_op("gt")(self, other)

    def __ge__(self, other: Any) -> Any:
        return get_op("ge")(self, other)

    def __and__(self, other: Any) -> Any:
        return get_op("bitwise_and")(self, other)

    def __or__(self, other: Any) -> Any:
        return get_op("bitwise_or")(self, other)

    def __xor__(self, other: Any) -> Any:
        return get_op("bitwise_xor")(self, other)

    def __invert__(self) -> Any:
        return get_op("bitwise_not")(self)

    def __matmul__(self, other: Any) -> Any:
        return get_op("matmul")(self, other)
