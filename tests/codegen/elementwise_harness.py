"""Compile single elementwise operations to native loops and call them on NumPy arrays."""
from __future__ import annotations

import ctypes
from functools import cache

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np

from planish.codegen.llvm import elementwise, registers
from planish.codegen.llvm.builder import Module

LANES = (1, 4, 8, 16)


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.load_library_permanently("libm.so.6")


def _machine() -> llvm.TargetMachine:
    """A new one for every engine, which takes it over."""
    _initialise()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, reloc="pic",
        codemodel="small")


def write(module: Module, name: str, op: str, in_dtypes: tuple[str, ...], out_dtype: str, lanes: int,
          numerics: str = "default") -> None:
    """The function name(result, operands..., n): n elements, a multiple of `lanes`."""
    pointers = [("ptr noalias", f"p{i}") for i in range(len(in_dtypes) + 1)]
    b = module.function(name, [*pointers, ("i64", "n")])
    *arrays, n = b.parameters
    loop = b.loop(b.i64(0), n, b.i64(lanes))
    at = [b.gep(registers.memory_type(d), p, loop.index)
          for d, p in zip((out_dtype, *in_dtypes), arrays, strict=True)]
    args = [registers.load(b, d, p, lanes) for d, p in zip(in_dtypes, at[1:], strict=True)]
    registers.store(b, elementwise.emit(b, op, in_dtypes, out_dtype, args, numerics), out_dtype, at[0])
    loop.end()
    b.ret()


def build(module: Module) -> llvm.ExecutionEngine:
    machine = _machine()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(parsed, llvm.create_pass_builder(machine, tuning))
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine


def new_module() -> Module:
    return Module(llvm.get_default_triple())


def call(engine: llvm.ExecutionEngine, name: str, out: np.dtype, *arrays: np.ndarray) -> np.ndarray:
    result = np.empty(arrays[0].shape, out)
    pointers = [a.ctypes.data for a in (result, *arrays)]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers), ctypes.c_int64)(
        engine.get_function_address(name))
    function(*pointers, result.size)
    return result


def run(op: str, in_dtypes: tuple[str, ...], out_dtype: str, *arrays: np.ndarray, numerics: str = "default",
        lanes: tuple[int, ...] = LANES) -> np.ndarray:
    """The result of `op`, after asserting that every number of lanes gives the same bits (any NaN is NaN)."""
    module = new_module()
    for k in lanes:
        write(module, f"f{k}", op, in_dtypes, out_dtype, k, numerics)
    engine = build(module)
    results = [call(engine, f"f{k}", numpy_dtype(out_dtype), *arrays) for k in lanes]
    for k, other in zip(lanes[1:], results[1:], strict=True):
        assert_same_bits(other, results[0], f"{op} {in_dtypes}: {k} lanes against {lanes[0]}")
    return results[0]


def assert_same_bits(got: np.ndarray, expected: np.ndarray, what: str, *operands: np.ndarray) -> None:
    """Equal bit for bit, save that one NaN is as good as another."""
    assert got.dtype == expected.dtype, f"{what}: {got.dtype} instead of {expected.dtype}"
    image = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(image) == expected.view(image)
    if got.dtype.kind not in "iub":
        same |= np.isnan(got) & np.isnan(expected)
    if not same.all():
        at = np.flatnonzero(~same)[:5]
        shown = "; ".join(f"{[o[i] for o in operands]} gives {got[i]!r}, not {expected[i]!r}" for i in at)
        raise AssertionError(f"{what}: {np.count_nonzero(~same)} of {same.size} differ: {shown}")
