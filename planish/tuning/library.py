"""Ops by the kernels of a library: OpenBLAS as NumPy ships it, oneDNN of its wheel, and torch's.

In: an optimised graph, and which ops go to which library. Out: the graph with these as host ops, which run
between segments of native code. oneDNN takes part where its wheel is installed; torch only where the process
has loaded it: a NumPy program does not import it to be tuned.

A host function goes by `LIBRARY_KERNEL`: `onednn_conv` is the kernel `conv` of oneDNN.
"""
from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np

from planish.ir import Graph, Node, input_node
from planish.ir.encoding import encode
from planish.ir.graph import rebuild
from planish.ir.node import constant_of, make_node
from planish.ops.contract import free_axes
from planish.ops.host import HostAttributes, HostFunction, host_function
from planish.ops.record import get_op
from planish.schedule.scalars import hinted
from planish.tuning import onednn, onednn_kernels
from planish.tuning.machine import has_onednn, versions
from planish.types import FLOAT32, FLOAT64, DType, is_static

Hint = dict[str, int]


def libraries_of(node: Node) -> list[str]:
    """The libraries that have a kernel for an op, by the name of the host function."""
    if node.op.name not in TAKEN or not _is_plain(node):
        return []
    found = [name for name, (op, _) in KERNELS.items() if op == node.op.name]
    return [name for name in found if LIBRARIES[library_of(name)](node)]


def library_of(name: str) -> str:
    return name.partition("_")[0]


def titled(name: str) -> str:
    """A host function with its library's version: `onednn 3.2.0: conv`. Other text as it is."""
    if name not in KERNELS:
        return name
    library, _, kernel = name.partition("_")
    return f"{library} {versions()[library]}: {kernel}"


def _is_plain(node: Node) -> bool:
    """Whether an op is one that libraries have: of floats, and a convolution that takes its operand as it is.
    """
    a, dtype = node.attributes, node.operands[0].dtype
    if dtype not in (FLOAT32, FLOAT64) or a.result not in (None, dtype):
        return False
    return node.op.name != "conv" or (1 <= len(a.strides) <= 3 and all(d == 1 for d in a.lhs_dilation)
                                      and all(is_static(p) for pair in a.padding for p in pair))


def _is_onednns(node: Node) -> bool:
    """Whether oneDNN is there and has the op: of float32."""
    return node.operands[0].dtype == FLOAT32 and has_onednn()


def op_key(node: Node, hint: Hint) -> str:
    """Names an op with its attributes and the types of its operands at the hinted sizes: equal ops have equal
    keys in every process."""
    operands = [(o.dtype.name, [hinted(d, hint) for d in o.shape], o.op.name == "constant")
                for o in node.operands]
    form = [node.op.name, [encode(getattr(node.attributes, f.name)) for f in fields(node.attributes)],
            operands]
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:32]


def with_libraries(graph: Graph, ops: Mapping[str, str], hint: Hint, threads: int = 0) -> Graph:
    """The graph with the ops of these keys run by host functions, on so many threads (0: as many as native
    code uses) where that can be said. LibraryError where a library is not there any more."""
    if not ops:
        return graph

    def change(node: Node, operands: tuple[Node, ...]) -> Node:
        name = ops.get(op_key(node, hint)) if node.op.name in TAKEN else None
        return rebuild(node, operands) if name is None else by_library(node, operands, name, threads)
    return graph.map(change)


def by_library(node: Node, operands: Sequence[Node], name: str, threads: int = 0) -> Node:
    """The host op that stands for an op."""
    if library_of(name) == "onednn":
        onednn.library()
    function = HostFunction(name, tuple(_parameters(node, name, threads).items()))
    return make_node(get_op("host"), tuple(operands), HostAttributes(function, (node.tensor,)))


def _parameters(node: Node, name: str, threads: int) -> dict[str, Any]:
    """What the host function gets beside its arrays."""
    own = {f.name: getattr(node.attributes, f.name) for f in fields(node.attributes)}
    if library_of(name) != "onednn":
        return own
    return own | {"is_constant": node.operands[1].op.name == "constant", "threads": threads}


def takes_turns(name: str) -> bool:
    """Whether a host function's threads are OpenMP's, which spin after it: native code around it had better
    run on the same."""
    return library_of(name) in ("onednn", "torch")


def alone(node: Node) -> Graph:
    """The graph of one op; operands that are constants stay so, for native code packs them."""
    operands = tuple(constant_of(o.attributes) if o.op.name == "constant" else input_node(f"x{i}", o.tensor)
                     for i, o in enumerate(node.operands))
    inputs = tuple(o for o in operands if o.op.name == "input")
    return Graph(inputs, (make_node(node.op, operands, node.attributes),), name="alone")


def kernel_of(node: Node, name: str, threads: int = 0) -> Callable[..., np.ndarray]:
    """What runs an op by a library, on the arrays of its operands."""
    parameters, function = _parameters(node, name, threads), KERNELS[name][1]
    return lambda *arrays: function(*arrays, **parameters)


# --- NumPy's

@host_function("numpy_dot_general")
def numpy_dot_general(*arrays: np.ndarray, **parameters: Any) -> np.ndarray:
    """One batched product by OpenBLAS, which is the op's own meaning in NumPy."""
    record = get_op("dot_general")
    made: np.ndarray = record.evaluate(record.make_attributes(parameters), *arrays)
    return made


# --- torch's

@host_function("torch_dot_general")
def torch_dot_general(a: np.ndarray, b: np.ndarray, *, lhs_contract: tuple[int, ...],
                      rhs_contract: tuple[int, ...], lhs_batch: tuple[int, ...], rhs_batch: tuple[int, ...],
                      alpha: float, result: DType | None) -> np.ndarray:
    """One batched product by torch's BLAS."""
    import torch

    x, y = map(_tensor, (a, b))
    lhs_free = free_axes(x.ndim, lhs_batch, lhs_contract)
    rhs_free = free_axes(y.ndim, rhs_batch, rhs_contract)
    batch, depth = [x.shape[i] for i in lhs_batch], prod(x.shape[i] for i in lhs_contract)
    m, n = [x.shape[i] for i in lhs_free], [y.shape[i] for i in rhs_free]
    left = x.permute(lhs_batch + lhs_free + lhs_contract).reshape(*batch, prod(m), depth)
    right = y.permute(rhs_batch + rhs_contract + rhs_free).reshape(*batch, depth, prod(n))
    with torch.no_grad():
        total = torch.matmul(left, right)
        total = total if alpha == 1 else total * alpha
    return total.reshape(*batch, *m, *n).numpy()


@host_function("torch_conv")
def torch_conv(x: np.ndarray, w: np.ndarray, *, strides: tuple[int, ...], padding: Any, rhs_dilation: Any,
               lhs_dilation: Any, groups: int, result: DType | None) -> np.ndarray:
    """A convolution by torch's kernels (oneDNN)."""
    import torch

    given = _tensor(x)
    if any(low != high for low, high in padding):
        given = torch.nn.functional.pad(given, [p for pair in reversed(padding) for p in pair])
        padding = ((0, 0),) * len(padding)
    function = getattr(torch.nn.functional, f"conv{len(strides)}d")
    with torch.no_grad():
        made = function(given, _tensor(w), None, tuple(strides), tuple(low for low, _ in padding),
                        tuple(rhs_dilation), groups)
    return made.contiguous().numpy()


@contextmanager
def real_tensors() -> Iterator[None]:
    """torch's kernels run, also while a program is traced with tensors that hold nothing."""
    if "torch" not in sys.modules:
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def _tensor(array: np.ndarray) -> Any:
    """A tensor over the array, which is only read."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an array that may not be written
        return torch.from_numpy(np.require(array, requirements=["A"]))


KERNELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "numpy_dot_general": ("dot_general", numpy_dot_general),
    "onednn_dot_general": ("dot_general", onednn_kernels.product),
    "onednn_conv": ("conv", onednn_kernels.convolution),
    "onednn_conv_plain": ("conv", onednn_kernels.plain_convolution),
    "torch_dot_general": ("dot_general", torch_dot_general), "torch_conv": ("conv", torch_conv)}
LIBRARIES: dict[str, Callable[[Node], bool]] = {
    "numpy": lambda node: True, "onednn": _is_onednns, "torch": lambda node: "torch" in sys.modules}
TAKEN = frozenset(op for op, _ in KERNELS.values())
