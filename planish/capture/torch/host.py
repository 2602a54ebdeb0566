"""Operators without a native form, as host ops: torch itself runs them, between native segments of the graph.

A call is kept as the overload's name and a template of its arguments, hashable, in which operands stand by
their number and sizes as `Dim`s. Random operators take a key as a last operand that they do not read: two
calls of one operator are two calls, and none is folded. Operators that only do something (raise, print) hand
on AOTAutograd's token, an empty tensor, which keeps them in order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from planish.capture.torch.complex import Complex
from planish.capture.torch.promotion import Number, foreign_dtypes
from planish.capture.torch.tensors import to_array, to_complex, to_tensor
from planish.errors import UnsupportedOp
from planish.ir import Node
from planish.ops.host import HostFunction, host_function, stated_type
from planish.ops.record import get_op
from planish.types import DType, Expr, TensorType, dtype_of

Template = tuple[Any, ...]
PLAIN = (bool, int, float, str, type(None))


def can_host(overload: Any) -> bool:
    """Whether torch can run an operator for us: one that writes to none of its operands, and does not ask how
    they lie in memory, which on the host is another way."""
    import torch

    if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
        return False
    return not any(word in str(overload) for word in ("as_strided", "resize"))


def is_random(overload: Any) -> bool:
    import torch

    return torch.Tag.nondeterministic_seeded in overload.tags


def hosted(
    overload: Any, arguments: Sequence[Any], results: Mapping[int, TensorType], keys: Sequence[Node]
) -> Any:
    """The host op of a call; `arguments` are the schema's, in order, `results` those that something uses."""
    operands: list[Node] = []
    template = tuple(_template(a, operands) for a in arguments)
    parameters = (("overload", str(overload)), ("template", template), ("used", tuple(results)))
    function = HostFunction("torch_call", parameters)
    attributes = get_op("host").make_attributes({"function": function, "results": tuple(results.values())})
    if not operands and not keys:
        raise UnsupportedOp(f"{overload} takes no tensor")
    return Node.apply_op(get_op("host"), [*operands, *keys], attributes)


def effect(overload: Any, arguments: Sequence[Any], token: Node) -> Node:
    """The host op of a call that gives nothing: the next token."""
    operands: list[Node] = []
    template = tuple(_template(a, operands) for a in arguments)
    function = HostFunction("torch_effect", (("overload", str(overload)), ("template", template)))
    attributes = get_op("host").make_attributes({"function": function, "results": (token.tensor,)})
    return Node.apply_op(get_op("host"), [*operands, token], attributes)


def said(number: Node, size: Expr) -> Node:
    """The host op that says a size: the value of a scalar."""
    attributes = {"function": HostFunction("sizes"), "results": (stated_type(size),)}
    return Node.apply_op(get_op("host"), [number], get_op("host").make_attributes(attributes))


def _template(value: Any, operands: list[Node]) -> Template:
    if isinstance(value, (Node, Number, Complex)):
        operands.append(value if isinstance(value, Node) else value.node)
        kind = "tensor" if isinstance(value, Node) else type(value).__name__.lower()
        return (kind, len(operands) - 1)
    if isinstance(value, complex):
        return ("pair", value.real, value.imag)
    if isinstance(value, DType):
        return ("dtype", value.name)
    if str(value).startswith("torch.complex"):
        return ("foreign", str(value).removeprefix("torch."))
    if isinstance(value, tuple):
        return ("list", *(_template(v, operands) for v in value))
    if isinstance(value, (*PLAIN, Expr)):
        return ("value", value)
    return ("default",)  # device, layout, memory format: the CPU's, dense, contiguous


@host_function("torch_call")
def torch_call(*arrays: np.ndarray, overload: str, template: Template, used: tuple[int, ...]) -> Any:
    """Run an overload by name, for some of its results."""
    results = list(_flat(_called(arrays, overload, template)))
    return tuple(_array(results[i]) for i in used)


def _called(arrays: Sequence[np.ndarray], overload: str, template: Template) -> Any:
    import torch

    function = reduce(getattr, overload.split("."), torch.ops)
    tensors = [_tensor(a) for a in arrays]
    values = [_value(t, tensors) for t in template]
    given, options = [], {}
    for argument, value in zip(function._schema.arguments, values, strict=True):
        if argument.kwarg_only:
            options[argument.name] = value
        else:
            given.append(value)
    with torch.no_grad():
        return function(*given, **{k: v for k, v in options.items() if v is not None})


@host_function("torch_effect")
def torch_effect(*arrays: np.ndarray, overload: str, template: Template) -> Any:
    """Run an overload that gives nothing, and hand on the token."""
    _called(arrays[:-1], overload, template)
    return arrays[-1]


def _value(template: Template, tensors: Sequence[Any]) -> Any:
    kind, *rest = template
    if kind == "tensor":
        return tensors[rest[0]]
    read = _READ.get(kind)
    if read is not None:
        return read(*rest, tensors)
    if kind == "list":
        return [_value(t, tensors) for t in rest]
    return rest[0] if kind == "value" else None


def _foreign(name: str, tensors: Sequence[Any]) -> Any:
    import torch

    return getattr(torch, name)


_READ: dict[str, Callable[..., Any]] = {
    "number": lambda i, tensors: tensors[i].item(),
    "complex": lambda i, tensors: to_complex(tensors[i]),
    "pair": lambda real, imaginary, tensors: complex(real, imaginary),
    "dtype": lambda name, tensors: foreign_dtypes()[dtype_of(name)],
    "foreign": _foreign,
}


def _tensor(array: np.ndarray) -> Any:
    with warnings.catch_warnings():  # a read-only array is only read
        warnings.simplefilter("ignore")
        return to_tensor(np.require(array, requirements=["C", "A"]).reshape(array.shape))


def _array(tensor: Any) -> np.ndarray:
    return to_array(tensor.contiguous())


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, (list, tuple)):
        for r in results:
            yield from _flat(r)
    else:
        yield results
