"""Programs on OpenMP's threads: each runs once, barriers hold, a fork falls back to our own pool."""
from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from planish.runtime import native, openmp, tables
from tests.runtime.programs import compile_ir, reverse_program
from tests.runtime.test_pool import _COUNT, _ROUNDS


@pytest.fixture
def library():
    """OpenMP's library, in use; forgotten again after the test."""
    try:
        ctypes.CDLL(openmp.LIBRARY)
    except OSError:
        pytest.skip(f"there is no {openmp.LIBRARY} here")
    native.runtime().join_openmp()
    assert _elsewhere().value == native.runtime().image("torch").address("planish_parallel_openmp")
    yield
    _elsewhere().value = native.runtime().code.address("planish_parallel")


def _elsewhere():
    return ctypes.c_void_p.from_address(native.runtime().code.address("planish_elsewhere"))


def _parallel(code, frame, count):
    """As a program does that is to run on OpenMP's threads."""
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(_elsewhere().value)
    run(native.runtime().pool, code.address("planish_body"), frame.ctypes.data, count)


def _check_counts(code, count):
    frame = np.zeros(2048, np.int64)
    _parallel(code, frame, count)
    assert frame[::8][:255].tolist() == [1] * count + [0] * (255 - count)
    assert frame[2040] == count


@pytest.mark.parametrize("count", [1, 2, 5, 3, 1])
def test_each_thread_runs_the_body_once(library, count):
    code = native.load(compile_ir(_COUNT))
    for _ in range(20):
        _check_counts(code, count)


def test_without_the_library_it_is_the_pool():
    _check_counts(native.load(compile_ir(_COUNT)), 3)


def test_barriers_hold(library):
    code = native.load(compile_ir(_ROUNDS))
    frame = np.zeros(64, np.int64)
    frame[0], frame[1] = 300, native.runtime().pool
    _parallel(code, frame, 2)
    assert frame[16] == 0 and frame[8] == 600


def test_a_marked_program_gives_the_same(library):
    program, x = reverse_program(), np.arange(24, dtype=np.float32)
    expected = program(x)
    program.use_openmp()
    np.testing.assert_array_equal(program(x), expected)
    assert program._core.table.flags & tables.OPENMP


_FORKED = """
import ctypes, os
import numpy as np
from planish.runtime import native, openmp
from tests.runtime.programs import compile_ir
from tests.runtime.test_openmp import _check_counts
from tests.runtime.test_pool import _COUNT
ctypes.CDLL(openmp.LIBRARY)
native.runtime().join_openmp()
code = native.load(compile_ir(_COUNT))
_check_counts(code, 2)
child = os.fork()
if not child:
    _check_counts(code, 2)
    native.runtime().join_openmp()      # of no effect here
    _check_counts(code, 2)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
_check_counts(code, 2)
"""


def test_a_child_has_threads_of_its_own(library):
    """OpenMP's threads are not in the child, where a region of its library would wait for ever."""
    subprocess.run([sys.executable, "-c", _FORKED], check=True, timeout=60)
