"""Code for instructions that this CPU lacks, run here: each is a function of plain IR that means the same.

In: code generated for a machine with AVX512-BF16 and AMX. Out: the same code, which runs on AVX2, on one
thread, and calls functions written here where it had instructions. They are written from Intel's description
of the instructions: denormals of operands and results count as 0; a tile that is not configured, or not for
what is done with it, traps.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

from planish.codegen.llvm.builder import Builder, Module, Value, lanes_of, vector
from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.native import NativeCode
from tests.native.targets import AVX2, AVX512

AVX512_BF16 = replace(AVX512, features=f"{AVX512.features},+avx512bf16")
AMX = replace(AVX512_BF16, features=f"{AVX512_BF16.features},+amx-tile,+amx-bf16")

TILES = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64", "tdpbf16ps")
INSTRUCTION = re.compile(rf"@llvm\.x86\.(avx512bf16\.dpbf16ps|{'|'.join(TILES)})\b")
EXPONENT, SIGN = 0x7F800000, -0x80000000
ROWS, ROW_BYTES = 16, 64


class EmulatedCode(NativeCode):
    """Code that calls functions for instructions."""

    def objects(self) -> list[bytes]:
        return [*super().objects(), _instructions()]


def emulated(code: NativeCode) -> NativeCode:
    """The same code for AVX2, with the instructions it lacks as functions."""
    kernels: dict[str, Callable[[], str]] = {
        _renamed(name): partial(_plain, make) for name, make in code.code.kernels.items()}
    written = replace(code.code, kernels=kernels, body=_renamed(code.code.body))
    return EmulatedCode(code.program, written, AVX2, code.input_types, code.output_types)


@cache
def _instructions() -> bytes:
    """The object of the functions, which every program has."""
    return emit_object(definitions(), AVX2.triple, AVX2.cpu, AVX2.features)


def _renamed(text: str) -> str:
    """With names of kernels that no kernel made for this CPU has."""
    return re.sub(r"\bkernel_", "emulated_", text)


def _plain(make: Callable[[], str]) -> str:
    return INSTRUCTION.sub(r"@plain.\1", _renamed(make()))


def definitions() -> str:
    module = Module(AVX2.triple)
    for lanes in (4, 8, 16):
        _dot_of_pairs(module, lanes)
    for name, size in (("tiles", 8 * ROWS * ROW_BYTES), ("config", 64)):
        module.globals[name] = f"@{name} = internal global [{size} x i8] zeroinitializer, align 64"
    _configuration(module)
    _moves(module)
    _product_of_tiles(module)
    return str(module)


# --- AVX512-BF16

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
    lanes = lanes_of(x.type)
    words = b.cast("bitcast", x, vector("i16", lanes))
    return _widened(b, b.shuffle(words, words, range(i, lanes, 2)))


def _widened(b: Builder, x: Value) -> Value:
    """bfloat16 as float32, denormals as 0."""
    lanes = lanes_of(x.type)
    wide = b.cast("zext", x, vector("i32", lanes))
    return _flushed(b, b.cast("bitcast", b.bin("shl", wide, b.const(wide.type, 16)), vector("float", lanes)))


def _flushed(b: Builder, x: Value) -> Value:
    """Zero of its sign for a denormal."""
    bits = b.cast("bitcast", x, vector("i32", lanes_of(x.type)))
    is_small = b.cmp("icmp eq", b.bin("and", bits, b.const(bits.type, EXPONENT)), b.const(bits.type, 0))
    return b.cast("bitcast", b.select(is_small, b.bin("and", bits, b.const(bits.type, SIGN)), bits), x.type)


# --- AMX

TILE_MEMORY, CONFIG = Value("ptr", "@tiles"), Value("ptr", "@config")


def _configuration(module: Module) -> None:
    b = module.function("plain.ldtilecfg", [("ptr", "from")])
    with _counted(b, 64) as i:
        b.store(b.load("i8", b.gep("i8", b.parameters[0], i)), b.gep("i8", CONFIG, i))
    with _counted(b, 8 * ROWS * ROW_BYTES) as i:
        b.store(Value("i8", "0"), b.gep("i8", TILE_MEMORY, i))
    b.ret()
    b = module.function("plain.tilerelease", [])
    with _counted(b, 64) as i:
        b.store(Value("i8", "0"), b.gep("i8", CONFIG, i))
    b.ret()


def _moves(module: Module) -> None:
    b = module.function("plain.tilezero", [("i8", "t")])
    _, _, tile = _shape(b, b.parameters[0])
    with _counted(b, ROWS * ROW_BYTES) as i:
        b.store(Value("i8", "0"), b.gep("i8", tile, i))
    b.ret()
    for name, is_load in (("tileloadd64", True), ("tilestored64", False)):
        b = module.function(f"plain.{name}", [("i8", "t"), ("ptr", "at"), ("i64", "stride")])
        number, at, stride = b.parameters
        rows, width, tile = _shape(b, number)
        with _counted(b, rows) as row, _counted(b, width) as byte:
            inside = b.gep("i8", tile, b.add(b.mul(row, b.i64(ROW_BYTES)), byte))
            outside = b.gep("i8", at, b.add(b.mul(row, stride), byte))
            source, target = (outside, inside) if is_load else (inside, outside)
            b.store(b.load("i8", source), target)
        b.ret()


def _product_of_tiles(module: Module) -> None:
    """TDPBF16PS: the first and the second products of all pairs are summed apart, both then to the total."""
    b = module.function("plain.tdpbf16ps", [("i8", "c"), ("i8", "a"), ("i8", "b")])
    (rows, width, total), *operands = (_shape(b, n) for n in b.parameters)
    (left_rows, left_width, left), (right_rows, right_width, right) = operands
    pairs = b.bin("lshr", left_width, b.i64(2))
    for one, other in ((rows, left_rows), (width, right_width), (pairs, right_rows)):
        _require(b, b.cmp("icmp eq", one, other))
    zero = b.const("float", 0.0)
    with _counted(b, rows) as m, _counted(b, b.bin("lshr", width, b.i64(2))) as n:
        loop = b.loop(b.i64(0), pairs, b.i64(1), [zero, zero])
        sums = []
        for i, partial_sum in enumerate(loop.carry):
            x = _element(b, left, m, loop.index, i)
            y = _element(b, right, loop.index, n, i)
            sums.append(_flushed(b, b.intrinsic("fma", x, y, partial_sum)))
        first, second = loop.end(sums)
        at = b.gep("i8", total, b.add(b.mul(m, b.i64(ROW_BYTES)), b.mul(n, b.i64(4))))
        both = _flushed(b, b.bin("fadd", first, second))
        b.store(_flushed(b, b.bin("fadd", _flushed(b, b.load("float", at)), both)), at)
    b.ret()


def _element(b: Builder, tile: Value, row: Value, pair: Value, i: int) -> Value:
    place = b.add(b.mul(row, b.i64(ROW_BYTES)), b.add(b.mul(pair, b.i64(4)), b.i64(2 * i)))
    return _widened(b, b.load("i16", b.gep("i8", tile, place)))


def _shape(b: Builder, number: Value) -> tuple[Value, Value, Value]:
    """Rows and bytes of a row of a tile, and where it is; traps where it is not configured."""
    tile = b.cast("zext", number, "i64")
    rows = b.cast("zext", b.load("i8", b.gep("i8", CONFIG, b.add(tile, b.i64(48)))), "i64")
    width_at = b.gep("i8", CONFIG, b.add(b.mul(tile, b.i64(2)), b.i64(16)))
    width = b.cast("zext", b.load("i16", width_at), "i64")
    _require(b, b.cmp("icmp eq", b.load("i8", CONFIG), Value("i8", "1")))
    for size, most in ((rows, ROWS), (width, ROW_BYTES)):
        _require(b, b.cmp("icmp ult", b.add(size, b.i64(-1)), b.i64(most)))
    return rows, width, b.gep("i8", TILE_MEMORY, b.mul(tile, b.i64(ROWS * ROW_BYTES)))


def _require(b: Builder, condition: Value) -> None:
    fails = b.when(b.bin("xor", condition, Value("i1", "true")))
    b.call("llvm.trap", "void", [])
    fails.end()


@contextmanager
def _counted(b: Builder, count: int | Value) -> Iterator[Value]:
    loop = b.loop(b.i64(0), b.i64(count) if isinstance(count, int) else count, b.i64(1))
    yield loop.index
    loop.end()
