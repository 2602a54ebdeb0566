"""Other runtimes, to compare with where they are installed.

In: a model (a path, or a ModelProto whose external data lies in `folder`). Out: a function from arrays by
input name to the outputs in the model's order.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from os import PathLike, fspath
from typing import Any

import numpy as np

Peer = Callable[[Mapping[str, np.ndarray]], Sequence[Any]]
_FOLDER = "session.model_external_initializers_file_folder_path"


def has_onnx_runtime() -> bool:
    return find_spec("onnxruntime") is not None


def onnx_runtime(model: Any, threads: int, folder: str | PathLike[str] = "") -> Peer:
    """A model in ONNX Runtime on the CPU, with all its optimisations.

    Raises ImportError where the package is missing, and what it raises for models it can't run.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if folder:
        options.add_session_config_entry(_FOLDER, fspath(folder))
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else fspath(model)
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


def reference_evaluator(model: Any, folder: str | PathLike[str] = "") -> Peer:
    """A model in the package onnx's own evaluator: NumPy, an operator at a time. Raises what it raises."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(fspath(model))
    elif folder:
        onnx.load_external_data_for_model(model, fspath(folder))
    evaluator = ReferenceEvaluator(model)
    return lambda feeds: evaluator.run(None, dict(feeds))


def flat(values: Sequence[Any]) -> list[Any]:
    """Outputs with the elements of sequences in their place, as a graph has them; empty optionals go."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += flat(value)
        elif value is not None:
            found.append(value)
    return found
