"""What the compiler did with a graph, as data.

In: a `Compiled`, or a function and arguments for it (torch's: torch_program.py). Out: an `Explanation`:
every pass with the rules that fired, kernels before and after fusion, bytes moved before and after, memory
naive, planned and at least, compile time by stage. Bytes and flops are those of the sizes in `hint`.
"""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, overload

from planish.api import Jitted, jit
from planish.compiled import Compiled, Options
from planish.errors import PlanishError
from planish.ir import Graph, Node
from planish.passes import PassRecord, run_pipeline
from planish.schedule.measure import FREE, KernelRecord
from planish.tuning.record import Finding
from planish.types import TensorType


@dataclass(frozen=True)
class PassLine:
    """One pass: graph nodes before and after, milliseconds, how often each rule fired, and why it stands
    where it does.
    """

    name: str
    before: int
    after: int
    ms: float
    fired: dict[str, int]
    reason: str


@dataclass(frozen=True)
class Change:
    """A quantity before the compiler's work and after it."""

    before: int
    after: int

    @property
    def ratio(self) -> float:
        return self.before / self.after if self.after else 1.0


@dataclass(frozen=True)
class Memory:
    """Peak bytes of intermediate values: each in a buffer of its own; as planned; the most alive at any time.
    """

    naive: int
    planned: int
    lower_bound: int


@dataclass(frozen=True)
class Explanation:
    """What the compiler did.

    `decisions` says how often each reason kept two groups of ops in kernels of their own, `tuning` what
    max-autotune measured.
    """

    name: str
    strategy: str
    numerics: str
    hint: dict[str, int]
    captured_ops: dict[str, int]
    nodes: Change
    kernels: Change
    bytes: Change
    memory: Memory
    passes: list[PassLine]
    kernel_list: list[KernelRecord]
    hosts: list[str]
    decisions: dict[str, int]
    tuning: list[Finding]
    ms: dict[str, float]
    origin: str

    @property
    def total_ms(self) -> float:
        return sum(self.ms.values())


@overload
def explain(what: Compiled) -> Explanation: ...


@overload
def explain(what: Callable[..., Any], **options: Any) -> Callable[..., Any]: ...


def explain(what: Any, **options: Any) -> Any:
    """What the compiler did.

    explain(compiled)            of a compiled graph (`load_onnx`, `compile_graph`): its `Explanation`
    explain(function)(*args)     of a function or module called with such arguments: a `TorchExplanation`
                                 where torch's tensors are among them (graph breaks, recompiles, the share
                                 that runs compiled), else the `Explanation` of the NumPy function
    explain(exported)            of `from_exported`: its `Explanation`

    options  those of `jit` or of torch.compile's backend: mode, numerics, strategy, disable...
    """
    compiled = what if isinstance(what, Compiled) else getattr(what, "compiled", None)
    if isinstance(compiled, Compiled):
        return explanation(compiled)
    if not callable(what):
        kind = type(what).__name__
        raise PlanishError(f"explain takes a function, a module or a compiled graph, not {kind}")
    return lambda *args, **keywords: explain_call(what, args, keywords, **options)


def explain_call(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any], **options: Any
) -> Any:
    """A `TorchExplanation` where torch's tensors or modules are involved, else an `Explanation`."""
    if is_torch(function, args, keywords):
        from planish.inspect.torch_program import explain_torch

        return explain_torch(function, args, keywords, **options)
    jitted = function if isinstance(function, Jitted) else jit(function, **options)
    return explanation(jitted.lower(*args, **keywords).program)


def is_torch(function: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Whether torch is loaded and a module or a tensor is among these."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    leaves = torch.utils._pytree.tree_leaves((args, dict(keywords)))
    return isinstance(function, torch.nn.Module) or any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def explanation(compiled: Compiled) -> Explanation:
    """The explanation of a compiled graph. Without native code there is a kernel per op, and nothing to
    plan."""
    report, captured = compiled.report, compiled.captured
    per_op = len(ops_that_move(captured))
    return Explanation(
        name=captured.name,
        strategy=compiled.options.strategy,
        numerics=compiled.options.numerics,
        hint=report.hint,
        captured_ops=dict(Counter(ops_that_move(captured))),
        nodes=Change(report.captured_nodes, len(compiled.optimized.nodes())),
        kernels=Change(per_op, len(report.kernels) if compiled.options.strategy == "native" else per_op),
        bytes=Change(report.bytes_before, report.bytes_after),
        memory=Memory(report.memory_naive, report.memory_planned, report.memory_bound),
        passes=[PassLine(p.name, p.before, p.after, p.seconds * 1e3, p.fired, p.reason)
                for p in report.passes],
        kernel_list=report.kernels,
        hosts=report.hosts,
        decisions=dict(Counter(report.decisions)),
        tuning=report.tuning,
        ms={stage: seconds * 1e3 for stage, seconds in report.seconds.items()},
        origin=_origin(compiled))


def _origin(compiled: Compiled) -> str:
    """What of a program came from the cache."""
    report = compiled.report
    return "program from the cache" if report.stored else "machine code from the cache" if report.cached \
        else "compiled"


@dataclass(frozen=True)
class Firing:
    """One rule at work: in which pass, which rule, the node it found and what took its place, and where the
    node was written."""

    pass_name: str
    rule: str
    before: str
    after: str
    location: str


def firings(graph: Graph, options: Options) -> list[Firing]:
    """Every rule that fires on a graph, in order: the passes run again, watched."""
    found: list[Firing] = []
    waiting: list[tuple[str, Node, Node]] = []

    def after_pass(position: int, before: Graph, after: Graph, record: PassRecord) -> None:
        for rule, old, new in waiting:
            where = before.note(old).location or after.note(new).location
            found.append(Firing(record.name, rule, formula(old), formula(new), str(where or "")))
        waiting.clear()

    run_pipeline(graph, numerics=options.numerics, disable=options.disable, hook=after_pass,
                 observe=lambda *firing: waiting.append(firing))
    return found


def formula(node: Node, depth: int = 2) -> str:
    """A node as text, its operands to a depth: `mul(matmul(x, w), 0.125)`."""
    if node.op.name == "input":
        return str(node.attributes.name)
    if node.op.name == "constant":
        array = node.attributes.array
        return f"{array.reshape(-1)[0]:.6g}" if array.size == 1 else f"constant {node.type}"
    alpha = getattr(node.attributes, "alpha", 1.0)
    scale = f" * {alpha:g}" if alpha != 1.0 else ""
    operands = ", ".join(formula(o, depth - 1) for o in node.operands) if depth else "..."
    return f"{node.op.name}({operands}){scale}"


def ops_that_move(graph: Graph) -> list[str]:
    """The ops of a graph that cost a kernel when each runs alone; those on single numbers do not count."""
    return [n.op.name for n in graph.nodes() if n.op.name not in FREE and _has_axes(n.type)]


def _has_axes(type_: TensorType | tuple[TensorType, ...]) -> bool:
    return any(t.rank for t in type_) if isinstance(type_, tuple) else type_.rank > 0


def as_json(value: Any) -> Any:
    """Any of this package's answers as what JSON can hold; numbers that are not finite become text."""
    if isinstance(value, Change):
        return {**asdict(value), "ratio": round(value.ratio, 3)}
    if is_dataclass(value) and not isinstance(value, type):
        return {name: as_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
