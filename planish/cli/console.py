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
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"),
               TimeElapsedColumn())
    silent = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("", total=total)
        done = iter(range(total + 1))
        yield lambda text: bar.update(task, description=text, completed=next(done, total))
