"""Other runtimes, to compare with where they are installed."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from os import PathLike, fspath
from typing import Any

import numpy as np


def has_onnx_runtime() -> bool:
    return find_spec("onnxruntime") is not None


def onnx_runtime(path: str | PathLike[str], threads: int) -> Callable[..., Sequence[Any]]:
    """A model in ONNX Runtime on the CPU, with all its optimisations: takes arrays in the order of the
    model's inputs.

    Raises ImportError where the package is missing, and what it raises for models it can't run.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(fspath(path), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(*arrays: np.ndarray) -> Sequence[Any]:
        return session.run(None, dict(zip(names, arrays, strict=True)))
    return run
