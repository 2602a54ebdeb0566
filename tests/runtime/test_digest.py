"""Digests by native code: the formula in NumPy, any number of threads, every byte counts."""
from __future__ import annotations

import hashlib

import numpy as np
import pytest

from planish.runtime.digest import BLOCK, digests


def by_numpy(array):
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = len(data) // BLOCK
    key = hashlib.shake_256(b"planish").digest(BLOCK + 16)
    words = data[:whole * BLOCK].view(np.uint32).reshape(whole, BLOCK // 4)
    sums = []
    for start in (0, 16):
        added = words + np.frombuffer(key, np.uint32, BLOCK // 4, start)
        sums.append((added[:, ::2].astype(np.uint64) * added[:, 1::2]).sum(axis=1, dtype=np.uint64))
    tail = data[whole * BLOCK:].tobytes()
    text = np.stack(sums, axis=1).tobytes() + tail + len(data).to_bytes(8, "little")
    return hashlib.sha256(text).digest()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_as_the_formula_says(threads):
    rng = np.random.default_rng(threads)
    sizes = (0, 1, 31, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 9 * BLOCK + 77)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in sizes]
    arrays += [rng.normal(size=(300, 70)).astype(np.float32).T, np.full((3, BLOCK), -1, np.int64)]
    assert digests(arrays, threads) == list(map(by_numpy, arrays))
    assert digests([], threads) == []


def test_every_byte_counts():
    rng = np.random.default_rng(3)
    array = rng.integers(0, 256, 3 * BLOCK + 100, np.uint8)
    seen = {digests([array], 2)[0], digests([array[:-1]], 2)[0], digests([np.append(array, 0)], 2)[0]}
    places = rng.choice(len(array), 500, replace=False)
    for place in places:
        changed = array.copy()
        changed[place] ^= 1 << rng.integers(8)
        seen.add(digests([changed], 2)[0])
    words = array[:3 * BLOCK].view(np.uint32).copy()
    words[:2] = words[1::-1]  # neighbours the other way round
    seen |= {digests([words], 2)[0], digests([np.roll(words, BLOCK // 4)], 2)[0]}
    assert len(seen) == len(places) + 5
