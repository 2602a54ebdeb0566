"""How the tests of this folder run a captured graph, and what they compare it with."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from planish.capture.onnx import load_graph
from planish.compiler import Compiled, compile_graph
from planish.ir import Graph, interpret, verify

STRATEGIES = ("interpret", "native")
EPSILONS = {np.dtype(np.float16): 1e-3, np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}


def run(graph: Graph, feeds: Mapping[str, Any], strategy: str = "interpret") -> list[np.ndarray]:
    """The outputs of a graph on named arrays.

    Inputs that the graph took as constants may be among the feeds.
    """
    arrays = [feeds[node.attributes.name] for node in graph.inputs]
    if strategy == "interpret":
        return list(interpret(verify(graph), arrays))
    if strategy == "native":
        return list(native(graph)(*arrays))
    raise ValueError(strategy)


def corrected_runtime() -> bool:
    """ONNX Runtime 1.23, the last for Python 3.10, still computed a few things otherwise."""
    onnxruntime = pytest.importorskip("onnxruntime")
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) > (1, 23)


@lru_cache(maxsize=8)
def native(graph: Graph) -> Compiled:
    """Compiled once for all sizes a test asks for."""
    return compile_graph(graph)


def make_model(nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Sequence[str], *, opset: int = 17,
               initializers: Mapping[str, np.ndarray] | None = None, functions: Sequence[Any] = (),
               domains: Mapping[str, int] | None = None, ir_version: int = 9) -> Any:
    """A model of nodes.

    `inputs`: name -> array (its dtype and shape) or (dtype, shape). Outputs have no declared type.
    """
    def value(name: str, of: Any) -> Any:
        dtype, shape = of if isinstance(of, tuple) else (of.dtype, of.shape)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
    graph = helper.make_graph(
        list(nodes),
        "test",
        [value(n, v) for n, v in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [onnx.numpy_helper.from_array(v, n) for n, v in (initializers or {}).items()],
    )
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, v) for d, v in (domains or {}).items()),
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=ir_version)


def one_node(
    op_type: str,
    arrays: Sequence[np.ndarray | None],
    *,
    fixed: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 17,
    **attributes: Any,
) -> tuple[Any, dict[str, np.ndarray]]:
    """A model of one node, and its feeds. Operands numbered in `fixed` are initialisers, None is left out."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], name="it", **attributes)
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    constants = {f"x{i}": given[f"x{i}"] for i in fixed}
    feeds = {n: a for n, a in given.items() if n not in constants}
    model = make_model([node], feeds, [f"y{i}" for i in range(outputs)], opset=opset, initializers=constants)
    return model, feeds


def reference(model: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(feeds))


def onnxruntime_outputs(model: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # or every session has threads that wait for work, spinning
    data = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))


def assert_same(got: Sequence[np.ndarray], expected: Sequence[Any], factor: float = 8) -> None:
    """Dtypes and shapes equal; floats within `factor` epsilons, relative to the largest magnitude."""
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        want = np.asarray(other)
        assert (one.dtype, one.shape) == (want.dtype, want.shape)
        epsilon = EPSILONS.get(want.dtype, 8e-3 if want.dtype.kind not in "iub" else None)
        if epsilon is None:
            np.testing.assert_array_equal(one, want)
        else:
            wide = want.astype(np.float64)
            scale = np.max(np.abs(wide[np.isfinite(wide)]), initial=0)
            np.testing.assert_allclose(
                one.astype(np.float64), wide, rtol=factor * epsilon, atol=factor * epsilon * scale
            )


def check(model: Any, feeds: Mapping[str, np.ndarray], factor: float = 8) -> Graph:
    """Our answer equals the reference evaluator's, under each strategy."""
    graph = load_graph(model)
    expected = reference(model, feeds)
    for strategy in STRATEGIES:
        assert_same(run(graph, feeds, strategy), expected, factor)
    return graph
