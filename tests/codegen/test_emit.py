"""Objects and assembly from IR, and what is known of the machine."""
from __future__ import annotations

import ctypes
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from planish import knobs
from planish.codegen.llvm import host as host_module
from planish.codegen.llvm.builder import literal
from planish.codegen.llvm.emit import OBJECT, emit_all, emit_assembly, emit_object
from planish.codegen.llvm.host import aarch64, host
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode

_LOOP = """
define void @axpy(ptr noalias %x, ptr noalias %y, i64 %n) {
entry:
  %unused = alloca i64
  store i64 %n, ptr %unused
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %head]
  %xi = getelementptr <8 x float>, ptr %x, i64 %i
  %yi = getelementptr <8 x float>, ptr %y, i64 %i
  %a = load <8 x float>, ptr %xi, align 4
  %b = load <8 x float>, ptr %yi, align 4
  %c = call <8 x float> @llvm.fma.v8f32(<8 x float> %a, <8 x float> splat (float 3.5), <8 x float> %b)
  store <8 x float> %c, ptr %yi, align 4
  %next = add nuw i64 %i, 1
  %go = icmp ult i64 %next, %n
  br i1 %go, label %head, label %end
end:
  ret void
}
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
"""
_AVX2 = ("x86_64-unknown-linux-gnu", "x86-64-v3")


@pytest.mark.parametrize("passes", ["none", "lite", "rotate"])
def test_code_uses_the_machine(passes):
    text = emit_assembly(_LOOP, *_AVX2, passes=passes)
    assert re.search(r"vfmadd\w+ps\s.*%ymm", text)
    assert "movabs" not in text  # constants relative to the instruction, not by 64-bit address
    text = emit_assembly(_LOOP, aarch64().triple, aarch64().cpu, aarch64().features, passes=passes)
    assert re.search(r"fmla\s+v\d+\.4s", text)


def test_lite_passes_remove_the_unused_slot():
    plain, lite = (emit_assembly(_LOOP, *_AVX2, passes=p, cg_level=2) for p in ("none", "lite"))
    assert "(%rsp)" in plain and "(%rsp)" not in lite


def test_same_text_gives_the_same_bytes():
    assert emit_object(_LOOP, *_AVX2) == emit_object(_LOOP, *_AVX2)
    assert emit_object(_LOOP, *_AVX2)[:4] == b"\x7fELF"


def test_faulty_ir_is_shown():
    with pytest.raises(ValueError, match="use of undefined value '%x'"):
        emit_object("define i32 @f() { ret i32 %x }", *_AVX2)
    with pytest.raises(ValueError, match="none, lite or rotate"):
        emit_object(_LOOP, *_AVX2, passes="more")


def test_host_is_consistent():
    target = host()
    assert target.l1 >= 8 << 10 and target.l2 >= target.l1 and target.cores >= 1
    assert target.vector_bytes in (16, 32, 64) and target.registers in (16, 32)
    assert host() is target


_ZEN3 = ["fpu", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "movbe", "avx", "f16c", "fma",
         "avx2", "bmi1", "bmi2", "abm"]
_SKX = [*_ZEN3, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile"]


@pytest.mark.parametrize(("flags", "limit", "isa", "on", "off"), [
    (_SKX, "", "avx512", ("avx512f", "avx512vnni", "amx-tile", "fma"), ()),
    (_SKX, "avx2", "avx2", ("avx2", "fma", "f16c"), ("avx512f", "avx512vnni", "amx-tile")),
    (_SKX, "sse2", "sse2", ("sse4.2", "popcnt"), ("avx", "avx2", "fma", "f16c", "avx512f")),
    (_ZEN3, "", "avx2", ("avx2", "lzcnt", "sse3"), ("avx512f",)),
    (_ZEN3, "avx512", "avx2", ("avx2",), ("avx512f",)),
    ([f for f in _SKX if f != "avx512vl"], "", "avx2", ("avx2",), ("avx512f",)),
    (["fpu", "sse2"], "", "sse2", (), ("avx", "sse3"))])
def test_instruction_sets(monkeypatch, flags, limit, isa, on, off):
    monkeypatch.setattr(host_module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(host_module, "_cpu_flags", lambda line: set(flags))
    monkeypatch.setattr(host_module, "_may_use_tiles", lambda: True)
    target = host_module._host.__wrapped__(limit)
    assert target.isa == isa
    assert all(target.has(f) for f in on) and not any(target.has(f) for f in off)
    assert ("-prefer-256-bit" in target.features) == (isa == "avx512")
    emit_object(_LOOP, target.triple, target.cpu, target.features)


@pytest.mark.parametrize("leave", [True, False])
def test_tiles_are_used_only_with_the_systems_leave(monkeypatch, leave):
    monkeypatch.setattr(host_module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(host_module, "_cpu_flags", lambda line: {*_SKX, "avx512_bf16", "amx_bf16"})
    monkeypatch.setattr(host_module, "_may_use_tiles", lambda: leave)
    target = host_module._host.__wrapped__("")
    assert target.products == ({"pairs", "tiles"} if leave else {"pairs"})
    assert target.has("avx512bf16") and target.has("amx-tile") == target.has("amx-bf16") == leave


def test_leave_to_use_tiles_is_asked_of_linux():
    """What it answers depends on the CPU; a process may ask again."""
    has_tiles = sys.platform == "linux" and "amx_tile" in Path("/proc/cpuinfo").read_text().split()
    assert host_module._may_use_tiles() == host_module._may_use_tiles()
    assert has_tiles or not host_module._may_use_tiles()


@pytest.mark.parametrize(("flags", "products"), [(set(), set()), ({"asimd", "bf16"}, {"pairs"})])
def test_an_arm_machine_multiplies_bfloat16_where_it_says_so(monkeypatch, flags, products):
    monkeypatch.setattr(host_module.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(host_module, "_cpu_flags", lambda line: flags)
    assert host_module._host.__wrapped__("").products == products


def test_the_target_knob_limits_the_host():
    with knobs.override(target="sse2"):
        limited = host()
    assert limited.isa in ("sse2", "neon") and limited.vector_bytes == 16


def test_a_machine_without_code_is_refused(monkeypatch):
    monkeypatch.setattr(host_module.platform, "machine", lambda: "riscv64")
    with pytest.raises(RuntimeError, match="'riscv64'"):
        host_module._host.__wrapped__("")


def _root_of(k, comment=""):
    """The module of a function that gives the root of x times its own constant k + 0.1."""
    return (f"@factor = private constant float {literal('float', k + 0.1)}\n"
            f"define float @f{k}(float %x) {{\n  %factor = load float, ptr @factor ; {comment}\n"
            f"  %y = fmul float %x, %factor\n"
            f"  %z = call float @llvm.sqrt.f32(float %y)\n  ret float %z\n}}\n"
            "declare float @llvm.sqrt.f32(float)\n")


@pytest.mark.parametrize("comment, objects", [("", 1), ("." * OBJECT, 24), ("." * (OBJECT // 4), 6)])
def test_modules_are_compiled_together_up_to_a_size(comment, objects):
    target = host()
    texts = [partial(_root_of, k, comment) for k in range(24)]
    made = emit_all(texts, target.triple, target.cpu, target.features)
    assert len(made) == objects
    loaded = LoadedCode(link(made))
    for k in range(24):
        function = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(loaded.address(f"f{k}"))
        assert function(2.0) == np.sqrt(np.float32(2) * np.float32(k + 0.1))


def test_threads_emit_side_by_side_what_one_emits():
    triple = "x86_64-unknown-linux-gnu"
    large = [_root_of(k, "." * OBJECT) for k in range(24)]
    assert emit_all([lambda text=text: text for text in large], triple, "", "") == [
        emit_object(text, triple) for text in large]


@pytest.mark.parametrize("other", ["define nonsense", _root_of(1)])
def test_a_faulty_module_among_others_is_refused(other):
    with pytest.raises(ValueError, match="LLVM refuses this module"):
        emit_all([partial(_root_of, 1), lambda: other], "x86_64-unknown-linux-gnu", "", "")
