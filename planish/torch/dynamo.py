"""The backend of torch.compile: Dynamo captures, AOTAutograd makes functional ATen graphs of forward and
backward and sees to mutation and aliasing, and planish compiles each graph. An inference in which there is
nothing to see to goes a shorter way to its ATen graph (`light.py`).

    torch.compile(model, backend="planish", options={"numerics": "strict"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any

from planish.capture.torch import Captured, decompositions, translate
from planish.compiler import Compiled, compile_graph
from planish.torch import light, watch
from planish.torch.light import NotLight, capture_light
from planish.torch.program import TorchProgram
from planish.torch.settings import Settings, settings_of
from planish.torch.settle import settle_sizes
from planish.torch.watch import Run
from planish.torch.weights import WithWeights

_numbers = count()


def backend(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile an FX graph that Dynamo captured. `mode` and `options` are torch.compile's; "max-autotune"
    measures what is else decided by rules; options are

    numerics   "strict", "default" or "fast"
    strategy   "native" or "library"
    disable    names of compiler passes to leave out
    freeze     False: parameters stay arguments in inference too
    host       False: an operator that torch would have to run is refused
    random     "keys", or "eager": torch draws the random numbers, those that it would draw without planish
    """
    return compile_dynamo(module, example_inputs, settings_of(mode, options))


def compile_dynamo(
    module: Any,
    example_inputs: Sequence[Any],
    settings: Settings,
    on_plain: Callable[[TorchProgram | WithWeights], None] | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls with the arguments of its graph: AOTAutograd's function; or, where that has nothing
    to do before or after the call, the program itself, which `on_plain` is told of."""
    watch.on_compile()
    number = next(_numbers)
    settle_sizes(module)
    try:
        graph = capture_light(module)
    except NotLight as reason:
        watch.on_full_capture(number, str(reason))
        return compile_fully(module, example_inputs, settings, on_plain, number)
    places = light.static_arguments(module) if settings.freeze else []
    program, run = build_inference(graph, settings, f"inference_{number}", places)
    return plain_call(program, run, on_plain) or unboxed(run)


def compile_fully(
    module: Any,
    example_inputs: Sequence[Any],
    settings: Settings,
    on_plain: Callable[[TorchProgram | WithWeights], None] | None,
    number: int,
) -> Callable[..., Any]:
    """The same by AOTAutograd."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    plain: list[Callable[..., Any]] = []

    def compile_inference(graph: Any, inputs: Any) -> Callable[[list[Any]], Sequence[Any]]:
        places = static_arguments(graph) if settings.freeze else []
        program, run = build_inference(graph, settings, f"inference_{number}", places)
        if len(inputs) == len(example_inputs) and is_plain():
            call = plain_call(program, run, on_plain)
            plain.extend([] if call is None else [call])
        return run

    compiler = aot_autograd(
        fw_compiler=lambda graph, inputs: compile_part(graph, settings, f"forward_{number}"),
        bw_compiler=lambda graph, inputs: compile_part(graph, settings, f"backward_{number}"),
        inference_compiler=compile_inference,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )
    compiled = compiler(module, example_inputs)
    return plain[0] if plain else compiled


def is_plain() -> bool:
    """Whether AOTAutograd only passes the call on: nothing is changed in place, no result is a view of an
    argument or of another result, none has a size to be marked dynamic, none is of a tensor subclass."""
    from torch._functorch._aot_autograd.schemas import SubclassCreationMeta
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    if meta is None or meta.num_mutated_inp_runtime_indices or meta.num_outputs_aliased:
        return False
    if meta.tokens or meta.dynamic_outputs or meta.grad_enabled_mutation is not None:
        return False
    kinds = (*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta)
    return not any(isinstance(kind, SubclassCreationMeta) for kind in kinds)


def compile_part(graph: Any, settings: Settings, name: str) -> Callable[[list[Any]], Sequence[Any]]:
    """Forward or backward of a training step: parameters are arguments, and the loss, hooks and the optimiser
    are torch's."""
    return watch.on_graph(name, graph, boxed(build(graph, settings, name, {}, in_turns=True)))


def build_inference(
    graph: Any, settings: Settings, name: str, static: Sequence[int]
) -> tuple[TorchProgram | WithWeights, Run]:
    """A graph's program, in which the arguments `static` are constants, and the call of it."""
    program: TorchProgram | WithWeights
    if static:
        names = {i: node.name for i, node in enumerate(graph.graph.nodes) if node.op == "placeholder"}
        program = WithWeights(lambda weights: build(graph, settings, name, weights), static, names)
    else:
        program = build(graph, settings, name, {})
    return program, watch.on_graph(name, graph, boxed(program))


def plain_call(
    program: TorchProgram | WithWeights,
    run: Run,
    on_plain: Callable[[TorchProgram | WithWeights], None] | None,
) -> Callable[..., Any] | None:
    """What takes the arguments of a program to which nobody listens one by one; `on_plain` is told of it."""
    if watch.listens_to(run):
        return None
    if on_plain is not None:
        on_plain(program)
    return unpacked(program)


def static_arguments(graph: Any) -> list[int]:
    """The arguments that are parameters or buffers and that the graph does not change."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return []
    meta = context.fw_metadata
    changed = set(meta.mutated_inp_runtime_indices)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    first = len(meta.tokens)
    places = [first + i for i in meta.static_input_indices if i not in changed]
    return [i for i in places if i < len(placeholders) and hasattr(placeholders[i].meta.get("val"), "stride")]


def build(
    graph: Any, settings: Settings, name: str, weights: Mapping[int, Any], *, in_turns: bool = False
) -> TorchProgram:
    start = perf_counter()
    captured = translate(graph, name, weights, settings.host, settings.random)
    program = TorchProgram(captured, compile_captured(captured, settings), in_turns)
    watch.on_program(name, program, perf_counter() - start)
    return program


def compile_captured(captured: Captured, settings: Settings) -> Compiled:
    hints = {n: size for n, size in captured.hints.items() if n in captured.graph.symbols()}
    return compile_graph(captured.graph, settings.options, hint=hints)


def unpacked(program: TorchProgram | WithWeights) -> Callable[..., Sequence[Any]]:
    """What takes the program's arguments one by one."""
    if isinstance(program, TorchProgram) and program.is_direct:
        return program.run

    def run(*arguments: Any) -> Sequence[Any]:
        return program(arguments)

    return run


def unboxed(run: Run) -> Callable[..., Sequence[Any]]:
    """`run`, taking arguments one by one."""

    def call(*arguments: Any) -> Sequence[Any]:
        return run(list(arguments))

    return call


def boxed(program: Callable[[Sequence[Any]], Sequence[Any]]) -> Run:
    """AOTAutograd's calling convention: one list, emptied so that arguments can die early."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        results = program(arguments)
        arguments.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
