"""The cache of generated code: in memory and on disk, addressed by what the code was made from.

In: a key (any text: IR, target, options) and bytes. Out: the same bytes, or None. A disk entry is one file
named by the key's sha256; it holds the whole key, which is compared on a hit, and a checksum of the content.
Files appear by atomic rename, so any number of processes may share a folder. The folder is the user's alone
(mode 0700) and bounded in size: the least recently used entries go first. A cache is never a reason to fail:
a folder that can't be used gives one warning; a corrupt entry is dropped and made anew.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import struct
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from planish import knobs
from planish.errors import CacheWarning, LinkError
from planish.logs import channel
from planish.runtime.blob import Blob

_MAGIC = b"PLCACHE1"
_HEAD = struct.Struct("<8s32sQQ")  # magic, sha256 of key and content, their lengths
_MEMORY_BYTES = 64 << 20
_SWEEP_EVERY = 64  # stores between two looks at the folder's size


class Cache:
    """A cache over one folder; None keeps entries in memory only. Safe from many threads and processes."""

    def __init__(self, folder: str | os.PathLike[str] | None, limit: int = 2 << 30):
        self.folder = None if folder is None else Path(folder)
        self.limit = limit
        self._lock = threading.Lock()
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._stores = 0
        self._warned = False
        self._usable: bool | None = None if folder is not None else False

    def get(self, key_text: str) -> bytes | None:
        """What was stored under this very key, or None."""
        with self._lock:
            data = self._memory.get(key_text)
            if data is not None:
                self._memory.move_to_end(key_text)
                return data
        data = self._read(key_text) if self._is_usable() else None
        if data is not None:
            self._remember(key_text, data)
        return data

    def put(self, key_text: str, data: bytes) -> None:
        """Store bytes under a key; the folder may be full or gone, then only this process remembers them."""
        self._remember(key_text, data)
        if not self._is_usable():
            return
        try:
            self._write(self._path(key_text), _pack(key_text, data))
        except OSError as error:
            self._give_up(f"can't write there ({error.strerror})")
            return
        with self._lock:
            self._stores += 1
            due = self._stores % _SWEEP_EVERY == 1
        if due:
            self.sweep()

    def drop(self, key_text: str) -> None:
        """Forget an entry, here and on disk."""
        with self._lock:
            self._memory_bytes -= len(self._memory.pop(key_text, b""))
        if self._is_usable():
            _remove(self._path(key_text))

    def place(self, key_text: str) -> Path | None:
        """Where the file of a key lies or is to lie, for who reads and writes it himself; None where the
        folder can't be used."""
        return self._path(key_text) if self._is_usable() else None

    def sweep(self) -> None:
        """Remove the least recently used files until the folder is under its limit."""
        if not self._is_usable():
            return
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.limit:
                return
            _remove(path)
            total -= size

    def usage(self) -> tuple[int, int]:
        """How many entries the folder has, and their bytes."""
        sizes = [size for _, size, _ in self._files()]
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Remove every entry, here and on disk; how many could not be removed."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        for _, _, path in self._files():
            _remove(path)
        return self.usage()[0]

    def fault(self) -> str:
        """Why the folder can't be used; empty when it can, or when it isn't there yet."""
        return _folder_fault(self.folder) if self.folder and self.folder.exists() else ""

    # --- disk

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self.folder.glob("??/*") if self.folder else ():
            try:
                status = path.stat()
            except OSError:
                continue  # another process swept it
            found.append((status.st_mtime, status.st_size, path))
        return found

    def _path(self, key_text: str) -> Path:
        name = _name(key_text)
        assert self.folder is not None
        return self.folder / name[:2] / name[2:]

    def _read(self, key_text: str) -> bytes | None:
        path = self._path(key_text)
        try:
            packed = path.read_bytes()
            os.utime(path)  # the time of last use
        except OSError:
            return None
        data = _unpack(key_text, packed)
        if data is None:
            _remove(path)
        return data

    def _write(self, path: Path, packed: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="tmp-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(packed)
            os.replace(temporary, path)
        except BaseException:  # Ctrl-C too
            _remove(Path(temporary))
            raise

    def _is_usable(self) -> bool:
        if self._usable is None:
            fault = _folder_fault(self.folder) if self.folder else ""
            self._usable = not fault
            if fault:
                self._give_up(fault)
        return self._usable

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._usable, first, self._warned = False, not self._warned, True
        if first:
            warnings.warn(f"planish goes on without its disk cache {self.folder}: {why}. "
                          "Set PLANISH_CACHE_DIR to a folder of yours.", CacheWarning, stacklevel=4)

    # --- memory

    def _remember(self, key_text: str, data: bytes) -> None:
        with self._lock:
            self._memory_bytes += len(data) - len(self._memory.pop(key_text, b""))
            self._memory[key_text] = data
            while self._memory_bytes > _MEMORY_BYTES and len(self._memory) > 1:
                _, oldest = self._memory.popitem(last=False)
                self._memory_bytes -= len(oldest)


def _name(key_text: str) -> str:
    return hashlib.sha256(key_text.encode()).hexdigest()


def _pack(key_text: str, data: bytes) -> bytes:
    key = key_text.encode()
    return _HEAD.pack(_MAGIC, hashlib.sha256(key + data).digest(), len(key), len(data)) + key + data


def _unpack(key_text: str, packed: bytes) -> bytes | None:
    """The content, or None when the file is not a whole, unaltered entry of this very key."""
    key = key_text.encode()
    start = _HEAD.size + len(key)
    if len(packed) < start:
        return None
    magic, digest, key_length, length = _HEAD.unpack_from(packed)
    whole = magic == _MAGIC and key_length == len(key) and start + length == len(packed)
    if not whole or packed[_HEAD.size:start] != key:
        return None
    return packed[start:] if hashlib.sha256(packed[_HEAD.size:]).digest() == digest else None


def _folder_fault(folder: Path) -> str:
    """Why a folder can't be used, empty when it can. It is made when missing. Code is run from it: nobody
    else may write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"can't make it ({error.strerror})"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return "other users may write to it"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "no permission to write to it"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # gone, or not ours to remove: it is never read as valid
        path.unlink(missing_ok=True)


def default_folder() -> Path:
    """$PLANISH_CACHE_DIR, else $XDG_CACHE_HOME/planish, else ~/.cache/planish."""
    if knobs.cache_dir:
        return Path(knobs.cache_dir)
    return Path(knobs.xdg_cache_home or Path.home() / ".cache") / "planish"


def default_cache() -> Cache:
    """The cache that the knobs name now."""
    return _cache_at(None if knobs.disable_cache else str(default_folder()), knobs.cache_bytes)


@functools.cache
def _cache_at(folder: str | None, limit: int) -> Cache:
    return Cache(folder, limit)


def cached_blob(key_text: str, make: Callable[[], Blob], cache: Cache | None = None) -> Blob:
    """The linked code under a key, from the cache or else made and stored. A corrupt entry is dropped and
    made anew."""
    cache = cache or default_cache()
    blob = find_blob(key_text, cache)
    if blob is None:
        blob = make()
        cache.put(key_text, blob.to_bytes())
    return blob


def find_blob(key_text: str, cache: Cache | None = None) -> Blob | None:
    """The linked code under a key, None where the cache has none. A corrupt entry is dropped."""
    cache = cache or default_cache()
    data = cache.get(key_text)
    log, name = channel("cache"), _name(key_text)[:12]
    if data is not None:
        try:
            blob = Blob.from_bytes(data)
            log.info("hit %s, %d bytes", name, len(data))
            return blob
        except LinkError:
            log.info("corrupt %s", name)
            cache.drop(key_text)
    log.info("miss %s", name)
    return None
