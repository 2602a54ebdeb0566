"""Programs on the threads of an OpenMP library that the process has loaded already, as LLVM IR.

A thread of GNU's OpenMP spins for 10 ms (measured) after a parallel region, waiting for the next. Where such
regions and ours take turns, as those of eager PyTorch's loss and optimiser do with the programs of a training
step, the threads of our own pool share their CPUs with it for so long. A program that is known to be called
like that runs as a parallel region of the same library, on the thread that spins.

Exports
    planish_openmp    where GOMP_parallel, omp_get_thread_num and omp_get_num_threads are, to be filled in
    planish_parallel_openmp(ptr pool, ptr body, ptr frame, i64 threads)
                      runs as `planish_parallel`. Not in a child after a fork, where OpenMP's threads are gone
"""

from __future__ import annotations

import ctypes
import os

NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
LIBRARY = "libgomp.so.1"
BODY, FRAME = 0, 8  # of a job


def addresses() -> tuple[int, ...]:
    """Those of NAMES in the library that is loaded already; empty without one."""
    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in NAMES)
    except (OSError, AttributeError):
        return ()


def ir(triple: str) -> str:
    """The module's text."""
    return f"""\
target triple = "{triple}"
@planish_openmp = global [{len(NAMES)} x ptr] zeroinitializer, align 8
declare void @planish_clear_claims(ptr, i64)

define internal void @member(ptr %job) nounwind {{
entry:
  %number_at = getelementptr ptr, ptr @planish_openmp, i64 1
  %count_at = getelementptr ptr, ptr @planish_openmp, i64 2
  %number_of = load ptr, ptr %number_at, align 8
  %count_of = load ptr, ptr %count_at, align 8
  %number32 = call i32 %number_of()
  %count32 = call i32 %count_of()
  %number = sext i32 %number32 to i64
  %count = sext i32 %count32 to i64
  %body_at = getelementptr i8, ptr %job, i64 {BODY}
  %frame_at = getelementptr i8, ptr %job, i64 {FRAME}
  %body = load ptr, ptr %body_at, align 8
  %frame = load ptr, ptr %frame_at, align 8
  call void %body(ptr %frame, i64 %number, i64 %count)
  ret void
}}

define void @planish_parallel_openmp(ptr %pool, ptr %body, ptr %frame, i64 %wanted) nounwind {{
entry:
  %parallel = load ptr, ptr @planish_openmp, align 8
  %alone = icmp sle i64 %wanted, 1
  br i1 %alone, label %serial, label %claim
claim:
  %claimed = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic
  %ok = extractvalue {{i32, i1}} %claimed, 1
  br i1 %ok, label %region, label %serial
serial:
  call void %body(ptr %frame, i64 0, i64 1)
  ret void
region:
  %job = alloca [16 x i8], align 8
  %body_at = getelementptr i8, ptr %job, i64 {BODY}
  %frame_at = getelementptr i8, ptr %job, i64 {FRAME}
  store ptr %body, ptr %body_at, align 8
  store ptr %frame, ptr %frame_at, align 8
  %wanted32 = trunc i64 %wanted to i32
  call void @planish_clear_claims(ptr %pool, i64 %wanted)
  call void %parallel(ptr @member, ptr %job, i32 %wanted32, i32 0)
  store atomic i32 0, ptr %pool release, align 4
  ret void
}}
"""
