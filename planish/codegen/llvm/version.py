"""Which planish made a piece of code, or a program: part of every key of the cache."""
from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from planish import __version__

_GENERATOR = ("codegen", "schedule", "runtime", "llvmlite")  # the parts that make machine code


@functools.cache
def generator_version() -> str:
    """Changes when planish's generator, its runtime or LLVM does, so that old code is never taken for new."""
    return _version(line for part, line in _sources() if part in _GENERATOR)


@functools.cache
def program_version() -> str:
    """Changes when any part of planish or NumPy does, so that no program is taken which would be another
    now."""
    return f"{_version(line for _, line in _sources())} numpy {np.__version__}"


def _version(lines: Iterable[str]) -> str:
    return f"planish {__version__} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:24]}"


@functools.cache
def _sources() -> list[tuple[str, str]]:
    """A part of planish and a line, for every file that it is made of. Files are told apart by path, size and
    time of change: reading them all would take longer than the rest of a warm start."""
    planish = str(Path(__file__).parents[2])
    found = [(f.path[len(planish) + 1:].split(os.sep)[0], f) for f in _files(planish)]
    found += [("llvmlite", f) for f in _llvmlite()]
    found.sort(key=lambda one: one[1].path)
    status = [(part, f.path, f.stat()) for part, f in found]
    return [(part, f"{path} {s.st_size} {s.st_mtime_ns}") for part, path, s in status]


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path)


def _llvmlite() -> Iterator[os.DirEntry[str]]:
    """The file that tells its version, found without importing it; none where code is run and not made."""
    spec = find_spec("llvmlite")
    for folder in (spec and spec.submodule_search_locations) or ():
        with os.scandir(folder) as entries:
            yield from (e for e in entries if e.name == "_version.py")
