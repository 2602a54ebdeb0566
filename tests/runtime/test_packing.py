"""Native packing gives what the derivation means, bit for bit, on any number of threads."""
from __future__ import annotations

import numpy as np
import pytest

from planish.ops.content import Content
from planish.runtime.packing import LARGE, arrays_over, bytes_of, pack_into, units_of, zeroed
from planish.schedule.packing import pack, packed, panels_shape, transposed

VIEWS = {  # (start, sizes [n, k...], strides in elements)
    "rows": lambda n, k: (0, (n, k), (1, n)),
    "lanes": lambda n, k: (0, (n, k), (k, 1)),
    "from the middle": lambda n, k: (n, (n, k - 1), (1, n)),
    "every other": lambda n, k: (1, (n // 2, k), (2, n)),
}


def pack_all(jobs, threads, step=None):
    """The panels; with `step`, packed by shares of so many units."""
    wanted = [(panels_shape(p[1], *p[3:]), array.dtype) for p, array, *_ in jobs]
    panels = arrays_over(zeroed(bytes_of(wanted)), wanted)
    if step is None:
        pack_into(panels, jobs, threads)
    for target, job in zip(panels, jobs) if step else ():
        units = units_of(job[0], is_scaled=len(job) > 2)
        for first in range(0, units, step):
            pack_into([target], [job], threads, [(first, min(first + step, units))])
    return panels


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "pair", "whole"), [
    (16, 1, 1), (24, 1, 1), (8, 1, 1), (16, 2, 1), (8, 2, 1), (3, 1, 1), (32, 2, 32), (8, 1, 6)])
def test_panels_of_any_view(view, width, pair, whole):
    rng = np.random.default_rng(width + pair)
    jobs = []
    for n, k in ((16, 16), (33, 41), (5, 3), (100, 65), (2, 2)):
        for dtype in (np.float32, np.float64, np.int16, np.int8):
            start, sizes, strides = VIEWS[view](n, k)
            array = rng.integers(-100, 100, n * k).astype(dtype)
            jobs.append(((start, sizes, strides, width, pair, whole), array))
    right = [pack(parameters, array) for parameters, array in jobs]
    for threads, step in ((1, None), (2, None), (3, None), (2, 1), (1, 5)):
        for expected, panels in zip(right, pack_all(jobs, threads, step), strict=True):
            assert panels.dtype == expected.dtype and panels.shape == expected.shape
            np.testing.assert_array_equal(panels, expected)
            assert panels.ctypes.data % 64 == 0


def test_taps_of_a_convolution_and_huge_pages():
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(200, 96, 3, 3)).astype(np.float32)
    large = rng.normal(size=(1030, 600)).astype(np.float32)
    jobs = [((0, (200, 3, 3, 96), (864, 3, 1, 9), 16, 1, 1), kernel),
            ((0, (600, 1030), (1, 600), 16, 1, 1), large)]
    panels = pack_all(jobs, 2)
    assert sum(p.nbytes for p in panels) > LARGE
    for (parameters, array), found in zip(jobs, panels, strict=True):
        np.testing.assert_array_equal(found, pack(parameters, array))


def test_arrays_that_are_not_contiguous_are_read_as_if():
    array = np.arange(60, dtype=np.float32).reshape(6, 10).T
    parameters = (0, (6, 10), (1, 6), 4, 1, 1)
    found, = pack_all([(parameters, array)], 2)
    np.testing.assert_array_equal(found, pack(parameters, array))
    np.testing.assert_array_equal(found[0, :, 0], array[:, 0])


@pytest.mark.parametrize("seed", range(40))
def test_panels_of_what_was_moved_are_panels_of_what_it_was_moved_from(seed):
    """A view of a transposed constant is taken of the constant itself where it can be."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(v) for v in rng.integers(1, 6, int(rng.integers(2, 5))))
    leaf = Content.of(rng.normal(size=shape).astype(np.float32))
    order = tuple(int(v) for v in rng.permutation(len(shape)))
    moved = transposed(leaf, order)
    steps = np.cumprod([1, *moved.type.shape[:0:-1]])[::-1]
    start, sizes, strides = 0, [], []
    for k in rng.permutation(len(shape)):
        low, stride = int(rng.integers(moved.type.shape[k])), int(rng.integers(1, 3))
        start += low * int(steps[k])
        sizes.append(int(rng.integers(1, (moved.type.shape[k] - 1 - low) // stride + 2)))
        strides.append(stride * int(steps[k]))
    view = (start, tuple(sizes), tuple(strides), 4, 1, 1)
    made = packed(moved, *view)
    assert made.derivation.sources[0] is leaf
    np.testing.assert_array_equal(made.value, pack(view, moved.value))


def test_a_view_across_axes_is_taken_of_the_transposed():
    leaf = Content.of(np.arange(12, dtype=np.float32).reshape(3, 4))
    moved = transposed(leaf, (1, 0))
    made = packed(moved, 0, (12, 1), (1, 12), 4)
    assert made.derivation.sources[0] is moved
    assert made.value.reshape(-1).tolist() == leaf.value.T.reshape(-1).tolist()


def test_scaled_columns_are_packed_as_their_product():
    rng = np.random.default_rng(2)
    kernel = rng.normal(size=(50, 12, 3, 3)).astype(np.float32)
    scale = rng.normal(size=(50, 1, 1, 1)).astype(np.float32)
    contents = [Content.of(kernel), Content.of(scale)]
    product = Content.derived("op", ("mul",), contents, contents[0].type)
    view = (0, (50, 3, 3, 12), (108, 3, 1, 9), 16, 1, 1)
    made = packed(product, *view)
    assert made.derivation.sources == tuple(contents)
    expected = pack(view, kernel * scale)
    np.testing.assert_array_equal(made.value, expected)
    for threads, step in ((1, None), (2, None), (2, 3)):
        found, plain = pack_all([(view, kernel, scale), (view, kernel)], threads, step)
        assert found.tobytes() == expected.tobytes() and plain.tobytes() == pack(view, kernel).tobytes()
    across = packed(product, 0, (12, 50), (9, 108), 16)  # columns that are not the scaled axis
    assert across.derivation.sources == (product,)
