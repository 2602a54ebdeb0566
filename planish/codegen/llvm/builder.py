"""A small writer of LLVM IR text.

In: typed values and operations, in program order. Out: the text of one LLVM module. Text, not llvmlite's
object model, because writing and parsing text is several times faster and what is written can be read. Types
are LLVM's own spellings ("float", "<8 x float>", "i64", "ptr"); nothing here knows about tensors.
"""
from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Value:
    """An SSA value or a literal: its LLVM type and its spelling."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def vector(element: str, lanes: int) -> str:
    """The type of `lanes` elements; one lane is the scalar itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_of(type_: str) -> str:
    return type_.split(" x ")[1][:-1] if type_.startswith("<") else type_


def lanes_of(type_: str) -> int:
    return int(type_[1:].split(" x ")[0]) if type_.startswith("<") else 1


LINE = 64  # bytes of a cache line: a function begins one, so its loops lie alike whatever is before it
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


def mangle(type_: str) -> str:
    """The suffix LLVM gives an overloaded intrinsic: <8 x float> -> v8f32."""
    element, lanes = element_of(type_), lanes_of(type_)
    short = _SUFFIX.get(element, element)
    return short if lanes == 1 else f"v{lanes}{short}"


def literal(element: str, number: float | int | bool) -> str:
    """A scalar literal; floats are written as the hex image of their double value, so no digit is lost."""
    if element in ("float", "double"):
        if element == "float":
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if element == "i1":
        return "true" if number else "false"
    return str(int(number))


@dataclass
class Module:
    """Functions, globals and declarations of one translation unit. `lacks` names what the machine has no
    instruction for: "fma", "half" (conversion of float16), "bfloat16 pairs" (products.py)."""

    triple: str
    lacks: frozenset[str] = frozenset()
    functions: list[Builder] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    attributes: str = "nounwind"

    def function(self, name: str, parameters: Sequence[tuple[str, str]], result: str = "void",
                 linkage: str = "", attributes: str = "") -> Builder:
        """Open a function; a parameter is (type with attributes, name): ("ptr noalias", "x")."""
        builder = Builder(self, name, list(parameters), result, linkage, attributes)
        self.functions.append(builder)
        return builder

    def declare(self, name: str, result: str, arguments: Sequence[str]) -> None:
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(arguments)})")

    def __str__(self) -> str:
        parts = [f'target triple = "{self.triple}"', *self.globals.values(), *self.declarations.values(),
                 *map(str, self.functions)]
        return "\n".join(parts) + "\n"


class Builder:
    """One function being written. Every method that computes returns the `Value` it named."""

    def __init__(self, module: Module, name: str, parameters: list[tuple[str, str]], result: str,
                 linkage: str, attributes: str):
        self.module, self.name, self.result = module, name, result
        self.parameters = [Value(type_.split(" ")[0] if not type_.startswith("<") else type_, f"%{n}")
                           for type_, n in parameters]
        signature = ", ".join(f"{type_} %{n}" for type_, n in parameters)
        visible, attributes = f"{linkage} " if linkage else "", attributes or module.attributes
        self.head = f"define {visible}{result} @{name}({signature}) {attributes} align {LINE} {{"
        self.lines: list[str] = ["entry:"]
        self.block = "entry"
        self.types: dict[str, str] = {}
        self.count = 0

    def __str__(self) -> str:
        return "\n".join([self.head, *self.lines, "}"])

    # --- the two ways a line is written

    def value(self, type_: str, text: str) -> Value:
        self.count += 1
        name = f"%v{self.count}"
        self.types[name] = type_
        self.lines.append(f"  {name} = {text}")
        return Value(type_, name)

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def free_registers(self, vector_bytes: int) -> None:
        """No value is kept in a vector register past this point: what comes next needs them all. (LLVM moves
        the constants of an inner loop out of all loops around it, and rather spills sums than load them
        again.)"""
        if "x86" in self.module.triple:
            names = [f"xmm{i}" for i in range(32 if vector_bytes == 64 else 16)]
        else:
            names = [f"v{i}" for i in range(32)]
        clobbers = ",".join(f"~{{{name}}}" for name in names)
        self.do(f'call void asm sideeffect "", "{clobbers}"()')

    def opaque(self, x: Value, *, once: bool = False) -> Value:
        """The same pointer or integer, of which LLVM does not know how it came about; with `once` it is
        another each time that this runs."""
        return self.value(x.type, f'call {x.type} asm {"sideeffect " * once}"", "=r,0"({x})')

    # --- literals and vectors

    def const(self, type_: str, number: float | int | bool) -> Value:
        element = element_of(type_)
        text = literal(element, number)
        return Value(type_, text if lanes_of(type_) == 1 else f"splat ({element} {text})")

    def i64(self, number: int) -> Value:
        return Value("i64", str(number))

    def splat(self, scalar: Value, lanes: int) -> Value:
        """Repeat a scalar over `lanes`; a literal stays a literal."""
        if lanes == 1:
            return scalar
        type_ = vector(scalar.type, lanes)
        if not scalar.name.startswith("%"):
            return Value(type_, f"splat ({scalar})")
        one = self.value(type_, f"insertelement {type_} poison, {scalar}, i64 0")
        return self.value(type_, f"shufflevector {one}, {type_} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, vec: Value, lane: int) -> Value:
        if lanes_of(vec.type) == 1:
            return vec
        return self.value(element_of(vec.type), f"extractelement {vec}, i64 {lane}")

    def insert(self, vec: Value, scalar: Value, lane: int) -> Value:
        return self.value(vec.type, f"insertelement {vec}, {scalar}, i64 {lane}")

    def shuffle(self, one: Value, other: Value, picks: Sequence[int]) -> Value:
        """Lanes of two vectors side by side, by number."""
        lanes = ", ".join(f"i32 {k}" for k in picks)
        type_ = vector(element_of(one.type), len(picks))
        return self.value(type_, f"shufflevector {one}, {other}, <{len(picks)} x i32> <{lanes}>")

    # --- arithmetic

    def bin(self, opcode: str, x: Value, y: Value) -> Value:
        """Any two-operand instruction whose result has the operands' type: "fadd", "mul nuw", "and"."""
        return self.value(x.type, f"{opcode} {x}, {y.name}")

    def cmp(self, opcode: str, x: Value, y: Value) -> Value:
        """"fcmp olt", "icmp ult"...: the result is i1 per lane."""
        return self.value(vector("i1", lanes_of(x.type)), f"{opcode} {x}, {y.name}")

    def select(self, mask: Value, x: Value, y: Value) -> Value:
        return self.value(x.type, f"select {mask}, {x}, {y}")

    def fneg(self, x: Value) -> Value:
        return self.value(x.type, f"fneg {x}")

    def cast(self, opcode: str, x: Value, type_: str) -> Value:
        """"sext", "fptrunc", "bitcast"... to `type_`."""
        return x if x.type == type_ else self.value(type_, f"{opcode} {x} to {type_}")

    def add(self, x: Value, y: Value) -> Value:
        return self.bin("add", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.bin("mul", x, y)

    # --- calls

    def call(self, name: str, result: str, arguments: Sequence[Value]) -> Value:
        """Call a function of this module or one that the linker supplies; it is declared if need be."""
        if all(f.name != name for f in self.module.functions):
            self.module.declare(name, result, [a.type for a in arguments])
        text = f"call {result} @{name}({', '.join(map(str, arguments))})"
        if result == "void":
            self.do(text)
            return Value("void", "")
        return self.value(result, text)

    def intrinsic(self, name: str, *arguments: Value, overloads: Sequence[str] = ()) -> Value:
        """An `llvm.*` intrinsic overloaded on its first operand (or on `overloads`), result of the same
        type."""
        suffix = ".".join(mangle(t) for t in (overloads or [arguments[0].type]))
        return self.call(f"llvm.{name}.{suffix}", arguments[0].type, arguments)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z rounded once. Without the instruction, of floats by way of double (the product is exact
        there; two roundings meet in some 2^-29 of all cases), of doubles by the C library, lane by lane."""
        if "fma" not in self.module.lacks or element_of(x.type) != "float":
            return self.intrinsic("fma", x, y, z)
        wide = vector("double", lanes_of(x.type))
        x, y, z = (self.cast("fpext", v, wide) for v in (x, y, z))
        total = self.bin("fadd", self.bin("fmul", x, y), z)
        return self.cast("fptrunc", total, vector("float", lanes_of(x.type)))

    def multiply_add(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z, rounded once where that is one instruction, else twice."""
        return self.intrinsic("fmuladd", x, y, z)

    # --- memory

    def gep(self, element: str, pointer: Value, index: Value) -> Value:
        """The address of an element; the first is where the pointer points."""
        if index.name == "0":
            return pointer
        return self.value("ptr", f"getelementptr {element}, {pointer}, {index}")

    def load(self, type_: str, pointer: Value, align: int = 1, note: str = "") -> Value:
        return self.value(type_, f"load {type_}, {pointer}, align {align}{note}")

    def store(self, x: Value, pointer: Value, align: int = 1, note: str = "") -> None:
        self.do(f"store {x}, {pointer}, align {align}{note}")

    def prefetch(self, pointer: Value, level: int = 1) -> None:
        """Ask for the cache line of an address, to be read soon, into the cache of a level; any address will
        do."""
        self.call("llvm.prefetch.p0", "void", [pointer, *(Value("i32", str(n)) for n in (0, 4 - level, 1))])

    # --- control

    def label(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def place(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.do(f"br {condition}, label %{yes}, label %{no}")

    def ret(self, x: Value | None = None) -> None:
        self.do("ret void" if x is None else f"ret {x}")

    def loop(self, start: Value, stop: Value, step: Value, carry: Sequence[Value] = (),
             hint: str = "loop") -> Loop:
        """`for index in range(start, stop, step)` with values carried round; close it with `Loop.end`."""
        return Loop(self, start, stop, step, list(carry), hint)

    def repeat(self, hint: str = "while") -> While:
        """`while True:`, left where a `While.test` fails; close it with `While.end`."""
        return While(self, hint)

    def when(self, condition: Value, hint: str = "then") -> When:
        """`if condition:` without values; close it with `When.end`."""
        return When(self, condition, hint)


class Loop:
    """A counted loop (signed compare, zero trips allowed). `index` and `carry` hold inside; `end` gives the
    results."""

    def __init__(self, b: Builder, start: Value, stop: Value, step: Value, carry: list[Value], hint: str):
        self.b, self.step = b, step
        self.head, self.body, self.exit = b.label(hint), b.label(hint + "_body"), b.label(hint + "_end")
        before = b.block
        b.jump(self.head)
        b.place(self.head)
        self.index = self._phi(start, before)
        self.carry = [self._phi(c, before) for c in carry]
        b.branch(b.cmp("icmp slt", self.index, stop), self.body, self.exit)
        b.place(self.body)

    def _phi(self, first: Value, block: str) -> Value:
        self.b.count += 1
        name = f"%v{self.b.count}"
        self.b.lines.append(f"  {name} = phi {first.type} [{first.name}, %{block}], [{{{name}}}, %{{latch}}]")
        return Value(first.type, name)

    def end(self, carry: Sequence[Value] = ()) -> list[Value]:
        b = self.b
        following = b.bin("add nsw", self.index, self.step)
        latch = b.block
        b.jump(self.head)
        incoming = {p.name: c.name for p, c in zip(self.carry, carry, strict=True)}
        incoming[self.index.name] = following.name
        at = b.lines.index(f"{self.head}:") + 1
        while " = phi " in b.lines[at]:
            line = b.lines[at]
            name = line.split()[0]
            b.lines[at] = line.replace(f"{{{name}}}", incoming[name]).replace("{latch}", latch)
            at += 1
        b.place(self.exit)
        return self.carry


class Cell:
    """A variable of a function; made in the entry block, LLVM keeps it in a register."""

    def __init__(self, b: Builder, type_: str = "i64"):
        self.b, self.type = b, type_
        self.at = b.value("ptr", f"alloca {type_}, align 8")

    def get(self) -> Value:
        return self.b.load(self.type, self.at, 8)

    def set(self, value: Value) -> None:
        self.b.store(value, self.at, 8)


class While:
    """`while every test holds:`; what changes from round to round lives in cells."""

    def __init__(self, b: Builder, hint: str):
        self.b = b
        self.head, self.exit = b.label(hint), b.label(hint + "_end")
        b.jump(self.head)
        b.place(self.head)

    def test(self, condition: Value) -> None:
        """Go on only if it holds; may be said again further down."""
        inside = self.b.label("holds")
        self.b.branch(condition, inside, self.exit)
        self.b.place(inside)

    def end(self) -> None:
        self.b.jump(self.head)
        self.b.place(self.exit)


class When:
    def __init__(self, b: Builder, condition: Value, hint: str):
        self.b, self.exit = b, b.label(hint + "_end")
        inside = b.label(hint)
        b.branch(condition, inside, self.exit)
        b.place(inside)

    def end(self) -> None:
        self.b.jump(self.exit)
        self.b.place(self.exit)
