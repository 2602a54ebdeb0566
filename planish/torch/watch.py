"""What Dynamo says while it captures, and what planish compiles of it, told to whoever asks.

    breaks      torch's log artifact `graph_breaks`, heard by a handler on its loggers
    recompiles  when planish is called to compile a function again, the guards that failed
    limits      torch's warning that it gives up compiling a function
    graphs      every graph planish compiled: its program, its calls, the time inside

They go to the channels `graph_breaks` and `recompiles` of the logs (each break once), to a warning (a limit,
the first break of a function), and to every `Watch` that is open. More breaks than `PLANISH_MAX_GRAPH_BREAKS`
are an error. `listen` is called when planish.torch is loaded and before every
compile: torch's own set-up of its loggers may have undone it.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from types import CodeType
from typing import Any

from planish import knobs
from planish.errors import GraphBreakError, GraphBreakWarning, RecompileWarning
from planish.logs import channel
from planish.torch.around import attend
from planish.torch.breaks import Break, break_of
from planish.torch.frames import captured_frame, is_ours
from planish.torch.recompiles import Recompile

BREAK_LOGGERS = ("symbolic_convert.__graph_breaks", "convert_frame.__graph_breaks")
LIMIT_LOGGER = "convert_frame"

REGION = "planish graph"  # the name of a compiled graph's calls in torch's profiler

Run = Callable[[list[Any]], Sequence[Any]]


@dataclass
class GraphRun:
    """One compiled graph: its ATen calls, its program (None before a first call that folds weights), what its
    calls took, and why AOTAutograd captured it ("": it did not)."""

    name: str
    full_capture: str = ""
    operators: int = 0
    program: Any = None
    compile_seconds: float = 0.0
    calls: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0


@dataclass
class Watch:
    """What was heard while it was open. With `marking`, calls of compiled graphs show in torch's profiler."""

    compiles: int = 0
    full_captures: dict[str, str] = field(default_factory=dict)

    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    graphs: dict[str, GraphRun] = field(default_factory=dict)
    marking: bool = False


# `python -m benchmarks.calls`, "a graph break" over "one graph"
BREAK_COSTS = "some 12 us by torch.compile and 31 by planish.compile"

_watches: list[Watch] = []
_told: set[tuple[str, int, str, str]] = set()
_warned: set[tuple[str, str]] = set()
_lock = threading.Lock()


@contextmanager
def watching() -> Iterator[Watch]:
    """Hear all that is captured and compiled inside the block, by any thread."""
    listen()
    watch = Watch()
    with _lock:
        _watches.append(watch)
    try:
        yield watch
    finally:
        with _lock:
            _watches.remove(watch)


def listen() -> None:
    """Hear torch's loggers. They are found by name: torch need not be loaded."""
    attend()
    for name in BREAK_LOGGERS:
        logger = _hear(name, _BREAKS)
        if not logger.isEnabledFor(logging.DEBUG):  # not with TORCH_LOGS: heard here, but by nobody else
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
    _hear(LIMIT_LOGGER, _LIMITS)


def _hear(name: str, handler: logging.Handler) -> logging.Logger:
    logger = logging.getLogger(f"torch._dynamo.{name}")
    if handler not in logger.handlers:
        logger.addHandler(handler)
    return logger


class _Handler(logging.Handler):
    """Hands a message to a function, if the frame that is being captured is compiled by planish."""

    def __init__(self, take: Callable[[logging.LogRecord], None]):
        super().__init__()
        self.take = take

    def emit(self, record: logging.LogRecord) -> None:
        frame = captured_frame()
        if frame is None or is_ours(frame.backend):
            self.take(record)


# --- graph breaks


def _on_break(record: logging.LogRecord) -> None:
    found = break_of(record.getMessage())
    key = (found.file, found.line, found.cause, found.what)
    for watch in _watches:
        if key not in [(b.file, b.line, b.cause, b.what) for b in watch.breaks]:
            watch.breaks.append(found)
    if key not in _told:
        _told.add(key)
        channel("graph_breaks").info("%s", found)
    most = knobs.max_graph_breaks
    if most is not None and len(_told) > most:
        raise GraphBreakError(f"graph break {len(_told)}, where PLANISH_MAX_GRAPH_BREAKS={most}: {found}")
    if not _watches:
        _warn(found)


def _warn(found: Break) -> None:
    """One line for the first break of each function."""
    if (found.file, found.function) not in _warned:
        _warned.add((found.file, found.function))
        text = (
            f"{found.function} breaks in two here ({found.cause}): each call enters compiled code once more, "
            f"{BREAK_COSTS}, and nothing is fused across; planish.explain measures it and lists all"
        )
        warnings.warn_explicit(text, GraphBreakWarning, found.file, found.line)


# --- recompiles


def on_compile() -> None:
    """Called when Dynamo gives a graph: tells why, if it has compiled this function before."""
    listen()
    for watch in _watches:
        watch.compiles += 1
    frame = captured_frame()
    reason = _latest_failure(frame.code) if frame is not None else None
    if frame is None or reason is None:
        return
    found = frame.recompile(reason)
    for watch in _watches:
        watch.recompiles.append(found)
    channel("recompiles").info("%s", found)


def _latest_failure(code: CodeType) -> str | None:
    """The failure of the newest of the function's variants in this compile, if it is not the first."""
    from torch._dynamo.utils import guard_failures
    from torch._guards import CompileContext

    now = CompileContext.current_compile_id()
    variants = getattr(now, "frame_compile_id", 0) or 0
    failures = guard_failures.get(code, [])[-variants:] if variants else []
    return max(failures, key=_number_of_variant, default=None)


def _number_of_variant(reason: str) -> int:
    head = reason.partition(":")[0].strip("[]")
    digits = head.partition("/")[2].partition("_")[0]
    return int(digits) if digits.isdigit() else -1


# --- limits


def _on_limit(record: logging.LogRecord) -> None:
    if not str(record.msg).startswith("torch._dynamo hit config.") or not isinstance(record.args, tuple):
        return
    limit, number, function, *rest = record.args
    frame = captured_frame()
    last = str(rest[0]) if rest else ""
    if frame is not None:
        function, last = f"{frame.function} ({frame.place})", frame.recompile(last).change
    text = (
        f"{function} has {number} compiled variants (torch._dynamo.config.{limit}): calls that fit none of "
        f"them run in eager from now on. What changed last: {last}"
    )
    for watch in _watches:
        watch.limits.append(text)
    if frame is None:
        warnings.warn(text, RecompileWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, RecompileWarning, frame.code.co_filename, frame.code.co_firstlineno)


_BREAKS, _LIMITS = _Handler(_on_break), _Handler(_on_limit)


# --- graphs


def on_graph(name: str, graph: Any, run: Run) -> Run:
    """Called with a graph's compiled form: that, with its calls counted and timed where a watch is open."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and "getitem" not in str(n.target)]
    for watch in _watches:
        entry = _graph(watch, name)
        entry.operators = len(calls)
        entry.full_capture = watch.full_captures.get(name.rpartition("_")[2], "")
        run = _counted(run, watch, entry)
    return run


def on_full_capture(number: int, reason: str) -> None:
    """Called when AOTAutograd is to capture a graph: why."""
    for watch in _watches:
        watch.full_captures[str(number)] = reason


def listens_to(run: Run) -> bool:
    """Whether a watch counts the calls of what `on_graph` gave."""
    return getattr(run, "is_counted", False)


def _counted(run: Run, watch: Watch, graph: GraphRun) -> Run:
    from torch.profiler import record_function

    def counted(arguments: list[Any]) -> Sequence[Any]:
        start = perf_counter()
        try:
            with record_function(REGION) if watch.marking else nullcontext():
                return run(arguments)
        finally:
            seconds = perf_counter() - start
            graph.first_seconds = graph.first_seconds if graph.calls else seconds
            graph.calls, graph.seconds = graph.calls + 1, graph.seconds + seconds

    counted._boxed_call = counted.is_counted = True  # type: ignore[attr-defined]
    return counted


def on_program(name: str, program: Any, seconds: float) -> None:
    """Called when a graph's program is built."""
    for graph in (_graph(watch, name) for watch in _watches):
        graph.program, graph.compile_seconds = program, graph.compile_seconds + seconds


def _graph(watch: Watch, name: str) -> GraphRun:
    return watch.graphs.setdefault(name, GraphRun(name))
