"""The session beside ONNX Runtime's: the same program, descriptions, answers, errors by the same names."""
from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import planish.onnx as ort
from planish.errors import PlanishError
from planish.onnx import variants
from planish.onnx.capi import onnxruntime_pybind11_state as state
from tests.onnx import models
from tests.onnx.models import floats

LEVELS = list(ort.GraphOptimizationLevel)
ROOT = Path(__file__).parents[2]


def session_of(model: onnx.ModelProto, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), options)


def assert_equal(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for one, want in zip(got, expected, strict=True):
        assert one.dtype == want.dtype
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-6)


# --- one program, two imports

PROGRAM = """
import numpy as np
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.log_severity_level = 3
options.add_session_config_entry("session.dynamic_block_base", "4")
session = ort.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
said = [(a.name, a.type, a.shape) for a in (*session.get_inputs(), *session.get_outputs())]
about = session.get_modelmeta()
said += [about.producer_name, about.custom_metadata_map, session.get_providers(), ort.get_device()]
results = session.run(None, {session.get_inputs()[0].name: x})
results += session.run(["h", "y"], {"x": x[:1]}, ort.RunOptions())
value = ort.OrtValue.ortvalue_from_numpy(x)
results += [v.numpy() for v in session.run_with_ort_values(["y"], {"x": value})]
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
results += binding.copy_outputs_to_cpu()
said += [value.shape(), value.data_type(), value.element_type(), value.device_name(), value.is_tensor()]
try:
    session.run(None, {"x": x.astype(np.float64)})
except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
    said.append(str(error).split(" : ", 1)[1].removesuffix(", for input x"))
"""


@pytest.mark.peer
def test_a_program_for_onnx_runtime_runs_by_changing_its_import(tmp_path: Path) -> None:
    peer = pytest.importorskip("onnxruntime")
    model = models.layer(producer_name="me")
    onnx.helper.set_model_props(model, {"classes": "cat,dog"})
    onnx.save(model, tmp_path / "layer.onnx")
    x, seen = floats(5, 4), []
    for module in (ort, peer):
        names = {"ort": module, "path": str(tmp_path / "layer.onnx"), "x": x}
        exec(PROGRAM, names)
        seen.append(names)
    ours, theirs = seen
    assert ours["said"] == theirs["said"]
    assert_equal(ours["results"], theirs["results"])


@pytest.mark.peer
@pytest.mark.parametrize("make", [models.layer, models.pair, models.fixed, models.defaults, models.joined,
                                  models.unranked])
def test_descriptions_are_onnx_runtimes(make: Callable[[], onnx.ModelProto]) -> None:
    peer = pytest.importorskip("onnxruntime")
    model = make()
    model.doc_string, model.graph.doc_string, model.domain = "what it does", "how", "org.example"
    ours, theirs = session_of(model), peer.InferenceSession(model.SerializeToString())
    for name in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        assert list(map(str, getattr(ours, name)())) == list(map(str, getattr(theirs, name)()))
    about, expected = ours.get_modelmeta(), theirs.get_modelmeta()
    for name in (n for n in dir(expected) if not n.startswith("_")):
        assert getattr(about, name) == getattr(expected, name)


CALLS: dict[str, Callable[[Any, np.ndarray, np.ndarray], Any]] = {
    "dtype": lambda s, a, b: s.run(None, {"a": a.astype(np.float64), "b": b}),
    "integers": lambda s, a, b: s.run(None, {"a": a, "b": b.astype(np.int64)}),
    "rank": lambda s, a, b: s.run(None, {"a": a[0], "b": b}),
    "size": lambda s, a, b: s.run(None, {"a": a[..., 1:], "b": b}),
    "missing": lambda s, a, b: s.run(None, {"a": a}),
    "unknown": lambda s, a, b: s.run(None, {"a": a, "b": b, "k": b}),
    "output": lambda s, a, b: s.run(["c", "d"], {"a": a, "b": b}),
    "text": lambda s, a, b: s.run("c", {"a": a, "b": b}),
}


@pytest.mark.peer
@pytest.mark.parametrize("fault", CALLS)
def test_errors_are_onnx_runtimes(fault: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    data, a, b = models.pair().SerializeToString(), floats(2, 3, 8), floats(8, 5)
    caught = []
    for session in (ort.InferenceSession(data), peer.InferenceSession(data)):
        session.run(None, {"a": a, "b": b})
        with pytest.raises(Exception) as info:
            CALLS[fault](session, a, b)
        caught.append(info.value)
    ours, theirs = caught
    assert type(ours).__name__ == type(theirs).__name__
    if fault != "text":
        begins = str(theirs).split("] : ")[-1]
        assert " ".join(begins.split()) in " ".join(str(ours).split())


@pytest.mark.peer
def test_options_have_onnx_runtimes_names_and_defaults() -> None:
    peer = pytest.importorskip("onnxruntime")
    for kind in ("SessionOptions", "RunOptions"):
        ours, theirs = getattr(ort, kind)(), getattr(peer, kind)()
        names = [n for n in dir(theirs) if not n.startswith("_") and not callable(getattr(theirs, n))]
        for name in names:
            default, mine = getattr(theirs, name), getattr(ours, name)
            assert getattr(mine, "name", mine) == getattr(default, "name", default)
            with pytest.raises(TypeError, match=name):
                setattr(ours, name, object())
    for kind in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        members = {name: int(value) for name, value in getattr(peer, kind).__members__.items()}
        assert {m.name: m.value for m in getattr(ort, kind)} == members
    wanted = {n for n in dir(state) if inspect.isclass(getattr(state, n))}
    assert wanted <= set(dir(peer.capi.onnxruntime_pybind11_state))


# --- answers

@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_models_answer(level: ort.GraphOptimizationLevel) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    model = models.layer()
    session = session_of(model, options)
    for n in (1, 7, 0):
        x = floats(n, 4)
        assert_equal(session.run(None, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x}))


@pytest.mark.parametrize(("key", "value"), [("planish.numerics", "strict"), ("planish.strategy", "library"),
                                            ("planish.disable", "fuse,simplify")])
def test_the_compilers_options_are_config_entries(key: str, value: str) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, value)
    model, x = models.layer(), floats(3, 4)
    results = session_of(model, options).run(None, {"x": x})
    assert_equal(results, ReferenceEvaluator(model).run(None, {"x": x}))


def test_feeds_of_every_layout_give_the_same() -> None:
    model, x = models.layer(), floats(3, 4)
    session = session_of(model)
    expected = session.run(["y"], {"x": x})
    wide = np.zeros((6, 8), np.float32)
    wide[::2, ::2] = x
    for same in (x.tolist(), [*x], np.asfortranarray(x), wide[::2, ::2], x.astype(">f4"),
                 ort.OrtValue.ortvalue_from_numpy(x)):
        np.testing.assert_array_equal(session.run(["y"], {"x": same})[0], expected[0])


def test_results_are_new_arrays() -> None:
    model = models.model([onnx.helper.make_node("Identity", ["x"], ["y"])], {"x": (models.FLOAT, ["N"])},
                         {"y": (models.FLOAT, ["N"])})
    x = floats(5)
    first, = session_of(model).run(None, {"x": x})
    assert not np.may_share_memory(first, x) and first.flags.writeable


def test_sequences_go_in_and_come_out_as_lists() -> None:
    model = models.joined()
    session = session_of(model)
    for lengths in ((1, 3), (2,), (4, 1, 1), (5, 7)):
        feeds = {"s": [floats(n, 2) for n in lengths], "x": floats(2, 2)}
        y, more = session.run(None, feeds)
        np.testing.assert_array_equal(y, np.concatenate(feeds["s"]))
        assert isinstance(more, list)
        assert_equal(more, [*feeds["s"], feeds["x"]])
    assert session.compiles == 3  # one per number of elements
    with pytest.raises(state.InvalidArgument, match="a sequence is a list"):
        session.run(None, {"s": floats(2, 2), "x": floats(2, 2)})


def test_ranks_the_model_leaves_open_are_compiled_one_by_one() -> None:
    session = session_of(models.unranked())
    for shape in ((3,), (4,), (2, 3), (), (9,)):
        x = floats(*shape)
        assert_equal(session.run(None, {"x": x}), [np.maximum(x, 0)])
    assert session.compiles == 3


@pytest.mark.parametrize("ir_version", [3, 8])
def test_a_default_may_be_fed(ir_version: int) -> None:
    session = session_of(models.defaults(ir_version))
    x, w = floats(2, 4), floats(4)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)
        np.testing.assert_array_equal(session.run(None, {"x": x, "w": w})[0], x + w)
    assert session.compiles == 2
    assert [a.name for a in session.get_overridable_initializers()] == ["w"]


def test_initialisers_and_sizes_given_from_outside() -> None:
    options = ort.SessionOptions()
    w = floats(4, 3)
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(w))
    options.add_free_dimension_override_by_name("N", 2)
    session, x = session_of(models.layer(), options), floats(2, 4)
    np.testing.assert_allclose(session.run(["h"], {"x": x})[0], x @ w, rtol=1e-5, atol=1e-6)
    assert session.compiles == 1
    with pytest.raises(state.InvalidArgument):
        session.run(["h"], {"x": floats(3, 4)})
    for name, value in (("q", w), ("w", w.T)):
        options = ort.SessionOptions()
        options.add_initializer(name, ort.OrtValue.ortvalue_from_numpy(value))
        with pytest.raises(state.InvalidArgument, match=name):
            session_of(models.layer(), options)


def test_external_data_of_a_model_given_as_bytes(tmp_path: Path) -> None:
    model, x = models.layer(), floats(2, 4)
    expected = session_of(model).run(None, {"x": x})
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    data = (tmp_path / "m.onnx").read_bytes()
    assert_equal(ort.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x}), expected)
    with pytest.raises(state.InvalidGraph, match="load the model by its path"):
        ort.InferenceSession(data)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    assert_equal(ort.InferenceSession(data, options).run(None, {"x": x}), expected)


# --- how often it compiles

def test_twenty_lengths_are_compiled_once() -> None:
    session = session_of(models.pair())
    for n in range(1, 21):
        a, b = floats(2, n, 8), floats(8, n + 3)
        np.testing.assert_allclose(session.run(None, {"a": a, "b": b})[0], a @ b, rtol=1e-4, atol=1e-5)
    assert session.compiles == 1 and session.recompiles == []


def test_a_model_without_open_sizes_is_compiled_when_it_is_loaded() -> None:
    assert session_of(models.fixed()).compiles == 1
    assert session_of(models.layer()).compiles == 0


def test_values_that_shapes_depend_on_have_programs_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    session = session_of(models.summed())
    with caplog.at_level(logging.INFO, "planish.recompiles"):
        for axes, n in (([0], 2), ([1], 3), ([0], 4), ([0, 1], 5), ([1], 6)):
            x = floats(n, 4)
            (y,) = session.run(None, {"x": x, "axes": np.array(axes)})
            np.testing.assert_allclose(y, x.sum(tuple(axes), keepdims=True), rtol=1e-5, atol=1e-6)
    assert session.compiles == 3
    assert session.recompiles == ["the value of axes: [0] -> [1]", "the value of axes: [1] -> [0, 1]"]
    assert "the value of axes: [0] -> [1]" in caplog.text


def test_sizes_that_must_agree_are_compiled_one_by_one() -> None:
    session = session_of(models.unnamed_sizes())
    for rows, columns, other in ((2, 3, 3), (2, 3, 1), (2, 1, 4), (5, 3, 3)):
        a, b = floats(rows, columns), floats(other)
        np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a + b)
    assert session.compiles == 3


def test_of_many_variants_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "KEPT", 2)
    session, x = session_of(models.summed()), floats(2, 3)
    for axes in ([0], [1], [0], [0, 1], [0], [1]):  # the last [1] was dropped for [0, 1]
        session.run(None, {"x": x, "axes": np.array(axes)})
    assert session.compiles == 4


# --- threads

@pytest.mark.parametrize("make", [models.pair, models.summed])
def test_eight_threads_share_a_session(make: Callable[[], onnx.ModelProto]) -> None:
    session = session_of(make())

    def work(i: int) -> None:
        for n in range(1, 30):
            if make is models.pair:
                feeds = {"a": floats(1 + i, n, 8), "b": floats(8, 1 + n % 5)}
                expected = feeds["a"] @ feeds["b"]
            else:
                feeds = {"x": floats(n, i + 1), "axes": np.array([(i + n) % 2])}
                expected = feeds["x"].sum((i + n) % 2, keepdims=True)
            np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-5)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert session.compiles == (1 if make is models.pair else 2)


def test_eight_threads_have_a_session_each() -> None:
    model = models.layer()
    data, reference = model.SerializeToString(), ReferenceEvaluator(model)

    def work(i: int) -> None:
        session = ort.InferenceSession(data)
        for n in range(1, 10):
            x = floats(n * (i + 1), 4)
            assert_equal(session.run(None, {"x": x}), reference.run(None, {"x": x}))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


THREADS = """
import os, sys
import numpy as np, planish.onnx as ort
x = np.random.default_rng().standard_normal((1, 600, 8)).astype(np.float32)
before = len(os.listdir("/proc/self/task"))
for count in (1, 3):
    options = ort.SessionOptions()
    options.intra_op_num_threads = count
    session = ort.InferenceSession(sys.argv[1], options)
    for _ in range(3):
        session.run(None, {"a": x, "b": x[0].T})
    print(len(os.listdir("/proc/self/task")) - before)
"""


def test_the_thread_count_is_honoured(tmp_path: Path) -> None:
    onnx.save(models.pair(), tmp_path / "pair.onnx")
    command = [sys.executable, "-c", THREADS, str(tmp_path / "pair.onnx")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.split() == ["0", "2"], run.stderr


# --- values and bindings

def test_bindings_write_into_the_callers_memory() -> None:
    session = session_of(models.layer())
    x, expected = floats(3, 4), None
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    y = ort.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32)
    h = np.zeros((3, 3), np.float32)
    binding.bind_ortvalue_output("y", y)
    binding.bind_output("h", "cpu", 0, np.float32, h.shape, h.ctypes.data)
    session.run_with_iobinding(binding)
    expected = session.run(["y", "h"], {"x": x})
    np.testing.assert_array_equal(y.numpy(), expected[0])
    np.testing.assert_array_equal(h, expected[1])
    assert [v.data_ptr() for v in binding.get_outputs()] == [y.data_ptr(), h.ctypes.data]
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type([2, 3], 1))
    with pytest.raises(state.InvalidArgument, match="output y"):
        session.run_with_iobinding(binding)
    with pytest.raises(state.InvalidArgument, match="nothing"):
        binding.bind_cpu_input("nothing", x)
    with pytest.raises(state.InvalidArgument, match="cuda"):
        binding.bind_output("y", "cuda")


def test_values_of_types_numpy_has_no_name_for() -> None:
    bits = floats(3).view(np.uint32) >> 16
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits.astype(np.uint16), onnx.TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)" and value.element_type() == onnx.TensorProto.BFLOAT16
    np.testing.assert_array_equal(value.numpy().view(np.uint16), bits)
    value.update_inplace(np.zeros_like(value.numpy()))
    assert not value.numpy().any() and value.tensor_size_in_bytes() == 6


def test_a_run_in_the_background_calls_back() -> None:
    session, x, done, heard = session_of(models.layer()), floats(2, 4), threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        heard.append((results, data, error))
        done.set()
    session.run_async(None, {"x": x}, callback, "mine")
    assert done.wait(60)
    (results, data, error), = heard
    assert data == "mine" and error == "" and len(results) == 2
    done.clear()
    session.run_async(None, {"x": x.T}, callback, None)
    assert done.wait(60) and "INVALID_ARGUMENT" in heard[1][2]


def test_termination_and_profile(tmp_path: Path) -> None:
    options, stop = ort.SessionOptions(), ort.RunOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "times_")
    stop.terminate = True
    session = session_of(models.layer(), options)
    session.run(None, {"x": floats(2, 4)})
    with pytest.raises(state.Fail, match="terminate"):
        session.run(None, {"x": floats(2, 4)}, stop)
    events = [event["name"] for event in json.loads(Path(session.end_profiling()).read_text())]
    assert events == ["model_loading", "session_initialization", "model_run"]
    assert session_of(models.layer()).end_profiling() == ""


# --- what is refused

def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(state.NoSuchFile, match="nowhere"):
        ort.InferenceSession(tmp_path / "nowhere.onnx")
    with pytest.raises(FileNotFoundError):
        ort.InferenceSession(str(tmp_path / "nowhere.onnx"))
    for source in (tmp_path, str(tmp_path / "text.onnx"), b"", b"no model"):
        with pytest.raises(state.InvalidProtobuf) as info:
            ort.InferenceSession(source)
        assert isinstance(info.value, PlanishError)
    with pytest.raises(TypeError, match="Unable to load"):
        ort.InferenceSession(3)  # type: ignore[arg-type]


def test_models_with_faults() -> None:
    node = onnx.helper.make_node
    inputs, outputs = {"x": (models.FLOAT, [2])}, {"y": (models.FLOAT, [2])}
    with pytest.raises(state.NotImplemented, match="Frobnicate"):
        session_of(models.model([node("Frobnicate", ["x"], ["y"])], inputs, outputs))
    with pytest.raises(state.InvalidGraph, match=r"strange.*reads 'q'"):
        session_of(models.model([node("Relu", ["q"], ["y"], name="strange")], inputs, outputs))
    with pytest.raises(state.InvalidGraph, match=r"strange.*bitwise_and"):
        session_of(models.model([node("And", ["x", "x"], ["y"], name="strange")], inputs, outputs))
    cycle = [node("Relu", ["b"], ["a"], name="first"), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    with pytest.raises(state.InvalidGraph, match=r"first.*cycle"):
        session_of(models.model(cycle, inputs, outputs))


def test_options_that_are_refused() -> None:
    options = ort.SessionOptions()
    with pytest.raises(state.NotImplemented, match="optimized_model_filepath"):
        options.optimized_model_filepath = "out.onnx"
    with pytest.raises(state.NotImplemented, match="custom"):
        options.register_custom_ops_library("lib.so")
    with pytest.raises(AttributeError):
        options.no_such_option = 1  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="intra_op_num_threads"):
        options.intra_op_num_threads = -1
    options.intra_op_num_threads = np.int64(2)  # type: ignore[assignment]
    assert options.intra_op_num_threads == 2
    for key, value in (("numerics", "sloppy"), ("strategy", "guess"), ("disable", "fuze")):
        options = ort.SessionOptions()
        options.add_session_config_entry(f"planish.{key}", value)
        with pytest.raises(PlanishError, match=value):
            session_of(models.layer(), options)
    with pytest.raises(TypeError, match="sess_options"):
        ort.InferenceSession(models.fixed().SerializeToString(), {"threads": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="threads"):
        ort.InferenceSession(models.fixed().SerializeToString(), threads=1)


def test_other_providers_are_warned_of() -> None:
    data = models.fixed().SerializeToString()
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session = ort.InferenceSession(data, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ort.get_available_providers() == ["CPUExecutionProvider"]
    session = ort.InferenceSession(data, providers=[("CPUExecutionProvider", {"arena": 1})])
    assert session.get_provider_options() == {"CPUExecutionProvider": {"arena": "1"}}
    with pytest.raises(ValueError, match="same length"):
        ort.InferenceSession(data, providers=["CPUExecutionProvider"], provider_options=[{}, {}])
