"""An ATen call as its translation sees it, and the table of translations.

A translation is registered under the overload's name and takes the call and the operator's arguments, in the
order of its schema, defaults filled in:

    @translates("aten.addmm.default")
    def addmm(call, bias, a, b, beta, alpha): ...

Tensors come as nodes, sizes as `Dim`s, dtypes as `DType`s, lists as tuples; Python's numbers, and numbers
that are known only at run time (`Number`), as they are. What it returns has the dtype and the shape that
torch has worked out (`call.type`): the translator holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from planish.capture.torch.promotion import Number, promote
from planish.errors import UnsupportedOp
from planish.ir import Location, Node, constant
from planish.ops.rules import ops
from planish.types import DType, Shape, TensorType

Translation = Callable[..., Any]

_TABLE: dict[str, Translation] = {}


def translates(*overloads: str) -> Callable[[Translation], Translation]:
    """Registers a translation for overloads by name, such as "aten.add.Tensor"."""

    def register(function: Translation) -> Translation:
        for name in overloads:
            if name in _TABLE:
                raise ValueError(f"two translations of {name}")
            _TABLE[name] = function
        return function

    return register


def find_translation(overload: str) -> Translation | None:
    return _TABLE.get(overload)


def supported_overloads() -> list[str]:
    """The overloads with a translation, by name."""
    return sorted(_TABLE)


@dataclass(frozen=True)
class Call:
    """One ATen call. `types` are the types of its results, None for a result that is no tensor; `checks` and
    `random_key` are the graph's: effects, and where random numbers come from. `memory_order(i)` says how
    operand i lies in torch's memory: its axes, slowest first, where they fill a block from its beginning.
    `used` are the results that anything reads; None: all."""

    overload: str
    types: tuple[TensorType | None, ...]
    location: Location | None
    checks: list[Node] = field(default_factory=list)
    random_key: Callable[[], Node] | None = None
    memory_order: Callable[[int], tuple[int, ...] | None] = lambda i: None
    used: tuple[int, ...] | None = None

    @property
    def type(self) -> TensorType:
        """The type of the (first) result."""
        first = self.types[0] if self.types else None
        if first is None:
            raise UnsupportedOp(f"{self.where}: its result is no tensor")
        return first

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def where(self) -> str:
        return f"{self.overload} at {self.location}" if self.location else self.overload

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedOp(f"{self.where}: {reason}")

    def check(self, condition: Node, error: str, message: str) -> None:
        """A condition (bool, of any shape) that is to hold everywhere, else `error` is raised."""
        axes = tuple(range(condition.ndim))
        whole = ops.reduce_all(condition, axes=axes) if axes else condition
        self.checks.append(ops.check(whole, error=error, message=message))

    def promoted(self, *operands: Any) -> list[Node]:
        """Operands in the dtype that torch computes them in, numbers as scalars."""
        dtype = promote(*operands)
        return [as_node(x, dtype) for x in operands]

    def uses(self, result: int) -> bool:
        return self.used is None or result in self.used

    def key(self) -> Node:
        """A key u32[2] for the random numbers of this call."""
        if self.random_key is None:
            self.refuse("random numbers are not supported here")
        return self.random_key()


# --- what every family uses


def number(value: Any, dtype: DType) -> Node:
    """A scalar constant."""
    return constant(np.asarray(value).astype(dtype.numpy))


def cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else ops.cast(x, dtype=dtype)


def as_node(x: Any, dtype: DType) -> Node:
    """A tensor or a number as a node of this dtype."""
    if isinstance(x, Node):
        return cast(x, dtype)
    if isinstance(x, Number):
        return cast(x.node, dtype)
    return number(x, dtype)


def reshaped(x: Node, shape: Sequence[Any]) -> Node:
    return x if tuple(shape) == x.shape else ops.reshape(x, shape=tuple(shape))


def broadcast(x: Node, shape: Sequence[Any]) -> Node:
    return x if tuple(shape) == x.shape else ops.broadcast_to(x, shape=tuple(shape))


def transposed(x: Node, axes: Sequence[int]) -> Node:
    return x if tuple(axes) == tuple(range(x.ndim)) else ops.transpose(x, axes=tuple(axes))


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the end where it is negative; a scalar counts as having one."""
    return axis + max(rank, 1) if axis < 0 else axis


def axes_of(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Axes counted from 0; all of them where none is named."""
    if axes is None or (not isinstance(axes, int) and not axes):
        return tuple(range(rank))
    given = (axes,) if isinstance(axes, int) else axes
    return tuple(axis_of(a, rank) for a in given) if rank else ()
