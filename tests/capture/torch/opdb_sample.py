"""Samples of torch's operator database: run in eager and compiled, and judged.

In: an operator's sample and settings. Out: nothing; raises `Skip` (the sample says nothing about planish),
`Wrong` (a result is not eager's), or what compiling and running raised. `TRACE` keeps how it went: the host
ops and the graph breaks.

A sample is traced as AOTAutograd does, without Dynamo, which is faster. Where that fails (values decide
what is computed), it goes through torch.compile, as with a user: what breaks the graph runs in eager. Several
samples can be compiled as one program, which takes less time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.utils import _pytree as pytree

from planish.capture.torch import decompositions, translate
from planish.capture.torch.captured import KeyFeed
from planish.errors import PlanishError
from planish.torch.dynamo import boxed, compile_captured, compile_dynamo
from planish.torch.program import TorchProgram
from planish.torch.settings import Settings

UNSPECIFIED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
TIED = ("sort", "topk", "kthvalue", "mode")  # of equal elements, any index will do

Function = Callable[..., list[Any]]
Results = list[Any]


class Skip(Exception):
    """The sample says nothing about planish."""


class Wrong(Exception):
    """A result is not eager's."""


class Trace:
    """What the sample at hand was compiled to: what torch runs in it, graph breaks by reason, and whether it
    draws random numbers."""

    def __init__(self) -> None:
        self.hosts: Counter[str] = Counter()
        self.breaks: Counter[str] = Counter()
        self.is_random = False


TRACE = Trace()


def start_trace() -> Trace:
    global TRACE
    TRACE = Trace()
    return TRACE


class ValueCase:
    """A sample's call, and its results in eager. Raises Skip."""

    def __init__(self, op: Any, sample: Any):
        self.name, (self.function, self.tensors) = op.name, flat_function(op, sample)
        refuse_layouts(self.tensors)
        with torch.no_grad():
            self.expected = eager(self.function, copies(self.tensors))
        refuse_layouts(self.expected)
        self.count = len(self.expected)

    def alone(self, settings: Settings) -> Results:
        """The results of the compiled call."""
        with torch.no_grad():
            return compiled_results(self.function, self.tensors, settings)

    @staticmethod
    def together(cases: Sequence[ValueCase], settings: Settings) -> list[Results]:
        """The results of all these calls from one program."""
        function, tensors = joined(cases)
        with torch.no_grad():
            graph = traced(function, copies(tensors))
            return parts(compiled(graph, settings)(copies(tensors)), [c.count for c in cases])

    def judge(self, results: Results) -> None:
        """Raises Wrong."""
        expected, wide = self.expected, lambda: in_float64(self.function, self.tensors)
        reference = None if self.name in UNSPECIFIED or TRACE.is_random else wide
        if reference is None and TRACE.breaks and not draws(self.function, self.tensors):
            reference = wide
        if self.name in TIED:
            if not picks(self.tensors[0], *results):
                raise Wrong("indices of other elements")
            results, expected = results[:1], expected[:1]
        if self.name == "argsort":
            if not same_order(self.tensors[0], results[0], expected[0]):
                raise Wrong("indices in another order")
            return
        compare(results, expected, reference)


class GradientCase:
    """A sample's call, and in eager the gradients of a weighted sum of its results, for every operand that
    has one. Raises Skip."""

    def __init__(self, op: Any, sample: Any):
        self.function, self.tensors = flat_function(op, sample)
        refuse_layouts(self.tensors)
        if not any(t.requires_grad for t in self.tensors):
            raise Skip("no operand requires a gradient")
        counts: list[int] = []
        try:
            self.expected = gradients(self.function, self.tensors, counts)
        except Skip:
            raise
        except Exception as error:
            raise Skip(f"eager: {error}") from error
        refuse_layouts(self.expected)
        (self.count,) = counts

    def alone(self, settings: Settings) -> Results:
        try:
            return compiled_gradients(self.function, self.tensors, settings)
        except PlanishError:
            raise
        except Exception:
            return gradients(by_dynamo(self.function, settings), self.tensors)

    @staticmethod
    def together(cases: Sequence[GradientCase], settings: Settings) -> list[Results]:
        found = compiled_gradients(*joined(cases), settings, [c.count for c in cases])
        return parts(found, [len(c.expected) for c in cases])

    def judge(self, results: Results) -> None:
        is_random = TRACE.is_random or (TRACE.breaks and draws(self.function, self.tensors))
        exact = None if is_random else lambda: gradients(self.function, self.tensors, wide=True)
        compare(results, self.expected, exact)


Case = ValueCase | GradientCase


def joined(cases: Sequence[Case]) -> tuple[Function, list[Any]]:
    """One function of all their tensors that gives all their results."""
    counts = [len(c.tensors) for c in cases]

    def function(*tensors: Any) -> list[Any]:
        return [r for c, of in zip(cases, parts(tensors, counts)) for r in c.function(*of)]

    return function, [t for c in cases for t in c.tensors]


def parts(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """A sequence cut into runs of these lengths."""
    ends = list(accumulate(counts))
    return [list(values[end - count : end]) for end, count in zip(ends, counts)]


def flat_function(op: Any, sample: Any) -> tuple[Function, list[Any]]:
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


def refuse_layouts(tensors: Sequence[Any]) -> None:
    if any(isinstance(t, torch.Tensor) and t.layout is not torch.strided for t in tensors):
        raise Skip("sparse")


def copies(tensors: Sequence[Any]) -> list[Any]:
    return [t.detach().clone() for t in tensors]


def eager(function: Function, tensors: Sequence[Any]) -> list[Any]:
    try:
        return function(*tensors)
    except Exception as error:
        raise Skip(f"eager: {error}") from error


# --- values, compiled


def compiled_results(function: Function, tensors: Sequence[Any], settings: Settings) -> list[Any]:
    try:
        graph = traced(function, copies(tensors))
    except Exception:
        return by_dynamo(function, settings)(*copies(tensors))
    return compiled(graph, settings)(copies(tensors))


def traced(function: Function, tensors: Sequence[Any]) -> Any:
    """The functional ATen graph of a function of tensors."""
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    functional = dispatch_functionalize(function)

    def on_copies(*tensors: Any) -> Any:
        return functional(*[t.clone() for t in tensors])

    return make_fx(on_copies, decompositions(), tracing_mode="fake")(*tensors)


def compiled(graph: Any, settings: Settings) -> TorchProgram:
    captured = translate(graph, "sample", host=settings.host)
    TRACE.hosts.update(
        n.attributes.function.parameters[0][1] for n in captured.graph.nodes() if is_torch_call(n)
    )
    TRACE.is_random |= any(isinstance(f, KeyFeed) for f in captured.feeds)
    return TorchProgram(captured, compile_captured(captured, settings))


def is_torch_call(node: Any) -> bool:
    return node.op.name == "host" and node.attributes.function.name.startswith("torch")


def by_dynamo(function: Function, settings: Settings) -> Function:
    """The function through torch.compile, as users do."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    made = torch.compile(
        function, backend=lambda graph, inputs: compile_dynamo(graph, inputs, settings), dynamic=False
    )

    def call(*tensors: Any) -> list[Any]:
        try:
            return made(*tensors)
        except Exception as error:
            cause = error.__cause__ or getattr(error, "inner_exception", None)
            raise (cause if isinstance(cause, PlanishError) else error) from None
        finally:
            TRACE.breaks.update(first_line(reason) for reason in counters["graph_break"])
            if not TRACE.breaks:
                TRACE.breaks["traced by torch.compile only"] += 0

    return call


def first_line(error: Any) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def draws(function: Function, tensors: Sequence[Any]) -> bool:
    """Whether eager gives other values with another seed."""
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(function(*copies(tensors)))
    return not all(same_bits(a, b) for a, b in zip(*runs) if isinstance(a, torch.Tensor))


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


# --- gradients, compiled


def gradients(
    of: Function, tensors: Sequence[Any], counts: list[int] | None = None, wide: bool = False
) -> list[Any]:
    """The gradients of the results' weighted sum. `counts`: where one function makes several calls, how many
    results each has: the weights begin anew with each; an empty list is told the number of results."""
    given = [fresh(t, wide) for t in tensors]
    results = of(*given)
    if counts is not None and not counts:
        counts.append(len(results))
    outputs, weights = [], []
    for part in parts(results, counts or [len(results)]):
        kept = [o for o in part if isinstance(o, torch.Tensor) and o.requires_grad]
        refuse_layouts(kept)
        torch.manual_seed(0)
        outputs += kept
        weights += [weight_of(o) for o in kept]
    if not outputs:
        raise Skip("no result requires a gradient")
    wanted = [g for g in given if g.requires_grad]
    return list(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))


def weight_of(output: Any) -> Any:
    dtype = torch.complex128 if output.is_complex() else torch.float64
    return torch.randn(output.shape, dtype=dtype).to(output.dtype)


def compiled_gradients(
    function: Function, tensors: Sequence[Any], settings: Settings, counts: list[int] | None = None
) -> list[Any]:
    """Through AOTAutograd. What planish raises is raised as it is."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._functorch.aot_autograd import aot_function

    failed: list[Exception] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        try:
            return boxed(compiled(graph, settings))
        except Exception as error:
            failed.append(error)
            raise

    partition = min_cut_rematerialization_partition
    wrapped = aot_function(function, compiler, compiler, partition, decompositions())
    try:
        return gradients(wrapped, tensors, counts)
    except Exception:
        if failed:
            raise failed[0] from None
        raise


def fresh(tensor: Any, wide: bool) -> Any:
    dtype = tensor.dtype
    if wide and tensor.is_floating_point():
        dtype = torch.float64
    if wide and tensor.is_complex():
        dtype = torch.complex128
    return tensor.detach().clone().to(dtype).requires_grad_(tensor.requires_grad)


def in_float64(function: Function, tensors: Sequence[Any]) -> list[Any]:
    with torch.no_grad():
        return function(*[fresh(t.detach(), True) for t in tensors])


# --- comparing


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
            assert a == b or a is b or (a != a and b != b), f"result {i} is {a!r}, not {b!r}"
            continue
        assert isinstance(a, torch.Tensor) and a.dtype is b.dtype and a.shape == b.shape, (
            f"{getattr(a, 'dtype', a)}{list(getattr(a, 'shape', ()))}, not {b.dtype}{list(b.shape)}"
        )
        if reference is not None:
            near(a, b, i, reference)


def near(a: Any, b: Any, i: int, reference: Callable[[], list[Any]]) -> None:
    """Within torch's tolerances, or at most twice as far from the result in float64 as eager is."""
    try:
        torch.testing.assert_close(a, b, equal_nan=True)
    except AssertionError:
        if b.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        if not b.is_floating_point() or not torch.equal(torch.isfinite(a), torch.isfinite(b)):
            raise
        exact = reference()[i]
        exact = (torch.view_as_real(exact) if exact.is_complex() else exact).to(torch.float64)
        mine, theirs = ((x.double() - exact).nan_to_num(0, 0, 0).abs().max() for x in (a, b))
        if not mine <= 2 * theirs + 1e-7 * exact.nan_to_num(0, 0, 0).abs().max():
            raise
