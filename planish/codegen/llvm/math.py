"""The transcendental functions by name and element type, with the error each may have.

In: an op name and `Lanes` of float or double. Out: its kernel, and `ULP`, the bound that tests hold and
documents print. float16 and bfloat16 are computed by the f32 kernels and rounded: at most 0.5 ULP of theirs,
save where two roundings meet.
"""
from __future__ import annotations

from planish.codegen.llvm import math_f32, math_f64
from planish.codegen.llvm.lanes import Kernel, call_lanes
from planish.codegen.llvm.math_parts import decay, exp, through_f64

DOUBLE: dict[str, Kernel] = {
    "exp": exp, "decay": decay, "decay2": math_f64.decay2, "exp2": math_f64.exp2,
    "expm1": math_f64.expm1,
    "log": math_f64.log, "log2": math_f64.log2, "log10": math_f64.log10, "log1p": math_f64.log1p,
    "sin": math_f64.sin, "cos": math_f64.cos, "tan": math_f64.tan,
    "asin": math_f64.asin, "acos": math_f64.acos, "atan": math_f64.atan, "atan2": math_f64.atan2,
    "sinh": math_f64.sinh, "cosh": math_f64.cosh, "tanh": math_f64.tanh,
    "asinh": math_f64.asinh, "acosh": math_f64.acosh, "atanh": math_f64.atanh,
    "erf": math_f64.erf, "erfc": math_f64.erfc, "sigmoid": math_f64.sigmoid, "gate": math_f64.gate,
    "cbrt": math_f64.cbrt, "hypot": math_f64.hypot, "pow": math_f64.power,
    "lgamma": lambda x: call_lanes("lgamma", x),
}

SINGLE: dict[str, Kernel] = {name: through_f64(kernel) for name, kernel in DOUBLE.items()} | {
    "exp": exp, "decay": decay, "decay2": math_f32.decay2, "log": math_f32.log,
    "sin": math_f32.sin, "cos": math_f32.cos, "tanh": math_f32.tanh,
    "erf": math_f32.erf, "sigmoid": math_f32.sigmoid, "gate": math_f32.gate,
    "pow": through_f64(math_f64.power_from_f32),
}

FAST_SINGLE: dict[str, Kernel] = {
    "exp": math_f32.exp_fast, "decay": math_f32.decay_fast, "tanh": math_f32.tanh_fast,
    "erf": math_f32.erf_fast, "sigmoid": math_f32.sigmoid_fast,
}

# A few ULP of float32 are nothing after rounding to 8 or 11 bits; sigmoid_fast lacks bfloat16's least values.
BFLOAT: dict[str, Kernel] = {name: FAST_SINGLE[name] for name in ("exp", "decay", "tanh", "erf")}
HALF: dict[str, Kernel] = FAST_SINGLE

# Every function of the C library that an emitter may call; the linker supplies them.
LIBM_SYMBOLS = ("cos", "fmod", "fmodf", "lgamma", "sin", "tan")

_NEAR = 0.51  # through f64: half an ULP and what a double loses

# Measured on every float32 of 0.01 <= |x| <= 105 for exp and sigmoid, 0.001..11 for tanh, 0.01..5 for erf,
# 0.25..4 for log, 0.1..50 for sin and cos; all others on some 10^6 random arguments against a wider format.
ULP: dict[str, dict[str, float]] = {
    "exp": {"float32": 1.1, "float64": 1.1}, "decay": {"float32": 1.1, "float64": 1.1},
    "decay2": {"float32": 3.5, "float64": 1.2},
    "exp2": {"float32": _NEAR, "float64": 1.2}, "expm1": {"float32": _NEAR, "float64": 2.0},
    "log": {"float32": 1.0, "float64": 1.0}, "log2": {"float32": _NEAR, "float64": 0.6},
    "log10": {"float32": _NEAR, "float64": 0.6}, "log1p": {"float32": _NEAR, "float64": 1.5},
    "sin": {"float32": 1.6, "float64": 1.6}, "cos": {"float32": 1.6, "float64": 1.6},
    "tan": {"float32": _NEAR, "float64": 3.5},
    "asin": {"float32": _NEAR, "float64": 2.5}, "acos": {"float32": _NEAR, "float64": 2.0},
    "atan": {"float32": _NEAR, "float64": 2.0}, "atan2": {"float32": _NEAR, "float64": 3.0},
    "sinh": {"float32": _NEAR, "float64": 3.0}, "cosh": {"float32": _NEAR, "float64": 2.0},
    "tanh": {"float32": 3.5, "float64": 3.0},
    "asinh": {"float32": _NEAR, "float64": 3.0}, "acosh": {"float32": _NEAR, "float64": 3.0},
    "atanh": {"float32": _NEAR, "float64": 3.0},
    "erf": {"float32": 1.3, "float64": 2.0}, "erfc": {"float32": _NEAR, "float64": 5.5},
    "sigmoid": {"float32": 2.5, "float64": 2.5}, "gate": {"float32": 4.0, "float64": 2.5},
    "cbrt": {"float32": _NEAR, "float64": 1.5}, "hypot": {"float32": _NEAR, "float64": 1.5},
    "pow": {"float32": _NEAR, "float64": 1.5}, "lgamma": {"float32": _NEAR, "float64": 5.0},
}
# numerics="fast": tanh, erf and sigmoid are bounded by their absolute error, 5e-7
ULP_FAST: dict[str, dict[str, float]] = {
    "exp": {"float32": 2.5}, "decay": {"float32": 2.5}, "tanh": {"float32": 6.0}, "erf": {"float32": 6.0}}
