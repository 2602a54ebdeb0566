"""linspace and logspace, taken apart so that they round where torch's kernels do.

torch's own decompositions round elsewhere, which shows in bfloat16 and where whole numbers are cut off: its
kernels bring both ends to the result's dtype first, and have a step of that dtype.
"""

from __future__ import annotations

from typing import Any


def spaces() -> dict[Any, Any]:
    """Overload -> decomposition; torch's own for complex numbers and where there is no step."""
    import torch
    from torch import _refs as refs

    def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **options: Any) -> Any:
        dtype = dtype or torch.get_default_dtype()
        if steps < 2 or dtype.is_complex:
            return refs.linspace(start, end, steps, dtype=dtype, **options)
        wide = dtype if dtype.is_floating_point else torch.float64
        return _line(start, end, steps, dtype, wide).to(dtype)

    def logspace(
        start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None, **options: Any
    ) -> Any:
        dtype = dtype or torch.get_default_dtype()
        if steps < 1 or dtype.is_complex:
            return refs.logspace(start, end, steps, base, dtype=dtype, **options)
        if steps == 1:
            return torch.pow(base, _scalar(start, torch.float64)).to(dtype).reshape(1)
        wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else torch.float64
        return torch.pow(base, _line(start, end, steps, dtype, wide).to(torch.float64)).to(dtype)

    both = ((torch.ops.aten.linspace, linspace), (torch.ops.aten.logspace, logspace))
    of = {getattr(packet, name): function for packet, function in both for name in packet.overloads()}
    return {op: function for op, function in of.items() if not op._schema.is_mutable}


def _scalar(x: Any, dtype: Any) -> Any:
    import torch

    return x.to(dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype)


def _line(start: Any, end: Any, steps: Any, dtype: Any, wide: Any) -> Any:
    """Values from start to end, which are rounded to a dtype, counted in a wide one from the nearer."""
    import torch

    first, last = (_scalar(x, dtype).to(wide) for x in (start, end))
    step = (last - first) / (steps - 1)
    place = torch.arange(steps)
    back = (steps - 1 - place).to(wide)
    return torch.where(place < steps // 2, first + step * place.to(wide), last - step * back)
