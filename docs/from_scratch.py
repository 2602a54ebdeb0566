"""A graph compiler from scratch: the idea of planish in one file that runs: `python docs/from_scratch.py`.

You wrote a NumPy function, for people to read. It runs one operation at a time: each reads whole arrays
from memory and writes a whole array back, and on a modern machine *that* is the time, not the arithmetic.
A compiler that sees all operations at once can do better, and every such compiler walks the same road:

    program -> capture -> graph -> rewrite -> schedule -> code -> run
               part 1     part 2   part 3     part 4      part 5  part 6

Each part below is small but real. What comes out is native code, on all cores, with NumPy's answer; part 7
checks that, and only then looks at the clock. You need NumPy and llvmlite, and no C compiler.

To keep it short, values are float32 and have one of three shapes: a constant, a table (rows, columns), or
one number per row (rows, 1). The real compiler has every shape and dtype, and the same seven parts.
"""
from __future__ import annotations

import ctypes
import math
import os
import struct
import timeit
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import llvmlite.binding as llvm
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


def program(x):
    """What we shall compile: an activation, a temperature, and a softmax over each row."""
    activated = 0.5 * x * (1.0 + np.tanh(0.8 * (x + 0.04 * x**3)))
    scores = activated / math.sqrt(64.0) * 1.0
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)

# ---- Part 1. Capture ---------------------------------------------------------------------------------
# How do we see the operations of a Python function? We call it, with an argument that is no array but a
# *node*. A node answers every operator and every NumPy function by making another node: the function
# believes that it computes, and we keep what it did. (The words for this: tracing, abstract interpretation.)
#
# One table says what an operation is. The NumPy function is its meaning: the oracle of all that follows.

POINTWISE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
             "tanh": np.tanh, "exp": np.exp}
REDUCE = {"max": np.max, "sum": np.sum}
MEANING: dict[str, Callable] = {**POINTWISE, **REDUCE}
NAME_OF = {function: name for name, function in MEANING.items()}

@dataclass(frozen=True, eq=False, repr=False)
class Node(NDArrayOperatorsMixin):
    """An operation on other nodes, or a leaf: `input`, `const`, and in patterns `any`, `any_const`."""
    op: str
    args: tuple[Node, ...]
    shape: tuple[int, ...]
    value: float | None = None

    # The mixin gives + - * / ** and their mirror images. NumPy hands each of them, and np.tanh(node), to
    # __array_ufunc__, and functions such as np.max to __array_function__: NumPy's own protocols.
    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if ufunc not in NAME_OF or method != "__call__" or options:
            raise TypeError(f"cannot capture numpy.{ufunc.__name__}: use one of {', '.join(MEANING)}")
        return apply(NAME_OF[ufunc], *map(as_node, inputs))

    def __array_function__(self, function, types, args, options):
        if function not in NAME_OF or options != {"axis": -1, "keepdims": True}:
            raise TypeError(f"cannot capture {function.__name__}: use max or sum, axis=-1, keepdims=True")
        return apply(NAME_OF[function], *args)

    def __bool__(self):
        # To take one branch now would bake it into the graph: a wrong answer later is worse than an error.
        raise TypeError("a branch depends on values that exist only when the graph runs: use arithmetic")

    __eq__, __hash__ = object.__eq__, object.__hash__  # the mixin's == would build a node

_INTERNED: dict[tuple, Node] = {}

def node(op: str, args: tuple[Node, ...], shape: tuple[int, ...], value: float | None = None) -> Node:
    """The only maker of nodes. It makes equal ones once, so that common subexpressions are computed once."""
    key = (op, args, shape, None if value is None else value.hex())  # .hex() tells -0.0 from 0.0
    return _INTERNED.setdefault(key, Node(op, args, shape, value))

def as_node(value: Node | float) -> Node:
    return value if isinstance(value, Node) else node("const", (), (), float(np.float32(value)))

def apply(op: str, *args: Node) -> Node:
    """An operation on nodes. Infers the shape; puts constants on the right, so that rules need one form."""
    if op in ("add", "mul") and args[0].op == "const":
        args = args[::-1]
    shape = np.broadcast_shapes(*(a.shape for a in args))
    return node(op, args, (*shape[:-1], 1) if op in REDUCE else shape)

def capture(function: Callable, shape: tuple[int, int]) -> Node:
    """Call the function once on a node. The node it returns holds the whole program."""
    return as_node(function(node("input", (), shape)))

# ---- Part 2. The graph -------------------------------------------------------------------------------
# What we hold now is a graph in SSA form: each node is computed once, and named once. A graph is worth
# little if nobody can read it, so it prints; and little if nobody knows what it means, so there is an
# interpreter: one NumPy call per node, slow and obvious. That is also just what NumPy did with the program
# in the first place: it is our oracle (in float64), and the thing to beat (in float32).

def in_order(output: Node, seen: dict[Node, None] | None = None) -> dict[Node, None]:
    """All nodes that the output needs, operands before users, as the keys of a dict."""
    seen = {} if seen is None else seen
    for a in output.args:
        if a not in seen:
            in_order(a, seen)
    seen[output] = None
    return seen

def names(output: Node) -> dict[Node, str]:
    """%0, %1, ... in order; a constant is its own name."""
    numbered = (n for n in in_order(output) if n.op != "const")
    constants = {n: f"{n.value:g}" for n in in_order(output) if n.op == "const"}
    return constants | {n: f"%{i}" for i, n in enumerate(numbered)}

def operation(n: Node, name: dict[Node, str]) -> str:
    return " ".join([n.op, *(name[a] for a in n.args)])

def print_graph(output: Node) -> str:
    name = names(output)
    return "\n".join(f"  {name[n]:>3} = {operation(n, name):<14} : {'x'.join(map(str, n.shape))}"
                     for n in in_order(output) if n.op != "const")

def interpret(output: Node, leaves: dict[str, np.ndarray], dtype=np.float32) -> np.ndarray:
    """The meaning of a graph, one NumPy call per node. `leaves` maps `input` (or `any`) to an array."""
    values: dict[Node, np.ndarray] = {}
    for n in in_order(output):
        if n.op in MEANING:
            options = {"axis": -1, "keepdims": True} if n.op in REDUCE else {}
            values[n] = MEANING[n.op](*(values[a] for a in n.args), **options)
        else:
            values[n] = np.asarray(leaves[n.op] if n.value is None else n.value, dtype)
    return values[output]

# ---- Part 3. Rewriting -------------------------------------------------------------------------------
# A rule says: this pattern may become that result. Patterns are nodes too, built by the same operators, so
# a rule reads as an equation. But who may believe an equation of floating-point numbers? x + 0 = x is false
# for x = -0.0, and x - x = 0 is false for infinity. So a rule declares its class, and a machine checks it:

CLASSES = ["exact",     # the same bits, for every input
           "default",   # the same to within rounding, also at infinity and NaN
           "fast"]      # equal in real arithmetic; the user must ask for it
X = node("any", (), ())          # stands for any node
C = node("any_const", (), ())    # stands for a constant

def is_safe_power_of_two(c: float) -> bool:
    """Whether 1/c and c are both exact. Not so for 2**-149: its inverse overflows."""
    return abs(math.frexp(c)[0]) == 0.5 and -126 <= math.frexp(c)[1] <= 126

@dataclass(frozen=True)
class Rule:
    name: str
    pattern: Node
    result: Node
    numerics: str
    when: Callable[[float], bool] = field(default=lambda c: True)  # a guard on the constant

RULES = [
    Rule("mul_one",             X * 1.0,   X,               "exact"),
    Rule("div_by_power_of_two", X / C,     X * (1.0 / C),   "exact", when=is_safe_power_of_two),
    Rule("cube",                X ** 3.0,  X * X * X,       "default"),
    Rule("add_zero",            X + 0.0,   X,               "fast"),
]

def match(pattern: Node, n: Node, found: dict[Node, Node]) -> bool:
    """Whether `n` has the form of the pattern; fills `found` with what the variables stand for."""
    if pattern.op == "any" or (pattern.op == "any_const" and n.op == "const"):
        return found.setdefault(pattern, n) is n
    same = (pattern.op, pattern.value, len(pattern.args)) == (n.op, n.value, len(n.args))
    return same and all(match(p, a, found) for p, a in zip(pattern.args, n.args, strict=True))

def substitute(pattern: Node, found: dict[Node, Node]) -> Node:
    if pattern in found:
        return found[pattern]
    return apply(pattern.op, *(substitute(a, found) for a in pattern.args)) if pattern.args else pattern

def step(n: Node, rules: list[Rule]) -> tuple[str, Node] | None:
    """One rewrite at the root of `n`, by name; None if nothing applies."""
    if n.args and all(a.op == "const" for a in n.args):
        return "fold_constants", as_node(float(interpret(n, {})))
    for rule in rules:
        found: dict[Node, Node] = {}
        if match(rule.pattern, n, found) and (C not in found or rule.when(found[C].value)):
            return rule.name, substitute(rule.result, found)
    return None

def rewrite(output: Node, numerics: str = "default", fuel: int = 10_000) -> tuple[Node, Counter]:
    """Apply the rules of a class, operands first, until none applies. Returns the graph and what fired."""
    rules = [r for r in RULES if CLASSES.index(r.numerics) <= CLASSES.index(numerics)]
    fired: Counter = Counter()
    done: dict[Node, Node] = {}

    def visit(n: Node) -> Node:
        if n not in done:
            new = apply(n.op, *map(visit, n.args)) if n.args else n
            if rewritten := step(new, rules):
                fired[rewritten[0]] += 1
                if fired.total() > fuel:  # two rules undo each other
                    raise RuntimeError(f"rewriting does not end; most often fired: {fired.most_common(2)}")
                new = visit(rewritten[1])
            done[n] = new
        return done[n]

    return visit(output), fired

def check(rule: Rule) -> str | None:
    """Try to refute a rule on random and special values. None if it stands, else the counterexample."""
    rng = np.random.default_rng(0)
    x = np.float32(rng.normal(size=4096) * 10.0 ** rng.integers(-42, 38, 4096))
    x[:12] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38]
    for c in filter(rule.when, [1.0, -2.0, 3.0, 8.0, 0.125, 2.0**126, 2.0**-126, 2.0**-149]):
        left, right = (substitute(side, {C: as_node(c)}) for side in (rule.pattern, rule.result))
        with np.errstate(all="ignore"):
            before, after = (np.broadcast_to(interpret(side, {"any": x}), x.shape) for side in (left, right))
            true = interpret(left, {"any": x}, np.float64).astype(np.float32)
            close = np.abs(after.astype(float) - true) <= 2 * np.spacing(np.abs(true).astype(np.float32))
        same = (before.view(np.int32) == after.view(np.int32)) | (np.isnan(before) & np.isnan(after))
        allowed = {"exact": same, "default": same | close, "fast": same | close | ~np.isfinite(before)}
        if not allowed[rule.numerics].all():
            i = np.argmin(allowed[rule.numerics])
            return f"{rule.name} is not {rule.numerics}: x = {x[i]}, c = {c}: {before[i]} became {after[i]}"
    return None

# ---- Part 4. Scheduling ------------------------------------------------------------------------------
# The graph says *what*. A schedule says *how*: in which loops, in what order, on how many threads, with what
# kept where. We fuse the whole graph into one kernel. A row (4 KB for 1024 columns) fits the nearest cache,
# so a thread takes a row, does everything to it, and writes it: main memory is read once, written once.
#
# One thing stands in the way of one single loop: a row's sum must be complete before anything can be divided
# by it. So a reduction ends a loop, and its users go to the next. What a later loop needs again is kept in
# a scratch row, in the cache: to load a tanh is cheaper than to compute it twice.

@dataclass
class Loop:
    """One walk along a row, a vector of columns at a time. Lists in the order of execution."""
    loads: list[Node] = field(default_factory=list)       # the input, and what earlier loops kept
    body: list[Node] = field(default_factory=list)
    reductions: list[Node] = field(default_factory=list)

@dataclass
class Kernel:
    output: Node
    width: int            # vectorize: columns that one instruction takes
    threads: int          # parallel: rows are dealt out in blocks
    loops: list[Loop]
    kept: list[Node]      # values of one loop that a later loop loads from the scratch row

def schedule(output: Node) -> Kernel:
    """Fuse a graph into one kernel: a loop per level of reductions."""
    level: dict[Node, int] = {}
    for n in in_order(output):
        level[n] = max((level[a] + (a.op in REDUCE) for a in n.args), default=0)
    loops = [Loop() for _ in range(max(level.values()) + 1)]
    for n in level:
        loop, operands = loops[level[n]], n.args or (n,)
        loop.loads += [a for a in operands if a.shape == output.shape and a.op not in REDUCE
                       and a not in loop.body + loop.loads]
        if n.op in MEANING:
            (loop.reductions if n.op in REDUCE else loop.body).append(n)
    kept = {n: None for loop in loops for n in loop.loads if n.op != "input"}
    # The largest power of two that divides a row, up to the machine's: no remainder loop in this compiler.
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
    return Kernel(output, math.gcd(output.shape[1], lanes), len(os.sched_getaffinity(0)), loops, list(kept))

def print_kernel(kernel: Kernel) -> str:
    name = names(kernel.output)
    rows, columns = kernel.output.shape
    lines = [f"  parallel row in 0..{rows} on {kernel.threads} threads:"]
    for loop in kernel.loops:
        lines += [f"    for column in 0..{columns} step {kernel.width}:"]
        lines += [f"      {name[n]} = load {'scratch' if n in kernel.kept else 'x'}" for n in loop.loads]
        for n in loop.body:
            lines += [f"      {name[n]} = {operation(n, name)}" + "   -> scratch" * (n in kernel.kept)]
        lines += [f"      {name[n]} {n.op}= {name[n.args[0]]}" for n in loop.reductions]
    return "\n".join([*lines, f"      store y, {name[kernel.output]}"])

# ---- Part 5. Code generation -------------------------------------------------------------------------
# The kernel is spelled in the language of LLVM: typed, in SSA like our graph, with vectors as values. We say
# the width; LLVM picks registers and instructions for this very processor. It can add and multiply, but has
# no fast vector tanh or exp, so we bring our own, as polynomials. Two things are easily lost, and must not
# be: NaN goes through (a compare with NaN is false, so `clamp` keeps it), and exp reaches infinity.

EXP = [0.0013820733875, 0.0083686774597, 0.041668266058, 0.16666521132, 0.4999999404]
TANH_P = [1.5231144029e-08, 2.1895242561e-05, 0.0035716355123, 0.13444530261, 0.99999999365]
TANH_Q = [8.522761154e-07, 0.00034113518007, 0.02616458777, 0.46777857621, 1.0]
ROUNDER = 1.5 * 2.0**23   # a float32 this large has no fraction bits: adding it rounds

class Writer:
    """Writes LLVM instructions on vectors of one width; each method returns the name of its result."""

    def __init__(self, width: int) -> None:
        self.lines: list[str] = []
        self.width, self.vector, self.integers = width, f"<{width} x float>", f"<{width} x i32>"

    def let(self, instruction: str) -> str:
        self.lines.append(f"  %t{len(self.lines)} = {instruction}")
        return f"%t{len(self.lines) - 1}"

    def do(self, text: str) -> None:
        self.lines.append(text)

    def splat(self, value: float) -> str:
        """A constant in every lane. LLVM spells a float as the hexadecimal bits of the double."""
        return f"splat (float 0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X})"

    def binary(self, op: str, a: str, b: str) -> str:
        return self.let(f"{op} {self.vector} {a}, {b}")

    def integer(self, op: str, a: str, b: int | str) -> str:
        return self.let(f"{op} {self.integers} {a}, {b if isinstance(b, str) else f'splat (i32 {b})'}")

    def call(self, function: str, *args: str) -> str:
        operands = ", ".join(f"{self.vector} {a}" for a in args)
        return self.let(f"call {self.vector} @llvm.{function}.v{self.width}f32({operands})")

    def polynomial(self, coefficients: list[float], x: str) -> str:
        """Horner's scheme, the highest coefficient first."""
        y = self.splat(coefficients[0])
        for c in coefficients[1:]:
            y = self.call("fma", y, x, self.splat(c))
        return y

    def clamp(self, x: str, low: float, high: float) -> str:
        for compare, bound in (("olt", self.splat(low)), ("ogt", self.splat(high))):
            outside = self.let(f"fcmp {compare} {self.vector} {x}, {bound}")
            x = self.let(f"select <{self.width} x i1> {outside}, {self.vector} {bound}, {self.vector} {x}")
        return x

    def tanh(self, x: str) -> str:
        """x P(x^2) / Q(x^2), within 5 units in the last place."""
        x = self.clamp(x, -8.0, 8.0)
        square = self.binary("fmul", x, x)
        numerator = self.binary("fmul", x, self.polynomial(TANH_P, square))
        return self.binary("fdiv", numerator, self.polynomial(TANH_Q, square))

    def exp(self, x: str) -> str:
        """exp(x) = 2^n exp(r) with n the integer nearest to x / ln 2, and |r| <= ln(2)/2; within 1 unit."""
        x = self.clamp(x, -104.0, 88.8)
        shifted = self.call("fma", x, self.splat(1 / math.log(2)), self.splat(ROUNDER))
        n = self.binary("fsub", shifted, self.splat(ROUNDER))
        r = self.call("fma", n, self.splat(-0.693145751953125), x)     # ln 2 in two parts: the first has few
        r = self.call("fma", n, self.splat(-1.428606820309417e-6), r)  # bits, so that n times it is exact
        tail = self.call("fma", self.binary("fmul", r, r), self.polynomial(EXP, r), r)
        y = self.binary("fadd", tail, self.splat(1.0))
        bits = self.let(f"bitcast {self.vector} {shifted} to {self.integers}")  # n stands in the low bits
        k = self.integer("sub", bits, struct.unpack("<i", struct.pack("<f", ROUNDER))[0])
        half = self.integer("ashr", k, 1)
        for part in (half, self.integer("sub", k, half)):              # in two steps: 2^128 is no float32
            exponent = self.integer("shl", self.integer("add", part, 127), 23)
            y = self.binary("fmul", y, self.let(f"bitcast {self.integers} {exponent} to {self.vector}"))
        return y

    def operation(self, op: str, args: list[str]) -> str:
        """The target's table: what it spells, what it lowers, and an error for what it refuses."""
        if op in ("add", "sub", "mul", "div"):
            return self.binary(f"f{op}", *args)
        if op in ("tanh", "exp"):
            return getattr(self, op)(*args)
        raise NotImplementedError(f"the CPU target has no code for {op!r}: write it with other operations")

    def reduce(self, op: str, vector: str) -> str:
        """All lanes to one number, in a fixed order; and that number in all lanes again."""
        function, start = ("fadd", "float -0.0, ") if op == "sum" else ("fmaximum", "")
        v = self.vector
        number = self.let(f"call float @llvm.vector.reduce.{function}.v{self.width}f32({start}{v} {vector})")
        lane = self.let(f"insertelement {v} poison, float {number}, i64 0")
        return self.let(f"shufflevector {v} {lane}, {v} poison, {self.integers} zeroinitializer")

def generate(kernel: Kernel) -> str:
    """The kernel as LLVM IR: `void kernel(x, y, scratch, first_row, last_row)`."""
    w, columns, count = Writer(kernel.width), kernel.output.shape[1], len(kernel.loops)
    value = {n: w.splat(n.value) for n in in_order(kernel.output) if n.op == "const"}

    def address(base: str, offset: str) -> str:
        return w.let(f"getelementptr float, ptr {base}, i64 {offset}")

    def scratch(n: Node, column: str) -> str:
        return address("%scratch", w.let(f"add i64 {column}, {kernel.kept.index(n) * columns}"))

    w.do("define void @kernel(ptr noalias %x, ptr noalias %y, ptr noalias %scratch, i64 %first, i64 %last) {")
    w.do(f"entry:\n  br label %row0\nrow0:\n  %row = phi i64 [%first, %entry], [%next, %row{count}]")
    start = w.let(f"mul i64 %row, {columns}")
    x_row, y_row = address("%x", start), address("%y", start)
    for i, loop in enumerate(kernel.loops):
        w.do(f"  br label %loop{i}\nloop{i}:\n  %c{i} = phi i64 [0, %row{i}], [%c{i}.next, %loop{i}]")
        total = {n: f"%r{i}.{r}" for r, n in enumerate(loop.reductions)}
        for n in loop.reductions:
            identity = w.splat(-math.inf if n.op == "max" else -0.0)  # -0.0 + x is x, always; 0.0 + x is not
            w.do(f"  {total[n]} = phi {w.vector} [{identity}, %row{i}], [{total[n]}.next, %loop{i}]")
        for n in loop.loads:
            source = scratch(n, f"%c{i}") if n in kernel.kept else address(x_row, f"%c{i}")
            value[n] = w.let(f"load {w.vector}, ptr {source}, align 4")
        for n in loop.body:
            value[n] = w.operation(n.op, [value[a] for a in n.args])
            if n in kernel.kept:
                w.do(f"  store {w.vector} {value[n]}, ptr {scratch(n, f'%c{i}')}, align 4")
        for n in loop.reductions:
            old, term = total[n], value[n.args[0]]
            new = w.binary("fadd", old, term) if n.op == "sum" else w.call("maximum", old, term)
            w.do(f"  {old}.next = bitcast {w.vector} {new} to {w.vector}")
        if i == count - 1:
            w.do(f"  store {w.vector} {value[kernel.output]}, ptr {address(y_row, f'%c{i}')}, align 4")
        w.do(f"  %c{i}.next = add nuw i64 %c{i}, {kernel.width}")
        w.do(f"  %more{i} = icmp ult i64 %c{i}.next, {columns}")
        w.do(f"  br i1 %more{i}, label %loop{i}, label %row{i + 1}\nrow{i + 1}:")
        value |= {n: w.reduce(n.op, f"{total[n]}.next") for n in loop.reductions}
    w.do("  %next = add nuw i64 %row, 1\n  %more = icmp ult i64 %next, %last")
    w.do("  br i1 %more, label %row0, label %done\ndone:\n  ret void\n}")
    return "\n".join(w.lines)

# ---- Part 6. Running ---------------------------------------------------------------------------------
# LLVM makes machine code inside this process. ctypes lets go of Python's lock while it runs, so threads work.

class Program:
    """A compiled function of one table of one shape. Every stage can be looked at: graph, kernel, ir."""

    def __init__(self, function: Callable, shape: tuple[int, int], numerics: str = "default") -> None:
        self.captured = capture(function, shape)
        if self.captured.shape != shape or not shape[1]:
            raise TypeError(f"result {self.captured.shape} must be a table of the argument's shape {shape}")
        self.graph, self.fired = rewrite(self.captured, numerics)
        self.kernel = schedule(self.graph)
        self.ir = generate(self.kernel)
        self._engine = machine_code(self.ir)
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
        self._native = signature(self._engine.get_function_address("kernel"))
        self._pool = ThreadPoolExecutor(self.kernel.threads)

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """`out`: where to write. Fresh memory costs a page fault for every 4 KB, more than our arithmetic."""
        out = np.empty_like(x) if out is None else out
        for a in (x, out):
            if a.shape != self.graph.shape or a.dtype != np.float32 or not a.flags.c_contiguous:
                raise TypeError(f"compiled for contiguous float32 {self.graph.shape}: {a.dtype} {a.shape}")
        if np.may_share_memory(x, out):
            raise ValueError("`out` must not overlap `x`: the kernel reads a row again after it has written")

        def run_block(first: int, last: int) -> None:
            scratch = np.empty((len(self.kernel.kept), x.shape[1]), np.float32)
            if first < last:
                self._native(x.ctypes.data, out.ctypes.data, scratch.ctypes.data, first, last)

        bounds = [len(x) * i // self.kernel.threads for i in range(self.kernel.threads + 1)]
        list(self._pool.map(run_block, bounds[:-1], bounds[1:]))
        return out

def machine_code(ir: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu, features, opt=2)
    module = llvm.parse_assembly(ir)
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine

def jit(function: Callable, numerics: str = "default") -> Callable:
    """Compile at the first call of each shape."""
    program_of = cache(lambda shape: Program(function, shape, numerics))
    return lambda x, out=None: program_of(x.shape)(x, out)

# ---- Part 7. Is it right? Is it faster? --------------------------------------------------------------

def main(rows: int = 4096, columns: int = 1024) -> None:
    start = timeit.default_timer()
    compiled = Program(program, (rows, columns))
    seconds = timeit.default_timer() - start
    print("captured\n" + print_graph(compiled.captured))
    print("rules", *(check(rule) or f"{rule.name}: {rule.numerics}" for rule in RULES), sep="\n  ")
    print("  refused:", check(Rule("sub_self", X - X, as_node(0.0), "exact")))
    print("fired\n  " + ", ".join(f"{name} x{count}" for name, count in compiled.fired.items()))
    print("rewritten\n" + print_graph(compiled.graph))
    print("kernel\n" + print_kernel(compiled.kernel))
    print(f"code\n  {compiled.ir.count(chr(10))} lines of LLVM IR; capture to code: {seconds * 1e3:.0f} ms")
    x = 4 * np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    truth = interpret(compiled.captured, {"input": x}, np.float64)
    out = np.empty_like(x)
    numpy_error, error = (np.abs(result / truth - 1).max() for result in (program(x), compiled(x, out)))
    print(f"result\n  relative error against float64: NumPy {numpy_error:.1e}, compiled {error:.1e}")
    assert error < 1e-5, "a fast wrong answer is no answer"
    operations = [n for n in in_order(compiled.captured) if n.op in MEANING]
    moved = sum(4 * math.prod(a.shape) for n in operations for a in (n, *n.args) if a.shape)
    calls = (lambda: program(x), lambda: compiled(x, out))
    eager, fused = (1e3 * min(timeit.repeat(call, number=1, repeat=7)) for call in calls)
    print(f"  NumPy    {len(operations):3} kernels {moved / 1e6:8.1f} MB moved {eager:9.2f} ms")
    print(f"  compiled   1 kernel  {2 * x.nbytes / 1e6:8.1f} MB moved {fused:9.2f} ms, {eager / fused:.1f}x")

if __name__ == "__main__":
    main()
