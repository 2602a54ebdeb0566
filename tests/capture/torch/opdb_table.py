"""The outcomes of a run over torch's operator database: kept as a file of lines, told as tables.

    python tests/capture/torch/opdb_table.py coverage.json                         # figures and tables
    python tests/capture/torch/opdb_table.py coverage.json --write docs/torch.md
    python tests/capture/torch/opdb_table.py coverage.json --missing           # most frequent first
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COUNTERS = ("counts", "reasons", "hosts", "breaks")
FAMILIES = ("fft", "linalg", "masked", "nn.functional", "signal", "special", "sparse", "torch.ops.aten")
BEGIN, END = "<!-- coverage: written by opdb_table.py -->", "<!-- end of coverage -->"


@dataclass
class Outcome:
    """What came out for one operator and dtype: samples by kind, why, what torch ran, why the graph broke."""

    op: str
    dtype: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)
    breaks: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, reason: str = "") -> None:
        self.counts[kind] += 1
        if reason:
            self.reasons[f"{kind}: {reason}"] += 1

    @property
    def verdict(self) -> str:
        """The worst that happened."""
        return next((o for o in ("failed", "wrong", "refused", "correct") if self.counts[o]), "skipped")

    @property
    def is_native(self) -> bool:
        return self.verdict == "correct" and not self.hosts and not self.is_broken

    @property
    def is_broken(self) -> bool:
        return any(self.breaks.values())

    @property
    def family(self) -> str:
        return next((f for f in FAMILIES if self.op.startswith(f"{f}.")), "tensors")


def load(path: Path | None) -> list[Outcome]:
    if path is None or not path.exists():
        return []
    records = (json.loads(line) for line in path.read_text().splitlines())
    return [
        Outcome(r["op"], r["dtype"], *(Counter(r.get(k, {})) for k in COUNTERS)) for r in records
    ]


def save(path: Path, outcomes: Iterable[Outcome]) -> None:
    """One line per operator and dtype; of several outcomes the last."""
    kept = {(o.op, o.dtype): o for o in outcomes}
    lines = [json.dumps({k: v for k, v in vars(o).items() if v}) for _, o in sorted(kept.items())]
    path.write_text("".join(f"{line}\n" for line in lines))


# --- figures


def judged(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that say something: eager can do it, and not on sparse tensors only."""
    return [o for o in outcomes if o.verdict != "skipped"]


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    of = judged(outcomes)
    verdicts = Counter(o.verdict for o in of)
    samples = sum((o.counts for o in of), Counter())
    return {
        "operators": len(of),
        "correct": verdicts["correct"],
        "native": sum(o.is_native for o in of),
        "broken": sum(o.verdict == "correct" and o.is_broken for o in of),
        **{kind: verdicts[kind] for kind in ("refused", "wrong", "failed")},
        "samples": sum(samples.values()) - samples["skipped"],
    }


def summary(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for dtype in dict.fromkeys(o.dtype for o in outcomes):
        found = figures([o for o in outcomes if o.dtype == dtype])
        lines.append(f"{dtype}: " + ", ".join(f"{n} {name}" for name, n in found.items()))
    return "\n".join(lines)


# --- tables


def tables(outcomes: Sequence[Outcome]) -> str:
    """Markdown: figures by dtype, by family, and what torch runs and what is refused, with reasons."""
    return "\n\n".join((by_dtype(outcomes), by_family(outcomes), on_the_host(outcomes), refusals(outcomes)))


def by_dtype(outcomes: Sequence[Outcome]) -> str:
    rest = {"broken": "with a graph break", **{k: k for k in ("refused", "wrong", "failed", "samples")}}
    rows = []
    for dtype in dict.fromkeys(o.dtype for o in sorted(outcomes, key=_dtype_order)):
        f = figures([o for o in outcomes if o.dtype == dtype])
        share = f"{f['correct']} ({100 * f['correct'] / f['operators']:.1f} %)"
        native = f"{f['native']} ({100 * f['native'] / f['operators']:.1f} %)"
        rows.append((dtype, f["operators"], share, native, *(f[k] for k in rest)))
    return _markdown(("dtype", "operators", "correct", "native", *rest.values()), rows)


def _dtype_order(outcome: Outcome) -> int:
    order = ("float32", "bfloat16", "int64", "bool")
    return order.index(outcome.dtype) if outcome.dtype in order else len(order)


def by_family(outcomes: Sequence[Outcome]) -> str:
    columns, rows = ("operators", "correct", "native", "refused"), []
    for family in ("tensors", *FAMILIES):
        of = judged(o for o in outcomes if o.family == family and o.dtype == "float32")
        if of:
            f = figures(of)
            rows.append((family, *(f[k] for k in columns)))
    return "By family, in float32:\n\n" + _markdown(("family", *columns), rows)


def on_the_host(outcomes: Sequence[Outcome]) -> str:
    """The overloads that torch runs, each with how many operators of the database use it."""
    found: dict[str, set[str]] = {}
    for o in outcomes:
        for name in o.hosts:
            found.setdefault(name.removeprefix("aten."), set()).add(o.op)
    listed = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    names = ", ".join(f"`{name}`" + (f" ({len(ops)})" if len(ops) > 1 else "") for name, ops in listed)
    return f"torch runs these overloads, as host ops (for how many operators): {names or 'none'}."


def refusals(outcomes: Sequence[Outcome]) -> str:
    """One row per operator that is not all correct, or breaks the graph, with the reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for o in judged(outcomes):
        if o.verdict != "correct":
            reason = next((r for r in o.reasons if r.startswith(o.verdict)), o.verdict)
            found.setdefault((o.op, o.verdict, reason.partition(": ")[2]), []).append(o.dtype)
        elif o.is_broken:
            reason = next(r for r, n in o.breaks.items() if n)
            found.setdefault((o.op, "graph break", reason), []).append(o.dtype)
    rows = [(op, kind, ", ".join(of), _one_line(why)) for (op, kind, why), of in sorted(found.items())]
    return _markdown(("operator", "", "dtypes", "why"), rows)


def _one_line(reason: str) -> str:
    return re.sub(r"\s+", " ", reason).replace("|", "/")[:110]


def _markdown(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def missing(outcomes: Sequence[Outcome]) -> str:
    """What refuses most operators, or has torch run a part of them."""
    found: Counter[str] = Counter()
    for o in outcomes:
        found.update(f"host: {name}" for name in o.hosts)
        found.update({r for r in o.reasons if not r.startswith("skipped")})
    return "\n".join(f"{times:5d}  {reason}" for reason, times in found.most_common())


def section(document: str) -> tuple[int, int]:
    """Where the tables stand in a document."""
    return document.index(BEGIN) + len(BEGIN), document.index(END)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", type=Path)
    parser.add_argument("--write", type=Path, default=None, help="replace the tables of a document")
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args()
    outcomes = load(options.json)
    text = missing(outcomes) if options.missing else f"{summary(outcomes)}\n\n{tables(outcomes)}"
    if options.write:
        document = options.write.read_text()
        begin, end = section(document)
        options.write.write_text(f"{document[:begin]}\n\n{tables(outcomes)}\n\n{document[end:]}")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
