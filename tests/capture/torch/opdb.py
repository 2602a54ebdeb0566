"""torch's own operator database as a coverage table: what planish gives for every sample of every operator.

    python tests/capture/torch/opdb.py --slice 0:50 --dtypes float32,int64 --samples 4 --seconds 30
    python tests/capture/torch/opdb.py --ops softmax,nn.functional --grad
    python tests/capture/torch/opdb.py --missing            # the overloads that are missing most

For each operator and dtype every sample is run in eager and compiled, and counted as

    correct    equal within torch's own tolerances, or as near to float64's result as eager is
    refused    planish says that it does not have it, and why
    wrong      another value, dtype, shape, stride or number of results
    crashed    any other error
    skipped    eager itself fails, or the sample holds what a graph can't (sparse tensors, generators)

`--json FILE` adds the outcome to a file, from which `--table` writes the table of docs/torch.md.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from planish.capture.torch import decompositions, translate
from planish.capture.torch.captured import KeyFeed
from planish.errors import PlanishError, UnsupportedDType, UnsupportedOp
from planish.torch.dynamo import boxed, compile_captured
from planish.torch.program import TorchProgram
from planish.torch.settings import Settings, settings_of

UNSPECIFIED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
TIED = ("sort", "topk", "kthvalue")  # of equal elements, any index will do
OUTCOMES = ("correct", "refused", "wrong", "crashed", "skipped")


@dataclass
class Outcome:
    """What came out for one operator and dtype."""

    op: str
    dtype: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        """The worst that happened."""
        return next((o for o in ("crashed", "wrong", "refused", "correct") if self.counts[o]), "skipped")


# --- one sample


def traced(function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    """The functional ATen graph of a function of tensors."""
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    functional = dispatch_functionalize(function)

    def on_copies(*tensors: Any) -> Any:
        return functional(*[t.clone() for t in tensors])

    return make_fx(on_copies, decompositions(), tracing_mode="fake")(*tensors)


HOSTED: Counter[str] = Counter()  # what torch runs for the sample at hand


def compiled(graph: Any, settings: Settings) -> TorchProgram:
    captured = translate(graph, "sample", host=settings.host)
    HOSTED.update(
        n.attributes.function.parameters[0][1] for n in captured.graph.nodes() if n.op.name == "host"
    )
    return TorchProgram(captured, compile_captured(captured, settings))


def flat_function(op: Any, sample: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The sample's call as a function of its tensors that gives a list."""
    leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: Any) -> list[Any]:
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        first, args, keywords = pytree.tree_unflatten(given, tree)
        return pytree.tree_leaves(op.op(first, *args, **keywords))

    return function, [leaves[i] for i in places]


class Skip(Exception):
    """The sample says nothing about planish."""


class Wrong(Exception):
    """A result is not eager's."""


def run_sample(op: Any, sample: Any, settings: Settings) -> None:
    """Raises what is not correct."""
    function, tensors = flat_function(op, sample)
    if any(t.layout is not torch.strided or t.is_complex() for t in tensors):
        raise Skip("sparse or complex")
    with torch.no_grad():
        copies = [t.detach().clone() for t in tensors]
        try:
            expected = function(*copies)
        except Exception as error:
            raise Skip(f"eager: {error}") from error
        if any(
            isinstance(e, torch.Tensor) and (e.layout is not torch.strided or e.is_complex())
            for e in expected
        ):
            raise Skip("sparse or complex")
        graph = traced(function, [t.detach().clone() for t in tensors])
        program = compiled(graph, settings)
        results = program([t.detach().clone() for t in tensors])
    is_random = op.name in UNSPECIFIED or any(isinstance(f, KeyFeed) for f in program.captured.feeds)
    if op.name in TIED:
        if not picks(tensors[0], *results):
            raise Wrong("indices of other elements")
        results, expected = results[:1], expected[:1]
    if op.name == "argsort":
        if not same_order(tensors[0], results[0], expected[0]):
            raise Wrong("indices in another order")
        return
    compare(results, expected, None if is_random else lambda: in_float64(function, tensors))


def picks(x: Any, values: Any, indices: Any) -> bool:
    """Whether the values are the elements at the indices along some axis."""
    if not x.ndim:
        return True

    def kept(t: Any, axis: int) -> Any:
        return t if t.ndim == x.ndim else t.unsqueeze(axis)

    return any(
        torch.equal(x.gather(axis, kept(indices, axis)).nan_to_num(7), kept(values, axis).nan_to_num(7))
        for axis in range(x.ndim)
        if not values.numel() or indices.max() < x.shape[axis]
    )


def same_order(x: Any, a: Any, b: Any) -> bool:
    """Whether indices give the same elements along some axis."""
    return not x.ndim or any(torch.equal(x.gather(axis, a), x.gather(axis, b)) for axis in range(x.ndim))


def run_gradient(op: Any, sample: Any, settings: Settings) -> None:
    """The gradients of a weighted sum of the results, for every operand that has one."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._functorch.aot_autograd import aot_function

    function, tensors = flat_function(op, sample)
    if not any(t.requires_grad for t in tensors):
        raise Skip("no operand requires a gradient")

    programs = []

    def compiler(graph: Any, inputs: Any) -> Any:
        programs.append(compiled(graph, settings))
        return boxed(programs[-1])

    def gradients(of: Callable[..., Any], dtype: torch.dtype | None = None) -> list[Any]:
        given = [fresh(t, dtype) for t in tensors]
        outputs = [o for o in of(*given) if isinstance(o, torch.Tensor) and o.requires_grad]
        if not outputs:
            raise Skip("no result requires a gradient")
        torch.manual_seed(0)
        weights = [torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in outputs]
        wanted = [g for g in given if g.requires_grad]
        return list(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))

    try:
        expected = gradients(function)
    except Skip:
        raise
    except Exception as error:
        raise Skip(f"eager: {error}") from error
    wrapped = aot_function(
        function, compiler, compiler, min_cut_rematerialization_partition, decompositions()
    )
    results = gradients(wrapped)
    is_random = any(isinstance(f, KeyFeed) for p in programs for f in p.captured.feeds)
    compare(results, expected, None if is_random else lambda: gradients(function, torch.float64))


def fresh(tensor: Any, dtype: torch.dtype | None) -> Any:
    wide = dtype is not None and tensor.is_floating_point()
    return tensor.detach().clone().to(dtype if wide else tensor.dtype).requires_grad_(tensor.requires_grad)


def in_float64(function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    return function(*[fresh(t.detach(), torch.float64) for t in tensors])


def compare(
    results: Sequence[Any],
    expected: Sequence[Any],
    reference: Callable[[], list[Any]] | None,
) -> None:
    """Wrong where they differ. Without a reference (random numbers) values are not looked at."""
    try:
        hold(results, expected, reference)
    except AssertionError as error:
        raise Wrong(str(error)) from error


def hold(results: Sequence[Any], expected: Sequence[Any], reference: Callable[[], list[Any]] | None) -> None:
    assert len(results) == len(expected), f"{len(results)} results, not {len(expected)}"
    for i, (a, b) in enumerate(zip(results, expected)):
        if not isinstance(b, torch.Tensor):
            assert a == b or a is b, f"result {i} is {a!r}, not {b!r}"
            continue
        assert a.dtype is b.dtype and a.shape == b.shape, (
            f"{a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        )
        if reference is not None:
            near(a, b, i, reference)


def near(a: Any, b: Any, i: int, reference: Callable[[], list[Any]]) -> None:
    try:
        torch.testing.assert_close(a, b, equal_nan=True)
    except AssertionError:
        if not b.is_floating_point() or not torch.equal(torch.isfinite(a), torch.isfinite(b)):
            raise
        exact = reference()[i].to(torch.float64)
        mine, theirs = ((x.double() - exact).nan_to_num(0, 0, 0).abs().max() for x in (a, b))
        if not mine <= 2 * theirs + 1e-7 * exact.nan_to_num(0, 0, 0).abs().max():
            raise


# --- one operator


class TookTooLong(Exception):
    pass


def _alarm(*arguments: Any) -> None:
    raise TookTooLong


def run_op(op: Any, dtype: torch.dtype, options: argparse.Namespace) -> Outcome:
    outcome = Outcome(op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""), short(dtype))
    run = run_gradient if options.grad else run_sample
    settings = settings_of(None, {"strategy": options.strategy, "host": not options.no_host})
    torch.manual_seed(0)
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(options.seconds)
    try:
        for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=options.grad)):
            if number >= options.samples:
                break
            HOSTED.clear()
            kind, reason = judged(lambda s=sample: run(op, s, settings))
            outcome.counts[kind] += 1
            outcome.hosts += HOSTED
            if reason:
                outcome.reasons[f"{kind}: {reason}"] += 1
            if options.verbose and kind in ("wrong", "crashed"):
                print(f"--- {outcome.op} {outcome.dtype} sample {number}: {kind}: {reason}\n{sample}")
                traceback.print_exc()
    except TookTooLong:
        outcome.reasons[f"out of time after {options.seconds} s"] += 1
    except Exception as error:
        outcome.counts["skipped"] += 1
        outcome.reasons[f"samples: {first_line(error)}"] += 1
    finally:
        signal.alarm(0)
    return outcome


def judged(run: Callable[[], None]) -> tuple[str, str]:
    try:
        run()
    except TookTooLong:
        raise
    except Skip as skip:
        return "skipped", first_line(skip)
    except (UnsupportedOp, UnsupportedDType) as refusal:
        return "refused", missing_of(refusal)
    except Wrong as error:
        return "wrong", " ".join(str(error).split())[:160]
    except Exception as error:
        if "Could not find a token" in str(error):  # tracing by hand has no effects; torch.compile has
            return "refused", "effects"
        if "data is not allocated" in str(error):
            return "refused", "data-dependent: reads values while it is traced"
        refusal = error if isinstance(error, PlanishError) else error.__cause__
        if isinstance(refusal, (UnsupportedOp, UnsupportedDType)):
            return "refused", missing_of(refusal)
        if type(error).__name__ in DATA_DEPENDENT:
            return "refused", f"data-dependent: {type(error).__name__}"
        return "crashed", f"{type(error).__name__}: {first_line(error)}"
    return "correct", ""


DATA_DEPENDENT = (
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "UnsupportedOperatorException",
)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def missing_of(error: BaseException) -> str:
    """The overloads without a translation, or the refusal itself."""
    names = re.findall(r"^    (\S+?):", str(error), re.MULTILINE)
    return "no " + ", ".join(names) if names else re.sub(r" at \S+:\d+", "", first_line(error))


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- many


def chosen(options: argparse.Namespace) -> Iterator[Any]:
    first, _, last = options.slice.partition(":")
    part = op_db[int(first or 0) : int(last) if last else None]
    wanted = [w for w in options.ops.split(",") if w]
    yield from (
        op for op in part if not wanted or any(w == op.name or op.name.startswith(f"{w}.") for w in wanted)
    )


def report(outcomes: Sequence[Outcome]) -> None:
    for dtype in dict.fromkeys(o.dtype for o in outcomes):
        of = [o for o in outcomes if o.dtype == dtype]
        verdicts = Counter(o.verdict for o in of)
        native = sum(o.verdict == "correct" and not o.hosts for o in of)
        samples = sum((o.counts for o in of), Counter())
        print(
            f"{dtype}: {len(of)} operators, {native} correct and native: "
            + ", ".join(f"{verdicts[v]} {v}" for v in OUTCOMES)
            + "; samples: "
            + ", ".join(f"{samples[v]} {v}" for v in OUTCOMES)
        )


def missing(outcomes: Sequence[Outcome]) -> None:
    """What refuses most operators, or has torch run a part of them."""
    found: Counter[str] = Counter()
    for o in outcomes:
        found.update(f"host: {name}" for name in o.hosts)
        for reason in {
            r
            for text in o.reasons
            if text.startswith("refused")
            for r in (text.removeprefix("refused: no ").split(", ") if "refused: no " in text else [text])
        }:
            found[reason] += 1
    for reason, times in found.most_common():
        print(f"{times:5d}  {reason}")


def table(outcomes: Sequence[Outcome]) -> None:
    """Markdown: one row per operator that is not all correct, one column per dtype."""
    dtypes = list(dict.fromkeys(o.dtype for o in outcomes))
    rows: dict[str, dict[str, Outcome]] = {}
    for o in outcomes:
        rows.setdefault(o.op, {})[o.dtype] = o
    print(f"| operator | {' | '.join(dtypes)} | why |\n|---|{'---|' * len(dtypes)}---|")
    for op, found in sorted(rows.items()):
        verdicts = [found[d].verdict if d in found else "" for d in dtypes]
        if any(v not in ("correct", "", "skipped") for v in verdicts):
            why = next((r for o in found.values() for r in o.reasons if not r.startswith("skipped")), "")
            print(f"| {op} | {' | '.join(verdicts)} | {why.partition(': ')[2][:80]} |")


def load(path: Path) -> list[Outcome]:
    if not path.exists():
        return []
    return [
        Outcome(o["op"], o["dtype"], Counter(o["counts"]), Counter(o["reasons"]), Counter(o["hosts"]))
        for o in json.loads(path.read_text())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slice", default=":", help="part of the database, first:last")
    parser.add_argument("--ops", default="", help="operators by name, or by the part before a dot")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, default=4, help="most samples per operator and dtype")
    parser.add_argument("--seconds", type=int, default=30, help="time limit per operator and dtype")
    parser.add_argument("--strategy", default="native", choices=("native", "library"))
    parser.add_argument("--no-host", action="store_true", help="refuse what torch would have to run")
    parser.add_argument("--grad", action="store_true", help="gradients instead of values")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--table", action="store_true", help="only print the table of --json")
    parser.add_argument("--missing", action="store_true", help="only print what --json lacks")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.table or options.missing:
        (table if options.table else missing)(load(options.json))
        return 0
    warnings.simplefilter("ignore")
    outcomes = []
    for op in chosen(options):
        for name in options.dtypes.split(","):
            dtype = getattr(torch, name)
            if dtype not in op.supported_dtypes("cpu") or (options.grad and not op.supports_autograd):
                continue
            outcome = run_op(op, dtype, options)
            outcomes.append(outcome)
            details = "; ".join(f"{r} ({n})" for r, n in outcome.reasons.most_common(2))
            print(
                f"{outcome.op:40s} {outcome.dtype:9s} {outcome.verdict:8s} {dict(outcome.counts)} {details}",
                flush=True,
            )
    report(outcomes)
    if options.json:
        kept = {(o.op, o.dtype): o for o in [*load(options.json), *outcomes]}
        options.json.write_text(json.dumps([vars(o) for o in kept.values()], indent=1))
    return int(any(o.verdict in ("wrong", "crashed") for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
