"""Where the user is: the innermost line that is neither planish's nor NumPy's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import numpy as np

from planish.ir import Location

_PLANISH = str(Path(__file__).parents[1])
_NUMPY = str(Path(np.__file__).parent)
_FOREIGN = (_PLANISH, _NUMPY, "<__array_function__")


def user_frame() -> FrameType:
    """The frame of the user's program that is running now, seen from a call inside planish."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        frame = frame.f_back
    return frame


def user_location() -> Location:
    """The line of the user's program that is running now, seen from a call inside planish."""
    frame = user_frame()
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
