"""What is computed. A workload is one record: the same program for NumPy and planish, torch, JAX and ONNX.

Weights are constants of the program everywhere: closures in NumPy and JAX, parameters in torch,
initialisers in ONNX. All values are float32, all inputs and weights come from a fixed seed. `torch`,
`jax` and `onnx` are imported by the functions that need them, so a worker loads its own framework only.
The models of transformers are in `models.py`, the training step in `training_step.py`, all of them by name
in `catalogue.py`.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Layers = list[tuple[Array, Array]]              # (weight [in, out], bias [out]) of each linear layer
Activation = Callable[[Any, Any], Any]          # (numpy, torch or jax.numpy; x) -> y


@dataclass(frozen=True)
class Cost:
    """What no implementation can avoid: floating point operations, bytes read, bytes written."""

    flops: int
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class Workload:
    """One row of the table. A field that is None says that the workload has no such program."""

    name: str
    title: str
    inputs: Callable[[], tuple[Array, ...]]             # the same in every process
    cost: Callable[[], Cost]
    aim: float                                          # times the machine's limit that we want to reach
    tolerance: float                 # of the largest error, relative to the largest value of the reference
    reference: Callable[[], Array]                      # in float64
    torch: Callable[[], Any] | None                     # a module
    numpy: Callable[[], Callable[..., Array]] | None = None
    jax: Callable[[], Callable[..., Any]] | None = None
    onnx: Callable[[], bytes | str] | None = None       # a model, or its path
    trains: bool = False                                # a call is a step of SGD, see training_step.py
    prepare: Callable[[], None] = lambda: None          # writes what the functions above read


def one_input(shape: tuple[int, int]) -> Callable[[], tuple[Array, ...]]:
    return lambda: (np.random.default_rng(0).normal(size=shape).astype(np.float32),)


def numpy_programs(inputs: Callable[[], tuple[Array, ...]],
                   make: Callable[[type], Callable[[Array], Array]]) -> dict[str, Any]:
    """`make(dtype)` gives a NumPy function whose weights have that dtype: float32 is measured, float64 is the
    reference."""
    return {"numpy": lambda: make(np.float32),
            "reference": lambda: make(np.float64)(*(x.astype(np.float64) for x in inputs()))}


# ---- pieces, generic over numpy and jax.numpy --------------------------------------------------------


def gelu_chain(np: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + np.tanh(0.8 * (x + 0.04 * x**3)))


def layer_norm(np: Any, x: Any, scale: Any, shift: Any) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * scale + shift


def softmax(np: Any, x: Any) -> Any:
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


def stack(np: Any, x: Any, layers: Layers, activation: Activation, *, activate_last: bool) -> Any:
    """Linear layers with an activation between them, and after the last if asked."""
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if activate_last or i < len(layers) - 1:
            x = activation(np, x)
    return x


def random_layers(count: int, size: int, gain: float) -> Layers:
    rng = np.random.default_rng(1)
    scale = gain / np.sqrt(size)
    return [(rng.normal(size=(size, size), scale=scale).astype(np.float32),
             rng.normal(size=size, scale=0.1).astype(np.float32)) for _ in range(count)]


def tanh(np: Any, x: Any) -> Any:
    return np.tanh(x)


# ---- the same pieces as ONNX nodes -------------------------------------------------------------------


class OnnxBuilder:
    """Strings nodes together: each method takes and returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, value: Array | float) -> str:
        from onnx import numpy_helper
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        """As torch exports nn.Linear: Gemm with the weight stored [out, in]."""
        stored = self.constant(np.ascontiguousarray(weight.T))
        return self.op("Gemm", x, stored, self.constant(bias), transB=1)

    def gelu_chain(self, x: str) -> str:
        inner = self.op("Mul", self.constant(0.04), self.op("Pow", x, self.constant(3.0)))
        inner = self.op("Mul", self.constant(0.8), self.op("Add", x, inner))
        factor = self.op("Add", self.constant(1.0), self.op("Tanh", inner))
        return self.op("Mul", self.op("Mul", self.constant(0.5), x), factor)

    def tanh(self, x: str) -> str:
        return self.op("Tanh", x)

    def model(self, output: str, shape: tuple[int, int]) -> bytes:
        from onnx import TensorProto, checker, helper
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", output)]
        graph = helper.make_graph(self.nodes, "workload", values[:1], values[1:], self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        checker.check_model(model)
        return model.SerializeToString()


# ---- the workloads -----------------------------------------------------------------------------------


def gelu_workload(rows: int, columns: int) -> Workload:
    def torch_module() -> Any:
        import torch

        class Gelu(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return gelu_chain(torch, x)

        return Gelu()

    def jax_function() -> Callable[[Any], Any]:
        import jax.numpy as jnp
        return lambda x: gelu_chain(jnp, x)

    def onnx_model() -> bytes:
        builder = OnnxBuilder()
        return builder.model(builder.gelu_chain("x"), (rows, columns))

    size, inputs = rows * columns, one_input((rows, columns))
    return Workload(
        "gelu", f"gelu chain {rows}x{columns}", inputs, lambda: Cost(20 * size, 4 * size, 4 * size), aim=1.35,
        tolerance=2e-6, torch=torch_module, jax=jax_function, onnx=onnx_model,
        **numpy_programs(inputs, lambda dtype: lambda x: gelu_chain(np, x)))


def layernorm_softmax_workload(rows: int, columns: int) -> Workload:
    rng = np.random.default_rng(1)
    scale = rng.normal(loc=1.0, scale=0.1, size=columns).astype(np.float32)
    shift = rng.normal(scale=0.1, size=columns).astype(np.float32)

    def numpy_function(dtype: type) -> Callable[[Array], Array]:
        g, b = scale.astype(dtype), shift.astype(dtype)
        return lambda x: softmax(np, layer_norm(np, x, g, b))

    def torch_module() -> Any:
        import torch
        norm = torch.nn.LayerNorm(columns)
        norm.weight.data, norm.bias.data = torch.from_numpy(scale), torch.from_numpy(shift)
        return torch.nn.Sequential(norm, torch.nn.Softmax(dim=-1))

    def jax_function() -> Callable[[Any], Any]:
        import jax.numpy as jnp
        return lambda x: softmax(jnp, layer_norm(jnp, x, scale, shift))

    def onnx_model() -> bytes:
        builder = OnnxBuilder()
        weights = builder.constant(scale), builder.constant(shift)
        norm = builder.op("LayerNormalization", "x", *weights, epsilon=1e-5)
        return builder.model(builder.op("Softmax", norm, axis=-1), (rows, columns))

    size, inputs = rows * columns, one_input((rows, columns))
    return Workload(
        "layernorm_softmax", f"layer_norm + softmax {rows}x{columns}", inputs,
        lambda: Cost(20 * size, 4 * size, 4 * size), aim=1.43, tolerance=1e-5,
        torch=torch_module, jax=jax_function, onnx=onnx_model, **numpy_programs(inputs, numpy_function))


def stack_module(size: int, layers: Layers, activation: Activation, *, activate_last: bool) -> Any:
    """The layers as a torch module."""
    import torch

    class Activate(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return activation(torch, x)

    modules: list[Any] = []
    for weight, bias in layers:
        linear = torch.nn.Linear(size, size)
        linear.weight.data, linear.bias.data = torch.from_numpy(weight.T.copy()), torch.from_numpy(bias)
        modules += [linear, Activate()]
    return torch.nn.Sequential(*(modules if activate_last else modules[:-1]))


def stack_workload(name: str, title: str, batch: int, size: int, layers: Layers, activation: Activation, *,
                   activate_last: bool, aim: float) -> Workload:
    def numpy_function(dtype: type) -> Callable[[Array], Array]:
        cast = [(w.astype(dtype), b.astype(dtype)) for w, b in layers]
        return lambda x: stack(np, x, cast, activation, activate_last=activate_last)

    def jax_function() -> Callable[[Any], Any]:
        import jax.numpy as jnp
        return lambda x: stack(jnp, x, layers, activation, activate_last=activate_last)

    def onnx_model() -> bytes:
        builder = OnnxBuilder()
        activate = builder.tanh if activation is tanh else builder.gelu_chain
        x = "x"
        for i, (weight, bias) in enumerate(layers):
            x = builder.linear(x, weight, bias)
            if activate_last or i < len(layers) - 1:
                x = activate(x)
        return builder.model(x, (batch, size))

    weights, inputs = sum(w.nbytes + b.nbytes for w, b in layers), one_input((batch, size))
    cost = Cost(2 * batch * size * size * len(layers), weights + 4 * batch * size, 4 * batch * size)
    return Workload(
        name, title, inputs, lambda: cost, aim, tolerance=2e-5,
        torch=lambda: stack_module(size, layers, activation, activate_last=activate_last),
        jax=jax_function, onnx=onnx_model, **numpy_programs(inputs, numpy_function))


def mlp_workload(batch: int, aim: float) -> Workload:
    return stack_workload(f"mlp{batch}", f"mlp: 4 x Linear 1024, gelu chain between, batch {batch}",
                          batch, 1024, random_layers(4, 1024, gain=1.6), gelu_chain, activate_last=False,
                          aim=aim)


def deep_workload(batch: int, aim: float) -> Workload:
    return stack_workload(f"deep{batch}", f"deep: 60 x (Linear 256, tanh), batch {batch}", batch, 256,
                          random_layers(60, 256, gain=1.0), tanh, activate_last=True, aim=aim)
