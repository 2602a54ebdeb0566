"""A program as native code: one function that launches every kernel, and one that computes run-time sizes.

In: a program of scheduled kernels. Out: LLVM modules' texts, and the order of sizes in the table they share:

    void planish_body(ptr frame, i64 tid, i64 threads)
    i32  planish_derive(ptr sizes)
    frame = { ptr buffers, ptr sizes, ptr pool, i32 status, i32 }

`sizes` holds the symbols' values, then derived ones (sizes of outputs, bytes of the arena). Every thread
runs the body; a barrier stands between kernels that depend on each other, unless both are thread 0's alone.
All threads decide alike at a choice or a loop: each reads the predicate after a barrier, and none goes on to
overwrite it before all have.
A loop in which no launch is worth a barrier runs on thread 0 alone; what is worth one may depend on sizes.
Equal kernels are written once, launches beside each other as one function. A timed body (clocks.py) also
leaves what each launch took, so there these run one by one.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile

from planish.codegen.llvm.amx import write_tiles
from planish.codegen.llvm.beside import write_beside
from planish.codegen.llvm.builder import Builder, Cell, Module, Value
from planish.codegen.llvm.builder import While as Loop
from planish.codegen.llvm.clocks import Clocks
from planish.codegen.llvm.contraction import write_contraction
from planish.codegen.llvm.expressions import Expressions, Scope
from planish.codegen.llvm.host import Target
from planish.codegen.llvm.loops import write_kernel
from planish.schedule.kernel import Kernel
from planish.schedule.products import TILES
from planish.schedule.program import (
    CONTROL,
    CheckStep,
    For,
    If,
    Launch,
    Place,
    Program,
    Step,
    While,
    every_step,
    together,
)
from planish.schedule.rebuild import canonical
from planish.schedule.text import print_kernel
from planish.schedule.work import WORTH_A_BARRIER, is_shared, kernels_in, shared_work, work_of
from planish.types import Dim, is_static

LAUNCHES = 8                # between two barriers, whose units threads may claim (runtime/pool.py)


Names = dict[tuple[int, ...], str]  # kernels by their ids, of one call -> its function


@dataclass(frozen=True)
class ProgramCode:
    """`kernels`: function name -> what writes its module; `body`: the module that calls them; `derived`: the
    sizes after the symbols in the table; `work`: see `shared_work`."""

    kernels: dict[str, Callable[[], str]]
    body: str
    derived: tuple[Dim, ...]
    work: Dim


def write_program(program: Program, target: Target, numerics: str, extra: tuple[Dim, ...] = (),
                  times: str = "") -> ProgramCode:
    """The modules of a program; `extra` lists run-time sizes that the caller needs (dims of the outputs),
    `times` names the buffer for what each launch took, if that is wanted."""
    slots = {s.name: i for i, s in enumerate(program.symbols)}
    work = shared_work(program)
    derived = tuple(dict.fromkeys(d for d in (*extra, program.arena_bytes, work) if not is_static(d)))
    kernels: dict[str, Callable[[], str]] = {}
    names: Names = {}
    for group in _launched(program.steps, apart=bool(times)):
        plain = [canonical(s.kernel) for s in group]
        own = [kernel_name(k, slots, numerics) for k in plain]
        name = own[0] if len(group) == 1 else f"beside_{_digest(' '.join(own))}"
        kernels.setdefault(name, partial(_text, plain, name, target, slots, numerics))
        names[tuple(id(s.kernel) for s in group)] = name
    module = Module(target.triple, target.lacks)
    _write_body(module, program, names, slots, times)
    _write_derive(module, program, slots, derived)
    return ProgramCode(kernels, str(module), derived, work)


def kernel_name(kernel: Kernel, slots: dict[str, int], numerics: str) -> str:
    """A hash of all that decides the code of a canonical kernel."""
    used = ", ".join(f"{s}={slots[s]}" for s in kernel.symbols)
    described = f"{print_kernel(kernel)}\n{used}\n{numerics}"
    return f"kernel_{_digest(described)}"


def _digest(described: str) -> str:
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _launched(steps: Sequence[Step], *, apart: bool) -> Iterator[tuple[Launch, ...]]:
    """The launches that are one call each: those beside each other are, unless all are `apart`."""
    for group in together(steps):
        if isinstance(group[0], CONTROL):
            yield from (found for region in group[0].regions for found in _launched(region, apart=apart))
        launches = tuple(s for s in group if isinstance(s, Launch))
        yield from ((s,) for s in launches) if apart else [launches] if launches else ()


def _text(kernels: Sequence[Kernel], name: str, target: Target, slots: dict[str, int], numerics: str) -> str:
    """The module of one canonical kernel, or of several that run beside each other."""
    if len(kernels) == 1:
        return kernel_text(kernels[0], name, target, slots, numerics)
    module = Module(target.triple, target.lacks)
    write_beside(module, kernels, name, slots, numerics)
    return str(module)


def kernel_text(kernel: Kernel, name: str, target: Target, slots: dict[str, int], numerics: str) -> str:
    """The module of one canonical kernel."""
    module = Module(target.triple, target.lacks)
    _writer(kernel)(module, kernel, name, slots, numerics)
    return str(module)


def _writer(kernel: Kernel) -> Callable[..., Builder]:
    if kernel.tile is None:
        return write_kernel
    return write_tiles if kernel.tile.product is TILES else write_contraction


def _write_body(module: Module, program: Program, names: Names, slots: dict[str, int],
                times: str) -> None:
    b = module.function("planish_body", [("ptr", "frame"), ("i64", "tid"), ("i64", "threads")])
    frame = b.parameters[0]
    buffers = b.load("ptr", frame, 8)
    sizes = b.load("ptr", b.gep("i8", frame, b.i64(8)), 8)
    pool = b.load("ptr", b.gep("i8", frame, b.i64(16)), 8)
    values = {s: b.load("i64", b.gep("i64", sizes, b.i64(i)), 8) for s, i in slots.items()}
    pointers = _Pointers(b, program, buffers, Expressions(b, _NO_KERNEL, {}, values, "default"))
    clocks = Clocks(b, program, pointers(times)) if times else None
    _Body(b, program, names, pointers, sizes, pool, clocks).steps(program.steps)
    if clocks is not None:
        clocks.close()
    b.ret()


_NO_KERNEL = Kernel("program", (), (), (), ())


class _Body:
    """Writes the steps. `failed` says whether a check has failed; every thread keeps its own, and all
    agree."""

    def __init__(self, b: Builder, program: Program, names: Names, pointers: _Pointers, sizes: Value,
                 pool: Value, clocks: Clocks | None):
        self.b, self.names, self.pointers, self.sizes, self.pool = b, names, pointers, sizes, pool
        self.clocks = clocks
        self.frame, self.tid, self.threads = b.parameters
        self.is_alone = False  # in a round of a parallel loop
        self.top = {id(step) for step in program.steps}
        self.launches = 0      # numbered since the last barrier
        self.tail = {id(step) for step in _tail(program.steps)}
        every = list(every_step(program.steps))
        self.failed = Cell(b, "i1") if any(isinstance(s, CheckStep) for s in every) else None
        self.counters = {s.counter.name: Cell(b) for s in every if isinstance(s, For) and not s.parallel}
        if self.failed is not None:
            self.failed.set(Value("i1", "false"))

    def steps(self, steps: Sequence[Step]) -> None:
        needless = set(_needless_barriers(steps))
        for group in [(s,) for s in steps] if self.clocks else together(steps):
            step = group[-1]
            if len(group) > 1:
                self.launch([s for s in group if isinstance(s, Launch)])
            else:
                self.step(step)
            waits = isinstance(step, Launch) and step.barrier
            if waits and id(step) not in self.tail and id(step) not in needless:
                self.barrier()
                self.launches = 0 if id(step) in self.top else self.launches

    def step(self, step: Step) -> None:
        if isinstance(step, Launch):
            with self.clocks.around(step, self.is_alone) if self.clocks else nullcontext():
                self.launch([step])
        elif isinstance(step, CheckStep):
            self.check(step)
        elif isinstance(step, If):
            self.choice(step)
        elif isinstance(step, For) and step.parallel:
            self.shared_rounds(step)
        else:
            with self.enough_threads(step):
                if isinstance(step, While):
                    self.while_loop(step)
                else:
                    self.for_loop(step)

    def launch(self, group: Sequence[Launch]) -> None:
        """One launch, or several beside each other."""
        buffers = [self.pointers(name) for step in group for name in step.arguments]
        number = self.b.i64(self.number(group[-1]))
        name = self.names[tuple(id(step.kernel) for step in group)]
        self.b.call(name, "void", [*buffers, self.sizes, self.tid, self.threads, self.pool, number])

    @contextmanager
    def enough_threads(self, step: While | For) -> Iterator[None]:
        """Around a loop that a few threads may be enough for: the others go on to the barrier behind it."""
        b, pays = self.b, self.pays(step)
        if pays is None:
            yield
            return
        all_threads = self.threads
        self.threads = b.select(pays, all_threads, b.i64(1))
        alone = b.when(b.cmp("icmp slt", self.tid, self.threads), "alone")
        with self.pointers.inside({}):
            yield
        alone.end()
        self.threads = all_threads
        if id(step) not in self.tail:
            self.barrier()
        if self.failed is not None:
            code = b.load("i32", b.gep("i8", self.frame, b.i64(24)), 4)
            self.failed.set(b.cmp("icmp ne", code, Value("i32", "0")))

    def pays(self, step: While | For) -> Value | None:
        """Whether a launch in a loop has work for several threads; None where it surely has."""
        work = {work_of(k) for k in kernels_in(step) if is_shared(k)}
        if any(is_static(w) and w >= WORTH_A_BARRIER for w in work):
            return None
        found = Value("i1", "false")
        for size in sorted((w for w in work if not is_static(w)), key=str):
            large = self.b.cmp("icmp sge", self.pointers.expressions.dim(size), self.b.i64(WORTH_A_BARRIER))
            found = self.b.bin("or", found, large)
        return found

    def barrier(self) -> None:
        if self.is_alone:
            return
        self.b.call("planish_barrier", "void", [self.pool, self.tid, self.threads])

    def region(self, steps: Sequence[Step], counters: dict[str, Value] | None = None) -> None:
        with self.pointers.inside(counters or {}):
            self.steps(steps)

    def truth(self, step: CheckStep | If | While) -> Value:
        """The bool scalar a step looks at; all threads have read it before any goes on."""
        buffer, = step.reads
        value = self.b.cmp("icmp ne", self.b.load("i8", self.pointers(buffer)), Value("i8", "0"))
        if id(step) not in self.tail:
            self.barrier()
        return value

    def number(self, step: Launch) -> int:
        """Under which threads may claim one another's work in a launch: another one for each of those that no
        barrier stands between; -1 in a region, which may run again, and where none is left."""
        if id(step) not in self.top or self.launches == LAUNCHES or not is_shared(step.kernel):
            return -1
        self.launches += 1
        return self.launches - 1

    def check(self, step: CheckStep) -> None:
        """Thread 0 leaves the code of the first check that fails in the frame."""
        b, failed = self.b, self.failed
        assert failed is not None
        before = failed.get()
        fails = b.bin("xor", self.truth(step), Value("i1", "true"))
        failed.set(b.bin("or", before, fails))
        first = b.bin("and", fails, b.bin("xor", before, Value("i1", "true")))
        store = b.when(b.bin("and", first, b.cmp("icmp eq", self.tid, b.i64(0))), "failed")
        b.store(Value("i32", str(step.code)), b.gep("i8", self.frame, b.i64(24)), 4)
        store.end()

    def choice(self, step: If) -> None:
        b = self.b
        then, otherwise, after = b.label("then"), b.label("else"), b.label("after")
        b.branch(self.truth(step), then, otherwise)
        for label, region in ((then, step.then), (otherwise, step.otherwise)):
            b.place(label)
            self.region(region)
            b.jump(after)
        b.place(after)

    def goes_on(self, loop: Loop) -> None:
        if self.failed is not None:
            loop.test(self.b.bin("xor", self.failed.get(), Value("i1", "true")))

    def while_loop(self, step: While) -> None:
        loop = self.b.repeat("while")
        self.goes_on(loop)
        self.region(step.condition)
        loop.test(self.truth(step))
        self.goes_on(loop)
        self.region(step.body)
        loop.end()

    def shared_rounds(self, step: For) -> None:
        """A thread's share of the rounds of a parallel loop, each run as by one thread alone."""
        b, tid, threads = self.b, self.tid, self.threads
        length = self.pointers.expressions.dim(step.length)
        share = b.bin("udiv", b.add(length, b.add(threads, b.i64(-1))), threads)
        first = b.intrinsic("smin", b.mul(tid, share), length)
        loop = b.loop(first, b.intrinsic("smin", b.add(first, share), length), b.i64(1), hint="round")
        self.tid, self.threads, self.is_alone = b.i64(0), b.i64(1), True
        self.region(step.body, {step.counter.name: loop.index})
        self.tid, self.threads, self.is_alone = tid, threads, False
        loop.end()
        if id(step) not in self.tail:
            self.barrier()

    def for_loop(self, step: For) -> None:
        b, counter = self.b, self.counters[step.counter.name]
        counter.set(b.i64(0))
        length = self.pointers.expressions.dim(step.length)
        loop = b.repeat("for")
        at = counter.get()
        loop.test(b.cmp("icmp slt", at, length))
        self.goes_on(loop)
        index = b.bin("sub", b.add(length, b.i64(-1)), at) if step.reverse else at
        self.region(step.body, {step.counter.name: index})
        counter.set(b.add(at, b.i64(1)))
        loop.end()


def _tail(steps: Sequence[Step]) -> Sequence[Step]:
    """The launch, loop or checks at the end: nothing waits for them."""
    checks = list(takewhile(lambda s: isinstance(s, CheckStep), reversed(steps)))
    return checks or [s for s in steps[-1:] if isinstance(s, (Launch, For))]


def _needless_barriers(steps: Sequence[Step]) -> Iterator[int]:
    """Launches whose barrier has on both sides what thread 0 does alone: it keeps the order by itself."""
    phases: list[list[Step]] = [[]]
    for step in steps:
        phases[-1].append(step)
        if not isinstance(step, Launch) or step.barrier:
            phases.append([])
    for phase, following in pairwise(filter(None, phases)):
        if all(isinstance(s, Launch) and not is_shared(s.kernel) for s in (*phase, *following)):
            yield id(phase[-1])


class _Pointers:
    """Addresses of buffers. Those of slices are computed where they are used, the others once, at the start:
    they hold in every branch."""

    def __init__(self, b: Builder, program: Program, table: Value, expressions: Expressions):
        self.b, self.table, self.expressions = b, table, expressions
        self.places: dict[str, Place] = program.places
        outputs, constants = len(program.inputs), len(program.inputs) + len(program.outputs)
        self.first = {"input": 0, "output": outputs, "constant": constants}
        self.arena_slot = self.first["constant"] + len(program.contents)
        self.known: dict[object, Value] = {}
        for place in program.buffers:
            if place.kind == "arena":
                base = self.entry(self.arena_slot)
                self.known[place.name] = b.gep("i8", base, expressions.dim(place.offset))
            elif place.kind != "slice":
                self.known[place.name] = self.entry(self.first[place.kind] + place.position)

    def __call__(self, name: str) -> Value:
        place = self.places[name]
        if place.kind != "slice":
            return self.known[name]
        return self.b.gep("i8", self(place.base), self.expressions.dim(place.offset))

    @contextmanager
    def inside(self, counters: dict[str, Value]) -> Iterator[None]:
        """Inside a region: what is computed there is known only there."""
        outside = self.expressions.scope
        self.expressions.scope = Scope(outside, counters)
        yield
        self.expressions.scope = outside

    def entry(self, slot: int) -> Value:
        if slot not in self.known:
            self.known[slot] = self.b.load("ptr", self.b.gep("ptr", self.table, self.b.i64(slot)), 8)
        return self.known[slot]


def _write_derive(module: Module, program: Program, slots: dict[str, int], derived: tuple[Dim, ...]) -> None:
    """Derived sizes. 0, or -1 - the place of the first symbol that is outside its range."""
    b = module.function("planish_derive", [("ptr", "sizes")], "i32")
    sizes, = b.parameters
    values = {s: b.load("i64", b.gep("i64", sizes, b.i64(i)), 8) for s, i in slots.items()}
    expressions = Expressions(b, _NO_KERNEL, {}, values, "default")
    code = Value("i32", "0")
    for symbol in reversed(program.symbols):
        value = values[symbol.name]
        outside = b.cmp("icmp slt", value, b.i64(symbol.low))
        if symbol.high is not None:
            outside = b.bin("or", outside, b.cmp("icmp sgt", value, expressions.dim(symbol.high)))
        code = b.select(outside, Value("i32", str(-1 - slots[symbol.name])), code)
    for i, dim in enumerate(derived, len(slots)):
        b.store(expressions.dim(dim), b.gep("i64", sizes, b.i64(i)), 8)
        too_large = Value("i32", str(-1 - len(program.symbols)))
        code = b.select(_is_too_large(expressions, dim), too_large, code)
    b.ret(code)


ADDRESSABLE = float(1 << 62)


def _is_too_large(expressions: Expressions, dim: Dim) -> Value:
    """Whether a derived size does not fit into 64 bits, where it would wrap to some other number."""
    return expressions.b.cmp("fcmp ogt", expressions.magnitude(dim), Value("double", repr(ADDRESSABLE)))
