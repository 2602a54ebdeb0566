"""Bad input: one clear message and an exit code each, compared with golden files; never a traceback."""
from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planish.cli.faults import _interrupt_again

GOLDENS = Path(__file__).parent / "goldens"
ROOT = Path(__file__).parents[2]

# name -> command line; the files are those that `spoiled` makes, beside the models
CASES = {
    "missing_file": "run nowhere.onnx",
    "a_folder": "run cache",
    "not_a_model": "explain text.onnx",
    "truncated": "run truncated.onnx",
    "unsupported_op": "run odd.onnx",
    "unknown_input": "run layer.onnx --input y=1x4",
    "input_without_value": "run layer.onnx --input x",
    "input_not_a_shape": "run layer.onnx --input x=1,4",
    "input_rank": "run layer.onnx --input x=4",
    "input_size": "run layer.onnx --input x=2x5",
    "input_twice": "run layer.onnx --input x=1x4 --input x=2x4",
    "inputs_disagree": "run pair.onnx --input a=3 --input b=4",
    "input_dtype": "run layer.onnx --input x=doubles.npy",
    "input_file_missing": "run layer.onnx --input x=nowhere.npy",
    "input_file_broken": "run layer.onnx --input x=text.npy",
    "range_empty": "run gather.onnx --input ids=1x2:5..2",
    "range_outside_dtype": "run gather.onnx --input ids=1x2:0..1e30",
    "unknown_peer": "validate layer.onnx --peers tensorflow",
    "unknown_pass": "explain layer.onnx --disable fold_constants,fuze",
    "no_such_stage": "inspect layer.onnx --strategy library --stage llvm",
    "nothing_to_profile": "profile layer.onnx --strategy library",
    "output_folder_missing": "run layer.onnx --output nowhere/y.npz",
    "output_is_a_folder": "run layer.onnx --output .",
    "output_is_no_archive": "run layer.onnx --output y.txt",
    "too_many_threads": "run layer.onnx --threads 100000",
}


@pytest.fixture
def spoiled(folder: Path) -> Path:
    (folder / "cache").mkdir()
    Path("text.onnx").write_text("this is no model\n")
    Path("text.npy").write_text("this is no array\n")
    data = Path("layer.onnx").read_bytes()
    Path("truncated.onnx").write_bytes(data[:len(data) // 2])
    np.save("doubles.npy", np.zeros((1, 4)))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, spoiled: Path, planish: Callable, golden: Callable) -> None:
    outcome = planish(*CASES[name].split())
    assert outcome.out == "" and outcome.code in (1, 2)
    text = outcome.err.replace(str(spoiled), "FOLDER")
    golden(GOLDENS / f"{name}.txt", f"$ planish {CASES[name]}\nexit code {outcome.code}\n{text}")


def test_every_golden_has_its_case() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == {*CASES, "unwritable_cache", "bad_setting"}


def test_cache_that_cannot_be_used_is_a_warning(folder: Path, planish: Callable, golden: Callable,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    Path("plain").write_text("")
    monkeypatch.setenv("PLANISH_CACHE_DIR", str(folder / "plain" / "cache"))
    outcome = planish("run", "layer.onnx")
    assert outcome.code == 0 and "Outputs" in outcome.out
    golden(GOLDENS / "unwritable_cache.txt", outcome.err.replace(str(folder), "FOLDER"))


def test_setting_that_cannot_be_read(folder: Path, planish: Callable, golden: Callable,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANISH_NUM_THREADS", "many")
    outcome = planish("run", "layer.onnx")
    assert outcome.code == 2
    golden(GOLDENS / "bad_setting.txt", outcome.err)


def test_setting_with_a_misspelt_name_is_a_warning(folder: Path, planish: Callable,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANISH_NUM_THREAD", "1")
    outcome = planish("knobs")
    assert outcome.code == 0 and "PLANISH_NUM_THREADS" in outcome.out
    assert outcome.err == ("planish: warning: PLANISH_NUM_THREAD is not a variable that planish reads; did "
                           "you mean PLANISH_NUM_THREADS? (planish knobs lists all)\n")


@pytest.mark.parametrize("line", ["", "cache", "tuning"])
def test_without_a_command_the_usage_is_shown(line: str, folder: Path, planish: Callable) -> None:
    outcome = planish(*line.split())
    assert outcome.code == 2 and outcome.out == "" and outcome.err.startswith("Usage: planish")
    assert "(see planish --help)" not in outcome.err


@pytest.mark.parametrize("line", ["polish", "run", "run layer.onnx --numerics loose",
                                  "run layer.onnx --rounds 3", "bench layer.onnx --rounds 0"])
def test_wrong_command_line(line: str, folder: Path, planish: Callable) -> None:
    outcome = planish(*line.split())
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("planish: ") and outcome.err.count("\n") == 1


def test_traceback_on_request(folder: Path, planish: Callable) -> None:
    with pytest.raises(FileNotFoundError):
        planish("run", "nowhere.onnx", "--traceback")
    with pytest.raises(FileNotFoundError):
        planish("--traceback", "run", "nowhere.onnx")


def test_error_of_ours_is_told_as_one(folder: Path, planish: Callable,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planish.compiler.verify", lambda *_: {}["lost"])
    outcome = planish("run", "layer.onnx")
    assert outcome.code == 1
    assert outcome.err == "planish: KeyError: 'lost' (a bug; planish --traceback shows where)\n"


# --- as a process

def start(*arguments: str, **options: object) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.Popen([sys.executable, "-m", "planish", *arguments], text=True, env=environment,
                            stderr=subprocess.PIPE, preexec_fn=_heed_interrupts, **options)


def _heed_interrupts() -> None:
    """As at a prompt: what a shell runs in the background is started with Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_closed_pipe_is_quiet(folder: Path) -> None:
    process = start("inspect", "layer.onnx", "--stage", "llvm", stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.communicate()[1] == ""
    assert process.returncode == 1


def test_full_disk_is_told(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        process = start("inspect", "layer.onnx", stdout=full)
        error = process.communicate()[1]
    assert process.returncode == 1
    assert error == "planish: No space left on device\n"


def test_an_output_is_whole_or_not_there(folder: Path, planish: Callable) -> None:
    Path("y.npz").write_text("as it was")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # as a disk that gets full
    try:
        outcome = planish("run", "layer.onnx", "--input", "x=20000x4", "--output", "y.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (outcome.code, outcome.err) == (1, "planish: y.npz: File too large\n")
    assert Path("y.npz").read_text() == "as it was" and not list(folder.glob(".*"))


def test_ctrl_c_while_the_commands_are_loaded(monkeypatch: pytest.MonkeyPatch, planish: Callable) -> None:
    def stopped(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("planish.cli.faults.run", stopped)
    outcome = planish("knobs")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


def test_ctrl_c_ends_quietly(folder: Path) -> None:
    process = start("bench", "layer.onnx", "--rounds", "100000", stdout=subprocess.PIPE)
    while process.poll() is None and not list(folder.glob("cache/??/*")):
        time.sleep(0.05)  # until it has compiled
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out, error.strip()) == (130, "", "")


def test_ctrl_c_in_a_callback_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thing:
        pass

    def clear_up(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", _interrupt_again)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    thing = Thing()
    reference = weakref.ref(thing, clear_up)
    try:
        with pytest.raises(KeyboardInterrupt):
            del thing
            for _ in range(1000):
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert reference() is None


def test_without_its_packages_it_says_what_to_install(folder: Path) -> None:
    program = ("import sys; sys.modules['typer'] = sys.modules['rich'] = None\n"
               "import importlib.util as u; find = u.find_spec\n"
               "u.find_spec = lambda n, package=None: None if n in ('typer', 'rich') else find(n, package)\n"
               "from planish.cli import main; sys.exit(main(['run', 'layer.onnx']))")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == 1
    assert run.stderr == "planish: the command line needs typer and rich: pip install 'planish[cli]'\n"
