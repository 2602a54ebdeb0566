"""Kernels written by hand, as text, with what they mean in NumPy and arrays to run them on."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import erf

import ml_dtypes
import numpy as np

Arrays = dict[str, np.ndarray]
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Example:
    name: str
    text: str
    inputs: Callable[[np.random.Generator], Arrays]
    meaning: Callable[[Arrays], Arrays]
    sizes: dict[str, int] = field(default_factory=dict)
    rtol: float = 0.0

    def __str__(self) -> str:
        return self.name


EXAMPLES: list[Example] = []


def example(text: str, inputs: Callable[..., Arrays], meaning: Callable[[Arrays], Arrays],
            **more: object) -> None:
    name = text.split("(")[0].split()[1]
    EXAMPLES.append(Example(name, text.strip(), inputs, meaning, **more))  # type: ignore[arg-type]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# --- maps

def _gelu(a: Arrays) -> Arrays:
    x, half = a["x"], np.float32(0.5)
    e = np.vectorize(erf)((x * np.float32(0.70710678)).astype(np.float64)).astype(np.float32)
    return {"y": x * half * (np.float32(1) + e)}


example("""
kernel gelu(x: f32[37]) -> (y: f32[37]) {
  steps vectorize(a0, 8), unroll(a0, 2)
  ops gelu
  t0: f32 = map over a0 in 37 vector(8) unroll(2):
    y[a0] = x[a0] * 0.5 * (1.0 + erf(x[a0] * 0.70710678))
}""", lambda r: {"x": normal(r, 37)}, _gelu, rtol=1e-6)

example("""
kernel tail(x: f32[N]) -> (y: f32[N]) where N in 1..100000 {
  steps tile(s0, 16), parallel(s0)
  for s0 in ((N + 15) // 16) parallel:
    t0: f32 = map over s0i in min(16, N - 16*s0) vector(8):
      y[16*s0 + s0i] = neg(x[16*s0 + s0i])
}""", lambda r: {"x": normal(r, 71)}, lambda a: {"y": -a["x"]}, sizes={"N": 71})

example("""
kernel gather(x: f32[9, 5], i: i64[4]) -> (y: f32[4, 5]) {
  for s0 in 4:
    t0: f32 = map over a0 in 5:
      y[s0, a0] = x[select(i[s0] < i64(0), i[s0] + i64(9), i[s0]), a0]
}""", lambda r: {"x": normal(r, 9, 5), "i": np.array([0, -1, 8, 3])}, lambda a: {"y": a["x"][a["i"]]})

example("""
kernel pad(x: f32[N]) -> (y: f32[N + 5]) where N in 1.. {
  t0: f32 = map over a0 in N + 5:
    v0 = bitwise_and(index(a0 - 2) >= i64(0), index(a0 - 2) < index(N))
    y[a0] = select(v0, x[max(0, min(N - 1, a0 - 2))], f32(-inf))
}""", lambda r: {"x": normal(r, 6)},
    lambda a: {"y": np.pad(a["x"], (2, 3), constant_values=-np.inf)}, sizes={"N": 6})

example("""
kernel transposed(x: f32[3, 4] order(1, 0)) -> (y: f32[4, 3]) {
  for s0 in 4:
    t0: f32 = map over a0 in 3:
      y[s0, a0] = x[a0, s0] - (x[a0, s0] - (1.0 - x[a0, s0]) / 2.0) * -3.0
}""", lambda r: {"x": normal(r, 3, 4)},
    lambda a: {"y": (a["x"] - (a["x"] - (1 - a["x"]) / np.float32(2)) * np.float32(-3)).T})

example("""
kernel rank0(x: f32[], n: i32[]) -> (y: f16[], b: bool[]) {
  t0: i32 = map:
    shift_left(n[()], i32(3))
  t1: f16 = map:
    y[()] = cast(x[()] + cast(t0, f32), f16)
  t2: bool = map:
    b[()] = select(t0 == i32(24), True, False)
}""", lambda r: {"x": normal(r), "n": np.array(3, np.int32)},
    lambda a: {"y": (a["x"] + np.float32(24)).astype(np.float16), "b": np.array(True)})

# --- reductions


def _softmax(a: Arrays) -> Arrays:
    e = np.exp(a["x"] - a["x"].max(1, keepdims=True))
    return {"y": e / e.sum(1, keepdims=True)}


example("""
kernel softmax(x: f32[N, 100]) -> (y: f32[N, 100]) where N in 1..4096 {
  row e: f32[100]
  steps vectorize(a0, 8), unroll(a0, 4), parallel(s0)
  ops softmax
  for s0 in N parallel:
    m: f32 = maximum over a0 in 100 vector(8) unroll(4):
      x[s0, a0]
    t1: f32 = map over a1 in 100 vector(8):
      e[a1] = exp(x[s0, a1] - m)
    z: f32 = add over a2 in 100 vector(8) unroll(4):
      e[a2]
    t3: f32 = map over a3 in 100 vector(8):
      y[s0, a3] = e[a3] / z
}""", lambda r: {"x": normal(r, 5, 100)}, _softmax, sizes={"N": 5}, rtol=1e-6)

example("""
kernel columns(x: f32[50, 7]) -> (y: f32[7]) {
  for s0 in 7 vector(8):
    t0: f32 = add over a0 in 50:
      x[a0, s0]
    t1: f32 = map:
      y[s0] = t0 / 50.0
}""", lambda r: {"x": normal(r, 50, 7)}, lambda a: {"y": a["x"].mean(0)}, rtol=1e-5)

example("""
kernel narrow(x: bf16[6, 300]) -> (y: bf16[6]) {
  for s0 in 6:
    t0: bf16 = add over a0 in 300:
      x[s0, a0]
    t1: bf16 = map:
      y[s0] = t0 * bf16(0.5)
}""", lambda r: {"x": normal(r, 6, 300).astype(BF16)},
    lambda a: {"y": (a["x"].astype(np.float32).sum(1).astype(BF16).astype(np.float32) * 0.5).astype(BF16)},
    rtol=1e-2)

example("""
kernel matmul(x: f32[M, 20], w: f32[2, 20, 4], b: f32[7]) -> (y: f32[M, 7]) where M in 1..512 {
  tile batch() m(s0) n(s1) k(a0) rows 6 vectors 1 lanes 4 packed
  steps pack(w, 4), tile(s0, 6)
  for s0 in M parallel, s1 in 7:
    t0: f32 = add over a0 in 20:
      x[s0, a0] * w[(s1 // 4), a0, (s1 % 4)]
    t1: f32 = map:
      y[s0, s1] = maximum(t0 + b[s1], 0.0)
}""", lambda r: {"x": normal(r, 9, 20), "w": normal(r, 2, 20, 4), "b": normal(r, 7)},
    lambda a: {"y": np.maximum(a["x"] @ np.concatenate(list(a["w"]), 1)[:, :7] + a["b"], 0)},
    sizes={"M": 9}, rtol=1e-5)

example("""
kernel pairs(x: bf16[9, 33], w: bf16[2, 17, 4, 2]) -> (y: f32[9, 7]) {
  tile batch() m(s0) n(s1) k(a0) rows 6 vectors 1 lanes 4 packed by pairs
  steps pack(w, 4), register_tile(s0, 6, s1, 4), unroll(a0, 4)
  for s0 in 9, s1 in 7:
    t0: f32 = add over a0 in 33:
      cast(x[s0, a0], f32) * cast(w[(s1 // 4), (a0 // 2), (s1 % 4), (a0 % 2)], f32)
    t1: f32 = map:
      y[s0, s1] = t0
}""", lambda r: {"x": normal(r, 9, 33).astype(BF16), "w": normal(r, 2, 17, 4, 2).astype(BF16)},
    lambda a: {"y": a["x"].astype(np.float32)
               @ a["w"].astype(np.float32).transpose(1, 3, 0, 2).reshape(34, 8)[:33, :7]}, rtol=1e-4)

example("""
kernel tiles(x: bf16[9, 64], w: bf16[1, 32, 32, 2]) -> (y: f32[9, 20]) {
  tile batch() m(s0) n(s1) k(a0) rows 32 vectors 2 lanes 16 packed by tiles
  steps pack(w, 32), register_tile(s0, 32, s1, 32), unroll(a0, 32)
  for s0 in 9, s1 in 20:
    t0: f32 = add over a0 in 64:
      cast(x[s0, a0], f32) * cast(w[0, (a0 // 2), s1, (a0 % 2)], f32)
    t1: f32 = map:
      y[s0, s1] = t0
}""", lambda r: {"x": normal(r, 9, 64).astype(BF16), "w": normal(r, 1, 32, 32, 2).astype(BF16)},
    lambda a: {"y": a["x"].astype(np.float32)
               @ a["w"].astype(np.float32).transpose(1, 3, 0, 2).reshape(64, 32)[:, :20]}, rtol=1e-4)


def _with_nans(rng: np.random.Generator) -> Arrays:
    x = np.round(normal(rng, 5, 40))
    x[3, 17] = x[3, 30] = np.nan
    return {"x": x}


example("""
kernel logic(x: bool[3, 9], n: u8[0]) -> (any: bool[3], all: bool[3], top: u8[3]) {
  for s0 in 3:
    t0: bool = bitwise_or over a0 in 9:
      x[s0, a0]
    t1: bool = map:
      any[s0] = t0
    t2: bool = bitwise_and over a0 in 9:
      x[s0, a0]
    t3: bool = map:
      all[s0] = t2
    t4: u8 = minimum over a0 in 0:
      n[a0]
    t5: u8 = map:
      top[s0] = t4
}""", lambda r: {"x": r.random((3, 9)) < 0.8, "n": np.zeros(0, np.uint8)},
    lambda a: {"any": a["x"].any(1), "all": a["x"].all(1), "top": np.full(3, 255, np.uint8)})

# --- scans, sorts, scatters

example("""
kernel scans(x: i32[4, N]) -> (up: i32[4, N], before: i32[4, N], most: i32[4, N]) where N in 0..64 {
  for s0 in 4:
    t0: i32 = add inclusive over a0 in N:
      up[s0, a0] = x[s0, a0]
    t1: i32 = mul exclusive over a1 in N:
      before[s0, N - a1 - 1] = x[s0, N - a1 - 1]
    t2: i32 = maximum inclusive over a2 in N:
      most[s0, a2] = x[s0, a2]
}""", lambda r: {"x": r.integers(-3, 4, (4, 11), np.int32)}, lambda a: {
    "up": a["x"].cumsum(1, np.int32), "most": np.maximum.accumulate(a["x"], 1),
    "before": np.cumprod(np.insert(a["x"][:, ::-1], 0, 1, 1), 1, np.int32)[:, :-1][:, ::-1]}, sizes={"N": 11})


def _best(a: Arrays) -> Arrays:
    flipped = np.argsort(a["x"][:, ::-1], 1, kind="stable")
    order = a["x"].shape[1] - 1 - flipped[:, ::-1]
    return {"v": np.take_along_axis(a["x"], order, 1)[:, :7], "p": order[:, :7],
            "up": np.sort(a["x"], 1)}


example("""
kernel sorts(x: f32[5, 40]) -> (v: f32[5, 7], p: i64[5, 7], up: f32[5, 40]) {
  for s0 in 5:
    t0: sort descending first 7 over a0 in 40:
      key x[s0, a0]
      values v[s0, a0]
      positions p[s0, a0]
    t1: sort ascending first 40 over a1 in 40:
      key x[s0, a1]
      values up[s0, a1]
}""", _with_nans, _best)


def _scatter(a: Arrays) -> Arrays:
    y = a["x"].copy()
    inside = a["i"] < 6
    np.add.at(y, a["i"][inside], a["u"][inside])
    return {"y": y}


example("""
kernel scatter(x: f32[6, 3], i: i64[20], u: f32[20, 3]) -> (y: f32[6, 3]) {
  ops scatter_nd
  serial
  t0: f32 = map over a0 in 6, a1 in 3:
    y[a0, a1] = x[a0, a1]
  t1: f32 = map over a2 in 20, a3 in 3:
    y[i[a2], a3] add= u[a2, a3] if i[a2] < i64(6)
}""", lambda r: {"x": normal(r, 6, 3), "i": r.integers(0, 9, 20), "u": normal(r, 20, 3)}, _scatter)

example("""
kernel scatter_of_vectors(x: f32[6, 11], i: i64[20], u: f32[20, 11]) -> (y: f32[6, 11]) {
  ops scatter_nd
  serial
  t0: f32 = map over a0 in 6, a1 in 11 vector(4):
    y[a0, a1] = x[a0, a1]
  t1: f32 = map over a2 in 20, a3 in 11 vector(4):
    y[i[a2], a3] add= u[a2, a3] if i[a2] < i64(6)
}""", lambda r: {"x": normal(r, 6, 11), "i": r.integers(0, 9, 20), "u": normal(r, 20, 11)}, _scatter)

example("""
kernel in_place(x: f32[6], u: f32[]) -> (x: f32[6]) {
  for s0 in 6 parallel:
    t0: f32 = map:
      x[s0] maximum= u[()]
}""", lambda r: {"x": normal(r, 6), "u": normal(r)}, lambda a: {"x": np.maximum(a["x"], a["u"])})
