"""What may happen between passes: verify, print, save, compare. A hook is called after each with the graph
before and after."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

from planish import knobs
from planish.errors import VerificationError
from planish.ir import Graph, interpret, print_graph, verify
from planish.passes.protocol import PassRecord
from planish.types import Symbol, bounds, evaluate_dim

Hook = Callable[[int, Graph, Graph, PassRecord], None]


def verify_each(position: int, before: Graph, after: Graph, record: PassRecord) -> None:
    """Raises VerificationError where a pass broke the graph."""
    verify(after, record.name)


def print_each(position: int, before: Graph, after: Graph, record: PassRecord) -> None:
    """To standard output: a line for every pass, and the graph where it changed."""
    counts = f"{record.before} -> {record.after} nodes, {record.seconds * 1e3:.2f} ms, {record.fired}"
    print(f"# {position:02d} {record.name}: {counts}")
    if after is not before:
        print(print_graph(after))


def save_each(folder: str | Path) -> Hook:
    """Writes `03_fold_constants.ir` and so on. Raises OSError where the folder can't be written."""
    place = Path(folder)

    def hook(position: int, before: Graph, after: Graph, record: PassRecord) -> None:
        place.mkdir(parents=True, exist_ok=True)
        if position == 1:
            (place / "00_captured.ir").write_text(print_graph(before) + "\n")
        (place / f"{position:02d}_{record.name}.ir").write_text(print_graph(after) + "\n")
    return hook


def compare_each(rng: np.random.Generator, *, units: float = 16) -> Hook:
    """Translation validation: both graphs in float64 on random inputs.

    A difference of more than `units` in the last place of the graph's narrowest float, relative to the
    largest element of an output, raises VerificationError naming the pass (constants are rounded to their
    dtype, however they are used).
    """
    def hook(position: int, before: Graph, after: Graph, record: PassRecord) -> None:
        tolerance = units * _last_place(before)
        inputs = random_inputs(before, rng)
        expected, found = (interpret(g, inputs, precision="float64") for g in (before, after))
        for i, (a, b) in enumerate(zip(expected, found)):
            if not _is_close(a, b, tolerance):
                most = np.max(np.abs(a - b))
                raise VerificationError(f"after {record.name}: output {i} is another, by as much as {most}")
    return hook


def _last_place(graph: Graph) -> float:
    types = [t for n in graph.nodes() for t in (n.type if isinstance(n.type, tuple) else (n.type,))]
    return max((float(ml_dtypes.finfo(t.dtype.numpy).eps) for t in types if t.dtype.is_float), default=0.0)


def _is_close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    if a.dtype != np.float64:
        return np.array_equal(a, b)
    scale = np.max(np.abs(a), initial=0.0, where=np.isfinite(a))
    return np.allclose(a, b, rtol=tolerance, atol=tolerance * float(scale), equal_nan=True)


def random_inputs(graph: Graph, rng: np.random.Generator) -> list[np.ndarray]:
    """One array per input; symbolic sizes are small numbers within their range."""
    sizes = {name: _size(one, rng) for name, one in graph.symbols().items()}
    arrays = []
    for node in graph.inputs:
        shape = tuple(evaluate_dim(d, sizes) for d in node.shape)
        drawn = rng.normal(size=shape) if node.dtype.is_float else rng.integers(0, 9, shape)
        arrays.append(np.asarray(drawn).astype(node.dtype.numpy))
    return arrays


def _size(symbol: Symbol, rng: np.random.Generator) -> int:
    high = None if symbol.high is None else bounds(symbol.high)[1]
    least = max(symbol.low, 1)
    return int(rng.integers(least, least + 4 if high is None else min(high, least + 3) + 1))


def all_of(*hooks: Hook) -> Hook:
    """Several hooks, in turn."""
    def hook(position: int, before: Graph, after: Graph, record: PassRecord) -> None:
        for one in hooks:
            one(position, before, after, record)
    return hook


def hook_of_knobs() -> Hook | None:
    """Saves every pass where PLANISH_TRACE names a folder."""
    folder = knobs.value("trace")
    return save_each(folder) if folder else None
