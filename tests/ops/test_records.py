"""Every record is complete, and its type rule and its NumPy meaning agree on every sample."""
from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from planish.errors import TypeRuleError
from planish.ops import OPS, Op
from planish.ops.tolerance import CLASSES
from planish.types import DTYPES, STORAGE, TensorType, dtype_of
from tests.ops.cases import RECORDS, evaluate, samples_of, types_of

TRAITS = {"structure", "pointwise", "commutative", "movement", "view", "reduction", "scan", "contraction",
          "indexing", "sort", "random", "control", "effect", "host", "composite"}
WITHOUT_GRADIENT = {"input", "constant", "item", "bitcast", "cond", "while_loop", "scan_loop", "host"}
LARGE = 60_000
SMALL_ENOUGH = {"check"}  # takes one scalar: it has no large sample


@pytest.mark.parametrize("op", OPS.values(), ids=str)
def test_every_field_is_filled(op: Op) -> None:
    assert op.name.isidentifier() and OPS[op.name] is op
    assert callable(op.infer) and callable(op.reference) and callable(op.samples)
    assert is_dataclass(op.attributes) and op.attributes.__dataclass_params__.frozen
    assert op.traits and op.traits <= TRAITS
    assert op.tolerance in CLASSES
    assert op.dtypes and set(op.dtypes) <= {*DTYPES, *STORAGE}
    assert (op.decompose is not None) == op.has("composite")
    assert (op.gradient is None) == (op.name in WITHOUT_GRADIENT)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.family != "structure"], ids=str)
def test_the_family_is_the_file(op: Op) -> None:
    import planish.ops
    module = inspect.getmodule(__import__(f"planish.ops.{op.family}", fromlist=["_"]))
    spelled = [name for name in (op.name, f"{op.name}_") if getattr(module, name, None) is op]
    assert spelled and getattr(planish.ops, spelled[0]) is op and spelled[0] in planish.ops.__all__


@pytest.mark.parametrize("op", RECORDS, ids=str)
def test_samples_and_meaning_fit_the_type_rule(op: Op) -> None:
    for dtype in op.dtypes:
        labels = []
        for sample in samples_of(op, dtype):
            labels.append(sample.label)
            attributes = op.make_attributes(sample.attributes)
            hash(attributes)
            expected = op.infer(attributes, *types_of(sample.operands))
            expected = expected if isinstance(expected, tuple) else (expected,)
            assert types_of(evaluate(op, sample)) == expected, f"{op} {dtype} {sample.label}"
        assert len(labels) > 1 or op.name in SMALL_ENOUGH


@pytest.mark.parametrize("op", RECORDS, ids=str)
def test_samples_cover_the_hard_cases(op: Op) -> None:
    samples = [s for dtype in op.dtypes for s in samples_of(op, dtype)]
    results = [op.infer(op.make_attributes(s.attributes), *types_of(s.operands)) for s in samples]
    sizes = {a.size for s in samples for a in s.operands}
    sizes |= {r.size for r in results if isinstance(r, TensorType)}
    if op.name not in SMALL_ENOUGH | {"size"}:
        assert 0 in sizes, "no empty sample"
        assert max(sizes) >= LARGE, "no sample for several threads"
    if "pointwise" in op.traits or op.family == "reduce":
        assert any("strided" in s.label for s in samples)
    families = ("unary", "binary", "reduce", "scan", "sort", "normalize")
    if any(d.is_float for d in op.dtypes) and op.family in families:
        assert any(np.isnan(a).any() for s in samples for a in s.operands if dtype_of(a).is_float)


@pytest.mark.parametrize("op", RECORDS, ids=str)
def test_operands_are_not_written_to(op: Op) -> None:
    dtype = op.dtypes[-1]
    for sample in samples_of(op, dtype):
        before = [a.copy() for a in sample.operands]
        evaluate(op, sample)
        for a, b in zip(sample.operands, before, strict=True):
            assert a.tobytes() == b.tobytes(), f"{op} {sample.label}"


@pytest.mark.parametrize("op", RECORDS, ids=str)
def test_other_dtypes_are_refused(op: Op) -> None:
    sample = next(samples_of(op, op.dtypes[0]))
    if not sample.operands:
        return
    first, *rest = types_of(sample.operands)
    for dtype in {*DTYPES, *STORAGE} - set(op.dtypes):
        with pytest.raises(TypeRuleError, match=rf"^{op.name}\("):
            op.infer(op.make_attributes(sample.attributes), TensorType(dtype, first.shape), *rest)


def test_two_ops_of_one_name_are_refused() -> None:
    from planish.ops.record import register
    with pytest.raises(ValueError, match="two ops are called add"):
        register(OPS["add"])


def test_attributes_are_named() -> None:
    with pytest.raises(TypeRuleError, match="reduce_sum: its attributes are axes, keepdims; given axis"):
        OPS["reduce_sum"](np.zeros(3), axis=0)
    assert [f.name for f in fields(OPS["conv"].attributes)][:2] == ["strides", "padding"]


def test_bare_numbers_take_the_dtype_of_the_array() -> None:
    x = np.ones(3, np.float16)
    assert OPS["mul"](x, 2).dtype == np.float16 and OPS["sub"](1, x).dtype == np.float16
