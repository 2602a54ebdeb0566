"""Programs through torch.compile: inference, training, mutation, aliasing, dynamic sizes, weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import planish
from planish.errors import PlanishError, UnsupportedDType, UnsupportedOp

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402

nn, F = torch.nn, torch.nn.functional


def compile_counting(function: Any, **options: Any) -> tuple[Any, list[Any]]:
    """The compiled function, and the graphs that Dynamo has given so far."""
    from planish.torch.dynamo import compile_dynamo
    from planish.torch.settings import settings_of

    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return compile_dynamo(module, inputs, settings_of(None, {}))

    return torch.compile(function, backend=backend, **options), graphs


class Net(nn.Module):
    """A convolution, a batch norm, a pool, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x: Any) -> Any:
        return self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, s, w = x.shape
        parts = self.qkv(self.first(x)).reshape(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.second(x))))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (5, 8)),
    "cnn": (Net, (2, 3, 8, 8)),
    "transformer": (Block, (2, 7, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str, same: Any) -> None:
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    compiled = torch.compile(model, backend="planish")
    with torch.no_grad():
        for _ in range(2):
            same(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str, same: Any) -> None:
    make, shape = MODELS[name]
    model = make()
    other = copy.deepcopy(model)
    compiled = planish.compile(model)
    x, y = (torch.randn(shape).requires_grad_() for _ in range(2))
    y.data = x.data.clone()
    for _ in range(2):
        a, b = compiled(x), other(y)
        same(a, b, rtol=1e-4, atol=1e-5)
        a.square().sum().backward()
        b.square().sum().backward()
    same(x.grad, y.grad, rtol=1e-3, atol=1e-4)
    same([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], rtol=1e-3, atol=1e-3)
    same(list(model.buffers()), list(other.buffers()), rtol=1e-4, atol=1e-5)


def test_bfloat16_inference(same: Any) -> None:
    model, x = Block().eval().to(torch.bfloat16), torch.randn(2, 5, 16).to(torch.bfloat16)
    with torch.no_grad():
        same(planish.compile(model)(x), model(x), rtol=3e-2, atol=3e-2)


def test_twenty_training_steps(same: Any) -> None:
    net = nn.Sequential(
        *(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 4)
    )
    other = copy.deepcopy(net)
    nets = [torch.compile(net, backend="planish"), other]
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.05, momentum=0.9) for n in (net, other)]
    losses: list[list[float]] = [[], []]
    for _ in range(20):
        x, target = torch.randn(32, 16), torch.randint(0, 4, (32,))
        for which, (one, optimizer) in enumerate(zip(nets, optimizers)):
            optimizer.zero_grad()
            loss = F.cross_entropy(one(x), target)
            loss.backward()
            optimizer.step()
            losses[which].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    same(list(net.parameters()), list(other.parameters()), rtol=1e-4, atol=1e-5)


def test_dynamic_batch_is_compiled_once(same: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    compiled, graphs = compile_counting(model, dynamic=True)
    with torch.no_grad():
        for batch in (3, 5, 17, 64):
            x = torch.randn(batch, 8)
            same(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1


def test_a_size_that_changes_becomes_a_symbol(same: Any) -> None:
    compiled, graphs = compile_counting(lambda x: x.softmax(-1).reshape(-1, 2).sum(0) * x.shape[0])
    for length in (4, 6, 8, 10, 12):
        x = torch.randn(length, 4)
        same(compiled(x), x.softmax(-1).reshape(-1, 2).sum(0) * length)
    assert len(graphs) == 2


def test_numbers_become_arguments(same: Any) -> None:
    def f(x: Any, n: int, scale: float) -> Any:
        return x * n + scale, n - 1

    compiled, graphs = compile_counting(f)
    for n, scale in ((2, 0.5), (-3, 0.5), (5, 1.5), (-7, 2.5), (9, -1.25)):
        x = torch.randn(3)
        same(compiled(x, n, scale), f(x, n, scale))
    assert len(graphs) <= 3


def test_mutation_and_aliasing(same: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        z = x * 2
        y[0] = 5
        return {"view": x.t(), "rows": z[1:], "whole": z, "again": z, "same": y, "none": None, "n": 3}

    compiled = planish.compile(f)
    for _ in range(3):
        (x, y), (u, v) = [(torch.randn(3, 4), torch.randn(3)) for _ in range(2)]
        u.copy_(x), v.copy_(y)
        got, want = compiled(x, y), f(u, v)
        same(got, want)
        same([x, y], [u, v])
        assert got["view"].data_ptr() == x.data_ptr() and got["same"] is y
        assert got["again"] is got["whole"] and got["rows"]._base is not None
        got["rows"].zero_()
        assert not got["whole"][1:].any()


def test_results_are_not_overwritten() -> None:
    compiled = planish.compile(lambda x: x + 1)
    kept = [compiled(torch.full((300, 300), float(i))) for i in range(4)]
    assert [k[0, 0].item() for k in kept] == [1, 2, 3, 4] and all((k == k[0, 0]).all() for k in kept)


def test_weights_follow_updates(same: Any) -> None:
    model = nn.Linear(6, 5).eval()
    compiled, x = planish.compile(model), torch.randn(3, 6)
    with torch.no_grad():
        same(compiled(x), model(x))
        model.weight.mul_(2)
        same(compiled(x), model(x))
        model.load_state_dict({"weight": torch.randn(5, 6), "bias": torch.randn(5)})
        same(compiled(x), model(x))
        model.weight.data = torch.randn(5, 6)
        same(compiled(x), model(x))
        for _ in range(4):
            model.bias.add_(1)
            same(compiled(x), model(x))
    with torch.inference_mode():
        same(compiled(x), model(x))


def test_weights_of_inference_mode(same: Any) -> None:
    with torch.inference_mode():
        model, x = nn.Linear(4, 3), torch.randn(2, 4)
        same(planish.compile(model)(x), model(x))


def test_what_eager_refuses(same: Any) -> None:
    table = torch.randn(4, 3)
    look_up = planish.compile(lambda i: F.embedding(i, table))
    same(look_up(torch.tensor([1, 3])), table[[1, 3]])
    with pytest.raises(IndexError, match="out of range"):
        look_up(torch.tensor([1, 4]))
    divide = planish.compile(lambda x, y: x // y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        divide(torch.tensor([1, 2]), torch.tensor([1, 0]))


def test_unsupported_names_operator_and_line() -> None:
    compiled = planish.compile(lambda x: torch.linalg.eigvalsh(x), host=False)
    with pytest.raises(UnsupportedOp, match=r"_linalg_eigh.*test_compile\.py:\d+"):
        compiled(torch.randn(3, 3))


def test_tensors_that_no_graph_holds_are_refused() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    with pytest.raises(UnsupportedOp, match=r"it gives a sparse tensor.*torch\.compiler\.disable"):
        planish.compile(table)(torch.tensor([1, 1, 2])).sum().backward()
    bytes_ = planish.compile(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize())
    with pytest.raises(UnsupportedDType, match=r"quantize_per_tensor.* at .*test_compile\.py:\d+.*qint8"):
        bytes_(torch.randn(3))
    ragged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    with pytest.raises(UnsupportedOp, match="a nested tensor"):
        planish.compile(lambda x: (x * 2).values())(ragged)


def test_settings() -> None:
    with pytest.raises(BackendCompilerFailed, match="no option 'numeric'"):
        torch.compile(lambda x: x + 1, backend="planish", options={"numeric": "fast"})(torch.ones(2))
    with pytest.raises(PlanishError, match="no numerics 'quick'"):
        planish.compile(lambda x: x + 1, numerics="quick")
    for how in ({"mode": "max-autotune"}, {"options": {"numerics": "strict"}}):
        assert torch.compile(lambda x: x + 1, backend="planish", **how)(torch.ones(2)).tolist() == [2, 2]


def test_gelu_ish(same: Any) -> None:
    def gelu_ish(x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))

    x = torch.randn(1000)
    same(planish.compile(gelu_ish)(x), gelu_ish(x), rtol=1e-6, atol=1e-6)


def test_a_branch_on_values_breaks_the_graph_once() -> None:
    def f(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x - 1

    compiled, graphs = compile_counting(f)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), f(x))
    assert torch._dynamo.explain(f)(torch.ones(3)).graph_break_count == 1
    assert len(graphs) == 3  # before the branch, and both sides


def test_effects_stay(same: Any) -> None:
    compiled, x = planish.compile(lambda x: torch.linalg.inv(x) + 1), torch.randn(4, 4)
    same(compiled(x), torch.linalg.inv(x) + 1, rtol=1e-4, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(torch.zeros(4, 4))


def test_effects_beside_weights(same: Any) -> None:
    model = nn.Linear(3, 3)
    compiled = planish.compile(lambda x: torch.linalg.inv(model(x)))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 3)
            same(compiled(x), torch.linalg.inv(model(x)), rtol=1e-3, atol=1e-3)


def test_dropout_in_training() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    compiled, x = planish.compile(model), torch.randn(4, 8)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first) and not torch.equal(first, second)
    first.sum().backward()
    kept = model[0].weight.grad.abs().sum(1) > 0
    assert 0 < kept.sum() <= 64
