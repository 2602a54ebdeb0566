"""Scalar expressions, index expressions, loads and stores of a kernel, as LLVM instructions.

Values are computed once, in the outermost loop that has what they need: before a loop is opened, `hoist`
writes what its body needs and the loop does not change. One axis at a time may be a vector; what changes
along it is computed in `lanes` lanes, the rest once and repeated.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Builder, Value, lanes_of, vector
from planish.codegen.llvm.elementwise import emit
from planish.schedule.access import step_of
from planish.schedule.kernel import (
    Buffer,
    Const,
    Index,
    Kernel,
    Load,
    Result,
    Scalar,
    Sort,
    Stage,
    Store,
    children,
    own_dims,
    stage_stores,
    stage_values,
    walk,
)
from planish.schedule.rebuild import is_scalar
from planish.schedule.steps import pipelined, streamed
from planish.types import Dim, Expr, is_static, symbols_of
from planish.types.dim import Extreme, Quotient, Remainder, Symbol, atoms, is_nonnegative, terms

STRIDES = (2, 3, 4)  # elements between lanes that are read as whole vectors and shuffled
STREAM_NOTE = ", !nontemporal !0"


class Scope:
    """What is known inside one loop body: the values of axes, and of expressions computed there."""

    def __init__(self, parent: Scope | None = None, axes: dict[str, Value] | None = None,
                 vector_axis: str = "", lanes: int = 1):
        self.parent = parent
        self.axes = axes or {}
        self.values: dict[Any, Value] = {}
        self.forwarded: dict[str, tuple[tuple, Value]] = {}
        self.vector_axis: str = vector_axis or (parent.vector_axis if parent else "")
        self.lanes: int = lanes if vector_axis else (parent.lanes if parent else 1)

    def axis(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.axes:
                return scope.axes[name]
            scope = scope.parent
        return None

    def find(self, key: Any) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if key in scope.values:
                return scope.values[key]
            scope = scope.parent
        return None

    def forward(self, buffer: str) -> tuple[tuple, Value] | None:
        scope: Scope | None = self
        while scope is not None:
            if buffer in scope.forwarded:
                return scope.forwarded[buffer]
            scope = scope.parent
        return None


def _changes_along(stages: Sequence[Stage | Sort]) -> dict[str, frozenset[str]]:
    """The axes along which each stage's result changes: all that its expressions name, its own loops
    aside."""
    found: dict[str, frozenset[str]] = {}
    for stage in stages:
        inside = list(walk(*stage_values(stage)))
        names = {n for s in inside for d in own_dims(s) for n in symbols_of(d)}
        names.update(n for s in inside if isinstance(s, Result) for n in found[s.stage])
        found[stage.name] = frozenset(names - {a.name for a in stage.own_axes})
    return found


class Expressions:
    """Writes one kernel's expressions into a function."""

    def __init__(self, b: Builder, kernel: Kernel, pointers: dict[str, Value], sizes: dict[str, Value],
                 numerics: str):
        self.b, self.kernel, self.pointers, self.numerics = b, kernel, pointers, numerics
        self.scope = Scope(axes=dict(sizes))
        self.written = {s.buffer.name for stage in kernel.stages for s in stage_stores(stage)}
        self.streamed, self.pipelined = streamed(kernel), pipelined(kernel)
        self.stage_dims = _changes_along(kernel.stages)
        self._depends: dict[int, frozenset[str]] = {}
        self._kept: list[Scalar] = []

    def learn(self, stages: Sequence[Stage]) -> None:
        """Copies of stages, at points of their own."""
        self.stage_dims |= _changes_along(stages)

    # --- what an expression depends on

    def depends(self, scalar: Scalar) -> frozenset[str]:
        """The axes and symbols along which a value changes; a stage's result counts as an axis of the stage's
        name, `written` buffers as the pseudo-axis "*"."""
        found = self._depends.get(id(scalar))
        if found is None:
            names: set[str] = set()
            for dim in own_dims(scalar):
                names.update(symbols_of(dim))
            for child in children(scalar):
                names |= self.depends(child)
            if isinstance(scalar, Result):
                names |= self.stage_dims[scalar.stage] | {scalar.stage}
            if isinstance(scalar, Load) and scalar.buffer.name in self.written:
                names.add("*")
            found = self._depends[id(scalar)] = frozenset(names)
            self._kept.append(scalar)
        return found

    def in_vector(self, names: Iterable[str]) -> bool:
        return self.scope.lanes > 1 and self.scope.vector_axis in names

    def is_ready(self, names: Iterable[str]) -> bool:
        return all(n != "*" and (self.scope.axis(n) or self.scope.find(("result", n))) is not None
                   for n in names)

    def hoist(self, scalars: Iterable[Scalar]) -> None:
        """Compute now whatever of the expressions can be: everything above is fixed before the loop that
        follows."""
        for scalar in walk(*scalars):
            if not isinstance(scalar, (Const, Result)) and self.is_ready(names := self.depends(scalar)):
                self.value(scalar, self.scope.lanes if self.in_vector(names) else 1)
            elif isinstance(scalar, Load):
                self.hoist_pointer(scalar.buffer, scalar.index)

    def hoist_pointer(self, buffer: Buffer, index: tuple) -> None:
        """The part of an address that is known already, divisions by sizes included."""
        known: Dim = 0
        for i, stride in zip(index, buffer.strides, strict=True):
            for part in () if is_scalar(i) else terms(i * stride):
                if is_static(part):
                    continue
                if self.is_ready(symbols_of(part)):
                    known = known + part
                else:
                    self.hoist_atoms(part)
        self._row_pointer(buffer, known)

    def hoist_atoms(self, dim: Dim) -> None:
        for atom in atoms(dim):
            if self.is_ready(symbols_of(atom)):
                self.dim(atom)

    # --- index expressions

    def dim(self, dim: Dim, lanes: int = 1) -> Value:
        """An index expression as i64, per lane when it changes along the vector axis."""
        if is_static(dim):
            return self.b.splat(self.b.i64(dim), lanes)
        if lanes > 1 and not self.in_vector(symbols_of(dim)):
            return self.b.splat(self.dim(dim), lanes)
        key = (dim, lanes)
        found = self.scope.find(key)
        if found is None:
            found = self.scope.values[key] = self._dim(dim, lanes)
        return found

    def _dim(self, dim: Expr, lanes: int) -> Value:
        total: Value | None = None
        for monomial, coefficient in dim.terms:
            term = self._monomial(monomial, coefficient, lanes)
            total = term if total is None else self.b.add(total, term)
        assert total is not None
        return total

    def magnitude(self, dim: Dim) -> Value:
        """A bound on a size, as double: that does not wrap, it only rounds. Differences count as sums."""
        total = Value("double", repr(float(abs(dim)) if is_static(dim) else 0.0))
        for monomial, coefficient in () if is_static(dim) else dim.terms:
            product = Value("double", repr(float(abs(coefficient))))
            for atom in monomial:
                product = self.b.bin("fmul", product, self._magnitude(atom))
            total = self.b.bin("fadd", total, product)
        return total

    def _magnitude(self, atom: Any) -> Value:
        if isinstance(atom, Symbol):
            return self.b.cast("sitofp", self._symbol(atom.name, 1), "double")
        if isinstance(atom, Quotient):
            return self.b.bin("fdiv", self.magnitude(atom.numerator), self.magnitude(atom.divisor))
        if isinstance(atom, Remainder):
            return self.magnitude(atom.divisor)
        left, right = self.magnitude(atom.left), self.magnitude(atom.right)
        if atom.which == "min" and is_nonnegative(atom.left) and is_nonnegative(atom.right):
            return self.b.select(self.b.cmp("fcmp olt", left, right), left, right)
        return self.b.bin("fadd", left, right)

    def _monomial(self, monomial: tuple, coefficient: int, lanes: int) -> Value:
        product: Value | None = None
        for atom in monomial:
            factor = self._atom(atom, lanes)
            product = factor if product is None else self.b.mul(product, factor)
        scale = self.b.splat(self.b.i64(coefficient), lanes)
        if product is None:
            return scale
        return product if coefficient == 1 else self.b.mul(product, scale)

    def _atom(self, atom: Any, lanes: int) -> Value:
        if isinstance(atom, Symbol):
            return self._symbol(atom.name, lanes)
        key = (atom, lanes)
        found = self.scope.find(key)
        if found is None:
            found = self.scope.values[key] = self._compute_atom(atom, lanes)
        return found

    def _symbol(self, name: str, lanes: int) -> Value:
        value = self.scope.axis(name)
        if value is None:
            raise AssertionError(f"axis {name} is not open in kernel {self.kernel.name}")
        if lanes == 1:
            return value
        if name != self.scope.vector_axis:
            return self.b.splat(value, lanes)
        steps = ", ".join(f"i64 {k}" for k in range(lanes))
        return self.b.add(self.b.splat(value, lanes), Value(vector("i64", lanes), f"<{steps}>"))

    def _compute_atom(self, atom: Any, lanes: int) -> Value:
        b = self.b
        if isinstance(atom, Extreme):
            left, right = self.dim(atom.left, lanes), self.dim(atom.right, lanes)
            return b.intrinsic("smax" if atom.which == "max" else "smin", left, right)
        numerator, divisor = self.dim(atom.numerator, lanes), self.dim(atom.divisor, lanes)
        if not is_nonnegative(atom.divisor - 1):  # an index that a guard leaves unused may divide by no size
            divisor = b.intrinsic("smax", divisor, b.const(divisor.type, 1))
        quotient = isinstance(atom, Quotient)
        if is_nonnegative(atom.numerator):
            return b.bin("udiv" if quotient else "urem", numerator, divisor)
        rest = b.bin("srem", numerator, divisor)
        below = b.cmp("icmp slt", rest, b.const(rest.type, 0))
        if not quotient:
            return b.select(below, b.add(rest, divisor), rest)
        return b.add(b.bin("sdiv", numerator, divisor), b.cast("sext", below, rest.type))

    # --- values

    def value(self, scalar: Scalar, lanes: int = 1) -> Value:
        """The expression in register form, in `lanes` lanes."""
        if lanes > 1 and not self.in_vector(self.depends(scalar)):
            return self.b.splat(self.value(scalar), lanes)
        key = (id(scalar), lanes)
        found = self.scope.find(key)
        if found is None:
            found = self.scope.values[key] = self._value(scalar, lanes)
            self._kept.append(scalar)
        return found

    def _value(self, scalar: Scalar, lanes: int) -> Value:
        if isinstance(scalar, Const):
            return registers.constant(self.b, scalar.dtype.name, scalar.value, lanes)
        if isinstance(scalar, Index):
            number = self.dim(scalar.dim, lanes)
            return emit(self.b, "cast", ("int64",), scalar.dtype.name, [number], self.numerics)
        if isinstance(scalar, Load):
            return self.load(scalar, lanes)
        if isinstance(scalar, Result):
            return self.result(scalar, lanes)
        args = [self.value(a, lanes) for a in scalar.args]
        dtypes = tuple(a.dtype.name for a in scalar.args)
        return emit(self.b, scalar.op, dtypes, scalar.dtype.name, args, self.numerics)

    def result(self, scalar: Result, lanes: int) -> Value:
        value = self.scope.find(("result", scalar.stage))
        if value is None:
            raise AssertionError(f"{scalar.stage} has no result yet in kernel {self.kernel.name}")
        return value if lanes_of(value.type) == lanes else self.b.splat(value, lanes)

    def set_result(self, stage: str, value: Value) -> None:
        self.scope.values["result", stage] = value

    # --- memory

    def load(self, scalar: Load, lanes: int) -> Value:
        forwarded = self.scope.forward(scalar.buffer.name)
        if forwarded is not None and forwarded[0] == scalar.index:
            return forwarded[1] if lanes_of(forwarded[1].type) == lanes else self.b.splat(forwarded[1], lanes)
        dtype = scalar.buffer.dtype.name
        axis = self.scope.vector_axis if lanes > 1 else ""
        key = self._load_key(scalar, lanes)
        found = None if key is None else self.scope.find(key)
        if found is not None:
            return found
        near = self._lane_stride(scalar.buffer, scalar.index, axis)
        if lanes > 1 and isinstance(near, int) and near in STRIDES:
            return registers.from_memory(self.b, self._every(scalar, near, lanes), dtype)
        pointer, stride = self.address(scalar.buffer, scalar.index, lanes)
        if lanes > 1 and stride == 1 and scalar.buffer.name in self.pipelined:
            self.ask_ahead(scalar.buffer, pointer[0], lanes)
        if lanes == 1 or stride == 1:
            return self._load_once(scalar, pointer[0], lanes)
        loaded = [self.b.load(registers.memory_type(dtype), p, scalar.buffer.dtype.itemsize) for p in pointer]
        return registers.from_memory(self.b, self._gathered(loaded), dtype)

    def _load_key(self, scalar: Load, lanes: int) -> tuple | None:
        """What names a load of memory that the kernel does not write; None for others."""
        if scalar.buffer.name in self.written or any(map(is_scalar, scalar.index)):
            return None
        return ("load", scalar.buffer.name, scalar.index, lanes, self.scope.vector_axis)

    def _load_once(self, scalar: Load, pointer: Value, lanes: int) -> Value:
        found = registers.load(self.b, scalar.buffer.dtype.name, pointer, lanes)
        if (key := self._load_key(scalar, lanes)) is not None:
            self.scope.values[key] = found
        return found

    def _every(self, scalar: Load, stride: int, lanes: int) -> Value:
        """Every `stride`-th element: whole vectors that end at the last one read, and a shuffle."""
        b, element = self.b, registers.memory_type(scalar.dtype.name)
        pointer = self.pointer(scalar.buffer, scalar.index)
        starts = [min(k * lanes, stride * (lanes - 1) - lanes + 1) for k in range(stride)]
        parts = [b.load(vector(element, lanes), b.gep(element, pointer, b.i64(s)), scalar.dtype.itemsize)
                 for s in starts]
        whole = parts[0]
        wanted = [lane * stride for lane in range(lanes)]
        for k, (start, part) in enumerate(zip(starts[1:], parts[1:]), 1):
            done = list(range(lanes)) if k > 1 else wanted
            found = [lanes + at - start if k * lanes <= at < (k + 1) * lanes else 0 for at in wanted]
            picks = [d if at < k * lanes else f for d, f, at in zip(done, found, wanted)]
            whole = b.shuffle(whole, part, picks)
        return whole

    def ask_ahead(self, buffer: Buffer, pointer: Value, lanes: int) -> None:
        """Prefetch the cache lines of the vector that lies `distance` bytes on; beyond the end, none."""
        distance = self.pipelined[buffer.name]
        for line in range(0, lanes * buffer.dtype.itemsize, 64):
            self.b.prefetch(self.b.gep("i8", pointer, self.b.i64(distance + line)))

    def _gathered(self, parts: list[Value]) -> Value:
        whole = Value(vector(parts[0].type, len(parts)), "poison")
        for lane, part in enumerate(parts):
            whole = self.b.insert(whole, part, lane)
        return whole

    def address(self, buffer: Buffer, index: tuple, lanes: int) -> tuple[list[Value], int]:
        """Pointers to an element: one when the lanes are neighbours (stride 1), else one for each lane."""
        axis = self.scope.vector_axis if lanes > 1 else ""
        stride = self._lane_stride(buffer, index, axis)
        if stride == 1 or lanes == 1:
            return [self.pointer(buffer, index)], 1
        if stride is not None:
            first = self.pointer(buffer, index)
            step = self.dim(stride)
            offsets = [self.b.mul(step, self.b.i64(lane)) for lane in range(lanes)]
            return [self.b.gep(registers.memory_type(buffer.dtype.name), first, o) for o in offsets], 0
        offsets_vector = self._offset_lanes(buffer, index, lanes)
        base, element = self.pointers[buffer.name], registers.memory_type(buffer.dtype.name)
        return [self.b.gep(element, base, self.b.extract(offsets_vector, lane)) for lane in range(lanes)], 0

    def _lane_stride(self, buffer: Buffer, index: tuple, axis: str) -> Dim | None:
        """Elements between neighbouring lanes, 0 when all read the same; None when it varies."""
        total: Dim = 0
        for i, stride in zip(index, buffer.strides):
            step = (None if axis in self.depends(i) else 0) if is_scalar(i) else step_of(i, axis)
            if step is None:
                return None
            total = total + step * stride
        return total

    def pointer(self, buffer: Buffer, index: tuple) -> Value:
        """The address of an element (of lane 0): the row's pointer, known before this loop, and what moves in
        it."""
        fixed: Dim = 0
        moving: Dim = 0
        near = 0
        run_time: list[Value] = []
        for i, stride in zip(index, buffer.strides, strict=True):
            if is_scalar(i):
                run_time.append(self.b.mul(self.value(i), self.dim(stride)))
                continue
            for part in terms(i * stride):
                if is_static(part):
                    near += part
                elif self.scope.parent is not None and set(self.scope.axes) & set(symbols_of(part)):
                    moving = moving + part
                else:
                    fixed = fixed + part
        element = registers.memory_type(buffer.dtype.name)
        pointer = self._moved_pointer(buffer, fixed, moving)
        for extra in run_time:
            pointer = self.b.gep(element, pointer, extra)
        return pointer if near == 0 else self.b.gep(element, pointer, self.b.i64(near))

    def _moved_pointer(self, buffer: Buffer, fixed: Dim, moving: Dim) -> Value:
        pointer = self._row_pointer(buffer, fixed)
        if moving == 0:
            return pointer
        key = ("moved", buffer.name, fixed, moving)
        found = self.scope.values.get(key)
        if found is None:
            found = self.b.gep(registers.memory_type(buffer.dtype.name), pointer, self.dim(moving))
            self.scope.values[key] = found
        return found

    def _row_pointer(self, buffer: Buffer, offset: Dim) -> Value:
        base = self.pointers[buffer.name]
        if offset == 0:
            return base
        key = ("pointer", buffer.name, offset)
        found = self.scope.find(key)
        if found is None:
            found = self.b.gep(registers.memory_type(buffer.dtype.name), base, self.dim(offset))
            self.scope.values[key] = found
        return found

    def _offset_lanes(self, buffer: Buffer, index: tuple, lanes: int) -> Value:
        total = self.b.splat(self.b.i64(0), lanes)
        for i, stride in zip(index, buffer.strides, strict=True):
            at = self.value(i, lanes) if is_scalar(i) else self.dim(i, lanes)
            total = self.b.add(total, self.b.mul(at, self.dim(stride, lanes)))
        return total

    def store(self, store: Store, value: Value, lanes: int) -> None:
        """Put a value where the store says (guards are scalar, updates of neighbours or scalar)."""
        guard = None if store.guard is None else self.b.when(self.value(store.guard), "inside")
        dtype = store.buffer.dtype.name
        pointers, stride = self.address(store.buffer, store.index, lanes)
        if store.update:
            there = registers.load(self.b, dtype, pointers[0], lanes if stride == 1 else 1)
            value = emit(self.b, store.update, (dtype, dtype), dtype, [there, value], self.numerics)
        if lanes == 1 or stride == 1:
            self._store_whole(store.buffer, value, pointers[0], lanes)
        else:
            memory = registers.to_memory(self.b, value, dtype)
            for lane, pointer in enumerate(pointers):
                self.b.store(self.b.extract(memory, lane), pointer, store.buffer.dtype.itemsize)
        if guard is not None:
            guard.end()

    def _store_whole(self, buffer: Buffer, value: Value, pointer: Value, lanes: int) -> None:
        if buffer.name in self.streamed and lanes > 1:
            self.b.module.globals.setdefault("!0", "!0 = !{i32 1}")
            memory = registers.to_memory(self.b, value, buffer.dtype.name)
            size = lanes * buffer.dtype.itemsize
            self.b.store(memory, pointer, min(size & -size, 64), STREAM_NOTE)
        else:
            registers.store(self.b, value, buffer.dtype.name, pointer)
