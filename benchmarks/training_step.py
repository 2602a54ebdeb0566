"""A training step of the four-layer MLP, batch 512: forward, loss, backward, plain SGD.

A call is one step; its output is the prediction that the step's loss was taken of. `output` of a worker is
that of the second step, which the first one's update goes into.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads import Array, Cost, Workload, gelu_chain, random_layers, stack, stack_module

BATCH, SIZE, LAYERS = 512, 1024, 4
RATE = 3e-4


def inputs() -> tuple[Array, Array]:
    """x and the target, [512, 1024] each."""
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(BATCH, SIZE)).astype(np.float32) for _ in range(2))


def module() -> Any:
    return stack_module(SIZE, random_layers(LAYERS, SIZE, 1.6), gelu_chain, activate_last=False)


def torch_step(model: Any, network: Any) -> Callable[[Any, Any], Any]:
    """A step of `model`; `network` computes it: the module itself or what a compiler made of it."""
    import torch
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(x: Any, target: Any) -> Any:
        optimizer.zero_grad()
        y = network(x)
        torch.nn.functional.mse_loss(y, target, reduction="sum").div(BATCH).backward()
        optimizer.step()
        return y.detach()
    return step


def jax_step() -> Callable[[Any, Any], Any]:
    import jax
    import jax.numpy as jnp
    layers = [tuple(map(jnp.asarray, layer)) for layer in random_layers(LAYERS, SIZE, 1.6)]

    def loss(layers: Any, x: Any, target: Any) -> Any:
        y = stack(jnp, x, layers, gelu_chain, activate_last=False)
        return jnp.sum((y - target) ** 2) / BATCH, y

    @jax.jit
    def update(layers: Any, x: Any, target: Any) -> Any:
        (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(layers, x, target)
        return jax.tree.map(lambda p, g: p - RATE * g, layers, gradients), y

    def step(x: Any, target: Any) -> Any:
        nonlocal layers
        layers, y = update(layers, x, target)
        return y
    return step


def reference() -> Array:
    """The second step's prediction, worked out by hand in float64."""
    x, target = (a.astype(np.float64) for a in inputs())
    layers = [(w.astype(np.float64), b.astype(np.float64)) for w, b in random_layers(LAYERS, SIZE, 1.6)]
    stages, values = [], [x]
    for i, (w, b) in enumerate(layers):
        stages.append(values[-1] @ w + b)
        values.append(gelu_chain(np, stages[-1]) if i < LAYERS - 1 else stages[-1])
    gradient, updated = 2 * (values[-1] - target) / BATCH, []
    for i, (w, b) in reversed(list(enumerate(layers))):
        if i < LAYERS - 1:
            gradient = gradient * gelu_chain_derivative(stages[i])
        updated.insert(0, (w - RATE * values[i].T @ gradient, b - RATE * gradient.sum(0)))
        gradient = gradient @ w.T
    return stack(np, x, updated, gelu_chain, activate_last=False)


def gelu_chain_derivative(x: Array) -> Array:
    t = np.tanh(0.8 * (x + 0.04 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.8 * (1 + 0.12 * x * x)


def workload() -> Workload:
    """Two matrix products backwards for each forwards, but none for the input of the first layer. The weights
    are read twice and written once."""
    weights = 4 * LAYERS * (SIZE * SIZE + SIZE)
    cost = Cost(2 * BATCH * SIZE * SIZE * (3 * LAYERS - 1), 2 * weights + 8 * BATCH * SIZE, weights)
    return Workload("train512", "training step of the mlp, batch 512, SGD", inputs, lambda: cost, aim=1.18,
                    tolerance=2e-4, reference=reference, torch=module, jax=jax_step, trains=True)
