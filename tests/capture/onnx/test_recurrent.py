"""RNN, GRU and LSTM beside ONNX Runtime and the reference evaluator."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError
from planish.schedule.program import For, Launch
from tests.capture.onnx.running import (
    STRATEGIES,
    assert_same,
    corrected_runtime,
    make_model,
    native,
    onnxruntime_outputs,
    reference,
    run,
)

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": ["y", "h"], "GRU": ["y", "h"], "LSTM": ["y", "h", "c"]}
OPERANDS = ["x", "w", "r", "b", "lengths", "h0", "c0", "p"]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float32) / 2


def operands(kind: str, t: int, b: int, n: int, h: int, d: int, layout: int = 0) -> dict[str, np.ndarray]:
    """All of them; those a test does not want are left out."""
    rows, rng = GATES[kind] * h, np.random.default_rng()
    made = {"x": normal(b, t, n) if layout else normal(t, b, n), "w": normal(d, rows, n),
            "r": normal(d, rows, h) / 2, "b": normal(d, 2 * rows),
            "lengths": rng.integers(1, t + 1, b).astype(np.int32),
            "h0": normal(b, d, h) if layout else normal(d, b, h)}
    if kind == "LSTM":
        made |= {"c0": normal(*made["h0"].shape), "p": normal(d, 3 * h)}
    return made


def model_of(kind: str, given: dict[str, np.ndarray], free: tuple[str, ...] = ("x", "lengths", "h0", "c0"),
             sizes: dict[str, tuple] | None = None, outputs: list[str] | None = None,
             **attributes: Any) -> Any:
    """A model of one node. Operands in `free` are inputs, of the shapes in `sizes` where it has them."""
    names = [name if name in given else "" for name in OPERANDS[:8 if kind == "LSTM" else 6]]
    outputs = OUTPUTS[kind] if outputs is None else outputs
    node = helper.make_node(kind, names, outputs, name="it", hidden_size=given["r"].shape[2], **attributes)
    inputs = {n: (a.dtype, (sizes or {}).get(n, a.shape)) for n, a in given.items() if n in free}
    return make_model([node], inputs, [o for o in outputs if o], opset=14,
                      initializers={n: a for n, a in given.items() if n not in free})


def feeds_of(model: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {value.name: given[value.name] for value in model.graph.input}


def check(model: Any, given: dict[str, np.ndarray], strategies: tuple[str, ...] = STRATEGIES,
          expected: list[Any] | None = None) -> None:
    feeds = feeds_of(model, given)
    expected = onnxruntime_outputs(model, feeds) if expected is None else expected
    graph = load_graph(model)
    for strategy in strategies:
        assert_same(run(graph, feeds, strategy), expected, factor=64)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_all_operands(kind: str, direction: str) -> None:
    given = operands(kind, 6, 3, 5, 9, 2 if direction == "bidirectional" else 1)
    check(model_of(kind, given, direction=direction), given)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_few_operands(kind: str, direction: str) -> None:
    given = operands(kind, 5, 2, 4, 8, 2 if direction == "bidirectional" else 1)
    few = {n: given[n] for n in "xwr"}
    check(model_of(kind, few, direction=direction), few)
    check(model_of(kind, few, free=("x", "w", "r"), direction=direction), few)


@pytest.mark.parametrize("kind", GATES)
def test_batch_first(kind: str) -> None:
    """ONNX Runtime has no layout 1; the reference evaluator has it for one direction."""
    given = operands(kind, 5, 3, 4, 8, 1, layout=1)
    plain = {n: given[n] for n in ("x", "w", "r", "b")}
    model = model_of(kind, plain, outputs=["y", "h"], layout=1)
    check(model, plain, expected=reference(model, feeds_of(model, plain)))


@pytest.mark.parametrize("kind", GATES)
def test_clip_and_one_step(kind: str) -> None:
    for t in (1, 3):
        given = operands(kind, t, 2, 4, 8, 1)
        given["x"] *= 4
        check(model_of(kind, given, clip=0.4), given)


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
def test_gru_that_resets_after_its_product(linear: int, biased: bool) -> None:
    given = operands("GRU", 5, 2, 4, 8, 1)
    given = given if biased else {n: a for n, a in given.items() if n != "b"}
    check(model_of("GRU", given, linear_before_reset=linear), given)


def test_lstm_with_coupled_gates() -> None:
    given = operands("LSTM", 5, 2, 4, 8, 1)
    check(model_of("LSTM", given, input_forget=1), given)


ALL_ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
                   "HardSigmoid", "Elu", "Softsign", "Softplus"]


@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
def test_activations(name: str) -> None:
    given = operands("RNN", 4, 2, 4, 8, 1)
    check(model_of("RNN", given, activations=[name], activation_alpha=[0.7], activation_beta=[0.3]), given)
    odd = ("Affine", "ThresholdedRelu", "ScaledTanh")   # ONNX Runtime's defaults for these are 0
    if name not in (odd if corrected_runtime() else (*odd, "LeakyRelu", "HardSigmoid", "Elu")):
        check(model_of("RNN", given, activations=[name]), given, ("interpret",))


def test_alpha_and_beta_are_taken_in_order() -> None:
    given = operands("LSTM", 4, 2, 4, 8, 2)
    names = ["HardSigmoid", "LeakyRelu", "ScaledTanh", "Sigmoid", "Affine", "Elu"]
    check(model_of("LSTM", given, activations=names, direction="bidirectional",
                   activation_alpha=[0.3, 0.05, 0.9, 0.8, 0.6], activation_beta=[0.4, 1.1, 0.2]), given)


@pytest.mark.parametrize("kind", GATES)
def test_one_compile_serves_all_batches_and_lengths(kind: str) -> None:
    sizes = {"x": ("T", "B", 5), "lengths": ("B",), "h0": (2, "B", 40), "c0": (2, "B", 40)}
    shapes = [(1, 1), (7, 1), (3, 4), (20, 13)]
    given = operands(kind, *shapes[0], 5, 40, 2)
    model = model_of(kind, given, sizes=sizes, direction="bidirectional")
    graph = load_graph(model)
    for t, b in shapes:
        again = operands(kind, t, b, 5, 40, 2)
        again |= {n: given[n] for n in ("w", "r", "b", "p") if n in given}
        feeds = feeds_of(model, again)
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), onnxruntime_outputs(model, feeds), factor=64)


def test_a_step_is_few_kernels_on_packed_weights() -> None:
    """One product for all inputs before the loop; in it a product, the gates, and a copy to the output."""
    given = {n: a for n, a in operands("LSTM", 5, 1, 64, 64, 1).items() if n in "xwrb"}
    program = native(load_graph(model_of("LSTM", given))).built.program
    loop, = (s for s in program.steps if isinstance(s, For))
    assert [s.kernel.tile is not None for s in loop.body] == [True, False, False]
    weights, = (n for n in loop.body[0].reads if "panels" in n)
    assert program.places[weights].kind == "constant"
    assert sum(s.kernel.tile is not None for s in program.steps if isinstance(s, Launch)) == 1


@pytest.mark.parametrize("outputs", [["y"], ["", "h"], ["", "", "c"], ["y", "", "c"]])
def test_only_the_outputs_that_are_used(outputs: list[str]) -> None:
    given = operands("LSTM", 5, 2, 4, 8, 1)
    check(model_of("LSTM", given, outputs=outputs), given)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats(dtype: type) -> None:
    given = operands("GRU", 4, 2, 4, 8, 1)
    given = {n: a if n == "lengths" else a.astype(dtype) for n, a in given.items()}
    del given["lengths"]
    model = model_of("GRU", given)
    check(model, given, expected=reference(model, feeds_of(model, given)))


@pytest.mark.parametrize(("fault", "message"), [
    ({"direction": "sideways"}, "direction 'sideways' is not one of"),
    ({"activations": ["Sin", "Tanh", "Tanh"]}, "activation 'Sin' is not one of"),
    ({"activations": ["Tanh"]}, "1 activations for 1 directions of 3"),
])
def test_what_is_wrong_is_named(fault: dict[str, Any], message: str) -> None:
    given = operands("LSTM", 4, 2, 4, 8, 1)
    with pytest.raises(ModelError, match=message):
        load_graph(model_of("LSTM", given, **fault))


def test_weights_that_do_not_fit() -> None:
    given = operands("LSTM", 4, 2, 4, 8, 1)
    given["b"] = given["b"][:, :-1]
    with pytest.raises(ModelError, match="operand 3 has shape"):
        load_graph(model_of("LSTM", given))
