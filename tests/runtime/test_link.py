"""The linker and loader: several objects, all kinds of references, hostile bytes."""
from __future__ import annotations

import ctypes
import dataclasses
import random
import struct

import pytest

from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.host import aarch64, host
from planish.errors import LinkError
from planish.runtime import native
from planish.runtime.blob import Blob, Import
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode, import_address

_ONE = """
@table = private constant [4 x i32] [i32 10, i32 20, i32 30, i32 40]
@counter = internal global i32 100
@shared = global i32 7
declare i32 @second(i32)
define internal i32 @helper(i32 %x) noinline { %y = add i32 %x, 1
 ret i32 %y }
define i32 @first(i32 %i) {
  %wide = sext i32 %i to i64
  %at = getelementptr [4 x i32], ptr @table, i64 0, i64 %wide
  %t = load i32, ptr %at
  %c = load i32, ptr @counter
  %c1 = add i32 %c, 1
  store i32 %c1, ptr @counter
  %s = call i32 @second(i32 %t)
  %h = call i32 @helper(i32 %s)
  %r = add i32 %h, %c
  ret i32 %r
}
"""
_TWO = """
@table = private constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]
@shared = external global i32
@functions = internal constant [2 x ptr] [ptr @helper, ptr @other]
@constant = internal constant ptr @table
declare double @fmod(double, double)
declare ptr @memcpy(ptr, ptr, i64)
define internal i32 @helper(i32 %x) noinline { %y = add i32 %x, 1000
 ret i32 %y }
define internal i32 @other(i32 %x) noinline { %y = mul i32 %x, 3
 ret i32 %y }
define i32 @second(i32 %x) {
  %s = load i32, ptr @shared
  %r = call i32 @helper(i32 %x)
  %q = add i32 %r, %s
  ret i32 %q
}
define i32 @through_table(i64 %i, i32 %x) {
  %at = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %i
  %f = load ptr, ptr %at
  %r = call i32 %f(i32 %x)
  ret i32 %r
}
define double @remainder_of(double %x, double %y) {
  %r = call double @fmod(double %x, double %y)
  ret double %r
}
define ptr @address_of_fmod() { ret ptr @fmod }
define i32 @choose(i32 %i) {
  switch i32 %i, label %other [ i32 0, label %a
    i32 1, label %b
    i32 2, label %c
    i32 3, label %d
    i32 4, label %e ]
a: ret i32 17
b: %t0 = load ptr, ptr @constant
   %t1 = load i32, ptr %t0
   ret i32 %t1
c: %x = call i32 @second(i32 5)
   ret i32 %x
d: %y = call i32 @helper(i32 9)
   ret i32 %y
e: %z = call i32 @other(i32 9)
   ret i32 %z
other: ret i32 -1
}
define <8 x float> @vector_constant(<8 x float> %x) {
  %y = fmul <8 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0,
  float 8.0> ret <8 x float> %y
}
"""
_JUMP = "define i32 @jump(i32 %i) {\n  switch i32 %i, label %d [ " + "\n".join(
    f"i32 {i}, label %l{i}" for i in range(40)) + " ]\n" + "".join(
    f"l{i}:\n  {'%r' + str(i)} = call i32 @leaf(i32 {i * i})\n  ret i32 %r{i}\n" for i in range(40)) + """
d: ret i32 -1
}
define internal i32 @leaf(i32 %x) noinline "no-inline" { %y = xor i32 %x, 5
 ret i32 %y }
"""


def _object(text, target=None):
    target = target or host()
    return emit_object(text, target.triple, target.cpu, target.features)


@pytest.fixture(scope="module")
def objects():
    return [_object(_ONE), _object(_TWO), _object(_JUMP)]


def _function(code, name, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(code.address(name))


def test_names_data_imports_and_tables(objects):
    code = LoadedCode(link(objects))
    first = _function(code, "first", ctypes.c_int, ctypes.c_int)
    assert first(2) == 30 + 1000 + 7 + 1 + 100
    assert first(0) == 10 + 1000 + 7 + 1 + 101  # the counter is writable and its object's own
    table = _function(code, "through_table", ctypes.c_int, ctypes.c_int64, ctypes.c_int)
    assert (table(0, 4), table(1, 4)) == (1004, 12)
    assert _function(code, "remainder_of", ctypes.c_double, ctypes.c_double, ctypes.c_double)(7.5, 2.0) == 1.5
    assert _function(code, "address_of_fmod", ctypes.c_void_p)() == import_address("fmod")
    choose = _function(code, "choose", ctypes.c_int, ctypes.c_int)
    assert [choose(i) for i in range(6)] == [17, 1, 1012, 1009, 27, -1]
    jump = _function(code, "jump", ctypes.c_int, ctypes.c_int)
    assert [jump(i) for i in range(41)] == [i * i ^ 5 for i in range(40)] + [-1]


def test_two_copies_are_independent(objects):
    blob = link(objects)
    one, two = LoadedCode(blob), LoadedCode(blob)
    calls = [_function(c, "first", ctypes.c_int, ctypes.c_int) for c in (one, two)]
    assert [calls[0](0), calls[0](0), calls[1](0)] == [1118, 1119, 1118]


def test_order_of_objects_does_not_matter(objects):
    code = LoadedCode(link(objects[::-1]))
    assert _function(code, "first", ctypes.c_int, ctypes.c_int)(2) == 1138


def test_no_page_is_writable_and_executable(objects):
    code = LoadedCode(link(objects))
    rights = {}
    with open("/proc/self/maps") as file:
        for line in file:
            span, mode = line.split()[:2]
            start, end = (int(x, 16) for x in span.split("-"))
            for name in code.symbols:
                if start <= code.address(name) < end:
                    rights[name] = mode[:3]
    assert rights.pop("shared") == "rw-"
    assert set(rights.values()) == {"r-x"} and "first" in rights


def test_bytes_round_trip(objects):
    blob = link(objects)
    assert Blob.from_bytes(blob.to_bytes()) == blob
    assert Blob.from_bytes(native.image_blob().to_bytes()) == native.image_blob()


def test_weak_definitions_give_way():
    weak = _object("define weak i32 @f() { ret i32 1 }")
    weak2 = _object("define weak i32 @f() { ret i32 3 }")
    strong = _object("define i32 @f() { ret i32 2 }")
    for objects, want in (([weak, strong], 2), ([strong, weak], 2), ([weak, weak2], 1), ([weak2, weak], 3)):
        code = LoadedCode(link(objects))   # held as long as it runs
        assert _function(code, "f", ctypes.c_int)() == want
    with pytest.raises(LinkError, match="'f' is defined in two objects"):
        link([strong, _object("define i32 @f() { ret i32 4 }")])


def test_refusals():
    with pytest.raises(LinkError, match="nothing to link"):
        link([])
    with pytest.raises(LinkError, match="different machines"):
        link([_object(_JUMP), _object(_JUMP, aarch64())])
    with pytest.raises(LinkError, match="thread-local"):
        link([_object("@x = thread_local global i32 0\ndefine ptr @f() { ret ptr @x }")])
    with pytest.raises(LinkError, match="'system', which is not on the list"):
        LoadedCode(link([_object("declare i32 @system(ptr)\n"
                                 "define i32 @f(ptr %x) { %r = call i32 @system(ptr %x)\n ret i32 %r }")]))
    with pytest.raises(LinkError, match=r"exports no 'g'.*'?f"):
        LoadedCode(link([_object("define i32 @f() { ret i32 2 }")])).address("g")
    with pytest.raises(LinkError, match="can't run on this"):
        LoadedCode(link([_object(_JUMP, aarch64())]))


def test_an_unknown_relocation_is_named():
    data = bytearray(_object(_ONE))
    table, = struct.unpack_from("<Q", data, 40)
    count, = struct.unpack_from("<H", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    offset = next(h[4] for h in headers if h[1] == 4)
    info, = struct.unpack_from("<Q", data, offset + 8)
    for number, words in ((11, "R_X86_64_32S.*reloc=pic"), (99, "number 99")):
        struct.pack_into("<Q", data, offset + 8, info >> 32 << 32 | number)
        with pytest.raises(LinkError, match=words):
            link([bytes(data)])


def test_hostile_objects_are_refused_cleanly(objects):
    source = random.Random()
    whole = objects[1]
    for length in range(0, len(whole), 37):
        with pytest.raises(LinkError):
            link([whole[:length]])
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(len(data))] = source.choice((0, 1, 0x7F, 0xFF, source.randrange(256)))
        try:
            link([bytes(data)])
        except LinkError:
            continue  # refused; or the change did not matter to the linker


def test_hostile_images_are_refused_cleanly(objects):
    whole = link(objects).to_bytes()
    for length in range(0, len(whole), 101):
        with pytest.raises(LinkError):
            Blob.from_bytes(whole[:length])
    source = random.Random()
    for _ in range(300):
        data = bytearray(whole)
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        with pytest.raises(LinkError):
            Blob.from_bytes(bytes(data))


@pytest.mark.parametrize("change", [
    {"machine": "mips"}, {"data_at": 100}, {"data_at": 0}, {"data_at": 1 << 40}, {"symbols": {"f": 1 << 33}},
    {"symbols": {"f": -8}}, {"imports": (Import("memcpy", 1 << 30),)}, {"imports": (Import("memcpy", -4),)},
    {"fixups": ((8, 1 << 40),)}, {"fixups": ((1 << 40, 8),)}])
def test_well_signed_images_that_point_outside_are_refused(objects, change):
    blob = dataclasses.replace(link(objects), **change)
    with pytest.raises(LinkError):
        Blob.from_bytes(blob.to_bytes())
    with pytest.raises(LinkError):
        LoadedCode(blob)


def test_code_with_malformed_head_is_refused():
    import hashlib

    def sealed(head):
        rest = struct.pack("<Q", len(head)) + head
        return struct.pack("<6sH32sQ", b"PLBLOB", 1, hashlib.sha256(rest).digest(), len(rest)) + rest
    empty = b'{"machine":"x86_64","code":0,"data":0,"data_at":0,"symbols":%s,"imports":%s,"fixups":[]}'
    for head in (b"", b"[]", b"{}", b"{", b'{"machine": 1}', b"\xff", b'{"machine":"x86_64","code":"a"}',
                 empty % (b"[]", b"[]"), empty % (b"{}", b"[1]"), empty % (b"{}", b'[["f", -1, 0]]')):
        with pytest.raises(LinkError):
            Blob.from_bytes(sealed(head))
