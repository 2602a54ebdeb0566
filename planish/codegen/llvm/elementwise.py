"""The table of elementwise operations: op name and dtype -> the LLVM instructions that compute it.

In: an op's name, dtypes by name, operands in register form (see `registers`), any number of lanes. Out: the
result in register form, rounded to its dtype. NumPy 2 and IEEE 754 are the meaning. A vector and its scalar
tail go through the same formula and agree bit for bit. No fast-math flag is ever set; numerics="fast" chooses
other kernels, which honour NaN and inf too. "strict" uses the kernels of "default": transcendental functions
are planish's own in both, within `math.ULP` of the true value, and every other operation is exact.

Best on targets with fused multiply-add, rounding and float16 conversion instructions (x86-64-v3, any
AArch64); elsewhere LLVM calls fma (of doubles), floor and the like from the C library, lane by lane.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cache

from planish.codegen.llvm import floating, integer, math
from planish.codegen.llvm.builder import Builder, Value
from planish.codegen.llvm.casts import bitcast, cast
from planish.codegen.llvm.lanes import Kernel, Lanes, fma
from planish.codegen.llvm.registers import COMPUTED, DTYPES, NARROW, SIGNED, UNSIGNED, round_to
from planish.errors import UnsupportedOp

_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc"}
_COMPARISONS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def _compare(kind: str) -> dict[str, Kernel]:
    """lt, le, gt, ge as "fcmp o", "icmp s" or "icmp u", and eq, ne of that instruction."""
    equal, unequal = ("fcmp oeq", "fcmp une") if kind.startswith("f") else ("icmp eq", "icmp ne")
    return {name: integer.comparison(kind + name) for name in _COMPARISONS} | {
        "eq": integer.comparison(equal), "ne": integer.comparison(unequal)}


_BITS: dict[str, Kernel] = {
    "bitwise_not": integer.invert, "bitwise_and": integer.instruction("and"),
    "bitwise_or": integer.instruction("or"), "bitwise_xor": integer.instruction("xor")}

BOOL: dict[str, Kernel] = _BITS | _compare("icmp u") | {
    "add": integer.instruction("or"), "mul": integer.instruction("and"), "logical_not": integer.invert,
    "maximum": integer.instruction("or"), "minimum": integer.instruction("and"),
    "fmax": integer.instruction("or"), "fmin": integer.instruction("and"),
    "is_nan": integer.always(False), "is_inf": integer.always(False), "is_finite": integer.always(True),
    "abs": integer.identity}

_INTEGER: dict[str, Kernel] = _BITS | {
    "add": integer.instruction("add"), "sub": integer.instruction("sub"), "mul": integer.instruction("mul"),
    "fma": integer.multiply_add, "neg": lambda x: -x, "logical_not": integer.is_zero,
    "shift_left": integer.shift_left,
    "is_nan": integer.always(False), "is_inf": integer.always(False), "is_finite": integer.always(True),
} | dict.fromkeys(_ROUNDINGS, integer.identity)

SIGNED_INTEGER: dict[str, Kernel] = _INTEGER | _compare("icmp s") | {
    "abs": integer.absolute, "sign": integer.sign,
    "maximum": integer.extreme("sgt"), "minimum": integer.extreme("slt"),
    "fmax": integer.extreme("sgt"), "fmin": integer.extreme("slt"),
    "floor_div": integer.floor_divide, "mod": integer.floor_mod,
    "trunc_div": integer.trunc_divide, "rem": integer.remainder, "pow": integer.power,
    "shift_right": integer.shift_right, "mul_high": integer.high_product("sext")}

UNSIGNED_INTEGER: dict[str, Kernel] = _INTEGER | _compare("icmp u") | {
    "abs": integer.identity, "sign": integer.sign_unsigned,
    "maximum": integer.extreme("ugt"), "minimum": integer.extreme("ult"),
    "fmax": integer.extreme("ugt"), "fmin": integer.extreme("ult"),
    "floor_div": integer.divide_unsigned, "mod": integer.remainder_unsigned,
    "trunc_div": integer.divide_unsigned, "rem": integer.remainder_unsigned, "pow": integer.power_unsigned,
    "shift_right": integer.shift_right_unsigned, "mul_high": integer.high_product("zext")}

_EXTREMES: dict[str, Kernel] = {
    "maximum": floating.extreme("gt", ignore_nan=False), "minimum": floating.extreme("lt", ignore_nan=False),
    "fmax": floating.extreme("gt", ignore_nan=True), "fmin": floating.extreme("lt", ignore_nan=True)}

# Operations on floats whose result is a value of the operands' dtype without rounding
_UNROUNDED: dict[str, Kernel] = _EXTREMES | _compare("fcmp o") | {
    "neg": lambda x: -x, "abs": floating.absolute, "sign": floating.sign, "copysign": floating.copysign,
    "is_nan": floating.is_nan, "is_inf": floating.is_inf, "is_finite": floating.is_finite,
    "logical_not": floating.is_zero,
} | {name: floating.rounding(intrinsic) for name, intrinsic in _ROUNDINGS.items()}

_ROUNDED: dict[str, Kernel] = {
    "add": integer.instruction("fadd"), "sub": integer.instruction("fsub"),
    "mul": integer.instruction("fmul"), "div": integer.instruction("fdiv"), "fma": fma,
    "sqrt": floating.square_root, "rsqrt": floating.reciprocal_root, "reciprocal": floating.reciprocal,
    "floor_div": floating.floor_divide, "mod": floating.floor_mod,
    "trunc_div": floating.trunc_divide, "rem": floating.fmod}

_FLOAT = _UNROUNDED | _ROUNDED
SINGLE: dict[str, Kernel] = _FLOAT | math.SINGLE | {"next_after": floating.next_after("float32")}
DOUBLE: dict[str, Kernel] = _FLOAT | math.DOUBLE | {"next_after": floating.next_after("float64")}
BFLOAT: dict[str, Kernel] = SINGLE | math.BFLOAT | {"next_after": floating.next_after("bfloat16")}
HALF: dict[str, Kernel] = SINGLE | math.HALF | {"next_after": floating.next_after("float16")} | {
    name: floating.flipped(kernel) for name, kernel in _EXTREMES.items()}

TABLE: dict[str, dict[str, Kernel]] = {
    "bool": BOOL, "float16": HALF, "bfloat16": BFLOAT, "float32": SINGLE, "float64": DOUBLE,
    **dict.fromkeys(SIGNED, SIGNED_INTEGER), **dict.fromkeys(UNSIGNED, UNSIGNED_INTEGER)}

_CONVERSIONS: dict[str, Callable[[Builder, Value, str, str], Value]] = {"cast": cast, "bitcast": bitcast}


def supports(op: str, in_dtypes: tuple[str, ...]) -> bool:
    """Whether `emit` knows this op on these dtypes."""
    if op in _CONVERSIONS:
        return in_dtypes[0] in DTYPES
    if op == "select":
        return len(in_dtypes) == 3 and in_dtypes[0] == "bool" and in_dtypes[1] == in_dtypes[2] in DTYPES
    return len(set(in_dtypes)) == 1 and op in TABLE.get(in_dtypes[0], {})


def emit(b: Builder, op: str, in_dtypes: tuple[str, ...], out_dtype: str, args: list[Value],
         numerics: str = "default") -> Value:
    """Write `op` on `args` (register form, equal lanes) and give its result, rounded, in register form.

    `numerics` is "strict", "default" or "fast". Raises UnsupportedOp where `supports` is false.
    """
    if not supports(op, in_dtypes):
        raise UnsupportedOp(f"{op} has no elementwise form for {', '.join(in_dtypes)} on LLVM targets; "
                            f"{_known(op)}cast the operands first, or use another op")
    if op in _CONVERSIONS:
        return _CONVERSIONS[op](b, args[0], in_dtypes[0], out_dtype)
    if op == "select":
        return b.select(*args)
    result = _kernel(op, in_dtypes[0], numerics)(*(Lanes(b, x) for x in args)).value
    return result if op in _UNROUNDED or op == "next_after" else round_to(b, result, out_dtype)


def _kernel(op: str, dtype: str, numerics: str) -> Kernel:
    if numerics == "fast" and op in math.FAST_SINGLE and dtype in (*NARROW, "float32"):
        return math.FAST_SINGLE[op]
    return TABLE[dtype][op]


@cache
def _known(op: str) -> str:
    known = [dtype for dtype in COMPUTED if op in TABLE[dtype]]
    return f"it exists for {', '.join(known)}: " if known else ""
