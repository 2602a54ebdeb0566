"""Recompiles: Dynamo's text of a guard that failed, read into a record of what changed, from what, to what.

In: the text (`torch._dynamo.utils.guard_failures` keeps it) and the scope of the call in which the guard
failed. Out: a `Recompile`. A guard that compares an expression with a value says the old value; the new one
is the expression in the scope. A guard of no known form stands there as it is.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recompile:
    """Why a function was compiled again.

    function, place  what was compiled, and its file:line
    kind             "size", "rank", "dtype", "stride", "requires_grad", "int", "float", "str", "bool",
                     "type", "length", "grad mode", "aliasing"..., or "guard"
    argument         what changed: "x", "self.scale", "global SCALE"
    old, new         its values; a guard that is a relation has the relation as `old`
    guard            Dynamo's text
    source           the user's line that made the guard, "file:line", or empty
    """

    function: str
    place: str
    kind: str
    argument: str
    old: str
    new: str
    guard: str
    source: str = ""

    @property
    def change(self) -> str:
        named = f"{self.argument} ({self.kind})" if self.argument else self.kind
        return f"{named}: {self.old} -> {self.new}" if self.old or self.new else f"{named}: {self.guard}"

    def __str__(self) -> str:
        used = f", used at {self.source}" if self.source else ""
        return f"{self.function} ({self.place}): {self.change}{used}"


@dataclass(frozen=True)
class Change:
    """What a guard says: kind, argument, old and new value."""

    kind: str
    argument: str = ""
    old: str = ""
    new: str = ""


Scope = Mapping[str, Any]  # a call's local names; "G" holds the global ones


def recompile_of(function: str, place: str, reason: str, scope: Scope) -> Recompile:
    """The record of one guard's failure."""
    guard = re.sub(r"^\[?\d+/\d+\w*\]?: ", "", reason).split("\nUser stack trace:", 1)[0].strip()
    found = re.findall(r"# (\S+:\d+) in ", guard)
    text = re.sub(r"\s+# .*", "", guard, flags=re.DOTALL) if found else guard
    change = change_of(text, scope)
    return Recompile(
        function, place, change.kind, change.argument, change.old, change.new, text, found[0] if found else ""
    )


def change_of(text: str, scope: Scope) -> Change:
    for pattern, read in FORMS:
        if found := pattern.match(text):
            return read(found, scope)
    return _of_comparison(text, scope) or Change("guard")


# --- Dynamo's own sentences


DTYPES = {  # as C++ calls them
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


def _of_axis(found: re.Match[str], scope: Scope) -> Change:
    return Change(
        f"{found['what']} of axis {found['axis']}", plain(found["name"]), found["old"], found["new"]
    )


def _of_tensor(found: re.Match[str], scope: Scope) -> Change:
    what, name = found["what"], found["name"]
    new = found["new"] or _text(lambda: getattr(_value(name, scope), what))
    old = {"requires_grad=0": "False", "requires_grad=1": "True"}.get(found["old"], found["old"])
    return Change(what, plain(name), DTYPES.get(old, old), DTYPES.get(new, new))


def _of_type(found: re.Match[str], scope: Scope) -> Change:
    new = _text(lambda: type(_value(found["name"], scope)).__name__)
    return Change("type", plain(found["name"]), found["old"] or "", new)


def _of_object(found: re.Match[str], scope: Scope) -> Change:
    known = {id(value): repr(value) for value in (True, False, None)}
    old = known.get(int(found["id"]), "another object")
    return Change("object", plain(found["name"]), old, _new(found["name"], scope))


def _of_state(found: re.Match[str], scope: Scope) -> Change:
    import torch

    words = found["what"].split()
    kind = words[0].replace("_", " ") if words else "global state"
    if kind == "grad mode":
        now = torch.is_grad_enabled()
        return Change(kind, "", str(not now), str(now))
    return Change(kind, "", "as compiled", "changed")


def _of_twins(found: re.Match[str], scope: Scope) -> Change:
    names = ", ".join(re.findall(r"\w+", found["names"]))
    return Change("aliasing", names, "different tensors", "one tensor")


Read = Callable[["re.Match[str]", Scope], Change]

_PATTERNS: tuple[tuple[str, Read], ...] = (
    (
        (
            r"tensor '(?P<name>.+)' (?P<what>size|stride) mismatch at index (?P<axis>\d+)\. "
            r"expected (?P<old>\S+), actual (?P<new>\S+)"
        ),
        _of_axis,
    ),
    (
        (
            r"tensor '(?P<name>.+)' (?P<what>\w+)[\w ]* mismatch\. "
            r"expected (?P<old>[^,]+)(?:, actual (?P<new>.+))?"
        ),
        _of_tensor,
    ),
    (r"___check_type_id\((?P<name>.+?), \d+\)(?:, type=<class '(?P<old>[^']+)'>)?", _of_type),
    (r"___check_obj_id\((?P<name>.+?), (?P<id>\d+)\)", _of_object),
    (r"GLOBAL_STATE changed: (?P<what>.*)", _of_state),
    (r"Duplicate tensors? found.*?(?P<names>\[.*\]|: .*)", _of_twins),
)
FORMS = tuple((re.compile(pattern), read) for pattern, read in _PATTERNS)


# --- guards that are Python expressions


def _of_comparison(text: str, scope: Scope) -> Change | None:
    """`n == 3`, `n is None`, `len(xs) == 2`, `2 <= x.size()[0] <= 5`, `x.size()[0] % 2 == 0`."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Compare):
        return None
    left, (operator, *_), right = node.left, node.ops, node.comparators[-1]
    is_value = isinstance(operator, (ast.Eq, ast.Is)) and not _sources(right)
    if is_value and not isinstance(left, ast.BinOp):
        name = ast.unparse(left)
        return Change(_kind(left, right), plain(name), ast.unparse(right), _new(name, scope))
    sources = _sources(node)
    names = [plain(s) for s in sources]
    new = ", ".join(f"{plain(s)} = {_new(s, scope)}" for s in sources)
    kind = "size" if all(".size()" in s for s in sources) else "value"
    return Change(kind, ", ".join(_argument(n) for n in names), plain(ast.unparse(node)), new)


def _kind(left: ast.expr, right: ast.expr) -> str:
    if isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "len":
        return "length"
    if ".size()" in ast.unparse(left):
        return "size"
    return type(right.value).__name__ if isinstance(right, ast.Constant) else "value"


def _sources(node: ast.expr) -> list[str]:
    """The largest parts of an expression that name something of the program."""
    if isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Name)):
        return [ast.unparse(node)] if any(isinstance(n, ast.Name) for n in ast.walk(node)) else []
    children = (c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr))
    return list(dict.fromkeys(s for child in children for s in _sources(child)))


def _argument(name: str) -> str:
    return re.sub(r"\.(size|stride)\(\)\[\d+\]$", "", name)


def plain(name: str) -> str:
    """An expression of a guard as the program would have it: `G['SCALE']` is the global SCALE,
    `self._modules['head']` is self.head."""
    name = re.sub(r"\bL\['(\w+)'\]", r"\1", name)
    name = re.sub(r"\bG\['(\w+)'\]", r"global \1", name)
    name = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", name)
    return re.sub(r"\.__dict__\['(\w+)'\]", r".\1", name)


def _new(name: str, scope: Scope) -> str:
    return _text(lambda: _shown(_value(name, scope)))


def _shown(value: Any) -> str:
    """A value in a few words; a tensor by its type."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return textwrap.shorten(repr(value), 60)


def _value(name: str, scope: Scope) -> Any:
    """An expression of a guard, in the scope of the call. It is Dynamo's, which evaluates it too."""
    return eval(name, {"__builtins__": {"len": len, "type": type}}, dict(scope))


def _text(value: Callable[[], Any]) -> str:
    try:
        return str(value())
    except Exception:  # a name of Dynamo's own, which the scope does not hold
        return "?"
