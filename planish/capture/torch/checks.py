"""Assertions of a program on its values: effects that raise."""

from __future__ import annotations

import linecache

from planish.capture.torch.call import Call, cast, translates
from planish.ir import Location, Node
from planish.types import BOOL


@translates("aten._assert_async.msg", "aten._assert_async.default")
def assert_async(call: Call, condition: Node, message: str = "assertion failed") -> None:
    """Python's `assert` raises AssertionError, torch's own functions RuntimeError."""
    error = "AssertionError" if _is_statement(call.location) else "RuntimeError"
    call.check(cast(condition, BOOL), error, message)


def _is_statement(location: Location | None) -> bool:
    """Whether an `assert` stands on that line."""
    if location is None:
        return False
    return linecache.getline(location.file, location.line).lstrip().startswith("assert ")
