"""The channels of logs, and PLANISH_DISABLE, in a process of their own."""
from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import planish
from planish import knobs
from planish.errors import LogsWarning
from planish.logs import CHANNELS, levels_of

PROGRAM = """\
import numpy as np
import planish
scale = 3.0
w = np.ones((200, 100), np.float32)
@planish.jit
def f(x, n):
    y = np.tanh(x @ w) * scale
    for _ in range(n):
        y = y + 1
    return y - y.max()
for rows in (4, 5):
    f(np.ones((rows, 200), np.float32), 1)
print(f.traces, len(f.recompiles))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One for all of them: the code need not be made again and again."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(tmp_path, cache):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(**variables: str) -> tuple[str, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PLANISH_")}
        environment |= {"PYTHONPATH": str(Path(planish.__file__).parents[1]),
                        "PLANISH_CACHE_DIR": str(cache), **variables}
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, check=True)
        return done.stdout, done.stderr
    return run


def said(text: str, channel: str) -> list[str]:
    """What a channel said, without its name and the time that things took."""
    return [re.sub(r"[\d.]+ ms", "T ms", line.split(": ", 1)[1]) for line in text.splitlines()
            if line.startswith(f"planish.{channel}: ")]


def test_nothing_is_said_unasked(run):
    assert run() == ("2 2\n", "")


def test_channels_say_what_happens(run):
    _, text = run(PLANISH_LOGS="recompiles,guards,+passes,fusion,perf_hints,cache")
    assert {line.split(":")[0] for line in text.splitlines()} == {
        f"planish.{c}" for c in ("recompiles", "guards", "passes", "fusion", "perf_hints", "cache")}
    number, rows = said(text, "recompiles")
    assert re.search(r"^f \(.*program.py:5\), called at .*program.py:12: n: any number -> ", number)
    assert "program.py:8 needs" in number
    assert rows.endswith("program.py:12: x: float32[4, 200] -> float32[5, 200]")
    assert any(g.endswith(": scale is 3.0") for g in said(text, "guards"))
    assert any(re.match(r"f: share: \d+ -> \d+ nodes, T ms$", line) for line in said(text, "passes"))
    assert "f: decompose: matmul fired 1 times" in said(text, "passes")
    assert any(": apart, " in d for d in said(text, "fusion"))
    assert any("w: float32[200, 100] can be written to" in hint for hint in said(text, "perf_hints"))


def test_the_cache_says_hit_and_miss(run):
    _, text = run(PLANISH_LOGS="cache", PLANISH_DISABLE_CACHE="1")
    assert said(text, "cache")
    assert all(re.match(r"miss (program )?[0-9a-f]{12}$", c) for c in said(text, "cache"))
    run()
    _, text = run(PLANISH_LOGS="cache")
    known = r"hit program [0-9a-f]{12}$|hit [0-9a-f]{12}, \d+ bytes$"
    assert all(re.match(known, line) for line in said(text, "cache"))
    assert sum("program" in line for line in said(text, "cache")) == 2
    _, text = run(PLANISH_LOGS="cache,passes")   # what a compile does is told: it is done again
    assert said(text, "cache") and not any("program" in line for line in said(text, "cache"))


def test_less_and_more(run):
    _, text = run(PLANISH_LOGS="passes,-cache")
    assert said(text, "passes") and "fired" not in text and "planish.cache" not in text


def test_to_a_file(run, tmp_path):
    out = tmp_path / "planish.log"
    assert run(PLANISH_LOGS="recompiles", PLANISH_LOGS_OUT=str(out))[1] == ""
    assert len(said(out.read_text(), "recompiles")) == 2


def test_one_warning_for_what_is_no_channel(run):
    _, text = run(PLANISH_LOGS="recompiles,colours,+shapes")
    assert text.count("LogsWarning") == 1
    assert f"there is no channel colours, shapes; there are {', '.join(CHANNELS)}" in text
    assert len(said(text, "recompiles")) == 2


def test_a_file_that_cant_be_written(run, tmp_path):
    _, text = run(PLANISH_LOGS="recompiles", PLANISH_LOGS_OUT=str(tmp_path / "none" / "log"))
    assert text.count("LogsWarning") == 1 and "can't be written (No such file" in text
    assert len(said(text, "recompiles")) == 2


def test_a_program_has_its_own_ways_with_loggers(caplog):
    """Without PLANISH_LOGS the loggers are as any; with an `override` they are set up, and afterwards as
    before."""
    double = planish.jit(lambda x: x * 2)
    with caplog.at_level(logging.INFO, "planish.recompiles"):
        double(1.0)
        double(1)
    assert "x: float -> int" in caplog.text
    with knobs.override(logs="recompiles"):
        double(b"a")
    assert logging.getLogger("planish").propagate is False
    double("a")
    assert logging.getLogger("planish").propagate is True
    assert logging.getLogger("planish.recompiles").level == logging.NOTSET


def test_levels():
    assert levels_of("") == {}
    assert levels_of("recompiles, +passes,-fusion") == {"recompiles": 20, "passes": 10, "fusion": 40}
    with pytest.warns(LogsWarning, match="there is no channel a, b;"):
        assert levels_of("a,+b,cache") == {"cache": 20}


def test_disable_runs_the_function_itself(run):
    assert run(PLANISH_DISABLE="1", PLANISH_LOGS="recompiles,passes,cache") == ("0 0\n", "")


def test_disable_is_read_where_jit_is_applied():
    calls = []

    def f(x):
        calls.append(type(x))
        return x
    with knobs.override(disable=True):
        plain = planish.jit(f)
    assert (plain([1]), plain([1]), calls, plain.traces) == ([1], [1], [list, list], 0)
