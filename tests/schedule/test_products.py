"""What a tile says of its products: parsed, and verified against its operands and panels."""
from __future__ import annotations

import pytest

from planish.errors import ParseError, VerificationError
from planish.schedule.products import NUMBERS, PAIRS, TILES, product_of
from planish.schedule.text import parse_kernel
from planish.schedule.verify import verify_kernel
from planish.types import BFLOAT16, FLOAT16, FLOAT32, INT8, INT16
from tests.schedule.kernels import EXAMPLES

PRODUCT = {e.name: e.text for e in EXAMPLES if " by " in e.text}

FAULTS = [
    ("pairs", "x: bf16", "x: f16", "what is multiplied by pairs is two operands, of i16 or i8 or bf16"),
    ("pairs", " packed", "", "products by pairs want panels [.., 4, 2] on the right"),
    ("pairs", "vectors 1", "vectors 2", "products by pairs want panels [.., 8, 2] on the right"),
    ("tiles", "x: bf16", "x: i16", "what is multiplied by tiles is two operands, of bf16"),
    ("tiles", "rows 32", "rows 16", "products by tiles are in blocks of rows 32 vectors 2 lanes 16"),
    ("tiles", "m(s0)", "m()", "products by tiles are in blocks of rows 32 vectors 2 lanes 16"),
    ("tiles", "a0 in 64", "a0 in 33", "products by tiles sum over whole steps of 32, not over 33"),
    ("tiles", "x[s0, a0]", "x[(s0 // 2), a0]", "products by tiles read rows of x that are not evenly apart"),
    ("tiles", "x[s0, a0]", "x[s0, 63 - a0]", "products by tiles read x along a0, where it does not lie"),
]


@pytest.mark.parametrize(("name", "old", "new", "fault"), FAULTS)
def test_operands_and_panels_are_as_the_product_wants_them(name: str, old: str, new: str, fault: str) -> None:
    assert old in PRODUCT[name]
    with pytest.raises(VerificationError) as caught:
        verify_kernel(parse_kernel(PRODUCT[name].replace(old, new)))
    assert fault in str(caught.value)


def test_a_product_that_there_is_not() -> None:
    with pytest.raises(ParseError, match="not by threes"):
        parse_kernel(PRODUCT["pairs"].replace("by pairs", "by threes"))


def test_int16_is_multiplied_in_pairs_on_every_machine_bfloat16_where_there_is_an_instruction() -> None:
    assert product_of(INT16, INT16, frozenset()) is product_of(INT16, INT8, frozenset()) is PAIRS
    for known, form in ((frozenset(), NUMBERS), (frozenset({"pairs"}), PAIRS)):
        assert product_of(BFLOAT16, BFLOAT16, known) is form
    both = frozenset({"pairs", "tiles"})
    assert product_of(BFLOAT16, BFLOAT16, both) is PAIRS
    assert product_of(BFLOAT16, BFLOAT16, frozenset({"pairs"}), by_tiles=True) is PAIRS
    assert product_of(BFLOAT16, BFLOAT16, both, by_tiles=True) is TILES
    for left, right in ((BFLOAT16, FLOAT32), (FLOAT16, FLOAT16), (FLOAT32, FLOAT32)):
        assert product_of(left, right, both, by_tiles=True) is NUMBERS
