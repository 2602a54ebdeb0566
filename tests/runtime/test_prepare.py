"""What is loaded before a compile needs it: once, in order, and what fails is told where it is needed."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from planish.runtime import load
from planish.runtime.load import MODEL
from planish.runtime.room import COMPILER


@pytest.fixture
def steps(monkeypatch):
    """The names of what each call starts."""
    found = []
    monkeypatch.setattr(load, "start_ahead", lambda *steps: found.append([s.__name__ for s in steps]))
    return found


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("constants", [MODEL - 1, MODEL])
def test_what_is_missing_is_started(monkeypatch, steps, is_loaded, is_running, constants):
    monkeypatch.setattr(load, "llvm_is_loaded", lambda: is_loaded)
    monkeypatch.setattr(load, "running", lambda: object() if is_running else None)
    load.prepare(constants)
    is_model = constants == MODEL
    llvm = [] if is_loaded else ["load_llvm" if is_model else "start_llvm"]
    made = [] if is_running else ["runtime", "leave_llvm"] if is_model else ["runtime"]
    assert steps == [[*llvm, *made]] * bool(llvm + made)


def test_room_is_taken_last_and_in_no_hurry(monkeypatch, steps):
    monkeypatch.setattr(load, "llvm_is_loaded", lambda: False)
    monkeypatch.setattr(load, "running", lambda: None)
    assert load.prepare(COMPILER + 9, COMPILER) is None and steps.pop()[1] == "runtime"
    room = load.prepare(COMPILER + 9, COMPILER + 1)
    assert steps == [["load_llvm", "runtime_aside", "leave_llvm", "take"]] and len(room.memory) > COMPILER


_SCRIPT = """
import sys
import numpy as np
import planish
from planish.codegen.llvm.emit import llvm_is_loaded
rng = np.random.default_rng(0)
weights = [planish.freeze(rng.normal(size=(1024, 1024)).astype("f4")) for _ in range(3)]

@planish.jit
def f(x):
    for w in weights:
        x = np.tanh(x @ w / 32)
    return x

x = rng.normal(size=(64, 1024)).astype("f4")
y = x
for w in weights:
    y = np.tanh(y @ w / 32)
np.testing.assert_allclose(f(x), y, rtol=1e-3, atol=1e-4)
print(llvm_is_loaded())
"""


def test_a_program_with_weights_compiles_and_comes_again(tmp_path):
    """The first process makes all, the second finds the program, the third the runtime alone."""
    paths = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": paths, "PLANISH_CACHE_DIR": str(tmp_path)}

    def run(script):
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True,
                              check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run(_SCRIPT) == "True"
    assert run(_SCRIPT) == "False"
    assert run(_SCRIPT.replace("range(3)", "range(2)")) == "True"
