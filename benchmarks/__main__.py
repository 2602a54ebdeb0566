"""`python -m benchmarks`: planish beside its peers. Exit status 1 if a peer failed or was wrong."""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import limits, models, plot, report
from benchmarks.catalogue import WORKLOADS
from benchmarks.peers import PEERS
from benchmarks.race import race

BUSY = 0.5   # load average above which others share the processors


def names(known: Sequence[str]):
    """An argparse type: some of the known names, separated by commas."""
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
        return chosen
    return parse


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="planish beside its peers")
    parser.add_argument("--only", type=names(list(WORKLOADS)), default=list(WORKLOADS), metavar="NAMES",
                        help=f"workloads, by commas: {', '.join(WORKLOADS)}")
    parser.add_argument("--peers", type=names(list(PEERS)), default=list(PEERS), metavar="NAMES",
                        help=f"by commas: {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default: 7)")
    parser.add_argument("--threads", type=int, default=2, help="threads, and processors (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw times and the roofline")
    parser.add_argument("--markdown", type=Path, metavar="FILE",
                        help="also put the table between the two marks in FILE (docs/performance.md)")
    parser.add_argument("--files", type=Path, metavar="FOLDER",
                        help="keep the exported models here for the next run (default: a temporary folder)")
    return parser.parse_args(argv)


def say(message: str) -> None:
    """Progress, on one line of a terminal, and nowhere else."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def run(name: str, options: argparse.Namespace) -> report.Result:
    """One workload. The machine's limit is probed in the same rounds as the peers; its best counts too."""
    w, at_least = WORKLOADS[name](), []

    def probe() -> None:
        c = w.cost()
        at_least.append(limits.seconds_at_least(c.flops, c.read_bytes, c.write_bytes, options.threads))

    outcomes = race(name, options.peers, options.threads, options.rounds, say, probe)
    say("")
    return report.Result(w, outcomes, min(at_least))


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    if options.files:
        options.files.mkdir(parents=True, exist_ok=True)
        os.environ[models.FILES] = str(options.files.resolve())
        return race_all(options)
    with tempfile.TemporaryDirectory(prefix="planish-models-") as folder:
        os.environ[models.FILES] = folder
        return race_all(options)


def race_all(options: argparse.Namespace) -> int:
    processors = sorted(os.sched_getaffinity(0))[:options.threads]
    if len(processors) < options.threads:
        print(f"only {len(processors)} processors for {options.threads} threads", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, processors)   # the workers inherit it

    about = {"machine": report.machine(options.threads), "load_before": os.getloadavg(),
             "flops_per_second": limits.flops_per_second(options.threads),
             "stream_bytes_per_second": 2**27 / limits.seconds_to_move(2**26, 2**26, options.threads)}
    for key, value in about["machine"].items():
        print(f"{key:10} {', '.join(value) if isinstance(value, list) else value}")
    print(f"{'limits':10} {about['flops_per_second'] / 1e9:.0f} GFLOP/s, "
          f"{about['stream_bytes_per_second'] / 1e9:.0f} GB/s to copy 64 MiB")
    busy = "; the machine is busy: these figures are no results" if about["load_before"][0] > BUSY else ""
    print(f"{'load':10} {about['load_before'][0]:.2f} over the last minute{busy}\n", flush=True)

    results = []
    for name in options.only:
        results.append(run(name, options))
        print(report.table(results[-1]) + "\n", flush=True)

    print("versions   " + ", ".join(f"{k} {v}" for k, v in report.versions(results).items()))
    print(f"load       {os.getloadavg()[0]:.2f} over the last minute")
    print("\n" + report.summary(results))
    saved = report.as_json(results, about)
    if options.json:
        options.json.write_text(json.dumps(saved, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(plot.svg(saved))
    if options.markdown:
        report.put_between_marks(options.markdown, report.markdown(results))
    return int(any(o.status in ("failed", "wrong") for r in results for o in r.outcomes))


if __name__ == "__main__":
    sys.exit(main())
