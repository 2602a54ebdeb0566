"""Programs that torch.export captured."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import planish
from planish.errors import ShapeError, SignatureError

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 4), nn.Parameter(torch.randn(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, *, shift: Any) -> dict[str, Any]:
        self.calls += 1
        return {"y": torch.relu(self.linear(x)) * self.scale + shift, "rows": x.shape[0]}


def test_dynamic_batch_state_and_structure(same: Any) -> None:
    model, x, shift = Model().eval(), torch.randn(3, 6), torch.randn(4)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(
        copy.deepcopy(model), (x,), {"shift": shift}, dynamic_shapes={"x": {0: batch}, "shift": None}
    )
    program = planish.from_exported(exported)
    assert [(s.low, s.high) for s in program.captured.graph.symbols().values()] == [(2, 64)]
    for rows in (3, 2, 64):
        x = torch.randn(rows, 6)
        with torch.no_grad():
            same(program(x, shift=shift), model(x, shift=shift))
    assert program.by_name["calls"].item() == 3


def test_wrong_arguments() -> None:
    exported = torch.export.export(nn.Linear(6, 4), (torch.randn(3, 6),))
    program = planish.from_exported(exported)
    with pytest.raises(ShapeError, match=r"expected shape \[3, 6\], got \[2, 6\]"):
        program(torch.randn(2, 6))
    with pytest.raises(SignatureError, match=r"expected a tensor of torch\.float32"):
        program(torch.randn(3, 6, dtype=torch.float64))
    with pytest.raises(SignatureError, match="structure"):
        program(torch.randn(3, 6), torch.randn(3, 6))


def test_out_of_range_is_a_shape_error() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    exported = torch.export.export(
        nn.Linear(6, 4), (torch.randn(3, 6),), dynamic_shapes={"input": {0: batch}}
    )
    program = planish.from_exported(exported)
    with pytest.raises(ShapeError, match="from 2 to 8"):
        program(torch.randn(9, 6))


def test_a_profile_of_what_was_exported() -> None:
    exported = torch.export.export(nn.Linear(6, 4), (torch.randn(300, 6),))
    found = planish.profile(planish.from_exported(exported), seconds=0)(torch.randn(300, 6))
    (kernel,) = found.kernels
    assert kernel.runs == 1 and kernel.flops >= 2 * 300 * 6 * 4 and 0 < kernel.ms <= found.ms
    with pytest.raises(planish.errors.PlanishError, match="from_exported"):
        planish.profile(nn.Linear(6, 4))(torch.randn(3, 6))
