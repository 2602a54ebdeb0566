"""Operators on strings, and ImageDecoder: host functions, whose results may have sizes that the run says.

Operators that merely move or compare strings have their ordinary translations (planish/ops/host_text.py).
"""
from __future__ import annotations

import re

from planish.capture.onnx.call import Call, translates
from planish.ir import Node
from planish.ops.host_images import require_pillow
from planish.ops.host_text import compiled
from planish.types import BOOL, INT64, STRING, UINT8, TensorType, broadcast_shapes

CASES = ("NONE", "LOWER", "UPPER")
PIXEL_FORMATS = ("RGB", "BGR", "Grayscale")


@translates("StringNormalizer", since=10)
def string_normalizer(call: Call) -> Node:
    case = call.attribute("case_change_action", "NONE")
    if case not in CASES:
        call.invalid(f"case_change_action {case!r} is not one of {', '.join(CASES)}")
    if call.rank() not in (1, 2):
        call.invalid(f"its operand has {call.rank()} axes, not 1 or 2")
    result = TensorType(STRING, (*[1] * (call.rank() - 1), call.fresh_size()))
    return call.host("string_normalize", [call[0]], result, case=case,
                     is_case_sensitive=call.flag("is_case_sensitive"),
                     stopwords=call.attribute("stopwords", ()))


@translates("StringSplit", since=20)
def string_split(call: Call) -> tuple[Node, ...]:
    """Without a delimiter, or by an empty one, at white space. maxsplit is the number of cuts, any if it is
    not given."""
    parts = TensorType(STRING, (*call.shape(), call.fresh_size()))
    return call.host_results("string_split", [call[0]], parts, TensorType(INT64, call.shape()),
                             delimiter=call.attribute("delimiter", "") or None,
                             maxsplit=call.attribute("maxsplit", -1))


@translates("StringConcat", since=20)
def string_concat(call: Call) -> Node:
    shape = broadcast_shapes(call.shape(0), call.shape(1))
    return call.host("string_concat", [call[0], call[1]], TensorType(STRING, shape))


@translates("RegexFullMatch", since=20)
def regex_full_match(call: Call) -> Node:
    pattern = call.attribute("pattern", "")
    try:
        compiled(pattern)
    except re.error as error:
        call.refuse(f"pattern {pattern!r}: {error}", "write it as Python's re has it")
    return call.host("regex_full_match", [call[0]], TensorType(BOOL, call.shape()), pattern=pattern)


@translates("ImageDecoder", since=20)
def image_decoder(call: Call) -> Node:
    pixel_format = call.attribute("pixel_format", "RGB")
    if pixel_format not in PIXEL_FORMATS:
        call.invalid(f"pixel_format {pixel_format!r} is not one of {', '.join(PIXEL_FORMATS)}")
    require_pillow()
    channels = 1 if pixel_format == "Grayscale" else 3
    result = TensorType(UINT8, (call.fresh_size(), call.fresh_size(), channels))
    return call.host("decode_image", [call[0]], result, pixel_format=pixel_format)
