"""Which of torch's decompositions are used: those of operators without a translation here.

An overload with a translation is never decomposed: ours keep softmax, norms, attention, activations and
convolutions whole. For the rest torch's own are taken, which work in float32 where torch's kernels do; of
operators that torch's dispatcher itself takes apart, those parts (the Python versions beside them write in
place).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from planish.capture.torch.call import find_translation
from planish.capture.torch.spaces import spaces

# torch's decomposition gives other values than its kernel, or another order of random numbers.
# Some write in place.
REFUSED = frozenset({"aten.complex.default", "aten.polar.default"})


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Any]:
    """Overload -> torch's decomposition, as aot_autograd and torch.export take it."""
    import torch._decomp
    import torch._refs  # noqa: F401
    from torch._decomp import decomposition_table

    theirs = {op: function for op, function in decomposition_table.items() if _is_used(op)}
    return {**theirs, **_counting_axes_from_0(), **spaces()}


def _counting_axes_from_0() -> dict[Any, Any]:
    """torch's tracing gives another shape for a negative axis of these."""
    import torch

    def counted_from_0(op: Any) -> Callable[..., Any]:
        def decomposed(x: Any, *args: Any, **keywords: Any) -> Any:
            given = dict(zip((a.name for a in op._schema.arguments[1:]), args)) | keywords
            axis = given.get("dim")
            return NotImplemented if axis is None or axis >= 0 else op(x, **{**given, "dim": axis + x.ndim})

        return decomposed

    unique = (torch.ops.aten.unique_consecutive.default, torch.ops.aten.unique_dim.default)
    return {op: counted_from_0(op) for op in unique}


def _is_used(op: Any) -> bool:
    import torch

    name = str(op)
    if not isinstance(op, torch._ops.OpOverload):
        return False  # higher-order operators
    if find_translation(name) is not None or name in REFUSED or op._schema.is_mutable:
        return False
    return not torch_composes(op)


def torch_composes(op: Any) -> bool:
    """Whether torch's dispatcher takes the operator apart by itself, having no kernel for it."""
    import torch

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(op.name(), "CompositeImplicitAutograd") and not has(op.name(), "CPU")
