"""Who computes it. A peer is a name, the package it needs, and a function that makes a workload callable.

`prepare(workload, threads)` returns a `Ready`: `call()` computes the output once, complete when it
returns, and leaves it where the peer likes it; `output()` is that result as a NumPy array. Each peer gets
its inputs in its own form beforehand and is set up the way its manual says is fastest for one caller. What
a peer's framework costs to import is not counted; all that comes after, until the first result, is the
first call. A workload that has no program for a peer raises NoProgram.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.training_step import torch_step
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


class NoProgram(Exception):
    """The workload isn't written for this peer."""


def program(maker: Callable[[], Any] | None) -> Any:
    if maker is None:
        raise NoProgram
    return maker()


def prepare_planish(workload: Workload, threads: int, strategy: Any = "native") -> Ready:
    """NumPy functions by `jit`, models from their ONNX files."""
    import planish
    planish.set_num_threads(threads)
    inputs = workload.inputs()
    if workload.numpy is None:
        loaded = planish.load_onnx(program(workload.onnx), strategy=strategy)
        return Ready(lambda: loaded(*inputs), lambda outputs: np.asarray(outputs[0]))
    plain = workload.numpy()
    # weights are constants, as everywhere
    held = [cell.cell_contents for cell in plain.__closure__ or ()]
    planish.freeze([value for value in held if not callable(value)])
    function = planish.jit(plain, strategy=strategy)
    return Ready(lambda: function(*inputs), np.asarray)


def prepare_library(workload: Workload, threads: int) -> Ready:
    """The same captured graph, each op by its NumPy kernel: what planish's own claims are measured
    against."""
    return prepare_planish(workload, threads, "library")


def prepare_numpy(workload: Workload, threads: int) -> Ready:
    function, inputs = program(workload.numpy), workload.inputs()
    return Ready(lambda: function(*inputs), np.asarray)


def prepare_torch(workload: Workload, threads: int, transform: Callable[[Any], Any]) -> Ready:
    import torch
    torch.set_num_threads(threads)
    module, inputs = program(workload.torch), [torch.from_numpy(x) for x in workload.inputs()]
    if workload.trains:
        step = torch_step(module, transform(module))
        return Ready(lambda: step(*inputs), lambda y: y.numpy())
    function = transform(module.eval())

    def call() -> Any:
        with torch.no_grad():
            return function(*inputs)

    return Ready(call, lambda y: y.numpy())


def prepare_planish_torch(workload: Workload, threads: int) -> Ready:
    """The torch module through `planish.compile`; a training step through `torch.compile`."""
    import torch

    import planish
    from planish.torch import backend
    planish.set_num_threads(threads)
    through = (lambda m: torch.compile(m, backend=backend)) if workload.trains else planish.compile
    return prepare_torch(workload, threads, through)


def prepare_eager(workload: Workload, threads: int) -> Ready:
    return prepare_torch(workload, threads, lambda module: module)


def prepare_inductor(workload: Workload, threads: int) -> Ready:
    import torch
    return prepare_torch(workload, threads, torch.compile)


def prepare_freezing(workload: Workload, threads: int) -> Ready:
    import torch
    import torch._inductor.config
    torch._inductor.config.freezing = True
    if workload.trains:
        raise NoProgram
    return prepare_torch(workload, threads, torch.compile)


def prepare_onnxruntime(workload: Workload, threads: int) -> Ready:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = program(workload.onnx)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {value.name: x for value, x in zip(session.get_inputs(), workload.inputs(), strict=True)}
    return Ready(lambda: session.run(None, feeds), lambda outputs: outputs[0])


def prepare_openvino(workload: Workload, threads: int) -> Ready:
    import openvino
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
              "INFERENCE_NUM_THREADS": threads}
    core, model = openvino.Core(), program(workload.onnx)
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    inputs, shared = list(workload.inputs()), {"share_inputs": True, "share_outputs": True}
    return Ready(lambda: request.infer(inputs, **shared), lambda result: result[0])


def prepare_jax(workload: Workload, threads: int) -> Ready:
    import jax
    made, inputs = program(workload.jax), [jax.device_put(x) for x in workload.inputs()]
    function = made if workload.trains else jax.jit(made)
    return Ready(lambda: function(*inputs).block_until_ready(), np.asarray)


PEERS = {peer.name: peer for peer in [
    Peer("planish", ("planish", "llvmlite"), prepare_planish),
    Peer("planish-torch", ("planish", "torch"), prepare_planish_torch),
    Peer("library", ("planish", "numpy"), prepare_library),
    Peer("numpy", ("numpy",), prepare_numpy),
    Peer("eager", ("torch",), prepare_eager),
    Peer("inductor", ("torch",), prepare_inductor),
    Peer("inductor-freezing", ("torch",), prepare_freezing),
    Peer("ort", ("onnxruntime", "onnx"), prepare_onnxruntime),
    Peer("openvino", ("openvino", "onnx"), prepare_openvino),
    Peer("jax", ("jax",), prepare_jax),
]}
