"""Linked aarch64 code runs: every relocation our kernels use, data, symbols, constants, scratch memory."""
from __future__ import annotations

import numpy as np
import pytest

from planish.codegen.llvm.emit import emit_assembly, emit_object
from planish.codegen.llvm.host import aarch64
from planish.runtime import entry, memory, pool
from planish.runtime.link import link
from tests.qemu import run_aarch64
from tests.runtime import programs

pytestmark = pytest.mark.qemu
rng = np.random.default_rng()


def _object(text):
    target = aarch64()
    return emit_object(text, target.triple, target.cpu, target.features)


def test_a_kernel():
    a, b = rng.standard_normal((2, 3, 5)).astype(np.float32)
    got, = run_aarch64([_object(programs.add_ir(count=15))], [a, b], [((3, 5), np.float32)])
    np.testing.assert_array_equal(got, a + b)


@pytest.mark.parametrize("n", [0, 1, 333])
def test_symbols_and_scratch(n):
    a = rng.standard_normal(n).astype(np.float32)
    text = programs._HEAD + programs._REVERSE
    got, = run_aarch64([_object(text)], [a], [((n,), np.float32)], dims=[n], n_dims=2, arena=4 * n)
    np.testing.assert_array_equal(got, 2 * a[::-1])
    with pytest.raises(AssertionError, match="refuses these sizes"):
        run_aarch64([_object(text)], [a], [((n,), np.float32)], dims=[2_000_000], n_dims=2, arena=4 * n)


def test_constants_outputs_and_checks():
    objects = [_object(programs._HEAD + programs._CHECKED)]
    c, d = run_aarch64(objects, [np.array([1.0])], [((), np.float64), ((1, 1), np.int64)], [np.array([2.5])])
    assert c == 3.5 and d.tolist() == [[7]]
    with pytest.raises(AssertionError, match="a check in the program failed"):
        run_aarch64(objects, [np.array([-1.0])], [((), np.float64), ((1, 1), np.int64)], [np.array([2.5])])


# out[i] for i in 0..8: jump table, table of functions, constants of every width, writable data, copies
_REFERENCES = """
@bytes = private constant [4 x i8] c"\\01\\02\\03\\04"
@halves = private constant [4 x i16] [i16 10, i16 20, i16 30, i16 40]
@words = private constant [4 x i32] [i32 100, i32 200, i32 300, i32 400]
@longs = private constant [4 x i64] [i64 1000, i64 2000, i64 3000, i64 4000]
@functions = internal constant [2 x ptr] [ptr @plus, ptr @twice]
@state = internal global i64 5
@copied = internal global [32 x i64] zeroinitializer
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @elsewhere(ptr)
define internal i64 @plus(i64 %x) noinline { %y = add i64 %x, 7
 ret i64 %y }
define internal i64 @twice(i64 %x) noinline { %y = mul i64 %x, 2
 ret i64 %y }
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
entry:
  %buffers = load ptr, ptr %frame
  %in = load ptr, ptr %buffers
  %out_at = getelementptr ptr, ptr %buffers, i64 1
  %out = load ptr, ptr %out_at
  %i = load i64, ptr %in
  %pb = getelementptr [4 x i8], ptr @bytes, i64 0, i64 %i
  %b = load i8, ptr %pb
  %b64 = zext i8 %b to i64
  %ph = getelementptr [4 x i16], ptr @halves, i64 0, i64 %i
  %h = load i16, ptr %ph
  %h64 = zext i16 %h to i64
  %pw = getelementptr [4 x i32], ptr @words, i64 0, i64 %i
  %w = load i32, ptr %pw
  %w64 = zext i32 %w to i64
  %pl = getelementptr [4 x i64], ptr @longs, i64 0, i64 %i
  %l = load i64, ptr %pl
  %s1 = add i64 %b64, %h64
  %s2 = add i64 %s1, %w64
  %s3 = add i64 %s2, %l
  store i64 %s3, ptr %out
  %pf = getelementptr [2 x ptr], ptr @functions, i64 0, i64 1
  %f = load volatile ptr, ptr %pf
  %fv = call i64 %f(i64 21)
  %o1 = getelementptr i64, ptr %out, i64 1
  store i64 %fv, ptr %o1
  %st = load i64, ptr @state
  %st1 = add i64 %st, 1
  store i64 %st1, ptr @state
  %o2 = getelementptr i64, ptr %out, i64 2
  %st2 = load volatile i64, ptr @state
  store i64 %st2, ptr %o2
  call void @llvm.memset.p0.i64(ptr @copied, i8 1, i64 256, i1 false)
  %bytes_to_copy = mul i64 %i, 8
  call void @llvm.memcpy.p0.p0.i64(ptr @copied, ptr %in, i64 %bytes_to_copy, i1 false)
  %c0 = load volatile i64, ptr @copied
  %o3 = getelementptr i64, ptr %out, i64 3
  store i64 %c0, ptr %o3
  %pc = getelementptr [32 x i64], ptr @copied, i64 0, i64 31
  %c31 = load volatile i64, ptr %pc
  %o4 = getelementptr i64, ptr %out, i64 4
  store i64 %c31, ptr %o4
  %o5 = getelementptr i64, ptr %out, i64 5
  call void @elsewhere(ptr %o5)
  %o7 = getelementptr i64, ptr %out, i64 7
  %v = load <2 x i64>, ptr %in, align 8
  %vs = add <2 x i64> %v, <i64 123456789, i64 -987654321>
  store <2 x i64> %vs, ptr %o7, align 8
  ret void
}
"""
_ELSEWHERE = """
@state = internal global i64 50
@shared = global i64 9
@pointer = global ptr @shared
define internal i64 @plus(i64 %x) noinline { %y = add i64 %x, 70
 ret i64 %y }
define void @elsewhere(ptr %to) {
  %s = load volatile i64, ptr @state
  %p = call i64 @plus(i64 %s)
  store i64 %p, ptr %to
  %q = load volatile ptr, ptr @pointer
  %v = load i64, ptr %q
  %second = getelementptr i64, ptr %to, i64 1
  store i64 %v, ptr %second
  ret void
}
"""


def test_every_kind_of_reference():
    got, = run_aarch64([_object(_REFERENCES), _object(_ELSEWHERE)], [np.array([2, 5])], [((9,), np.int64)])
    ones = 0x0101010101010101
    assert got.tolist() == [3 + 30 + 300 + 3000, 42, 6, 2, ones, 120, 9, 2 + 123456789, 5 - 987654321]


def test_the_runtime_itself_cross_compiles():
    """Not run here (it needs Python on the machine), but emitted and linked; waiting yields, and asks the
    right futex."""
    texts = [pool.ir("aarch64"), memory.ir("aarch64"), entry.ir("aarch64", 16)]
    blob = link([_object(text) for text in texts])
    assert {"planish_parallel", "planish_barrier", "planish_entry", "planish_alloc"} <= set(blob.symbols)
    assembly = emit_assembly(texts[0], aarch64().triple)
    assert "yield" in assembly and "#98" in assembly
