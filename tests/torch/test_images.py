"""The native runtime for NumPy's programs and what torch's need beside it, in either order in one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

_SCRIPT = """
import sys
import numpy as np
import torch
import planish
from planish.runtime import native

def by_numpy():
    x = np.random.default_rng(1).normal(size=(40, 3000)).astype("f4")
    np.testing.assert_allclose(planish.jit(lambda x: np.tanh(x) * 2)(x), np.tanh(x) * 2, rtol=1e-6)

def by_torch():
    layer = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.GELU())
    compiled = planish.compile(layer)
    x = torch.randn(500, 64)
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()

assert native.running() is None
for name in sys.argv[1:]:
    globals()["by_" + name]()
    print(name, *native.running()._images)
"""


def _images(*order: str) -> list[list[str]]:
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *order],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_numpy_first():
    assert _images("numpy", "torch", "numpy") == [
        ["numpy", "runtime"],
        ["torch", "runtime", "torch"],
        ["numpy", "runtime", "torch"],
    ]


def test_torch_first():
    assert _images("torch", "numpy") == [["torch", "runtime", "torch"], ["numpy", "runtime", "torch"]]
