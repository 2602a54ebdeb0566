"""All workloads by name. They are made only when asked for: each holds its weights."""
from __future__ import annotations

from collections.abc import Callable

from benchmarks import models, training_step
from benchmarks.workloads import (
    Workload,
    deep_workload,
    gelu_workload,
    layernorm_softmax_workload,
    mlp_workload,
)

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "gelu": lambda: gelu_workload(4000, 4000),
    "layernorm_softmax": lambda: layernorm_softmax_workload(4096, 1024),
    "mlp512": lambda: mlp_workload(512, 1.09),
    "mlp1": lambda: mlp_workload(1, 1.0),
    "deep64": lambda: deep_workload(64, 1.25),
    "deep1": lambda: deep_workload(1, 1.23),
    **models.WORKLOADS,
    "train512": training_step.workload,
}
