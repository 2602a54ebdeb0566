"""max-autotune of torch programs: torch's own kernels are candidates, and give the same answer."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import planish  # noqa: E402
from planish import knobs  # noqa: E402
from planish.compiler import Options, compile_graph  # noqa: E402
from planish.ir import Graph, input_node, interpret  # noqa: E402
from planish.ops.rules import ops  # noqa: E402
from planish.passes import run_pipeline  # noqa: E402
from planish.tuning import pairs, search, trial  # noqa: E402
from planish.tuning.library import by_library, kernel_of, libraries_of  # noqa: E402
from planish.tuning.trial import disagreement, random_array  # noqa: E402
from planish.types import FLOAT32, TensorType  # noqa: E402


@pytest.fixture
def torch_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever is measured in pairs wins; of the libraries torch looks fastest."""
    monkeypatch.setattr(trial, "moves", lambda *kernel: [])
    monkeypatch.setattr(search, "compare", lambda best, one, until: pairs.Verdict("won", 0.5, 10, 10))
    monkeypatch.setattr(search, "glance", lambda best, ready: [0.9 - 0.1 * i for i in range(len(ready))])
    monkeypatch.setattr("planish.tuning.tune._Tuner.ways", only_ops)
    with knobs.override(cache_dir=str(tmp_path)):
        yield


def only_ops(self: Any, kernels: Any, ops: Any) -> Iterator[Any]:
    from planish.tuning.decisions import Decisions

    yield "ops by libraries", Decisions(ops=ops), False


def test_a_model_with_torchs_kernels(torch_wins: None) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.Linear(16, 24)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.linear(torch.relu(self.conv(x)).mean((2, 3))))
    model, x = Model().eval(), torch.randn(4, 8, 20, 20)
    found = planish.explain(model, mode="max-autotune")(x)
    tuning = found.graphs[0].explanation.tuning
    assert {f.value for f in tuning if f.kind == "op"} == {"torch_conv", "torch_dot_general"}
    assert all(f.winner.startswith(f"torch {torch.__version__}: ") for f in tuning if f.kind == "op")
    assert tuning[-1].winner == "ops by libraries"
    assert {h.operator for h in found.host_ops} == {"torch_conv", "torch_dot_general"}
    with torch.no_grad():
        compiled = torch.compile(model, backend="planish", mode="max-autotune")
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def f32(*shape: int) -> TensorType:
    return TensorType(FLOAT32, shape)


def conv(spatial: int, **changes: Any) -> Callable[..., Any]:
    plain = {"strides": (1,) * spatial, "padding": ((0, 0),) * spatial, "lhs_dilation": (1,) * spatial,
             "rhs_dilation": (1,) * spatial}
    return lambda x, w: ops.conv(x, w, **{**plain, **changes})


CASES = {
    "product": (lambda x, y: ops.matmul(x, y), f32(9, 17), f32(17, 5)),
    "batch": (lambda x, y: ops.matmul(x, y), f32(2, 3, 9, 17), f32(2, 3, 17, 5)),
    "transposed, scaled": (lambda x, y: ops.dot_general(
        x, y, lhs_contract=(0,), rhs_contract=(1,), lhs_batch=(2,), rhs_batch=(0,), alpha=0.5),
        f32(17, 9, 3), f32(3, 17, 5)),
    "1-D": (conv(1, strides=(2,)), f32(2, 4, 21), f32(6, 4, 3)),
    "2-D, uneven padding": (conv(2, padding=((1, 2), (0, 3)), rhs_dilation=(2, 1)), f32(2, 4, 15, 13),
                            f32(6, 4, 3, 3)),
    "groups": (conv(2, groups=2, padding=((1, 1), (1, 1))), f32(1, 4, 9, 9), f32(6, 2, 3, 3)),
    "3-D": (conv(3), f32(1, 3, 5, 6, 7), f32(2, 3, 2, 2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_library_gives_the_same(name: str) -> None:
    import numpy as np

    function, *types = CASES[name]
    inputs = tuple(input_node(f"x{i}", t) for i, t in enumerate(types))
    graph, _ = run_pipeline(Graph(inputs, (function(*inputs),)))
    node, = (n for n in graph.nodes() if libraries_of(n))
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, o.tensor, {}) for o in node.operands]
    expected = interpret(Graph(node.operands, (node,)), arrays)
    assert any(library.startswith("torch") for library in libraries_of(node))
    for library in libraries_of(node):
        assert disagreement((kernel_of(node, library)(*arrays),), expected) == ""
        doubled = by_library(node, node.operands, library) * 2.0
        hosted = compile_graph(Graph(node.operands, (doubled,)), Options())
        assert disagreement(hosted(*arrays), [2 * y for y in expected]) == ""


def test_what_torch_does_not_have_is_not_offered() -> None:
    x, w = input_node("x", f32(1, 4, 9, 9)), input_node("w", f32(6, 4, 3, 3))
    assert libraries_of(conv(2)(x, w))[-1] == "torch_conv"
    assert libraries_of(conv(2, lhs_dilation=(2, 2))(x, w)) == []
