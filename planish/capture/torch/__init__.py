"""PyTorch programs, read into the graph IR: `translate(fx_module)` gives a `Captured`.

    translate.py        the walk over the FX graph
    inputs.py           its inputs; results.py its outputs; fx.py reads its nodes
    supported.py        what can be translated
    complex.py          complex numbers, as pairs
    scalars.py          numbers that only the run knows
    control.py          operators that take graphs
    host.py             what torch runs
    call.py             an ATen call as its translation sees it, and the table of translations
    captured.py         what is captured: the graph, and how arguments and results lie at its ends
    promotion.py        torch's dtypes and its rule for mixed operands
    sizes.py            SymInts to Dims
    layouts.py          tensors whose axes lie in another order
    tensors.py          tensors as arrays over the same memory, and back
    decompositions.py   which of torch's decompositions are used

The translations are tables, overload -> our ops, in files by family: pointwise, movement, strides, creation,
reductions, contractions, normalization, indexing, selection, counting, convolution, pooling, adaptive,
distances, attention, random, special, gamma, bessel, orthogonal, losses, linalg, qr, checks, spectral.
torch is loaded at the first call.
"""

from __future__ import annotations

from planish.capture.torch import (
    adaptive,
    attention,
    bessel,
    checks,
    contractions,
    convolution,
    counting,
    creation,
    distances,
    gamma,
    indexing,
    linalg,
    losses,
    movement,
    normalization,
    orthogonal,
    pointwise,
    pooling,
    qr,
    random,
    reductions,
    selection,
    special,
    spectral,
    strides,
)
from planish.capture.torch.call import supported_overloads
from planish.capture.torch.captured import Captured
from planish.capture.torch.decompositions import decompositions
from planish.capture.torch.tensors import to_array, to_tensor
from planish.capture.torch.translate import translate

__all__ = [
    "Captured",
    "adaptive",
    "attention",
    "bessel",
    "checks",
    "contractions",
    "convolution",
    "counting",
    "creation",
    "decompositions",
    "distances",
    "gamma",
    "indexing",
    "linalg",
    "losses",
    "movement",
    "normalization",
    "orthogonal",
    "pointwise",
    "pooling",
    "qr",
    "random",
    "reductions",
    "selection",
    "special",
    "spectral",
    "strides",
    "supported_overloads",
    "to_array",
    "to_tensor",
    "translate",
]
