"""Digests of many arrays, by native code on all threads, at the speed of memory.

In: arrays. Out: 32 bytes of each, which depend on all of its bytes and on nothing else.

An array's whole blocks are hashed by NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999): the
sum, modulo 2^64, of (m[2i] + k[2i]) * (m[2i+1] + k[2i+1]) over its 32-bit words m, with the sums in brackets
modulo 2^32; twice, the second time with the key moved on by four words. Two blocks that differ give equal
pairs of sums for one key in 2^64. SHA-256 of all pairs, of what follows the last whole block, and of the
length is the digest. The key is no secret: this tells weights apart, it does not hold off who looks for two
arrays of one digest.
"""
from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from planish.codegen.llvm.builder import Builder, Module, Value
from planish.runtime.resident import leave

WINDOW = 8 << 20  # bytes of arrays that are read at once
BLOCK = 8192      # bytes
_LANES = 4        # sums of 64 bits that are kept apart
_STEP = 8 * _LANES
_SHIFT = 16       # bytes by which the second key is moved on


class Job(ctypes.Structure):
    _fields_ = [("source", ctypes.c_int64), ("blocks", ctypes.c_int64), ("target", ctypes.c_int64)]


class JobList(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("jobs", ctypes.c_void_p), ("key", ctypes.c_void_p)]


def digests(arrays: Sequence[np.ndarray], threads: int) -> list[bytes]:
    """A digest of the bytes of each array, in row-major order."""
    from planish.runtime.native import runtime

    flat = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays]
    sums = [np.empty((len(a) // BLOCK, 2, _LANES), np.uint64) for a in flat]
    table = (Job * len(flat))(*(Job(a.ctypes.data, len(s), s.ctypes.data) for a, s in zip(flat, sums)))
    key = np.frombuffer(hashlib.shake_256(b"planish").digest(BLOCK + _SHIFT), np.uint8)
    frame = JobList(len(flat), ctypes.addressof(table), key.ctypes.data)
    run = runtime()
    run.parallel(run.code.address("planish_digest"), ctypes.addressof(frame), threads)
    return [_digest(a, s) for a, s in zip(flat, sums)]


def digests_in_windows(arrays: Sequence[np.ndarray], threads: int) -> list[bytes]:
    """The same of any number of large arrays: of each that of its parts' digests. Parts are of WINDOW bytes,
    and what lies in mapped files is given back when as much has been read."""
    found: list[list[bytes]] = [[] for _ in arrays]
    waiting: list[tuple[int, np.ndarray]] = []
    size = 0
    for k, part in ((k, part) for k, array in enumerate(arrays) for part in _parts(array)):
        if size + len(part) > WINDOW:
            _digest_parts(waiting, found, threads)
            waiting, size = [], 0
        waiting.append((k, part))
        size += len(part)
    _digest_parts(waiting, found, threads)
    return [hashlib.sha256(b"".join(parts)).digest() for parts in found]


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return (flat[at:at + WINDOW] for at in range(0, len(flat), WINDOW))


def _digest_parts(parts: Sequence[tuple[int, np.ndarray]], found: list[list[bytes]], threads: int) -> None:
    for (k, part), digest in zip(parts, digests([part for _, part in parts], threads)):
        found[k].append(digest)
        leave(part)


def _digest(array: np.ndarray, sums: np.ndarray) -> bytes:
    made = hashlib.sha256(sums.sum(axis=-1, dtype=np.uint64).tobytes())
    made.update(array[len(sums) * BLOCK:].tobytes())
    made.update(len(array).to_bytes(8, "little"))
    return made.digest()


# --- the native code

def ir(triple: str) -> str:
    """The module that exports void planish_digest(ptr list, i64 tid, i64 threads)."""
    module = Module(triple)
    b = module.function("planish_digest", [("ptr", "list"), ("i64", "tid"), ("i64", "threads")])
    frame, tid, threads = b.parameters
    jobs, key = (b.load("ptr", b.gep("i8", frame, b.i64(f.offset)), 8) for f in (JobList.jobs, JobList.key))
    each = b.loop(b.i64(0), b.load("i64", frame, 8), b.i64(1))
    job = b.gep("i8", jobs, b.mul(each.index, b.i64(ctypes.sizeof(Job))))
    source, blocks, target = (b.load(type_, b.gep("i8", job, b.i64(f.offset)), 8) for type_, f in
                              (("ptr", Job.source), ("i64", Job.blocks), ("ptr", Job.target)))
    first, last = (b.bin("sdiv", b.mul(blocks, t), threads) for t in (tid, b.add(tid, b.i64(1))))
    block = b.loop(first, last, b.i64(1))
    sums = _sums(b, b.gep("i8", source, b.mul(block.index, b.i64(BLOCK))), key)
    place = b.gep("i8", target, b.mul(block.index, b.i64(2 * _STEP)))
    for k, value in enumerate(sums):
        b.store(value, b.gep("i8", place, b.i64(k * _STEP)), 8)
    block.end()
    each.end()
    b.ret()
    return str(module)


def _sums(b: Builder, block: Value, key: Value) -> list[Value]:
    """The sums of a block by both keys, each in lanes."""
    zero = b.splat(b.i64(0), _LANES)
    step = b.loop(b.i64(0), b.i64(BLOCK), b.i64(_STEP), [zero, zero])
    words = b.load(f"<{2 * _LANES} x i32>", b.gep("i8", block, step.index))
    return step.end([b.add(total, _products(b, words, key, b.add(step.index, b.i64(shift))))
                     for total, shift in zip(step.carry, (0, _SHIFT))])


def _products(b: Builder, words: Value, key: Value, at: Value) -> Value:
    """Of neighbours among the words, each with its word of the key added, the products."""
    pairs = b.cast("bitcast", b.add(words, b.load(words.type, b.gep("i8", key, at))), f"<{_LANES} x i64>")
    low = b.bin("and", pairs, b.splat(b.i64(0xFFFFFFFF), _LANES))
    return b.mul(low, b.bin("lshr", pairs, b.splat(b.i64(32), _LANES)))
