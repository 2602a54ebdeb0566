"""How operands narrower than their sum are multiplied: what an instruction takes, how panels lie for it.

In: the dtypes of two operands, and what the machine has instructions for. Out: a `Product`, which the tile of
a contraction names (`packed by pairs`); code generation has the instructions (`codegen/llvm/products.py`).

| product | operands | one instruction adds up | panels of the right operand |
|---|---|---|---|
| numbers | any | a step of k, for a vector of columns | `[panel, k, lane]` |
| pairs | int16, bfloat16 | two steps of k, for a vector of columns | `[panel, k/2, lane, 2]` |

Products of int16 are always taken in pairs, for nothing is lost where there is no instruction. Those of
bfloat16 are where the machine has one, and not in strict numerics: the sum of a pair is rounded otherwise
than one product after another, and denormals may count as 0 (docs/semantics.md).
"""
from __future__ import annotations

from dataclasses import dataclass

from planish.types import BFLOAT16, INT8, INT16, DType

PAIRED = (INT16, INT8)  # always multiplied in pairs: int16, on the right also bytes in panels of ours


@dataclass(frozen=True)
class Product:
    """`operands`: dtypes there are instructions for. `pair`: neighbours along k that lie side by side in
    panels."""

    name: str
    operands: tuple[DType, ...]
    pair: int


NUMBERS = Product("numbers", (), 1)
PAIRS = Product("pairs", (*PAIRED, BFLOAT16), 2)
PRODUCTS = {p.name: p for p in (NUMBERS, PAIRS)}


def product_of(left: DType, right: DType, instructions: frozenset[str]) -> Product:
    """How elements of these dtypes are multiplied on a machine that has such `instructions` for bfloat16."""
    if left in PAIRED:
        return PAIRS
    is_known = left is right is BFLOAT16 and PAIRS.name in instructions
    return PAIRS if is_known else NUMBERS
