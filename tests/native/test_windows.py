"""Windows by axes, every n-th element by shuffles, last vectors that end at the end: as NumPy's meaning."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import compile_graph
from planish.ir import Graph, input_node, interpret
from planish.ops.rules import ops
from planish.types import TensorType, dtype_of, symbol


def check(output_of, x: np.ndarray, dims: tuple | None = None) -> None:
    """The native answer equals the interpreter's: exactly, but for sums."""
    node = input_node("x", TensorType(dtype_of(x), x.shape if dims is None else dims))
    graph = Graph((node,), (output_of(node),))
    got, want = compile_graph(graph)(x)[0], interpret(graph, [x])[0]
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    close = 1e-2 if x.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=close, atol=1e-5)


def window(kind: str, size: tuple, strides: tuple, padding: tuple, gaps: tuple | None = None):
    return lambda x: ops.reduce_window(x, kind=kind, window=size, strides=strides, padding=padding,
                                       dilation=gaps or (1,) * len(size))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32])
@pytest.mark.parametrize("kind", ["max", "min", "sum"])
def test_window_dtypes(kind: str, dtype: type) -> None:
    rng = np.random.default_rng(len(kind))
    x = rng.integers(0, 50, (2, 3, 13, 29)).astype(dtype)
    check(window(kind, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1))), x)


@pytest.mark.parametrize("width", [1, 3, 7, 8, 9, 15, 16, 17, 20, 33, 50])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5])
def test_widths_and_strides(width: int, stride: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.normal(size=(3, 6, width)).astype(np.float32)
    x[0, 2, width // 2] = np.nan
    check(window("max", (1, 2, 3), (1, 1, stride), ((0, 0), (1, 0), (2, 1))), x)


@pytest.mark.parametrize("size, strides, padding, gaps", [
    ((1, 5, 1, 1), (1, 1, 1, 1), ((0, 0), (2, 2), (0, 0), (0, 0)), None),    # channels only
    ((1, 1, 1, 4), (1, 1, 1, 3), ((0, 0), (0, 0), (0, 0), (0, 0)), None),    # the last axis only, no padding
    ((1, 1, 1, 1), (1, 1, 2, 2), ((0, 0), (0, 0), (0, 0), (0, 0)), None),    # strides only
    ((2, 2, 2, 2), (1, 1, 2, 1), ((1, 0), (0, 1), (0, 0), (1, 1)), None),    # every axis
    ((1, 1, 3, 3), (1, 1, 1, 2), ((0, 0), (0, 0), (2, 2), (3, 1)), (1, 1, 2, 3)),
    ((1, 1, 40, 2), (1, 1, 1, 1), ((0, 0), (0, 0), (20, 3), (0, 0)), None),  # longer than is written out
    ((1, 1, 1, 35), (1, 1, 1, 1), ((0, 0), (0, 0), (0, 0), (30, 4)), None),
])
def test_windows_of_few_axes(size: tuple, strides: tuple, padding: tuple, gaps: tuple | None) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 7, 23, 21)).astype(np.float32)
    for kind in ("sum", "max"):
        check(window(kind, size, strides, padding, gaps), x)


def test_open_sizes() -> None:
    rng = np.random.default_rng(6)
    h, w = symbol("h", 3, 100), symbol("w", 3, 100)
    for shape in ((2, 9, 33), (2, 3, 3)):
        x = rng.normal(size=shape).astype(np.float32)
        check(window("max", (1, 3, 3), (1, 2, 2), ((0, 0), (1, 1), (1, 1))), x, (2, h, w))


def test_a_costly_operand_is_computed_once() -> None:
    """The exponential is stored, not computed for every tap."""
    from planish.schedule.fuse import fuse
    from planish.schedule.prepare import prepare
    x = input_node("x", TensorType(dtype_of(np.dtype(np.float32)), (4, 32, 32)))
    pooled = window("max", (1, 3, 3), (1, 1, 1), ((0, 0), (1, 1), (1, 1)))(ops.exp(x))
    kernels = fuse(prepare(Graph((x,), (pooled,))), {}).kernels
    assert sum(k.ops.count("exp") for k in kernels) == 1
    assert not any("exp" in k.ops and "maximum" in k.ops for k in kernels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_every_nth_element(step: int, dtype: type) -> None:
    """Exactly the elements there are: the last one read is the buffer's last."""
    rng = np.random.default_rng(step)
    for count in (1, 8, 9, 40):
        x = rng.integers(0, 2 if dtype is np.bool_ else 100, (5, (count - 1) * step + 1)).astype(dtype)
        check(lambda node, n=x.shape[1]: ops.slice(node, starts=(0, 0), stops=(5, n), steps=(1, step)), x)


@pytest.mark.parametrize("also_output", [False, True])
@pytest.mark.parametrize("kind, size, stride", [("max", 3, 2), ("sum", 2, 2), ("max", 7, 1), ("max", 5, 1)])
def test_beside_a_convolution(kind: str, size: int, stride: int, also_output: bool) -> None:
    """Channels lie innermost where the convolution's result is not seen, and the window follows."""
    from planish.ir import constant
    rng = np.random.default_rng(size)
    x = rng.normal(size=(1, 16, 18, 19)).astype(np.float32)
    w, v = (constant(rng.normal(size=(32, c, 1, 1)).astype(np.float32)) for c in (16, 32))
    ones = {"strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "groups": 1,
            "padding": ((0, 0), (0, 0))}
    node = input_node("x", TensorType(dtype_of(x), x.shape))
    first = ops.relu(ops.conv(node, w, **ones))
    half = size // 2
    pooled = window(kind, (1, 1, size, size), (1, 1, stride, stride),
                    ((0, 0), (0, 0), (half, half), (half, 0)))(first)
    result = ops.conv(pooled, v, **ones)
    graph = Graph((node,), (result, first) if also_output else (result,))
    for got, want in zip(compile_graph(graph)(x), interpret(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_what_a_loop_writes_over_is_not_read_again() -> None:
    """A last vector that goes over points twice is for loops that don't change what they read."""
    from planish.codegen.llvm.stages import _may_repeat
    from planish.schedule.kernel import Apply, Axis, Buffer, Load, Stage, Store
    type_ = TensorType(dtype_of(np.dtype(np.float32)), (20,))
    axis = Axis("a", 20)
    x, y, row = Buffer("x", type_), Buffer("y", type_), Buffer("r", type_, space="row")

    def stage(name: str, source: Buffer, target: Buffer) -> Stage:
        value = Apply("neg", (Load(source, (axis.symbol,)),), type_.dtype)
        return Stage(name, (axis,), value, type_.dtype, store=Store(target, (axis.symbol,)))
    into_row, out_of_row, through = stage("t0", x, row), stage("t1", row, y), stage("t2", x, y)
    assert _may_repeat([into_row]) and _may_repeat([out_of_row])
    assert not _may_repeat([through])                # y may be x
    assert not _may_repeat([into_row, out_of_row])   # in one loop: y may be x
    assert not _may_repeat([stage("t3", row, row)])
