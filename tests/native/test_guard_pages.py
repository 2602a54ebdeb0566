"""Compiled kernels touch nothing beside their buffers, each of which lies against a page out of bounds.

A process of its own runs the programs of guarded.py, and of guarded_values.py, where what lies between
kernels is guarded too, because what is looked for ends it.
"""
from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["guarded", "guarded_values"])
def test_kernels_stay_inside_their_buffers(module: str) -> None:
    """And the guard catches one element too many, beyond a buffer and between two values: the process first
    prints the signals that end two children of it."""
    done = subprocess.run([sys.executable, "-m", f"tests.native.{module}"], cwd=ROOT, text=True,
                          capture_output=True, timeout=300, check=False)
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{place} {int(signal.SIGSEGV)}" for place in ("end", "start")]
    assert done.returncode == 0, f"{lines[-1:]}: ended with {done.returncode}: {done.stderr[-2000:]}"
