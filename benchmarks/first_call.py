"""`python -m benchmarks.first_call`: seconds of BERT-base's first call, each entry in a process of its own.

`dynamo` and `aot` are torch.compile with torch's own backends "eager" and "aot_eager": capture alone, and
with AOTAutograd. planish's entries come twice, with an empty cache and with the one the first run left.
`planish own` is what planish took of it, from ATen graph to program. Loading torch and making the model do
not count.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from time import perf_counter

ENTRIES = ("dynamo", "aot", "torch.compile", "planish.compile")


def compiled(entry: str, model):
    """The model by an entry."""
    import torch

    import planish

    if entry == "planish.compile":
        return planish.compile(model)
    backend = {"dynamo": "eager", "aot": "aot_eager", "torch.compile": "planish"}[entry]
    return torch.compile(model, backend=backend)


def measure(entry: str) -> None:
    """Print seconds of the first call in this process, and planish's part."""
    import torch
    import torch._dynamo
    from transformers import BertConfig, BertModel

    from planish.torch.watch import watching

    torch.manual_seed(0)  # a second process has the same weights, as one that loads a model has
    model, tokens = BertModel(BertConfig()).eval(), torch.randint(0, 30000, (1, 128))
    with torch.no_grad():
        expected = model(tokens).last_hidden_state
        one = compiled(entry, model)
        with watching() as watch:
            start = perf_counter()
            result = one(tokens).last_hidden_state
            seconds = perf_counter() - start
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    own = sum(graph.compile_seconds for graph in watch.graphs.values())
    print(f"{seconds:.2f} {own:.2f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_call", description=__doc__)
    parser.add_argument("--entry", choices=ENTRIES, help="measure one, in this process")
    entry = parser.parse_args(argv).entry
    measure(entry) if entry is not None else measure_all()


def measure_all() -> None:
    """Print the table."""
    print(f"{'seconds':26}{'first call':>12}{'planish own':>14}")
    for name in ENTRIES:
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("cold", "warm") if "compile" in name else ("",):
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.first_call", "--entry", name]
                ran = subprocess.run(command, env={**os.environ, "PLANISH_CACHE_DIR": folder}, check=True,
                                     capture_output=True, text=True)
                seconds, own = ran.stdout.split()[-2:]
                print(f"{name + ' ' + cache:26}{seconds:>12}{own:>14}", flush=True)


if __name__ == "__main__":
    main()
