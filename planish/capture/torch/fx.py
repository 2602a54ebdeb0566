"""Reading the nodes of an FX graph: what kinds of values they stand for, and whose line they come from."""

from __future__ import annotations

import operator
import re
from typing import Any

from planish.ir import Location

EFFECTS = "with_effects"  # AOTAutograd's: (token, overload, *arguments) -> (next token, *results)


def is_overload(target: Any) -> bool:
    import torch

    return isinstance(target, torch._ops.OpOverload)


def is_control(target: Any) -> bool:
    """Whether it is a higher-order operator, one that takes graphs."""
    import torch

    return isinstance(target, torch._ops.HigherOrderOperator)


def is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def is_complex(value: Any) -> bool:
    return is_tensor(value) and value.is_complex()


def is_symbolic_int(value: Any) -> bool:
    import torch

    return isinstance(value, torch.SymInt)


def is_symbolic_number(value: Any) -> bool:
    """Whether it is a float or a truth that only the run knows."""
    import torch

    return isinstance(value, (torch.SymFloat, torch.SymBool))


def used_results(node: Any) -> list[int]:
    """Which of a call's results something uses; the first where nothing does."""
    values = flat(node.meta.get("val"))
    users = list(node.users)
    if not users or not all(user.target is operator.getitem for user in users):
        return [i for i, value in enumerate(values) if value is not None] or [0]
    return sorted({user.args[1] for user in users if user.users}) or [0]


def symbols_in_shape(tensor: Any) -> set[str]:
    """torch's symbols in how a tensor lies in memory."""
    import torch

    if tensor.layout is not torch.strided or not tensor._has_symbolic_sizes_strides:
        return set()
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return {str(s) for d in sizes if is_symbolic_int(d) for s in d.node.expr.free_symbols}


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else [value]


def base_of(node: Any) -> Any:
    """What a chain of views looks at."""
    while (source := _viewed(node)) is not None and _shares(node, source):
        node = source
    return node


def _viewed(node: Any) -> Any:
    """What a view, or one of several views (`unbind`, `split`), is of; None for any other node."""
    call = node.args[0] if node.target is operator.getitem else node
    is_view = is_overload(getattr(call, "target", None)) and call.target.is_view and call.args
    return call.args[0] if is_view else None


def _shares(node: Any, other: Any) -> bool:
    """Whether two FX nodes are tensors over the same memory."""
    a, b = node.meta.get("val"), getattr(other, "meta", {}).get("val")
    return a is not None and b is not None and is_tensor(a) and is_tensor(b) and a.dtype is b.dtype


_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)')


def location_of(node: Any) -> Location | None:
    """The innermost line of the user's program that an FX node comes from."""
    text = node.meta.get("stack_trace") or ""
    start = text.rfind('File "')
    while start >= 0:
        if last := _FRAME.match(text, start):
            return Location(last["file"], int(last["line"]), last["function"].strip())
        start = text.rfind('File "', 0, start)
    return None
