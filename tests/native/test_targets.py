"""One generator serves all targets: the same programs on this CPU, its lower levels, and AArch64."""
from __future__ import annotations

import numpy as np
import pytest

from planish import knobs
from planish.codegen.llvm.host import Target, aarch64, host
from planish.ir import Graph, input_node
from planish.ops.rules import ops
from planish.types import FLOAT16, FLOAT32, TensorType
from tests.native.targets import PROGRAMS, Case, case, check, run_emulated, run_here

LEVELS = ("sse2", "avx2", "avx512")


def masked(level: str) -> Target:
    """This machine as if it had no more than `level`; the test is skipped where it has less."""
    with knobs.override(target=level):
        target = host()
    if target.isa != level:
        pytest.skip(f"this CPU has no {level}")
    return target


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_this_cpu(name: str, level: str) -> None:
    one = case(name)
    check(one, run_here(masked(level), one))


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_aarch64(name: str) -> None:
    one = case(name)
    check(one, run_emulated(aarch64(), one))


def test_float16_without_instructions_is_exact() -> None:
    """Widened: every float16. Narrowed: each, the middles between two, and the floats next to both."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        own = halves.astype(np.float32)
        middles = (own + np.roll(own, -1)) / 2
        near = [np.nextafter(x, np.float32(to)) for x in (own, middles) for to in (-np.inf, np.inf)]
    floats = np.concatenate([own, middles, *near, np.float32([65519.996, 65520, 1e38, np.inf, np.nan])])
    x = input_node("x", TensorType(FLOAT16, halves.shape))
    y = input_node("y", TensorType(FLOAT32, floats.shape))
    graph = Graph((x, y), (ops.cast(x, dtype=FLOAT32), ops.cast(y, dtype=FLOAT16)))
    one = Case(graph, "exact", [halves, floats], {})
    check(one, run_here(masked("sse2"), one))
