"""Native packing gives what the derivation means, bit for bit, on any number of threads."""
from __future__ import annotations

import numpy as np
import pytest

from planish.runtime.packing import HUGE_PAGE, pack_all
from planish.schedule.packing import pack

VIEWS = {  # (start, sizes [n, k...], strides in elements)
    "rows": lambda n, k: (0, (n, k), (1, n)),
    "lanes": lambda n, k: (0, (n, k), (k, 1)),
    "from the middle": lambda n, k: (n, (n, k - 1), (1, n)),
    "every other": lambda n, k: (1, (n // 2, k), (2, n)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "pair"), [(16, 1), (24, 1), (8, 1), (16, 2), (8, 2), (3, 1)])
def test_panels_of_any_view(view, width, pair):
    rng = np.random.default_rng(width + pair)
    jobs = []
    for n, k in ((16, 16), (33, 41), (5, 3), (100, 65), (2, 2)):
        for dtype in (np.float32, np.float64, np.int16, np.int8):
            start, sizes, strides = VIEWS[view](n, k)
            array = rng.integers(-100, 100, n * k).astype(dtype)
            jobs.append(((start, sizes, strides, width, pair), array))
    for threads in (1, 2, 3):
        for (parameters, array), panels in zip(jobs, pack_all(jobs, threads), strict=True):
            expected = pack(parameters, array)
            assert panels.dtype == expected.dtype and panels.shape == expected.shape
            np.testing.assert_array_equal(panels, expected)
            assert panels.ctypes.data % 64 == 0 and not panels.flags.writeable


def test_taps_of_a_convolution_and_huge_pages():
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(200, 96, 3, 3)).astype(np.float32)
    large = rng.normal(size=(1030, 600)).astype(np.float32)
    jobs = [((0, (200, 3, 3, 96), (864, 3, 1, 9), 16, 1), kernel), ((0, (600, 1030), (1, 600), 16, 1), large)]
    panels = pack_all(jobs, 2)
    assert sum(p.nbytes for p in panels) > HUGE_PAGE
    for (parameters, array), found in zip(jobs, panels, strict=True):
        np.testing.assert_array_equal(found, pack(parameters, array))


def test_arrays_that_are_not_contiguous_are_read_as_if():
    array = np.arange(60, dtype=np.float32).reshape(6, 10).T
    parameters = (0, (6, 10), (1, 6), 4, 1)
    found, = pack_all([(parameters, array)], 2)
    np.testing.assert_array_equal(found, pack(parameters, array))
    np.testing.assert_array_equal(found[0, :, 0], array[:, 0])
