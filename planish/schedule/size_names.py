"""Names for sizes that a kernel's text says again and again.

In: lines of text, and the extents in them. Out: names for each `min`, `max` or quotient among these that
stands there three times or more, and the lines with the names in their place.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

OFTEN = 3
_CALL = re.compile(r"min\(|max\(|\(\(")
_NAME = re.compile(r"[A-Za-z_]\w*")

Names = list[tuple[str, str]]  # a name and what it stands for, in terms of those before it


def size_names(lines: Iterable[str], extents: Iterable[str], known: set[str], fresh: Iterator[str]) -> Names:
    """Names for sizes that are made of `known` names only."""
    text = "\n".join(lines)
    parts = {p for e in extents for p in _parts(e) if set(_NAME.findall(p)) - {"min", "max"} <= known}
    waiting, found = sorted(parts, key=lambda p: (len(p), p)), []
    while waiting:
        part = waiting.pop(0)
        if text.count(part) >= OFTEN:
            found.append((next(fresh), part))
            text, waiting = shorten(text, found[-1:]), [shorten(w, found[-1:]) for w in waiting]
    return found


def shorten(text: str, names: Names) -> str:
    """The text with names in the place of what they stand for."""
    for name, part in names:
        text = text.replace(part, name)
    return text


def _parts(size: str) -> Iterator[str]:
    """The calls and quotients in the text of a size."""
    for start in (m.start() for m in _CALL.finditer(size)):
        depth = 0
        for at in range(start, len(size)):
            depth += (size[at] == "(") - (size[at] == ")")
            if not depth and size[at] == ")":
                yield size[start:at + 1]
                break
