"""Every pass on a small graph, as text: what goes in, what comes out, what fired."""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planish.ir import parse_graph, print_graph
from planish.passes import PIPELINE, run_pipeline
from planish.passes.hooks import all_of, compare_each, verify_each

FOLDER = Path(__file__).parent / "goldens"
FILES = sorted(FOLDER.glob("*.ir"))
HEAD = re.compile(r"# run: (\w+)(?: numerics=(\w+))?\n")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_pass(path: Path, golden: Callable[[Path, str], None]) -> None:
    text = path.read_text()
    source = text.split("\n# becomes")[0].rstrip("\n")
    head = HEAD.match(text)
    assert head, "a golden begins with `# run: PASS numerics=CLASS`"
    name, numerics = head.group(1), head.group(2) or "default"
    passes = [one for one in PIPELINE if one.name == name]
    check = all_of(verify_each, compare_each(np.random.default_rng(0)))
    graph, [record] = run_pipeline(parse_graph(source[head.end():]), numerics=numerics, passes=passes,
                                   hook=check, strict_fuel=True)
    fired = ", ".join(f"{rule} {count}" for rule, count in sorted(record.fired.items())) or "nothing fired"
    golden(path, f"{source}\n\n# becomes: {fired}\n{print_graph(graph, notes=False)}\n")


def test_every_pass_has_a_golden() -> None:
    written = {HEAD.match(path.read_text()).group(1) for path in FILES}
    assert written >= {one.name for one in PIPELINE}


def test_a_missing_golden_fails(golden: Callable[[Path, str], None], request: pytest.FixtureRequest,
                                tmp_path: Path) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("goldens are being written")
    with pytest.raises(AssertionError, match=r"no golden file new\.ir"):
        golden(tmp_path / "new.ir", "graph")
