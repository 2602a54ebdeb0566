"""Every conformance case of one node, said to be of each older opset that has a definition of its operator,
against ONNX Runtime: each opset's own meaning.

The cases are made once in a process, and take seconds: so this file lies beside the others that run them.
"""
from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from tests.capture.onnx.conformance import _data_sets, _loaded, _model, _outputs, cases

OLDEST, NEWEST = 7, 24  # ONNX Runtime guarantees opsets up to this one
SKIPPED = re.compile(
    "sequence|optional|_seq|_opt|FLOAT8"     # values that ONNX Runtime gives in other forms
    "|bernoulli|training_dropout"            # numbers of the implementation's own
    "|maxunpool_export_with_output_shape"    # ONNX Runtime counts indices in the given shape
    "|downsample_scales_.*_align_corners"    # and aligns the last of whole results, not of scaled sizes
    "|attention_4d_with_past_and_present_qk_matmul_bias_.d_mask_causal")  # and masks what it gives out
ROUNDING = {2: 4e-3, 4: 1e-3, 8: 1e-6}


def restamped(part: int) -> Iterator[tuple[Any, Any, int]]:
    """(case, model, opset) of one in `part` of the cases."""
    history: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, set()).add(schema.since_version)
    for case in cases("node"):
        if zlib.crc32(case.name.encode()) % part or SKIPPED.search(case.name):
            continue
        model = _model(case)
        if len(model.graph.node) != 1 or model.graph.node[0].domain or case.kind != "node":
            continue
        now = model.opset_import[0].version
        since = history.get(model.graph.node[0].op_type, set())
        for opset in sorted({max(v, OLDEST) for v in since if v < now} | {min(now, NEWEST)}):
            older = onnx.ModelProto()
            older.CopyFrom(model)
            older.ir_version = 8
            for entry in older.opset_import:
                entry.version = opset if not entry.domain else entry.version
            if is_valid(older):
                yield case, older, opset


def is_valid(model: Any) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def expected(model: Any, feeds: dict[str, Any]) -> list[Any] | None:
    """ONNX Runtime's answer; None where it has none."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # or every session has threads that wait for work, spinning
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    except Exception:  # it has no kernel, or refuses the values
        return None


def compare(part: int) -> int:
    """How many pairs of case and opset agree. Raises AssertionError naming those that do not."""
    same, wrong = 0, []
    for case, model, opset in restamped(part):
        feeds = dict(zip((v.name for v in model.graph.input), _data_sets(case)[0][0], strict=False))
        want = expected(model, feeds)
        if want is None:
            continue
        try:
            for got, one in zip(_outputs(_loaded(model, feeds)[0], feeds, "interpret"), want, strict=True):
                agree(got, np.asarray(one))
            same += 1
        except Exception as error:  # one finding; the others are to run
            wrong.append(f"{case.name} as of opset {opset}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    return same


def agree(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    wide = [a.astype(np.float64) for a in (got, want)]
    largest = np.max(np.abs(wide[1][np.isfinite(wide[1])]), initial=0)
    bound = ROUNDING.get(want.dtype.itemsize, 4e-3)
    np.testing.assert_allclose(*wide, rtol=bound, atol=1e-2 * bound * largest + 1e-7)


@pytest.mark.slow
def test_older_opsets() -> None:
    assert compare(part=12) >= 120


@pytest.mark.slow
def test_every_older_opset() -> None:
    assert compare(part=1) >= 2380
