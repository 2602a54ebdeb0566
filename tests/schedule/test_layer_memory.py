"""The planned memory of a transformer layer, in its activations: what each intermediate for itself would take
and what the plan takes."""
from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

import planish
from benchmarks.exported import filled
from planish.capture.onnx import load_graph
from planish.ir.specialize import bind_symbols, specialize
from planish.passes import run_pipeline
from planish.schedule.build import build_program
from planish.schedule.machine import Machine

TOKENS, WIDTH, HEADS = 128, 256, 4
HIDDEN = TOKENS * 4 * WIDTH * 4  # bytes of the largest activation, inside the MLP
MACHINE = Machine(vector_bytes=32, registers=16, threads=2)
EXPORTED = Path(__file__).parents[1] / "capture" / "onnx" / "exported"

rng = np.random.default_rng(0)
weights = {name: planish.freeze(rng.normal(0, 0.05, shape).astype(np.float32)) for name, shape in {
    "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH),
    "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}.items()}


def norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(0.8) * (x + np.float32(0.04) * x * x * x)))


def layer(x):
    h = norm(x)
    q, k, v = ((h @ weights[n]).reshape(TOKENS, HEADS, -1).transpose(1, 0, 2) for n in "qkv")
    scores = q @ k.transpose(0, 2, 1) * np.float32((WIDTH // HEADS) ** -0.5)
    x = x + (softmax(scores) @ v).transpose(1, 0, 2).reshape(TOKENS, WIDTH) @ weights["o"]
    return x + gelu(norm(x) @ weights["up"]) @ weights["down"]


@pytest.mark.parametrize("layers", [1, 4])
def test_a_layer_takes_less_than_three_of_its_largest_activations(layers):
    def stack(x):
        for _ in range(layers):
            x = layer(x)
        return x

    graph = planish.make_graph(stack)(np.zeros((TOKENS, WIDTH), np.float32))
    values = [n for n in graph.nodes() if n.op.name not in ("input", "constant")]
    each_for_itself = sum(prod(map(int, n.shape)) * n.dtype.itemsize for n in values)
    optimized, _ = run_pipeline(graph)
    memory = build_program(optimized, MACHINE, {}).memory
    assert each_for_itself >= 8 * layers * HIDDEN
    assert memory.planned == memory.bound <= 3 * HIDDEN


@pytest.mark.parametrize(("name", "hidden"), [("bert", 512), ("llama", 512), ("gpt2", 512)])
def test_so_do_layers_of_known_models(name, hidden):
    """As torch exports them: two layers, heads of 64, with what is before and after them."""
    pytest.importorskip("onnx")
    graph = load_graph(filled(EXPORTED / f"{name}.onnx", rng))
    graph = specialize(graph, bind_symbols(graph, [(1, TOKENS)] * len(graph.inputs)))
    memory = build_program(run_pipeline(graph)[0], MACHINE, {}).memory
    assert memory.naive >= 3.5 * memory.planned
    assert memory.planned <= 3 * TOKENS * hidden * 4
