"""A traced array: what stands for an array while a NumPy function is traced.

NumPy arrays share memory: a view of a view can be written to and the base changes. So a `Tracer` is a path of
view steps into a `Storage`; the storage holds the value now, as a node of the graph or, while nothing traced
went in, as a real array (known). Reading follows the steps forward, writing follows them back: aliasing is as
in NumPy.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from planish.capture.location import user_location
from planish.errors import CaptureError
from planish.ir import Node, Note, constant, input_node
from planish.ops import get_op
from planish.types import TensorType, dtype_of, number_dtype_of

if TYPE_CHECKING:
    from planish.capture.numpy.faults import Fault

Scalar = (bool, int, float)


@dataclass(eq=False)
class Trace:
    """One run of a function on tracers: the effects in order, where each node was written, and the arrays
    met."""

    effects: list[Node] = field(default_factory=list)
    notes: dict[Node, Note] = field(default_factory=dict)
    met: dict[int, Storage] = field(default_factory=dict)  # id of a plain array -> its storage
    frozen: dict[int, np.ndarray] = field(default_factory=dict)  # arrays folded in as constants
    names: dict[int, str] = field(default_factory=dict)  # id of an array -> the name the function has for it
    contiguous: set[int] = field(default_factory=set)  # leaves written to through a reshape
    faults: list[Fault] = field(default_factory=list)  # what NumPy would tell of, in order
    errors: dict[str, str] = field(default_factory=dict)  # np.geterr() as it began

    def emit(self, op: str, operands: tuple[Node, ...], attributes: dict[str, Any]) -> Any:
        made = get_op(op)(*operands, **attributes)
        for node in made if isinstance(made, tuple) else (made,):
            self.notes.setdefault(node, Note(user_location()))
        return made

    def adopt(self, array: np.ndarray) -> Storage:
        """The storage of a plain array. One that nobody can write to is a constant, others are read at every
        call."""
        if id(array) in self.frozen:
            return Storage(self, array=array)
        if id(array) not in self.met:
            if is_frozen(array):
                self.frozen[id(array)] = array
                return Storage(self, array=array)
            name = self._own_name(self.names.get(id(array), "array"))
            node = input_node(name, TensorType(number_dtype_of(array), array.shape))
            self.met[id(array)] = Storage(self, node=node, origin=array, input=node, digest=digest(array))
        elif self.met[id(array)].digest != digest(array):
            raise CaptureError(
                f"{user_location()}: a plain array {array.dtype.name}{list(array.shape)} was changed in "
                "place between its uses in "
                "a compiled function. Make it inside the function with np.zeros, np.ones, np.full or .copy() "
                "of a traced array, "
                "or write x = x + ... instead of x += ..."
            )
        return self.met[id(array)]

    def _own_name(self, name: str) -> str:
        """The name, with a number if another array has it: inputs are told apart by their names."""
        taken = {s.input.attributes.name for s in self.met.values() if s.input is not None}
        return name if name not in taken else next(n for i in count(2) if (n := f"{name}_{i}") not in taken)

    def pin(self, array: np.ndarray) -> np.ndarray:
        """The content of a plain array, which the program then depends on: it is guarded if anybody else can
        change it."""
        storage = self.adopt(array)
        storage.pinned = True
        return array.copy()

    def check_unchanged(self) -> None:
        """Raise if a plain array is not any more what it was when it was met."""
        for storage in list(self.met.values()):
            self.adopt(storage.origin)


def digest(array: np.ndarray) -> int:
    """A checksum of the content."""
    if array.dtype.hasobject:
        array = np.fromiter(map(id, array.flat), np.int64)
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data) if array.size else 0


class _Active(threading.local):
    trace: Trace | None = None


ACTIVE = _Active()


def current() -> Trace:
    if ACTIVE.trace is None:
        raise CaptureError(
            f"{user_location()}: a traced value is used after its trace ended. It stood for an array only "
            "while the function was traced; return it instead of keeping it in a global or an object"
        )
    return ACTIVE.trace


def is_frozen(array: np.ndarray) -> bool:
    """Whether no view of this memory can be written to: the array and all its bases are read-only."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        if base.base is None:
            return True
        base = base.base
    return isinstance(base, bytes)


class Storage:
    """The memory of one array. `array` is its value while known, else `node`. `origin` is the caller's array,
    if any."""

    __slots__ = ("array", "digest", "input", "node", "origin", "pinned", "trace", "version", "written")

    def __init__(
        self,
        trace: Trace,
        *,
        array: np.ndarray | None = None,
        node: Node | None = None,
        origin: Any = None,
        input: Node | None = None,
        digest: int = 0,
    ):
        self.trace, self.array, self.node, self.origin, self.input = trace, array, node, origin, input
        self.version, self.written, self.pinned, self.digest = 0, False, False, digest

    def value(self) -> Node:
        if self.array is not None:
            owned = self.array if id(self.array) in self.trace.frozen else self.array.copy()
            return constant(owned)
        assert self.node is not None
        return self.node

    def set(self, node: Node) -> None:
        if self.array is not None and self.array.dtype.kind == "f" and self.array.flags.writeable:
            self.array.fill(np.nan)  # compiled code that still reads this memory is to notice
        self.array, self.node = None, node
        self.version += 1
        self.written = True


@dataclass(frozen=True)
class Step:
    """One view: how to read it from its base, how the base is after the view was written to (None:
    read-only), and the same view taken of a real array."""

    forward: Callable[[Node], Node]
    back: Callable[[Node, Node], Node] | None
    replay: Callable[[np.ndarray], np.ndarray]
    is_reshape: bool = False


class Tracer:
    """Behaves as `numpy.ndarray`; methods and operators are added by the modules of this package.

    scalar  NumPy would have a scalar (np.float32) here rather than an array without axes
    weak    a Python number's type: it takes the dtype of what it meets, as NumPy 2 has it
    """

    __slots__ = ("__weakref__", "_node", "_shape", "_version", "dtype", "scalar", "steps", "storage", "weak")
    __array_priority__ = 1000.0

    def __init__(
        self,
        storage: Storage,
        steps: tuple[Step, ...] = (),
        *,
        scalar: bool = False,
        weak: type | None = None,
    ):
        self.storage, self.steps, self.scalar, self.weak = storage, steps, scalar, weak
        self._version = -1
        self._node: Node | None = None
        known = self.known
        self.dtype: np.dtype = self.node.dtype.numpy if known is None else known.dtype
        self._shape: tuple[int, ...] = self.node.shape if known is None else known.shape  # type: ignore[assignment]

    @property
    def node(self) -> Node:
        """The value now, as a node."""
        if self.storage.trace is not current():
            raise CaptureError(
                f"{user_location()}: a value of another trace is used here; return it from the function "
                "that made it instead of keeping it in a global or an object"
            )
        if self._version != self.storage.version or self._node is None:
            node = self.storage.value()
            for step in self.steps:
                node = step.forward(node)
            self._node, self._version = node, self.storage.version
        return self._node

    @property
    def known(self) -> np.ndarray | None:
        """The value as a real array (a view where NumPy has one), while nothing traced went into it."""
        array = self.storage.array
        if array is not None:
            for step in self.steps:
                array = step.replay(array)
        return array

    def through(self, step: Step) -> Tracer:
        """The view of this array that the step gives."""
        return Tracer(self.storage, (*self.steps, step))

    def assign(self, node: Node) -> None:
        """Write a value of this shape and dtype into the memory."""
        if isinstance(self.storage.origin, np.ndarray):
            raise CaptureError(
                f"{user_location()}: a traced value is written to a plain array; plain NumPy would not see "
                "it until "
                "the compiled function runs. Pass the array as an argument, or make it with np.empty or "
                "np.zeros "
                "inside the function"
            )
        path = [self.storage.value()]
        for step in self.steps:
            path.append(step.forward(path[-1]))
        for step, base in zip(reversed(self.steps), reversed(path[:-1])):
            if step.back is None:
                raise ValueError("assignment destination is read-only")
            node = step.back(base, node)
        if any(step.is_reshape for step in self.steps) and self.storage.origin is not None:
            self.storage.trace.contiguous.add(id(self.storage))
        self.storage.set(node)

    # --- what Python may ask of an array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        """`x.shape = ...`: the same memory, seen in another shape from now on."""
        seen = self.reshape(shape)
        if seen.storage is not self.storage:
            raise AttributeError(
                "Incompatible shape for in-place modification. Use `.reshape()` to make a copy with the "
                "desired shape."
            )
        self.steps, self._shape, self._version = seen.steps, seen.shape, -1

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tracer]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(self.shape[0])])  # type: ignore[index]

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __hash__(self) -> int:
        if not self.scalar:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        return hash(self.concrete("its hash (as a key of a dict or set, or by a cache)", _NUMBER).item())

    def __repr__(self) -> str:
        return f"Tracer({dtype_of(self.dtype).short}[{', '.join(map(str, self.shape))}])"

    def __format__(self, spec: str) -> str:
        return repr(self)

    # --- what only a real value can answer

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
            )
        return bool(self.concrete("its truth (in if, while, and, or, not)", _TRUTH))

    def __int__(self) -> int:
        return int(self.concrete("int() of it", _NUMBER))

    def __float__(self) -> float:
        return float(self.concrete("float() of it", _NUMBER))

    def __complex__(self) -> complex:
        return complex(self.concrete("complex() of it", _NUMBER))

    def __index__(self) -> int:
        return self.concrete(
            "it as a Python integer (a size, an axis, a range, an index of a list)", _INDEX
        ).__index__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.concrete("a plain NumPy array", _ARRAY)
        return array.astype(dtype or array.dtype)

    def item(self, *args: Any) -> Any:
        return self.concrete("its item()", _NUMBER).item(*args)

    def tolist(self) -> Any:
        return self.concrete("its tolist()", _NUMBER).tolist()

    def concrete(self, what: str, instead: str) -> np.ndarray:
        """The real value. Where it depends on an argument: a Python number is made static, else
        CaptureError."""
        known = self.known
        if known is not None:
            return known
        argument = self.storage.origin
        if isinstance(argument, Argument) and self.weak is not None:
            raise NeedsValue(argument)
        raise CaptureError(
            f"{user_location()}: {what} is needed, but the value {self!r} is known only when the compiled "
            f"function runs. {instead}"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(np.ndarray, name):
            raise CaptureError(
                f"{user_location()}: ndarray.{name} has no meaning in a compiled function yet; compute it "
                "outside and pass the result as an argument"
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")


_TRUTH = (
    "Write np.where(condition, a, b) instead of `if`; or, if the condition depends only on an argument, pass "
    "that "
    "argument as static (static_argnums, static_argnames)"
)
_NUMBER = "Keep it an array (np.* functions take it), or compute it outside and pass it as a static argument"
_INDEX = (
    "Pass the number it comes from as a static argument (static_argnums, static_argnames), or use np.take, "
    "np.where"
)
_ARRAY = (
    "The function used does not let itself be traced: to index a plain array by a traced one write "
    "np.take(array, index, axis=0), to convert write x.astype(dtype), to write into an array return a new one"
)


@dataclass(frozen=True, eq=False)
class Argument:
    """A leaf of the arguments: its place among them and a name for messages."""

    position: int
    name: str


class NeedsValue(BaseException):
    """A Python number among the arguments is used as a Python value: trace again with it as a static
    argument."""

    def __init__(self, argument: Argument):
        self.argument, self.location = argument, user_location()


# --- making tracers


def fresh(node: Node, *, scalar: bool = False, weak: type | None = None) -> Tracer:
    """A new array (or NumPy scalar) with this value."""
    return Tracer(Storage(current(), node=node), scalar=scalar, weak=weak)


def known(value: Any, *, scalar: bool = False, weak: type | None = None) -> Tracer:
    """An array whose value does not depend on the arguments; kept, not copied."""
    return Tracer(Storage(current(), array=np.asarray(value)), scalar=scalar, weak=weak)


def as_tracer(value: Any) -> Tracer:
    """Anything NumPy takes as an array: tracers, numbers, arrays, nested lists of these."""
    if isinstance(value, Tracer):
        return value
    if isinstance(value, Scalar):
        return known(value, scalar=True, weak=type(value))
    if isinstance(value, np.generic):
        return known(value, scalar=True)
    if isinstance(value, np.ndarray):
        stands_for = getattr(value, "tracer", None)
        if stands_for is not None:
            return stands_for
        if type(value) not in (np.ndarray, np.memmap) and not hasattr(value, "tracer"):
            raise CaptureError(
                f"{user_location()}: {type(value).__name__} can't be used in a compiled function; only plain "
                "arrays can"
            )
        number_dtype_of(value)
        return Tracer(current().adopt(value))
    if isinstance(value, (list, tuple)):
        return _from_sequence(value)
    raise CaptureError(
        f"{user_location()}: {type(value).__name__} can't be used as an array in a compiled function"
    )


def _from_sequence(values: Any) -> Tracer:
    if not has_tracer(values):
        return known(np.asarray(values))
    parts = [as_tracer(v) for v in values]
    dtype = np.result_type(*(p.dtype for p in parts))  # within np.array, Python numbers are not weak
    shapes = {p.shape for p in parts}
    if len(shapes) > 1:
        raise ValueError(
            "setting an array element with a sequence: the parts have shapes "
            + ", ".join(map(str, sorted(shapes)))
        )
    rows = [emit("reshape", cast(p, dtype), shape=(1, *p.shape)) for p in parts]
    return fresh(emit("concat", *rows, axis=0))


def has_tracer(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(has_tracer, value))
    return isinstance(value, Tracer) or getattr(value, "tracer", None) is not None


def common_dtype(values: list[Tracer]) -> np.dtype:
    """`np.result_type` with Python numbers weak, as NumPy 2 has it."""
    return np.result_type(*(v.weak(1) if v.weak else v.dtype for v in values))


def emit(op: str, *operands: Node, **attributes: Any) -> Any:
    return current().emit(op, operands, attributes)


def check(predicate: Node, error: str, message: str) -> None:
    """At run time, raise `error` unless the bool scalar holds."""
    current().effects.append(emit("check", predicate, error=error, message=message))


def cast(value: Tracer, dtype: Any) -> Node:
    """The value as a node of a dtype; a Python integer that does not fit is an OverflowError, as in NumPy."""
    numpy_dtype = np.dtype(dtype)
    if value.weak is int and numpy_dtype.kind in "iu" and numpy_dtype != np.int64:
        if value.known is not None:
            return constant(np.asarray(int(value.known), numpy_dtype))
        _check_fits(value.node, numpy_dtype)
    if value.known is not None and value.dtype != numpy_dtype:
        with np.errstate(all="ignore"):
            return constant(value.known.astype(numpy_dtype))
    return cast_node(value.node, numpy_dtype)


def cast_node(node: Node, dtype: Any) -> Node:
    wanted = dtype_of(dtype)
    return node if node.dtype is wanted else emit("cast", node, dtype=wanted)


def _check_fits(node: Node, dtype: np.dtype) -> None:
    info = np.iinfo(dtype)
    low, high = max(info.min, -(2**63)), min(info.max, 2**63 - 1)
    fits = emit(
        "bitwise_and", emit("ge", node, constant(np.int64(low))), emit("le", node, constant(np.int64(high)))
    )
    check(fits, "OverflowError", f"Python integer out of bounds for {dtype.name}")


def static(value: Any) -> Any:
    """A parameter that has to be known now (counts, widths, shifts); a plain array is guarded by its
    content."""
    return current().pin(value) if isinstance(value, np.ndarray) else value


def full_like_node(node: Node, value: Any) -> Node:
    """A constant scalar of the node's dtype."""
    return constant(np.asarray(value, node.dtype.numpy))


def unsupported(
    what: str, advice: str = "compute it outside and pass the result as an argument"
) -> CaptureError:
    return CaptureError(f"{user_location()}: {what} can't be compiled yet; {advice}")
