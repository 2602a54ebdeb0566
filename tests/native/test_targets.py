"""One generator serves all targets: the same programs on this CPU, its lower levels, and AArch64."""
from __future__ import annotations

import pytest

from planish import knobs
from planish.codegen.llvm.host import Target, aarch64, host
from tests.native.targets import PROGRAMS, case, check, run_emulated, run_here

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
