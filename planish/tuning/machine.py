"""What a measured choice holds for: this processor, these instruction sets and caches, so many threads."""
from __future__ import annotations

import functools
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planish.codegen.llvm.host import Target
from planish.errors import LibraryError, LibraryWarning
from planish.tuning import onednn

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


def versions() -> dict[str, str]:
    """The libraries whose kernels may run an op: NumPy's, oneDNN's where its wheel is installed, and torch's
    where the process has loaded it."""
    found = {"numpy": np.__version__}
    if has_onednn():
        found["onednn"] = onednn.library().version
    if version := getattr(sys.modules.get("torch"), "__version__", None):
        found["torch"] = str(version)
    return found


@functools.cache
def has_onednn() -> bool:
    """Whether oneDNN can be used. An installed wheel that can't is told of."""
    try:
        return onednn.is_installed() and bool(onednn.library().version)
    except LibraryError as error:
        warnings.warn(f"{error} Tuning goes on without oneDNN.", LibraryWarning, stacklevel=2)
        return False


def libraries() -> str:
    """Of all that may run an op, the versions: `numpy 2.4.6, onednn 3.2.0`."""
    return ", ".join(f"{name} {version}" for name, version in versions().items())
