"""Where the time of a program goes: each kernel's share of a call.

In: a compiled graph and arrays, or a function and arguments for it. Out: a `Profile`. The program's body is
written once more with the machine's clock read around each launch (codegen/llvm/clocks.py); its kernels and
constants are those that run without it, and an untimed program carries nothing of this.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, overload

import numpy as np

from planish.api import jit
from planish.codegen.llvm.clocks import launches_of
from planish.codegen.llvm.host import host
from planish.codegen.llvm.native import timed
from planish.compiled import Compiled, NativeCompiled, SegmentedProgram
from planish.errors import PlanishError
from planish.inspect.explain import is_torch
from planish.inspect.machine import MachineInfo, machine_info
from planish.runtime.load import load_beside
from planish.runtime.program import NativeProgram
from planish.runtime.threads import get_num_threads
from planish.schedule.measure import kernel_records
from planish.schedule.program import Program
from planish.schedule.rebuild import canonical
from planish.schedule.text import print_kernel

WARM_UP = 2          # calls that are not counted
CALLS = (5, 1000)    # counted, at least and at most
MS_PER_SECOND = 1e3
BEGAN, ENDED, RUNNING = -3, -2, -1  # words of a thread's row: see clocks.py
SUMMED = ("runs", "ms", "bytes", "flops")  # of a KernelTime


@dataclass(frozen=True)
class KernelTime:
    """One kernel in a call: how often it runs, milliseconds of the slowest thread, bytes read and written and
    floating-point operations (each for all its runs), the ops it computes, and its schedule."""

    name: str
    kind: str
    ops: tuple[str, ...]
    runs: int
    ms: float
    bytes: int
    flops: int
    schedule: tuple[str, ...]

    @property
    def gflops(self) -> float:
        """GFLOP/s."""
        return self.flops / self.ms / 1e6 if self.ms else 0.0

    @property
    def gbytes(self) -> float:
        """GB/s."""
        return self.bytes / self.ms / 1e6 if self.ms else 0.0


@dataclass(frozen=True)
class Profile:
    """Milliseconds are of one call, medians over `calls` of them; `ms` is all of it, `host_ms` what ran
    outside of native code (host ops, the driver). `kernels` are in order of their time, the longest first."""

    name: str
    inputs: list[str]
    machine: MachineInfo
    calls: int
    ms: float
    host_ms: float
    kernels: list[KernelTime]

    @property
    def rest_ms(self) -> float:
        """What is left: launches, waiting for other threads. 0 where kernels ran at the same time."""
        return max(0.0, self.ms - self.host_ms - sum(k.ms for k in self.kernels))


@overload
def profile(what: Compiled, seconds: float = 2.0) -> Callable[..., Profile]: ...


@overload
def profile(what: Callable[..., Any], seconds: float = 2.0, **options: Any) -> Callable[..., Profile]: ...


def profile(what: Any, seconds: float = 2.0, **options: Any) -> Callable[..., Profile]:
    """Where the time of a call goes, kernel by kernel; of so many seconds of calls, five at least.

    profile(compiled)(*arrays)   of a compiled graph (`load_onnx`, `compile_graph`)
    profile(function)(*args)     of a NumPy function, which is compiled as `jit(function, **options)` does it;
                                 what it writes to its arguments is not written
    profile(exported)(*tensors)  of `from_exported`

    Raises PlanishError for what is none of these, and for the library strategy, which has no kernels.
    """
    if isinstance(what, Compiled):
        return lambda *arrays: profiled(what, [np.asarray(a) for a in arrays], seconds)
    if not callable(what):
        raise PlanishError(f"profile takes a compiled graph or a function, not {type(what).__name__}")

    def answer(*args: Any, **keywords: Any) -> Profile:
        prepared = getattr(what, "prepared", None)
        if prepared is None and is_torch(what, args, keywords):
            raise PlanishError("profile takes a torch program as one graph: planish.profile("
                               "planish.from_exported(torch.export.export(module, args)))(*args)")
        compiled, arrays = (prepared or jit(what, **options).prepared)(*args, **keywords)
        return profiled(compiled, arrays, seconds)

    return answer


def profiled(compiled: Compiled, arrays: Sequence[np.ndarray], seconds: float,
             say: Callable[[str], None] = lambda text: None) -> Profile:
    """The profile of calls with these arrays."""
    parts = compiled.parts if isinstance(compiled, SegmentedProgram) else (compiled,)
    native = [part for part in parts if isinstance(part, NativeCompiled)]
    if compiled.options.strategy == "library" or len(native) != len(parts):
        raise PlanishError(f"{compiled.captured.name}: the library strategy runs op by op and has no kernels "
                           "to profile; use strategy='native'")
    if compiled.options.target not in (None, host()):
        raise PlanishError(f"{compiled.captured.name} is compiled for another machine and can't run here")
    say("compile with clocks")
    machine, threads = machine_info(), compiled.options.threads or get_num_threads()
    watched = [_Timed(part, threads) for part in native]
    stand_ins = tuple(replace(part, program=one) for part, one in zip(native, watched))  # type: ignore[arg-type]
    runner = replace(compiled, parts=stand_ins) if isinstance(compiled, SegmentedProgram) else stand_ins[0]
    say("run")
    walls = _call(runner, watched, arrays, seconds)
    return _profile(compiled, arrays, machine, walls, watched)


def _call(runner: Compiled, watched: Sequence[_Timed], arrays: Sequence[np.ndarray],
          seconds: float) -> list[float]:
    """Seconds of each call that counts."""
    for _ in range(WARM_UP):
        runner(*arrays)
    for one in watched:
        one.forget()
    walls: list[float] = []
    while len(walls) < CALLS[0] or (sum(walls) < seconds and len(walls) < CALLS[1]):
        start = perf_counter()
        runner(*arrays)
        walls.append(perf_counter() - start)
    return walls


def _profile(compiled: Compiled, arrays: Sequence[np.ndarray], machine: MachineInfo, walls: Sequence[float],
             watched: Sequence[_Timed]) -> Profile:
    inside = sum(one.milliseconds() for one in watched)
    whole = float(np.median(walls)) * MS_PER_SECOND
    kernels = sorted((k for one in watched for k in one.kernels()), key=lambda k: -k.ms)
    inputs = [f"{a.dtype}[{', '.join(map(str, a.shape))}]" for a in arrays]
    outside = max(0.0, whole - inside)
    return Profile(compiled.captured.name, inputs, machine, len(walls), whole, outside, kernels)


class _Timed:
    """Stands where a native program stood; runs its timed twin, and keeps the times of each call."""

    def __init__(self, part: NativeCompiled, threads: int):
        code = part.code
        self.scheduled: Program = code.program
        self.program: NativeProgram = load_beside(timed(code, part.options.numerics, threads), part.program,
                                                  threads)
        self.launches = launches_of(self.scheduled)
        self.ticks: list[np.ndarray] = []             # of each call: of each launch, on the slowest thread
        self.spans: list[tuple[int, int]] = []        # ticks when the body began and ended
        self.seconds: list[tuple[float, float]] = []  # the same by Python's clock, around the call
        self.runs = np.zeros(len(self.launches), np.int64)
        self.sizes: dict[str, int] = {}

    def call(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        start = perf_counter()
        *results, times = self.program.call(*arrays)
        self.seconds.append((start, perf_counter()))
        ran, count = times[:times[0, RUNNING]], len(self.launches)
        self.ticks.append(ran[:, :count].max(axis=0))
        self.runs = ran[:, count:2 * count].sum(axis=0)
        self.spans.append((int(ran[0, BEGAN]), int(ran[0, ENDED])))
        self.sizes = self._sizes(arrays)
        return tuple(results)

    def forget(self) -> None:
        """The calls so far were to warm up."""
        for seen in (self.ticks, self.spans, self.seconds):
            seen.clear()

    def _sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        places, known = self.scheduled.places, {s.name for s in self.scheduled.symbols}
        return {str(dim): size for name, array in zip(self.scheduled.inputs, arrays)
                for dim, size in zip(places[name].buffer.shape, np.shape(array)) if str(dim) in known}

    def milliseconds(self) -> float:
        """Of a call, inside of it."""
        return float(np.median([ended - began for began, ended in self.spans])) * self.ms_per_tick()

    def ms_per_tick(self) -> float:
        """By both clocks, from the first call that counts to the end of the last one."""
        ticks = self.spans[-1][1] - self.spans[0][0]
        return (self.seconds[-1][1] - self.seconds[0][0]) * MS_PER_SECOND / max(ticks, 1)

    def kernels(self) -> list[KernelTime]:
        """Kernels of the same code together, under the name of the first."""
        slowest = np.median(self.ticks, axis=0) * self.ms_per_tick()
        each = zip(self.launches, kernel_records(self.scheduled, self.sizes), slowest.tolist(),
                   self.runs.tolist(), strict=True)
        same: dict[str, list[KernelTime]] = {}
        for launch, r, ms, n in each:
            one = KernelTime(r.name, r.kind, r.ops, n, ms, n * r.bytes, n * r.flops, r.schedule)
            same.setdefault(print_kernel(canonical(launch.kernel)), []).append(one)
        return [replace(group[0], **{f: sum(getattr(k, f) for k in group) for f in SUMMED})
                for group in same.values()]
