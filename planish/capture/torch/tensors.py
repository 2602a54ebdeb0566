"""torch's tensors as NumPy's arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_array(tensor: Any) -> np.ndarray:
    """The array over a CPU tensor's memory, with its strides; a copy where the tensor stands for other values
    than its memory has (lazy conjugates and negatives, zeros without memory). Complex numbers are pairs along
    a last axis."""
    import torch

    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_neg():
        plain = plain.resolve_neg()
    if plain._is_zerotensor():
        plain = plain.clone()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(_BFLOAT16)
    return plain.numpy()


def constant_array(tensor: Any) -> np.ndarray:
    """The array over a tensor that is there while programs are traced with tensors that are not."""
    from torch._C import _len_torch_dispatch_stack
    from torch._ops import _len_torch_dispatch_stack_pre_dispatch
    from torch.utils._python_dispatch import _disable_current_modes

    if not (_len_torch_dispatch_stack() or _len_torch_dispatch_stack_pre_dispatch()):
        return to_array(tensor)
    with _disable_current_modes():
        return to_array(tensor)


def to_tensor(array: np.ndarray) -> Any:
    """The tensor over an array's memory, which it keeps alive."""
    import torch

    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_complex(pairs: Any) -> Any:
    """The complex tensor over the memory of one of pairs."""
    import torch

    if not pairs.numel():  # its strides may be any
        pairs = pairs.new_empty(pairs.shape)
    return torch.view_as_complex(pairs)
