"""torch's own operator database (`op_db`, needs `expecttest`) against planish: each operator, dtype, sample.

    python tests/capture/torch/opdb.py --slice 0:50 --dtypes float32,int64 --samples 4
    python tests/capture/torch/opdb.py --ops softmax,nn.functional --grad
    python tests/capture/torch/opdb.py --json coverage.json --resume    # all; goes on where it stopped

Each sample is run in eager and compiled (see opdb_sample.py), and counted as

    correct    equal within torch's own tolerances, or as near to float64's result as eager is
    refused    planish says that it does not have it, and why
    wrong      another value, dtype, shape or number of results
    failed     any other error
    skipped    eager itself fails, or the sample is sparse

`--samples N` takes N of an operator's samples, evenly from its whole list (0: all). `--together N` compiles N
samples as one program, which takes less time; where that fails in any way, each is compiled and judged alone.
`--json FILE` adds the outcomes to a file, from which opdb_table.py writes the tables of docs/torch.md. An
operator that ends the process, or takes more than `--hung` seconds, stands in the file as failed: start again
with `--resume`, and the rest is done.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import opdb_sample
import torch
from opdb_sample import Case, GradientCase, Skip, ValueCase, Wrong, first_line
from opdb_table import Outcome, load, save, summary
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db

from planish.errors import PlanishError, UnsupportedDType, UnsupportedOp
from planish.torch.settings import Settings, settings_of


class TookTooLong(BaseException):
    """Not an Exception: nothing on the way is to take it for its own."""


def _alarm(*arguments: Any) -> None:
    raise TookTooLong


def full_name(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def run_op(op: Any, dtype: torch.dtype, options: argparse.Namespace) -> Outcome | None:
    """Every chosen sample of one operator in one dtype; None where there are more than wanted."""
    outcome = outcome_of(op, dtype, options)
    settings = settings_of(None, {"strategy": options.strategy, "host": not options.no_host})
    torch.manual_seed(0)
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=options.grad))
    except Exception as error:
        outcome.count("skipped", f"samples: {first_line(error)}")
        return outcome
    if 0 < options.at_most < len(samples):
        return None
    numbers = spread(len(samples), options.samples)
    with watched(outcome, options):
        for start in range(0, len(numbers), options.together):
            group = numbers[start : start + options.together]
            run_group(op, {n: samples[n] for n in group}, settings, outcome, options)
    return outcome


def outcome_of(op: Any, dtype: torch.dtype, options: argparse.Namespace) -> Outcome:
    return Outcome(full_name(op), short(dtype) + (" gradients" if options.grad else ""))


def run_group(
    op: Any, samples: Mapping[int, Any], settings: Settings, outcome: Outcome, options: argparse.Namespace
) -> None:
    """Samples compiled as one program; where that goes wrong, each alone."""
    cases: dict[int, Case] = {}
    kind_of_case = GradientCase if options.grad else ValueCase

    def prepare(number: int) -> None:
        cases[number] = kind_of_case(op, samples[number])

    for number in samples:
        kind, reason, _ = judged(lambda n=number: prepare(n), options.seconds)
        if kind != "correct":
            outcome.count(kind, reason)
    why = together(list(cases.values()), settings, outcome, options) if len(cases) > 1 else "one sample"
    if why:
        kinds = {alone(n, case, settings, outcome, options) for n, case in cases.items()}
        if isinstance(why, Wrong) and kinds == {"correct"}:
            outcome.count("wrong", f"beside other samples only: {reason_of(why)}")


def together(
    cases: Sequence[Case], settings: Settings, outcome: Outcome, options: argparse.Namespace
) -> BaseException | str | None:
    """Counts the samples where all of them are correct; else why not."""
    trace = opdb_sample.start_trace()

    def run() -> None:
        results = type(cases[0]).together(cases, settings)
        if not trace.is_random:
            for case, of in zip(cases, results):
                case.judge(of)

    kind, _, error = judged(run, options.seconds)
    if kind != "correct" or trace.is_random:
        return error or "random numbers"
    outcome.counts["correct"] += len(cases)
    outcome.hosts += trace.hosts
    return None


def alone(
    number: int, case: Case, settings: Settings, outcome: Outcome, options: argparse.Namespace
) -> str:
    """What comes out for one sample, counted."""
    trace = opdb_sample.start_trace()
    kind, reason, why = judged(lambda: case.judge(case.alone(settings)), options.seconds)
    outcome.count(kind, reason)
    outcome.hosts += trace.hosts
    outcome.breaks += trace.breaks
    if options.verbose and kind in ("wrong", "failed"):
        print(f"--- {outcome.op} {outcome.dtype} sample {number}: {kind}: {reason}\n{case.tensors}")
        traceback.print_exception(why)
    return kind


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of 0 .. count - 1, evenly, the first and the last among them; all of them where it is 0."""
    if not 0 < wanted < count:
        return list(range(count))
    return sorted({i * (count - 1) // max(wanted - 1, 1) for i in range(wanted)})


def judged(run: Callable[[], None], seconds: int) -> tuple[str, str, BaseException | None]:
    """(kind, reason, error) of what comes out within a time."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(seconds)
    try:
        run()
    except (TookTooLong, Exception) as error:
        return (*kind_of(error), error)
    finally:
        signal.alarm(0)
    return "correct", "", None


def kind_of(error: BaseException) -> tuple[str, str]:
    if isinstance(error, TookTooLong):
        return "failed", "out of time"
    if isinstance(error, Skip):
        return "skipped", first_line(error)
    if isinstance(error, Wrong):
        return "wrong", reason_of(error)
    refusal = error if isinstance(error, PlanishError) else error.__cause__
    if isinstance(refusal, (UnsupportedOp, UnsupportedDType)):
        return "refused", missing_of(refusal)
    return "failed", f"{type(error).__name__}: {first_line(error)}"


def reason_of(error: Wrong) -> str:
    return " ".join(str(error).split())[:160]


def missing_of(error: BaseException) -> str:
    """The overloads without a translation, or the refusal itself."""
    names = re.findall(r"^    (\S+?):", str(error), re.MULTILINE)
    return "no " + ", ".join(names) if names else re.sub(r" at \S+:\d+", "", first_line(error))


# --- many


def chosen(options: argparse.Namespace) -> Iterator[Any]:
    first, _, last = options.slice.partition(":")
    part = op_db[int(first or 0) : int(last) if last else None]
    wanted = [w for w in options.ops.split(",") if w]
    yield from (
        op for op in part if not wanted or any(w == op.name or op.name.startswith(f"{w}.") for w in wanted)
    )


def run_all(options: argparse.Namespace) -> Iterator[Outcome]:
    done = {(o.op, o.dtype) for o in load(options.json)} if options.resume else set()
    suffix = " gradients" if options.grad else ""
    for op in chosen(options):
        for name in options.dtypes.split(","):
            dtype = getattr(torch, name)
            unfit = dtype not in op.supported_dtypes("cpu") or (options.grad and not op.supports_autograd)
            if not unfit and (full_name(op), name + suffix) not in done:
                outcome = run_op(op, dtype, options)
                if outcome is not None:
                    yield outcome


@contextmanager
def watched(outcome: Outcome, options: argparse.Namespace) -> Iterator[None]:
    """The file says that the operator ended the process, until it has not."""
    if options.json:
        fatal = Outcome(outcome.op, outcome.dtype)
        fatal.count("failed", "it ended the process, or hung")
        save(options.json, [*load(options.json), fatal])
    faulthandler.dump_traceback_later(options.hung, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def show(outcome: Outcome) -> None:
    reasons = "; ".join(f"{r} ({n})" for r, n in outcome.reasons.most_common(2))
    counts = dict(outcome.counts)
    print(f"{outcome.op:40s} {outcome.dtype:9s} {outcome.verdict:8s} {counts} {reasons}", flush=True)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slice", default=":", help="part of the database, first:last")
    parser.add_argument("--ops", default="", help="operators by name, or by the part before a dot")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, default=4, help="samples per operator and dtype; 0: all")
    parser.add_argument("--at-most", type=int, default=0, help="leave operators with more samples")
    parser.add_argument("--together", type=int, default=1, help="samples compiled as one program")
    parser.add_argument("--seconds", type=int, default=60, help="time limit per sample")
    parser.add_argument("--hung", type=int, default=3600, help="time limit per operator: the process ends")
    parser.add_argument("--strategy", default="native", choices=("native", "library"))
    parser.add_argument("--no-host", action="store_true", help="refuse what torch would have to run")
    parser.add_argument("--grad", action="store_true", help="gradients instead of values")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="leave out what --json has")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    warnings.simplefilter("ignore")
    common_utils.extract_test_fn = lambda: None  # it walks the stack for every list of samples
    torch.cuda.manual_seed_all = lambda seed: None  # it keeps the stack for every sample
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)  # tracing makes few cycles and very many objects
    outcomes = []
    for outcome in run_all(options):
        outcomes.append(outcome)
        show(outcome)
        if options.json:
            save(options.json, [*load(options.json), outcome])
    print(summary(outcomes))
    return int(any(o.verdict in ("wrong", "failed") for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
