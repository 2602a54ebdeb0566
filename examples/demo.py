"""`make demo`: a real model classifies real files in native code; then what the compiler did, and how fast it
is.

1. Twelve files (examples/sample_files.py) as the magika model wants them, classified in one batch; every
score compared with
   ONNX Runtime, with the reference interpreter, and with float64.
2. The report of the compiler. 3. Milliseconds beside the library strategy and ONNX Runtime, one file and all.
4. Five ops become one kernel (examples/five_to_one.py). 5. A chain of pointwise ops at the machine's limit
(examples/gelu_chain.py).

A wrong answer anywhere ends it with exit code 1.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import five_to_one
import gelu_chain
import magika_files
import numpy as np
from sample_files import sample_files

import planish
from planish.capture.onnx import load_graph
from planish.cli.console import console as make_console
from planish.cli.console import progress
from planish.compiler import Compiled, Options, compile_graph
from planish.inspect import tables
from planish.inspect.bench import Bench, Contestant, bench, steps
from planish.inspect.explain import explain
from planish.inspect.peers import onnx_runtime
from planish.inspect.validate import Validation, validate
from planish.ir import Graph, interpret

ROUNDS = 3
console = make_console()


def load() -> Graph:
    return load_graph(magika_files.model_path())


def size_of_batch(graph: Graph, files: int) -> dict[str, int]:
    """The model's one symbol is the number of files."""
    return dict.fromkeys(graph.symbols(), files)


def peer(graph: Graph) -> Callable[[np.ndarray], Sequence[np.ndarray]]:
    """The model in ONNX Runtime, with as many threads."""
    run = onnx_runtime(magika_files.model_path(), planish.get_num_threads())
    name = graph.inputs[0].attributes.name
    return lambda batch: run({name: batch})


def classify(graph: Graph, batch: np.ndarray) -> tuple[Compiled, np.ndarray, Validation]:
    """The native program, its scores, and how far everyone's are from float64."""
    program = compile_graph(graph, Options(), hint=size_of_batch(graph, len(batch)))
    runners = {"native": program, "reference": lambda x: interpret(graph, [x]),
               "onnxruntime": peer(graph)}
    found = validate(graph, runners, [batch])
    scores = {name: np.asarray(run(batch)[0]) for name, run in runners.items()}
    require(found.is_right, f"scores are off: {found}")
    for other in ("reference", "onnxruntime"):
        same = scores["native"].argmax(1) == scores[other].argmax(1)
        require(bool(same.all()), f"labels of {np.flatnonzero(~same)} are not those of {other}")
    return program, scores["native"], found


def require(holds: bool, fault: str) -> None:
    if not holds:
        console.print(f"demo failed: {fault}", style="bold red", markup=False)
        sys.exit(1)


def show_labels(files: dict[Path, str], scores: np.ndarray) -> None:
    names = [magika_files.labels()[i] for i in scores.argmax(1)]
    rows = [(path.name, f"{path.stat().st_size:,}", label, f"{score:.3f}")
            for path, label, score in zip(files, names, scores.max(1))]
    columns = ["file*", "bytes>", "label", "score>"]
    console.print(tables.table("Files, classified by native code", columns, rows))
    for (path, expected), label in zip(files.items(), names):
        require(label == expected, f"{path.name} is {expected}, and was classified as {label}")


def race(graph: Graph, batch: np.ndarray, say) -> Bench:  # type: ignore[no-untyped-def]
    """Native code, the library strategy and ONNX Runtime on one batch."""
    hint = size_of_batch(graph, len(batch))
    result = bench(graph, [
        Contestant("native", lambda: compile_graph(graph, Options(), hint=hint)),
        Contestant("library", lambda: compile_graph(graph, Options(strategy="library"), hint=hint)),
        Contestant("onnxruntime", lambda: peer(graph)),
    ], [batch], rounds=ROUNDS, say=say)
    require(not result.refused, f"no time for {result.refused}")
    return result


def headline(text: str) -> None:
    console.rule(f"[bold]{text}", align="left", style="cyan")
    console.print()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-times", action="store_true", help="no timing, only answers and the report")
    skip_times = parser.parse_args(arguments).skip_times
    start = perf_counter()
    graph = load()
    with tempfile.TemporaryDirectory(prefix="planish-demo-") as folder:
        files = sample_files(Path(folder))
        batch = magika_files.batch(list(files))
        headline("1  A real model on real files")
        program, scores, found = classify(graph, batch)
        show_labels(files, scores)
    console.print(tables.validation(found))
    headline("2  What the compiler did")
    console.print(tables.explanation(explain(program)))
    if not skip_times:
        headline("3  How fast")
        show_times(graph, batch)
    headline("4  Five ops, one kernel")
    five_to_one.show()
    if not skip_times:
        headline("5  At the machine's limit")
        with progress(6) as say:
            result = gelu_chain.measure(say=say)
        gelu_chain.show(result)
    console.print(f"All answers right, {perf_counter() - start:.0f} s.", style="bold green")


def show_times(graph: Graph, batch: np.ndarray) -> None:
    with progress(2 * steps(3, ROUNDS)) as say:
        results = [race(graph, batch[:1], say), race(graph, batch, say)]
    for result in results:
        console.print(tables.benchmark(result))


if __name__ == "__main__":
    main()
