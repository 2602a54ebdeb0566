"""Constants as programs want them, kept in the disk cache: laid out once, mapped by later processes.

In: contents and how they follow from arrays. Out: their arrays over a mapped file, if one was kept for the
same bytes; else a place to keep them in. To map is a hundredth of the time of packing into memory that a
virtual machine has yet to get, and processes share what they map.

A file's key is the digest (`unchanged.py`) of every array that the constants follow from, and how they do, so
weights that have changed have another file. Files are entries of the cache as any other: written to the side
and renamed, bounded with the rest by PLANISH_CACHE_BYTES. They are written by a thread, after the compile;
one for each form of constants in a process, so weights that go on changing do not fill the disk.

Layout: the arrays, each filled up to whole lines, then the trailer: magic, digest of the key, the system's
boot the file was written in, digest of the arrays. Within that boot a renamed file is whole; after another
the arrays are held to their digest, once, as a crash may have lost what was not yet on the disk.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from planish.codegen.llvm.version import program_version
from planish.ir.encoding import EncodingError, encode
from planish.logs import channel
from planish.ops.content import Content, dependencies
from planish.runtime.cache import Cache, default_cache
from planish.runtime.digest import digests_in_windows
from planish.runtime.packing import Wanted, arrays_over, bytes_of, whole_lines
from planish.runtime.unchanged import UNKNOWN, Witness, are_still, boot, digests_of, witness

SMALLEST = 8 << 20   # bytes of constants from which they are kept: fewer are packed as soon
_MAGIC = b"PLKEPT01"
_TRAILER = struct.Struct("<8s32s36s32s")

_written: set[str] = set()  # forms of constants that this process has kept


def place_for(made: Sequence[Content], threads: int) -> Place | None:
    """Where constants are kept; None for few, for more than half of what the cache may hold, where there is
    no cache on disk, and for what has no form."""
    cache = default_cache()
    wanted = [shape_and_dtype(c) for c in made]
    total = bytes_of(wanted)
    if not SMALLEST <= total <= cache.limit // 2 or cache.place("") is None:
        return None
    order = dependencies(made, behind_values=True)
    places = {one: k for k, one in enumerate(order)}
    try:
        lines = [_line(one, places) for one in order]
    except EncodingError:
        return None
    form = f"{program_version()} {json.dumps([lines, [places[c] for c in made]])}"
    arrays = [one.value for one in order if one.derivation is None]
    return Place(cache, form, arrays, threads, wanted)


def _line(content: Content, places: dict[Content, int]) -> list[object]:
    made = content.derivation
    if made is None:
        return [encode(content.type)]
    return [encode(content.type), made.function, encode(made.parameters), [places[s] for s in made.sources]]


def shape_and_dtype(content: Content) -> tuple[tuple[int, ...], np.dtype]:
    """Those of a content's array; sizes of constants are all known."""
    return tuple(d for d in content.type.shape if isinstance(d, int)), content.type.dtype.numpy


class Place:
    """The file of constants of a form that follow from arrays. Of a form that was never kept none is looked
    for: its key is made when it is written, and what arrays of files hold is not read before."""

    def __init__(self, cache: Cache, form: str, sources: Sequence[np.ndarray], threads: int, wanted: Wanted):
        self.cache, self.form, self.sources, self.wanted = cache, form, sources, wanted
        self.note = f"kept {_sha256(form.encode()).hex()}"
        self.before: Sequence[Witness]
        if cache.get(self.note) is None:
            self.key, self.before = "", witness(sources, threads)
        else:
            self.before = digests = digests_of(sources, threads, cache)
            self.key = self._key(digests)

    def _key(self, digests: Sequence[bytes]) -> str:
        return f"constants {_sha256(self.form.encode() + b''.join(digests)).hex()}"

    def find(self, threads: int) -> list[np.ndarray] | None:
        """The constants, read-only, over the mapped file; None where there is none. A damaged one is
        dropped."""
        path = self.cache.place(self.key) if self.key else None
        try:
            found = None if path is None else self._arrays(path, threads)
        except (OSError, ValueError):  # there is none, or an empty one
            found = None
        channel("cache").info("%s %s", "miss" if found is None else "hit", self.note[:22])
        if found is None and self.key:
            self.cache.drop(self.key)
        return found

    def _arrays(self, path: Path, threads: int) -> list[np.ndarray] | None:
        mapping = _mapped(path)
        size = bytes_of(self.wanted)
        if len(mapping) != size + _TRAILER.size:
            return None
        found = arrays_over(np.frombuffer(mapping, np.uint8), self.wanted)
        magic, key, written, digest = _TRAILER.unpack_from(mapping, size)
        if magic != _MAGIC or key != _sha256(self.key.encode()):
            return None
        if written == boot() != UNKNOWN:
            return found
        if digest != _digest(found, threads):
            return None
        _sign(path, _TRAILER.pack(magic, key, boot(), digest), size)
        return found

    def keep(self, arrays: Sequence[np.ndarray]) -> None:
        """Write the constants, by a thread that the process waits for at its end."""
        if self.form in _written:
            return
        _written.add(self.form)
        with contextlib.suppress(RuntimeError):  # no more threads, or the process is ending: not kept
            threading.Thread(target=self._write, args=(arrays,), name="planish keeps constants").start()

    def _write(self, arrays: Sequence[np.ndarray]) -> None:
        digests = digests_of(self.sources, 1, self.cache)
        if not are_still(self.sources, self.before, digests):  # others may write to the arrays
            channel("cache").info("%s is not kept: the weights have changed meanwhile", self.note[:22])
            return
        key = self._key(digests)
        path = self.cache.place(key)
        if path is None:
            return
        trailer = _TRAILER.pack(_MAGIC, _sha256(key.encode()), boot(), _digest(arrays, 1))
        try:
            _write(path, arrays, trailer)
        except OSError as error:
            channel("cache").info("%s is not kept: %s", self.note[:22], error)
            return
        self.cache.put(self.note, b"")
        self.cache.sweep()


def _mapped(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.utime(path)  # the time of last use
    return mapping


def _sign(path: Path, trailer: bytes, at: int) -> None:
    """Note in a file that it was found whole by this run of the system."""
    with contextlib.suppress(OSError), open(path, "r+b", buffering=0) as file:  # else the next one checks it
        file.seek(at)
        file.write(trailer)


def _write(path: Path, arrays: Sequence[np.ndarray], trailer: bytes) -> None:
    """The file whole or not at all. Its room is taken first: a full disk is seen before anything is written,
    and pages come cheaper."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="tmp-")
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, sum(whole_lines(a.nbytes) for a in arrays) + len(trailer))
            for array in arrays:
                _write_all(file.fileno(), array.reshape(-1).view(np.uint8).data)
                _write_all(file.fileno(), memoryview(bytes(whole_lines(array.nbytes) - array.nbytes)))
            _write_all(file.fileno(), memoryview(trailer))
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_all(handle: int, data: memoryview) -> None:
    while data:
        data = data[os.write(handle, data):]


def _digest(arrays: Sequence[np.ndarray], threads: int) -> bytes:
    """Of all their bytes."""
    return _sha256(b"".join(digests_in_windows(arrays, threads)))


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
