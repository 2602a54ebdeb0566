"""The instructions of machines that multiply narrow numbers and add the products up in wider ones.

In: a target's features; and vectors whose lanes hold two neighbours along k. Out: which forms of products
(schedule/products.py) are instructions for bfloat16 there; and the operations. Where a vector has no
instruction the same sum is written in plain operations.
"""
from __future__ import annotations

import functools

from planish.codegen.llvm.builder import Builder, Value, lanes_of, vector

PAIR = 2  # products that one instruction adds up, for each lane of the sum

# (machine, form) -> LLVM's name of the feature it takes for bfloat16
FEATURES = {("x86_64", "pairs"): "avx512bf16", ("x86_64", "tiles"): "amx-bf16", ("aarch64", "pairs"): "bf16"}
FORMS = frozenset(form for _, form in FEATURES)
# (machine, operands, bytes of a vector of sums) -> LLVM's name of the instruction for a vector of pairs
PAIRS = {
    ("x86_64", "int16", 16): "llvm.x86.sse2.pmadd.wd",
    ("x86_64", "int16", 32): "llvm.x86.avx2.pmadd.wd",
    ("x86_64", "int16", 64): "llvm.x86.avx512.pmaddw.d.512",
    ("x86_64", "bfloat16", 16): "llvm.x86.avx512bf16.dpbf16ps.128",
    ("x86_64", "bfloat16", 32): "llvm.x86.avx512bf16.dpbf16ps.256",
    ("x86_64", "bfloat16", 64): "llvm.x86.avx512bf16.dpbf16ps.512",
    ("aarch64", "bfloat16", 8): "llvm.aarch64.neon.bfdot.v2f32.v4bf16",
    ("aarch64", "bfloat16", 16): "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
}
TILES = "llvm.x86.tdpbf16ps"  # of three tile registers: amx.py


def instructions(triple: str, features: str) -> frozenset[str]:
    """The forms in which a machine with these features multiplies bfloat16."""
    machine, has = triple.split("-")[0], features.split(",")
    return frozenset(form for (of, form), f in FEATURES.items() if of == machine and f"+{f}" in has)


def plus_pairs(b: Builder, dtype: str, total: Value, x: Value, y: Value) -> Value:
    """total[i] + x[2i] * y[2i] + x[2i + 1] * y[2i + 1]. `x`, `y`: vectors of i16 that hold int16 or bfloat16;
    `total`: of int32 or float32."""
    name = PAIRS.get((b.module.triple.split("-")[0], dtype, 4 * lanes_of(total.type)))
    if dtype == "int16":
        both = [b.call(name, total.type, [x, y])] if name else [_integers(b, x, y, i) for i in range(PAIR)]
        return functools.reduce(b.add, both, total)
    if name is None or "bfloat16 pairs" in b.module.lacks:
        for i in range(PAIR):
            total = b.multiply_add(_floats(b, x, total.type, i), _floats(b, y, total.type, i), total)
        return total
    narrow = vector("bfloat", lanes_of(x.type))
    return b.call(name, total.type, [total, b.cast("bitcast", x, narrow), b.cast("bitcast", y, narrow)])


def _integers(b: Builder, x: Value, y: Value, i: int) -> Value:
    """The products of the numbers `i` of each pair, as int32."""
    picks = range(i, lanes_of(x.type), PAIR)
    wide = vector("i32", len(picks))
    return b.mul(*(b.cast("sext", b.shuffle(v, v, picks), wide) for v in (x, y)))


def _floats(b: Builder, x: Value, type_: str, i: int) -> Value:
    """The numbers `i` of each pair of bfloat16, as float32: its upper half."""
    words = b.cast("bitcast", x, vector("i32", lanes_of(type_)))
    upper = b.bin("shl", words, b.const(words.type, 16)) if i == 0 else \
        b.bin("and", words, b.const(words.type, -0x10000))
    return b.cast("bitcast", upper, type_)
