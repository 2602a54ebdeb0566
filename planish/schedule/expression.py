"""Scalar expressions of kernels as text, and back.

    x[s0, a] * (0.5 + v0)          a bare number with a point is an f32, True and False are bool
    f16(0.5), i64(3), f32(-inf)    every other literal names its dtype
    cast(x[a], f16), exp(v0)       ops by name; + - * / and comparisons as Python writes them
    index(s0 + 1), index(a, f32)   the value of an index expression, i64 unless said
    x[idx[a], 4*s0 + 1], m[()]     a load; an entry is an index expression or a scalar one
    m                              what the earlier stage m came to

An expression with operands that is used more than once, or is long, is named on a line
before: `v0 = exp(x[a])`.
"""
from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from planish.errors import ParseError, TypeRuleError
from planish.ops.record import OPS, get_op
from planish.schedule.kernel import Apply, Buffer, Const, Index, Load, Result, Scalar, children, walk
from planish.types import BOOL, DTYPES, FLOAT32, INT64, Dim, DType, Expr, TensorType, dtype_of, parse_dim

LONG = 60  # characters of an expression that is still written in place

_INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2), "lt": ("<", 0), "le": ("<=", 0),
          "gt": (">", 0), "ge": (">=", 0), "eq": ("==", 0), "ne": ("!=", 0)}
_ATOM = 3  # binds tighter than every infix
_BY_NODE: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Lt: "lt", ast.LtE: "le",
    ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_TO_DTYPE = ("cast", "bitcast")
_LITERALS = {d.short: d for d in DTYPES}


# --- printing

def spell(scalar: Scalar) -> str:
    """One expression written in place, whatever its length."""
    return Speller().text(scalar)


def spell_load(buffer: Buffer, index: Sequence[Dim | Scalar], speller: Speller | None = None) -> str:
    write = (speller or Speller()).text
    entries = ", ".join(str(i) if isinstance(i, (int, Expr)) else write(i) for i in index)
    return f"{buffer.name}[{entries or '()'}]"


class Speller:
    """Writes the expressions below `roots`. `lets` gathers lines that name some; none without `names`."""

    def __init__(self, names: Iterator[str] | None = None, roots: Sequence[Scalar] = ()):
        self.names = names
        self.lets: list[str] = []
        self.texts: dict[int, tuple[str, int]] = {}
        self.uses = Counter(id(r) for r in roots)
        self.uses.update(id(c) for s in walk(*roots) for c in children(s))
        self.roots = {id(r) for r in roots}

    def text(self, scalar: Scalar, level: int = 0) -> str:
        for below in walk(scalar) if id(scalar) not in self.texts else ():
            if id(below) not in self.texts:
                self.texts[id(below)] = self._named(below, *self._spell(below))
        text, own = self.texts[id(scalar)]
        return text if own >= level else f"({text})"

    def _named(self, scalar: Scalar, text: str, level: int) -> tuple[str, int]:
        is_long = len(text) > LONG and id(scalar) not in self.roots
        if self.names is None or not children(scalar) or not (is_long or self.uses[id(scalar)] > 1):
            return text, level
        name = next(self.names)
        self.lets.append(f"{name} = {text}")
        return name, _ATOM

    def _spell(self, scalar: Scalar) -> tuple[str, int]:
        if isinstance(scalar, Const):
            return _literal(scalar), _ATOM
        if isinstance(scalar, Index):
            return f"index({scalar.dim}{'' if scalar.dtype is INT64 else f', {scalar.dtype}'})", _ATOM
        if isinstance(scalar, Result):
            return scalar.stage, _ATOM
        if isinstance(scalar, Load):
            return spell_load(scalar.buffer, scalar.index, self), _ATOM
        if scalar.op in _INFIX and len(scalar.args) == 2:
            sign, level = _INFIX[scalar.op]
            # Comparisons do not chain; the others group to the left.
            left, right = scalar.args
            return f"{self.text(left, max(level, 1))} {sign} {self.text(right, level + 1)}", level
        operands = [self.text(a) for a in scalar.args] + [scalar.dtype.short] * (scalar.op in _TO_DTYPE)
        return f"{scalar.op}({', '.join(operands)})", _ATOM


def _literal(const: Const) -> str:
    if const.dtype is BOOL:
        return repr(bool(const.value))
    value = float(const.value) if const.dtype.is_float else int(const.value)
    is_bare = const.dtype is FLOAT32 and isfinite(value)
    return repr(value) if is_bare else f"{const.dtype.short}({value!r})"


# --- parsing

@dataclass
class Scope:
    """What the names in an expression stand for: sizes and axes, buffers, results and named expressions."""

    dims: dict[str, Dim] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    values: dict[str, Scalar] = field(default_factory=dict)

    def inner(self) -> Scope:
        return Scope(dict(self.dims), dict(self.buffers), dict(self.values))

    def dim(self, text: str) -> Dim:
        return self._dim(_tree(text))

    def scalar(self, text: str) -> Scalar:
        """The expression of a text. Raises ParseError."""
        return self._scalar(_tree(text))

    def place(self, text: str) -> tuple[Buffer, tuple[Dim | Scalar, ...]]:
        """Buffer and index of `y[s0, a]`."""
        tree = _tree(text)
        if not isinstance(tree, ast.Subscript):
            raise ParseError(f"{text!r} is not an element of a buffer")
        return self._place(tree)

    def _dim(self, node: ast.expr) -> Dim:
        text, known = ast.unparse(node), {*self.dims, "max", "min"}
        unknown = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in known]
        if unknown:
            raise ParseError(f"{unknown[0]} in {text!r} is neither an axis in scope nor a size")
        return parse_dim(text, self.dims)

    def _scalar(self, node: ast.expr) -> Scalar:
        if isinstance(node, ast.Name):
            return self._value(node.id)
        if isinstance(node, ast.Subscript):
            return Load(*self._place(node))
        if isinstance(node, ast.BinOp):
            return self._infix(node, node.op, [node.left, node.right])
        if isinstance(node, ast.Compare):
            return self._infix(node, node.ops[0], [node.left, *node.comparators])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node.args)
        value = _number(node)
        if isinstance(value, int) and not isinstance(value, bool):
            raise ParseError(f"the literal {value} has no dtype; write i64({value})")
        return Const(value, BOOL if isinstance(value, bool) else FLOAT32)

    def _value(self, name: str) -> Scalar:
        if name not in self.values:
            raise ParseError(f"{name} is not a result or expression named before")
        return self.values[name]

    def _place(self, node: ast.Subscript) -> tuple[Buffer, tuple[Dim | Scalar, ...]]:
        name = ast.unparse(node.value)
        if name not in self.buffers:
            raise ParseError(f"{name} is not a buffer of the kernel")
        entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return self.buffers[name], tuple(map(self._entry, entries))

    def _entry(self, node: ast.expr) -> Dim | Scalar:
        is_dim = all(self._may_stand_in_dim(n) for n in ast.walk(node))
        return self._dim(node) if is_dim else self._scalar(node)

    def _may_stand_in_dim(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return ast.unparse(node.func) in ("max", "min")
        if isinstance(node, ast.Name):
            return node.id not in self.values
        return not isinstance(node, ast.Subscript)

    def _infix(self, node: ast.expr, sign: ast.AST, operands: list[ast.expr]) -> Apply:
        if type(sign) not in _BY_NODE or len(operands) != 2:
            raise ParseError(f"{ast.unparse(node)!r} is not an expression of a kernel")
        return self._apply(_BY_NODE[type(sign)], operands)

    def _call(self, name: str, arguments: list[ast.expr]) -> Scalar:
        if name in _LITERALS:
            return Const(_number(arguments[0]), _LITERALS[name])
        if name == "index":
            dtype = dtype_of(ast.unparse(arguments[1])) if arguments[1:] else INT64
            return Index(self._dim(arguments[0]), dtype)
        if name in _TO_DTYPE:
            return Apply(name, (self._scalar(arguments[0]),), dtype_of(ast.unparse(arguments[1])))
        return self._apply(name, arguments)

    def _apply(self, name: str, arguments: list[ast.expr]) -> Apply:
        args = tuple(map(self._scalar, arguments))
        if name not in OPS:
            raise ParseError(f"there is no op {name}")
        try:
            return Apply(name, args, result_dtype(name, args, None))
        except TypeRuleError as error:
            raise ParseError(str(error)) from error


def result_dtype(name: str, args: Sequence[Scalar], to: DType | None) -> DType:
    """The dtype a pointwise op has on scalars by its type rule; `to` is the dtype attribute of casts."""
    op = get_op(name)
    if not op.has("pointwise"):
        raise TypeRuleError(f"{name} is not a pointwise op")
    attributes = op.make_attributes({"dtype": to} if name in _TO_DTYPE else {})
    type_ = op.infer(attributes, *(TensorType(a.dtype) for a in args))
    assert isinstance(type_, TensorType)
    return type_.dtype


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ParseError(f"{text!r} is not an expression") from error


def _number(node: ast.expr) -> bool | int | float:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    raise ParseError(f"{ast.unparse(node)!r} is not an expression")
