"""Where output goes: answers to standard output, progress to standard error."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PIPE_WIDTH = 110  # of tables that no terminal limits


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def show(*parts: RenderableType) -> None:
    out = console()
    for part in parts:
        out.print(part)


def show_json(value: Any) -> None:
    """One JSON document, and nothing else, on standard output."""
    from planish.inspect.explain import as_json

    print(json.dumps(as_json(value), indent=2))


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on the terminal during work of `total` steps; call what it gives at the start of each step."""
    with measured_progress() as update:
        done = iter(range(total + 1))
        yield lambda text: update(text, next(done, total), total)


@contextmanager
def measured_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal; call what it gives with a text, the steps done, and all there are."""
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False),
               TimeElapsedColumn())
    silent = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("")
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)
