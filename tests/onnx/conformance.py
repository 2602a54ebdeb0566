"""The conformance suite of the package onnx through the session, at every optimisation level.

`refused.txt` lists the cases that do not pass, each with the reason; docs/onnx.md has the table of it. When
cases come to pass, `python -m tests.onnx.conformance` writes both.
"""
from __future__ import annotations

import re
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from onnx.backend.test.loader import load_model_tests

import planish.onnx as ort
from planish.errors import UnsupportedDType, UnsupportedOp
from planish.onnx.backend import prepare
from planish.onnx.variants import LEVELS
from tests.capture.onnx.conformance import _compare, _data_sets, _model

# They lie in files; the others are made, which takes seconds.
STORED = ("simple", "pytorch-converted", "pytorch-operator")
KINDS = ("node", *STORED)
LIST = Path(__file__).with_name("refused.txt")
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"

# Levels that leave out the same are one.
DISTINCT = tuple({disable: level for level, disable in LEVELS.items()}.values())

# What an error says -> the reason in words; the groups of the pattern are put in.
REASONS = {
    r"planish does not have: (\w+) \(domain 'ai.onnx.preview.training'": "{}: training",
    r"that planish does not have: (\w+) \(": "{}: not translated",
    r"has element type (\w+)": "element type {}",
}


@cache
def cases(kinds: tuple[str, ...] = KINDS) -> Mapping[str, Any]:
    """Every case of `kinds` that needs no download, by name; its `kind` is one of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for kind in kinds for case in load_model_tests(kind=kind)}


def part_of(name: str, parts: int) -> int:
    """The part a case belongs to, always the same."""
    return zlib.crc32(name.encode()) % parts


def level_of(name: str) -> ort.GraphOptimizationLevel:
    """The one level at which a case is tried where all would take too long."""
    return DISTINCT[part_of(name, len(DISTINCT))]


def outcome(case: Any, levels: Sequence[ort.GraphOptimizationLevel] = DISTINCT) -> str:
    """Why a case is refused, the same at every level; empty where it passes. Any other error is a fault, and
    the caller's to see."""
    reasons = {level.name: _outcome(case, level) for level in levels}
    assert len(set(reasons.values())) == 1, f"the levels differ: {reasons}"
    return next(iter(reasons.values()))


def _outcome(case: Any, level: ort.GraphOptimizationLevel) -> str:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    try:
        rep = prepare(_model(case), sess_options=options)
        for inputs, expected in _data_sets(case):
            for got, want in zip(rep.run(inputs), expected, strict=True):
                _compare(got, want, case)
    except (UnsupportedOp, UnsupportedDType) as error:
        return " ".join(str(error).split())
    return ""


# --- the list, and the table of it

def listed() -> dict[str, str]:
    """Case -> reason, of the cases that do not pass."""
    return dict(line.split(": ", 1) for line in LIST.read_text().splitlines())


def reason_of(error: str) -> str:
    """The reason in words, or the error without what names the place."""
    for pattern, words in REASONS.items():
        if found := re.search(pattern, error):
            return words.format(*found.groups())
    return re.sub(r"^.*?model bytes:? ", "", error).split(";")[0]


def table(refused: Mapping[str, str]) -> str:
    """Counts by kind, then what is refused and which cases that are."""
    total = Counter(case.kind for case in cases().values())
    left = Counter(cases()[name].kind for name in refused)
    lines = ["| cases | passed at every level | refused |", "|---|---:|---:|"]
    lines += [f"| {kind} ({total[kind]:,}) | {total[kind] - left[kind]:,} | {left[kind]} |" for kind in KINDS]
    lines += ["", "| refused | cases | which |", "|---|---:|---|"]
    for why, count in Counter(refused.values()).most_common():
        names = [f"`{name.removeprefix('test_')}`" for name, reason in refused.items() if reason == why]
        lines.append(f"| {why} | {count} | {' '.join(names)} |")
    return "\n".join(lines)


BEGIN, END = "<!-- conformance: written by tests/onnx/conformance.py -->\n", "\n<!-- end -->"


def page_with(text: str) -> str:
    """The page with this table."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + text + END + rest.split(END, 1)[1]


def main(arguments: Sequence[str]) -> int:
    """Write the list and the page, from a run of every case at one level. With --all-levels, at all levels;
    with --listed, only of the cases that are refused so far."""
    every_level = "--all-levels" in arguments
    names = sorted(listed() if "--listed" in arguments else cases())
    refused, wrong = {}, {}
    for i, name in enumerate(names):
        print(f"\r{i + 1} of {len(names)}", end="", file=sys.stderr)
        try:
            if error := outcome(cases()[name], DISTINCT if every_level else (level_of(name),)):
                refused[name] = reason_of(error)
        except Exception as error:  # one case that fails is a finding; the others are to run
            wrong[name] = " ".join(f"{type(error).__name__}: {error}".split())
    for name, why in wrong.items():
        print(f"\n{name} fails: {why[:400]}")
    LIST.write_text("".join(f"{name}: {why}\n" for name, why in refused.items()))
    PAGE.write_text(page_with(table(refused)))
    print(f"\n{len(names) - len(refused) - len(wrong)} passed, {len(refused)} refused, {len(wrong)} failed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
