"""The call path, as LLVM IR: a Python builtin that reads NumPy arrays and runs a program.

In: a capsule whose pointer is a `ProgramTable`, and the call's arguments. Out: the program's arrays, or an
error set. One function serves all programs; what differs is in the table, written by `program.py`. An
argument that is not exactly what the table says (type, dtype, flags, dims, number, keywords) sends all
arguments to the table's `normalise` callable, which returns a tuple of acceptable arrays or raises the one
clear error. The C interface of NumPy is used as its headers document it: the fields of PyArrayObject and
PyArray_Descr, PyArray_NewFromDescr, PyArray_SetBaseObject.

A dim in a table is a number, or ~index: the entry `index` of the call's `dims`. Symbols are bound from every
input, then all dims are compared, so it does not matter which occurrence of a symbol comes first.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

from planish.codegen.llvm.builder import Builder, Loop, Module, Value
from planish.runtime.pool import WORDS
from planish.runtime.tables import (
    ANSWERS,
    LARGE,
    MAX_DIMS,
    NORMALISE_FAILED,
    PARALLEL,
    RELEASE_GIL,
    UNWRAP,
    ArrayTable,
    Frame,
    ProgramTable,
)

_NULL, _ZERO, _ONE = Value("ptr", "null"), Value("i64", "0"), Value("i64", "1")
_MISS = Value("ptr", "@miss")           # its address says: not exactly as expected
_CONTIGUOUS_ALIGNED = 0x1 | 0x100       # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED
_OURS = 0x1 | 0x100 | 0x400             # and NPY_ARRAY_WRITEABLE: flags of an array over given memory


def ir(machine: str, head: int) -> str:
    """The module's text. `head` is the size of PyObject_HEAD: 16 bytes, 32 in a free-threaded interpreter."""
    module = Module(WORDS[machine].triple)
    for name, kind in (("PyArray_Type", "external global i8"), ("planish_pool", "external global i8"),
                       ("planish_threads", "external global i64"), ("miss", "internal constant i8 0")):
        module.globals[name] = f"@{name} = {kind}"
    _write_block_free(module)
    _write_program_free(module)
    _write_new_array(module)
    _write_check(module, head)
    _write_dims_agree(module, head)
    _write_run(module)
    _write_attempt(module, head)
    _write_normalised(module)
    _write_entry(module)
    return str(module)


def _offset(table: type[ctypes.Structure], name: str) -> int:
    return int(getattr(table, name).offset)


def _field(b: Builder, table: type[ctypes.Structure], pointer: Value, name: str, type_: str = "i64") -> Value:
    return b.load(type_, _at(b, pointer, _offset(table, name)), align=4)


def _at(b: Builder, pointer: Value, offset: int) -> Value:
    return b.gep("i8", pointer, b.i64(offset))


def _is(b: Builder, opcode: str, x: Value, y: Value) -> Value:
    return b.cmp(f"icmp {opcode}", x, y)


def _return_if(b: Builder, condition: Value, result: Value) -> None:
    """`if condition: return result`."""
    yes, no = b.label("return"), b.label("go_on")
    b.branch(condition, yes, no)
    b.place(yes)
    b.ret(result)
    b.place(no)


def _return_unless(b: Builder, condition: Value, result: Value) -> None:
    _return_if(b, b.bin("xor", condition, Value("i1", "true")), result)


def _write_block_free(module: Module) -> None:
    """Destructor of the capsule that is the base of an output over pool memory."""
    b = module.function("block_free", [("ptr", "capsule")], linkage="internal")
    b.call("planish_free", "void", [b.call("PyCapsule_GetPointer", "ptr", [b.parameters[0], _NULL])])
    b.ret()


def _write_program_free(module: Module) -> None:
    """Destructor of a program's capsule: its context keeps the table and all that the table points to."""
    b = module.function("planish_program_free", [("ptr", "capsule")])
    b.call("Py_DecRef", "void", [b.call("PyCapsule_GetContext", "ptr", [b.parameters[0]])])
    b.ret()


def _write_new_array(module: Module) -> None:
    """new_array(spec, dims): a new array of uninitialised elements, or null with an error set."""
    b = module.function("new_array", [("ptr", "spec"), ("ptr", "dims")], "ptr", "internal")
    spec, dims = b.parameters
    shape = b.value("ptr", f"alloca i64, i64 {MAX_DIMS}, align 8")
    rank = _field(b, ArrayTable, spec, "rank")
    codes = _field(b, ArrayTable, spec, "dims", "ptr")
    loop = b.loop(_ZERO, rank, _ONE, [_field(b, ArrayTable, spec, "item_bytes")])
    size = _resolve(b, b.load("i64", b.gep("i64", codes, loop.index), 8), dims)
    b.store(size, b.gep("i64", shape, loop.index), 8)
    total, = loop.end([b.mul(loop.carry[0], size)])
    descr = _field(b, ArrayTable, spec, "descr", "ptr")
    b.call("Py_IncRef", "void", [descr])  # PyArray_NewFromDescr takes a reference over
    rank32 = b.cast("trunc", rank, "i32")
    small = b.when(_is(b, "slt", total, b.i64(LARGE)))
    b.ret(_new_from_descr(b, descr, rank32, shape, _NULL, 0))
    b.place(small.exit)
    data = b.call("planish_alloc", "ptr", [total])
    none = b.when(_is(b, "eq", data, _NULL))
    b.call("Py_DecRef", "void", [descr])
    b.ret(b.call("PyErr_NoMemory", "ptr", []))
    b.place(none.exit)
    array = _new_from_descr(b, descr, rank32, shape, data, _OURS)
    failed = b.when(_is(b, "eq", array, _NULL))
    b.call("planish_free", "void", [data])
    b.ret(_NULL)
    b.place(failed.exit)
    capsule = b.call("PyCapsule_New", "ptr", [data, _NULL, Value("ptr", "@block_free")])
    orphan = b.when(_is(b, "eq", capsule, _NULL))
    b.call("Py_DecRef", "void", [array])
    b.call("planish_free", "void", [data])
    b.ret(_NULL)
    b.place(orphan.exit)
    b.call("PyArray_SetBaseObject", "i32", [array, capsule])
    b.ret(array)


def _new_from_descr(b: Builder, descr: Value, rank: Value, shape: Value, data: Value, flags: int) -> Value:
    kind, no_strides, no_parent = Value("ptr", "@PyArray_Type"), _NULL, _NULL
    arguments = [kind, descr, rank, shape, no_strides, data, Value("i32", str(flags)), no_parent]
    return b.call("PyArray_NewFromDescr", "ptr", arguments)


def _resolve(b: Builder, code: Value, dims: Value) -> Value:
    """The size that a dim's code stands for: itself, or dims[~code]. `dims` has at least one entry."""
    symbolic = _is(b, "slt", code, _ZERO)
    index = b.select(symbolic, b.bin("xor", code, b.i64(-1)), _ZERO)
    return b.select(symbolic, b.load("i64", b.gep("i64", dims, index), 8), code)


def _write_check(module: Module, head: int) -> None:
    """check(array, spec, dims): whether an argument is as expected; the sizes of its symbolic dims go into
    `dims`."""
    b = module.function("check", [("ptr", "array"), ("ptr", "spec"), ("ptr", "dims")], "i1", "internal")
    array, spec, dims = b.parameters
    no = Value("i1", "false")
    kind = b.load("ptr", _at(b, array, head - 8), 8)
    _return_if(b, _is(b, "ne", kind, Value("ptr", "@PyArray_Type")), no)
    flags = b.load("i32", _at(b, array, head + 48), 4)
    wanted = Value("i32", str(_CONTIGUOUS_ALIGNED))
    _return_if(b, _is(b, "ne", b.bin("and", flags, wanted), wanted), no)
    descr = b.load("ptr", _at(b, array, head + 40), 8)
    other = b.when(_is(b, "ne", descr, _field(b, ArrayTable, spec, "descr", "ptr")))
    number = b.cast("sext", b.load("i32", _at(b, descr, head + 12), 4), "i64")  # PyArray_Descr.type_num
    order = b.load("i8", _at(b, descr, head + 10), 1)                          # PyArray_Descr.byteorder
    swapped = _is(b, "eq", order, Value("i8", str(ord(">"))))
    differs = _is(b, "ne", number, _field(b, ArrayTable, spec, "type_number"))
    _return_if(b, b.bin("or", swapped, differs), no)
    other.end()
    rank = _field(b, ArrayTable, spec, "rank")
    _return_if(b, _is(b, "ne", b.cast("sext", b.load("i32", _at(b, array, head + 8), 4), "i64"), rank), no)
    loop, code, size = _each_dim(b, array, spec, rank, head)
    fixed = _is(b, "sge", code, _ZERO)
    _return_if(b, b.bin("and", fixed, _is(b, "ne", code, size)), no)
    bind = b.when(b.bin("xor", fixed, Value("i1", "true")))
    b.store(size, b.gep("i64", dims, b.bin("xor", code, b.i64(-1))), 8)
    bind.end()
    loop.end()
    b.ret(Value("i1", "true"))


def _each_dim(b: Builder, array: Value, spec: Value, rank: Value, head: int) -> tuple[Loop, Value, Value]:
    """Loop over an array's dims: the loop, the expected dim's code, the actual size."""
    codes = _field(b, ArrayTable, spec, "dims", "ptr")
    shape = b.load("ptr", _at(b, array, head + 16), 8)
    loop = b.loop(_ZERO, rank, _ONE)
    code = b.load("i64", b.gep("i64", codes, loop.index), 8)
    return loop, code, b.load("i64", b.gep("i64", shape, loop.index), 8)


def _write_dims_agree(module: Module, head: int) -> None:
    """dims_agree(array, spec, dims): whether the symbolic dims have the sizes in `dims`."""
    b = module.function("dims_agree", [("ptr", "array"), ("ptr", "spec"), ("ptr", "dims")], "i1", "internal")
    array, spec, dims = b.parameters
    loop, code, size = _each_dim(b, array, spec, _field(b, ArrayTable, spec, "rank"), head)
    symbolic = b.when(_is(b, "slt", code, _ZERO))
    expected = b.load("i64", b.gep("i64", dims, b.bin("xor", code, b.i64(-1))), 8)
    _return_if(b, _is(b, "ne", expected, size), Value("i1", "false"))
    symbolic.end()
    loop.end()
    b.ret(Value("i1", "true"))


def _write_run(module: Module) -> None:
    """run(program, frame): the body, on as many threads as the program is for."""
    b = module.function("run", [("ptr", "program"), ("ptr", "frame")], linkage="internal")
    program, frame = b.parameters
    body = _field(b, ProgramTable, program, "body", "ptr")
    parallel = b.when(_has_flag(b, program, PARALLEL))
    own = _field(b, ProgramTable, program, "threads")
    of_process = b.load("i64", Value("ptr", "@planish_threads"), 8)
    threads = b.select(_is(b, "eq", own, _ZERO), of_process, own)
    b.call("planish_parallel", "void", [Value("ptr", "@planish_pool"), body, frame, threads])
    b.ret()
    b.place(parallel.exit)
    b.do(f"call void {body.name}(ptr {frame.name}, i64 0, i64 1)")
    b.ret()


def _has_flag(b: Builder, program: Value, flag: int) -> Value:
    bits = b.bin("and", _field(b, ProgramTable, program, "flags"), b.i64(flag))
    return _is(b, "ne", bits, _ZERO)


@dataclass(frozen=True)
class _Call:
    """The values of one call that its steps share. `results` are the new arrays, the body sees `buffers`."""

    b: Builder
    head: int
    program: Value
    arguments: Value
    dims: Value
    buffers: Value
    results: Value
    n_inputs: Value
    n_outputs: Value

    def each(self, which: str) -> tuple[Loop, Value]:
        """Loop over "inputs" or "outputs": the loop and the current table."""
        b = self.b
        loop = b.loop(_ZERO, self.n_inputs if which == "inputs" else self.n_outputs, _ONE)
        first = _field(b, ProgramTable, self.program, which, "ptr")
        return loop, b.gep("i8", first, b.mul(loop.index, b.i64(ctypes.sizeof(ArrayTable))))

    def each_argument(self) -> tuple[Loop, Value, Value]:
        loop, spec = self.each("inputs")
        return loop, spec, self.b.load("ptr", self.b.gep("ptr", self.arguments, loop.index), 8)

    def set_buffer(self, index: Value, array: Value) -> None:
        """Let the body see an array's data."""
        b = self.b
        b.store(b.load("ptr", _at(b, array, self.head), 8), b.gep("ptr", self.buffers, index), 8)

    def drop_results(self, count: Value) -> None:
        """Give up the first `count` outputs."""
        b = self.b
        loop = b.loop(_ZERO, count, _ONE)
        b.call("Py_DecRef", "void", [b.load("ptr", b.gep("ptr", self.results, loop.index), 8)])
        loop.end()


def _write_attempt(module: Module, head: int) -> None:
    """attempt(program, arguments): the result, null with an error set, or the address of `miss`."""
    b = module.function("attempt", [("ptr", "program"), ("ptr", "arguments")], "ptr", "internal")
    program, arguments = b.parameters
    n_inputs, n_outputs, n_constants, n_dims = (
        _field(b, ProgramTable, program, n) for n in ("n_inputs", "n_outputs", "n_constants", "n_dims"))
    before_constants = b.add(n_inputs, n_outputs)
    before_arena = b.add(before_constants, n_constants)
    dims = b.value("ptr", f"alloca i64, {b.add(n_dims, _ONE)}, align 8")
    buffers = b.value("ptr", f"alloca ptr, {b.add(before_arena, _ONE)}, align 8")
    results = b.value("ptr", f"alloca ptr, {n_outputs}, align 8")
    call = _Call(b, head, program, arguments, dims, buffers, results, n_inputs, n_outputs)
    _read_inputs(call)
    _derive_dims(call)
    _make_outputs(call)
    constants = _field(b, ProgramTable, program, "constants", "ptr")
    to, bytes_ = b.gep("ptr", buffers, before_constants), b.mul(n_constants, b.i64(8))
    b.call("memcpy", "ptr", [to, constants, bytes_])
    arena = _make_arena(call)
    # A read at a clamped index of an empty buffer is of no element, but of memory: any will do.
    place = b.select(_is(b, "ne", arena, _NULL), arena, buffers)
    b.store(place, b.gep("ptr", buffers, before_arena), 8)
    status = _run_body(b, program, buffers, dims)
    used = b.when(_is(b, "ne", arena, _NULL))
    b.call("planish_free", "void", [arena])
    used.end()
    failed = b.when(_is(b, "ne", status, Value("i32", "0")))
    call.drop_results(n_outputs)
    _raise(b, program, status)
    b.place(failed.exit)
    unwrap = b.when(_has_flag(b, program, UNWRAP))
    b.ret(b.load("ptr", results, 8))
    b.place(unwrap.exit)
    _return_tuple(call)


def _read_inputs(call: _Call) -> None:
    loop, spec, array = call.each_argument()
    _return_unless(call.b, call.b.call("check", "i1", [array, spec, call.dims]), _MISS)
    call.set_buffer(loop.index, array)
    loop.end()


def _derive_dims(call: _Call) -> None:
    """Only for programs with symbols: fill in derived dims, then hold every input's dims against them."""
    b = call.b
    derive = _field(b, ProgramTable, call.program, "derive", "ptr")
    dynamic = b.when(_is(b, "ne", derive, _NULL))
    code = b.value("i32", f"call i32 {derive.name}({call.dims})")
    _return_if(b, _is(b, "ne", code, Value("i32", "0")), _MISS)
    loop, spec, array = call.each_argument()
    _return_unless(b, b.call("dims_agree", "i1", [array, spec, call.dims]), _MISS)
    loop.end()
    dynamic.end()


def _make_outputs(call: _Call) -> None:
    b = call.b
    loop, spec = call.each("outputs")
    array = b.call("new_array", "ptr", [spec, call.dims])
    failed = b.when(_is(b, "eq", array, _NULL))
    call.drop_results(loop.index)
    b.ret(_NULL)
    b.place(failed.exit)
    b.store(array, b.gep("ptr", call.results, loop.index), 8)
    call.set_buffer(b.add(call.n_inputs, loop.index), array)
    loop.end()


def _make_arena(call: _Call) -> Value:
    """Scratch memory for this call, or null where the program needs none."""
    b = call.b
    size = _resolve(b, _field(b, ProgramTable, call.program, "arena"), call.dims)
    wanted, none, have = b.label("arena"), b.label("no_arena"), b.label("have_arena")
    before = b.block
    b.branch(_is(b, "sgt", size, _ZERO), wanted, have)
    b.place(wanted)
    slack = b.i64(64)  # for a read at a clamped index of an empty buffer at the end
    block = b.call("planish_alloc", "ptr", [b.add(size, slack)])
    b.branch(_is(b, "eq", block, _NULL), none, have)
    b.place(none)
    call.drop_results(call.n_outputs)
    b.ret(b.call("PyErr_NoMemory", "ptr", []))
    b.place(have)
    return b.value("ptr", f"phi ptr [null, %{before}], [{block.name}, %{wanted}]")


def _run_body(b: Builder, program: Value, buffers: Value, dims: Value) -> Value:
    """Call the body, without the interpreter's lock where the program asks for that; the status it left."""
    frame = b.value("ptr", f"alloca i8, i64 {ctypes.sizeof(Frame)}, align 8")
    for name, x in (("buffers", buffers), ("dims", dims), ("pool", Value("ptr", "@planish_pool")),
                    ("status", Value("i64", "0"))):
        b.store(x, _at(b, frame, _offset(Frame, name)), 8)
    release, keep, after = b.label("release_gil"), b.label("keep_gil"), b.label("ran")
    b.branch(_has_flag(b, program, RELEASE_GIL), release, keep)
    b.place(release)
    state = b.call("PyEval_SaveThread", "ptr", [])
    b.call("run", "void", [program, frame])
    b.call("PyEval_RestoreThread", "void", [state])
    b.jump(after)
    b.place(keep)
    b.call("run", "void", [program, frame])
    b.jump(after)
    b.place(after)
    return b.load("i32", _at(b, frame, _offset(Frame, "status")), 4)


def _raise(b: Builder, program: Value, status: Value) -> None:
    """Return null with the error that the program's `fail` callable raises for a status."""
    packed = b.call("PyTuple_New", "ptr", [_ONE])
    _return_if(b, _is(b, "eq", packed, _NULL), _NULL)
    number = b.call("PyLong_FromLong", "ptr", [b.cast("sext", status, "i64")])
    b.call("PyTuple_SetItem", "i32", [packed, _ZERO, number])
    answer = b.call("PyObject_CallObject", "ptr", [_field(b, ProgramTable, program, "fail", "ptr"), packed])
    b.call("Py_DecRef", "void", [packed])
    b.ret(answer)  # null: `fail` never returns


def _return_tuple(call: _Call) -> None:
    b = call.b
    answer = b.call("PyTuple_New", "ptr", [call.n_outputs])
    failed = b.when(_is(b, "eq", answer, _NULL))
    call.drop_results(call.n_outputs)
    b.ret(_NULL)
    b.place(failed.exit)
    loop = b.loop(_ZERO, call.n_outputs, _ONE)
    array = b.load("ptr", b.gep("ptr", call.results, loop.index), 8)
    b.call("PyTuple_SetItem", "i32", [answer, loop.index, array])
    loop.end()
    b.ret(answer)


def _write_normalised(module: Module) -> None:
    """normalised(program, arguments, given, keywords): the tuple that normalise(names, *values) gives, or
    null.

    Called with a packed tuple: the interpreter's faster calls are not exported before Python 3.12."""
    parameters = [("ptr", "program"), ("ptr", "arguments"), ("i64", "given"), ("ptr", "keywords")]
    b = module.function("normalised", parameters, "ptr", "internal")
    program, arguments, given, keywords = b.parameters
    absent, present, go = b.label("absent"), b.label("present"), b.label("go")
    b.branch(_is(b, "eq", keywords, _NULL), absent, present)
    b.place(absent)
    empty = b.call("PyTuple_New", "ptr", [_ZERO])
    b.jump(go)
    b.place(present)
    named = b.call("PyTuple_Size", "i64", [keywords])
    b.call("Py_IncRef", "void", [keywords])
    b.jump(go)
    b.place(go)
    names = b.value("ptr", f"phi ptr [{empty.name}, %{absent}], [{keywords.name}, %{present}]")
    extra = b.value("i64", f"phi i64 [0, %{absent}], [{named.name}, %{present}]")
    count = b.add(given, extra)
    packed = b.call("PyTuple_New", "ptr", [b.add(count, _ONE)])
    _return_if(b, _is(b, "eq", packed, _NULL), _NULL)
    b.call("PyTuple_SetItem", "i32", [packed, _ZERO, names])
    loop = b.loop(_ZERO, count, _ONE)
    value = b.load("ptr", b.gep("ptr", arguments, loop.index), 8)
    b.call("Py_IncRef", "void", [value])
    b.call("PyTuple_SetItem", "i32", [packed, b.add(loop.index, _ONE), value])
    loop.end()
    normalise = _field(b, ProgramTable, program, "normalise", "ptr")
    answer = b.call("PyObject_CallObject", "ptr", [normalise, packed])
    b.call("Py_DecRef", "void", [packed])
    b.ret(answer)


def _write_entry(module: Module) -> None:
    """The builtin: METH_FASTCALL | METH_KEYWORDS."""
    parameters = [("ptr", "self"), ("ptr", "arguments"), ("i64", "given"), ("ptr", "keywords")]
    b = module.function("planish_entry", parameters, "ptr")
    self, arguments, given, keywords = b.parameters
    program = b.call("PyCapsule_GetPointer", "ptr", [self, _NULL])
    wanted = _field(b, ProgramTable, program, "n_inputs")
    plain = b.bin("and", _is(b, "eq", given, wanted), _is(b, "eq", keywords, _NULL))
    direct = b.when(plain)
    answer = b.call("attempt", "ptr", [program, arguments])
    _return_if(b, _is(b, "ne", answer, _MISS), answer)
    direct.end()
    arrays = b.call("normalised", "ptr", [program, arguments, given, keywords])
    _return_if(b, _is(b, "eq", arrays, _NULL), _NULL)
    _return_if(b, _has_flag(b, program, ANSWERS), arrays)
    items = b.value("ptr", f"alloca ptr, {wanted}, align 8")
    loop = b.loop(_ZERO, wanted, _ONE)
    b.store(b.call("PyTuple_GetItem", "ptr", [arrays, loop.index]), b.gep("ptr", items, loop.index), 8)
    loop.end()
    second = b.call("attempt", "ptr", [program, items])
    b.call("Py_DecRef", "void", [arrays])
    unfit = b.when(_is(b, "eq", second, _MISS))
    _raise(b, program, Value("i32", str(NORMALISE_FAILED)))
    b.place(unfit.exit)
    b.ret(second)
