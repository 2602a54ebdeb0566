"""A session that drops in for ONNX Runtime's: `import planish.onnx as ort`, and the program stays as it is.

    session.py      InferenceSession: a model that runs on arrays by name
    variants.py     the compiled programs of a session, one for all sizes where that can be
    feeds.py        what a caller passes -> arrays of the model's types, or the one error that says why not
    options.py      SessionOptions, RunOptions, and the enums in them
    values.py       OrtValue, IOBinding
    description.py  NodeArg, ModelMetadata
    profile.py      the file that `enable_profiling` writes
    errors.py       the exceptions, by the names programs catch
    platform.py     providers, devices, versions

Names and behaviour are those of onnxruntime's Python interface on the CPU. The package onnx is loaded when
the first session is made.
"""
from __future__ import annotations

from planish.onnx.description import ModelMetadata, NodeArg
from planish.onnx.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from planish.onnx.platform import (
    INTERFACE,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from planish.onnx.session import InferenceSession
from planish.onnx.values import IOBinding, OrtDevice, OrtValue

__version__ = INTERFACE  # programs compare it with the onnxruntime they need; ours is planish.__version__
SessionIOBinding = IOBinding

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "ModelMetadata", "NodeArg", "OrtDevice", "OrtValue", "RunOptions", "SessionIOBinding", "SessionOptions",
    "__version__",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers",
    "get_build_info", "get_device", "get_version_string", "has_collective_ops", "preload_dlls",
    "set_default_logger_severity", "set_default_logger_verbosity", "set_seed",
]
