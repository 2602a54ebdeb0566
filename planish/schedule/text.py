"""The loops IR as text: prints like a schedule, and parses back to an equal kernel.

    kernel softmax(x: f32[N, 1024]) -> (y: f32[N, 1024] order(1, 0)) where N in 1..4096 {
      row e: f32[1024]
      tile batch() m(s0) n(s1) k(a) rows 6 vectors 2 lanes 8 packed by pairs
      steps vectorize(a, 8), unroll(a, 4)
      ops softmax
      serial
      for s0 in N parallel:
        m: f32 = maximum over a in 1024 vector(8) unroll(4):
          x[s0, a]
        p: f32 = map over a in 1024 vector(8):
          v0 = exp(x[s0, a] - m)
          e[a] = v0 if v0 > 0.0
        c: f32 = add inclusive over a in 1024:
          y[s0, a] = e[a]
        s: sort descending first 5 over a in 1024:
          key e[a]
          values v[s0, a]
          positions p[s0, a]
          work w
        size n0 = min(-8*s0 + N, 8)
        for j in 4 {
          o: f32 = add over a in 64 at c in 8 unroll(4):
            d[c] add= x[s0, 64*j + a]
        }
    }

Steps alike that follow one another are written as one: `vectorize(a b c, 8)`.
A store that joins what is there names the op: `y[i[a]] add= x[a]`. A map without axes is also a name for
its value, and then may store nothing. A reduction `at` points stores what it comes to there. Braces hold the
stages of a loop around them. `size` names what stands in a text often. Lines that do not apply are left out.
Indentation is for the eye; `#` begins a comment line, `->` marks a line. Expressions: `expression.py`.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby

from planish.errors import ParseError
from planish.schedule.expression import Scope, Speller, spell_load
from planish.schedule.kernel import (
    Axis,
    Buffer,
    Kernel,
    RegisterTile,
    Result,
    Sort,
    Stage,
    Step,
    Store,
    has_result,
    in_loops,
    kernel_dims,
    stage_axes,
    stage_values,
)
from planish.schedule.products import NUMBERS, PRODUCTS
from planish.schedule.size_names import Names, shorten, size_names
from planish.types import Symbol, TensorType, dtype_of, is_static, symbol, symbols_of

# --- printing

def print_kernel(kernel: Kernel, *, mark: Stage | Sort | None = None) -> str:
    """The text of a kernel; `mark` puts an arrow before one stage."""
    inputs, outputs = (", ".join(map(print_buffer, b)) for b in (kernel.inputs, kernel.outputs))
    lines = [f"kernel {kernel.name}({inputs}) -> ({outputs}){print_ranges(kernel_symbols(kernel))} {{"]
    lines += _header(kernel)
    if kernel.shared:
        lines.append(f"  for {_axes(kernel.shared)}:")
    return "\n".join([*lines, *_body(kernel, mark, "    " if kernel.shared else "  "), "}"])


def _body(kernel: Kernel, mark: Stage | Sort | None, indent: str) -> Iterator[str]:
    """The stages, with names for sizes before those that they are in: of all, and of each loop."""
    groups = []
    for loop, stages in in_loops(kernel.stages):
        inner = indent if loop is None else indent + "  "
        lines = []
        for stage in stages:
            body = [inner + line for line in _stage(stage, _free_names(kernel, "v"))]
            lines += ["->" + body[0][2:], *body[1:]] if stage is mark else body
        groups.append((loop, lines))
    axes = [a for s in kernel.stages for a in stage_axes(s)]
    extents = [str(a.extent) for a in axes if not is_static(a.extent)]
    known, fresh = {*(a.name for a in kernel.shared), *kernel.symbols}, _free_names(kernel, "n")
    outer = size_names((line for _, lines in groups for line in lines), extents, known, fresh)
    yield from _sizes(outer, indent)
    for loop, lines in groups:
        lines = [shorten(line, outer) for line in lines]
        if loop is None:
            yield from lines
            continue
        named = known | {name for name, _ in outer} | {loop.name}
        inner_names = size_names(lines, [shorten(e, outer) for e in extents], named, fresh)
        yield f"{indent}for {shorten(_print_axis(loop), outer)} {{"
        yield from _sizes(inner_names, indent + "  ")
        yield from (shorten(line, inner_names) for line in lines)
        yield indent + "}"


def _sizes(names: Names, indent: str) -> list[str]:
    return [f"{indent}size {name} = {part}" for name, part in names]


def print_buffer(buffer: Buffer) -> str:
    order = f" order({', '.join(map(str, buffer.order))})" if buffer.order else ""
    return f"{buffer.name}: {buffer.type}{order}"


def print_ranges(symbols: Sequence[Symbol]) -> str:
    ranges = [f"{s.name} in {s.low}..{'' if s.high is None else s.high}" for s in symbols]
    return " where " + ", ".join(ranges) if ranges else ""


def kernel_symbols(kernel: Kernel) -> tuple[Symbol, ...]:
    """The sizes known at run time that the kernel depends on, with their ranges."""
    names = kernel.symbols
    found = {n: s for dim in kernel_dims(kernel) for n, s in symbols_of(dim).items()}
    return tuple(found[n] for n in names)


def _header(kernel: Kernel) -> Iterator[str]:
    yield from (f"  row {print_buffer(b)}" for b in kernel.rows)
    if kernel.tile is not None:
        t = kernel.tile
        groups = " ".join(f"{g}({', '.join(getattr(t, g))})" for g in ("batch", "m", "n", "k"))
        yield f"  tile {groups} rows {t.rows} vectors {t.vectors} lanes {t.lanes}" + " packed" * t.packed \
            + f" by {t.product.name}" * (t.product is not NUMBERS)
    if kernel.steps:
        yield "  steps " + ", ".join(_steps(kernel.steps))
    if kernel.ops:
        yield "  ops " + ", ".join(kernel.ops)
    if kernel.serial:
        yield "  serial"


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    """Neighbours that differ in their first argument only are written as one."""
    for (name, rest), alike in groupby(steps, lambda s: (s.name, s.arguments[1:])):
        first = " ".join(str(s.arguments[0]) for s in alike if s.arguments)
        yield str(Step(name, (first, *rest)))


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(map(_print_axis, axes))


def _print_axis(a: Axis) -> str:
    lanes, unroll = f" vector({a.lanes})" * (a.lanes != 1), f" unroll({a.unroll})" * (a.unroll != 1)
    return f"{a.name} in {a.extent}" + " parallel" * a.parallel + lanes + unroll


def _free_names(kernel: Kernel, prefix: str) -> Iterator[str]:
    """The prefix and 0, 1, ... without names that mean something in the kernel."""
    axes = (*kernel.shared, *(a for s in kernel.stages for a in stage_axes(s)))
    taken = {n.name for n in (*kernel.arguments, *kernel.rows, *kernel.stages, *axes)} | set(kernel.symbols)
    return (name for k in count() if (name := f"{prefix}{k}") not in taken)


def _stage(stage: Stage | Sort, names: Iterator[str]) -> Iterator[str]:
    speller = Speller(names, tuple(stage_values(stage)))
    body = _sort_body(stage, speller) if isinstance(stage, Sort) else [_result(stage, speller)]
    axes = stage.own_axes if isinstance(stage, Sort) else stage.axes
    over = f" over {_axes(axes)}" if axes else ""
    if isinstance(stage, Sort):
        what = f"sort {'descending' if stage.descending else 'ascending'} first {stage.count}"
    else:
        what = f"{stage.dtype} = {stage.combine or 'map'}" + f" {stage.running}" * bool(stage.running)
        over += f" at {_axes(stage.at)}" if stage.at else ""
    yield f"{stage.name}: {what}{over}:"
    yield from ("  " + line for line in (*speller.lets, *body))


def _sort_body(stage: Sort, speller: Speller) -> list[str]:
    stores = {"values": stage.values, "positions": stage.positions}
    lines = [f"key {speller.text(stage.key)}"]
    lines += [f"{n} {spell_load(s.buffer, s.index, speller)}" for n, s in stores.items() if s]
    return lines if stage.work is None else [*lines, f"work {stage.work.name}"]


def _result(stage: Stage, speller: Speller) -> str:
    value = speller.text(stage.value)
    if stage.store is None:
        return value
    store = stage.store
    guard = "" if store.guard is None else f" if {speller.text(store.guard)}"
    return f"{spell_load(store.buffer, store.index, speller)} {store.update}= {value}{guard}"


# --- parsing

_HEAD = re.compile(r"kernel (\w+)\((.*?)\) -> \((.*?)\)(?: where (.*))? \{$")
_BUFFER = re.compile(r"(\w+): (\w+)\[(.*)\](?: order\((.*)\))?$")
_AXIS = re.compile(r"(\w+) in (.*?)( parallel)?(?: vector\((\d+)\))?(?: unroll\((\d+)\))?$")
_STAGE = re.compile(r"(\w+): (\w+) = (\w+)(?: (inclusive|exclusive))?(?: over (.*?))?(?: at (.*))?:$")
_SORT = re.compile(r"(\w+): sort (ascending|descending) first (.*?) over (.*):$")
_LET = re.compile(r"(\w+) = (.*)$")
_STORE = re.compile(r"(\w+\[.*?\]) (\w*)= (.*?)(?: if (.*))?$")
_TILE = re.compile(r"batch\((.*?)\) m\((.*?)\) n\((.*?)\) k\((.*?)\) "
                   r"rows (\d+) vectors (\d+) lanes (\d+)( packed)?(?: by (\w+))?$")


def parse_kernel(text: str) -> Kernel:
    """The kernel a text stands for. Raises ParseError naming the line."""
    return _Parser(code_lines(text)).kernel()


def code_lines(text: str) -> list[str]:
    lines = (line.strip().removeprefix("->").strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def matched(pattern: re.Pattern[str], text: str, what: str) -> tuple[str, ...]:
    """The groups of a match. Raises ParseError."""
    found = pattern.match(text.strip())
    if not found:
        raise ParseError(f"{text!r} is not {what}")
    return found.groups()


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def parse_ranges(text: str, scope: Scope) -> None:
    """Declare the sizes of a `where`."""
    for part in split_commas(text):
        name, low, high = matched(re.compile(r"(\w+) in (-?\d+)\.\.(.*)$"), part, "the range of a size")
        scope.dims[name] = symbol(name, int(low), scope.dim(high) if high else None)


def parse_buffer(text: str, scope: Scope, space: str = "global") -> Buffer:
    name, dtype, shape, order = matched(_BUFFER, text, "a buffer")
    type_ = TensorType(dtype_of(dtype), tuple(map(scope.dim, split_commas(shape))))
    return Buffer(name, type_, tuple(map(int, split_commas(order or ""))), space)


def _axis(text: str, scope: Scope) -> Axis:
    name, extent, parallel, lanes, unroll = matched(_AXIS, text, "an axis")
    axis = Axis(name, scope.dim(extent), bool(parallel), int(lanes or 1), int(unroll or 1))
    scope.dims[name] = axis.symbol
    return axis


def _parsed_steps(text: str) -> Iterator[Step]:
    name, arguments = matched(re.compile(r"(\w+)\((.*)\)$"), text, "a step")
    firsts, *rest = split_commas(arguments) or [""]
    for first in firsts.split() or [""]:
        words = [a for a in (first, *rest) if a]
        yield Step(name, tuple(int(a) if re.fullmatch(r"-?\d+", a) else a for a in words))


class _Parser:
    def __init__(self, lines: list[str]):
        if not lines or lines[-1] != "}":
            raise ParseError(f"not a kernel: {lines[0] if lines else ''!r}")
        self.lines, self.at = lines[:-1], 0
        self.scope = Scope()

    def kernel(self) -> Kernel:
        name, inputs, outputs, ranges = matched(_HEAD, self.next(), "the head of a kernel")
        parse_ranges(ranges or "", self.scope)
        arguments = [[self.buffer(b) for b in split_commas(side)] for side in (inputs, outputs)]
        rows = [self.buffer(line, "row") for line in self.take("row ")]
        tiles = [self.tile(line) for line in self.take("tile ")]
        steps = [s for line in self.take("steps ") for a in split_commas(line) for s in _parsed_steps(a)]
        ops = [op for line in self.take("ops ") for op in split_commas(line)]
        serial = bool(self.take("serial"))
        loops = [a for line in self.take("for ", ":") for a in split_commas(line.removesuffix(":"))]
        shared = tuple(_axis(a, self.scope) for a in loops)
        self.sizes()
        stages = []
        while self.at < len(self.lines):
            stages += self.loop(self.next()) if self.at_loop() else [self.stage(self.next())]
        tile = tiles[0] if tiles else None
        given, made = map(tuple, arguments)
        return Kernel(name, shared, tuple(stages), given, made, tuple(rows), serial, tile,
                      tuple(steps), tuple(ops))

    def next(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def at_loop(self) -> bool:
        return self.lines[self.at].startswith("for ")

    def loop(self, head: str) -> list[Stage | Sort]:
        """The stages of a loop around them, up to its brace."""
        outside, self.scope = self.scope, self.scope.inner()
        inside = _axis(head.removeprefix("for ").removesuffix("{"), self.scope)
        self.sizes()
        stages: list[Stage | Sort] = []
        while self.at < len(self.lines) and self.lines[self.at] != "}":
            stages.append(self.stage(self.next()))
        if self.at == len(self.lines):
            raise ParseError(f"the loop {head!r} has no end")
        self.next()
        self.scope = outside
        return [replace(s, inside=inside) if isinstance(s, Stage) else s for s in stages]

    def sizes(self) -> None:
        """Names for sizes, for the lines that follow."""
        for line in self.take("size "):
            name, size = matched(_LET, line, "a size with a name")
            self.scope.dims[name] = self.scope.dim(size)

    def take(self, start: str, end: str = "") -> list[str]:
        """The rest of each of the following lines that begin and end so."""
        taken = []
        while self.at < len(self.lines) and self.lines[self.at].startswith(start) \
                and self.lines[self.at].endswith(end):
            taken.append(self.next().removeprefix(start))
        return taken

    def buffer(self, text: str, space: str = "global") -> Buffer:
        buffer = parse_buffer(text, self.scope, space)
        self.scope.buffers[buffer.name] = buffer
        return buffer

    def tile(self, text: str) -> RegisterTile:
        *groups, rows, vectors, lanes, packed, product = matched(_TILE, text, "a register tile")
        batch, m, n, k = (tuple(split_commas(g)) for g in groups)
        if product and product not in PRODUCTS:
            raise ParseError(f"products are taken by {', '.join(PRODUCTS)}, not by {product}")
        by = PRODUCTS[product] if product else NUMBERS
        return RegisterTile(batch, m, n, k, int(rows), int(vectors), int(lanes), bool(packed), by)

    def stage(self, head: str) -> Stage | Sort:
        try:
            return self.sort(head) if _SORT.match(head) else self.plain(head)
        except ParseError as error:
            line = self.lines[min(self.at, len(self.lines)) - 1]
            raise ParseError(f"in the stage {head!r}, near {line!r}: {error}") from error

    def plain(self, head: str) -> Stage:
        name, dtype, combine, running, over, points = matched(_STAGE, head, "the head of a stage")
        scope = self.scope.inner()
        at = tuple(_axis(a, scope) for a in split_commas(points or ""))
        axes = tuple(_axis(a, scope) for a in split_commas(over or ""))
        self.lets(scope)
        line = self.next()
        store, value = None, line
        if _STORE.match(line):
            target, update, value, guard = matched(_STORE, line, "a store")
            store = Store(*scope.place(target), update, scope.scalar(guard) if guard else None)
        combine = "" if combine == "map" else combine
        stage = Stage(name, axes, scope.scalar(value), dtype_of(dtype), combine, store, running or "", at)
        if has_result(stage):
            self.scope.values[name] = Result(name, stage.dtype)
        return stage

    def sort(self, head: str) -> Sort:
        name, direction, first, over = matched(_SORT, head, "a sort")
        scope = self.scope.inner()
        length = scope.dim(first)
        axis = _axis(over, scope)
        self.lets(scope)
        key = scope.scalar(self.next().removeprefix("key "))
        values, positions = ([Store(*scope.place(p)) for p in self.take(w)]
                             for w in ("values ", "positions "))
        stores = (values[0] if values else None, positions[0] if positions else None)
        works = [self.scope.buffers[w] for w in self.take("work ")]
        return Sort(name, axis, key, direction == "descending", length, *stores, works[0] if works else None)

    def lets(self, scope: Scope) -> None:
        while self.at < len(self.lines) and (found := _LET.match(self.lines[self.at])):
            scope.values[found.group(1)] = scope.scalar(found.group(2))
            self.at += 1
