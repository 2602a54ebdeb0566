"""Weights of a mapped file, and the compiler, are in memory only while they are read."""
from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.host import host
from planish.runtime.kept import SMALLEST
from planish.runtime.resident import copy_and_leave, leave, leave_libraries, loaded_libraries

onnx = pytest.importorskip("onnx")
SMAPS = Path("/proc/self/smaps")
linux = pytest.mark.skipif(not SMAPS.exists(), reason="needs Linux's /proc")
rng = np.random.default_rng()


def resident(name: str, kinds: str) -> int:
    """Bytes in memory of the mappings of a file whose permissions are among `kinds`."""
    total, ours = 0, False
    for line in SMAPS.read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            ours = name in line and words[1] in kinds.split()
        elif words[0] == "Rss:" and ours:
            total += 1024 * int(words[1])
    return total


def mapped(path: Path, access: int, count: int = 3 << 20) -> tuple[np.ndarray, np.ndarray]:
    """Random bytes in a file of their own, and a view of them that starts on no boundary."""
    content = rng.integers(0, 256, count, np.uint8)
    content.tofile(path)
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=access)
    return content[37:], np.frombuffer(memoryview(mapping)[37:], np.uint8)


@linux
def test_pages_of_a_file_are_given_back_and_come_again(tmp_path):
    content, view = mapped(tmp_path / "weights", mmap.ACCESS_READ)
    for _ in range(2):
        np.testing.assert_array_equal(view, content)
        assert resident(str(tmp_path), "r--s") >= view.nbytes
        leave(view)
        assert resident(str(tmp_path), "r--s") == 0


@linux
def test_a_copy_leaves_what_it_has_read(tmp_path):
    content, view = mapped(tmp_path / "weights", mmap.ACCESS_READ, 18 << 20)
    copy = np.empty_like(content)
    copy_and_leave(view, copy)
    np.testing.assert_array_equal(copy, content)
    assert resident(str(tmp_path), "r--s") == 0
    copy_and_leave(content[::2], copy[:content[::2].size])
    np.testing.assert_array_equal(copy[:content[::2].size], content[::2])


def test_nothing_that_was_written_is_lost(tmp_path):
    _, view = mapped(tmp_path / "weights", mmap.ACCESS_COPY)
    view[:] = 7
    leave(view)
    assert (view == 7).all()


@linux
def test_the_compiler_is_given_back_and_comes_again():
    triple = host().triple
    for k in range(2):
        assert emit_object(f"define i32 @f{k}() {{ ret i32 {k} }}", triple)
        used = resident("libllvmlite", "r-xp r--p")
        leave_libraries(loaded_libraries("libllvmlite"))
        assert resident("libllvmlite", "r-xp r--p") < used / 2


@linux
def test_all_libraries_are_given_back_and_come_again():
    a = rng.standard_normal((200, 200))
    expected = np.linalg.inv(a)
    used = resident(".so", "r-xp r--p")
    leave_libraries(loaded_libraries())
    assert resident(".so", "r-xp r--p") < used / 2
    assert (np.linalg.inv(a) == expected).all()


@linux
def test_nothing_the_process_wrote_to_is_given_back():
    """Against the system's own count of pages that are the process's (proc_pid_smaps(5))."""
    head = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+p .*\n(?:[A-Z].*\n)*?Anonymous: +(\d+) kB", re.MULTILINE)
    own = {int(low, 16): int(kb) for low, _, kb in head.findall(Path("/proc/self/smaps").read_text())}
    found = loaded_libraries()
    assert len({one.path for one in found}) > 3 and any(one.is_code for one in found)
    assert [one for one in found if own.get(one.start)] == []


@linux
def test_the_compiler_in_windows_takes_less():
    script = """
from planish.codegen.llvm.emit import emit_object, llvm_is_loaded
from planish.codegen.llvm.host import host
from planish.runtime.compiler_memory import leave_llvm, load_llvm
from tests.runtime.test_resident import resident
import sys
if len(sys.argv) > 1:
    load_llvm()
    load_llvm()
    assert llvm_is_loaded()
emit_object("define i32 @f() { ret i32 1 }", host().triple)
used = resident("libllvmlite", "r-xp")
leave_llvm()
left = resident("libllvmlite", "r-xp")
emit_object("define i32 @g() { ret i32 2 }", host().triple)
print(used, left)
"""
    def run(*arguments):
        done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True,
                              text=True, timeout=60)
        return [int(word) for word in done.stdout.split()]

    plain, (used, left) = run()[0], run("windows")
    assert used < 0.6 * plain and left == 0


def product(path: Path, size: int) -> np.ndarray:
    """A model of y = x @ w + table[i] in a file; returns w."""
    from onnx import TensorProto, helper, numpy_helper
    w = rng.standard_normal((size, size)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Gather", ["w", "i"], ["row"]),
             helper.make_node("Add", ["xw", "row"], ["y"])]
    floats, ints = TensorProto.FLOAT, TensorProto.INT64
    graph = helper.make_graph(
        nodes, "product", [helper.make_tensor_value_info("x", floats, ["n", size]),
                           helper.make_tensor_value_info("i", ints, [1])],
        [helper.make_tensor_value_info("y", floats, ["n", size])], [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return w


def test_a_session_outlives_what_becomes_of_its_file(tmp_path):
    from planish.onnx import InferenceSession
    path = tmp_path / "model.onnx"
    w = product(path, 256)
    session = InferenceSession(path)
    feeds = {"x": rng.standard_normal((3, 256)).astype(np.float32), "i": np.array([5])}
    expected = feeds["x"] @ w + w[5]
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-4)
    path.write_bytes(b"gone")      # in the same place: what is mapped is no longer there
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-4)


def test_a_file_that_was_written_to_is_not_read_again(tmp_path):
    from planish.onnx import InferenceSession
    path = tmp_path / "model.onnx"
    product(path, 256)
    session = InferenceSession(path)   # its size is open: it is compiled at the first call
    path.write_bytes(b"gone")
    feeds = {"x": rng.standard_normal((3, 256)).astype(np.float32), "i": np.array([5])}
    with pytest.raises(Exception, match=r"model\.onnx was written to after it was loaded"):
        session.run(None, feeds)


def test_a_file_that_was_replaced_is_still_there(tmp_path):
    from planish.onnx import InferenceSession
    path, new = tmp_path / "model.onnx", tmp_path / "new.onnx"
    w = product(path, 256)
    session = InferenceSession(path)
    product(new, 128)
    new.replace(path)
    feeds = {"x": rng.standard_normal((3, 256)).astype(np.float32), "i": np.array([5])}
    np.testing.assert_allclose(session.run(None, feeds)[0], feeds["x"] @ w + w[5], rtol=1e-4, atol=1e-4)


PEAK = """
import sys, threading
from pathlib import Path
import numpy as np
import onnx
import planish
from planish.onnx import InferenceSession
def figure(name):
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0]) * 1024
planish.jit(np.tanh)(np.ones((300, 300), np.float32))
before = figure("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
InferenceSession(sys.argv[1]).run(None, {"x": np.ones((3, 1000), np.float32)})
for thread in threading.enumerate():
    if thread.name == "planish keeps constants":
        thread.join()
print(figure("VmHWM") - before)
"""


@linux
def test_weights_that_are_packed_are_in_memory_once(tmp_path):
    """Also at the peak, and while they are digested and written to the cache, but for some that are read just
    then. The first process makes the code as well."""
    from onnx import TensorProto, helper, numpy_helper
    shapes = [(1000, 1000)] * 6 + [(6000, 1000), (6000, 1000)]  # of these one has its columns one by one
    weights = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), f"w{k}")
               for k, shape in enumerate(shapes)]
    nodes = [helper.make_node("Gemm", [f"x{k}" if k else "x", f"w{k}"], [f"x{k + 1}"], transB=int(k < 7))
             for k in range(8)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, n])
            for name, n in (("x", 1000), ("x8", 1000))]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    path, cache = tmp_path / "model.onnx", tmp_path / "cache"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True,
                               check=True, env={**os.environ, "PLANISH_CACHE_DIR": str(cache)})
        kept, = (file for file in cache.rglob("*") if file.is_file() and file.stat().st_size > SMALLEST)
        kept.unlink()
    assert path.stat().st_size < int(found.stdout) < 1.5 * path.stat().st_size
