"""Code for instructions that this CPU lacks, run here: each is a function of plain IR that means the same.

In: code generated for a machine with AVX512-BF16. Out: the same code, which runs on AVX2 and calls functions
written here where it had instructions. They are written from Intel's description of the instructions:
denormals of operands and results count as 0.
"""
from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from planish.codegen.llvm.builder import Builder, Module, Value, vector
from planish.codegen.llvm.native import NativeCode
from planish.codegen.llvm.program import ProgramCode
from tests.native.targets import AVX2, AVX512

AVX512_BF16 = replace(AVX512, features=f"{AVX512.features},+avx512bf16")

INSTRUCTION = re.compile(r"@llvm\.x86\.(avx512bf16\.dpbf16ps)")
EXPONENT, SIGN = 0x7F800000, -0x80000000


def emulated(code: NativeCode) -> NativeCode:
    """The same code for AVX2, with the instructions it lacks as functions."""
    kernels = {renamed(name): partial(_plain, make) for name, make in code.code.kernels.items()}
    plain = ProgramCode({**kernels, "instructions": definitions}, renamed(code.code.body), code.code.derived)
    return replace(code, code=plain, target=AVX2)


def renamed(text: str) -> str:
    """With names of kernels that no kernel made for this CPU has."""
    return re.sub(r"\bkernel_", "emulated_", text)


def _plain(make: partial[str]) -> str:
    return INSTRUCTION.sub(r"@plain.\1", renamed(make()))


def definitions() -> str:
    module = Module(AVX2.triple)
    for lanes in (4, 8, 16):
        _dot_of_pairs(module, lanes)
    return str(module)


def _dot_of_pairs(module: Module, lanes: int) -> None:
    """VDPBF16PS: the second product of each pair is added to the total, then the first."""
    total, pairs = vector("float", lanes), vector("bfloat", 2 * lanes)
    parameters = [(total, "t"), (pairs, "x"), (pairs, "y")]
    b = module.function(f"plain.avx512bf16.dpbf16ps.{32 * lanes}", parameters, total)
    sums, *operands = b.parameters
    for i in (1, 0):
        x, y = (_number_of_pair(b, v, i) for v in operands)
        sums = _flushed(b, b.intrinsic("fma", x, y, _flushed(b, sums)))
    b.ret(sums)


def _number_of_pair(b: Builder, x: Value, i: int) -> Value:
    words = b.cast("bitcast", x, x.type.replace("bfloat", "i16"))
    lanes = int(x.type[1:].split()[0]) // 2
    wide = b.cast("zext", b.shuffle(words, words, range(i, 2 * lanes, 2)), vector("i32", lanes))
    return _flushed(b, b.cast("bitcast", b.bin("shl", wide, b.const(wide.type, 16)), vector("float", lanes)))


def _flushed(b: Builder, x: Value) -> Value:
    """Zero of its sign for a denormal."""
    bits = b.cast("bitcast", x, x.type.replace("float", "i32"))
    is_small = b.cmp("icmp eq", b.bin("and", bits, b.const(bits.type, EXPONENT)), b.const(bits.type, 0))
    return b.cast("bitcast", b.select(is_small, b.bin("and", bits, b.const(bits.type, SIGN)), bits), x.type)
