"""ONNX models, read into the graph IR: `load_graph(path)` gives the Graph.

    model.py       reading and checking the file
    wire.py        weights, taken out before the file is parsed
    tensors.py     tensor content and external data
    symbols.py     sizes of inputs
    implied.py     what a model implies about them
    containers.py  sequences and empty optionals
    structure.py   how a model's inputs and outputs lie in the graph
    ends.py        inputs and outputs of the model to those of the graph
    sizes.py       shape arithmetic on symbolic sizes
    call.py        a node as its translation sees it, and the table of translations
    translate.py   the walk over the nodes, functions

The translations are tables, foreign operator -> our ops, in files by family: pointwise, movement, reductions,
indexing, contractions, pooling, normalization, narrow, quantization, recurrent, resizing, sampling, spectral,
chance, determinant, training, sequences, text, and learned, lookup, trees for ai.onnx.ml. Operators with
graphs among their attributes are in control.py and loops.py. The package onnx is loaded at the first call.
"""
from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from planish.capture.onnx import (
    chance,
    contractions,
    determinant,
    indexing,
    learned,
    lookup,
    movement,
    narrow,
    normalization,
    pointwise,
    pooling,
    quantization,
    recurrent,
    reductions,
    resizing,
    sampling,
    selection,
    sequences,
    spectral,
    text,
    training,
    trees,
)
from planish.capture.onnx.call import supported_operators
from planish.capture.onnx.model import read_model
from planish.capture.onnx.structure import CapturedModel, Given, given_of, open_inputs
from planish.capture.onnx.symbols import Known
from planish.capture.onnx.translate import translate_model
from planish.ir import Graph

__all__ = [
    "CapturedModel",
    "chance",
    "contractions",
    "determinant",
    "given_of",
    "indexing",
    "learned",
    "load_graph",
    "load_model",
    "lookup",
    "movement",
    "narrow",
    "normalization",
    "open_inputs",
    "pointwise",
    "pooling",
    "quantization",
    "recurrent",
    "reductions",
    "resizing",
    "sampling",
    "selection",
    "sequences",
    "spectral",
    "supported_operators",
    "text",
    "training",
    "trees",
]


def load_graph(source: str | PathLike[str] | bytes | Any, *,
               symbols: Known | None = None,
               constants: Mapping[str, Any] | None = None,
               types: Mapping[str, Given] | None = None) -> Graph:
    """The graph of an ONNX model: a path, the bytes of one, or an onnx.ModelProto.

    symbols    names of sizes that the model leaves open -> a number, or a range (low, high) or
               (low, high, step); high may be None
    constants  names of inputs -> what they always have, where an input says a shape or axes
    types      names of inputs whose type the model leaves open -> what they hold: a TensorType (a tensor of
               unknown rank, an optional), a list of them (a sequence), None (an optional that holds nothing)

    The graph's inputs and outputs are the model's, in order, sequences and optionals taken apart
    (`load_model` says how); initialisers are constants, also those that IR versions before 4 list as inputs.
    Sizes that the model names or leaves open stay symbolic. Every node has a note with the file, the name of
    the ONNX node, and the name of the value.

    Raises ModelError for a file that is corrupt, cut off or not well formed; UnsupportedOp, with all of them
    at once, for operators without a translation, and for uses of an operator that are not supported;
    UnsupportedDType; FileNotFoundError; PlanishError where the package onnx is missing.
    """
    return load_model(source, symbols=symbols, constants=constants, types=types).graph


def load_model(source: str | PathLike[str] | bytes | Any, *,
               symbols: Known | None = None,
               constants: Mapping[str, Any] | None = None,
               types: Mapping[str, Given] | None = None) -> CapturedModel:
    """As `load_graph`, with what tells where each of the model's inputs and outputs lies in the graph: it
    turns lists and None into the graph's arrays, and back."""
    return translate_model(read_model(source), symbols, constants, types)
