"""The commands. Each loads what it needs when it runs, so that `planish --help` is quick."""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planish.cli.console import measured_progress, progress, show, show_json
from planish.cli.faults import INTERRUPTED, UsageError
from planish.cli.request import ModeName, Request, model_command

if TYPE_CHECKING:
    from planish.compiled import Strategy
    from planish.inspect.validate import Validation
    from planish.tuning.record import Finding

app = typer.Typer(name="planish", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                  help="A graph compiler for deep learning that shows every decision it makes.",
                  epilog="Exit codes: 0 it worked, 1 it failed, 2 the command line is wrong, 130 stopped.")
cache_app = typer.Typer(no_args_is_help=True, help="The disk cache of compiled code: status, clear.")
app.add_typer(cache_app, name="cache")
tuning_app = typer.Typer(no_args_is_help=True, help="What `planish tune` found on this machine: list, clear.")
app.add_typer(tuning_app, name="tuning")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show whole tracebacks.")] = False,
) -> None:
    if version:
        from planish import __version__

        print(f"planish {__version__}")
        raise typer.Exit()


class Stage(str, Enum):
    """What `inspect --stage` can print, in the order of the road."""

    graph = "graph"
    optimized = "optimized"
    segments = "segments"
    loops = "loops"
    program = "program"
    llvm = "llvm"
    asm = "asm"


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Write the outputs there.",
                                             show_default=False)]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; everyone has a turn in each.")]
Rewrites = Annotated[bool, typer.Option("--rewrites", help="Also list every rule that fired, and on what.")]
PEERS = "onnxruntime,reference"
Peers = Annotated[str, typer.Option(metavar="NAME,...", help="Whom to compare with: onnxruntime, reference "
                                    "(the package onnx's evaluator, slow).")]
PerNode = Annotated[bool, typer.Option("--per-node", help="Also compare the outputs of every node, and name "
                                       "the first that diverges.")]
Seconds = Annotated[float, typer.Option(min=0, help="Seconds of calls; five calls at least.")]
Budget = Annotated[float, typer.Option(min=0, help="Seconds to measure, at most.")]
TriedOption = Annotated[bool, typer.Option("--tried", help="Also list every candidate, and its verdict.")]
StageOption = Annotated[Stage, typer.Option(help="Which form of the program to print.")]


@model_command(app)
def run(request: Request, output: Output = None) -> None:
    """Run a model once and describe its outputs.

    planish run model.onnx --input bytes=2x2048:0..255
    """
    if output is not None and (output.suffix != ".npz" or output.is_dir()):
        raise UsageError(f"--output {output}: an archive of arrays is written, a file that ends in .npz")
    data = request.data
    compiled = request.compile()
    start = perf_counter()
    outputs = compiled(*data.arrays)
    ms = (perf_counter() - start) * 1e3
    names = [*request.graph.output_names, *(f"output{i}" for i in range(len(outputs)))][:len(outputs)]
    if output is not None:
        _save(output, dict(zip(names, outputs)))
    described = [_described(name, array) for name, array in zip(names, outputs)]
    given = [{"name": node.attributes.name, "type": _type(array), "from": origin}
             for node, array, origin in zip(request.graph.inputs, data.arrays, data.origins)]
    if request.as_json:
        show_json({"inputs": given, "outputs": described, "first_call_ms": ms})
        return
    from planish.inspect.tables import table

    show(table("Inputs", ["name*", "type", "from*"], (list(d.values()) for d in given)),
         table(f"Outputs (first call {ms:.2f} ms)", ["name*", "type", "min>", "mean>", "max>", "begins*"],
               (list(d.values()) for d in described)))


def _save(path: Path, arrays: dict[str, Any]) -> None:
    """Write an archive that NumPy alone reads: strings have a fixed width, and floats and integers that NumPy
    does not have are float32 and int8, which hold them exactly. The file is there whole or not at all."""
    import numpy as np

    from planish.types import dtype_of

    def plain(array: Any) -> Any:
        if array.dtype == object:
            return array.astype(np.str_)
        if array.dtype.kind != "V":
            return array
        return array.astype(np.float32 if dtype_of(array.dtype).is_float else np.int8)

    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        np.savez(beside, **{name: plain(array) for name, array in arrays.items()})
        beside.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        beside.unlink(missing_ok=True)


def _described(name: str, array: Any) -> dict[str, Any]:
    import numpy as np

    if array.dtype == object:
        begins = " ".join(map(repr, array.reshape(-1)[:6]))
        return {"name": name, "type": _type(array), "min": "", "mean": "", "max": "", "begins": begins}
    wide = array.astype(np.float64)
    low, mean, high = (float(f(wide)) for f in (np.min, np.mean, np.max)) if array.size else (0.0, 0.0, 0.0)
    begins = " ".join(f"{v:.4g}" for v in wide.reshape(-1)[:6])
    figures = {"min": low, "mean": mean, "max": high}
    return {"name": name, "type": _type(array), **{k: float(f"{v:.6g}") for k, v in figures.items()},
            "begins": begins}


def _type(array: Any) -> str:
    name = "string" if array.dtype == object else array.dtype
    return f"{name}[{', '.join(map(str, array.shape))}]"


@model_command(app)
def bench(request: Request, rounds: Rounds = 10) -> None:
    """Time a model: native code, the library strategy, ONNX Runtime if installed, in mixed rounds.

    Each is compared with the float64 reference first; who gives another answer gets no time. Where that is
    planish, the exit code is 1.
    """
    from planish.inspect.bench import Contestant, steps
    from planish.inspect.bench import bench as measure
    from planish.inspect.peers import has_onnx_runtime

    strategies: dict[Strategy, None] = dict.fromkeys([request.options.strategy, "library"])
    contestants = [Contestant(name, partial(request.compile, name)) for name in strategies]
    if has_onnx_runtime():
        contestants.append(Contestant("onnxruntime", request.onnx_runtime))
    data = request.data
    with progress(steps(len(contestants), rounds)) as say:
        result = measure(request.graph, contestants, data.arrays, rounds=rounds, say=say)
    if request.as_json:
        show_json(result)
    else:
        from planish.inspect.tables import benchmark

        show(benchmark(result))
    if result.refused.keys() & strategies.keys():
        raise typer.Exit(1)


@model_command(app)
def profile(request: Request, seconds: Seconds = 2.0) -> None:
    """Tell where the time of a call goes, kernel by kernel.

    Each kernel's runs, milliseconds of the slowest thread, share, GFLOP/s and GB/s; `inspect --stage loops`
    prints the kernels under the same names.
    """
    from planish.inspect.profile import profiled

    if request.options.strategy == "library":
        raise UsageError("--strategy library: it runs op by op, and has no kernels to profile")
    compiled = request.compile()
    with progress(2) as say:
        result = profiled(compiled, request.data.arrays, seconds, say)
    if request.as_json:
        from planish.inspect.explain import as_json

        show_json(as_json(result))
        return
    from planish.inspect.tables import profile as shown

    show(shown(result))


@model_command(app)
def inspect(request: Request, stage: StageOption = Stage.optimized) -> None:
    """Print the program at a stage.

    graph is what was captured, optimized what the passes made of it, loops the scheduled kernels, program
    their order and memory, llvm and asm the code.
    """
    compiled = request.compile()
    if stage.value not in compiled.texts():
        raise UsageError(f"--stage {stage.value}: the {request.strategy.value} strategy has only "
                         f"{', '.join(compiled.texts())}")
    text = compiled.text(stage.value)
    if request.as_json:
        show_json({"stage": stage.value, "text": text})
    else:
        print(text)


@model_command(app)
def explain(request: Request, rewrites: Rewrites = False) -> None:
    """Tell what the compiler did.

    Rules fired by pass, kernels before and after fusion, bytes moved, peak memory, compile time by stage.
    """
    from planish.inspect.explain import as_json, firings
    from planish.inspect.explain import explain as answer

    result = answer(request.compile())
    fired = firings(request.graph, request.options) if rewrites else []
    if request.as_json:
        show_json({**as_json(result), **({"rewrites": fired} if rewrites else {})})
        return
    from planish.inspect import tables

    show(tables.explanation(result), *([tables.rewrites(fired)] if rewrites else []))


@model_command(app)
def tune(request: Request, budget: Budget = 120.0, tried: TriedOption = False) -> None:
    """Measure what is else decided by rules, and remember what is clearly faster.

    Every distinct kernel with a handful of schedules, ops by the libraries that have them, at last the whole
    program; each candidate gives the right answer before it is timed. Mode max-autotune uses what was found,
    here and in any program. Ctrl-C keeps what was found so far; run it again to go on.
    """
    from planish.tuning.tune import Session

    request = replace(request, mode=ModeName.max_autotune)
    if request.options.strategy == "library":
        raise UsageError("--strategy library: only native code is tuned")
    session, is_stopped = Session(seconds=budget), False
    with measured_progress() as session.say:
        try:
            request.compile(session=session)
        except KeyboardInterrupt:
            is_stopped = True
    show_findings(session.findings, tried=tried, as_json=request.as_json)
    if not request.as_json:
        from planish.inspect import tables
        from planish.inspect.machine import machine_info

        show(tables.machine(machine_info()))
    if is_stopped:
        print("Stopped; what is listed is kept. Run it again to go on.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if not session.is_whole:
        print(f"Out of time after {budget:g} s; run it again to go on.", file=sys.stderr)


def show_findings(findings: Sequence[Finding], *, tried: bool = False, as_json: bool = False) -> None:
    if as_json:
        show_json(findings)
        return
    from planish.inspect import tables

    show(tables.tuning(findings), *([tables.tried(findings)] if tried else []))


@model_command(app)
def validate(request: Request, per_node: PerNode = False, peers: Peers = PEERS) -> None:
    """Compare outputs with the float64 reference: native code, the library strategy, and the peers.

    With --per-node, the outputs of every node, and the first that diverges. The exit code is 1 where the
    chosen strategy is off by more than the dtype's tolerance, or where every peer has another answer than
    float64.
    """
    wanted = _peers(peers)
    result, nodes = _validated(request, wanted), None
    if per_node:
        from planish.inspect.nodes import node_errors, with_every_value

        proto = with_every_value(request.whole_model())
        nodes = node_errors(proto, _validated(request.of_every_value(proto), wanted, proto))
    contradicted = result.contradicted(wanted)
    if request.as_json:
        show_json({**vars(result), "contradicted": contradicted} | ({"nodes": nodes} if nodes else {}))
    else:
        from planish.inspect import tables

        show(tables.validation(result), *([tables.node_validation(nodes)] if nodes else []))
        if contradicted:
            show(f"Every peer has another answer than float64 for {', '.join(contradicted)}.")
    if contradicted or not result.is_right_for(request.strategy.value):
        raise typer.Exit(1)


def _peers(text: str) -> list[str]:
    """The peers of `--peers` that are installed."""
    from planish.inspect.peers import has_onnx_runtime

    named = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := sorted(set(named) - set(PEERS.split(","))):
        raise UsageError(f"--peers {text}: there is no peer {', '.join(unknown)}; there are {PEERS}")
    return [name for name in named if name != "onnxruntime" or has_onnx_runtime()]


def _validated(request: Request, peers: list[str], proto: Any = None) -> Validation:
    from planish.inspect.validate import validate as compare

    runners: dict[str, Any] = {request.strategy.value: request.compile()}
    runners |= {"library": request.compile("library")}
    made = {"onnxruntime": request.onnx_runtime, "reference": request.reference_evaluator}
    runners |= {name: partial(_run_peer, made[name], proto) for name in peers}
    with progress(len(runners) + 1) as say:
        return compare(request.graph, runners, request.data.arrays, say)


def _run_peer(make: Any, proto: Any, *arrays: Any) -> Any:
    return make(proto)(*arrays)


@app.command()
def knobs(as_json: Json = False) -> None:
    """List the environment variables that planish reads, and their values now."""
    from planish import knobs as settings

    rows = [{"variable": k.env, "value": settings.value(k.name), "type": k.type_name, "default": k.default,
             "doc": k.doc} for k in settings.KNOBS.values()]
    if as_json:
        show_json(rows)
        return
    from planish.inspect.tables import table

    show(table("Environment variables", ["variable", "value*", "what it does*"],
               ((r["variable"], "-" if r["value"] is None else r["value"], r["doc"]) for r in rows)))


@tuning_app.command("list")
def list_findings(tried: TriedOption = False, as_json: Json = False) -> None:
    """Every kernel, op and program that was measured, and who won."""
    from planish.tuning.database import default_database

    show_findings(default_database().findings(), tried=tried, as_json=as_json)


@tuning_app.command("clear")
def clear_findings() -> None:
    """Forget all of it; the next max-autotune measures anew."""
    from planish.tuning.database import default_database

    print(f"removed {default_database().clear()} findings")


@cache_app.command()
def status(as_json: Json = False) -> None:
    """Where the cache is, how full it is, and whether it can be used."""
    from planish.runtime.cache import default_cache

    cache = default_cache()
    entries, size = cache.usage()
    found = {"folder": str(cache.folder) if cache.folder else None, "entries": entries, "bytes": size,
             "limit_bytes": cache.limit, "fault": cache.fault()}
    if as_json:
        show_json(found)
        return
    from planish.inspect.tables import count_bytes, table

    state = "switched off by PLANISH_DISABLE_CACHE" if cache.folder is None else found["fault"] or "in use"
    show(table("Cache of compiled code", ["", "*"], [
        ("folder", found["folder"] or "-"), ("state", state), ("entries", entries),
        ("size", f"{count_bytes(size)} of at most {count_bytes(cache.limit)}")]))


@cache_app.command()
def clear() -> None:
    """Remove every entry of the cache."""
    from planish.errors import PlanishError
    from planish.runtime.cache import default_cache

    cache = default_cache()
    before, size = cache.usage()
    left = cache.clear()
    if left:
        why = cache.fault() or "no permission"
        raise PlanishError(f"{left} of {before} entries of {cache.folder} could not be removed: {why}")
    from planish.inspect.tables import count_bytes

    print(f"removed {before} entries, {count_bytes(size)}")
