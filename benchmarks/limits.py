"""What this machine can do at most, probed by small kernels in LLVM IR: memory traffic and arithmetic.

`seconds_to_move(read, write)` is how long the threads need to read and write that many bytes, over and
over, so data that fits a cache is read from there, as it is for a program called over and over.
`flops_per_second()` is the rate of fused multiply-adds on float32 vectors in registers, both operations
counted. `seconds_at_least` combines them: no implementation of a workload takes less than the larger of
the two.

Each kernel repeats its work inside, so starting the Python threads costs nothing measurable; ctypes lets
go of Python's lock while a kernel runs.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from time import perf_counter

import llvmlite.binding as llvm
import numpy as np

PROBE_SECONDS = 0.04
ATTEMPTS = 5
UNROLL = 4
CHAINS = 12   # independent multiply-adds: at least latency times issue rate, 4 x 2 on today's cores


def _lanes() -> int:
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx") else 4


def _loop(name: str, parameters: str, body: str, step: int) -> str:
    """`name(parameters, count, repeats)`: the body for %i in 0, step, ... below %count, `repeats` times
    over."""
    return f"""
define void @{name}({parameters}, i64 %count, i64 %repeats) {{
entry:
  br label %again
again:
  %r = phi i64 [0, %entry], [%r.next, %done]
  br label %loop
loop:
  %i = phi i64 [0, %again], [%i.next, %loop]
{body}
  %i.next = add nuw i64 %i, {step}
  %more = icmp ult i64 %i.next, %count
  br i1 %more, label %loop, label %done
done:
  %r.next = add nuw i64 %r, 1
  %go = icmp ult i64 %r.next, %repeats
  br i1 %go, label %again, label %exit
exit:
  ret void
}}
"""


def _traffic(name: str, *, read: bool, write: str | None) -> str:
    """A kernel over float32 arrays %x and %y; `write` is None, "" or a hint that goes with the store.

    Loads are volatile when nothing else uses them: LLVM would drop them.
    """
    lanes, lines = _lanes(), []
    vector = f"<{lanes} x float>"
    for u in range(UNROLL):
        lines += [f"  %o{u} = add i64 %i, {u * lanes}", f"  %p{u} = getelementptr float, ptr %x, i64 %o{u}",
                  f"  %q{u} = getelementptr float, ptr %y, i64 %o{u}"]
        if read:
            kind = "load volatile" if write is None else "load"
            lines += [f"  %v{u} = {kind} {vector}, ptr %p{u}, align {4 * lanes}"]
        if write is not None:
            value = f"%v{u}" if read else "zeroinitializer"
            lines += [f"  store {vector} {value}, ptr %q{u}, align {4 * lanes}{write}"]
    return _loop(name, "ptr noalias %x, ptr noalias %y", "\n".join(lines), UNROLL * lanes)


def _multiply_add() -> str:
    """`fma(sums, ignored, count, repeats)`: %count times CHAINS independent multiply-adds of vectors."""
    lanes = _lanes()
    vector, half = f"<{lanes} x float>", "splat (float 0.5)"
    body = [f"  %a{k} = phi {vector} [{half}, %again], [%b{k}, %loop]" for k in range(CHAINS)]
    body += [f"  %b{k} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{k}, {vector} %m, {vector} {half})"
             for k in range(CHAINS)]
    text = _loop("fma", "ptr %x, ptr %y", "\n".join(body), 1)
    text = text.replace("entry:\n", f"entry:\n  %m = load {vector}, ptr %y, align {4 * lanes}\n")
    sums = "".join(f"  %p{k} = getelementptr {vector}, ptr %x, i64 {k}\n"
                   f"  store {vector} %b{k}, ptr %p{k}, align {4 * lanes}\n" for k in range(CHAINS))
    return text.replace("done:\n", "done:\n" + sums)


Kernel = Callable[[int, int, int, int], None]   # addresses of x and y, count, repeats


@cache
def _kernels() -> tuple[dict[str, Kernel], llvm.ExecutionEngine]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    nontemporal = ", !nontemporal !0"
    text = "".join([
        _traffic("read", read=True, write=None),
        _traffic("copy", read=True, write=""), _traffic("copy_nontemporal", read=True, write=nontemporal),
        _traffic("write", read=False, write=""), _traffic("write_nontemporal", read=False, write=nontemporal),
        _multiply_add(), "!0 = !{i32 1}\n"])
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu, features, opt=2)
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)   # no optimiser: the loops are what is to run
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    names = ("read", "copy", "copy_nontemporal", "write", "write_nontemporal", "fma")
    return {name: signature(engine.get_function_address(name)) for name in names}, engine


def _aligned(bytes_: int) -> np.ndarray:
    """Touched memory at an address that any vector may use, as float32. Zeros that nobody wrote would all be
    read from one page."""
    raw = np.empty(bytes_ + 64, np.uint8)
    raw.fill(0)
    start = -raw.ctypes.data % 64
    return raw[start:start + bytes_].view(np.float32)


def _best_seconds(kernel: Kernel, blocks: Sequence[tuple[int, int, int]]) -> float:
    """Seconds for one repetition when each (x, y, count) has a thread of its own: the best of some
    tries."""
    def attempt(repeats: int) -> float:
        start = perf_counter()
        list(pool.map(lambda block: kernel(*block, repeats), blocks))
        return (perf_counter() - start) / repeats

    with ThreadPoolExecutor(len(blocks)) as pool:
        repeats = 1
        while attempt(repeats) * repeats < PROBE_SECONDS / 4:
            repeats *= 2
        return min(attempt(4 * repeats) for _ in range(ATTEMPTS))


def _block_bytes(bytes_: int, threads: int) -> int:
    """One thread's share, up to the next whole step of a kernel."""
    step = 4 * UNROLL * _lanes()
    return -(-bytes_ // threads // step) * step


def _seconds(names: Sequence[str], bytes_: int, threads: int) -> float:
    """The fastest of some kernels on arrays of so many bytes."""
    if bytes_ == 0:
        return 0.0
    share = _block_bytes(bytes_, threads)
    arrays = [(_aligned(share), _aligned(share)) for _ in range(threads)]
    blocks = [(x.ctypes.data, y.ctypes.data, share // 4) for x, y in arrays]
    return min(_best_seconds(_kernels()[0][name], blocks) for name in names)


def seconds_to_move(read: int, write: int, threads: int) -> float:
    """To copy what is both read and written, and read or write the rest; by plain or non-temporal
    stores."""
    both = min(read, write)
    return (_seconds(["copy", "copy_nontemporal"], both, threads) + _seconds(["read"], read - both, threads)
            + _seconds(["write", "write_nontemporal"], write - both, threads))


def flops_per_second(threads: int) -> float:
    count, lanes = 10_000, _lanes()
    arrays = [(_aligned(64 * CHAINS), _aligned(64)) for _ in range(threads)]
    blocks = [(x.ctypes.data, y.ctypes.data, count) for x, y in arrays]
    return 2 * lanes * CHAINS * count * threads / _best_seconds(_kernels()[0]["fma"], blocks)


def seconds_at_least(flops: int, read: int, write: int, threads: int) -> float:
    return max(flops / flops_per_second(threads), seconds_to_move(read, write, threads))
