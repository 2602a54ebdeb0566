"""The call path for NumPy's arrays, as LLVM IR: a Python builtin that reads arrays and runs a program.

`call.py` says what a call is; here is what is NumPy's. The C interface of NumPy is used as its headers
document it: the fields of PyArrayObject and PyArray_Descr, PyArray_NewFromDescr, PyArray_SetBaseObject.
"""
from __future__ import annotations

from planish.codegen.llvm.builder import Builder, Loop, Module, Value
from planish.runtime.call import (
    NO,
    NULL,
    ONE,
    YES,
    ZERO,
    argument,
    at,
    field,
    is_,
    resolve,
    return_if,
    write_entry,
)
from planish.runtime.pool import WORDS
from planish.runtime.tables import LARGE, MAX_DIMS, ArrayTable

_CONTIGUOUS_ALIGNED = 0x1 | 0x100       # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED
_OURS = 0x1 | 0x100 | 0x400             # and NPY_ARRAY_WRITEABLE: flags of an array over given memory


def ir(machine: str, head: int) -> str:
    """The module's text. `head` is the size of PyObject_HEAD: 16 bytes, 32 in a free-threaded interpreter."""
    module = Module(WORDS[machine].triple)
    module.globals["PyArray_Type"] = "@PyArray_Type = external global i8"
    _write_block_free(module)
    _write_program_free(module)
    _write_make(module, head)
    _write_check(module, head)
    _write_agrees(module, head)
    write_entry(module, "planish_entry")
    return str(module)


def _write_block_free(module: Module) -> None:
    """Destructor of the capsule that is the base of an output over pool memory."""
    b = module.function("block_free", [("ptr", "capsule")], linkage="internal")
    b.call("planish_free", "void", [b.call("PyCapsule_GetPointer", "ptr", [b.parameters[0], NULL])])
    b.ret()


def _write_program_free(module: Module) -> None:
    """Destructor of a program's capsule: its context keeps the table and all that the table points to."""
    b = module.function("planish_program_free", [("ptr", "capsule")])
    b.call("Py_DecRef", "void", [b.call("PyCapsule_GetContext", "ptr", [b.parameters[0]])])
    b.ret()


def _write_make(module: Module, head: int) -> None:
    """make(spec, dims, place): a new array of uninitialised elements, or null with an error set."""
    b = module.function("make", [("ptr", "spec"), ("ptr", "dims"), ("ptr", "place")], "ptr", "internal")
    spec, dims, place = b.parameters
    shape = b.value("ptr", f"alloca i64, i64 {MAX_DIMS}, align 8")
    rank = field(b, ArrayTable, spec, "rank")
    codes = field(b, ArrayTable, spec, "dims", "ptr")
    loop = b.loop(ZERO, rank, ONE, [field(b, ArrayTable, spec, "item_bytes")])
    size = resolve(b, b.load("i64", b.gep("i64", codes, loop.index), 8), dims)
    b.store(size, b.gep("i64", shape, loop.index), 8)
    total, = loop.end([b.mul(loop.carry[0], size)])
    descr = field(b, ArrayTable, spec, "descr", "ptr")
    b.call("Py_IncRef", "void", [descr])  # PyArray_NewFromDescr takes a reference over
    rank32 = b.cast("trunc", rank, "i32")
    small = b.when(is_(b, "slt", total, b.i64(LARGE)))
    fresh = _new_from_descr(b, descr, rank32, shape, NULL, 0)
    return_if(b, is_(b, "eq", fresh, NULL), NULL)
    b.store(b.load("ptr", at(b, fresh, head), 8), place, 8)
    b.ret(fresh)
    b.place(small.exit)
    data = b.call("planish_alloc", "ptr", [total])
    none = b.when(is_(b, "eq", data, NULL))
    b.call("Py_DecRef", "void", [descr])
    b.ret(b.call("PyErr_NoMemory", "ptr", []))
    b.place(none.exit)
    array = _new_from_descr(b, descr, rank32, shape, data, _OURS)
    failed = b.when(is_(b, "eq", array, NULL))
    b.call("planish_free", "void", [data])
    b.ret(NULL)
    b.place(failed.exit)
    capsule = b.call("PyCapsule_New", "ptr", [data, NULL, Value("ptr", "@block_free")])
    orphan = b.when(is_(b, "eq", capsule, NULL))
    b.call("Py_DecRef", "void", [array])
    b.call("planish_free", "void", [data])
    b.ret(NULL)
    b.place(orphan.exit)
    b.call("PyArray_SetBaseObject", "i32", [array, capsule])
    b.store(data, place, 8)
    b.ret(array)


def _new_from_descr(b: Builder, descr: Value, rank: Value, shape: Value, data: Value, flags: int) -> Value:
    kind, no_strides, no_parent = Value("ptr", "@PyArray_Type"), NULL, NULL
    arguments = [kind, descr, rank, shape, no_strides, data, Value("i32", str(flags)), no_parent]
    return b.call("PyArray_NewFromDescr", "ptr", arguments)


def _write_check(module: Module, head: int) -> None:
    """check(arguments, spec, dims, place, cell): whether an argument is as expected; the sizes of its
    symbolic dims go into `dims`."""
    names = ("arguments", "spec", "dims", "place", "cell")
    b = module.function("check", [("ptr", name) for name in names], "i1", "internal")
    arguments, spec, dims, place, _ = b.parameters
    array = argument(b, arguments, spec)
    kind = b.load("ptr", at(b, array, head - 8), 8)
    return_if(b, is_(b, "ne", kind, Value("ptr", "@PyArray_Type")), NO)
    flags = b.load("i32", at(b, array, head + 48), 4)
    wanted = Value("i32", str(_CONTIGUOUS_ALIGNED))
    return_if(b, is_(b, "ne", b.bin("and", flags, wanted), wanted), NO)
    descr = b.load("ptr", at(b, array, head + 40), 8)
    other = b.when(is_(b, "ne", descr, field(b, ArrayTable, spec, "descr", "ptr")))
    number = b.cast("sext", b.load("i32", at(b, descr, head + 12), 4), "i64")  # PyArray_Descr.type_num
    order = b.load("i8", at(b, descr, head + 10), 1)                          # PyArray_Descr.byteorder
    swapped = is_(b, "eq", order, Value("i8", str(ord(">"))))
    differs = is_(b, "ne", number, field(b, ArrayTable, spec, "type_number"))
    return_if(b, b.bin("or", swapped, differs), NO)
    other.end()
    rank = field(b, ArrayTable, spec, "rank")
    return_if(b, is_(b, "ne", b.cast("sext", b.load("i32", at(b, array, head + 8), 4), "i64"), rank), NO)
    loop, code, size = _each_dim(b, array, spec, rank, head)
    fixed = is_(b, "sge", code, ZERO)
    return_if(b, b.bin("and", fixed, is_(b, "ne", code, size)), NO)
    bind = b.when(b.bin("xor", fixed, YES))
    b.store(size, b.gep("i64", dims, b.bin("xor", code, b.i64(-1))), 8)
    bind.end()
    loop.end()
    b.store(b.load("ptr", at(b, array, head), 8), place, 8)
    b.ret(YES)


def _each_dim(b: Builder, array: Value, spec: Value, rank: Value, head: int) -> tuple[Loop, Value, Value]:
    """Loop over an array's dims: the loop, the expected dim's code, the actual size."""
    codes = field(b, ArrayTable, spec, "dims", "ptr")
    shape = b.load("ptr", at(b, array, head + 16), 8)
    loop = b.loop(ZERO, rank, ONE)
    code = b.load("i64", b.gep("i64", codes, loop.index), 8)
    return loop, code, b.load("i64", b.gep("i64", shape, loop.index), 8)


def _write_agrees(module: Module, head: int) -> None:
    """agrees(arguments, spec, dims): whether the symbolic dims have the sizes in `dims`."""
    b = module.function("agrees", [("ptr", "arguments"), ("ptr", "spec"), ("ptr", "dims")], "i1", "internal")
    arguments, spec, dims = b.parameters
    array = argument(b, arguments, spec)
    loop, code, size = _each_dim(b, array, spec, field(b, ArrayTable, spec, "rank"), head)
    symbolic = b.when(is_(b, "slt", code, ZERO))
    expected = b.load("i64", b.gep("i64", dims, b.bin("xor", code, b.i64(-1))), 8)
    return_if(b, is_(b, "ne", expected, size), NO)
    symbolic.end()
    loop.end()
    b.ret(YES)
