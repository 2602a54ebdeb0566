"""What planish says while it works: one logger of Python's `logging` per channel, `planish.recompiles` and so
on.

In: the knobs `logs` and `logs_out`, read whenever something is about to be said. Out: the logger, at the
level they ask for; without them nothing is touched, and a program sets up the loggers as any others.

    PLANISH_LOGS="recompiles,+passes"      to standard error: what these channels say, and passes in full
    PLANISH_LOGS_OUT=planish.log           to that file instead
"""
from __future__ import annotations

import logging
import sys
import threading
import warnings

from planish import knobs
from planish.errors import LogsWarning

CHANNELS = {
    "graph_breaks": "where a torch program is cut: cause, the user's line, what to write instead",
    "recompiles": "why a function was compiled again: argument, old value, new value, and where",
    "guards": "what a compiled function relies on that is not among its arguments",
    "passes": "nodes before and after every pass, its time; with + the rules that fired",
    "fusion": "every decision of fusion, layout and tiling",
    "perf_hints": "what a program could do to become faster",
    "tuning": "what max-autotune measured: every kernel, op and program, and who won; with + who was tried",
    "cache": "machine code found in the cache, or made",
    "rewrite": "rewriting that did not end",
}
_LEVELS = {"+": logging.DEBUG, "": logging.INFO, "-": logging.ERROR}

_root = logging.getLogger("planish")
_lock = threading.Lock()
_settings: tuple[str, str | None] = ("", None)   # what the loggers are set up for
_handler: logging.Handler | None = None


def channel(name: str) -> logging.Logger:
    """The logger of one of CHANNELS, set up as the knobs are now."""
    assert name in CHANNELS
    wanted = knobs.value("logs"), knobs.value("logs_out")
    if wanted != _settings:
        with _lock:
            _set_up(*wanted)
    return _root.getChild(name)


def levels_of(text: str) -> dict[str, int]:
    """Channel -> level, of such a text as "recompiles,+passes,-fusion": `+` more, `-` only errors. One
    LogsWarning for all that are no channels."""
    levels, unknown = {}, []
    for word in filter(None, (w.strip() for w in text.split(","))):
        sign = word[0] if word[0] in "+-" else ""
        name = word[len(sign):]
        if name in CHANNELS:
            levels[name] = _LEVELS[sign]
        else:
            unknown.append(name)
    if unknown:
        known = ", ".join(CHANNELS)
        warnings.warn(f"PLANISH_LOGS: there is no channel {', '.join(unknown)}; there are {known}",
                      LogsWarning, stacklevel=4)
    return levels


def _set_up(text: str, out: str | None) -> None:
    """Undo what was set up before, and follow the new settings."""
    global _settings, _handler
    if _handler is not None:
        _root.removeHandler(_handler)
        _handler.close()
        _handler, _root.propagate = None, True
        for name in CHANNELS:
            _root.getChild(name).setLevel(logging.NOTSET)
    _settings = text, out
    if not text:
        return
    levels = levels_of(text)
    _handler, _root.propagate = _opened(out), False
    _handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    _root.addHandler(_handler)
    for name, level in levels.items():
        _root.getChild(name).setLevel(level)


def _opened(out: str | None) -> logging.Handler:
    try:
        return logging.StreamHandler(sys.stderr) if out is None else logging.FileHandler(out)
    except OSError as error:
        why = f"can't be written ({error.strerror}); logs go to standard error"
        warnings.warn(f"PLANISH_LOGS_OUT={out!r} {why}", LogsWarning, stacklevel=5)
        return logging.StreamHandler(sys.stderr)
