"""Capture by tracing: a NumPy function runs once on stand-ins for its arrays, and what they went through is
the graph.

tracer     the stand-in: storage, views, writes; what only a real value can answer is an error with the user's
           line
ufuncs     ufuncs and operators, by the rules of ufunc_table; registry, shape, joining, reduce, contract,
           indexing, by_index, select, create, signals: the tables of functions
faults     what NumPy would warn of: integers divided by 0, quotients that overflow
hooks      what NumPy and Python do not let a stand-in take part in: np.asarray, np.zeros, print, random
           numbers
guards     what the function reads from outside its arguments
trace      the run itself, and how results come from the graph's outputs
"""

from planish.capture.numpy import (
    by_index,
    contract,
    create,
    indexing,
    joining,
    reduce,
    registry,
    select,
    shape,
    signals,
    ufuncs,
)
from planish.capture.numpy.trace import Captured, Result, trace_function
from planish.capture.numpy.tracer import ACTIVE, NeedsValue, Tracer, is_frozen

__all__ = [
    "ACTIVE",
    "Captured",
    "NeedsValue",
    "Result",
    "Tracer",
    "by_index",
    "contract",
    "create",
    "indexing",
    "is_frozen",
    "joining",
    "reduce",
    "registry",
    "select",
    "shape",
    "signals",
    "trace_function",
    "ufuncs",
]
