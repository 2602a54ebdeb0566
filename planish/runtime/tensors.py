"""The call path for tensors, as LLVM IR: a Python builtin that reads torch's tensors and runs a program.

`call.py` says what a call is; here is what is a tensor's. They are read and made by the functions of DLPack's
exchange interface for C (`DLPackExchangeAPI`, DLPack 1.2 and later), which the tensor type hands out in a
capsule: DLTensor and DLManagedTensorVersioned are read and written as dlpack.h documents them.

A tensor is as expected when it is exactly a Tensor or a Parameter on the CPU, of the expected dtype and rank,
its axes fill a block in the expected order, and its memory holds its values (no lazy negation; complex dtypes
are none of ours). That it needs a gradient, or that a mode or transform of torch is at work, is for the
caller to see to. A result lies in one block, its record and its shape behind its elements, and
the block goes back when torch lets go of it.

`planish_dlpack` holds the addresses that `native.py` fills in: see `DLPACK`.
"""
from __future__ import annotations

from planish.codegen.llvm.builder import Builder, Module, Value
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
    return_unless,
    write_entry,
)
from planish.runtime.pool import WORDS
from planish.runtime.tables import FLOAT, INTEGER, LARGE, MAX_DIMS, PLAIN, SIZES, ArrayTable

# Read a tensor, make a tensor; the types Tensor and Parameter; the string "is_neg"; False.
DLPACK = ("read", "make", "tensor", "parameter", "is_neg", "false")

# DLTensor: {ptr data; i32 device, id; i32 rank; i32 dtype; ptr shape, strides; i64 offset}
_TENSOR_BYTES, _DEVICE, _RANK, _DTYPE, _SHAPE, _STRIDES, _OFFSET = 48, 8, 16, 20, 24, 32, 40
# DLManagedTensorVersioned: {i32 major, minor; ptr context; ptr deleter; i64 flags; DLTensor}
_CONTEXT, _DELETER, _FLAGS, _INNER, _MANAGED_BYTES = 8, 16, 24, 32, 80
_CPU = Value("i32", "1")
_LINE = 64


def ir(machine: str, head: int) -> str:
    """The module's text. `head` is the size of PyObject_HEAD, as for `entry.ir`."""
    module = Module(WORDS[machine].triple)
    module.globals["planish_dlpack"] = (
        f"@planish_dlpack = global [{len(DLPACK)} x ptr] zeroinitializer, align 8")
    _write_free(module)
    _write_make(module)
    _write_bind(module)
    _write_read(module, head)
    _write_number(module, head)
    _write_sizes(module, head)
    _write_check(module)
    _write_agrees(module)
    write_entry(module, "planish_tensors")
    return str(module)


def _known(b: Builder, name: str) -> Value:
    return b.load("ptr", b.gep("ptr", Value("ptr", "@planish_dlpack"), b.i64(DLPACK.index(name))), 8)


def _write_free(module: Module) -> None:
    """What torch calls when the last tensor over a block is gone: large ones go back to our pool."""
    for name, free in (("free_small", "free"), ("free_large", "planish_free")):
        b = module.function(name, [("ptr", "managed")], linkage="internal")
        b.call(free, "void", [b.load("ptr", at(b, b.parameters[0], _CONTEXT), 8)])
        b.ret()


def _write_make(module: Module) -> None:
    """make(spec, dims, place): a new tensor of uninitialised elements, or null with an error set."""
    b = module.function("make", [("ptr", "spec"), ("ptr", "dims"), ("ptr", "place")], "ptr", "internal")
    spec, dims, place = b.parameters
    rank = field(b, ArrayTable, spec, "rank")
    sizes, strides = (b.value("ptr", f"alloca i64, i64 {MAX_DIMS}, align 8") for _ in range(2))
    elements = _lay_out(b, spec, dims, rank, sizes, strides)
    bytes_ = b.mul(elements, field(b, ArrayTable, spec, "item_bytes"))
    room = b.bin("and", b.add(bytes_, b.i64(7)), b.i64(-8))
    record = b.add(b.i64(_MANAGED_BYTES), b.mul(rank, b.i64(16)))
    block, deleter = _new_block(b, b.add(room, record))
    managed = b.gep("i8", block, room)
    _write_record(b, managed, block, deleter, spec, rank)
    _write_shape(b, managed, spec, rank, sizes, strides)
    out = b.value("ptr", "alloca ptr, align 8")
    code = b.value("i32", f"call i32 {_known(b, 'make').name}({managed}, {out})")
    failed = b.when(is_(b, "ne", code, Value("i32", "0")))
    b.do(f"call void {deleter.name}({managed})")
    b.ret(NULL)
    b.place(failed.exit)
    b.store(block, place, 8)
    b.ret(b.load("ptr", out, 8))


def _new_block(b: Builder, bytes_: Value) -> tuple[Value, Value]:
    """A block that starts on a cache line, from the C library or from our pool; what frees its tensor."""
    small, large, have = b.label("small"), b.label("large"), b.label("block")
    b.branch(is_(b, "slt", bytes_, b.i64(LARGE)), small, large)
    b.place(small)
    lines = b.bin("and", b.add(bytes_, b.i64(_LINE - 1)), b.i64(-_LINE))
    near = b.call("aligned_alloc", "ptr", [b.i64(_LINE), lines])
    b.jump(have)
    b.place(large)
    far = b.call("planish_alloc", "ptr", [bytes_])
    b.jump(have)
    b.place(have)
    block = b.value("ptr", f"phi ptr [{near.name}, %{small}], [{far.name}, %{large}]")
    deleter = b.value("ptr", f"phi ptr [@free_small, %{small}], [@free_large, %{large}]")
    none = b.when(is_(b, "eq", block, NULL))
    b.ret(b.call("PyErr_NoMemory", "ptr", []))
    b.place(none.exit)
    return block, deleter


def _lay_out(b: Builder, spec: Value, dims: Value, rank: Value, sizes: Value, strides: Value) -> Value:
    """Sizes and strides of the program's axes, slowest first; the number of elements."""
    codes = field(b, ArrayTable, spec, "dims", "ptr")
    loop = b.loop(ZERO, rank, ONE, [ONE, ONE])
    axis = b.bin("sub", b.bin("sub", rank, ONE), loop.index)
    size = resolve(b, b.load("i64", b.gep("i64", codes, axis), 8), dims)
    step, elements = loop.carry
    b.store(size, b.gep("i64", sizes, axis), 8)
    b.store(step, b.gep("i64", strides, axis), 8)
    counted = b.select(is_(b, "sgt", size, ONE), size, ONE)  # as torch: an empty axis counts as one
    _, total = loop.end([b.mul(step, counted), b.mul(elements, size)])
    return total


def _write_record(b: Builder, managed: Value, block: Value, deleter: Value, spec: Value,
                  rank: Value) -> None:
    tensor = at(b, managed, _INNER)
    dtype = b.cast("trunc", field(b, ArrayTable, spec, "type_number"), "i32")
    shape = at(b, managed, _MANAGED_BYTES)
    for place, value in (
            (managed, ONE), (at(b, managed, _CONTEXT), block),  # version 1.0
            (at(b, managed, _DELETER), deleter), (at(b, managed, _FLAGS), ZERO),
            (tensor, block), (at(b, tensor, _DEVICE), b.cast("zext", _CPU, "i64")),
            (at(b, tensor, _RANK), b.cast("trunc", rank, "i32")), (at(b, tensor, _DTYPE), dtype),
            (at(b, tensor, _SHAPE), shape), (at(b, tensor, _STRIDES), b.gep("i64", shape, rank)),
            (at(b, tensor, _OFFSET), ZERO)):
        b.store(value, place, 4)


def _write_shape(b: Builder, managed: Value, spec: Value, rank: Value, sizes: Value, strides: Value) -> None:
    """The tensor's shape and strides: its axis i is the program's order[i]."""
    shape, order = at(b, managed, _MANAGED_BYTES), field(b, ArrayTable, spec, "order", "ptr")
    loop = b.loop(ZERO, rank, ONE)
    axis = b.load("i64", b.gep("i64", order, loop.index), 8)
    for source, to in ((sizes, shape), (strides, b.gep("i64", shape, rank))):
        b.store(b.load("i64", b.gep("i64", source, axis), 8), b.gep("i64", to, loop.index), 8)
    loop.end()


def _write_bind(module: Module) -> None:
    """bind(code, size, dims): whether a size is as expected; a symbol gets it."""
    b = module.function("bind", [("i64", "code"), ("i64", "size"), ("ptr", "dims")], "i1", "internal")
    code, size, dims = b.parameters
    fixed = b.when(is_(b, "sge", code, ZERO))
    b.ret(is_(b, "eq", code, size))
    b.place(fixed.exit)
    b.store(size, b.gep("i64", dims, b.bin("xor", code, b.i64(-1))), 8)
    b.ret(YES)


def _write_read(module: Module, head: int) -> None:
    """read(tensor, spec, dims, place): whether a tensor is as expected."""
    names = ("tensor", "spec", "dims", "place")
    b = module.function("read", [("ptr", name) for name in names], "i1", "internal")
    tensor, spec, dims, place = b.parameters
    kind = b.load("ptr", at(b, tensor, head - 8), 8)
    known = b.bin("or", is_(b, "eq", kind, _known(b, "tensor")), is_(b, "eq", kind, _known(b, "parameter")))
    return_unless(b, known, NO)
    view = _view(b, tensor)
    rank = field(b, ArrayTable, spec, "rank")
    fits = b.bin("and", is_(b, "eq", b.load("i32", at(b, view, _DEVICE), 4), _CPU), is_(
        b, "eq", b.cast("zext", b.load("i32", at(b, view, _RANK), 4), "i64"), rank))
    word = b.cast("zext", b.load("i32", at(b, view, _DTYPE), 4), "i64")
    same = is_(b, "eq", word, field(b, ArrayTable, spec, "type_number"))
    return_unless(b, b.bin("and", fits, same), NO)
    elements = _hold_axes(b, view, spec, dims, rank)
    data = b.gep("i8", b.load("ptr", view, 8), b.load("i64", at(b, view, _OFFSET), 8))
    missing = b.bin("and", is_(b, "eq", data, NULL), is_(b, "ne", elements, ZERO))  # zeros without memory
    return_if(b, missing, NO)
    _hold_values(b, tensor, spec)
    b.store(data, place, 8)
    b.ret(YES)


def _view(b: Builder, tensor: Value) -> Value:
    """The DLTensor of a tensor; the function ends where torch gives none."""
    view = b.value("ptr", f"alloca i8, i64 {_TENSOR_BYTES}, align 8")
    code = b.value("i32", f"call i32 {_known(b, 'read').name}({tensor}, {view})")
    refused = b.when(is_(b, "ne", code, Value("i32", "0")))
    b.call("PyErr_Clear", "void", [])
    b.ret(NO)
    b.place(refused.exit)
    return view


def _hold_axes(b: Builder, view: Value, spec: Value, dims: Value, rank: Value) -> Value:
    """The axes, the program's last first, have the expected sizes and lie without gaps; how many elements
    there are."""
    shape, strides = (b.load("ptr", at(b, view, place), 8) for place in (_SHAPE, _STRIDES))
    codes, order = (field(b, ArrayTable, spec, name, "ptr") for name in ("dims", "order"))
    loop = b.loop(ZERO, rank, ONE, [ONE])
    mine = b.bin("sub", b.bin("sub", rank, ONE), loop.index)
    axis = b.load("i64", b.gep("i64", order, mine), 8)
    size, step = (b.load("i64", b.gep("i64", of, axis), 8) for of in (shape, strides))
    code = b.load("i64", b.gep("i64", codes, mine), 8)
    return_unless(b, b.call("bind", "i1", [code, size, dims]), NO)
    single, dense = is_(b, "eq", size, ONE), is_(b, "eq", step, loop.carry[0])
    return_unless(b, b.bin("or", single, dense), NO)
    total, = loop.end([b.mul(loop.carry[0], size)])
    return total


def _hold_values(b: Builder, tensor: Value, spec: Value) -> None:
    """The tensor is no lazy negative; or, if the caller knows that (PLAIN), has no attributes of its own."""
    plain, unknown, held = b.label("plain"), b.label("unknown"), b.label("held")
    b.branch(is_(b, "eq", field(b, ArrayTable, spec, "source"), b.i64(PLAIN)), plain, unknown)
    b.place(plain)
    _hold_no_attributes(b, tensor)
    b.jump(held)
    b.place(unknown)
    items = b.value("ptr", "alloca ptr, align 8")
    b.store(tensor, items, 8)
    arguments = [_known(b, "is_neg"), items, ONE, NULL]
    answer = b.call("PyObject_VectorcallMethod", "ptr", arguments)
    failed = b.when(is_(b, "eq", answer, NULL))
    b.call("PyErr_Clear", "void", [])
    b.ret(NO)
    b.place(failed.exit)
    b.call("Py_DecRef", "void", [answer])
    return_if(b, is_(b, "ne", answer, _known(b, "false")), NO)
    b.jump(held)
    b.place(held)


def _hold_no_attributes(b: Builder, tensor: Value) -> None:
    place = b.call("_PyObject_GetDictPtr", "ptr", [tensor])
    has_place = b.when(is_(b, "ne", place, NULL))
    attributes = b.load("ptr", place, 8)
    made = b.when(is_(b, "ne", attributes, NULL))
    return_if(b, is_(b, "ne", b.call("PyDict_Size", "i64", [attributes]), ZERO), NO)
    made.end()
    has_place.end()


def _write_number(module: Module, head: int) -> None:
    """number(item, kind, to, is_float): whether a Python number is of a type and fits in the 8 bytes `to`,
    where it is then."""
    b = module.function("number", [("ptr", "item"), ("ptr", "kind"), ("ptr", "to"), ("i1", "is_float")], "i1",
                        "internal")
    item, kind, to, is_float = b.parameters
    return_if(b, is_(b, "ne", b.load("ptr", at(b, item, head - 8), 8), kind), NO)
    real = b.when(is_float)
    b.store(b.call("PyFloat_AsDouble", "double", [item]), to, 8)
    b.ret(YES)
    b.place(real.exit)
    whole = b.call("PyLong_AsLongLong", "i64", [item])
    b.store(whole, to, 8)
    doubtful = b.when(is_(b, "eq", whole, b.i64(-1)))
    large = b.when(is_(b, "ne", b.call("PyErr_Occurred", "ptr", []), NULL))
    b.call("PyErr_Clear", "void", [])
    b.ret(NO)
    b.place(large.exit)
    b.jump(doubtful.exit)
    b.place(doubtful.exit)
    b.ret(YES)


def _write_sizes(module: Module, head: int) -> None:
    """sizes(arguments, spec, dims): whether all sizes of a `SIZES` input are ints, and as expected."""
    b = module.function("sizes", [("ptr", "arguments"), ("ptr", "spec"), ("ptr", "dims")], "i1", "internal")
    arguments, spec, dims = b.parameters
    codes, order = (field(b, ArrayTable, spec, name, "ptr") for name in ("dims", "order"))
    kind, cell = field(b, ArrayTable, spec, "descr", "ptr"), b.value("ptr", "alloca i64, align 8")
    loop = b.loop(ZERO, field(b, ArrayTable, spec, "rank"), ONE)
    index = b.load("i64", b.gep("i64", order, loop.index), 8)
    item = b.load("ptr", b.gep("ptr", arguments, index), 8)
    return_unless(b, b.call("number", "i1", [item, kind, cell, NO]), NO)
    code, size = b.load("i64", b.gep("i64", codes, loop.index), 8), b.load("i64", cell, 8)
    fits = b.call("bind", "i1", [code, size, dims])
    return_unless(b, b.bin("and", fits, is_(b, "sge", size, ZERO)), NO)
    loop.end()
    b.ret(YES)


def _write_check(module: Module) -> None:
    names = ("arguments", "spec", "dims", "place", "cell")
    b = module.function("check", [("ptr", name) for name in names], "i1", "internal")
    arguments, spec, dims, place, cell = b.parameters
    source, item = field(b, ArrayTable, spec, "source"), argument(b, arguments, spec)
    sizes = b.when(is_(b, "eq", source, b.i64(SIZES)))
    b.store(cell, place, 8)
    b.ret(b.call("sizes", "i1", [arguments, spec, dims]))
    b.place(sizes.exit)
    real = is_(b, "eq", source, b.i64(FLOAT))
    number = b.when(b.bin("or", real, is_(b, "eq", source, b.i64(INTEGER))))
    b.store(cell, place, 8)
    b.ret(b.call("number", "i1", [item, field(b, ArrayTable, spec, "descr", "ptr"), cell, real]))
    b.place(number.exit)
    b.ret(b.call("read", "i1", [item, spec, dims, place]))


def _write_agrees(module: Module) -> None:
    """agrees(arguments, spec, dims): sizes are read again and compared with the call's; numbers have none."""
    b = module.function("agrees", [("ptr", "arguments"), ("ptr", "spec"), ("ptr", "dims")], "i1", "internal")
    arguments, spec, dims = b.parameters
    source = field(b, ArrayTable, spec, "source")
    tensor = b.bin("or", is_(b, "eq", source, ZERO), is_(b, "eq", source, b.i64(PLAIN)))
    return_unless(b, tensor, YES)
    view = _view(b, argument(b, arguments, spec))
    shape = b.load("ptr", at(b, view, _SHAPE), 8)
    codes, order = (field(b, ArrayTable, spec, name, "ptr") for name in ("dims", "order"))
    loop = b.loop(ZERO, field(b, ArrayTable, spec, "rank"), ONE)
    axis = b.load("i64", b.gep("i64", order, loop.index), 8)
    expected = resolve(b, b.load("i64", b.gep("i64", codes, loop.index), 8), dims)
    return_if(b, is_(b, "ne", expected, b.load("i64", b.gep("i64", shape, axis), 8)), NO)
    loop.end()
    b.ret(YES)
