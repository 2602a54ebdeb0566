"""Small programs written by hand in LLVM IR, to test what runs programs without what compiles them."""
from __future__ import annotations

from planish.codegen.llvm.emit import emit_object
from planish.codegen.llvm.host import host
from planish.runtime import native
from planish.runtime.blob import Blob
from planish.runtime.link import link
from planish.runtime.program import NativeProgram
from planish.runtime.spec import ArraySpec, DimRef, ProgramSpec
from planish.runtime.tables import WORTH_THREADS

_HEAD = """
declare void @planish_barrier(ptr, i64, i64)
define internal ptr @buffer(ptr %frame, i64 %index) alwaysinline {
  %buffers = load ptr, ptr %frame
  %at = getelementptr ptr, ptr %buffers, i64 %index
  %data = load ptr, ptr %at
  ret ptr %data
}
define internal i64 @size(ptr %frame, i64 %index) alwaysinline {
  %dims_at = getelementptr i8, ptr %frame, i64 8
  %dims = load ptr, ptr %dims_at
  %at = getelementptr i64, ptr %dims, i64 %index
  %n = load i64, ptr %at
  ret i64 %n
}
define internal void @fail(ptr %frame, i32 %code) alwaysinline {
  %at = getelementptr i8, ptr %frame, i64 24
  store atomic i32 %code, ptr %at monotonic, align 4
  ret void
}
"""

# c[i] = a[i] + b[i], rows dealt to threads in turn
_ADD = """
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
entry:
  %a = call ptr @buffer(ptr %frame, i64 0)
  %b = call ptr @buffer(ptr %frame, i64 1)
  %c = call ptr @buffer(ptr %frame, i64 2)
  COUNT
  br label %head
head:
  %i = phi i64 [%tid, %entry], [%next, %body]
  %go = icmp slt i64 %i, %n
  br i1 %go, label %body, label %end
body:
  %ai = getelementptr TYPE, ptr %a, i64 %i
  %bi = getelementptr TYPE, ptr %b, i64 %i
  %ci = getelementptr TYPE, ptr %c, i64 %i
  %x = load TYPE, ptr %ai
  %y = load TYPE, ptr %bi
  %z = ADD TYPE %x, %y
  store TYPE %z, ptr %ci
  %next = add i64 %i, %threads
  br label %head
end:
  ret void
}
"""

# scratch[i] = 2 a[i]; everybody waits; c[i] = scratch[n-1-i], written by another thread. dims: n, bytes of
# scratch
_REVERSE = """
define i32 @planish_derive(ptr %dims) {
  %n = load i64, ptr %dims
  %bytes = mul i64 %n, 4
  %at = getelementptr i64, ptr %dims, i64 1
  store i64 %bytes, ptr %at
  %bad = icmp sgt i64 %n, 1000000
  %code = select i1 %bad, i32 5, i32 0
  ret i32 %code
}
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
entry:
  %a = call ptr @buffer(ptr %frame, i64 0)
  %c = call ptr @buffer(ptr %frame, i64 1)
  %scratch = call ptr @buffer(ptr %frame, i64 2)
  %n = call i64 @size(ptr %frame, i64 0)
  %pool_at = getelementptr i8, ptr %frame, i64 16
  %pool = load ptr, ptr %pool_at
  br label %head
head:
  %i = phi i64 [%tid, %entry], [%next, %body]
  %go = icmp slt i64 %i, %n
  br i1 %go, label %body, label %wait
body:
  %ai = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %ai
  %y = fadd float %x, %x
  %si = getelementptr float, ptr %scratch, i64 %i
  store float %y, ptr %si
  %next = add i64 %i, %threads
  br label %head
wait:
  call void @planish_barrier(ptr %pool, i64 %tid, i64 %threads)
  br label %head2
head2:
  %j = phi i64 [%tid, %wait], [%next2, %body2]
  %go2 = icmp slt i64 %j, %n
  br i1 %go2, label %body2, label %end
body2:
  %last = sub i64 %n, 1
  %r = sub i64 %last, %j
  %sj = getelementptr float, ptr %scratch, i64 %r
  %z = load float, ptr %sj
  %cj = getelementptr float, ptr %c, i64 %j
  store float %z, ptr %cj
  %next2 = add i64 %j, %threads
  br label %head2
end:
  ret void
}
"""

# c = a[0] + k[0] (k a constant), and a copy of a's count in a second output; a negative a[0] is refused with
# code 3
_CHECKED = """
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
entry:
  %a = call ptr @buffer(ptr %frame, i64 0)
  %c = call ptr @buffer(ptr %frame, i64 1)
  %d = call ptr @buffer(ptr %frame, i64 2)
  %k = call ptr @buffer(ptr %frame, i64 3)
  %x = load double, ptr %a
  %y = load double, ptr %k, align 64
  %z = fadd double %x, %y
  store double %z, ptr %c
  store i64 7, ptr %d
  %negative = fcmp olt double %x, 0.0
  br i1 %negative, label %refuse, label %end
refuse:
  call void @fail(ptr %frame, i32 3)
  br label %end
end:
  ret void
}
"""

# out[0] = the address of a
_ADDRESS = """
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
  %a = call ptr @buffer(ptr %frame, i64 0)
  %out = call ptr @buffer(ptr %frame, i64 1)
  %number = ptrtoint ptr %a to i64
  store i64 %number, ptr %out
  ret void
}
"""

# out[0] = how many threads run the body
_THREADS = """
define void @planish_body(ptr %frame, i64 %tid, i64 %threads) {
  %first = icmp eq i64 %tid, 0
  br i1 %first, label %tell, label %end
tell:
  %out = call ptr @buffer(ptr %frame, i64 0)
  store i64 %threads, ptr %out
  br label %end
end:
  ret void
}
"""

_DERIVE_NOTHING = """
define i32 @planish_derive(ptr %dims) {
  ret i32 0
}
"""


def compile_ir(text: str) -> Blob:
    """Hand-written IR, linked for this machine."""
    target = host()
    return link([emit_object(_HEAD + text, target.triple, target.cpu, target.features)])


def add_ir(type_: str = "float", opcode: str = "fadd", count: int | None = None) -> str:
    size = "%n = call i64 @size(ptr %frame, i64 0)" if count is None else f"%n = add i64 0, {count}"
    text = _HEAD + _ADD.replace("COUNT", size).replace("TYPE", type_).replace("ADD ", f"{opcode} ")
    return text if count is not None else text + _DERIVE_NOTHING


def add_program(dtype: str = "float32", shape: tuple[int, ...] | None = None, type_: str = "float",
                opcode: str = "fadd", **options: bool) -> NativeProgram:
    """a + b over arrays of one fixed shape, or of any length."""
    count = None if shape is None else _product(shape)
    target = host()
    blob = link([emit_object(add_ir(type_, opcode, count), target.triple, target.cpu, target.features)])
    dims = (DimRef(0),) if shape is None else shape
    symbols = 1 if shape is None else 0
    a, b, c = (ArraySpec(name, dtype, dims) for name in "abc")
    spec = ProgramSpec((a, b), (c,), symbols, symbols, unwrap_single=True, **options)
    return NativeProgram(native.load(blob), spec)


def reverse_program(**options: bool) -> NativeProgram:
    a, c = (ArraySpec(name, "float32", (DimRef(0),)) for name in "ac")
    spec = ProgramSpec((a,), (c,), 1, 2, DimRef(1), work=WORTH_THREADS, unwrap_single=True,
                       messages={5: ("ShapeError", "too long")}, **options)
    return NativeProgram(native.load(compile_ir(_REVERSE)), spec)


def address_program() -> NativeProgram:
    """Takes float64[4], gives the address its body saw."""
    inputs, outputs = (ArraySpec("a", "float64", (4,)),), (ArraySpec("out", "int64", ()),)
    spec = ProgramSpec(inputs, outputs, unwrap_single=True)
    return NativeProgram(native.load(compile_ir(_ADDRESS)), spec)


def threads_program(threads: int, work: int = WORTH_THREADS) -> NativeProgram:
    """Takes nothing, gives the number of threads that ran its body, which share so much work."""
    spec = ProgramSpec((), (ArraySpec("out", "int64", ()),), work=work, unwrap_single=True)
    return NativeProgram(native.load(compile_ir(_THREADS)), spec, threads=threads)


def sized_threads_program(threads: int) -> NativeProgram:
    """The same for an array of any length, each of whose elements is a multiply-add."""
    spec = ProgramSpec((ArraySpec("a", "int8", (DimRef(0),)),), (ArraySpec("out", "int64", ()),), 1, 1,
                       work=DimRef(0), unwrap_single=True)
    text = _THREADS.replace("ptr %frame, i64 0)", "ptr %frame, i64 1)") + _DERIVE_NOTHING
    return NativeProgram(native.load(compile_ir(text)), spec, threads=threads)



def checked_program(constant: object) -> NativeProgram:
    spec = ProgramSpec((ArraySpec("a", "float64", (1,)),),
                       (ArraySpec("c", "float64", ()), ArraySpec("d", "int64", (1, 1))),
                       messages={3: ("ValueError", "a[0] is negative")})
    return NativeProgram(native.load(compile_ir(_CHECKED)), spec, [constant])


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
