"""oneDNN of its wheel as a candidate: its kernels have the ops' meaning; who has no wheel, or a broken one,
hears of it."""
from __future__ import annotations

import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planish
from planish import knobs
from planish.compiler import Options, SegmentedProgram, compile_graph
from planish.errors import LibraryError, LibraryWarning
from planish.ir import Graph, input_node, parse_graph, print_graph
from planish.ops import OPS, Sample
from planish.ops.rules import ops
from planish.runtime.threads import get_num_threads
from planish.tuning import library, machine, onednn, onednn_kernels, search, trial, tune
from planish.types import FLOAT32, FLOAT64, TensorType
from tests.native.harness import check
from tests.ops.cases import samples_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dnnl() -> onednn.Library:
    try:
        return onednn.library()
    except LibraryError as error:
        pytest.skip(str(error))


def ran(function: Callable[..., np.ndarray], op: str, sample: Sample, **how: Any) -> np.ndarray:
    """A library's kernel on a sample."""
    attributes = OPS[op].make_attributes(sample.attributes)
    parameters = {f.name: getattr(attributes, f.name) for f in fields(attributes)}
    return function(*sample.operands, **parameters, **how)


SAMPLES = [(op, sample) for op in ("dot_general", "conv") for sample in samples_of(OPS[op], FLOAT32)
           if sample.attributes.get("result") is None
           and not any(d != 1 for d in sample.attributes.get("lhs_dilation", ()))]
KERNELS = {"dot_general": [onednn_kernels.product],
           "conv": [onednn_kernels.convolution, onednn_kernels.plain_convolution]}


@pytest.mark.parametrize("op, sample", SAMPLES, ids=[f"{op}, {s.label}" for op, s in SAMPLES])
def test_it_is_the_op(dnnl: onednn.Library, op: str, sample: Sample) -> None:
    for function in KERNELS[op]:
        for how in ({}, {"is_constant": True, "threads": 1}, {"is_constant": True, "threads": 2}):
            made = ran(function, op, sample, **how)
            assert made.flags.c_contiguous and made.flags.writeable
            check(OPS[op], [sample], [made])


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def conv_attributes(rank: int, **changes: Any) -> dict[str, Any]:
    ones = (1,) * rank
    return {"strides": ones, "padding": ((0, 0),) * rank, "lhs_dilation": ones, "rhs_dilation": ones,
            "groups": 1, **changes}


WINDOWS = {
    "two groups, strides, uneven padding": ((2, 10, 13, 11), (6, 5, 3, 2), {
        "groups": 2, "strides": (2, 3), "padding": ((1, 0), (0, 2))}),
    "groups of more than a register": ((1, 36, 9, 7), (54, 18, 3, 3), {
        "groups": 2, "padding": ((1, 1), (1, 1))}),
    "depthwise with a multiplier": ((1, 5, 9, 7), (15, 1, 3, 3), {"groups": 5, "rhs_dilation": (2, 1)}),
    "padding beyond the kernel": ((1, 3, 5, 4), (4, 3, 2, 2), {"padding": ((3, 2), (4, 0))}),
    "one axis, dilated": ((3, 7, 29), (9, 7, 4), {
        "rhs_dilation": (3,), "padding": ((2, 5),), "strides": (2,)}),
    "three axes, groups": ((1, 6, 5, 7, 6), (4, 3, 2, 3, 1), {
        "groups": 2, "strides": (1, 2, 3), "padding": ((1, 0), (0, 1), (2, 2))}),
    "many channels": ((1, 67, 6, 5), (131, 67, 1, 1), {}),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(dnnl: onednn.Library, name: str) -> None:
    x, w, changes = WINDOWS[name]
    sample = Sample((random(*x), random(*w, seed=1)), conv_attributes(len(x) - 2, **changes), name)
    for function in KERNELS["conv"]:
        check(OPS["conv"], [sample], [ran(function, "conv", sample, is_constant=True)])


def test_special_values(dnnl: onednn.Library) -> None:
    a, b = random(9, 17), random(17, 13, seed=1)
    a[2, 3], a[4, 5], a[4, 6], a[7, 0], b[0, 0] = np.nan, np.inf, -np.inf, 1e38, 1e38
    made = onednn_kernels.product(a, b, **product_of(2), is_constant=True)
    with np.errstate(all="ignore"):
        expected = a @ b
    assert np.isnan(made[2]).all() and np.isnan(made[4]).any() and np.isinf(made[7, 0])
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    small = np.full((3, 1), 1e-40, np.float32)  # is no number of full precision, and not flushed
    assert np.array_equal(onednn_kernels.product(small, np.ones((1, 2), np.float32), **product_of(2)),
                          np.full((3, 2), 1e-40, np.float32))


def product_of(rank: int) -> dict[str, Any]:
    return {"lhs_contract": (rank - 1,), "rhs_contract": (rank - 2,), "lhs_batch": tuple(range(rank - 2)),
            "rhs_batch": tuple(range(rank - 2)), "alpha": 1.0, "result": None}


@pytest.mark.parametrize("look", [
    lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a[::2, ::3], lambda a: np.asfortranarray(a),
    lambda a: np.broadcast_to(a[:1], a.shape), lambda a: np.broadcast_to(a[:, :1], a.shape),
    lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape)])
def test_however_arrays_lie(dnnl: onednn.Library, look: Callable[[np.ndarray], np.ndarray]) -> None:
    a, b = look(random(22, 18)), look(random(18, 22, seed=1))
    b = b[:a.shape[1]] if b.shape[0] >= a.shape[1] else look(random(*a.shape[::-1]).T).T
    made = onednn_kernels.product(a, b, **product_of(2))
    np.testing.assert_allclose(made, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_constants_are_laid_out_once_and_forgotten_with_their_array(dnnl: onednn.Library) -> None:
    x, found = random(1, 5, 6, 6), []
    for seed in range(20):  # a new array may lie where the last one lay, and have its id
        w = random(7, 5, 3, 3, seed=seed)
        sample = Sample((x, w), conv_attributes(2), f"seed {seed}")
        once = ran(onednn_kernels.convolution, "conv", sample, is_constant=True)
        check(OPS["conv"], [sample], [once])
        assert np.array_equal(ran(onednn_kernels.convolution, "conv", sample, is_constant=True), once)
        found.append(once)
    assert len({y.tobytes() for y in found}) == 20
    w[...] = 0                       # who says that it never changes is taken at their word
    assert np.array_equal(ran(onednn_kernels.convolution, "conv", sample, is_constant=True), once)
    assert not ran(onednn_kernels.convolution, "conv", sample).any()


@pytest.mark.parametrize("let_go", [lambda arrays: arrays.clear(), lambda arrays: onednn_kernels.release()])
def test_nothing_is_kept_too_long(dnnl: onednn.Library, monkeypatch: pytest.MonkeyPatch,
                                  let_go: Callable[[list[np.ndarray]], None]) -> None:
    made: list[weakref.ref[np.ndarray]] = []
    right = onednn_kernels.aligned
    monkeypatch.setattr(onednn_kernels, "aligned", lambda n: made.append(weakref.ref(a := right(n))) or a)
    x, arrays = random(1, 5, 6, 6), [random(7, 5, 3, 3)]
    for _ in range(2):
        ran(onednn_kernels.convolution, "conv", Sample((x, arrays[0]), conv_attributes(2)), is_constant=True)
    assert [ref() is not None for ref in made] == [True]
    let_go(arrays)
    assert made[0]() is None


def test_threads_take_turns_and_leave_openmps_setting(dnnl: onednn.Library) -> None:
    before, faults = dnnl.dnnl.omp_get_max_threads(), []
    given = [(random(1, 16, 9, 9, seed=i), random(24, 16, 3, 3, seed=9 + i)) for i in range(4)]
    samples = [Sample(arrays, conv_attributes(2)) for arrays in given]
    expected = [ran(onednn_kernels.convolution, "conv", sample, threads=2) for sample in samples]

    def work(i: int) -> None:
        for _ in range(30):
            made = ran(onednn_kernels.convolution, "conv", samples[i], is_constant=True, threads=2)
            if not np.array_equal(made, expected[i]):
                faults.append(i)
    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not faults and dnnl.dnnl.omp_get_max_threads() == before


FORKED = """
import os, signal, numpy as np
from planish.tuning import onednn_kernels
def product(threads):
    a = np.ones((300, 300), np.float32)
    return onednn_kernels.product(a, a, lhs_contract=(1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=(),
                                  alpha=1.0, result=None, threads=threads)
product(2)
if not (child := os.fork()):
    signal.alarm(20)
    os._exit(0 if (product(2) == 300).all() else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_it_runs_in_a_child_after_a_fork(dnnl: onednn.Library) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], cwd=ROOT, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# --- in a program

@pytest.fixture
def onednn_wins(dnnl: onednn.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """oneDNN is the only library and wins every contest."""
    right = library.libraries_of
    monkeypatch.setattr(trial, "moves", lambda *kernel: [])
    monkeypatch.setattr(tune, "libraries_of",
                        lambda node: [n for n in right(node) if n.startswith("onednn")])
    monkeypatch.setattr(search.Contest, "_duel", won)
    monkeypatch.setattr(search, "glance", lambda best, ready: [0.9 + 0.1 * i for i in range(len(ready))])
    with knobs.override(cache_dir=str(tmp_path)):
        yield


def won(contest: search.Contest, name: object, one: object, veto: bool) -> None:
    """Each contest is won by who looks fastest, but never by the library strategy."""
    has_won = name != "library strategy"
    contest.tried.append(search.Tried(str(name), 0.5 if has_won else 2.0, "won" if has_won else "slower"))
    if has_won:
        contest.name, contest.best, contest.speedup = name, one, contest.speedup * 2


W, V = planish.freeze(random(12, 6, 3, 3)), planish.freeze(random(12, 40))


def model_graph() -> Graph:
    from planish.ir import constant

    x = input_node("x", TensorType(FLOAT32, (2, 6, 11, 9)))
    y = ops.maximum(ops.conv(x, constant(np.asarray(W)), **conv_attributes(2, padding=((1, 1), (0, 1)))), 0.0)
    z = ops.matmul(ops.reduce_sum(y, axes=(2, 3)), constant(np.asarray(V)))
    return Graph((x,), (ops.tanh(z),), name="model")


def test_a_program_by_onednn(onednn_wins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x = model_graph(), random(2, 6, 11, 9)
    expected = compile_graph(graph)(x)[0]
    compiled = compile_graph(graph, Options(mode="max-autotune"))
    assert isinstance(compiled, SegmentedProgram)
    version = onednn.library().version
    found = {f.winner: f for f in compiled.report.tuning if f.kind == "op"}
    assert set(found) == {f"onednn {version}: conv", f"onednn {version}: dot_general"}
    assert all(f.speedup == 2 and f.tried[0].candidate == f.winner for f in found.values())
    hosts = " ".join(compiled.report.hosts)
    assert "onednn_conv(" in hosts and "onednn_dot_general(" in hosts
    assert all(dict(n.attributes.function.parameters)["is_constant"] for n in compiled.plan.hosts)
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-5, atol=1e-5)
    again = compile_graph(graph, Options(mode="max-autotune"))
    assert all(f.remembered for f in again.report.tuning)
    assert np.array_equal(again(x)[0], compiled(x)[0])
    text = print_graph(again.optimized, notes=False)
    parsed = parse_graph(text, {"w0": np.asarray(W), "w1": np.asarray(V)})
    assert print_graph(parsed, notes=False) == text
    without_it(monkeypatch)
    plain = compile_graph(graph, Options(mode="max-autotune"))
    assert not any(f.remembered for f in plain.report.tuning if f.kind != "kernel")
    assert not plain.report.hosts and np.array_equal(plain(x)[0], expected)
    with pytest.raises(LibraryError, match=r"oneDNN is not installed: pip install 'planish\[onednn\]'"):
        compile_graph(graph, Options(decisions=again.options.decisions))


def without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no wheel were installed."""
    monkeypatch.setattr(onednn, "_files", lambda: iter(()))
    monkeypatch.setattr(onednn, "library", onednn.library.__wrapped__)
    monkeypatch.setattr(machine, "has_onednn", machine.has_onednn.__wrapped__)
    monkeypatch.setattr(library, "has_onednn", machine.has_onednn)


def test_what_it_does_not_have_is_not_offered(dnnl: onednn.Library) -> None:
    def offered(dtype: Any, **changes: Any) -> list[str]:
        x, w = (input_node(n, TensorType(dtype, s)) for n, s in (("x", (1, 4, 9, 9)), ("w", (6, 4, 3, 3))))
        return [name for name in library.libraries_of(ops.conv(x, w, **conv_attributes(2, **changes)))
                if name.startswith("onednn")]
    assert offered(FLOAT32) == ["onednn_conv", "onednn_conv_plain"]
    assert offered(FLOAT64) == [] == offered(FLOAT32, lhs_dilation=(2, 2))


def test_the_number_of_threads(dnnl: onednn.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(onednn.Library, "most_threads", lambda self, count: asked.append(count) or count)
    a = random(4, 4)
    onednn_kernels.product(a, a, **product_of(2))
    onednn_kernels.product(a, a, **product_of(2), threads=3)
    assert asked == [get_num_threads(), 3]


@pytest.mark.parametrize("threads, is_rested", [(1, False), (2, True)])
def test_spinning_threads_are_waited_for(onednn_wins: None, monkeypatch: pytest.MonkeyPatch, threads: int,
                                         is_rested: bool) -> None:
    rests: list[float] = []
    monkeypatch.setattr(tune, "sleep", rests.append)
    compile_graph(model_graph(), Options(mode="max-autotune", threads=threads))
    assert set(rests) == ({tune.SPIN} if is_rested else set())


# --- finding it

def test_without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    without_it(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not machine.has_onednn() and "onednn" not in machine.libraries()
    with pytest.raises(LibraryError, match="oneDNN is not installed"):
        onednn.library()


def wheel_with(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    without_it(monkeypatch)
    monkeypatch.setattr(onednn, "_files", lambda: iter([("onednn", str(path))]))


def test_a_library_that_can_not_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / onednn.FILE).write_bytes(b"no library")
    wheel_with(monkeypatch, tmp_path / onednn.FILE)
    with pytest.warns(LibraryWarning, match=r"oneDNN of onednn can't be loaded: .*goes on without oneDNN"):
        assert not machine.has_onednn()
    with pytest.raises(LibraryError, match=r"Mend or uninstall onednn; pip install .* takes onednn-cpu-gomp"):
        onednn.library()


def test_another_library_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel_with(monkeypatch, Path(sys.executable))
    with pytest.raises(LibraryError, match="can't be loaded"):
        onednn.library()


def test_threads_that_can_not_be_counted(dnnl: onednn.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel_with(monkeypatch, Path(dnnl.path))
    monkeypatch.setattr(onednn, "_OPENMP", 512)
    monkeypatch.setitem(onednn._RUNTIMES, 2, "SYCL's threads")
    with pytest.raises(LibraryError, match=r"is built for SYCL's threads, whose number planish can't set"):
        onednn.library()


def test_nobody_looks_for_it_unasked() -> None:
    code = """
import sys, numpy as np, planish
from planish.compiler import Options, compile_graph
graph = planish.make_graph(lambda x: x @ x)(np.ones((4, 4), np.float32))
compile_graph(graph, Options(strategy="library"))
print(*(name for name in sys.modules if name.startswith(("planish.tuning.onednn", "importlib.metadata"))))"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split() == [], done.stdout + done.stderr
