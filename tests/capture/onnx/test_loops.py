"""Loop and Scan beside ONNX Runtime."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError, NeedsValue, UnsupportedOp
from planish.ir import Graph
from tests.capture.onnx.rounding import assert_near, bounded_loop
from tests.capture.onnx.running import STRATEGIES, assert_same, make_model, onnxruntime_outputs, run

node = helper.make_node
F, I, B = (np.dtype(t) for t in (np.float32, np.int64, np.bool_))


def body_of(nodes: Sequence[Any], inputs: Mapping[str, tuple], outputs: Mapping[str, tuple],
            **initialisers: np.ndarray) -> Any:
    def values(of: Mapping[str, tuple]) -> list[Any]:
        return [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(d), shape)
                for n, (d, shape) in of.items()]
    return helper.make_graph(list(nodes), "body", values(inputs), values(outputs),
                             [numpy_helper.from_array(v, n) for n, v in initialisers.items()])


def loop_of(body: Any, operands: Sequence[str], outputs: Sequence[str], inputs: Mapping[str, Any],
            before: Sequence[Any] = (), after: Sequence[Any] = (), **initialisers: Any) -> Any:
    it = node("Loop", list(operands), list(outputs), name="loop", body=body)
    made = [o for n in (it, *after) for o in n.output]
    arrays = {n: np.asarray(v) for n, v in initialisers.items()}
    return make_model([*before, it, *after], inputs, made, initializers=arrays)


def check(model: Any, *every: dict[str, np.ndarray], constants: dict[str, Any] | None = None) -> Graph:
    """One graph for all the feeds."""
    graph = load_graph(model, constants=constants)
    for feeds in every:
        expected = onnxruntime_outputs(model, feeds)
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), expected, factor=64)
    return graph


def has(graph: Graph, op: str) -> bool:
    return any(n.op.name == op for n in graph.nodes())


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


ROUND = {"i": (I, ()), "c": (B, ())}
GOES_ON = [node("Identity", ["c"], ["d"])]


def gather_body() -> Any:
    """h' = tanh(h w + x[i] s), with w an initialiser outside and s a value outside; gives h' and i."""
    nodes = [*GOES_ON, node("Gather", ["x", "i"], ["xi"]), node("Mul", ["xi", "s"], ["xs"]),
             node("MatMul", ["h", "w"], ["hw"]), node("Add", ["hw", "xs"], ["u"]),
             node("Tanh", ["u"], ["h1"]), node("Identity", ["h1"], ["y"]), node("Identity", ["i"], ["j"])]
    return body_of(nodes, ROUND | {"h": (F, (2, 8))},
                   {"d": (B, ()), "h1": (F, (2, 8)), "y": (F, (2, 8)), "j": (I, ())})


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_constant_number_of_rounds(trips: int) -> None:
    x, h = normal(6, 2, 8), normal(2, 8)
    model = loop_of(gather_body(), ["n", "", "h0"], ["last", "ys", "js"], {"x": x, "h0": h},
                    [node("Exp", ["x"], ["e"]), node("ReduceSum", ["e"], ["s"], keepdims=0)],
                    n=trips, w=normal(8, 8))
    graph = check(model, {"x": x, "h0": h})
    assert has(graph, "scan_loop") is (trips != 1)


def test_as_many_rounds_as_a_size() -> None:
    """One compile for all sequences; what does not change from round to round moves out of the loop."""
    model = loop_of(gather_body(), ["n", "true", "h0"], ["last", "ys", "js"],
                    {"x": (F, ("T", 2, 8)), "h0": (F, (2, 8))},
                    [node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "zero"], ["n"]),
                     node("Exp", ["h0"], ["e"]), node("ReduceSum", ["e"], ["s"], keepdims=0)],
                    zero=0, true=True, w=normal(8, 8))
    graph = check(model, *({"x": normal(t, 2, 8), "h0": normal(2, 8)} for t in (1, 4, 11)))
    inside = next(n for n in graph.nodes() if n.op.name == "scan_loop").attributes.body
    assert not any(n.op.name in ("exp", "reduce_sum") for n in inside.nodes())
    assert any(n.op.name == "constant" and n.shape == (8, 8) for n in inside.nodes())


def halving_body() -> Any:
    """x' = x / 2 + k, goes on while sum x' > limit."""
    nodes = [node("Mul", ["x", "half"], ["m"]), node("Add", ["m", "k"], ["x1"]),
             node("Add", ["t", "i"], ["t1"]), node("ReduceSum", ["x1"], ["sum"], keepdims=0),
             node("Greater", ["sum", "limit"], ["d"])]
    return body_of(nodes, ROUND | {"x": (F, (5,)), "k": (F, (5,)), "t": (I, ())},
                   {"d": (B, ()), "x1": (F, (5,)), "k": (F, (5,)), "t1": (I, ())}, half=np.array(0.5, F))


@pytest.mark.parametrize("operands", [["n", ""], ["n", "go"], ["", "go"], ["", ""]])
def test_rounds_until_a_condition(operands: list[str]) -> None:
    x = np.abs(normal(5)) + 1
    given = {"n": (I, ()), "go": (B, ())}
    inputs = {"x0": x, "k0": x, "limit": (F, ())} | {n: given[n] for n in operands if n}
    model = loop_of(halving_body(), [*operands, "x0", "k0", "zero"], ["x", "k", "t"], inputs, zero=0)
    every = [{"x0": x, "k0": -x / 100, "limit": np.array(limit, F), "n": np.array(n), "go": np.array(go)}
             for limit in (0.01, 1, 1000) for n, go in ((0, True), (3, True), (50, True), (5, False))]
    graph = check(model, *({k: v for k, v in feeds.items() if k in inputs} for feeds in every))
    assert has(graph, "while_loop")


def test_a_number_of_rounds_that_an_input_says() -> None:
    nodes = [*GOES_ON, node("Mul", ["x", "x"], ["x1"])]
    body = body_of(nodes, ROUND | {"x": (F, (3,))}, {"d": (B, ()), "x1": (F, (3,))})
    x = np.abs(normal(3)) / 2
    model = loop_of(body, ["n", "", "x0"], ["y"], {"x0": x, "n": (I, (1,))})
    check(model, *({"x0": x, "n": np.array([n])} for n in (-1, 0, 1, 6)))


def test_loops_in_loops() -> None:
    """The inner one runs i rounds, reads both states of the outer one, and its own counter."""
    inner = body_of([node("Identity", ["ci"], ["di"]), node("Cast", ["ii"], ["f"], to=1),
                     node("Mul", ["f", "h"], ["g"]), node("Add", ["a", "g"], ["a1"])],
                    {"ii": (I, ()), "ci": (B, ()), "a": (F, (4,))}, {"di": (B, ()), "a1": (F, (4,))})
    outer = body_of([*GOES_ON, node("Loop", ["i", "", "h"], ["r"], body=inner), node("Sin", ["r"], ["h1"]),
                     node("Add", ["h1", "x"], ["y"])],
                    ROUND | {"h": (F, (4,))}, {"d": (B, ()), "h1": (F, (4,)), "y": (F, (4,))})
    model = loop_of(outer, ["n", "", "h0"], ["h", "ys"], {"x": (F, (4,)), "h0": (F, (4,))}, n=5)
    check(model, {"x": normal(4), "h0": normal(4)})


def test_a_choice_in_a_loop() -> None:
    def side(op: str, name: str) -> Any:
        return helper.make_graph([node(op, ["h", "x"], [name])], "side", [], [onnx.ValueInfoProto(name=name)])
    body = body_of([*GOES_ON, node("Mod", ["i", "two"], ["m"]), node("Cast", ["m"], ["odd"], to=9),
                    node("If", ["odd"], ["h1"], then_branch=side("Mul", "t"), else_branch=side("Sub", "e"))],
                   ROUND | {"h": (F, (4,))}, {"d": (B, ()), "h1": (F, (4,))}, two=np.array(2))
    model = loop_of(body, ["n", "", "h0"], ["h"], {"x": (F, (4,)), "h0": (F, (4,)), "n": (I, ())})
    check(model, *({"x": normal(4), "h0": normal(4), "n": np.array(n)} for n in (0, 3, 6)))


def test_a_state_that_stays_is_known_inside() -> None:
    """The shape that the loop hands round is a constant in its body."""
    body = body_of([*GOES_ON, node("Reshape", ["h", "shape"], ["u"]), node("Add", ["u", "u"], ["v"]),
                    node("Reshape", ["v", "flat"], ["h1"])],
                   ROUND | {"h": (F, (6,)), "shape": (I, (2,))},
                   {"d": (B, ()), "h1": (F, (6,)), "shape": (I, (2,)), "v": (F, (2, 3))}, flat=np.array([6]))
    model = loop_of(body, ["n", "", "h0", "s"], ["h", "shape", "vs"], {"h0": (F, (6,))}, n=3, s=[2, 3])
    check(model, {"h0": normal(6)})


def growing() -> Any:
    """A state that gets longer every round."""
    return body_of([*GOES_ON, node("Concat", ["h", "x"], ["h1"], axis=0), node("ReduceSum", ["h"], ["y"])],
                   ROUND | {"h": (F, ("n",))}, {"d": (B, ()), "h1": (F, ("m",)), "y": (F, (1,))})


def test_a_state_that_grows_is_written_out() -> None:
    model = loop_of(growing(), ["n", "", "x"], ["h", "ys"], {"x": (F, (3,))}, n=4)
    assert not has(check(model, {"x": normal(3)}), "scan_loop")
    counted = loop_of(growing(), ["n", "", "x"], ["h", "ys"], {"x": (F, (3,)), "n": (I, ())})
    with pytest.raises(NeedsValue, match=r"'loop' .* its state 0 is f32.3. at first and f32.6.") as error:
        load_graph(counted)
    assert error.value.inputs == {"n"}
    for n in (0, 1, 4):
        check(counted, {"x": normal(3), "n": np.array(n)}, constants={"n": n})


def test_a_size_that_is_the_number_of_the_round() -> None:
    body = body_of([*GOES_ON, node("Unsqueeze", ["i", "at"], ["k"]),
                    node("Slice", ["x", "at", "k"], ["part"]),
                    node("ReduceSum", ["part"], ["sum"], keepdims=0), node("Add", ["h", "sum"], ["h1"])],
                   ROUND | {"h": (F, ())}, {"d": (B, ()), "h1": (F, ())}, at=np.array([0]))
    x = normal(4)
    check(loop_of(body, ["n", "", "zero"], ["h"], {"x": x}, n=4, zero=np.array(0, F)), {"x": x})


def test_outputs_of_a_number_of_rounds_that_the_run_tells() -> None:
    nodes = [node("Mul", ["x", "half"], ["x1"]), node("ReduceMax", ["x1"], ["m"], keepdims=0),
             node("Greater", ["m", "half"], ["d"]), node("Exp", ["x1"], ["y"])]
    body = body_of(nodes, ROUND | {"x": (F, (3,))}, {"d": (B, ()), "x1": (F, (3,)), "y": (F, (3,))},
                   half=np.array(0.5, F))
    exact = body_of([*GOES_ON, *nodes[0:1], *nodes[3:4]], ROUND | {"x": (F, (3,))},
                    {"d": (B, ()), "x1": (F, (3,)), "y": (F, (3,))}, half=np.array(0.5, F))
    every = [{"x0": np.array(x, F), "n": np.array(n)}
             for x in ([1, 2, 3], [9, 100, 2]) for n in (0, 1, 4, 50)]
    for one in (body, exact):
        model = loop_of(one, ["n", "", "x0"], ["x", "ys"], {"x0": (F, (3,)), "n": (I, ())},
                        after=[node("ReduceSum", ["ys"], ["all"], keepdims=0)])
        check(model, *every)


def test_such_a_loop_in_the_body_of_another_needs_the_number() -> None:
    inner = body_of([node("Identity", ["ci"], ["di"]), node("Add", ["h", "h"], ["a"])],
                    {"ii": (I, ()), "ci": (B, ())}, {"di": (B, ()), "a": (F, (2,))})
    outer = body_of([*GOES_ON, node("Loop", ["n", ""], ["rows"], body=inner),
                     node("ReduceSum", ["rows", "zero"], ["h1"], keepdims=0)],
                    ROUND | {"h": (F, (2,))}, {"d": (B, ()), "h1": (F, (2,))})
    model = loop_of(outer, ["k", "", "h0"], ["h"], {"h0": (F, (2,)), "n": (I, ()), "k": (I, ())}, zero=[0])
    with pytest.raises(NeedsValue, match="its number of rounds, the size of an output") as error:
        load_graph(model)
    assert error.value.inputs == {"n"}
    feeds = {"h0": normal(2), "n": np.array(3), "k": np.array(2)}
    check(model, feeds, constants={"n": 3})
    fixed = loop_of(outer, ["k", "", "h0"], ["h"], {"h0": (F, (2,)), "n": (I, ())}, zero=[0], k=2)
    check(fixed, *({"h0": normal(2), "n": np.array(n)} for n in (1, 4)))


def test_nodes_of_bodies_know_where_they_come_from() -> None:
    graph = load_graph(loop_of(gather_body(), ["n", "", "h0"], ["last", "ys", "js"],
                               {"x": (F, (6, 2, 8)), "h0": (F, (2, 8)), "s": (F, ())}, n=5, w=normal(8, 8)))
    body = next(n for n in graph.nodes() if n.op.name == "scan_loop").attributes.body
    names = {n.op.name: body.note(n).name for n in body.nodes()}
    assert names["tanh"] == "h1" and names["matmul"] == "hw"


def test_loops_that_would_never_end_being_written_out() -> None:
    """A growing state in loops in loops: so many rounds that no one could wait for them."""
    def grown(depth: int) -> Any:
        nodes = [node("Identity", [f"c{depth}"], [f"d{depth}"])]
        nodes += [node("Concat", [f"h{depth}", "x"], [f"g{depth}"], axis=0)] if depth == 0 else [
            node("Loop", ["n", "", f"h{depth}"], [f"g{depth}"], body=grown(depth - 1))]
        return body_of(nodes, {f"i{depth}": (I, ()), f"c{depth}": (B, ()), f"h{depth}": (F, ("m",))},
                       {f"d{depth}": (B, ()), f"g{depth}": (F, ("k",))})
    with pytest.raises(UnsupportedOp, match="come to more than"):
        load_graph(loop_of(grown(3), ["n", "", "x"], ["y"], {"x": (F, (1,))}, n=1000))


def test_faults_are_named() -> None:
    body = body_of([*GOES_ON, node("Cast", ["h"], ["h1"], to=11)], ROUND | {"h": (F, ())},
                   {"d": (B, ()), "h1": (np.dtype(np.float64), ())})
    with pytest.raises(ModelError, match=r"node 'loop' .* its state 0 is f32.. at first and f64"):
        load_graph(loop_of(body, ["n", "", "x"], ["y"], {"x": (F, ())}, n=2))
    with pytest.raises(ModelError, match="its body has 3 inputs and 2 outputs for 2 values of state"):
        load_graph(loop_of(body, ["n", "", "x", "x"], ["y", "z"], {"x": (F, ())}, n=2))
    unknown = body_of([*GOES_ON, node("Nonsense", ["h"], ["h1"])], ROUND | {"h": (F, ())},
                      {"d": (B, ()), "h1": (F, ())})
    with pytest.raises(UnsupportedOp, match="Nonsense"):
        load_graph(loop_of(unknown, ["n", "", "x"], ["y"], {"x": (F, ())}, n=2))


# --- Scan

def scan_body() -> Any:
    """Two states, two scanned, two outputs, one of them a state; w lies outside."""
    nodes = [node("MatMul", ["a", "w"], ["aw"]), node("Add", ["aw", "x"], ["s"]),
             node("Tanh", ["s"], ["a1"]), node("Add", ["b", "z"], ["b1"]),
             node("Mul", ["a1", "a1"], ["p"]), node("Identity", ["b1"], ["q"])]
    return body_of(nodes, {"a": (F, (2, 4)), "b": (F, ()), "x": (F, (2, 4)), "z": (F, ())},
                   {"a1": (F, (2, 4)), "b1": (F, ()), "p": (F, (2, 4)), "q": (F, ())})


@pytest.mark.parametrize("attributes", [
    {},
    {"scan_input_directions": [1, 1], "scan_output_directions": [1, 1]},
    {"scan_input_directions": [1, 0], "scan_output_directions": [0, 1]},
    {"scan_input_directions": [0, 1]},
])
@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (-1, -2)])
def test_scan(attributes: dict[str, Any], axes: tuple[int, int]) -> None:
    given, stacked = axes
    x = np.moveaxis(np.empty((6, 2, 4), F), 0, given)
    it = node("Scan", ["a0", "b0", "x", "z"], ["a", "b", "p", "q"], body=scan_body(), num_scan_inputs=2,
              scan_input_axes=[given, 0], scan_output_axes=[stacked, 0], **attributes)
    sizes = tuple("T" if n == 6 else n for n in x.shape)
    model = make_model([it], {"a0": (F, (2, 4)), "b0": (F, ()), "x": (F, sizes), "z": (F, ("T",))},
                       ["a", "b", "p", "q"], initializers={"w": normal(4, 4)})
    shapes = [tuple(t if n == "T" else n for n in sizes) for t in (1, 7)]
    check(model, *({"a0": normal(2, 4), "b0": normal(), "x": normal(*s), "z": normal(s[given])}
                   for s in shapes))


def test_scan_of_one_piece_is_written_out() -> None:
    it = node("Scan", ["a0", "b0", "x", "z"], ["a", "b", "p", "q"], body=scan_body(), num_scan_inputs=2)
    feeds = {"a0": normal(2, 4), "b0": normal(), "x": normal(1, 2, 4), "z": normal(1)}
    model = make_model([it], feeds, ["a", "b", "p", "q"], initializers={"w": normal(4, 4)})
    assert not has(check(model, feeds), "scan_loop")


@pytest.mark.parametrize("lengths", [None, [5, 2, 4]])
def test_scan_of_a_batch(lengths: list[int] | None) -> None:
    """Opset 8: sequences of different lengths, one after another."""
    body = body_of([node("Add", ["a", "x"], ["a1"]), node("Mul", ["a1", "k"], ["y"])],
                   {"a": (F, (2,)), "x": (F, (2,))}, {"a1": (F, (2,)), "y": (F, (2,))})
    it = node("Scan", ["lengths" if lengths else "", "a0", "x"], ["a", "y"], body=body, num_scan_inputs=1)
    feeds = {"a0": normal(3, 2), "x": normal(3, 5, 2), "k": normal(2)}
    feeds |= {} if lengths is None else {"lengths": np.array(lengths)}
    model = make_model([it], feeds, ["a", "y"], opset=8, ir_version=4)
    check(model, feeds)


# --- random bodies

def random_body(rng: np.random.Generator, states: int, pieces: int) -> Any:
    """A body over states of shape (3, 4), a value x outside and weights w outside, of random operators."""
    names, nodes = [f"s{k}" for k in range(states)] + ["x"], [*GOES_ON, node("Cast", ["i"], ["f"], to=1)]
    binary, unary = ["Add", "Sub", "Mul", "Max"], ["Tanh", "Sigmoid", "Neg", "Abs", "Softmax"]
    for k in range(int(rng.integers(3, 9))):
        kind, a, b = rng.choice(4), *rng.choice(names, 2)
        made = [node(str(rng.choice(binary)), [a, b], [f"v{k}"]),
                node(str(rng.choice(unary)), [a], [f"v{k}"]),
                node("MatMul", [a, "w"], [f"v{k}"]), node("Mul", [a, "f"], [f"v{k}"])][kind]
        nodes.append(made)
        names.append(f"v{k}")
    outputs = {"d": (B, ())}
    for k in range(states + pieces):
        source = str(rng.choice(names))
        nodes.append(node("Tanh" if k < states and source[0] == "v" else "Identity", [source], [f"o{k}"]))
        outputs[f"o{k}"] = (F, (3, 4))
    return body_of(nodes, ROUND | {f"s{k}": (F, (3, 4)) for k in range(states)}, outputs)


@pytest.mark.parametrize("seed", range(8))
def test_random_loops(seed: int) -> None:
    """States change places, stay, or are forgotten. Sums cancel: errors are held to bounds of their own."""
    rng = np.random.default_rng([seed, int(np.random.default_rng().integers(1 << 30))])
    states, pieces = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    counted = pieces == 0 and bool(rng.integers(2))
    inputs = dict.fromkeys(["x", *(f"a{k}" for k in range(states))], (F, (3, 4)))
    inputs |= {"n": (I, ())} if counted else {}
    model = loop_of(random_body(rng, states, pieces), ["n", "", *(f"a{k}" for k in range(states))],
                    [f"r{k}" for k in range(states + pieces)], inputs, w=normal(4, 4) / 2,
                    **({} if counted else {"n": int(rng.integers(2, 6))}))
    feeds = {n: np.array(3) if n == "n" else normal(3, 4) / 2 for n in inputs}
    graph = load_graph(model)
    answers = [onnxruntime_outputs(model, feeds), *(run(graph, feeds, strategy) for strategy in STRATEGIES)]
    for answer in answers:
        for got, near in zip(answer, bounded_loop(model, feeds), strict=True):
            assert_near(got, near)


def test_bounds_can_be_broken() -> None:
    """A sum that cancels has the bound of its terms; an error in the fifth digit is beyond it."""
    body = body_of([*GOES_ON, node("Add", ["s0", "x"], ["v0"]), node("Sub", ["v0", "x"], ["o0"])],
                   ROUND | {"s0": (F, (3, 4))}, {"d": (B, ()), "o0": (F, (3, 4))})
    feeds = {"x": normal(3, 4) + 4, "a0": normal(3, 4) / 1000}
    model = loop_of(body, ["n", "", "a0"], ["r0"], dict.fromkeys(feeds, (F, (3, 4))), n=2)
    (near,) = bounded_loop(model, feeds)
    assert_near(((feeds["a0"] + feeds["x"]) - feeds["x"] + feeds["x"]) - feeds["x"], near)
    assert (near.bound < 1e-5).all()
    with pytest.raises(AssertionError, match="beyond"):
        assert_near((feeds["a0"] + F.type(1e-4)).astype(np.float32), near)
