"""What a session, and a single run, may be told: the names, types and defaults of ONNX Runtime's.

Honoured: graph_optimization_level, intra_op_num_threads, enable_profiling with profile_file_prefix, free
dimension overrides, initialisers given from outside, RunOptions.terminate, and the entries of
`add_session_config_entry` that CONFIG lists. Taken and without effect, since there is nothing here they could
change: inter_op_num_threads and the execution mode (a program is one sequence of parallel kernels), the
memory switches, the log levels (logs are those of planish: PLANISH_LOGS). Refused: optimized_model_filepath
and libraries of custom operators.
"""
from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from planish.errors import SignatureError
from planish.onnx import errors
from planish.runtime.pool import MAX_THREADS


class GraphOptimizationLevel(Enum):
    """How much a session optimises; variants.py says what each level means here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(Enum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(Enum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


CONFIG = {
    "planish.mode": "default or max-autotune: choices by rules, or measured and remembered",
    "planish.numerics": "strict, default or fast: what rewriting may change in the last bits",
    "planish.strategy": "native or library: compiled code, or one NumPy kernel per operation",
    "planish.disable": "names of passes, schedule steps or rules to leave out, with commas between",
    "session.model_external_initializers_file_folder_path":
        "where a model given as bytes has its external data",
}


class Setting:
    """An attribute that takes values of one kind only. TypeError for others, as ONNX Runtime has it."""

    def __init__(self, default: Any):
        self.default, self.kind = default, type(default)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance._values.get(self.name, self.default)

    def __set__(self, instance: Any, value: Any) -> None:
        instance._values[self.name] = self.checked(value)

    def checked(self, value: Any) -> Any:
        if self.kind is int and not isinstance(value, (bool, np.bool_, Enum)):
            try:
                return operator.index(value)
            except TypeError:
                pass
        elif isinstance(value, self.kind):
            return value
        elif self.kind is bool and isinstance(value, np.bool_):
            return bool(value)
        raise TypeError(f"{self.name} takes {self.kind.__name__}, not {type(value).__name__} {value!r}")


class Count(Setting):
    """A number of threads; 0 leaves the choice."""

    def checked(self, value: Any) -> int:
        count: int = super().checked(value)
        if not 0 <= count <= MAX_THREADS:
            raise ValueError(f"{self.name} is from 0 to {MAX_THREADS}, not {count}")
        return count


class Refused(Setting):
    """A file name that can't be honoured: only the empty one may be set."""

    def checked(self, value: Any) -> str:
        if super().checked(value):
            raise errors.NotImplemented(f"{self.name}: planish writes no optimised ONNX model; "
                                        "`planish inspect MODEL.onnx` prints the program at every stage")
        return ""


class SessionOptions:
    """The options of a session. They are read when it is made."""

    __slots__ = ("_config", "_dimensions", "_initializers", "_providers", "_values")

    enable_cpu_mem_arena = Setting(True)
    enable_mem_pattern = Setting(True)
    enable_mem_reuse = Setting(True)
    enable_profiling = Setting(False)
    execution_mode = Setting(ExecutionMode.ORT_SEQUENTIAL)
    execution_order = Setting(ExecutionOrder.DEFAULT)
    graph_optimization_level = Setting(GraphOptimizationLevel.ORT_ENABLE_ALL)
    inter_op_num_threads = Count(0)
    intra_op_num_threads = Count(0)
    log_severity_level = Setting(-1)
    log_verbosity_level = Setting(0)
    logid = Setting("")
    optimized_model_filepath = Refused("")
    profile_file_prefix = Setting("onnxruntime_profile_")
    use_deterministic_compute = Setting(False)
    use_per_session_threads = Setting(True)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._config: dict[str, str] = {}
        self._dimensions: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._providers: dict[str, dict[str, str]] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError("add_session_config_entry takes two strings")
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a size that the model leaves open, by its dim_param."""
        self._dimensions[str(name)] = operator.index(size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Use an OrtValue in the place of an initialiser; its array must not change afterwards."""
        self._initializers[str(name)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        if len(names) != len(values):
            raise SignatureError(f"{len(names)} names of initialisers, and {len(values)} values")
        self._initializers.update(zip(names, values))

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        self._providers[str(name)] = dict(options)

    def has_providers(self) -> bool:
        return bool(self._providers)

    def register_custom_ops_library(self, path: str) -> None:
        raise errors.NotImplemented(f"custom operators from native libraries ({path})")


class RunOptions:
    """The options of a single run."""

    __slots__ = ("_config", "_values")

    log_severity_level = Setting(-1)
    log_verbosity_level = Setting(0)
    logid = Setting("")
    only_execute_path_to_fetches = Setting(False)
    terminate = Setting(False)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._config: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._config[str(key)] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._config[key]
