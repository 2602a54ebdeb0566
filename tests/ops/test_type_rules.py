"""What type rules say: one clear message with the op, the operand types and the rule."""
from __future__ import annotations

from typing import Any

import pytest

from planish.errors import TypeRuleError
from planish.ops import OPS
from planish.types import BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT32, UINT64, TensorType, symbol

N, M = symbol("N", 1), symbol("M", 1)


def t(*shape: Any, dtype: Any = FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


CONV = {"strides": (1,), "padding": ((0, 0),), "lhs_dilation": (1,), "rhs_dilation": (1,)}
KEY = t(2, dtype=UINT32)
REFUSED = [
    ("add", {}, (t(3), t(4)), "add(f32[3], f32[4]): shapes (3) and (4) do not broadcast: sizes 3, 4 differ"),
    ("add", {}, (t(N), t(M)), "add(f32[N], f32[M]): shapes (N) and (M) do not broadcast: sizes N, M differ"),
    ("add", {}, (t(3), t(3, dtype=FLOAT64)),
     "add(f32[3], f64[3]): operands are to have one dtype, not f32 and f64; cast first"),
    ("add", {}, (t(3),), "add(f32[3]): takes 2 operands, not 1"),
    ("sub", {}, (t(dtype=BOOL), t(dtype=BOOL)),
     "sub(bool[], bool[]): takes i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, not bool"),
    ("div", {}, (t(dtype=INT32), t(dtype=INT32)), "div(i32[], i32[]): takes f16, bf16, f32, f64, not i32"),
    ("exp", {}, ((t(), t()),), "exp((f32[], f32[])): an operand has several results; take one of them"),
    ("bitcast", {"dtype": INT64}, (t(3),), "bitcast(f32[3]): f32 has 32 bits and i64 has 64"),
    ("select", {}, (t(3), t(3), t(3)), "select(f32[3], f32[3], f32[3]): takes bool, not f32"),
    ("reshape", {"shape": (2, 4)}, (t(3, 3),), "reshape(f32[3, 3]): element counts differ: 9 and 8"),
    ("reshape", {"shape": (N, 3)}, (t(N, 4),), "reshape(f32[N, 4]): element counts differ: 4*N and 3*N"),
    ("broadcast_to", {"shape": (3,)}, (t(2, 3),),
     "broadcast_to(f32[2, 3]): shape (2, 3) does not broadcast to (3)"),
    ("transpose", {"axes": (0, 0)}, (t(2, 3),), "transpose(f32[2, 3]): axes (0, 0) name one axis twice"),
    ("transpose", {"axes": (0,)}, (t(2, 3),), "transpose(f32[2, 3]): axes has 1 entries for 2 axes"),
    ("slice", {"starts": (2,), "stops": (1,), "steps": (1,)}, (t(3),),
     "slice(f32[3]): stop 1 is less than 2"),
    ("slice", {"starts": (0,), "stops": (4,), "steps": (1,)}, (t(3),),
     "slice(f32[3]): size 3 is less than 4"),
    ("slice", {"starts": (0,), "stops": (3,), "steps": (0,)}, (t(3),),
     "slice(f32[3]): step 0 is less than 1"),
    ("pad", {"low": (-1,), "high": (0,)}, (t(3), t()), "pad(f32[3], f32[]): low -1 is less than 0"),
    ("concat", {"axis": 0}, (t(2, 3), t(2, 4)),
     "concat(f32[2, 3], f32[2, 4]): sizes along axis 1 differ: 3 and 4; only axis 0 may"),
    ("concat", {"axis": 0}, (), "concat(): takes at least one operand"),
    ("reduce_sum", {"axes": (-1,)}, (t(3),),
     "reduce_sum(f32[3]): axis -1 is not one of the 1 axes, counted from 0"),
    ("reduce_max", {"axes": (0,)}, (t(0, 3),),
     "reduce_max(f32[0, 3]): axis 0 is empty: there is no largest or smallest of no elements"),
    ("argmax", {"axis": 1}, (t(3, 0),), "argmax(f32[3, 0]): axis 1 is empty: there is no index into it"),
    ("dot_general", {"lhs_contract": (1,), "rhs_contract": (0,)}, (t(2, 3), t(4, 5)),
     "dot_general(f32[2, 3], f32[4, 5]): contracted sizes (axis 1 with axis 0) differ: 3 and 4"),
    ("dot_general", {"lhs_contract": (1,), "rhs_contract": (0,), "result": INT8}, (t(2, 3), t(3, 5)),
     "dot_general(f32[2, 3], f32[3, 5]): the result of f32 is to be float and as wide, not i8"),
    ("dot_general", {"lhs_contract": (0,), "rhs_contract": (0,), "alpha": 0.5},
     (t(3, dtype=INT8), t(3, dtype=INT8)), "dot_general(i8[3], i8[3]): alpha 0.5 needs floats"),
    ("matmul", {}, (t(2, 3), t(4, 5)), "matmul(f32[2, 3], f32[4, 5]): contracted sizes differ: 3 and 4"),
    ("conv", {**CONV, "groups": 2}, (t(1, 4, 9), t(6, 4, 3)),
     ("conv(f32[1, 4, 9], f32[6, 4, 3]): channels of the operand and groups * channels of the kernel "
      "differ: 4 and 8")),
    ("conv", CONV, (t(1, 4, 2), t(6, 4, 3)),
     "conv(f32[1, 4, 2], f32[6, 4, 3]): padded size 2 is less than 3"),
    ("reduce_window", {"kind": "mean", "window": (2,), "strides": (1,), "padding": ((0, 0),),
                       "dilation": (1,)}, (t(3),),
     "reduce_window(f32[3]): kind is one of sum, prod, max, min, not mean"),
    ("take", {"axis": 0}, (t(3), t(2)),
     "take(f32[3], f32[2]): indices are i8, i16, i32, i64, u8, u16, u32, not f32"),
    ("take", {"axis": 0}, (t(0, 3), t(2, dtype=INT64)),
     "take(f32[0, 3], i64[2]): axis 0 of f32[0, 3] is empty: there is nothing to index"),
    ("gather_nd", {}, (t(3, 4), t(5, 3, dtype=INT64)),
     "gather_nd(f32[3, 4], i64[5, 3]): rows of 3 indices into 2 axes"),
    ("gather_nd", {}, (t(3, 4), t(5, N, dtype=INT64)),
     "gather_nd(f32[3, 4], i64[5, N]): the last size of the indices is to be known, not N"),
    ("scatter_nd", {"reduction": "mean"}, (t(3), t(2, 1, dtype=INT64), t(2)),
     "scatter_nd(f32[3], i64[2, 1], f32[2]): reduction is none, add, mul, max or min, not mean"),
    ("scatter_nd", {}, (t(3, 4), t(2, 1, dtype=INT64), t(2)),
     "scatter_nd(f32[3, 4], i64[2, 1], f32[2]): updates are to be f32[2, 4], not f32[2]"),
    ("dynamic_slice", {"sizes": (5,)}, (t(3), t(dtype=INT64)),
     "dynamic_slice(f32[3], i64[]): operand size 3 is less than 5"),
    ("top_k", {"axis": 0, "k": 4}, (t(3),), "top_k(f32[3]): k 4 is not between 0 and 3, the size of axis 0"),
    ("iota", {"shape": (3,), "axis": 1, "dtype": INT32}, (),
     "iota(): axis 1 is not one of the 1 axes, counted from 0"),
    ("random_bits", {"shape": (3,), "dtype": INT32}, (KEY,),
     "random_bits(u32[2]): its dtype is one of u32, u64, not i32"),
    ("random_uniform", {"shape": (3,)}, (t(3, dtype=UINT32),),
     "random_uniform(u32[3]): a key is u32[2], not u32[3]"),
    ("check", {"error": "IndexError", "message": "m"}, (t(3, dtype=BOOL),),
     "check(bool[3]): the condition is to be a scalar; reduce it with reduce_all"),
    ("check", {"error": "print", "message": "m"}, (t(dtype=BOOL),),
     "check(bool[]): print is not the name of a built-in exception"),
    ("softmax", {"axis": 2}, (t(2, 3),),
     "softmax(f32[2, 3]): axis 2 is not one of the 2 axes, counted from 0"),
    ("layer_norm", {}, (t(2, 3), t(2), t(3)),
     "layer_norm(f32[2, 3], f32[2], f32[3]): parameters are to be f32[3], not f32[2]"),
    ("gelu", {"approximate": "erf"}, (t(3),), "gelu(f32[3]): approximate is none or tanh, not erf"),
    ("attention", {}, (t(2, 3, 8), t(2, 4, 8), t(2, 5, 8)),
     "attention(f32[2, 3, 8], f32[2, 4, 8], f32[2, 5, 8]): lengths of k and v differ: 4 and 5"),
    ("attention", {}, (t(3, 8), t(4, 8), t(4, 8), t(3, 4, dtype=INT8)),
     "attention(f32[3, 8], f32[4, 8], f32[4, 8], i8[3, 4]): the mask is bool or f32, not i8"),
    ("clip", {}, (t(3), t(4), t()),
     ("clip(f32[3], f32[4], f32[]): the bounds do not fit: shapes (3) and (4) and () do not broadcast: "
      "sizes 3, 4, 1 differ")),
    ("one_hot", {"depth": -1}, (t(3, dtype=INT64),), "one_hot(i64[3]): depth -1 is less than 0"),
    ("size", {"dim": 3, "dtype": BOOL}, (),
     "size(): its dtype is one of i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, not bool"),
    ("take", {"axis": 0}, (t(3), t(2, dtype=UINT64)),
     "take(f32[3], u64[2]): indices are i8, i16, i32, i64, u8, u16, u32, not u64"),
]


@pytest.mark.parametrize(("name", "attributes", "types", "message"), REFUSED,
                         ids=[f"{i}-{case[0]}" for i, case in enumerate(REFUSED)])
def test_message(name: str, attributes: Any, types: Any, message: str) -> None:
    op = OPS[name]
    with pytest.raises(TypeRuleError) as caught:
        op.infer(op.make_attributes(attributes), *types)
    assert str(caught.value) == message
