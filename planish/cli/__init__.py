"""The command `planish`. It needs the packages rich and typer: the extra `cli`.

    app.py       the commands
    request.py   what all commands on a model are told: options, the model, its inputs
    models.py    a model and its inputs
    inputs.py    inputs from `--input`, and random ones
    console.py   where output goes, and progress
    faults.py    errors as one line and an exit code

Exit codes: 0 it worked; 1 it failed; 2 the command line is wrong; 130 stopped by Ctrl-C.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (this process's own, by default) and return its exit code."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(f"planish: the command line needs {' and '.join(missing)}: pip install 'planish[cli]'",
              file=sys.stderr)
        return 1
    try:
        from planish.cli.faults import run

        return run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # while the commands are loaded; later ones are told by `run`
        return 130
