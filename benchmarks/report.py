"""What is printed and saved: the machine, the versions, and one row per workload and peer."""
from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.race import Outcome
from benchmarks.workloads import Workload

OURS = ("planish", "library")
HEADINGS = ["peer", "min ms", "median ms", "x best peer", "x limit", "first call s", "error"]


@dataclass(frozen=True)
class Result:
    """One workload: its outcomes, and the seconds that the machine itself needs at least."""

    workload: Workload
    outcomes: list[Outcome]
    limit_s: float

    @property
    def best_peer(self) -> Outcome | None:
        """The fastest of the others."""
        others = [o for o in self.outcomes if o.seconds and o.peer not in OURS]
        return min(others, key=lambda o: o.best, default=None)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine(threads: int) -> dict[str, Any]:
    import llvmlite.binding as llvm
    features = llvm.get_host_cpu_features()
    notable = ("avx2", "fma", "avx512f", "amx-tile", "neon", "sve")
    return {"processor": f"{processor()} ({llvm.get_host_cpu_name()})",
            "cpus": os.cpu_count(), "threads": threads,
            "features": [name for name in notable if features.get(name)],
            "system": f"{platform.system()} {platform.release()}", "python": platform.python_version()}


def versions(results: Sequence[Result]) -> dict[str, str]:
    return {name: version for r in results for o in r.outcomes for name, version in o.versions.items()}


def row(outcome: Outcome, result: Result) -> list[str]:
    first = "" if outcome.first_call_s is None else f"{outcome.first_call_s:.2f}"
    error = "" if outcome.error is None else f"{outcome.error:.1e}"
    if not outcome.seconds:
        return [outcome.peer, f"{outcome.status}: {outcome.detail}"]
    best = result.best_peer
    ratio = f"{outcome.best / best.best:.2f}" if best else "-"
    return [outcome.peer, *(f"{s * 1e3:.3f}" for s in (outcome.best, outcome.median)), ratio,
            f"{outcome.best / result.limit_s:.2f}", first, error]


def table(result: Result) -> str:
    """The name of a peer on the left, numbers on the right; a peer without numbers says why."""
    rows = [HEADINGS, *(row(outcome, result) for outcome in result.outcomes)]
    full = [r for r in rows if len(r) == len(HEADINGS)]
    widths = [max(len(cell) for cell in column) for column in zip(*full, strict=True)]
    widths[0] = max(len(r[0]) for r in rows)
    lines = [result.workload.title, f"  the machine's limit: {result.limit_s * 1e3:.3f} ms"]
    for name, *cells in rows:
        if len(cells) > 1:
            cells = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  " + "  ".join([name.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else None


def as_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    def of_outcome(o: Outcome) -> dict[str, Any]:
        timed = {"min_s": o.best, "median_s": o.median, "calls": len(o.seconds)} if o.seconds else {}
        return {"peer": o.peer, "status": o.status, "detail": o.detail, "first_call_s": o.first_call_s,
                "error": finite(o.error), **timed}

    rows = [{"workload": r.workload.name, "title": r.workload.title, "limit_s": r.limit_s,
             "best_peer": r.best_peer.peer if r.best_peer else None,
             "outcomes": [of_outcome(o) for o in r.outcomes]} for r in results]
    return {**about, "versions": versions(results), "results": rows}
