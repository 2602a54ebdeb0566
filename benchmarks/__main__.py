"""`python -m benchmarks`: planish beside its peers. Exit status 1 if a peer failed or was wrong."""
from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import limits, report
from benchmarks.peers import PEERS
from benchmarks.race import race
from benchmarks.workloads import WORKLOADS

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
    return parser.parse_args(argv)


def say(message: str) -> None:
    """Progress, on one line of a terminal, and nowhere else."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def run(name: str, options: argparse.Namespace) -> report.Result:
    """One workload. The machine's limit is probed in the same rounds as the peers; its best counts too."""
    w, at_least = WORKLOADS[name](), []

    def probe() -> None:
        at_least.append(limits.seconds_at_least(w.flops, w.read_bytes, w.write_bytes, options.threads))

    outcomes = race(name, options.peers, options.threads, options.rounds, say, probe)
    say("")
    return report.Result(w, outcomes, min(at_least))


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
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
    if options.json:
        options.json.write_text(json.dumps(report.as_json(results, about), indent=1) + "\n")
    return int(any(o.status in ("failed", "wrong") for r in results for o in r.outcomes))


if __name__ == "__main__":
    sys.exit(main())
