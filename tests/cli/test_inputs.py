"""`--input` texts, sizes, and random data."""
from __future__ import annotations

import numpy as np
import pytest

from planish.cli.faults import UsageError
from planish.cli.inputs import WORDS, make_inputs
from planish.ir import Graph, input_node
from planish.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT32,
    INT8,
    INT64,
    STRING,
    UINT64,
    DType,
    TensorType,
    symbol,
)

N, M = symbol("N", 0, 100), symbol("M", 3, 100)


def graph(**inputs: TensorType) -> Graph:
    nodes = tuple(input_node(name, type_) for name, type_ in inputs.items())
    return Graph(nodes, nodes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_drawn(dtype: DType) -> None:
    (array,) = make_inputs(graph(x=TensorType(dtype, (40, 5))), [], 0).arrays
    assert array.dtype == dtype.numpy and array.shape == (40, 5)
    wide = array.astype(np.float64)
    if dtype.is_float:
        assert abs(wide.mean()) < 0.5 and 0.5 < wide.std() < 2
    else:
        assert set(np.unique(wide)) == set(range(2 if dtype is BOOL else 10))


def test_ranges_include_both_ends() -> None:
    g = graph(i=TensorType(INT8, (N,)), f=TensorType(FLOAT32, (N,)), u=TensorType(UINT64, (N,)))
    found = make_inputs(g, ["i=99:-128..127", "f=99:2..2.5", "u=99:0..1"], 3)
    i, f, u = found.arrays
    assert i.min() < -64 and i.max() > 64
    assert 2 <= f.min() and f.max() <= 2.5 and set(u) == {0, 1}
    assert found.origins == ["random, -128..127", "random, 2..2.5", "random, 0..1"]


def test_given_sizes_hold_for_other_inputs() -> None:
    g = graph(a=TensorType(FLOAT32, (N, M)), b=TensorType(FLOAT32, (M, N + M)), c=TensorType(FLOAT32, ()))
    found = make_inputs(g, ["a=2x7"], 0)
    assert [x.shape for x in found.arrays] == [(2, 7), (7, 9), ()] and found.sizes == {"N": 2, "M": 7}


def test_sizes_not_given_are_the_least_that_is_something() -> None:
    found = make_inputs(graph(a=TensorType(FLOAT32, (N, M))), [], 0)
    assert found.sizes == {"N": 1, "M": 3}


def test_formula_that_does_not_hold() -> None:
    g = graph(a=TensorType(FLOAT32, (N,)), b=TensorType(FLOAT32, (N + 1,)))
    assert make_inputs(g, ["a=2", "b=3"], 0).arrays[1].shape == (3,)
    with pytest.raises(UsageError, match=r"the size N \+ 1 is 4 there, and 3 by other inputs"):
        make_inputs(g, ["a=2", "b=4"], 0)


def test_names_may_hold_what_separates() -> None:
    g = graph(**{"in=put:0": TensorType(INT64, (N,))})
    assert make_inputs(g, ["in=put:0=4"], 0).arrays[0].shape == (4,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_from_files(dtype: DType, tmp_path) -> None:  # type: ignore[no-untyped-def]
    expected = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    np.save(tmp_path / "x.npy", expected)
    (array,) = make_inputs(graph(x=TensorType(dtype, (N, 3))), [f"x={tmp_path}/x.npy"], 0).arrays
    assert array.dtype == dtype.numpy
    np.testing.assert_array_equal(array, expected)
    if dtype is BFLOAT16:
        assert array.astype(np.float32)[1, 2] == 5


def test_text(tmp_path) -> None:  # type: ignore[no-untyped-def]
    g = graph(x=TensorType(STRING, (N, 3)))
    (drawn,) = make_inputs(g, ["x=40x3"], 0).arrays
    assert drawn.dtype == object and set(drawn.reshape(-1)) == set(WORDS)
    np.save(tmp_path / "x.npy", np.array([["a", "b", "é"]]))
    (array,) = make_inputs(g, [f"x={tmp_path}/x.npy"], 0).arrays
    assert array.dtype == object and array.tolist() == [["a", "b", "é"]]
    np.save(tmp_path / "x.npy", np.ones((1, 3)))
    with pytest.raises(UsageError, match="holds float64; the model's input x takes object"):
        make_inputs(g, [f"x={tmp_path}/x.npy"], 0)


def test_objects_are_not_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UsageError, match="is not a NumPy array file"):
        make_inputs(graph(x=TensorType(FLOAT32, (N,))), [f"x={tmp_path}/x.npy"], 0)
