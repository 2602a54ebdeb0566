"""What can be translated: every call without a translation in one error, with the user's lines."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from planish.capture.torch.call import find_translation
from planish.capture.torch.complex import find_complex_translation
from planish.capture.torch.control import CONTROL, INLINED
from planish.capture.torch.expand import EXPANDED
from planish.capture.torch.fx import (
    EFFECTS,
    is_control,
    is_overload,
    is_symbolic_int,
    is_symbolic_number,
    location_of,
)
from planish.capture.torch.host import can_host
from planish.errors import UnsupportedOp

CHECKED = {  # calls that only say what AOTAutograd and torch.export have seen to
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}
ASSERTION = "aten._assert_scalar.default"
READ = ("aten._local_scalar_dense.default", "aten.item.default")


def refuse_unsupported(nodes: Sequence[Any], host: bool) -> None:
    """Raises one UnsupportedOp that lists every call without a translation, with the user's lines. With
    `host`, those that torch can run for us are none."""
    missing: dict[str, list[str]] = {}
    for node in nodes:
        if node.op == "call_function" and not _is_known(node, host):
            missing.setdefault(str(node.target), []).append(str(location_of(node) or f"%{node.name}"))
        elif node.op in ("call_module", "call_method"):
            missing.setdefault(f"{node.op} {node.target}", []).append(
                str(location_of(node) or f"%{node.name}")
            )
    if missing:
        lines = [f"    {name}: {_some(places)}" for name, places in missing.items()]
        raise UnsupportedOp("planish has no translation of\n" + "\n".join(lines))


def _some(places: Sequence[str]) -> str:
    few = list(dict.fromkeys(places))
    return ", ".join(few[:3]) + (f" and {len(few) - 3} more" if len(few) > 3 else "")


def _is_known(node: Any, host: bool) -> bool:
    value, name = node.meta.get("val"), str(node.target)
    if node.target is operator.getitem or is_symbolic_int(value) or is_symbolic_number(value):
        return True
    if name == EFFECTS:
        return host and can_host(node.args[1]) and not node.args[1]._schema.returns
    if is_control(node.target):
        return name in CONTROL or name in INLINED or name in EXPANDED
    if not is_overload(node.target):
        return isinstance(value, (int, float, bool)) or value is None
    if name in CHECKED or name == ASSERTION or (host and can_host(node.target)):
        return True
    return find_translation(name) is not None or find_complex_translation(name) is not None
