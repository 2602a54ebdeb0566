"""Inputs of a model from `--input` texts; those not given are random.

    --input name=1x2048          random, of this shape
    --input name=1x2048:0..255   random, in this range; integers include both ends
    --input name=scalar          random, without axes
    --input name=file.npy        from a file

Without a range, floats are drawn from the standard normal distribution, integers from 0..9, bools from both.
Sizes that no given input says are 1, or the least the model allows.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from planish.cli.faults import UsageError
from planish.ir import Graph, Node
from planish.types import STRING, Dim, as_text, dtype_of, evaluate_dim

INTEGERS = (0, 9)
NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
FORM = re.compile(rf"(?P<shape>scalar|\d+(?:x\d+)*)(?::(?P<low>{NUMBER})\.\.(?P<high>{NUMBER}))?", re.ASCII)

Range = tuple[float, float]


@dataclass(frozen=True)
class Given:
    """What one `--input` says: a shape with or without a range, or an array from a file."""

    shape: tuple[int, ...]
    range: Range | None = None
    array: np.ndarray | None = None
    source: str = ""


@dataclass(frozen=True)
class Inputs:
    """Arrays in the order of the graph's inputs, how each was made, and the sizes of the graph's symbols."""

    arrays: list[np.ndarray]
    origins: list[str]
    sizes: dict[str, int]


def make_inputs(graph: Graph, texts: Sequence[str], seed: int) -> Inputs:
    """The inputs of a graph.

    Raises UsageError for what does not fit it, OSError for a file that can't be read.
    """
    given = _given(graph, texts)
    sizes = _sizes(graph, given)
    rng = np.random.default_rng(seed)
    arrays, origins = [], []
    for node in graph.inputs:
        one = given.get(_name(node), Given(()))
        shape = tuple(evaluate_dim(d, sizes) for d in node.shape)
        if one.array is not None:
            arrays.append(one.array)
            origins.append(one.source)
        else:
            arrays.append(_random(node, shape, one.range, rng))
            origins.append(_distribution(node, one.range))
    return Inputs(arrays, origins, sizes)


def _name(node: Node) -> str:
    return str(node.attributes.name)


# --- what is given

def _given(graph: Graph, texts: Sequence[str]) -> dict[str, Given]:
    nodes = {_name(n): n for n in graph.inputs}
    found: dict[str, Given] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals:
            raise UsageError(f"--input {text}: write NAME=SHAPE or NAME=FILE.npy, such as "
                             f"{next(iter(nodes), 'x')}=1x2048; the model's inputs are {_listed(graph)}")
        if name not in nodes:
            raise UsageError(f"--input {text}: the model has no input {name!r}; "
                             f"its inputs are {_listed(graph)}")
        if name in found:
            raise UsageError(f"--input {text}: {name!r} is given twice")
        found[name] = _read(text, value, nodes[name])
    return found


def _listed(graph: Graph) -> str:
    return ", ".join(f"{_name(n)}: {n.type}" for n in graph.inputs) or "none"


def shape_in(text: str) -> tuple[int, ...]:
    """The shape that an `--input` text says, or that the array in its file has."""
    value = text.rpartition("=")[2]
    form = _form(text, value)
    return _array_in(value).shape if form is None else _from_form(text, form).shape


def _form(text: str, value: str) -> re.Match[str] | None:
    """The parts of a shape and a range; None for a file."""
    form = FORM.fullmatch(value)
    if form is None and not value.endswith(".npy"):
        raise UsageError(f"--input {text}: {value!r} is neither a shape (1x2048, scalar, 1x2048:0..255) "
                         "nor a file that ends in .npy")
    return form


def _read(text: str, value: str, node: Node) -> Given:
    form = _form(text, value)
    given = _from_file(value, node) if form is None else _from_form(text, form)
    fits = len(given.shape) == len(node.shape) and \
        all(size == dim for size, dim in zip(given.shape, node.shape) if isinstance(dim, int))
    if not fits:
        raise UsageError(f"--input {text}: the shape is {_shape(given.shape)}; the model takes {node.type}")
    return given


def _from_form(text: str, form: re.Match[str]) -> Given:
    shape = () if form["shape"] == "scalar" else tuple(map(int, form["shape"].split("x")))
    if form["low"] is None:
        return Given(shape)
    low, high = float(form["low"]), float(form["high"])
    if low > high:
        raise UsageError(f"--input {text}: the range is empty")
    return Given(shape, (low, high))


def _array_in(path: str) -> np.ndarray:
    try:
        array = np.load(Path(path), allow_pickle=False)
    except (ValueError, EOFError):
        raise UsageError(f"{path} is not a NumPy array file, holds Python objects, or is cut off") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} holds several arrays; give one in a file that ends in .npy")
    return array


def _from_file(path: str, node: Node) -> Given:
    array = _array_in(path)
    expected = node.dtype.numpy
    if array.dtype == np.dtype(("V", expected.itemsize)) and expected.isbuiltin != 1:
        array = array.view(expected)  # how NumPy stores what it does not know
    if node.dtype is STRING and dtype_of(array.dtype) is STRING:
        array = as_text(array)
    if array.dtype != expected:
        raise UsageError(f"{path} holds {array.dtype}; the model's input {_name(node)} takes {expected}")
    return Given(array.shape, array=array, source=path)


def _shape(sizes: Sequence[Dim]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


# --- sizes

def _sizes(graph: Graph, given: dict[str, Given]) -> dict[str, int]:
    symbols = graph.symbols()
    sizes: dict[str, int] = {}
    dims = [(n, dim, size) for n in graph.inputs if _name(n) in given
            for dim, size in zip(n.shape, given[_name(n)].shape)]
    for _, dim, size in dims:
        if str(dim) in symbols:
            sizes.setdefault(str(dim), size)
    sizes |= {name: max(1, one.low) for name, one in symbols.items() if name not in sizes}
    for node, dim, size in dims:
        expected = evaluate_dim(dim, sizes)
        if expected != size:
            raise UsageError(f"--input {_name(node)}: the size {dim} is {size} there, "
                             f"and {expected} by other inputs")
    return sizes


# --- random data

WORDS = ("one", "Two", "three four", "5,6", "é")

def _limits(node: Node, range_: Range | None) -> tuple[int, int]:
    """The least and the largest of random integers."""
    if node.dtype.kind == "bool":
        return 0, 1
    info = ml_dtypes.iinfo(node.dtype.numpy)
    low, high = map(int, range_ or (INTEGERS[0], min(INTEGERS[1], info.max)))
    if low < info.min or high > info.max:
        raise UsageError(f"--input {_name(node)}: {low}..{high} is not in the range of {node.dtype.name}")
    return low, high


def _distribution(node: Node, range_: Range | None) -> str:
    if node.dtype is STRING:
        return "random, of " + ", ".join(WORDS)
    if node.dtype.is_float:
        return "random, standard normal" if range_ is None else f"random, {range_[0]:g}..{range_[1]:g}"
    low, high = _limits(node, range_)
    return f"random, {low}..{high}"


def _random(node: Node, shape: tuple[int, ...], range_: Range | None, rng: np.random.Generator) -> np.ndarray:
    drawn: Any
    if node.dtype is STRING:
        drawn = rng.choice(WORDS, shape)
    elif not node.dtype.is_float:
        drawn = rng.integers(*_limits(node, range_), shape, endpoint=True)
    else:
        drawn = rng.standard_normal(shape) if range_ is None else rng.uniform(*range_, shape)
    return np.asarray(drawn).astype(node.dtype.numpy)
