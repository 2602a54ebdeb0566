"""Who computes it. A peer is a name, the package it needs, and a function that makes a workload callable.

`prepare(workload, threads)` returns a `Ready`: `call()` computes the output once, complete when it
returns, and leaves it where the peer likes it; `output()` is that result as a NumPy array. Each peer gets
its input in its own form beforehand and is set up the way its manual says is fastest for one caller. What
a peer's framework costs to import is not counted; all that comes after, until the first result, is the
first call.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Ready:
    call: Callable[[], Any]
    output: Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Peer:
    name: str
    packages: tuple[str, ...]        # import names; the first gives the version
    prepare: Callable[[Workload, int], Ready]


def prepare_planish(workload: Workload, threads: int, strategy: Any = "native") -> Ready:
    import planish
    planish.set_num_threads(threads)
    plain, x = workload.numpy(np.float32), workload.inputs()
    # weights are constants, as everywhere
    planish.freeze([cell.cell_contents for cell in plain.__closure__ or ()])
    function = planish.jit(plain, strategy=strategy)
    return Ready(lambda: function(x), np.asarray)


def prepare_library(workload: Workload, threads: int) -> Ready:
    """The same captured graph, each op by its NumPy kernel: what planish's own claims are measured
    against."""
    return prepare_planish(workload, threads, "library")


def prepare_numpy(workload: Workload, threads: int) -> Ready:
    function, x = workload.numpy(np.float32), workload.inputs()
    return Ready(lambda: function(x), np.asarray)


def prepare_torch(workload: Workload, threads: int, transform: Callable[[Any], Any]) -> Ready:
    import torch
    torch.set_num_threads(threads)
    module, x = transform(workload.torch().eval()), torch.from_numpy(workload.inputs())

    def call() -> Any:
        with torch.no_grad():
            return module(x)

    return Ready(call, lambda y: y.numpy())


def prepare_eager(workload: Workload, threads: int) -> Ready:
    return prepare_torch(workload, threads, lambda module: module)


def prepare_inductor(workload: Workload, threads: int) -> Ready:
    import torch
    return prepare_torch(workload, threads, torch.compile)


def prepare_freezing(workload: Workload, threads: int) -> Ready:
    import torch
    import torch._inductor.config
    torch._inductor.config.freezing = True
    return prepare_torch(workload, threads, torch.compile)


def prepare_onnxruntime(workload: Workload, threads: int) -> Ready:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(workload.onnx(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": workload.inputs()}
    return Ready(lambda: session.run(None, feeds), lambda outputs: outputs[0])


def prepare_openvino(workload: Workload, threads: int) -> Ready:
    import openvino
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
              "INFERENCE_NUM_THREADS": threads}
    core = openvino.Core()
    request = core.compile_model(core.read_model(workload.onnx()), "CPU", config).create_infer_request()
    x = workload.inputs()
    return Ready(lambda: request.infer([x], share_inputs=True, share_outputs=True), lambda result: result[0])


def prepare_jax(workload: Workload, threads: int) -> Ready:
    import jax
    function, x = jax.jit(workload.jax()), jax.device_put(workload.inputs())
    return Ready(lambda: function(x).block_until_ready(), np.asarray)


PEERS = {peer.name: peer for peer in [
    Peer("planish", ("planish", "llvmlite"), prepare_planish),
    Peer("library", ("planish", "numpy"), prepare_library),
    Peer("numpy", ("numpy",), prepare_numpy),
    Peer("eager", ("torch",), prepare_eager),
    Peer("inductor", ("torch",), prepare_inductor),
    Peer("inductor-freezing", ("torch",), prepare_freezing),
    Peer("ort", ("onnxruntime", "onnx"), prepare_onnxruntime),
    Peer("openvino", ("openvino", "onnx"), prepare_openvino),
    Peer("jax", ("jax",), prepare_jax),
]}
