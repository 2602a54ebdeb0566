"""A model and its inputs, as a command line gives them.

In: a model that has been read, and the texts of `--input`. Out: its graph, and arrays for it. Most models are
captured for all sizes and values, and then say what their inputs are. One whose program depends on the value
of an input, or that leaves a rank open, is captured for the arrays that the texts give.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planish.cli.faults import UsageError
from planish.cli.inputs import Inputs, make_inputs, shape_in
from planish.errors import NeedsValue
from planish.ir import Graph, Node, input_node
from planish.types import TensorType, symbol

if TYPE_CHECKING:
    from planish.capture.onnx.structure import CapturedModel
    from planish.onnx.variants import Variants


@dataclass(frozen=True)
class Loaded:
    """A captured model. `inputs` are those of its graph, `feeds` those of the model, by name."""

    captured: CapturedModel
    inputs: Inputs
    feeds: Mapping[str, np.ndarray]


def load(variants: Variants, texts: Sequence[str], seed: int) -> Loaded:
    """Capture a model. Raises UsageError where the texts do not say what that takes."""
    if not variants.open:
        try:
            captured = variants.capture({})
        except NeedsValue:
            pass
        else:
            inputs = make_inputs(captured.graph, texts, seed)
            names = [str(node.attributes.name) for node in captured.graph.inputs]
            return Loaded(captured, inputs, dict(zip(names, inputs.arrays)))
    return _load_with_values(variants, texts, seed)


def _load_with_values(variants: Variants, texts: Sequence[str], seed: int) -> Loaded:
    nodes = [*_declared(variants), *(_open(value, texts) for value in variants.open)]
    names = [str(node.attributes.name) for node in nodes]
    made = make_inputs(Graph(tuple(nodes), tuple(nodes)), texts, seed)
    feeds = dict(zip(names, made.arrays))
    try:
        captured = variants.capture(feeds)
    finally:  # a random value may also be what is wrong
        _require_values(variants, texts)
    kept = [names.index(name) for name in captured.inputs]
    inputs = Inputs([made.arrays[i] for i in kept], [made.origins[i] for i in kept],
                    {s: n for s, n in made.sizes.items() if s in captured.graph.symbols()})
    return Loaded(captured, inputs, feeds)


def _require_values(variants: Variants, texts: Sequence[str]) -> None:
    """Inputs whose value the program depends on are to be given."""
    if missing := sorted(variants.valued - {text.rpartition("=")[0] for text in texts}):
        raise UsageError(f"the program depends on the value of {', '.join(missing)}; give it: --input "
                         f"{missing[0]}=FILE.npy, or a range of one number, such as {missing[0]}=1:0..0")


def _declared(variants: Variants) -> list[Node]:
    """The inputs that the model types, as nodes."""
    types = variants.types.items()
    return [input_node(name, given) for name, given in types if isinstance(given, TensorType)]


def _open(value: Any, texts: Sequence[str]) -> Node:
    """An input whose rank the model leaves open: that of its text."""
    from planish.capture.onnx.tensors import onnx_dtype

    if value.type.WhichOneof("value") != "tensor_type":
        raise UsageError(f"the input {value.name} is no tensor; the command line gives tensors only")
    text = next((t for t in texts if t.rpartition("=")[0] == value.name), None)
    if text is None:
        raise UsageError(f"the model leaves the rank of {value.name} open; say its shape: "
                         f"--input {value.name}=1x2048")
    dims = tuple(symbol(f"{value.name}_{axis}", 0, None) for axis in range(len(shape_in(text))))
    dtype = onnx_dtype(value.type.tensor_type.elem_type, f"input {value.name!r}")
    return input_node(value.name, TensorType(dtype, dims))
