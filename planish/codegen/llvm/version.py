"""Which generator made a piece of code: part of every key of the cache."""
from __future__ import annotations

import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

from planish import __version__


@functools.cache
def generator_version() -> str:
    """Changes when planish's generator, its runtime or LLVM does, so that old code is never taken for new.

    Files are told apart by path, size and time of change: reading them all would take longer than the rest
    of a warm start.
    """
    planish = Path(__file__).parents[2]
    sources = [f for part in ("codegen/llvm", "schedule", "runtime") for f in (planish / part).glob("*.py")]
    status = [(str(f), f.stat()) for f in sorted(sources + _llvmlite())]
    lines = "\n".join(f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in status)
    return f"planish {__version__} {hashlib.sha256(lines.encode()).hexdigest()[:24]}"


def _llvmlite() -> list[Path]:
    """The file that tells its version, found without importing it; none where code is run and not made."""
    spec = find_spec("llvmlite")
    folders = (spec and spec.submodule_search_locations) or ()
    return [Path(folder) / "_version.py" for folder in folders]
