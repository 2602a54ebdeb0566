"""Findings on disk: one line of JSON each, in the cache's folder.

In: keys and findings. Out: the latest finding of a key. A line is written whole, at the end of the file,
while the file is locked, so any number of processes may write; the next reader takes what it understands. A
line that can't be read is told of once, with what to do, and is otherwise as if it were not there. Where the
folder can't be used, findings stay in this process.
"""
from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from planish.errors import CacheWarning
from planish.runtime.cache import default_cache
from planish.tuning.record import Finding

NAME = "tuning.jsonl"


class Database:
    """The findings of one file; None keeps them in memory only."""

    def __init__(self, path: Path | None):
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, Finding] = {}
        self._own: dict[str, Finding] = {}
        self._seen: tuple[int, int] | None = None
        self._told = False

    def find(self, key: str) -> Finding | None:
        """The latest finding of a key."""
        with self._lock:
            self._read()
            return self._own.get(key) or self._known.get(key)

    def put(self, key: str, finding: Finding, machine: str) -> None:
        """Enter a finding, made on `machine`. An earlier one of the same key is forgotten."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = json.dumps({"key": key, **finding.to_json(), "machine": machine, "at": at})
        with self._lock:
            if self.path is None:
                self._own[key] = replace(finding, remembered=True)
                return
            try:
                _append(self.path, line)
            except OSError as error:
                self._own[key] = replace(finding, remembered=True)
                self._tell(f"what was measured can't be kept in {self.path} ({error.strerror}). "
                           "Set PLANISH_CACHE_DIR to a folder of yours.")

    def findings(self) -> list[Finding]:
        """All, the latest of each key."""
        with self._lock:
            self._read()
            return list({**self._known, **self._own}.values())

    def clear(self) -> int:
        """Forget everything, here and on disk; how many findings there were."""
        count = len(self.findings())
        with self._lock:
            self._known, self._own, self._seen = {}, {}, None
            if self.path is not None:
                self.path.unlink(missing_ok=True)
        return count

    # --- disk

    def _read(self) -> None:
        """Take in the file, where it has changed."""
        if self.path is None:
            return
        try:
            status = self.path.stat()
            if (state := (status.st_mtime_ns, status.st_size)) == self._seen:
                return
            data = self.path.read_bytes()
        except FileNotFoundError:
            self._known, self._seen = {}, None
            return
        except OSError as error:
            self._tell(f"{self.path} can't be read ({error.strerror})")
            return
        found = list(_lines(data))
        self._known, self._seen = {key: finding for key, finding in found if finding is not None}, state
        if bad := sum(finding is None for _, finding in found):
            self._tell(f"{bad} of {len(found)} lines of {self.path} are no findings and are ignored; "
                       "`planish tuning clear` makes a new file")

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"planish's database of tuned kernels: {what}", CacheWarning, stacklevel=4)


def _lines(data: bytes) -> Iterator[tuple[str, Finding | None]]:
    """Key and finding of each line; None for what is not one."""
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
            yield str(value["key"]), Finding.from_json(value)
        except (ValueError, KeyError, TypeError):
            yield "", None


def _append(path: Path, line: str) -> None:
    """Write one line at the end of a file, while nobody else does."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as file, _locked(handle):
        size = os.fstat(handle).st_size
        is_whole = size == 0 or os.pread(handle, 1, size - 1) == b"\n"  # else a writer died in its line
        file.write(f"{'' if is_whole else chr(10)}{line}\n".encode())


@contextlib.contextmanager
def _locked(handle: int) -> Iterator[None]:
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def default_database() -> Database:
    """The database in the cache's folder, as the knobs name it now."""
    folder = default_cache().folder
    return _database_at(None if folder is None else folder / NAME)


@functools.cache
def _database_at(path: Path | None) -> Database:
    return Database(path)
