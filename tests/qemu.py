"""Runs a compiled program's aarch64 code on another machine, under qemu-user, without an Arm toolchain.

In: the objects of a program (exporting planish_body, and planish_derive if it has symbols) and its arrays.
Out: its output arrays. Our own linker makes the image; around it stands a static ELF executable with the
arrays, the frame and all addresses already in place. Its `_start`, written in IR, reads the inputs from
standard input, derives the dims, runs the body on one thread and writes the outputs to standard output.
"""
from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.host import aarch64
from planish.runtime.blob import Blob
from planish.runtime.link import link

_BASE = 0x400000
_PAGE = 1 << 16
_DERIVE_FAILED, _CHECK_FAILED = 100, 101

# What a program may import, for one thread and without a C library. Loops are kept from becoming calls to
# themselves.
_SUPPORT = """
declare i64 @system_call(i64, i64, ptr, i64)
declare void @planish_body(ptr, i64, i64)
@frame = external global i8
@inputs = external global i8
@outputs = external global i8
@sizes = external global [2 x i64]
define void @planish_barrier(ptr %pool, i64 %tid, i64 %threads) { ret void }
define void @planish_parallel(ptr %pool, ptr %body, ptr %frame, i64 %threads) {
  call void %body(ptr %frame, i64 0, i64 1)
  ret void
}
define i64 @planish_claim(ptr %pool, i64 %launch, i64 %owner, i64 %total, i1 %front) { ret i64 %total }
define ptr @memcpy(ptr %to, ptr %from, i64 %n) #0 {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %go = icmp ult i64 %i, %n
  br i1 %go, label %body, label %end
body:
  %f = getelementptr i8, ptr %from, i64 %i
  %t = getelementptr i8, ptr %to, i64 %i
  %x = load volatile i8, ptr %f
  store volatile i8 %x, ptr %t
  %next = add i64 %i, 1
  br label %head
end:
  ret ptr %to
}
define ptr @memmove(ptr %to, ptr %from, i64 %n) #0 {
entry:
  %after = icmp ugt ptr %to, %from
  br i1 %after, label %head, label %forward
forward:
  %r = call ptr @memcpy(ptr %to, ptr %from, i64 %n)
  ret ptr %to
head:
  %i = phi i64 [%n, %entry], [%next, %body]
  %go = icmp ne i64 %i, 0
  br i1 %go, label %body, label %end
body:
  %next = sub i64 %i, 1
  %f = getelementptr i8, ptr %from, i64 %next
  %t = getelementptr i8, ptr %to, i64 %next
  %x = load volatile i8, ptr %f
  store volatile i8 %x, ptr %t
  br label %head
end:
  ret ptr %to
}
define ptr @memset(ptr %to, i32 %value, i64 %n) #0 {
entry:
  %x = trunc i32 %value to i8
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %go = icmp ult i64 %i, %n
  br i1 %go, label %body, label %end
body:
  %t = getelementptr i8, ptr %to, i64 %i
  store volatile i8 %x, ptr %t
  %next = add i64 %i, 1
  br label %head
end:
  ret ptr %to
}
; all of n bytes through descriptor fd; number 63 reads, 64 writes
define internal void @transfer(i64 %number, i64 %fd, ptr %at, i64 %n) {
entry:
  br label %head
head:
  %done = phi i64 [0, %entry], [%sum, %body]
  %go = icmp ult i64 %done, %n
  br i1 %go, label %body, label %end
body:
  %p = getelementptr i8, ptr %at, i64 %done
  %left = sub i64 %n, %done
  %moved = call i64 @system_call(i64 %number, i64 %fd, ptr %p, i64 %left)
  %sum = add i64 %done, %moved
  %stuck = icmp sle i64 %moved, 0
  br i1 %stuck, label %end, label %head
end:
  ret void
}
define void @_start() noreturn {
entry:
  %n_in = load i64, ptr @sizes
  %n_out = load i64, ptr getelementptr ([2 x i64], ptr @sizes, i64 0, i64 1)
  call void @transfer(i64 63, i64 0, ptr @inputs, i64 %n_in)
  DERIVE
run:
  call void @planish_body(ptr @frame, i64 0, i64 1)
  call void @transfer(i64 64, i64 1, ptr @outputs, i64 %n_out)
  %status = load i32, ptr getelementptr (i8, ptr @frame, i64 24)
  %bad = icmp ne i32 %status, 0
  %code = select i1 %bad, i64 101, i64 0
  br label %exit
exit:
  %answer = phi i64 [%code, %run] EXITS
  %e = call i64 @system_call(i64 94, i64 %answer, ptr null, i64 0)
  unreachable
}
attributes #0 = { noinline "no-builtins" }
"""
_DERIVE = """%dims_at = getelementptr i8, ptr @frame, i64 8
  %dims = load ptr, ptr %dims_at
  %failed = call i32 @planish_derive(ptr %dims)
  %out_of_range = icmp ne i32 %failed, 0
  br i1 %out_of_range, label %exit, label %run"""

# x8 = number; x0, x1, x2 = arguments; svc 0; ret. LLVM as shipped has no assembler for a machine that is not
# this one.
_SYSTEM_CALL = struct.pack("<6I", 0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0)


def run_aarch64(objects: Sequence[bytes], inputs: Sequence[np.ndarray],
                outputs: Sequence[tuple[tuple[int, ...], object]], constants: Sequence[np.ndarray] = (),
                dims: Sequence[int] = (), n_dims: int = 0, arena: int = 0,
                timeout: float = 60, cpu: str = "max") -> list[np.ndarray]:
    """Run a program and give its outputs, each described as (shape, dtype). `dims`: the values of the
    symbols; with `n_dims` > 0 planish_derive fills in the rest. `cpu`: as qemu calls it. Skips the test where
    qemu-aarch64 is missing. AssertionError when planish_derive refuses, a check in the program fails or the
    program crashes."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64 is not installed")
    blob = link([*objects, _support(n_dims > 0)])
    memory = _Memory(blob)
    results = memory.lay_out(inputs, outputs, constants, [*dims, *[0] * (n_dims - len(dims))], arena)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_bytes(memory.executable())
        program.chmod(0o700)
        done = subprocess.run([emulator, "-cpu", cpu, str(program)], input=memory.input_bytes,
                              capture_output=True, timeout=timeout, check=False)
    assert done.returncode != _DERIVE_FAILED, "planish_derive refuses these sizes"
    assert done.returncode != _CHECK_FAILED, "a check in the program failed"
    complaint = done.stderr.decode(errors="replace")
    assert done.returncode == 0, f"the program ended with {done.returncode}: {complaint}"
    written = done.stdout
    return [np.frombuffer(written[at:at + size], kind).reshape(shape) for at, size, shape, kind in results]


def _support(derives: bool) -> bytes:
    text = _SUPPORT.replace("DERIVE", _DERIVE if derives else "br label %run")
    text = text.replace("EXITS", f", [{_DERIVE_FAILED}, %entry]" if derives else "")
    if derives:
        text = "declare i32 @planish_derive(ptr)\n" + text
    target = aarch64()
    return emit_object(text, target.triple, target.cpu, target.features)


class _Memory:
    """The address space of the program: code, then its data, then the arrays, all at fixed addresses."""

    def __init__(self, blob: Blob):
        self.blob = blob
        self.code = bytearray(blob.code) + b"\0" * (-len(blob.code) % 64)
        self.call_at = len(self.code)
        self.code += _SYSTEM_CALL
        assert len(self.code) <= blob.data_at, "no room for the system call"
        self.data = bytearray(blob.data)
        self.input_bytes = b""

    def room(self, size: int, align: int = 64) -> int:
        """The offset in `data` of new zeroed memory."""
        self.data += b"\0" * (-len(self.data) % align)
        at = len(self.data)
        self.data += bytes(size)
        return at

    def address(self, offset: int) -> int:
        return _BASE + self.blob.data_at + offset

    def lay_out(self, inputs: Sequence[np.ndarray], outputs: Sequence[tuple], constants: Sequence[np.ndarray],
                dims: Sequence[int], arena: int) -> list[tuple[int, int, tuple[int, ...], np.dtype]]:
        """Give everything its place and fill in all addresses; where each output will be in what is
        written."""
        buffers, start, results = [], self.room(0), []
        for array in inputs:
            buffers.append(self.room(array.nbytes))
        in_bytes = len(self.data) - start
        image = bytearray(in_bytes)
        for at, array in zip(buffers, inputs, strict=True):
            image[at - start:at - start + array.nbytes] = np.ascontiguousarray(array).tobytes()
        self.input_bytes = bytes(image)
        out_start = self.room(0)
        for shape, dtype in outputs:
            kind = np.dtype(dtype)
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            buffers.append(self.room(size))
            results.append((buffers[-1] - out_start, size, tuple(shape), kind))
        out_bytes = len(self.data) - out_start
        for array in constants:
            buffers.append(self.room(array.nbytes))
            self.data[buffers[-1]:buffers[-1] + array.nbytes] = np.ascontiguousarray(array).tobytes()
        buffers.append(self.room(arena))
        places = {"inputs": start, "outputs": out_start, "sizes": self.words([in_bytes, out_bytes]),
                  "frame": self.frame(buffers, dims)}
        self.fill({name: self.address(at) for name, at in places.items()}
                  | {"system_call": _BASE + self.call_at})
        return results

    def words(self, numbers: Sequence[int]) -> int:
        at = self.room(8 * max(len(numbers), 1))
        struct.pack_into(f"<{len(numbers)}q", self.data, at, *numbers)
        return at

    def frame(self, buffers: Sequence[int], dims: Sequence[int]) -> int:
        pointers = self.words([self.address(at) for at in buffers])
        return self.words([self.address(pointers), self.address(self.words(dims)), 0, 0])

    def fill(self, addresses: Mapping[str, int]) -> None:
        """What the loader does at run time, done for the fixed base."""
        missing = sorted({i.name for i in self.blob.imports} - set(addresses))
        assert not missing, f"the program imports {', '.join(missing)}, which this harness has not"
        for item in self.blob.imports:
            self.store(item.at, addresses[item.name] + item.addend)
        for place, target in self.blob.fixups:
            self.store(place, _BASE + target)

    def store(self, place: int, value: int) -> None:
        if place < self.blob.data_at:
            struct.pack_into("<Q", self.code, place, value)
        else:
            struct.pack_into("<Q", self.data, place - self.blob.data_at, value)

    def executable(self) -> bytes:
        """A static ELF executable of two segments: code, and data with everything else."""
        head = bytearray(_PAGE)
        entry = _BASE + self.blob.symbols["_start"]
        head[:64] = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 183, 1, entry, 64, 0, 0,
                                64, 56, 2, 0, 0, 0)
        code_at, data_at = _PAGE, _PAGE + self.blob.data_at
        head[64:120] = _segment(5, code_at, _BASE, len(self.code))
        head[120:176] = _segment(6, data_at, _BASE + self.blob.data_at, len(self.data))
        return bytes(head + self.code + bytes(self.blob.data_at - len(self.code)) + self.data)


def _segment(rights: int, offset: int, address: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", 1, rights, offset, address, address, size, size, _PAGE)
