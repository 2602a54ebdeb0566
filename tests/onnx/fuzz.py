"""Mutated model files: none may crash the process, hang, take over 2 GB, or read a file outside its folder.

    python -m tests.onnx.fuzz [COUNT [FIRST]]      10,000 from 0, if nothing is said

Every mutant has a number, which decides it. A worker process loads each and runs it on random inputs; what is
wrong with it must be an error of planish (or MemoryError, under a limit of 2 GB). A worker that dies names
the mutant it died of, and the next goes on behind it. Bait lies outside the folder, and the worker listens to
every file that is opened.
"""
from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 20          # of one mutant; more is a hang
BYTES = 2 << 30
MOST_ELEMENTS = 1 << 16   # of an input that a mutant is run on
DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_,
          "tensor(int32)": np.int32, "tensor(double)": np.float64, "tensor(uint8)": np.uint8}
NUMBERS = [0, 1, -1, 2, 3, 7, 64, 1000, -5, 2**31 - 1, -2**31, 2**31, 2**40, 2**63 - 1, -2**63]
SPECIAL = [0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")]
LOCATIONS = ["../bait.bin", "/etc/passwd", "w.bin", "link.bin", "", ".", "w.bin/..", "..\\bait.bin",
             "w.bin\0"]


# --- the models that are mutated

def write_corpus(folder: Path) -> None:
    """Models of every kind: of the conformance suite one in a few, a layer, weights beside the file."""
    from tests.onnx import models
    from tests.onnx.conformance import cases

    small = [case.model for name, case in sorted(cases().items()) if case.model is not None]
    chosen = [m for m in small[::16] if m.ByteSize() < 20_000]
    chosen += [getattr(models, n)() for n in ("layer", "pair", "defaults", "summed", "joined", "unranked")]
    for i, model in enumerate(chosen):
        (folder / f"{i:04d}.onnx").write_bytes(model.SerializeToString())
    (folder / "external.onnx").write_bytes(_external().SerializeToString())
    (folder / "w.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    (folder.parent / "bait.bin").write_bytes(bytes(256))
    (folder / "link.bin").symlink_to(folder.parent / "bait.bin")


def _external() -> onnx.ModelProto:
    from tests.onnx import models

    model = models.layer()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "16"), ("length", "48")):
        tensor.external_data.add(key=key, value=value)
    return model


# --- mutation

def mutant(number: int, corpus: list[bytes]) -> bytes:
    """The bytes of a mutant."""
    rng = random.Random(number)
    data = rng.choice(corpus)
    if rng.random() < 0.35:
        return _bytes_changed(rng, data)
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        change = rng.choice(CHANGES)
        try:
            change(rng, model)
        except (IndexError, ValueError, TypeError):
            continue  # nothing there to change like that
    return model.SerializeToString()


def _bytes_changed(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    kind = rng.randrange(5)
    for _ in range(rng.choice([1, 1, 3, 20])):
        at = rng.randrange(len(changed) or 1)
        if kind == 0:
            changed[at:at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del changed[at:at + rng.choice([1, 4, 100])]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.choice([1, 4, 100]))
        elif kind == 3:
            changed[at:at] = changed[at:at + rng.choice([10, 1000])]
        else:
            del changed[at:]
    return bytes(changed)


def _node(rng: random.Random, model: Any) -> Any:
    return rng.choice(model.graph.node)


def _names(model: Any) -> list[str]:
    graph = model.graph
    return [*(v.name for v in graph.input), *(t.name for t in graph.initializer),
            *(name for node in graph.node for name in node.output), "", "nowhere"]


def change_input(rng: random.Random, model: Any) -> None:
    node = _node(rng, model)
    node.input[rng.randrange(len(node.input))] = rng.choice(_names(model))


def change_output(rng: random.Random, model: Any) -> None:
    node = _node(rng, model)
    node.output[rng.randrange(len(node.output))] = rng.choice(_names(model))


def change_operands(rng: random.Random, model: Any) -> None:
    node = _node(rng, model)
    if rng.random() < 0.5:
        node.input.append(rng.choice(_names(model)))
    else:
        node.input.pop()


def change_operator(rng: random.Random, model: Any) -> None:
    schemas = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain})
    _node(rng, model).op_type = rng.choice([*schemas, "Frobnicate"])


def change_attribute(rng: random.Random, model: Any) -> None:
    attribute = rng.choice(_node(rng, model).attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.type == AttributeProto.INTS:
        values = [*attribute.ints, rng.choice(NUMBERS)]
        rng.shuffle(values)
        attribute.ints[:] = values[rng.randrange(2):]
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(SPECIAL)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice([b"", b"linear", b"SAME_UPPER", b"\xff\xfe", b"x" * 1000])
    elif attribute.type == AttributeProto.TENSOR:
        _change_tensor(rng, attribute.t)
    else:
        attribute.type = rng.choice(list(AttributeProto.AttributeType.values()))


def drop_attribute(rng: random.Random, model: Any) -> None:
    attributes = _node(rng, model).attribute
    del attributes[rng.randrange(len(attributes))]


def drop_node(rng: random.Random, model: Any) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def repeat_node(rng: random.Random, model: Any) -> None:
    model.graph.node.append(_node(rng, model))


def reorder_nodes(rng: random.Random, model: Any) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def change_initialiser(rng: random.Random, model: Any) -> None:
    _change_tensor(rng, rng.choice(model.graph.initializer))


def _change_tensor(rng: random.Random, tensor: Any) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        tensor.dims[:] = [*tensor.dims, rng.choice(NUMBERS)][rng.randrange(2):]
    elif kind == 1:
        tensor.data_type = rng.randrange(-1, 30)
    elif kind == 2:
        tensor.raw_data = rng.randbytes(len(tensor.raw_data) + rng.choice([0, 0, 1, 4]))
    elif kind == 3:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", rng.choice(LOCATIONS)), ("offset", str(rng.choice(NUMBERS))),
                           ("length", str(rng.choice([4, 48, *NUMBERS])))):
            tensor.external_data.add(key=key, value=value)
    else:
        dtype = {TensorProto.INT64: np.int64, TensorProto.FLOAT: np.float32}[tensor.data_type]
        choices, count = NUMBERS if dtype is np.int64 else SPECIAL, len(tensor.raw_data) // 8
        tensor.raw_data = np.array([rng.choice(choices) for _ in range(count)], dtype).tobytes()


def change_type(rng: random.Random, model: Any) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    tensor = value.type.tensor_type
    kind = rng.randrange(4)
    if kind == 0:
        tensor.elem_type = rng.randrange(-1, 30)
    elif kind == 1:
        dim = rng.choice(tensor.shape.dim)
        dim.dim_value = rng.choice(NUMBERS)
    elif kind == 2:
        rng.choice(tensor.shape.dim).dim_param = rng.choice(["N", "N + 1", "N // 0", "__import__", "\n", "é"])
    else:
        value.ClearField("type")


def change_opset(rng: random.Random, model: Any) -> None:
    model.opset_import[0].version = rng.choice([0, 1, 5, 6, 9, 13, 28, 1000, -1])


def change_domain(rng: random.Random, model: Any) -> None:
    _node(rng, model).domain = rng.choice(["", "ai.onnx", "ai.onnx.ml", "acme"])


def add_function(rng: random.Random, model: Any) -> None:
    """A function under the name of one of the model's operators, which calls that operator: itself."""
    node = _node(rng, model)
    function = model.functions.add(name=node.op_type, domain=node.domain)
    function.input.extend(node.input)
    function.output.extend(node.output)
    function.node.append(node)
    function.opset_import.extend(model.opset_import)


CHANGES = [change_input, change_output, change_operands, change_operator, change_attribute, change_attribute,
           drop_attribute, drop_node, repeat_node, reorder_nodes, change_initialiser, change_initialiser,
           change_type, change_type, change_opset, change_domain, add_function]


# --- the worker

def work(folder: Path, first: int, count: int) -> None:
    """Try mutants one by one, and print a line of JSON for each."""
    import planish.onnx as ort

    corpus = [path.read_bytes() for path in sorted(folder.glob("*.onnx"))]
    for data in corpus[::8]:  # everything that is imported at first use is
        try_model(ort, data, folder / "now", 0)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)
    opened = _listen(folder)
    for number in range(first, first + count):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        outcome = try_model(ort, mutant(number, corpus), folder / "now", number)
        if opened:
            outcome = f"FAULT opened {', '.join(opened)}"
            opened.clear()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"number": number, "outcome": outcome, "peak": peak}), flush=True)


def try_model(ort: Any, data: bytes, path: Path, number: int) -> str:
    """What became of a model: "ran", the name of an error that is allowed, or FAULT and the error."""
    from planish.errors import PlanishError

    path.write_bytes(data)
    stage = "load"
    try:
        session = ort.InferenceSession(path)
        feeds = random_feeds(session, np.random.default_rng(number))
        stage = "run"
        if feeds is not None:
            session.run(None, feeds)
            return "ran"
        return "loaded"
    except PlanishError as error:
        return f"{stage}: {type(error).__name__}"
    except MemoryError:
        return f"{stage}: MemoryError"
    except Exception as error:  # whatever else it is, it is a finding
        return f"FAULT {stage}: {type(error).__name__}: {error}"[:500]


def random_feeds(session: Any, rng: np.random.Generator) -> dict[str, np.ndarray] | None:
    """Inputs of the sizes that the model says, 2 where it says none; None for other types or very large
    ones."""
    feeds = {}
    for one in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in one.shape]
        fits = all(0 <= n <= MOST_ELEMENTS for n in shape) and prod(shape) <= MOST_ELEMENTS
        if one.type not in DTYPES or not fits:
            return None
        feeds[one.name] = rng.integers(0, 3, shape).astype(DTYPES[one.type])
    return feeds


def _listen(folder: Path) -> list[str]:
    """A list that gets every file that is opened and is neither in the folder nor the interpreter's own."""
    opened: list[str] = []
    cache = os.environ["PLANISH_CACHE_DIR"]
    own = tuple(map(str, (folder, cache, ROOT / "planish", ROOT / "tests", sys.prefix, sys.base_prefix,
                          "/proc/self", "/sys/fs/cgroup")))

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if not path.startswith(own):
                opened.append(path)
    sys.addaudithook(hear)
    return opened


# --- the workers' boss

def run(count: int, first: int = 0) -> tuple[Counter[str], dict[int, str], int]:
    """Try mutants: how often each outcome came, number -> fault, and the peak of resident kilobytes."""
    outcomes: Counter[str] = Counter()
    faults: dict[int, str] = {}
    peak, end = 0, first + count
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "models"
        folder.mkdir()
        write_corpus(folder)
        while first < end:
            done = first
            for found in _worker(folder, first, end - first):
                done, peak = found["number"] + 1, max(peak, found.get("peak", 0))
                outcome = found["outcome"]
                if outcome.startswith("FAULT"):
                    faults[found["number"]], outcome = outcome, "FAULT"
                outcomes[outcome] += 1
            first = max(done, first + 1)
    return outcomes, faults, peak


def _worker(folder: Path, first: int, count: int) -> Iterator[dict[str, Any]]:
    """What a worker says; at last, where it died, of which mutant."""
    environment = {**os.environ, "PLANISH_CACHE_DIR": str(folder.parent / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.onnx.fuzz", "--worker", str(folder), str(first), str(count)]
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as told, \
            subprocess.Popen(command, stdout=pipe, stderr=told, text=True, env=environment) as process:
        number = first
        assert process.stdout is not None
        for line in process.stdout:
            found = json.loads(line)
            number = found["number"] + 1
            yield found
        if process.wait():
            told.seek(0)
            said = told.read()[-2000:]
            kind = "hangs" if process.returncode == -signal.SIGPROF else f"dies of {process.returncode}"
            yield {"number": number, "outcome": f"FAULT {kind}: {said}"}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--worker"]:
        work(Path(arguments[1]), int(arguments[2]), int(arguments[3]))
        return 0
    numbers = [int(text) for text in arguments]
    outcomes, faults, peak = run(*(numbers or [10_000]))
    for number, fault in faults.items():
        print(f"{number}: {fault}")
    print(dict(outcomes.most_common()), f"peak {peak / 1e6:.2f} GB, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
