"""What a measured choice holds for: this processor, these instruction sets and caches, so many threads."""
from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planish.codegen.llvm.host import Target

_FIELDS = ("cpu family", "model", "stepping")


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, with family, model and stepping where the system tells them."""
    known = dict(_fields(path))
    name = known.get("model name") or platform.processor() or platform.machine()
    numbers = "/".join(known[f] for f in _FIELDS if f in known)
    return f"{name} ({numbers})" if numbers else name


def _fields(path: Path) -> Iterator[tuple[str, str]]:
    """Name and value of the lines about the first processor."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition(":")
        if not name.strip():
            return
        yield name.strip(), value.strip()


def signature(target: Target, threads: int) -> str:
    """All of the machine that may decide which of two ways is faster."""
    return f"{cpu_model()}, {target.code_key}, threads {threads}"


def libraries() -> str:
    """The libraries whose kernels may run an op: NumPy's, and torch's where the process has loaded it."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return f"numpy {np.__version__}" + (f", torch {version}" if version else "")
