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


def guarded(*arguments: str, module: str = "guarded") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", f"tests.native.{module}", *arguments], cwd=ROOT, text=True,
                          capture_output=True, timeout=300, check=False)


@pytest.mark.parametrize("place", ["end", "start"])
def test_the_guard_catches_one_element_too_many(place: str) -> None:
    done = guarded(place)
    assert done.stdout == "beyond\n" and done.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("place", ["end", "start"])
def test_the_guard_between_values_catches_one_element_too_many(place: str) -> None:
    done = guarded(place, module="guarded_values")
    assert done.stdout == "between\n" and done.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("module", ["guarded", "guarded_values"])
def test_kernels_stay_inside_their_buffers(module: str) -> None:
    done = guarded(module=module)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{last}: ended with {done.returncode}: {done.stderr[-2000:]}"
