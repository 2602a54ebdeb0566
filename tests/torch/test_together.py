"""Compiled programs beside the rest of torch: autocast, gradient modes, function transforms, checkpointing,
hooks, own gradients, copies, threads, and data-parallel training. Each gives what eager gives.
"""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, F = torch.nn, torch.nn.functional
close = torch.testing.assert_close
ROOT = Path(__file__).parents[2]


def net() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def gradients(model: Any, call: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The result of a call, and the gradients of its sum of squares by the model's parameters."""
    model.zero_grad()
    y = call(*args)
    y.float().square().sum().backward()
    return y.detach(), [p.grad.clone() for p in model.parameters()]


def equals_eager(model: Any, function: Any, *args: Any, **tolerance: float) -> None:
    """Result and gradients, on two calls."""
    compiled = planish.compile(function)
    for _ in range(2):
        close(gradients(model, compiled, *args), gradients(model, function, *args), **tolerance)


# --- the examples of the requirements


def test_gelu_ish() -> None:
    def gelu_ish(x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))

    class GeluIsh(nn.Module):
        """The same as a module."""

        def forward(self, x: Any) -> Any:
            return gelu_ish(x)

    x = torch.randn(400, 400)
    for program in (gelu_ish, GeluIsh()):
        for compiled in (planish.compile(program), torch.compile(program, backend="planish")):
            close(compiled(x), program(x), rtol=0, atol=1e-6)


def test_a_training_step_of_four_layers() -> None:
    class GeluIsh(nn.Module):
        """An activation from elementwise parts."""

        def forward(self, x: Any) -> Any:
            return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))

    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), GeluIsh())))
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="planish")
    x, target = torch.randn(32, 64), torch.randn(32, 64)
    losses: list[list[float]] = [[], []]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, other)]
    for _ in range(20):
        for kept, called, optimizer in zip(losses, (compiled, other), optimizers):
            optimizer.zero_grad(set_to_none=True)
            loss = F.mse_loss(called(x), target)
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0][-1] < losses[0][0]
    close(list(model.parameters()), list(other.parameters()), rtol=1e-4, atol=1e-6)


# --- modes


def test_autocast_inside() -> None:
    model = net()

    def f(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
            with torch.autocast("cpu", enabled=False):
                z = y.float() * 2
        assert y.dtype is torch.bfloat16 and z.dtype is torch.float32
        return z + y

    equals_eager(model, f, torch.randn(5, 8), rtol=2e-2, atol=2e-2)


def test_autocast_around() -> None:
    model, x = net(), torch.randn(5, 8)
    compiled = planish.compile(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = compiled(x), model(x)
        assert first.dtype is second.dtype is torch.bfloat16
        close(first, second, rtol=2e-2, atol=2e-2)
    close(compiled(x), model(x))


def test_gradient_modes() -> None:
    model, x = net(), torch.randn(5, 8)

    def f(x: Any) -> Any:
        with torch.no_grad():
            scale = model(x).abs().amax()
        with torch.set_grad_enabled(True):
            return model(x) / scale

    equals_eager(model, f, x)
    compiled = planish.compile(model)
    with torch.inference_mode():
        y = compiled(x)
        assert y.is_inference() == model(x).is_inference() and not y.requires_grad
        close(y, model(x))
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    decorated = planish.compile(torch.no_grad()(model.forward))
    close(decorated(x), model(x).detach())


def test_detach() -> None:
    model = net()
    equals_eager(model, lambda x: model(x) * model(x).detach(), torch.randn(5, 8))


# --- compiled programs in programs


def test_compiled_in_compiled() -> None:
    inner = planish.compile(lambda x: torch.sin(x) * 2)
    outer = torch.compile(lambda x: inner(x + 1) + inner(x), backend="planish")
    x = torch.randn(6)
    close(outer(x), torch.sin(x + 1) * 2 + torch.sin(x) * 2)
    model = net()
    part = planish.compile(model[0])
    equals_eager(model, lambda x: model[2](F.gelu(part(x))), torch.randn(3, 8))
    what = planish.explain(lambda x: inner(part(x)))(torch.randn(3, 8))
    assert what.graph_break_count == 0 and what.graph_count == 1 and what.operators.percent == 100


def test_function_transforms_inside() -> None:
    w, x = torch.randn(3, 4), torch.randn(5, 4)

    def loss(w: Any, row: Any) -> Any:
        return torch.tanh(w @ row).square().sum()

    programs = {
        "vmap": lambda w, x: torch.vmap(lambda row: torch.softmax(w @ row, 0))(x),
        "vmap in_dims": lambda w, x: torch.vmap(torch.dot, in_dims=(0, None))(x, x[0]),
        "grad": lambda w, x: torch.func.grad(loss)(w, x[0]),
        "vmap of grad": lambda w, x: torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x),
        "jvp": lambda w, x: torch.func.jvp(lambda v: torch.tanh(w @ v), (x[0],), (x[1],)),
        "vjp": lambda w, x: torch.func.vjp(lambda v: torch.tanh(w @ v), x[0])[1](x[0, :3]),
        "jacrev": lambda w, x: torch.func.jacrev(lambda v: torch.tanh(w @ v))(x[0]),
        "hessian": lambda w, x: torch.func.hessian(lambda v: torch.tanh(w @ v).sum())(x[0]),
    }
    for name, program in programs.items():
        close(planish.compile(program)(w, x), program(w, x), msg=lambda m, name=name: f"{name}: {m}")


def test_function_transforms_around() -> None:
    def f(x: Any) -> Any:
        return torch.tanh(x).sum() * 2

    compiled, x = planish.compile(f), torch.randn(5, 4)
    close(torch.vmap(compiled)(x), torch.vmap(f)(x))
    close(torch.func.grad(compiled)(x), torch.func.grad(f)(x))
    close(compiled(x), f(x))


# --- gradients of one's own


class Halved(torch.autograd.Function):
    """x^2 with half of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x


def test_own_autograd_function() -> None:
    model = net()
    equals_eager(model, lambda x: Halved.apply(model(x)) + 1, torch.randn(5, 8))


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    model = net()
    equals_eager(
        model,
        lambda x: model[2](checkpoint(lambda v: model[:2](v), x, use_reentrant=False)),
        torch.randn(5, 8),
    )
    compiled = planish.compile(model)
    x = torch.randn(5, 8).requires_grad_()
    close(
        gradients(model, lambda v: checkpoint(compiled, v, use_reentrant=False), x),
        gradients(model, model, x),
    )


def test_double_backward_is_refused_or_right() -> None:
    """AOTAutograd gives no second derivatives: torch says so."""
    x = torch.randn(3).requires_grad_()
    (g,) = torch.autograd.grad(planish.compile(lambda x: x**3)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


# --- hooks


def test_hooks() -> None:
    model, told = net(), []
    twin = copy.deepcopy(model)
    for one in (model, twin):
        one[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        one[2].register_forward_hook(lambda m, args, y: y + 1)
        one[0].weight.register_hook(lambda g: g * 3)
        one[2].register_full_backward_hook(lambda m, gin, gout: told.append(gout[0].shape))
    x = torch.randn(5, 8)
    compiled = planish.compile(model)
    for _ in range(2):
        close(gradients(model, compiled, x), gradients(twin, twin, x))
    assert len(told) == 4


def test_hook_on_a_result() -> None:
    seen = []
    x = torch.randn(4).requires_grad_()
    y = planish.compile(lambda x: x.exp())(x)
    y.register_hook(lambda g: seen.append(g.clone()))
    y.sum().backward()
    close(seen[0], torch.ones(4))
    close(x.grad, x.exp().detach())


# --- copies


def test_copies_of_a_compiled_module() -> None:
    model, x = net(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="planish")
    y = compiled(x)
    for copied in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        close(copied(x), y)
        with torch.no_grad():
            next(copied.parameters()).add_(1)
        assert not torch.allclose(copied(x), y)
    ours = planish.compile(model)
    close(ours(x), y)
    close(copy.deepcopy(ours)(x), y)
    close(pickle.loads(pickle.dumps(ours))(x), y)
    assert list(ours.state_dict()) == list(compiled.state_dict())
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    compiled.load_state_dict(torch.load(file))


def test_states_of_a_compiled_module() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), torch.randn(6, 8)
    compiled = planish.compile(model)
    for training in (True, False, True):
        assert compiled.train(training) is compiled and model.training is training
        torch.manual_seed(1)
        zeros = (compiled(x) == 0).sum().item()
        assert (zeros > 0) == training
    close(compiled.eval()(x), model.eval()(x))
    close(compiled.double()(x.double()), model(x.double()))
    assert next(model.parameters()).dtype is torch.float64


# --- threads


def test_threads() -> None:
    """One function and many, called at once from threads, at sizes of their own."""
    shared = planish.compile(lambda x: torch.softmax(x, -1) * 2)
    faults: list[Exception] = []

    def work(k: int) -> None:
        own = planish.compile(lambda x: torch.tanh(x) * k)
        try:
            for i in range(8):
                x = torch.full((k + 2, 5 + i % 3), float(i)) + torch.arange(5 + i % 3)
                close(shared(x), torch.softmax(x, -1) * 2)
                close(own(x), torch.tanh(x) * k)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


# --- losses


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction: str) -> None:
    weight, targets = torch.rand(4), {(5, 4): (5,), (4,): (), (2, 4, 3, 3): (2, 3, 3)}
    compiled = planish.compile(
        lambda x, t: F.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=0.1)
    )
    for shape, target in targets.items():
        x, t = torch.randn(shape).requires_grad_(), torch.randint(0, 4, target)
        if target:
            t.view(-1)[0] = -100
        loss = compiled(x, t)
        expected = F.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=0.1)
        close(loss, expected)
        close(torch.autograd.grad(loss.sum(), x), torch.autograd.grad(expected.sum(), x))
    p, t = torch.rand(3, 4), torch.rand(3, 4)
    p[0, 0], p[1, 1] = 0, 1
    of_two = planish.compile(lambda p, t: F.binary_cross_entropy(p, t, weight, reduction=reduction))
    close(of_two(p, t), F.binary_cross_entropy(p, t, weight, reduction=reduction))


# --- processes

DATA_PARALLEL = """
import os, sys
import torch
import planish
from torch.nn.parallel import DistributedDataParallel

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))

def inside(model):
    return DistributedDataParallel(planish.compile(model))

def around(model):
    return planish.compile(DistributedDataParallel(model))

for wrap in (inside, around):
    model, single = net(), net()
    parallel = wrap(model)
    data = torch.randn(4, 3, 8)
    for step in range(2):
        model.zero_grad(), single.zero_grad()
        parallel(data[2 * step + rank]).square().sum().backward()
        (sum(single(data[2 * step + r]).square().sum() for r in range(2)) / 2).backward()
        for a, b in zip(model.parameters(), single.parameters()):
            torch.testing.assert_close(a.grad, b.grad)
torch.distributed.destroy_process_group()
print("equal")
"""


def test_data_parallel_training(tmp_path: Path) -> None:
    """Two processes train on their halves, compiled inside DDP and around it: gradients are means."""
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    store = str(tmp_path / "store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DATA_PARALLEL, str(rank), store],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        out, error = process.communicate(timeout=240)
        assert process.returncode == 0 and "equal" in out, error[-3000:]
