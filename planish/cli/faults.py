"""Errors as people want them at a prompt: one line that says what to do, and an exit code.

No tracebacks, unless asked.
"""
from __future__ import annotations

import _thread
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import typer

from planish import knobs
from planish.errors import PlanishError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
# typer's errors of a command line: their base is click's, of which some versions of typer have a copy
CommandLineError: Any = typer.BadParameter.__mro__[2]


class UsageError(Exception):
    """A command line that makes no sense for this model."""


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line. `--traceback` anywhere in it lets errors through as they are."""
    from planish.cli.app import app

    warnings.showwarning = _show_warning
    sys.unraisablehook = _interrupt_again
    command = typer.main.get_command(app)
    try:
        check_knobs()
        code = command(args=list(arguments), prog_name="planish", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if "--traceback" in arguments:
            raise
        text, code = told(error)
        if isinstance(error, OSError) and error.filename is None:
            _drop_output()
        print(text if text.startswith("Usage: ") else f"planish: {text}", file=sys.stderr)
        return code


def _interrupt_again(unraisable: Any) -> None:
    """Ctrl-C while Python clears up (the callback of a weak reference, a finaliser) is lost there: so once
    more a moment later, when it can be heard."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.01, _thread.interrupt_main)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _drop_output() -> None:
    """Standard output can't take what is left for it: so that nothing more is said about that at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_knobs() -> None:
    """Raises UsageError for an environment variable of ours that can't be read; warns of one that only looks
    like ours."""
    for name, nearest in knobs.unknown().items():
        warnings.warn(f"{name} is not a variable that planish reads; did you mean {nearest}? "
                      "(planish knobs lists all)", stacklevel=2)
    try:
        for name in knobs.KNOBS:
            knobs.value(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def told(error: Exception) -> tuple[str, int]:
    """What is said of an error, and the exit code."""
    if isinstance(error, CommandLineError):
        message = error.format_message()
        hint = "" if message.startswith("Usage: ") else " (see planish --help)"
        return message + hint, error.exit_code
    if isinstance(error, UsageError):
        return str(error), USAGE
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror or error}", FAILED
    if isinstance(error, PlanishError):
        return str(error), FAILED
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}", FAILED
    return f"{type(error).__name__}: {error} (a bug; planish --traceback shows where)", FAILED


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                  file: Any = None, line: str | None = None) -> None:
    print(f"planish: warning: {message}", file=sys.stderr)
