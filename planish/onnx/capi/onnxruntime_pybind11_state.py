"""The exceptions, where programs written for ONNX Runtime import them from."""
from __future__ import annotations

from planish.onnx.errors import (
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoaded,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)

__all__ = ["EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf",
           "ModelLoaded", "NoModel", "NoSuchFile", "NotFound", "NotImplemented", "RuntimeException"]
