"""What the parts of the thread pool cost: a region that runs nothing on every thread, and a barrier in one.

In: how many rounds. Out: microseconds, of the fastest round. The loops around them are native code of their
own, linked over the runtime: a call from Python would cost more than what is measured.
"""
from __future__ import annotations

import ctypes
from time import perf_counter

from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.host import host
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode
from planish.runtime.native import runtime

TURNS = 2000  # of a region or a barrier in one measurement
LOOP = """
declare void @planish_barrier(ptr, i64, i64)
declare void @planish_parallel(ptr, ptr, ptr, i64)
define hidden void @empty(ptr %frame, i64 %tid, i64 %threads) {
  ret void
}
define void @barriers(ptr %pool, i64 %tid, i64 %threads) {
entry:
  br label %next
next:
  %i = phi i64 [0, %entry], [%more, %next]
  call void @planish_barrier(ptr %pool, i64 %tid, i64 %threads)
  %more = add i64 %i, 1
  %go = icmp slt i64 %more, TURNS
  br i1 %go, label %next, label %done
done:
  ret void
}
define void @regions(ptr %pool, i64 %threads) {
entry:
  br label %next
next:
  %i = phi i64 [0, %entry], [%more, %next]
  call void @planish_parallel(ptr %pool, ptr @empty, ptr null, i64 %threads)
  %more = add i64 %i, 1
  %go = icmp slt i64 %more, TURNS
  br i1 %go, label %next, label %done
done:
  ret void
}
""".replace("TURNS", str(TURNS))


def pool_microseconds(rounds: int, threads: int = 2) -> dict[str, float]:
    """The least that a region and a barrier of the thread pool take."""
    native = runtime()
    known = {symbol: native.code.address(symbol) for symbol in native.code.symbols}
    code = LoadedCode(link([emit_object(LOOP, host().triple)]), known)
    pool = native.code.address("planish_pool")
    regions = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("regions"))
    barriers = code.address("barriers")
    calls = {"region": lambda: regions(pool, threads),
             "barrier": lambda: native.parallel(barriers, pool, threads)}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = perf_counter()
            call()
            best[name] = min(best[name], (perf_counter() - start) / TURNS * 1e6)
    return best
