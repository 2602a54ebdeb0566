"""A real model, all-MiniLM-L6-v2, on real sentences of fifty lengths: eager's embeddings, by two compiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import planish
from benchmarks import minilm

for package in ("torch", "transformers", "tokenizers", minilm.PACKAGE):
    pytest.importorskip(package)

import torch  # noqa: E402


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Short sentences gain little by threads, and a busy machine loses much."""
    before = torch.get_num_threads(), planish.get_num_threads()
    torch.set_num_threads(1)
    planish.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    planish.set_num_threads(before[1])


@pytest.mark.usefixtures("one_thread")
def test_embeddings_of_real_sentences() -> None:
    texts = minilm.sentences()
    assert len({len(ids) for _, ids in texts}) == minilm.LENGTHS
    module = minilm.embedder()
    compiled = planish.compile(module)
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        for text, ids in texts:
            x = torch.tensor([ids])
            assert minilm.cosine(compiled(x).numpy(), module(x).numpy()) > minilm.COSINE, text
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
