"""Twenty steps of AdamW on small transformers: eager's losses and weights; with dropout its statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import planish

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

transformers.logging.set_verbosity_error()

STEPS, CLASSES, VOCABULARY = 20, 4, 64
RATE = 2e-3
DROPOUT = 0.1


def bert(dropout: float) -> Any:
    """Two layers; the loss is of a class for each text."""
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=VOCABULARY, max_position_embeddings=32, num_labels=CLASSES,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt(dropout: float) -> Any:
    """Two layers; the loss is of the next token."""
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=32, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers logs once, which breaks the graph
    return model


MODELS: dict[str, Callable[[float], Any]] = {"bert": bert, "gpt": gpt}


def batches(name: str) -> list[dict[str, Any]]:
    """Texts in which half of the tokens are their class's, or whose tokens follow each other by a rule."""
    made = []
    for _ in range(STEPS):
        classes = torch.randint(0, CLASSES, (8,))
        ids = torch.randint(2, VOCABULARY, (8, 11))
        if name == "bert":
            ids = torch.where(torch.rand(8, 11) < 0.5, 2 + classes[:, None], ids)
            made.append({"input_ids": ids, "labels": classes})
        else:
            ids = (ids[:, :1] * 3 + 5 * torch.arange(11)) % VOCABULARY
            made.append({"input_ids": ids, "labels": ids})
    return made


def trained(model: Any, call: Any, given: list[dict[str, Any]]) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for batch in given:
        optimizer.zero_grad()
        loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def farthest(model: Any, exact: Any) -> float:
    """The largest difference of a weight."""
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps(name: str) -> None:
    """Both are held to float64. A weight whose gradient is 0 but for rounding may go a part of a step."""
    mine = MODELS[name](0.0).train()
    its, exact = copy.deepcopy(mine), copy.deepcopy(mine).double()
    given = batches(name)
    compiled = torch.compile(mine, backend="planish", fullgraph=True)
    losses = [trained(m, call, given) for m, call in ((mine, compiled), (its, its), (exact, exact))]
    errors = [max(abs(a - b) for a, b in zip(each, losses[2], strict=True)) for each in losses[:2]]
    assert errors[0] <= 2 * errors[1] + 2e-6
    assert farthest(mine, exact) <= 2 * farthest(its, exact) + RATE / 50
    assert losses[0][-1] < losses[0][0]


# --- dropout: the masks are not eager's, but drawn alike


def loss_and_gradients(model: Any, call: Any, batch: dict[str, Any], seed: int) -> tuple[float, list[Any]]:
    torch.manual_seed(seed)
    loss = call(**batch).loss
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))


def slope(model: Any, call: Any, batch: dict[str, Any], along: list[Any], seed: int) -> float:
    """The derivative of the loss along a direction, by differences, with one seed's masks."""
    step, losses = 1e-2, []
    for way in (step, -2 * step):
        with torch.no_grad():
            for p, d in zip(model.parameters(), along, strict=True):
                p.add_(d, alpha=way)
        losses.append(loss_and_gradients(model, call, batch, seed)[0])
    with torch.no_grad():
        for p, d in zip(model.parameters(), along, strict=True):
            p.add_(d, alpha=step)
    return (losses[0] - losses[1]) / (2 * step)


def alike(mine: list[float], its: list[float]) -> None:
    """Two samples of one distribution: means within five standard errors, spreads within a factor of two."""
    a, b = torch.tensor(mine, dtype=torch.float64), torch.tensor(its, dtype=torch.float64)
    assert abs(a.mean() - b.mean()) < 5 * ((a.var() + b.var()) / len(a)).sqrt()
    assert 0.5 < a.std() / b.std() < 2


@pytest.mark.parametrize("name", MODELS)
def test_with_dropout(name: str) -> None:
    """Forward and backward pass have one mask; losses and gradients have eager's mean and spread."""
    model = MODELS[name](DROPOUT).train()
    compiled, given = planish.compile(model), batches(name)
    loss, gradients = loss_and_gradients(model, compiled, given[0], seed=1)
    assert loss_and_gradients(model, compiled, given[0], seed=1)[0] == loss
    length = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    along = [g / length for g in gradients]
    assert slope(model, compiled, given[0], along, seed=1) == pytest.approx(length.item(), rel=2e-2)

    def sample(call: Any) -> tuple[list[float], list[float]]:
        drawn = [loss_and_gradients(model, call, given[0], seed) for seed in range(100)]
        slopes = [sum((g * d).sum().item() for g, d in zip(each, along, strict=True)) for _, each in drawn]
        return [loss for loss, _ in drawn], slopes

    for mine, its in zip(sample(compiled), sample(model), strict=True):
        alike(mine, its)
