"""Every elementwise operation, compiled with 1, 4, 8 and 16 lanes, against NumPy on random and specials."""
from __future__ import annotations

import ctypes
import ctypes.util
import re

import ml_dtypes
import numpy as np
import pytest

from planish.codegen.llvm import math
from planish.codegen.llvm.elementwise import TABLE, emit, supports
from planish.codegen.llvm.registers import COMPUTED, FLOATS, NARROW, SIGNED, UNSIGNED
from planish.errors import UnsupportedOp

harness = pytest.importorskip("tests.codegen.elementwise_harness")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and overflow are the subject

N = 1 << 14
INTEGERS = (*SIGNED, *UNSIGNED)
PREDICATES = {"is_nan", "is_inf", "is_finite", "logical_not", "eq", "ne", "lt", "le", "gt", "ge"}


def samples(dtype: str, count: int, seed: int = 0) -> list[np.ndarray]:
    """`count` arrays: all pairs of special values first, then random bit patterns and moderate numbers."""
    rng = np.random.default_rng(seed)
    kind = harness.numpy_dtype(dtype)
    special = _specials(dtype)
    grids = np.meshgrid(*[special] * min(count, 2))
    result = []
    for i in range(count):
        x = _random(dtype, rng)
        grid = grids[i % len(grids)].ravel()
        x[: grid.size] = grid
        result.append(x.astype(kind))
    return result


def _specials(dtype: str) -> np.ndarray:
    kind = harness.numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        values = (0, 1, 2, 3, 7, 8, 15, 31, 63, 64, -1, -2, -3, info.max, info.min, info.min + 1)
        return np.array([v % 2 ** info.bits for v in values], f"u{info.bits // 8}").view(dtype)
    info = ml_dtypes.finfo(kind)
    half = [0, 1, 0.5, 1.5, 2.5, 0.1, 3, 7, 1e4, np.inf, info.max, info.tiny, info.smallest_subnormal]
    return np.array([*half, *(-np.array(half, np.float64)), np.nan]).astype(kind)


def _random(dtype: str, rng: np.random.Generator) -> np.ndarray:
    kind = harness.numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, N).astype(bool)
    x = np.frombuffer(rng.bytes(N * kind.itemsize), kind).copy()
    if dtype in INTEGERS:
        x[N // 2:] = rng.integers(0, 20, N // 2).astype(kind) - kind.type(7 if dtype in SIGNED else 0)
    else:
        x[N // 2:] = (rng.standard_normal(N // 2) * 10).astype(kind)
    return x


# --- what NumPy says

def _integer_reference(op: str, x: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    """Operations whose NumPy form raises or differs from C: by Python's integers of any size."""
    bits, kind = x.dtype.itemsize * 8, x.dtype
    wrap = lambda values: np.array([v % 2 ** bits for v in values], f"u{bits // 8}").view(kind)  # noqa: E731
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    if op == "mul_high":
        return wrap([(a * b) >> bits for a, b in pairs])
    if op == "pow":
        return wrap([_integer_power(a, b, bits) for a, b in pairs])
    quotients = [0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs]
    if op == "trunc_div":
        return wrap(quotients)
    return wrap([0 if b == 0 else a - q * b for (a, b), q in zip(pairs, quotients, strict=True)])


def _integer_power(a: int, b: int, bits: int) -> int:
    if b >= 0:
        return pow(a, b, 2 ** bits)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def _wide(function, *xs):
    """A float function at float32 for the narrow floats, rounded once at the end."""
    narrow = xs[0].dtype.itemsize == 2
    ys = [x.astype(np.float32) for x in xs] if narrow else xs
    return function(*ys).astype(xs[0].dtype)


REFERENCE = {
    "neg": lambda x: -x, "abs": np.abs, "sign": np.sign, "sqrt": lambda x: _wide(np.sqrt, x),
    "rsqrt": lambda x: _wide(lambda v: v.dtype.type(1) / np.sqrt(v), x),
    "reciprocal": lambda x: _wide(lambda v: v.dtype.type(1) / v, x),
    "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
    "is_nan": np.isnan, "is_inf": np.isinf, "is_finite": np.isfinite, "logical_not": np.logical_not,
    "bitwise_not": np.invert, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floor_div": np.floor_divide, "mod": np.remainder, "maximum": np.maximum, "minimum": np.minimum,
    "fmax": np.fmax, "fmin": np.fmin, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor, "shift_left": np.left_shift, "shift_right": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "copysign": np.copysign, "next_after": np.nextafter}


def reference(op: str, dtype: str, *xs: np.ndarray) -> np.ndarray:
    if dtype in INTEGERS and op in ("mul_high", "pow", "trunc_div", "rem"):
        return _integer_reference(op, *xs)
    if dtype in FLOATS and op == "rem":
        return _wide(np.fmod, *xs)
    if dtype in FLOATS and op == "trunc_div":
        return _wide(lambda x, y: np.trunc(x / y), *xs)
    if dtype in NARROW and (op in ("floor_div", "mod", "add", "sub", "mul", "div") or op in ROUNDINGS):
        return _wide(REFERENCE[op], *xs)
    return REFERENCE[op](*xs)


def _zeros_agree(op: str, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """`expected`, with the zeros of `got` where NumPy itself answers by the length of the array."""
    both = (got == 0) & (expected == 0)
    return np.where(both, got, expected) if op in ("fmax", "fmin") else expected


ROUNDINGS = ("floor", "ceil", "round", "trunc")
OF_TWO = ("pow", "hypot", "atan2", "gate")
ARITY = dict.fromkeys((*ROUNDINGS, "neg", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "is_nan", "is_inf",
                       "is_finite", "logical_not", "bitwise_not"), 1)
EXACT = [(op, dtype) for dtype in COMPUTED for op in TABLE[dtype]
         if op != "fma" and (op not in math.DOUBLE or (op == "pow" and dtype in INTEGERS))]


@pytest.mark.parametrize(("op", "dtype"), EXACT)
def test_exact_operations(op, dtype):
    xs = samples(dtype, ARITY.get(op, 2))
    expected = reference(op, dtype, *xs)
    out = "bool" if op in PREDICATES else dtype
    got = harness.run(op, (dtype,) * len(xs), out, *xs)
    if dtype == "bfloat16" and op in ("sign", "maximum", "minimum", "next_after"):
        expected = np.where((got == 0) & (expected == 0), got, expected)  # ml_dtypes' zeros are not NumPy's
    harness.assert_same_bits(got, _zeros_agree(op, got, expected), f"{op} {dtype}", *xs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_choose_one_zero(dtype):
    """Of two equal zeros: the same operand in every lane count, and NumPy's for maximum and minimum."""
    x, y = (np.array([-0.0, 0.0] * 16), np.array([0.0, -0.0] * 16))
    x, y = x.astype(harness.numpy_dtype(dtype)), y.astype(harness.numpy_dtype(dtype))
    for op in ("maximum", "minimum", "fmax", "fmin"):
        got = harness.run(op, (dtype, dtype), dtype, x, y)
        harness.assert_same_bits(got, x if dtype == "float16" else y, f"{op} {dtype}", x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fma_rounds_once(dtype):
    x, y, z = samples(dtype, 3)
    got = harness.run("fma", (dtype,) * 3, dtype, x, y, z)
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), "fmaf" if dtype == "float32" else "fma")
    c_type = ctypes.c_float if dtype == "float32" else ctypes.c_double
    function.restype, function.argtypes = c_type, [c_type] * 3
    expected = np.array([function(*map(float, v)) for v in zip(x, y, z, strict=True)], dtype)
    harness.assert_same_bits(got, expected, f"fma {dtype}", x, y, z)


@pytest.mark.parametrize("dtype", COMPUTED)
def test_select(dtype):
    x, y = samples(dtype, 2)
    mask = samples("bool", 1, seed=3)[0]
    got = harness.run("select", ("bool", dtype, dtype), dtype, mask, x, y)
    harness.assert_same_bits(got, np.where(mask, x, y), f"select {dtype}")


# --- conversions

@pytest.mark.parametrize("source", COMPUTED)
@pytest.mark.parametrize("target", COMPUTED)
def test_cast(source, target):
    x = samples(source, 1)[0]
    expected = _cast_reference(x, source, target)
    got = harness.run("cast", (source,), target, x, lanes=(1, 8))
    harness.assert_same_bits(got, expected, f"cast {source} -> {target}", x)


def _cast_reference(x: np.ndarray, source: str, target: str) -> np.ndarray:
    if target == "bool":
        return x.astype(np.float32) != 0 if source in NARROW else x != 0
    if source in FLOATS and target in INTEGERS:
        return _c_cast(x.astype(np.float64), target)
    if "bfloat16" in (source, target) and source != target:
        return x.astype(np.float32).astype(harness.numpy_dtype(target))
    return x.astype(harness.numpy_dtype(target))


def _c_cast(x: np.ndarray, target: str) -> np.ndarray:
    """What x86-64's conversion instructions give: see `casts`."""
    bits = np.iinfo(target).bits
    through = 64 if bits == 64 or target == "uint32" else 32
    values = []
    for v in x.tolist():
        shifted = target == "uint64" and v >= 2.0 ** 63
        w = v - 2.0 ** 63 if shifted else v
        fits = np.isfinite(w) and -2 ** (through - 1) <= int(w) < 2 ** (through - 1)
        values.append(((int(w) if fits else -2 ** (through - 1)) + shifted * 2 ** 63) % 2 ** bits)
    return np.array(values, f"u{bits // 8}").view(target)


@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_cast_in_range_is_numpys(source, target):
    info = np.iinfo(target)
    x = np.random.default_rng(1).uniform(max(info.min, -6e4), min(info.max, 6e4), N).astype(source)
    expected = x.astype(target)
    harness.assert_same_bits(harness.run("cast", (source,), target, x, lanes=(8,)), expected, "cast", x)


def test_bitcast():
    for source, target in (("float32", "int32"), ("int32", "float32"), ("float16", "uint16"),
                           ("bfloat16", "int16"), ("int16", "bfloat16"), ("uint64", "float64"),
                           ("bool", "uint8")):
        x = samples(source, 1)[0]
        got = harness.run("bitcast", (source,), target, x)
        harness.assert_same_bits(got, x.view(harness.numpy_dtype(target)), f"bitcast {source} {target}", x)


# --- narrow floats, all 65536 values

@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_functions_everywhere(dtype):
    """The f32 kernel, rounded once: at most 0.51 ULP of the narrow type."""
    x = np.arange(1 << 16, dtype=np.uint16).view(harness.numpy_dtype(dtype))
    for op in ("exp", "log", "tanh", "sin", "expm1", "sqrt", "sigmoid"):
        got = harness.run(op, (dtype,), dtype, x, lanes=(1, 8))
        wide = x.astype(np.float64)
        exact = 1 / (1 + np.exp(-wide)) if op == "sigmoid" else getattr(np, op)(wide)
        rounded = exact.astype(np.float32).astype(x.dtype)
        differs = (got != rounded) & ~((got != got) & (rounded != rounded))
        unit = np.abs(np.nextafter(rounded, harness.numpy_dtype(dtype).type(np.inf)).astype(np.float64)
                      - rounded.astype(np.float64))
        error = np.abs(got.astype(np.float64) - exact)[differs] / unit[differs]
        assert (error <= 0.51).all(), f"{op} {dtype}: {x[differs][error > 0.51][:5]}"


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_rounding_is_to_even(dtype):
    bits = np.random.default_rng(2).integers(0, 1 << 32, N, dtype=np.uint32)
    bits[: N // 2] = (bits[: N // 2] & 0xFFFF0000) | 0x8000  # ties of bfloat16
    bits[N // 2: N // 2 + N // 4] &= 0xFFFFF000
    x = bits.view(np.float32)
    expected = x.astype(harness.numpy_dtype(dtype))
    harness.assert_same_bits(harness.run("cast", ("float32",), dtype, x), expected, f"round to {dtype}", x)


def test_float64_to_float16_rounds_once():
    """A hair beside a tie of float16, too fine for float32: rounding by way of it would go the wrong way."""
    halves = np.random.default_rng(4).integers(0, 0x7BFF, N).astype(np.uint16).view(np.float16)
    ties = halves.astype(np.float64) + np.spacing(halves).astype(np.float64) / 2
    x = np.concatenate([ties * (1 + 1e-12), ties * (1 - 1e-12), -ties * (1 + 1e-12), ties])
    got = harness.run("cast", ("float64",), "float16", x)
    harness.assert_same_bits(got, x.astype(np.float16), "float64 -> float16", x)


# --- the table itself

def test_missing_operations_say_so():
    module = harness.new_module()
    b = module.function("f", [("float", "x")])
    assert not supports("bitwise_and", ("float32", "float32"))
    assert not supports("add", ("float32", "float64"))
    with pytest.raises(UnsupportedOp, match=r"bitwise_and .*float32.*int8"):
        emit(b, "bitwise_and", ("float32", "float32"), "float32", [b.parameters[0]] * 2)


def test_every_external_symbol_is_listed():
    """Compile everything for a generic triple's text and look at what it declares."""
    module = harness.new_module()
    for dtype in COMPUTED:
        for op in TABLE[dtype]:
            arity = 3 if op == "fma" else 2 if op in OF_TWO else ARITY.get(op, 2)
            arity = 1 if op in math.DOUBLE and op not in OF_TWO else arity
            out = "bool" if op in PREDICATES else dtype
            harness.write(module, f"{op}_{dtype}", op, (dtype,) * arity, out, 2)
    symbols = set(re.findall(r"^declare .*@(?!llvm)([\w.]+)\(", str(module), re.M))
    assert symbols == set(math.LIBM_SYMBOLS)
