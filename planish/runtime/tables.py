"""What the call path and a compiled body read from memory: records, and the constants that go with them."""
from __future__ import annotations

import ctypes

RELEASE_GIL, UNWRAP = 2, 4
ANSWERS = 8  # what the `normalise` callable returns is the call's result, not arguments to try again with
OPENMP = 16  # runs on OpenMP's threads where there are any (openmp.py)
NORMALISE_FAILED = -1  # the status for "normalised arguments do not fit either"

WORTH_THREADS = 1 << 18  # multiply-adds that threads share, from which a call uses several: 5 us on one

# Outputs from this size on come from our own pool, 64-byte aligned; smaller ones from NumPy, whose C heap
# keeps them warm.
LARGE = 64 << 10
MAX_DIMS = 64  # NumPy's own limit


# What an input of a program on tensors is made of.
TENSOR, PLAIN, FLOAT, INTEGER, SIZES = range(5)


def _dlpack(code: int, bits: int) -> int:
    """A dtype as dlpack.h packs it: code, bits, lanes."""
    return code | bits << 8 | 1 << 16


DLPACK_DTYPES = {
    **{f"int{n}": _dlpack(0, n) for n in (8, 16, 32, 64)},
    **{f"uint{n}": _dlpack(1, n) for n in (8, 16, 32, 64)},
    **{f"float{n}": _dlpack(2, n) for n in (16, 32, 64)}, "bfloat16": _dlpack(4, 16), "bool": _dlpack(6, 8)}


class ArrayTable(ctypes.Structure):
    """What is expected of an input, which is the call's argument number `argument`; or made for an output.

    For tensors `type_number` is DLPack's word for the dtype, `order` points to axes: the program's axis i is
    the tensor's order[i] (of an input), the tensor's axis i the program's order[i] (of an output). `source`
    is what the argument is: TENSOR; PLAIN, a tensor known to be no lazy negative, taken if it has no
    attributes of its own; FLOAT or INTEGER, a Python number of the type `descr` that is a scalar of 8 bytes
    here; SIZES: ints, in the arguments that `order` tells, are the symbols `dims`."""

    _fields_ = [("descr", ctypes.c_void_p), ("type_number", ctypes.c_int64), ("rank", ctypes.c_int64),
                ("item_bytes", ctypes.c_int64), ("dims", ctypes.c_void_p), ("argument", ctypes.c_int64),
                ("order", ctypes.c_void_p), ("source", ctypes.c_int64)]


class ProgramTable(ctypes.Structure):
    """A program as the entry sees it. `arena` is bytes, `work` what decides about threads (`ProgramSpec`);
    each may be ~index of the dim that holds it. `threads` per call, 0: as many as the process uses."""

    _fields_ = [("body", ctypes.c_void_p), ("derive", ctypes.c_void_p), ("n_inputs", ctypes.c_int64),
                ("n_outputs", ctypes.c_int64), ("n_constants", ctypes.c_int64), ("n_dims", ctypes.c_int64),
                ("flags", ctypes.c_int64), ("arena", ctypes.c_int64), ("work", ctypes.c_int64),
                ("normalise", ctypes.c_void_p), ("fail", ctypes.c_void_p), ("constants", ctypes.c_void_p),
                ("inputs", ctypes.c_void_p), ("outputs", ctypes.c_void_p), ("threads", ctypes.c_int64),
                ("n_arguments", ctypes.c_int64)]


class Frame(ctypes.Structure):
    """What a compiled body gets."""

    _fields_ = [("buffers", ctypes.c_void_p), ("dims", ctypes.c_void_p), ("pool", ctypes.c_void_p),
                ("status", ctypes.c_int32), ("reserved", ctypes.c_int32)]
