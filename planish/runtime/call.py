"""A call of a compiled program, as LLVM IR: what the builtins for NumPy's arrays (`entry.py`) and for tensors
(`tensors.py`) share.

In: a capsule whose pointer is a `ProgramTable`, and the call's arguments. Out: the program's results, or an
error set. What differs between programs is in the table, written by `program.py`; what differs between arrays
and tensors is in three functions that a module has before `write_entry`:

    check(arguments, spec, dims, place, cell) -> i1   whether an argument is as its table says; binds its
                                                      symbolic dims, stores where its data lies (`cell`: room
                                                      for a number)
    agrees(arguments, spec, dims) -> i1               whether its dims have the sizes in `dims`
    make(spec, dims, place) -> ptr                    a new result, where its data lies; null: error set

An argument that is not exactly what the table says (type, dtype, flags, dims, number, keywords) sends all
arguments to the table's `normalise` callable, which returns a tuple of acceptable ones or raises the one
clear error; or, with the flag ANSWERS, gives the call's result.

A dim in a table is a number, or ~index: the entry `index` of the call's `dims`. Symbols are bound from every
input, then all dims are compared, so it does not matter which occurrence of a symbol comes first.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

from planish.codegen.llvm.builder import Builder, Loop, Module, Value
from planish.runtime.tables import (
    ANSWERS,
    NORMALISE_FAILED,
    OPENMP,
    RELEASE_GIL,
    UNWRAP,
    WORTH_THREADS,
    ArrayTable,
    Frame,
    ProgramTable,
)

NULL, ZERO, ONE = Value("ptr", "null"), Value("i64", "0"), Value("i64", "1")
MISS = Value("ptr", "@miss")            # its address says: not exactly as expected
NO, YES = Value("i1", "false"), Value("i1", "true")

GLOBALS = {"planish_pool": "external global i8", "planish_threads": "external global i64",
           "planish_elsewhere": "external global ptr",
           "miss": "internal constant i8 0"}


def write_entry(module: Module, name: str) -> None:
    """The builtin `name`, after the module's own check, agrees and make."""
    for known, kind in GLOBALS.items():
        module.globals[known] = f"@{known} = {kind}"
    _write_run(module)
    _write_attempt(module)
    _write_normalised(module)
    _write_builtin(module, name)


def offset(table: type[ctypes.Structure], name: str) -> int:
    return int(getattr(table, name).offset)


def field(b: Builder, table: type[ctypes.Structure], pointer: Value, name: str, type_: str = "i64") -> Value:
    return b.load(type_, at(b, pointer, offset(table, name)), align=4)


def at(b: Builder, pointer: Value, places: int) -> Value:
    return b.gep("i8", pointer, b.i64(places))


def is_(b: Builder, opcode: str, x: Value, y: Value) -> Value:
    return b.cmp(f"icmp {opcode}", x, y)


def return_if(b: Builder, condition: Value, result: Value) -> None:
    """`if condition: return result`."""
    yes, no = b.label("return"), b.label("go_on")
    b.branch(condition, yes, no)
    b.place(yes)
    b.ret(result)
    b.place(no)


def return_unless(b: Builder, condition: Value, result: Value) -> None:
    return_if(b, b.bin("xor", condition, Value("i1", "true")), result)


def resolve(b: Builder, code: Value, dims: Value) -> Value:
    """The size that a dim's code stands for: itself, or dims[~code]. `dims` has at least one entry."""
    symbolic = is_(b, "slt", code, ZERO)
    index = b.select(symbolic, b.bin("xor", code, b.i64(-1)), ZERO)
    return b.select(symbolic, b.load("i64", b.gep("i64", dims, index), 8), code)


def argument(b: Builder, arguments: Value, spec: Value) -> Value:
    """The argument that an input is made of."""
    return b.load("ptr", b.gep("ptr", arguments, field(b, ArrayTable, spec, "argument")), 8)


def _write_run(module: Module) -> None:
    """run(program, frame): the body, on as many threads as pay for these sizes."""
    b = module.function("run", [("ptr", "program"), ("ptr", "frame")], linkage="internal")
    program, frame = b.parameters
    body = field(b, ProgramTable, program, "body", "ptr")
    dims = field(b, Frame, frame, "dims", "ptr")
    work = resolve(b, field(b, ProgramTable, program, "work"), dims)
    parallel = b.when(is_(b, "sge", work, b.i64(WORTH_THREADS)))
    own = field(b, ProgramTable, program, "threads")
    of_process = b.load("i64", Value("ptr", "@planish_threads"), 8)
    threads = b.select(is_(b, "eq", own, ZERO), of_process, own)
    arguments = [Value("ptr", "@planish_pool"), body, frame, threads]
    among_others = b.when(has_flag(b, program, OPENMP))
    elsewhere = b.load("ptr", Value("ptr", "@planish_elsewhere"), 8)
    b.do(f"call void {elsewhere.name}({', '.join(map(str, arguments))})")
    b.ret()
    b.place(among_others.exit)
    b.call("planish_parallel", "void", arguments)
    b.ret()
    b.place(parallel.exit)
    b.do(f"call void {body.name}(ptr {frame.name}, i64 0, i64 1)")
    b.ret()


def has_flag(b: Builder, program: Value, flag: int) -> Value:
    bits = b.bin("and", field(b, ProgramTable, program, "flags"), b.i64(flag))
    return is_(b, "ne", bits, ZERO)


@dataclass(frozen=True)
class _Call:
    """The values of one call that its steps share. `results` are the new arrays, the body sees `buffers`."""

    b: Builder
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
        loop = b.loop(ZERO, self.n_inputs if which == "inputs" else self.n_outputs, ONE)
        first = field(b, ProgramTable, self.program, which, "ptr")
        return loop, b.gep("i8", first, b.mul(loop.index, b.i64(ctypes.sizeof(ArrayTable))))

    def drop_results(self, count: Value) -> None:
        """Give up the first `count` outputs."""
        b = self.b
        loop = b.loop(ZERO, count, ONE)
        b.call("Py_DecRef", "void", [b.load("ptr", b.gep("ptr", self.results, loop.index), 8)])
        loop.end()


def _write_attempt(module: Module) -> None:
    """attempt(program, arguments): the result, null with an error set, or the address of `miss`."""
    b = module.function("attempt", [("ptr", "program"), ("ptr", "arguments")], "ptr", "internal")
    program, arguments = b.parameters
    n_inputs, n_outputs, n_constants, n_dims = (
        field(b, ProgramTable, program, n) for n in ("n_inputs", "n_outputs", "n_constants", "n_dims"))
    before_constants = b.add(n_inputs, n_outputs)
    before_arena = b.add(before_constants, n_constants)
    dims = b.value("ptr", f"alloca i64, {b.add(n_dims, ONE)}, align 8")
    buffers = b.value("ptr", f"alloca ptr, {b.add(before_arena, ONE)}, align 8")
    results = b.value("ptr", f"alloca ptr, {n_outputs}, align 8")
    call = _Call(b, program, arguments, dims, buffers, results, n_inputs, n_outputs)
    _read_inputs(call)
    _derive_dims(call)
    _make_outputs(call)
    constants = field(b, ProgramTable, program, "constants", "ptr")
    to, bytes_ = b.gep("ptr", buffers, before_constants), b.mul(n_constants, b.i64(8))
    b.call("memcpy", "ptr", [to, constants, bytes_])
    arena = _make_arena(call)
    # A read at a clamped index of an empty buffer is of no element, but of memory: any will do.
    place = b.select(is_(b, "ne", arena, NULL), arena, buffers)
    b.store(place, b.gep("ptr", buffers, before_arena), 8)
    status = _run_body(b, program, buffers, dims)
    used = b.when(is_(b, "ne", arena, NULL))
    b.call("planish_free", "void", [arena])
    used.end()
    failed = b.when(is_(b, "ne", status, Value("i32", "0")))
    call.drop_results(n_outputs)
    _raise(b, program, status)
    b.place(failed.exit)
    unwrap = b.when(has_flag(b, program, UNWRAP))
    b.ret(b.load("ptr", results, 8))
    b.place(unwrap.exit)
    _return_tuple(call)


def _read_inputs(call: _Call) -> None:
    b = call.b
    numbers = b.value("ptr", f"alloca i64, {call.n_inputs}, align 8")
    loop, spec = call.each("inputs")
    place, cell = b.gep("ptr", call.buffers, loop.index), b.gep("i64", numbers, loop.index)
    return_unless(b, b.call("check", "i1", [call.arguments, spec, call.dims, place, cell]), MISS)
    loop.end()


def _derive_dims(call: _Call) -> None:
    """Only for programs with symbols: fill in derived dims, then hold every input's dims against them."""
    b = call.b
    derive = field(b, ProgramTable, call.program, "derive", "ptr")
    dynamic = b.when(is_(b, "ne", derive, NULL))
    code = b.value("i32", f"call i32 {derive.name}({call.dims})")
    return_if(b, is_(b, "ne", code, Value("i32", "0")), MISS)
    loop, spec = call.each("inputs")
    return_unless(b, b.call("agrees", "i1", [call.arguments, spec, call.dims]), MISS)
    loop.end()
    dynamic.end()


def _make_outputs(call: _Call) -> None:
    b = call.b
    loop, spec = call.each("outputs")
    place = b.gep("ptr", call.buffers, b.add(call.n_inputs, loop.index))
    made = b.call("make", "ptr", [spec, call.dims, place])
    failed = b.when(is_(b, "eq", made, NULL))
    call.drop_results(loop.index)
    b.ret(NULL)
    b.place(failed.exit)
    b.store(made, b.gep("ptr", call.results, loop.index), 8)
    loop.end()


def _make_arena(call: _Call) -> Value:
    """Scratch memory for this call, or null where the program needs none."""
    b = call.b
    size = resolve(b, field(b, ProgramTable, call.program, "arena"), call.dims)
    wanted, none, have = b.label("arena"), b.label("no_arena"), b.label("have_arena")
    before = b.block
    b.branch(is_(b, "sgt", size, ZERO), wanted, have)
    b.place(wanted)
    slack = b.i64(64)  # for a read at a clamped index of an empty buffer at the end
    block = b.call("planish_alloc", "ptr", [b.add(size, slack)])
    b.branch(is_(b, "eq", block, NULL), none, have)
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
        b.store(x, at(b, frame, offset(Frame, name)), 8)
    release, keep, after = b.label("release_gil"), b.label("keep_gil"), b.label("ran")
    b.branch(has_flag(b, program, RELEASE_GIL), release, keep)
    b.place(release)
    state = b.call("PyEval_SaveThread", "ptr", [])
    b.call("run", "void", [program, frame])
    b.call("PyEval_RestoreThread", "void", [state])
    b.jump(after)
    b.place(keep)
    b.call("run", "void", [program, frame])
    b.jump(after)
    b.place(after)
    return b.load("i32", at(b, frame, offset(Frame, "status")), 4)


def _raise(b: Builder, program: Value, status: Value) -> None:
    """Return null with the error that the program's `fail` callable raises for a status."""
    packed = b.call("PyTuple_New", "ptr", [ONE])
    return_if(b, is_(b, "eq", packed, NULL), NULL)
    number = b.call("PyLong_FromLong", "ptr", [b.cast("sext", status, "i64")])
    b.call("PyTuple_SetItem", "i32", [packed, ZERO, number])
    answer = b.call("PyObject_CallObject", "ptr", [field(b, ProgramTable, program, "fail", "ptr"), packed])
    b.call("Py_DecRef", "void", [packed])
    b.ret(answer)  # null: `fail` never returns


def _return_tuple(call: _Call) -> None:
    b = call.b
    answer = b.call("PyTuple_New", "ptr", [call.n_outputs])
    failed = b.when(is_(b, "eq", answer, NULL))
    call.drop_results(call.n_outputs)
    b.ret(NULL)
    b.place(failed.exit)
    loop = b.loop(ZERO, call.n_outputs, ONE)
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
    b.branch(is_(b, "eq", keywords, NULL), absent, present)
    b.place(absent)
    empty = b.call("PyTuple_New", "ptr", [ZERO])
    b.jump(go)
    b.place(present)
    named = b.call("PyTuple_Size", "i64", [keywords])
    b.call("Py_IncRef", "void", [keywords])
    b.jump(go)
    b.place(go)
    names = b.value("ptr", f"phi ptr [{empty.name}, %{absent}], [{keywords.name}, %{present}]")
    extra = b.value("i64", f"phi i64 [0, %{absent}], [{named.name}, %{present}]")
    count = b.add(given, extra)
    packed = b.call("PyTuple_New", "ptr", [b.add(count, ONE)])
    return_if(b, is_(b, "eq", packed, NULL), NULL)
    b.call("PyTuple_SetItem", "i32", [packed, ZERO, names])
    loop = b.loop(ZERO, count, ONE)
    value = b.load("ptr", b.gep("ptr", arguments, loop.index), 8)
    b.call("Py_IncRef", "void", [value])
    b.call("PyTuple_SetItem", "i32", [packed, b.add(loop.index, ONE), value])
    loop.end()
    normalise = field(b, ProgramTable, program, "normalise", "ptr")
    answer = b.call("PyObject_CallObject", "ptr", [normalise, packed])
    b.call("Py_DecRef", "void", [packed])
    b.ret(answer)


def _write_builtin(module: Module, name: str) -> None:
    """The builtin: METH_FASTCALL | METH_KEYWORDS."""
    parameters = [("ptr", "self"), ("ptr", "arguments"), ("i64", "given"), ("ptr", "keywords")]
    b = module.function(name, parameters, "ptr")
    self, arguments, given, keywords = b.parameters
    program = b.call("PyCapsule_GetPointer", "ptr", [self, NULL])
    wanted = field(b, ProgramTable, program, "n_inputs")
    expected = field(b, ProgramTable, program, "n_arguments")
    plain = b.bin("and", is_(b, "eq", given, expected), is_(b, "eq", keywords, NULL))
    direct = b.when(plain)
    answer = b.call("attempt", "ptr", [program, arguments])
    return_if(b, is_(b, "ne", answer, MISS), answer)
    direct.end()
    arrays = b.call("normalised", "ptr", [program, arguments, given, keywords])
    return_if(b, is_(b, "eq", arrays, NULL), NULL)
    return_if(b, has_flag(b, program, ANSWERS), arrays)
    items = b.value("ptr", f"alloca ptr, {wanted}, align 8")
    loop = b.loop(ZERO, wanted, ONE)
    b.store(b.call("PyTuple_GetItem", "ptr", [arrays, loop.index]), b.gep("ptr", items, loop.index), 8)
    loop.end()
    second = b.call("attempt", "ptr", [program, items])
    b.call("Py_DecRef", "void", [arrays])
    unfit = b.when(is_(b, "eq", second, MISS))
    _raise(b, program, Value("i32", str(NORMALISE_FAILED)))
    b.place(unfit.exit)
    b.ret(second)
