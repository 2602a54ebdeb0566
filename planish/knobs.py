"""Every environment variable of planish, in one typed table.

In: the environment at the moment of asking, or a value set by `override`. Out: a typed value:
`knobs.cache_dir`. The one knob that changes what is generated is `target`: it does so through `Target`, which
is part of every cache key.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Knob:
    """One setting: the variable it is read from, how its text is read, and what it does."""

    name: str
    env: str
    read: Callable[[str], Any]
    default: Any
    doc: str

    @property
    def type_name(self) -> str:
        return self.read.__name__.lstrip("_")


def _bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("a yes or no: 1 or 0")


def _count(text: str) -> int:
    first = text.split(",")[0].strip()  # OMP_NUM_THREADS may list one count per nesting level
    if not first.isdecimal() or int(first) < 1:
        raise ValueError("a whole number from 1 up")
    return int(first)


def _limit(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("a whole number from 0 up")
    return int(text)


def _bytes(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    text = text.strip().lower().removesuffix("b").removesuffix("i")
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not number.strip().isdecimal():
        raise ValueError("a size from 0 up, such as 512M")
    return int(number) * unit


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError("a number of seconds")
    return number


def _isa(text: str) -> str:
    if text not in ("", "sse2", "avx2", "avx512"):
        raise ValueError("one of sse2, avx2, avx512, or empty for this machine's own")
    return text


KNOBS: dict[str, Knob] = {knob.name: knob for knob in (
    Knob("disable", "PLANISH_DISABLE", _bool, False,
         "compile nothing: functions given to jit run as they are, models by the library strategy"),
    Knob("num_threads", "PLANISH_NUM_THREADS", _count, None,
         "threads per call; else OMP_NUM_THREADS, else as many as there are CPUs for us"),
    Knob("omp_num_threads", "OMP_NUM_THREADS", _count, None,
         "threads per call where PLANISH_NUM_THREADS is not set"),
    Knob("cache_dir", "PLANISH_CACHE_DIR", str, None,
         "folder of the disk cache; else $XDG_CACHE_HOME/planish, else ~/.cache/planish"),
    Knob("xdg_cache_home", "XDG_CACHE_HOME", str, None,
         "folder of all programs' caches, where PLANISH_CACHE_DIR is not set"),
    Knob("disable_cache", "PLANISH_DISABLE_CACHE", _bool, False, "neither read nor write the disk cache"),
    Knob("cache_bytes", "PLANISH_CACHE_BYTES", _bytes, 2 << 30,
         "largest size of the disk cache; the least recently used entries go first"),
    Knob("pool_bytes", "PLANISH_POOL_BYTES", _bytes, None,
         "most bytes of free output memory kept for reuse; else an eighth of RAM, 1 GiB at most"),
    Knob("max_graph_breaks", "PLANISH_MAX_GRAPH_BREAKS", _limit, None,
         "most graph breaks of a process; one more is an error (0, in a test run: none may come in)"),
    Knob("target", "PLANISH_TARGET", _isa, "",
         "use no more than this instruction set: sse2, avx2 or avx512"),
    Knob("logs", "PLANISH_LOGS", str, "",
         "channels to log, such as recompiles,fusion,+passes; a wrong name is answered with all there are"),
    Knob("logs_out", "PLANISH_LOGS_OUT", str, None, "file that logs are written to; else standard error"),
    Knob("tune_seconds", "PLANISH_TUNE_SECONDS", _seconds, 120.0,
         "how long one program may be measured in mode max-autotune"),
    Knob("trace", "PLANISH_TRACE", str, None, "folder that every compile writes its passes and code to"),
)}

_NONE: Mapping[str, Any] = MappingProxyType({})
_overrides: ContextVar[Mapping[str, Any]] = ContextVar("planish_knobs", default=_NONE)


def value(name: str) -> Any:
    """The setting now: an enclosing `override`, else the environment, else the default. ValueError names a
    bad text."""
    knob = KNOBS[name]
    overrides = _overrides.get()
    if name in overrides:
        return overrides[name]
    text = os.environ.get(knob.env)
    if text is None or text == "":
        return knob.default
    try:
        return knob.read(text)
    except ValueError as error:
        raise ValueError(f"{knob.env}={text!r} is not what it takes: {error}") from None


def unknown() -> dict[str, str]:
    """Variables in the environment that begin as ours do and are none -> the nearest of ours."""
    ours = [knob.env for knob in KNOBS.values()]
    strange = sorted(name for name in os.environ if name.startswith("PLANISH_") and name not in ours)
    return {name: (get_close_matches(name, ours, 1, 0) or ours)[0] for name in strange}


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Set knobs inside a `with` block, for this thread and the tasks it starts. An unknown name is a
    TypeError."""
    strange = sorted(set(values) - set(KNOBS))
    if strange:
        raise TypeError(f"no knob named {', '.join(strange)}; known: {', '.join(sorted(KNOBS))}")
    token = _overrides.set({**_overrides.get(), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


def __getattr__(name: str) -> Any:
    if name in KNOBS:
        return value(name)
    raise AttributeError(f"planish.knobs has no knob {name!r}")
