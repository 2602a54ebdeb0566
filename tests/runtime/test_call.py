"""The builtin against the ctypes road and NumPy: values, signatures, errors, dynamic sizes."""
from __future__ import annotations

import gc
import json
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

from planish.errors import PlanishError, ShapeError, SignatureError
from planish.runtime.program import NativeProgram
from planish.runtime.spec import ArraySpec, DimRef, ProgramSpec
from planish.runtime.tables import WORTH_THREADS
from planish.runtime.threads import get_num_threads
from tests.runtime.programs import (
    add_program,
    address_program,
    checked_program,
    reverse_program,
    sized_threads_program,
    threads_program,
)

rng = np.random.default_rng()


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def fixed():
    return add_program(shape=(3, 4))


@pytest.fixture(scope="module")
def dynamic():
    return add_program()


def test_the_builtin_is_in_use(fixed):
    assert type(fixed.call).__name__ == "builtin_function_or_method"


@pytest.mark.parametrize("shape", [(3, 4), (1,), (), (0,), (2, 0, 3), (5, 1, 2, 1, 2)])
def test_fixed_shapes(shape):
    program = add_program(shape=shape)
    a, b = floats(*shape), floats(*shape)
    got = program(a, b)
    assert type(got) is np.ndarray and got.shape == shape and got.dtype == np.float32
    np.testing.assert_array_equal(got, a + b)
    np.testing.assert_array_equal(got, program.call_ctypes(a, b))


@pytest.mark.parametrize("n", [0, 1, 7, 16_384, 100_000, 600_000])
def test_any_length_small_and_large_outputs(dynamic, n):
    a, b = floats(n), floats(n)
    got = dynamic(a, b)
    np.testing.assert_array_equal(got, a + b)
    np.testing.assert_array_equal(dynamic.call_ctypes(a, b), a + b)
    assert got.flags.c_contiguous and got.flags.aligned and got.flags.writeable
    assert n < 16_384 or got.ctypes.data % 64 == 0


@pytest.mark.parametrize(("dtype", "type_", "opcode"), [
    ("int8", "i8", "add"), ("uint8", "i8", "add"), ("int16", "i16", "add"), ("uint16", "i16", "add"),
    ("int32", "i32", "add"), ("uint32", "i32", "add"), ("int64", "i64", "add"), ("uint64", "i64", "add"),
    ("bool", "i8", "or"), ("float64", "double", "fadd"), ("float16", "i16", "xor"),
    ("bfloat16", "i16", "xor")])
def test_every_dtype(dtype, type_, opcode):
    numpy_type = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    program = add_program(dtype, (5,), type_, opcode)
    a = rng.integers(0, 2, 5).astype(numpy_type)
    got = program(a, np.zeros(5, numpy_type))
    assert got.dtype == numpy_type
    np.testing.assert_array_equal(got, a)
    with pytest.raises(SignatureError, match=dtype):
        program(a, np.zeros(5, np.complex64))


def test_a_dtype_of_the_same_size_is_refused():
    program = add_program("float16", (4,), "i16", "xor")
    for other in (np.int16, ml_dtypes.bfloat16):
        with pytest.raises(SignatureError, match="float16"):
            program(np.zeros(4, other), np.zeros(4, np.float16))


def test_results_are_new_each_time(fixed):
    a, b = floats(3, 4), floats(3, 4)
    first = fixed(a, b)
    kept = first.copy()
    for _ in range(50):
        fixed(floats(3, 4), b)
    np.testing.assert_array_equal(first, kept)


def test_unusual_arrays_are_taken_as_what_they_are(fixed):
    a, b = floats(3, 4), floats(3, 4)
    misaligned = np.frombuffer(b"x" + b.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)
    unpickled = np.dtype("float32", copy=True)
    variants = [np.asfortranarray(b), np.repeat(b, 2, axis=1)[:, ::2], b[::-1][::-1], b.astype(">f4"),
                misaligned, b.view(np.matrix), b.astype(unpickled), b.view(np.recarray)]
    for variant in variants:
        np.testing.assert_array_equal(fixed(a, variant), a + b)
        assert type(fixed(a, variant)) is np.ndarray


def test_the_body_sees_the_array_itself_or_an_aligned_copy():
    program = address_program()
    plain = np.zeros(4)
    assert program(plain) == plain.ctypes.data
    assert program(plain.view(np.recarray)) == plain.ctypes.data
    misaligned = np.zeros(33, np.uint8)[1:].view(np.float64)
    assert misaligned.ctypes.data % 8
    assert int(program(misaligned)) % 8 == 0


def test_zero_rank_scalars():
    program = add_program("float64", (), "double")
    assert program(np.float64(1.5), np.array(2.0)) == 3.5


@pytest.mark.parametrize(("arguments", "kind", "words"), [
    ((np.zeros((3, 4), "f4"),), SignatureError, "missing: b"),
    ((np.zeros((3, 4), "f4"),) * 3, SignatureError, "3 are given"),
    ((np.zeros((3, 4), "f4"), np.zeros((3, 4), "f8")), SignatureError, "'b'.*float32.*float64"),
    ((np.zeros((3, 4), "f4"), [[0.0] * 4] * 3), SignatureError, "'b'.*list"),
    ((np.zeros((3, 4), "f4"), None), SignatureError, "'b'.*NoneType"),
    ((np.zeros((3, 4), "f4"), 1.0), SignatureError, "'b'.*got float$"),
    ((np.zeros((3, 4), "f4"), np.ma.zeros((3, 4), "f4")), SignatureError, "got MaskedArray$"),
    ((np.zeros((4, 3), "f4"), np.zeros((3, 4), "f4")), ShapeError, r"'a'.*\[3, 4\].*\[4, 3\]"),
    ((np.zeros((3, 4), "f4"), np.zeros(12, "f4")), ShapeError, r"'b'.*\[12\]"),
    ((np.zeros((3, 4), "f4"), np.zeros((3, 4, 1), "f4")), ShapeError, "'b'"),
])
def test_one_clear_error(fixed, arguments, kind, words):
    for call in (fixed.call, fixed, fixed.call_ctypes):
        with pytest.raises(kind, match=words):
            call(*arguments)


def test_keywords(fixed):
    a, b = floats(3, 4), floats(3, 4)
    np.testing.assert_array_equal(fixed.call(b=b, a=a), a + b)
    np.testing.assert_array_equal(fixed.call(a, b=b), a + b)
    with pytest.raises(SignatureError, match="'c'"):
        fixed.call(a, c=b)
    with pytest.raises(SignatureError, match="'a'"):
        fixed.call(a, b, a=a)


def test_symbols_must_agree(dynamic):
    for call in (dynamic.call, dynamic.call_ctypes):
        with pytest.raises(ShapeError, match=r"'a' axis 0 is 3.*'b' axis 0 is 4"):
            call(floats(3), floats(4))


def test_out_of_range_sizes():
    program = reverse_program()
    for call in (program.call, program.call_ctypes):
        with pytest.raises(ShapeError, match=r"too long; got a\[1000001\]"):
            call(np.zeros(1_000_001, np.float32))


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 50_001])
def test_barrier_arena_and_threads(n):
    program = reverse_program(release_gil=True)
    a = floats(n)
    np.testing.assert_array_equal(program(a), 2 * a[::-1])
    np.testing.assert_array_equal(program.call_ctypes(a), 2 * a[::-1])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_program_may_have_a_thread_count_of_its_own(count):
    program = threads_program(count)
    assert program() == program.call_ctypes() == count
    assert threads_program(0)() == threads_program(0).call_ctypes() == get_num_threads()


def test_little_work_is_done_by_one_thread():
    program = threads_program(2, work=WORTH_THREADS - 1)
    assert program() == program.call_ctypes() == 1


@pytest.mark.parametrize(("n", "threads"), [(1, 1), (WORTH_THREADS - 1, 1), (WORTH_THREADS, 2)])
def test_sizes_of_a_call_decide_about_threads(n, threads):
    program = sized_threads_program(2)
    a = np.zeros(n, np.int8)
    assert program(a) == program.call_ctypes(a) == threads


def test_constants_several_outputs_and_run_time_checks():
    program = checked_program(np.array([2.5]))
    c, d = program(np.array([1.0]))
    assert c.shape == () and c == 3.5 and d.tolist() == [[7]]
    for call in (program.call, program.call_ctypes):
        with pytest.raises(ValueError, match=r"a\[0\] is negative"):
            call(np.array([-1.0]))
    assert program(np.array([0.0]))[0] == 2.5


def test_unknown_status_is_an_error():
    program = checked_program(np.array([2.5]))
    spec = ProgramSpec(program.spec.inputs, program.spec.outputs)
    bare = NativeProgram(program._core.code, spec, [np.ones(1)])
    with pytest.raises(PlanishError, match="status 3"):
        bare(np.array([-1.0]))


def test_many_callers_at_once():
    program = reverse_program(release_gil=True)
    faults = []
    def caller(seed):
        mine = np.random.default_rng(seed)
        for _ in range(200):
            a = mine.standard_normal(mine.integers(1, 3000)).astype(np.float32)
            if not np.array_equal(program(a), 2 * a[::-1]):
                faults.append(seed)
    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(6)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not faults


def test_no_reference_is_lost_or_kept(fixed):
    a, b = floats(3, 4), floats(3, 4)
    results = [fixed(a, b) for _ in range(10)]
    def rejected():
        try:
            fixed(a, [])
        except SignatureError:
            return True
    before = [sys.getrefcount(x) for x in (a, b, a.dtype)]
    for _ in range(1000):
        fixed(a, b)
        fixed(a[::-1], b)
        rejected()
    after = [sys.getrefcount(x) for x in (a, b, a.dtype)]
    assert all(abs(x - y) < 20 for x, y in zip(before, after, strict=True))
    assert all(sys.getrefcount(r) <= 3 for r in results)


def test_a_dropped_program_frees_its_constants_at_once():
    constant = np.ones(100)
    program = checked_program(constant)
    held = weakref.ref(program._core)
    gc.disable()
    try:
        del program
        assert held() is None
    finally:
        gc.enable()


def test_the_builtin_outlives_the_program_object():
    call = add_program(shape=(2,)).call
    gc.collect()
    assert call(np.ones(2, "f4"), np.ones(2, "f4")).tolist() == [2, 2]


def test_spec_round_trips_and_is_checked():
    spec = reverse_program().spec
    assert ProgramSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(ValueError, match="spec"):
        ProgramSpec.from_json({"inputs": 3})
    a = ArraySpec("a", "float32", (DimRef(1),))
    with pytest.raises(ValueError, match="entries"):
        ProgramSpec((a,), ())
    with pytest.raises(ValueError, match="binds symbol 0"):
        ProgramSpec((a,), (), 1, 2)
    with pytest.raises(ValueError, match="bare"):
        ProgramSpec((), (), unwrap_single=True)
