"""The answers of this package as rich tables. In: the dataclasses. Out: something a rich console prints."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planish.inspect.bench import Bench, Timing
from planish.inspect.explain import Change, Explanation, Firing
from planish.inspect.machine import MachineInfo
from planish.inspect.nodes import NodeError, NodeValidation
from planish.inspect.profile import Profile
from planish.inspect.validate import OutputError, Validation
from planish.tuning.record import Finding

OPS_SHOWN = 12
NODES_SHOWN = 10
NAME_SHOWN = 32   # characters of a node's name: the last ones tell them apart


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> RenderableType:
    """A plain table under its title. Column names that end in `>` hold numbers, those in `*` may wrap."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in columns:
        number, wraps = name.endswith(">"), name.endswith("*")
        made.add_column(name.rstrip(">*"), justify="right" if number else "left", no_wrap=not wraps,
                        overflow="fold")
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return Group(Text(title, style="bold"), Padding(made, (0, 0, 1, 2)))


def count_bytes(number: float) -> str:
    """`1.5 MB`, in powers of 1000, as disks and buses count."""
    for unit in ("B", "kB", "MB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"


def milliseconds(ms: float) -> str:
    """Three digits or so: `0.0123`, `1.23`, `123`."""
    return f"{ms:.{4 if ms < 0.1 else 3 if ms < 1 else 2 if ms < 100 else 0}f}"


def _change(change: Change, show=str) -> str:  # type: ignore[no-untyped-def]
    return f"{show(change.before)} -> {show(change.after)}"


# --- explain

def explanation(what: Explanation, *, reasons: bool = True) -> RenderableType:
    """The whole report. `reasons` adds why each pass stands where it does, and what was not fused."""
    parts = [summary(what)]
    if what.passes:
        parts.append(passes(what, reasons=reasons))
    if what.kernel_list:
        parts.append(kernels(what))
    if what.hosts:
        lines = ((line,) for line in what.hosts)
        parts.append(table("Host ops, between native segments", ["in order*"], lines))
    if what.tuning:
        parts.append(tuning(what.tuning))
    parts.append(stages(what))
    if reasons and what.decisions:
        parts.append(table("Kept apart", ["times>", "groups of ops, and why*"],
                           ((n, text) for text, n in what.decisions.items())))
    return Group(*parts)


def summary(what: Explanation) -> RenderableType:
    sizes = ", ".join(f"{k}={v}" for k, v in what.hint.items())
    rows = [("captured", f"{what.nodes.before} nodes, {what.kernels.before} of them ops that move memory"),
            ("nodes", f"{_change(what.nodes)} after {len(what.passes)} passes"),
            ("kernels", f"{_change(what.kernels)} (one per op -> after fusion)"),
            ("bytes moved", f"{_change(what.bytes, count_bytes)} ({what.bytes.ratio:.1f}x less)")]
    if what.strategy == "native":
        memory = what.memory
        rows.append(("peak memory", ", ".join((f"{count_bytes(memory.naive)} naive",
                                               f"{count_bytes(memory.planned)} planned",
                                               f"{count_bytes(memory.lower_bound)} lower bound"))))
    at = f", at {sizes}" if sizes else ""
    return table(f"{what.name}: {what.strategy} strategy, numerics {what.numerics}{at}", ["", "*"], rows)


def passes(what: Explanation, *, reasons: bool = True, idle: bool = True) -> RenderableType:
    """A line per pass; `idle` includes those in which nothing fired."""
    columns = ["pass", "nodes>", "ms>", "rules fired*", "why here*"]
    rows = [(p.name, f"{p.before} -> {p.after}", f"{p.ms:.2f}", fired(p.fired), p.reason)
            for p in what.passes if idle or p.fired]
    shown = len(columns) if reasons else len(columns) - 1
    return table("Passes", columns[:shown], (row[:shown] for row in rows))


def fired(rules: dict[str, int]) -> str:
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in rules.items())


def rewrites(what: Sequence[Firing]) -> RenderableType:
    """A line per rule at work."""
    rows = [(f.pass_name, f.rule, f"{f.before} -> {f.after}", f.location) for f in what]
    columns = ["pass", "rule", "found -> made*", "written at*"]
    shown = len(columns) if any(f.location for f in what) else len(columns) - 1
    return table("Rewrites", columns[:shown], (row[:shown] for row in rows))


def kernels(what: Explanation) -> RenderableType:
    rows = ((k.name, k.kind, op_names(k.ops), count_bytes(k.bytes), f"{k.flops / 1e6:.2f}",
             "; ".join(k.schedule)) for k in what.kernel_list)
    return table("Kernels", ["kernel", "kind", "ops*", "bytes>", "Mflop>", "schedule*"], rows)


def op_names(ops: Sequence[str]) -> str:
    """`mul, add x2, tanh`: neighbours that are alike together; long lists are cut."""
    runs = [(name, len(list(group))) for name, group in groupby(ops)]
    shown = [name if n == 1 else f"{name} x{n}" for name, n in runs[:OPS_SHOWN]]
    left = Counter(ops).total() - sum(n for _, n in runs[:OPS_SHOWN])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def tuning(findings: Sequence[Finding]) -> RenderableType:
    """A line per kernel, op and program that max-autotune looked at: time as chosen without measuring, who
    runs from now on, how many times faster that is."""
    rows = ((f.kind, f.what, milliseconds(f.us / 1e3), f.winner, f"{f.speedup:.2f}x", _verdicts(f),
             "the database" if f.remembered else "now") for f in findings)
    columns = ["", "what*", "ms as chosen>", "winner*", "faster>", "tried*", "measured"]
    return table("Tuning", columns, rows)


def _verdicts(finding: Finding) -> str:
    """`5: 3 slower, 2 undecided`."""
    counts = Counter(t.verdict.partition(":")[0] for t in finding.tried)
    return f"{len(finding.tried)}: " + ", ".join(f"{n} {word}" for word, n in counts.items())


def tried(findings: Sequence[Finding]) -> RenderableType:
    """Every candidate, with its time over that of the incumbent."""
    rows = ((f.what, t.candidate, f"{t.ratio:.3f}" if t.ratio else "-", t.verdict)
            for f in findings for t in f.tried)
    return table("Tried", ["for*", "candidate*", "its time / the incumbent's>", "verdict*"], rows)


def stages(what: Explanation) -> RenderableType:
    rows = [(name, f"{ms:.1f}") for name, ms in what.ms.items()] + [("total", f"{what.total_ms:.1f}")]
    origin = "" if what.origin == "compiled" else f" ({what.origin})"
    return table(f"Compile time{origin}", ["stage", "ms>"], rows)


# --- profile

def profile(what: Profile) -> RenderableType:
    """A line per kernel, then what ran outside of kernels."""
    lines = [(k.name, str(k.runs), k.ms, f"{k.gflops:.1f}", f"{k.gbytes:.1f}", op_names(k.ops))
             for k in what.kernels]
    lines += [("host", "", what.host_ms, "", "", "host ops, and the way into native code"),
              ("rest", "", what.rest_ms, "", "", "launches, waiting for other threads")]
    rows = ((name, runs, milliseconds(ms), f"{100 * ms / what.ms:.1f}", *others)
            for name, runs, ms, *others in lines)
    title = f"{what.name}: {milliseconds(what.ms)} ms per call, median of {what.calls}"
    columns = ["kernel", "runs>", "ms>", "%>", "GFLOP/s>", "GB/s>", "ops*"]
    return Group(table(f"{title}; inputs {', '.join(what.inputs)}", columns, rows), machine(what.machine))


# --- validate

ERROR_COLUMNS = ["output*", "type", "ULP>", "absolute>", "relative>", "largest at", "verdict*"]


def validation(what: Validation) -> RenderableType:
    rows = [(who, *error_row(e)) for who, errors in what.errors.items() for e in errors]
    rows += [(who, "-", "-", "-", "-", "-", "-", why) for who, why in what.failures.items()]
    return table("Largest errors against float64", ["who", *ERROR_COLUMNS], rows)


def error_row(e: OutputError) -> tuple[str, ...]:
    shape = ", ".join(map(str, e.shape))
    return (e.name, f"{e.dtype}[{shape}]", f"{e.ulp:.3g}", f"{e.absolute:.2e}", f"{e.relative:.2e}",
            str(list(e.worst)), e.fault or "right")


def node_validation(what: NodeValidation) -> RenderableType:
    """The first node that diverges for each, and the nodes that do; where none does, those with the largest
    errors."""
    everyone = list(dict.fromkeys(who for n in what.nodes for who in n.errors))
    wrong = [n for n in what.nodes if not all(e.is_right for e in n.errors.values())]
    shown = wrong or sorted(what.nodes, key=_largest, reverse=True)
    title = f"{len(wrong)} of {len(what.nodes)} nodes diverge" if wrong else \
        f"All {len(what.nodes)} nodes are right; the largest errors"
    columns = ["node", "op", "type", *(f"{who}>" for who in everyone), "verdict*"]
    rows = [_node_row(n, everyone) for n in shown[:NODES_SHOWN]]
    first = table("First node that diverges", ["who", "node*"],
                  [(who, what.first.get(who, "none")) for who in everyone])
    return Group(table(f"{title}, relative to the largest value", columns, rows), first)


def _node_row(node: NodeError, everyone: Sequence[str]) -> tuple[str, ...]:
    """Name, operator, type, the relative error of each, and who is wrong how."""
    name = node.name if len(node.name) <= NAME_SHOWN else "..." + node.name[3 - NAME_SHOWN:]
    errors = [f"{node.errors[who].relative:.1e}" if who in node.errors else "-" for who in everyone]
    faults = [f"{who}: {e.fault}" for who, e in node.errors.items() if e.fault]
    type_ = error_row(next(iter(node.errors.values())))[1]
    return (name, node.op, type_, *errors, "; ".join(faults) or "right")


def _largest(node: NodeError) -> float:
    return max(e.relative for e in node.errors.values())


# --- bench

def benchmark(what: Bench, title: str = "Milliseconds per call") -> RenderableType:
    fastest = min((t.median for t in what.timings), default=0.0)
    rows = [_timing_row(t, fastest) for t in what.timings]
    columns = ["who", "calls>", "build>", "first>", "min>", "median>", "p90>", "p99>", "ratio>", "error>"]
    parts = [table(f"{title}; inputs {', '.join(what.inputs)}", columns, rows)]
    if what.refused:
        parts.append(table("No time for", ["who", "why*"], what.refused.items()))
    return Group(*parts, machine(what.machine))


def _timing_row(t: Timing, fastest: float) -> tuple[str, ...]:
    times = (milliseconds(ms) for ms in (t.build, t.first, t.min, t.median, t.p90, t.p99))
    error = max((e.relative for e in t.errors), default=0.0)
    return (t.name, str(t.calls), *times, f"{t.median / fastest:.2f}", f"{error:.1e}")


def machine(what: MachineInfo) -> RenderableType:
    versions = ", ".join(f"{name} {v}" for name, v in what.versions.items())
    busy = " [yellow](busy: compare ratios, not times)[/yellow]" if what.is_busy else ""
    return Text.from_markup(f"{escape(what.cpu)}, {what.cpus} CPUs, {what.threads} threads, "
                            f"load {what.load:.1f}{busy}\n{escape(versions)}\n", style="dim")
