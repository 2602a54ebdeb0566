"""Where programs look for ONNX Runtime's exceptions: `ort.capi.onnxruntime_pybind11_state`."""
from __future__ import annotations

from planish.onnx.capi import onnxruntime_pybind11_state

_pybind_state = onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
