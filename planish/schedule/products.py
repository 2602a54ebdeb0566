"""How operands narrower than their sum are multiplied: what an instruction takes, how panels lie for it.

In: the dtypes of two operands, and what the machine has instructions for. Out: a `Product`, which the tile of
a contraction names (`packed by pairs`); code generation has the instructions (`codegen/llvm/products.py`).

| product | operands | one instruction adds up | panels of the right operand |
|---|---|---|---|
| numbers | any | a step of k, for a vector of columns | `[panel, k, lane]` |
| pairs | int16, bfloat16 | two steps of k, for a vector of columns | `[panel, k/2, lane, 2]` |
| tiles | bfloat16 | 32 steps of k, for 16 rows and 16 columns | the same, in whole 32s of k |

Products of int16 are always taken in pairs, for nothing is lost where there is no instruction. Those of
bfloat16 are where the machine has one, and not in strict numerics: the sum of a pair is rounded otherwise
than one product after another, and denormals may count as 0 (docs/semantics.md).
"""
from __future__ import annotations

from dataclasses import dataclass

from planish.types import BFLOAT16, INT8, INT16, Dim, DType

PAIRED = (INT16, INT8)  # always multiplied in pairs: int16, on the right also bytes in panels of ours


@dataclass(frozen=True)
class Product:
    """`operands`: dtypes there are instructions for. `pair`: neighbours along k that lie side by side in
    panels. `steps`: both operands have a whole number of so many along the innermost k, filled up with 0."""

    name: str
    operands: tuple[DType, ...]
    pair: int = 1
    steps: int = 1

    def filled(self, depth: Dim) -> Dim:
        """How many steps along the innermost k both operands have, with those they are filled up with."""
        return (depth + (self.steps - 1)) // self.steps * self.steps


NUMBERS = Product("numbers", ())
PAIRS = Product("pairs", (*PAIRED, BFLOAT16), pair=2)
TILES = Product("tiles", (BFLOAT16,), pair=2, steps=32)
PRODUCTS = {p.name: p for p in (NUMBERS, PAIRS, TILES)}

TILE_ROWS, TILE_BYTES = 16, 64  # of a tile register: 16 x 16 sums, or 16 x 32 numbers of an operand
BLOCK = 2 * TILE_ROWS, 2, 16    # rows, vectors and lanes of the sums that four of them hold


def product_of(left: DType, right: DType, instructions: frozenset[str], *, by_tiles: bool = False) -> Product:
    """How elements of these dtypes are multiplied on a machine that has such `instructions` for bfloat16;
    `by_tiles`: preferably by tiles."""
    if left in PAIRED:
        return PAIRS
    wanted = ((TILES, PAIRS) if by_tiles else (PAIRS,)) if left is right is BFLOAT16 else ()
    return next((p for p in wanted if p.name in instructions), NUMBERS)
