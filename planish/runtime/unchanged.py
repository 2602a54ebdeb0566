"""Digests of arrays: of those that lie in a file which nobody has written to, the digests it had before.

In: arrays. Out: a digest of the bytes of each. What lies in a mapped file (ops/mapped.py) is read once; then
the disk cache has its digests, beside what the file's status was, and as long as the status is the same they
are taken from there. BERT-base's 436 MB take 90 ms to be read, the status of their file 20 microseconds.

The status is device, inode, size, and the times of the last writing and the last change; no program can set
the latter. git's index relies on the same ("Racy Git", Documentation/technical/racy-git.txt of git), and is
wrong where a file changes and its times do not:

- A write so soon after the reading that its time is the same. So what was changed less than MARGIN ago is not
  remembered, as in git.
- A write that is under way: its time is that of its start. Or one through a mapping to a page that has been
  written to before: only the first write to a page moves the times. So nobody may have the file open, or
  mapped, for writing when it is about to be read. The system grants a read lease only then (fcntl(2),
  F_SETLEASE), to the file's owner; others read it each time.
- A clock that was set back. So it is noted where the clock had the start of the system.
- A crash: the disk may have what was written, and not yet the time. So digests are for one run of the system.
- Filesystems that do not see a write through a mapping (tmpfs), or have it from elsewhere (of the network,
  overlays). So it must be one of FILESYSTEMS.

Then each later write has a time of change that is later than the one that was noted.
"""
from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from planish.codegen.llvm.version import program_version
from planish.ops.mapped import FileMapping, file_under
from planish.runtime.cache import Cache
from planish.runtime.digest import digests_in_windows

STEP = 1.0     # seconds: a clock that was set by less is taken for the same
COARSE = 1.0   # seconds: the coarsest times that FILESYSTEMS have (ext4 with inodes of 128 bytes)
MARGIN = STEP + COARSE + 1.0
FILESYSTEMS = {0xEF53, 0x58465342, 0x9123683E}  # ext2 to ext4, XFS, Btrfs (statfs(2))


def digests_of(arrays: Sequence[np.ndarray], threads: int, cache: Cache) -> list[bytes]:
    """A digest of the bytes of each array, in row-major order."""
    groups: dict[tuple[int, int] | None, list[int]] = {}
    files = [file_under(a) for a in arrays]
    for k, file in enumerate(files):
        groups.setdefault(None if file is None else file.identity, []).append(k)
    found: dict[int, bytes] = {}
    for places in groups.values():
        group, file = [arrays[k] for k in places], files[places[0]]
        found.update(zip(places, digests_in_windows(group, threads) if file is None else
                         _in_file(file, group, threads, cache)))
    return [found[k] for k in range(len(arrays))]


def witness(arrays: Sequence[np.ndarray], threads: int) -> list[Witness]:
    """Of each array the state of its file, if that is settled, which is not read; else its digest."""
    files = {file.identity: file for a in arrays if (file := file_under(a)) is not None}
    states = {identity: _settled(file) for identity, file in files.items()}
    found = [None if (file := file_under(a)) is None else states[file.identity] for a in arrays]
    rest = iter(digests_in_windows([a for a, state in zip(arrays, found) if state is None], threads))
    return [next(rest) if state is None else state for state in found]


def are_still(arrays: Sequence[np.ndarray], before: Sequence[Witness], digests: Sequence[bytes]) -> bool:
    """Whether arrays, whose digests were found just now, hold what they held `before`."""
    files = {file.identity: file for a in arrays if (file := file_under(a)) is not None}
    states = {identity: _state(file) for identity, file in files.items()}
    for array, was, digest in zip(arrays, before, digests):
        file = file_under(array)
        state = None if file is None else states[file.identity]
        if was != digest and (state is None or isinstance(was, bytes) or not state.is_still(was)):
            return False
    return True


def _in_file(file: FileMapping, arrays: Sequence[np.ndarray], threads: int, cache: Cache) -> list[bytes]:
    """The digests of arrays that lie in one file."""
    key = _key(arrays)
    state, noted = _state(file), cache.get(key)
    if state is not None and noted is not None:
        known = json.loads(noted)
        if state.is_still(State(*known["state"])):
            return [bytes.fromhex(digest) for digest in known["digests"]]
    settled = _settled(file)
    found = digests_in_windows(arrays, threads)
    if settled is not None:
        note = {"state": astuple(settled), "digests": [digest.hex() for digest in found]}
        cache.put(key, json.dumps(note).encode())
    return found


def _key(arrays: Sequence[np.ndarray]) -> str:
    """What is asked of which file."""
    files = (file for a in arrays if (file := file_under(a)) is not None)
    ranges = [(*f.identity, a.ctypes.data - f.address, a.nbytes) for a, f in zip(arrays, files)]
    return f"digests {sha256(json.dumps(ranges).encode()).hexdigest()} {program_version()}"


@dataclass(frozen=True)
class State:
    """A file's status. Times of a file are nanoseconds. `boot` names the system's run, `started` is the time
    it started at by the clock as it is, seconds."""

    device: int
    inode: int
    size: int
    written: int
    changed: int
    boot: str
    started: float

    def is_still(self, noted: State) -> bool:
        """Whether a file that had the state `noted`, and was settled, has the content it had."""
        return astuple(self)[:-1] == astuple(noted)[:-1] and abs(self.started - noted.started) < STEP


Witness = State | bytes


def _state(file: FileMapping) -> State | None:
    """The state of a mapped file; None where that can't be said, or its path has another file by now."""
    if sys.platform != "linux" or boot() == UNKNOWN:
        return None
    try:
        status = os.stat(file.path)
    except OSError:
        return None
    if (status.st_dev, status.st_ino) != file.identity:
        return None
    return State(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
                 boot().decode(), round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), 3))


def _settled(file: FileMapping) -> State | None:
    """The state of a file that will not change unless the state does; None where it may, or might."""
    state = _state(file)
    if state is None or time.time() - state.changed / 1e9 < MARGIN:
        return None
    try:
        handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return state if _filesystem(handle) in FILESYSTEMS and not _is_being_written(handle) else None
    finally:
        os.close(handle)


def _filesystem(handle: int) -> int:
    """f_type of fstatfs(2), the first member of its structure; 0 where there is no answer."""
    status = (ctypes.c_long * 64)()
    return status[0] if ctypes.CDLL(None).fstatfs(handle, status) == 0 else 0


def _is_being_written(handle: int) -> bool:
    """Whether anybody has a file open, or mapped, for writing; True where the system does not tell. Should
    somebody open it while we have the lease, he waits until we have not, and we are told by a signal:
    SIGURG, which does nothing unless one asks for it (SIGIO would end the process)."""
    import fcntl

    try:
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    return False


UNKNOWN = bytes(36)


@functools.cache
def boot() -> bytes:
    """What names the system's run since it was started (Linux, random(4)); zeros where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return UNKNOWN
