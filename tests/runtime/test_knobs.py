"""Knobs: typed reading, scoped overrides, the part that belongs in cache keys."""
from __future__ import annotations

import threading

import pytest

from planish import knobs
from planish.codegen.llvm.host import host


@pytest.mark.parametrize(("name", "text", "value"), [
    ("disable", "1", True), ("disable", "off", False), ("disable", "", False), ("num_threads", "3", 3),
    ("omp_num_threads", "4,2", 4), ("pool_bytes", "64M", 64 << 20), ("pool_bytes", "2GiB", 2 << 30),
    ("cache_bytes", "512 ", 512), ("cache_bytes", "8kb", 8192), ("target", "avx2", "avx2"),
    ("cache_dir", "/x", "/x")])
def test_reading(monkeypatch, name, text, value):
    monkeypatch.setenv(knobs.KNOBS[name].env, text)
    assert getattr(knobs, name) == value and type(getattr(knobs, name)) is type(value)


@pytest.mark.parametrize(("name", "text"), [
    ("disable", "perhaps"), ("num_threads", "0"), ("num_threads", "many"), ("pool_bytes", "-1"),
    ("pool_bytes", "1T"), ("target", "avx9"), ("cache_bytes", "lots"), ("tune_seconds", "soon"),
    ("max_graph_breaks", "-1")])
def test_a_bad_text_is_named(monkeypatch, name, text):
    monkeypatch.setenv(knobs.KNOBS[name].env, text)
    variable = knobs.KNOBS[name].env
    with pytest.raises(ValueError, match=f"{variable}='{text}' is not what it takes: (a|one) ") as e:
        knobs.value(name)
    assert "literal" not in str(e.value) and "convert" not in str(e.value)


def test_variables_that_look_like_ours(monkeypatch):
    monkeypatch.setenv("PLANISH_NUM_THREAD", "1")
    assert knobs.unknown() == {"PLANISH_NUM_THREAD": "PLANISH_NUM_THREADS"}


def test_override_is_scoped_and_nests():
    with knobs.override(num_threads=2, disable=True):
        assert (knobs.num_threads, knobs.disable) == (2, True)
        with knobs.override(num_threads=None):
            assert (knobs.num_threads, knobs.disable) == (None, True)
        assert knobs.num_threads == 2
        seen = []
        other = threading.Thread(target=lambda: seen.append(knobs.value("num_threads")))
        other.start()
        other.join()
        assert seen != [2]
    with pytest.raises(TypeError, match="no knob named speed; known: cache_bytes"), knobs.override(speed=1):
        pass
    with pytest.raises(AttributeError, match="no knob 'speed'"):
        _ = knobs.speed


def test_the_knob_that_changes_code_is_in_the_cache_key():
    with knobs.override(target="sse2", cache_dir="/elsewhere"):
        other = host().code_key
    with knobs.override(target="sse2"):
        assert host().code_key == other
    assert (host().code_key != other) == (host().isa in ("avx2", "avx512"))


def test_every_knob_says_what_it_is():
    for name, knob in knobs.KNOBS.items():
        assert knob.name == name and knob.doc and knob.env.isupper()
        assert knob.type_name in ("bool", "count", "limit", "str", "bytes", "seconds", "isa")
