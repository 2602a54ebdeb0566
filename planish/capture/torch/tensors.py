"""torch's tensors as NumPy's arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_array(tensor: Any) -> np.ndarray:
    """The array over a CPU tensor's memory, with its strides; a copy where the tensor stands for other values
    than its memory has (lazy negatives, zeros without memory)."""
    import torch

    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_neg():
        plain = plain.resolve_neg()
    if plain._is_zerotensor():
        plain = plain.clone()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(_BFLOAT16)
    return plain.numpy()


def constant_array(tensor: Any) -> np.ndarray:
    """The array over a tensor that is there while programs are traced with tensors that are not."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return to_array(tensor)


def to_tensor(array: np.ndarray) -> Any:
    """The tensor over an array's memory, which it keeps alive."""
    import torch

    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
