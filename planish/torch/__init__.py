"""Planish for PyTorch programs: the backend of torch.compile, `compile`, `from_exported`.

    dynamo.py     what torch.compile(backend="planish") calls
    entry.py      planish.compile
    exported.py   planish.from_exported
    program.py    the call: tensors in, tensors out
    weights.py    parameters as constants, and their guards
    failures.py   wrong programs fail as eager fails
    watch.py      what torch says of breaks, recompiles and limits; breaks.py and recompiles.py read it
    frames.py     the function that Dynamo is capturing
    around.py     what is done while it captures: Python's collector waits, and
    floats.py     floats become values of the call
    settings.py   modes and options

torch is loaded when one of them is called.
"""

from __future__ import annotations

from planish.torch.dynamo import backend
from planish.torch.entry import compile
from planish.torch.exported import ExportedProgram, from_exported
from planish.torch.watch import listen

listen()  # now: torch tells of a break before it calls a backend for the first time

__all__ = ["ExportedProgram", "backend", "compile", "from_exported"]
