"""What is printed and saved: the machine, the versions, and one row per workload and peer."""
from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.race import Outcome
from benchmarks.workloads import Workload

OURS = ("planish", "planish-torch", "library")
HEADINGS = ["peer", "min ms", "median ms", "x best peer", "x limit", "first call s", "peak MB", "error"]
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


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

    @property
    def ours(self) -> Outcome | None:
        """The faster of planish's two doors."""
        native = [o for o in self.outcomes if o.seconds and o.peer in ("planish", "planish-torch")]
        return min(native, key=lambda o: o.best, default=None)

    @property
    def ratio(self) -> float | None:
        """Our time over the best peer's: below 1 is ahead."""
        return self.ours.best / self.best_peer.best if self.ours and self.best_peer else None

    @property
    def reaches_aim(self) -> bool:
        return self.ours is not None and self.ours.best <= self.workload.aim * self.limit_s


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
    peak = "" if outcome.peak_bytes is None else f"{outcome.peak_bytes / 1e6:.0f}"
    error = "" if outcome.error is None else f"{outcome.error:.1e}"
    if not outcome.seconds:
        return [outcome.peer, f"{outcome.status}: {outcome.detail}"]
    best = result.best_peer
    ratio = f"{outcome.best / best.best:.2f}" if best else "-"
    return [outcome.peer, *(f"{s * 1e3:.3f}" for s in (outcome.best, outcome.median)), ratio,
            f"{outcome.best / result.limit_s:.2f}", first, peak, error]


def table(result: Result) -> str:
    """The name of a peer on the left, numbers on the right; a peer without numbers says why."""
    rows = [HEADINGS, *(row(outcome, result) for outcome in result.outcomes)]
    full = [r for r in rows if len(r) == len(HEADINGS)]
    widths = [max(len(cell) for cell in column) for column in zip(*full, strict=True)]
    widths[0] = max(len(r[0]) for r in rows)
    limit, aim = (f"{s * 1e3:.3f} ms" for s in (result.limit_s, result.workload.aim * result.limit_s))
    lines = [result.workload.title, f"  the machine's limit: {limit}, aim: {aim}"]
    for name, *cells in (r for r in rows if "absent" not in r[1]):
        if len(cells) > 1:
            cells = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  " + "  ".join([name.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """How the rows stand as a whole."""
    ratios = [r.ratio for r in results if r.ratio is not None]
    if not ratios:
        return "no workload was run by planish and a peer"
    behind = [f"{r.workload.name} {r.ratio:.2f}" for r in results if r.ratio is not None and r.ratio > 1.03]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (f"{len(ratios)} rows; time over the best peer's of each row, geometric mean: {mean:.2f} "
            f"({1 / mean:.2f}x ahead)\n"
            f"behind by more than 3 %: {', '.join(behind) or 'none'}\n"
            f"at or under the aim: {sum(r.reaches_aim for r in results)}")


def markdown(results: Sequence[Result]) -> str:
    """One table: a row per workload, a column per peer, smallest milliseconds."""
    peers = [o.peer for o in results[0].outcomes]
    lines = ["| workload | limit | aim | " + " | ".join(peers) + " | ours / best peer |",
             "|---|" + "---|" * (len(peers) + 3)]
    for r in results:
        cells = [milliseconds(o.best) if o.seconds else "" for o in r.outcomes]
        ratio = "" if r.ratio is None else f"{r.ratio:.2f}"
        ends = milliseconds(r.limit_s), milliseconds(r.workload.aim * r.limit_s)
        lines.append("| " + " | ".join([r.workload.title, *ends, *cells, ratio]) + " |")
    return "\n".join([*lines, "", *summary(results).splitlines()])


def milliseconds(seconds: float) -> str:
    """Three digits."""
    return f"{seconds * 1e3:#.3g}".rstrip(".")


def put_between_marks(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a document. ValueError without them."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else None


def as_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    def of_outcome(o: Outcome) -> dict[str, Any]:
        timed = {"min_s": o.best, "median_s": o.median, "calls": len(o.seconds)} if o.seconds else {}
        return {"peer": o.peer, "status": o.status, "detail": o.detail, "first_call_s": o.first_call_s,
                "error": finite(o.error), "peak_bytes": o.peak_bytes, **timed}

    rows = [{"workload": r.workload.name, "title": r.workload.title, "limit_s": r.limit_s,
             "aim_s": r.workload.aim * r.limit_s, "cost": asdict(r.workload.cost()),
             "best_peer": r.best_peer.peer if r.best_peer else None,
             "outcomes": [of_outcome(o) for o in r.outcomes]} for r in results]
    return {**about, "versions": versions(results), "results": rows}
