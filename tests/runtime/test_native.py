"""The process-wide runtime: one per process, carried by an engine, loud when it must take the slow road."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from planish.errors import LinkError
from planish.runtime import native
from planish.runtime.blob import Blob


def _python(script, **env):
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths, **env},
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_there_is_one():
    found = []
    callers = [threading.Thread(target=lambda: found.append(native.runtime())) for _ in range(8)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert all(r is found[0] for r in found) and native.running() is found[0]


def test_an_engine_may_carry_it(tmp_path):
    path = tmp_path / "runtime.bin"
    path.write_bytes(native.image_blob().to_bytes())
    script = f"""
import sys
from planish.runtime import native
from planish.runtime.blob import Blob
native.runtime(Blob.from_bytes(open({str(path)!r}, "rb").read()))
print("llvmlite" in sys.modules)
"""
    assert _python(script, PLANISH_DISABLE_CACHE="1") == "False"


def test_an_unknown_layout_is_loud_and_still_right():
    script = """
import warnings
import numpy as np
from planish.runtime import native
native._layout_fault = lambda: "a test says so"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from tests.runtime.programs import add_program
    program = add_program(shape=(3,))
assert ["a test says so" in str(w.message) for w in seen] == [True], seen
assert type(program.call).__name__ == "method"
one = np.ones(3, "f4")
print(program(one, one).tolist(), program(one.astype(">f4"), b=one).tolist())
"""
    assert _python(script) == "[2.0, 2.0, 2.0] [2.0, 2.0, 2.0]"


def test_the_layout_check_finds_a_wrong_head(monkeypatch):
    assert native._layout_fault() == ""
    monkeypatch.setattr(native.np, "ndarray", int)
    assert "function table" in native._layout_fault()


def test_an_exit_with_spinning_workers_is_clean():
    script = """
import numpy as np
from planish.runtime import threads
threads.set_num_threads(2)
from tests.runtime.programs import reverse_program
program = reverse_program()
program(np.ones(1000, "f4"))
print("fine")
"""
    for _ in range(3):
        assert _python(script) == "fine"


def test_machines():
    arm = native.image_blob("runtime", "aarch64", 16)
    assert arm.machine == "aarch64" and Blob.from_bytes(arm.to_bytes()) == arm
    with pytest.raises(LinkError, match="'riscv64'"):
        native.image_blob("runtime", "riscv64")


def test_images_are_loaded_at_first_need():
    script = """
import numpy as np
from planish.runtime import native
from tests.runtime.programs import add_program
one = np.ones(3, "f4")
program = add_program(shape=(3,))
assert program(one, one).tolist() == [2.0, 2.0, 2.0] and list(native.runtime()._images) == ["runtime"]
torch = native.runtime().image("torch")
assert torch is native.runtime().image("torch") and torch.address("planish_tensors")
assert program(one, one).tolist() == [2.0, 2.0, 2.0]
print(list(native.runtime()._images))
"""
    assert _python(script) == "['runtime', 'torch']"


def test_a_start_ahead_is_the_one(monkeypatch):
    monkeypatch.setattr(native, "_running", None)
    seen = []

    def start(blob):
        seen.append(threading.current_thread().name)
        return SimpleNamespace(apply_threads=int)

    monkeypatch.setattr(native, "Runtime", start)
    native.start_ahead(native.runtime)
    for thread in threading.enumerate():
        if thread.name == "planish starts":
            thread.join()
    assert native.runtime() is native.running() and seen == ["planish starts"]


def test_what_fails_ahead_is_raised_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(native, "_running", None)
    told = []

    def fails(blob):
        told.append(threading.current_thread().name)
        raise LinkError("no memory may be executed")

    monkeypatch.setattr(native, "Runtime", fails)
    native.start_ahead(native.runtime)
    with pytest.raises(LinkError, match="executed"):
        native.runtime()
    assert "MainThread" in told


def test_a_child_after_a_fork_waits_for_no_thread_of_its_parent():
    script = """
import os
from planish.runtime import native
native.runtime()
native._starting.acquire()
native.runtime().loading.acquire()
child = os.fork()
if not child:
    native._running = None
    native.runtime().image("torch")
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert _python(script) == "0"


def test_an_interrupt_is_heard_while_the_runtime_is_made_on_another_thread():
    script = """
import os, signal, threading
from planish.runtime import native
signal.signal(signal.SIGINT, signal.default_int_handler)
making, heard, make = threading.Event(), threading.Event(), native.image_blob

def slow(**options):
    making.set()
    heard.wait(60)
    return make(**options)

native.image_blob = slow
native.start_ahead(native.runtime)
making.wait(60)
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    native.runtime()
except KeyboardInterrupt:
    assert native.running() is None
    heard.set()
    print("heard", native.runtime() is native.running())
"""
    assert _python(script) == "heard True"
