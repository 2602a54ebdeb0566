"""A program as native code: one function that launches every kernel, and one that computes run-time sizes.

In: a program of scheduled kernels. Out: LLVM modules' texts, and the order of sizes in the table they share:

    void planish_body(ptr frame, i64 tid, i64 threads)     frame = { ptr buffers, ptr sizes, ptr pool, i32 status, i32 }
    i32  planish_derive(ptr sizes)

`sizes` holds the symbols' values, then derived ones (sizes of outputs, bytes of the arena). Every thread runs the body;
a barrier stands between kernels that depend on each other. Equal kernels are written once.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from planish.codegen.llvm.builder import Builder, Module, Value
from planish.codegen.llvm.contraction import write_contraction
from planish.codegen.llvm.expressions import Expressions
from planish.codegen.llvm.host import Target
from planish.codegen.llvm.loops import write_kernel
from planish.schedule.kernel import Kernel
from planish.schedule.program import CheckStep, Launch, Place, Program
from planish.schedule.rebuild import replace_buffers
from planish.schedule.text import print_kernel
from planish.types import Dim, is_static


@dataclass(frozen=True)
class ProgramCode:
    """`kernels`: function name -> what writes its module; `body`: the module that calls them; `derived`: the sizes
    after the symbols in the table."""

    kernels: dict[str, Callable[[], str]]
    body: str
    derived: tuple[Dim, ...]


def write_program(program: Program, target: Target, numerics: str, extra: tuple[Dim, ...] = ()) -> ProgramCode:
    """The modules of a program; `extra` lists run-time sizes that the caller needs (dims of the outputs)."""
    slots = {s.name: i for i, s in enumerate(program.symbols)}
    derived = tuple(dict.fromkeys(d for d in (*extra, program.arena_bytes) if not is_static(d)))
    kernels: dict[str, Callable[[], str]] = {}
    names: dict[int, str] = {}
    for kernel in program.kernels:
        plain = canonical(kernel)
        name = names[id(kernel)] = kernel_name(plain, slots, numerics)
        kernels.setdefault(name, partial(kernel_text, plain, name, target, slots, numerics))
    module = Module(target.triple, target.lacks)
    _write_body(module, program, names, slots)
    _write_derive(module, program, slots, derived)
    return ProgramCode(kernels, str(module), derived)


def kernel_name(kernel: Kernel, slots: dict[str, int], numerics: str) -> str:
    """A hash of all that decides the code of a canonical kernel."""
    used = ", ".join(f"{s}={slots[s]}" for s in kernel.symbols)
    described = f"{print_kernel(kernel)}\n{used}\n{numerics}"
    return f"kernel_{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def kernel_text(kernel: Kernel, name: str, target: Target, slots: dict[str, int], numerics: str) -> str:
    """The module of one canonical kernel."""
    module = Module(target.triple, target.lacks)
    writer: Callable[..., Builder] = write_kernel if kernel.tile is None else write_contraction
    writer(module, kernel, name, slots, numerics)
    return str(module)


def canonical(kernel: Kernel) -> Kernel:
    """The kernel with its buffers named by place, so that equal kernels are equal texts."""
    named = {b.name: replace(b, name=f"p{i}") for i, b in enumerate(dict.fromkeys(kernel.arguments))}
    named |= {b.name: replace(b, name=f"r{i}") for i, b in enumerate(kernel.rows)}
    steps = tuple(replace(s, arguments=tuple(named[a].name if a in named else a for a in s.arguments))
                  for s in kernel.steps)
    return replace(replace_buffers(kernel, named), name="kernel", ops=(), steps=steps)


def _write_body(module: Module, program: Program, names: dict[int, str], slots: dict[str, int]) -> None:
    b = module.function("planish_body", [("ptr", "frame"), ("i64", "tid"), ("i64", "threads")])
    frame, tid, threads = b.parameters
    buffers = b.load("ptr", frame, 8)
    sizes = b.load("ptr", b.gep("i8", frame, b.i64(8)), 8)
    pool = b.load("ptr", b.gep("i8", frame, b.i64(16)), 8)
    values = {s: b.load("i64", b.gep("i64", sizes, b.i64(i)), 8) for s, i in slots.items()}
    expressions = Expressions(b, _NO_KERNEL, {}, values, "default")
    pointers = _Pointers(b, program, buffers, expressions)
    last = program.steps[-1] if program.steps else None
    for step in program.steps:
        if isinstance(step, CheckStep):
            _write_check(b, step, frame, tid, pointers(step.buffer))
            continue
        b.call(names[id(step.kernel)], "void", [*(pointers(a) for a in step.arguments), sizes, tid, threads])
        if step.barrier and step is not last:
            b.call("planish_barrier", "void", [pool, tid, threads])
    b.ret()


_NO_KERNEL = Kernel("program", (), (), (), ())


class _Pointers:
    """Addresses of buffers, each computed once."""

    def __init__(self, b: Builder, program: Program, table: Value, expressions: Expressions):
        self.b, self.table, self.expressions = b, table, expressions
        self.places: dict[str, Place] = program.places
        self.first = {"input": 0, "output": len(program.inputs), "constant": len(program.inputs) + len(program.outputs)}
        self.arena_slot = self.first["constant"] + len(program.constants)
        self.known: dict[object, Value] = {}

    def __call__(self, name: str) -> Value:
        if name not in self.known:
            place = self.places[name]
            if place.kind == "arena":
                base = self.entry(self.arena_slot)
                self.known[name] = self.b.gep("i8", base, self.expressions.dim(place.offset))
            else:
                self.known[name] = self.entry(self.first[place.kind] + place.position)
        return self.known[name]

    def entry(self, slot: int) -> Value:
        if slot not in self.known:
            self.known[slot] = self.b.load("ptr", self.b.gep("ptr", self.table, self.b.i64(slot)), 8)
        return self.known[slot]


def _write_check(b: Builder, step: CheckStep, frame: Value, tid: Value, pointer: Value) -> None:
    """Thread 0 leaves the code of the first check that fails in the frame."""
    status = b.gep("i8", frame, b.i64(24))
    failed = b.cmp("icmp eq", b.load("i8", pointer, 1), Value("i8", "0"))
    unset = b.cmp("icmp eq", b.load("i32", status, 4), Value("i32", "0"))
    mine = b.cmp("icmp eq", tid, b.i64(0))
    store = b.when(b.bin("and", mine, b.bin("and", failed, unset)), "failed")
    b.store(Value("i32", str(step.code)), status, 4)
    store.end()


def _write_derive(module: Module, program: Program, slots: dict[str, int], derived: tuple[Dim, ...]) -> None:
    """Derived sizes; nonzero when a symbol is outside its range."""
    b = module.function("planish_derive", [("ptr", "sizes")], "i32")
    sizes, = b.parameters
    values = {s: b.load("i64", b.gep("i64", sizes, b.i64(i)), 8) for s, i in slots.items()}
    expressions = Expressions(b, _NO_KERNEL, {}, values, "default")
    outside = Value("i1", "false")
    for symbol in program.symbols:
        value = values[symbol.name]
        outside = b.bin("or", outside, b.cmp("icmp slt", value, b.i64(symbol.low)))
        if symbol.high is not None:
            outside = b.bin("or", outside, b.cmp("icmp sgt", value, expressions.dim(symbol.high)))
    for i, dim in enumerate(derived, len(slots)):
        b.store(expressions.dim(dim), b.gep("i64", sizes, b.i64(i)), 8)
    b.ret(b.cast("zext", outside, "i32"))
