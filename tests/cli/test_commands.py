"""What the commands print and return on small models, and on the real one where it is installed."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from planish.cli.app import Stage
from planish.compiler import STAGES
from planish.knobs import KNOBS

ROOT = Path(__file__).parents[2]
COMMANDS = ["run", "bench", "profile", "inspect", "explain", "validate"]


def weights(path: str) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("strategy", ["native", "library"])
@pytest.mark.parametrize("numerics", ["strict", "default", "fast"])
def test_run_gives_the_models_answer(folder: Path, planish: Callable, strategy: str, numerics: str) -> None:
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    np.save("x.npy", x)
    outcome = planish("run", "layer.onnx", "-i", "x=x.npy", "--output", "y.npz", "--strategy", strategy,
                      "--numerics", numerics)
    assert outcome.code == 0, outcome.err
    w = weights("layer.onnx")
    expected = np.maximum(x @ w["w"] + w["b"], 0)
    np.testing.assert_allclose(np.load("y.npz")["y"], expected, rtol=1e-5, atol=1e-6)
    assert "float32[5, 3]" in outcome.out and "x.npy" in outcome.out


def test_run_as_json_says_what_went_in_and_came_out(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("run", "gather.onnx", "--input", "ids=3x2:4..4", "--json").out)
    assert found["inputs"] == [{"name": "ids", "type": "int64[3, 2]", "from": "random, 4..4"}]
    (rows,) = found["outputs"]
    assert (rows["name"], rows["type"], rows["min"], rows["max"]) == ("rows", "float32[3, 2, 2]", 8.0, 9.0)


def test_seed_decides_random_inputs(folder: Path, planish: Callable) -> None:
    runs = {seed: planish("run", "layer.onnx", "-i", "x=4x4", "--seed", seed, "--output", f"{seed}.npz")
            for seed in ("0", "1")}
    assert all(r.code == 0 for r in runs.values())
    again = planish("run", "layer.onnx", "-i", "x=4x4", "--output", "again.npz")
    assert again.code == 0
    first, other, same = (np.load(name)["y"] for name in ("0.npz", "1.npz", "again.npz"))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_stages_are_the_compilers() -> None:
    assert tuple(s.value for s in Stage) == STAGES


@pytest.mark.parametrize(("stage", "text"), [
    ("graph", "graph small(%x: f32[N, 4])"), ("optimized", "dot_general(%x"), ("loops", "kernel k0"),
    ("program", "program"), ("llvm", "define"), ("asm", "planish_body")])
def test_inspect_prints_the_stage(folder: Path, planish: Callable, stage: str, text: str) -> None:
    outcome = planish("inspect", "layer.onnx", "--stage", stage)
    assert outcome.code == 0, outcome.err
    assert text in outcome.out
    assert json.loads(planish("inspect", "layer.onnx", "--stage", stage, "--json").out)["stage"] == stage


def test_profile_tells_where_the_time_goes(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("profile", "layer.onnx", "-i", "x=50x4", "--seconds", "0", "--json").out)
    kernel, = found["kernels"]
    assert kernel["runs"] == 1 and kernel["flops"] >= 2 * 50 * 4 * 3
    assert 0 < kernel["ms"] <= found["ms"] and found["calls"] >= 5
    assert "dot_general" in planish("profile", "layer.onnx", "--seconds", "0").out


def test_explain_tells_what_was_done(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("explain", "layer.onnx", "--numerics", "fast", "--rewrites", "--json").out)
    fired = {p["name"]: p["fired"] for p in found["passes"]}
    assert fired["simplify"] == {"add_zero": 1} and fired["decompose"] == {"matmul": 1, "relu": 1}
    assert found["kernels"] == {"before": 4, "after": 1, "ratio": 4.0}
    assert found["bytes"]["before"] > found["bytes"]["after"] > 0
    assert found["hint"] == {"N": 1} and found["memory"]["planned"] == 0
    assert {"cache", "verify", "rewrite", "schedule", "generate", "compile"} == set(found["ms"])
    assert ["simplify", "add_zero"] in [[r["pass_name"], r["rule"]] for r in found["rewrites"]]
    text = planish("explain", "layer.onnx", "--numerics", "fast", "--rewrites").out
    assert "4 -> 1 (one per op -> after fusion)" in text and "add_zero" in text and "Rewrites" in text


def test_explain_without_fusion_has_a_kernel_per_op(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("explain", "layer.onnx", "--disable", "fuse,simplify", "--json").out)
    assert "simplify" not in {p["name"] for p in found["passes"]}
    assert found["kernels"]["before"] == 4 and found["kernels"]["after"] > 1


def test_explain_library_has_no_passes(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("explain", "layer.onnx", "--strategy", "library", "--json").out)
    assert found["passes"] == [] and found["kernels"]["before"] == found["kernels"]["after"] == 4
    assert planish("explain", "layer.onnx", "--strategy", "library").code == 0


def test_validate_measures_everyone(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("validate", "layer.onnx", "-i", "x=7x4", "--json").out)
    names = {"native", "library", "reference"} | ({"onnxruntime"} if find_spec("onnxruntime") else set())
    assert set(found["errors"]) == names and not found["failures"] and not found["contradicted"]
    errors = [e for of_one in found["errors"].values() for e in of_one]
    assert all(e["absolute"] < 1e-5 and e["fault"] == "" for e in errors)
    assert "right" in planish("validate", "layer.onnx").out


def test_validate_names_the_first_node_that_diverges(folder: Path, planish: Callable,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from planish.compiler import NativeCompiled

    right = json.loads(planish("validate", "layer.onnx", "--per-node", "--json").out)["nodes"]
    assert [n["op"] for n in right["nodes"]] == ["MatMul", "Add", "Relu", "Add"] and not right["first"]
    assert "All 4 nodes are right" in planish("validate", "layer.onnx", "--per-node").out
    correct = NativeCompiled.__call__

    def spoilt(self: NativeCompiled, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Wrong from the second node on."""
        names = ["z", "r", "y"]
        outputs = zip(self.captured.output_names, correct(self, *arrays))
        return tuple(out + 1 if name in names else out for name, out in outputs)
    monkeypatch.setattr(NativeCompiled, "__call__", spoilt)
    outcome = planish("validate", "layer.onnx", "-i", "x=7x4", "--per-node", "--json")
    assert outcome.code == 1 and json.loads(outcome.out)["nodes"]["first"] == {"native": "Add 1"}
    text = " ".join(planish("validate", "layer.onnx", "--per-node", "--peers", "reference").out.split())
    assert "3 of 4 nodes diverge" in text and "native Add 1" in text and "reference none" in text


def test_validate_hears_when_every_peer_disagrees(folder: Path, planish: Callable,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 is our own reading of the model."""
    from planish.inspect import peers

    other = lambda *given: lambda feeds: [np.full((1, 3), 9, np.float32)]  # noqa: E731
    monkeypatch.setattr(peers, "reference_evaluator", other)
    if find_spec("onnxruntime"):
        assert planish("validate", "layer.onnx").code == 0  # one agrees
    monkeypatch.setattr(peers, "onnx_runtime", other)
    outcome = planish("validate", "layer.onnx")
    assert outcome.code == 1 and "Every peer has another answer than float64 for y" in outcome.out


@pytest.mark.parametrize("command", ["run", "explain", "validate"])
def test_values_and_ranks_that_a_program_depends_on_are_given(folder: Path, planish: Callable,
                                                              command: str) -> None:
    outcome = planish(command, "reduce.onnx", "-i", "x=3x4")
    assert outcome.code == 2 and "the program depends on the value of axes" in outcome.err
    outcome = planish(command, "reduce.onnx", "-i", "x=3x4", "-i", "axes=1:1..1", "--json")
    assert outcome.code == 0, outcome.err
    if command == "run":
        assert json.loads(outcome.out)["outputs"][0]["type"] == "float32[3, 1]"
    outcome = planish(command, "unranked.onnx")
    assert outcome.code == 2 and "leaves the rank of x open" in outcome.err
    outcome = planish(command, "unranked.onnx", "-i", "x=2x3")
    assert outcome.code == 0, outcome.err


def test_wrong_answers_fail_and_get_no_time(folder: Path, planish: Callable,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    from planish.compiler import NativeCompiled

    monkeypatch.setattr(NativeCompiled, "__call__", lambda self, x: (np.full((len(x), 3), 9, np.float32),))
    outcome = planish("validate", "layer.onnx", "-i", "x=7x4")
    assert outcome.code == 1 and "21 of 21 elements" in " ".join(outcome.out.split())
    outcome = planish("bench", "layer.onnx", "--rounds", "1", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 1 and "another answer" in found["refused"]["native"]
    assert "native" not in [t["name"] for t in found["timings"]]


def test_bench_times_everyone(folder: Path, planish: Callable) -> None:
    found = json.loads(planish("bench", "layer.onnx", "--rounds", "1", "--json").out)
    names = ["native", "library"] + (["onnxruntime"] if find_spec("onnxruntime") else [])
    assert [t["name"] for t in found["timings"]] == names and not found["refused"]
    for timing in found["timings"]:
        assert 0 < timing["min"] <= timing["median"] <= timing["p90"] <= timing["p99"]
    assert found["machine"]["versions"]["planish"]
    text = planish("bench", "layer.onnx", "--rounds", "1", "--strategy", "library").out
    assert "native" not in text and "median" in text and "load" in text


def test_threads_hold_for_us_and_numpy(folder: Path) -> None:
    command = [sys.executable, "-m", "planish", "bench", "layer.onnx", "--rounds=1", "--threads=1", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert json.loads(run.stdout)["machine"]["threads"] == 1, run.stderr


def test_knobs_lists_every_setting(planish: Callable) -> None:
    rows = json.loads(planish("knobs", "--json").out)
    assert [r["variable"] for r in rows] == [k.env for k in KNOBS.values()]
    assert all(k.env in planish("knobs").out for k in KNOBS.values())


def test_cache_is_counted_and_cleared(folder: Path, planish: Callable) -> None:
    assert json.loads(planish("cache", "status", "--json").out)["entries"] == 0
    planish("run", "layer.onnx")
    found = json.loads(planish("cache", "status", "--json").out)
    assert found["entries"] > 0 and found["bytes"] > 0 and found["fault"] == ""
    assert found["folder"] == str(folder / "cache")
    assert planish("cache", "clear").out.startswith(f"removed {found['entries']} entries")
    assert json.loads(planish("cache", "status", "--json").out)["entries"] == 0
    assert "in use" in planish("cache", "status").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option(command: str, planish: Callable) -> None:
    text = planish(command, "--help").out
    shared = ["input", "numerics", "strategy", "threads", "disable", "seed", "json", "traceback"]
    assert all(f"--{option}" in text for option in shared) and "MODEL.onnx" in text


def test_help_and_version(planish: Callable) -> None:
    import planish as package

    text = planish("--help").out
    assert all(command in text for command in [*COMMANDS, "knobs", "cache"])
    assert planish("--version").out == f"planish {package.__version__}\n"


@pytest.mark.peer
def test_the_real_model(planish: Callable) -> None:
    if not find_spec("magika"):
        pytest.skip("the package magika is not installed")
    from importlib.resources import files

    path = str(files("magika") / "models/standard_v3_3/model.onnx")
    outcome = planish("validate", path, "--input", "bytes=2x2048:0..255")
    assert outcome.code == 0, outcome.out + outcome.err
    found = json.loads(planish("explain", path, "--json").out)
    assert found["kernels"]["after"] < found["kernels"]["before"] / 4


def test_models_of_text(planish: Callable, folder: Path) -> None:
    """Text is drawn, shown, saved and compared."""
    split = onnx.helper.make_node("StringSplit", ["x"], ["parts", "n"], delimiter=",")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([split], "text", [value("x", 8, ["N"])],
                                   [value("parts", 8, ["N", None]), value("n", 7, ["N"])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9),
              folder / "text.onnx")
    assert "host %0 = string_split(%x)" in planish("explain", "text.onnx").out
    shown = planish("run", "text.onnx", "--input", "x=30", "--output", "out.npz").out
    assert "string[30" in shown and "random, of one, Two" in shown
    assert set(np.load(folder / "out.npz")["n"]) == {1, 2}
    assert planish("validate", "text.onnx", "--input", "x=30").code == 0
