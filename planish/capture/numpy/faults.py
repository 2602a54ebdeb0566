"""What NumPy tells of divisions of integers: a divisor that is 0, and a quotient that does not fit.

In: a division, its operands cast to the dtype of its loop. Out: a `Fault` for each thing that can go wrong,
whose `node`, a bool scalar, says whether it did: it goes out of the graph beside the function's results, and
`tell` then does what NumPy does, as `np.errstate` has it. Python's own numbers raise, as in Python.

Constants that can't go wrong, and results without elements, have no faults.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.capture.location import user_frame
from planish.capture.numpy.tracer import Tracer, as_tracer, cast, check, current, emit, full_like_node
from planish.ir import Node, constant

KINDS: dict[np.ufunc, tuple[str, ...]] = {
    np.floor_divide: ("divide", "over"),
    np.divmod: ("divide", "over"),
    np.remainder: ("divide",),
    np.fmod: ("divide",),
}
_OPERATORS: dict[np.ufunc, Callable[[Any, Any], Any]] = {
    np.floor_divide: operator.floordiv,
    np.divmod: divmod,
    np.remainder: operator.mod,
    np.true_divide: operator.truediv,
}


def errors() -> dict[str, str]:
    """What NumPy does about each kind of fault now."""
    return {kind: str(mode) for kind, mode in np.geterr().items()}


def errors_set(modes: Mapping[str, Any]) -> np.errstate:
    return np.errstate(**modes)


@dataclass(frozen=True, eq=False)
class Fault:
    """Something that NumPy tells of, if `node` holds: `kind` is "divide" or "over", as in np.errstate.

    again     does to plain numbers what has this fault, so that NumPy itself tells of it
    mode      what the function itself has set for it; None: what is set when it is called
    frame...  where a warning is said to come from: the line of the division
    """

    node: Node
    kind: str
    again: Callable[[], Any]
    mode: str | None
    file: str
    line: int
    scope: dict[str, Any]

    def tell(self) -> None:
        """Warn, raise, call, print or log, as NumPy is set to."""
        mode = self.mode or errors()[self.kind]
        if mode != "warn":
            with errors_set({self.kind: mode}):
                self.again()
            return
        registry = self.scope.setdefault("__warningregistry__", {})
        module = self.scope.get("__name__", "<string>")
        warnings.warn_explicit(self.message, RuntimeWarning, self.file, self.line, module, registry)

    @property
    def message(self) -> str:
        """NumPy's own text."""
        try:
            with errors_set({self.kind: "raise"}):
                self.again()
        except FloatingPointError as error:
            return str(error)
        raise AssertionError(f"NumPy finds nothing wrong with {self.kind} of {self.again}")


def note_faults(
    ufunc: np.ufunc, operands: list[Tracer], nodes: list[Node], where: Any, written: bool
) -> None:
    """Note what may go wrong in a ufunc of `nodes`, which `operands` became; `written` as Python's operator.
    """
    if written and ufunc in _OPERATORS and all(t.weak for t in operands):
        _check_python_divisor(_OPERATORS[ufunc], operands, nodes[1])
    elif ufunc in KINDS and nodes[0].dtype.kind in ("int", "uint") and 0 not in _shape(nodes, where):
        scalars = [t.weak or t.dtype.type for t in operands if written and t.scalar]
        for kind, wrong in _conditions(KINDS[ufunc], *nodes):
            if where is not True:
                wrong = emit("bitwise_and", wrong, cast(as_tracer(where), np.bool_))
            whole = emit("reduce_any", wrong, axes=tuple(range(len(wrong.shape))), keepdims=False)
            _note(kind, whole, _again(ufunc, kind, nodes[0].dtype.numpy, scalars))


def compute_known(ufunc: np.ufunc, compute: Callable[[], Any]) -> Any:
    """What NumPy computes while tracing; what is wrong with it is told at each call."""
    kinds = KINDS.get(ufunc, ())
    with errors_set(dict.fromkeys(kinds, "ignore")):
        made = compute()
    if np.result_type(*(made if ufunc.nout > 1 else (made,))).kind in "iu":
        for kind in kinds:
            if _goes_wrong(compute, kind):
                _note(kind, constant(True), compute)
    return made


def _goes_wrong(compute: Callable[[], Any], kind: str) -> bool:
    try:
        with errors_set({"divide": "ignore", "over": "ignore", kind: "raise"}):
            compute()
    except FloatingPointError:
        return True
    return False


def _shape(nodes: list[Node], where: Any) -> tuple[int, ...]:
    shapes = [n.shape for n in nodes]
    return np.broadcast_shapes(*shapes, () if where is True else as_tracer(where).shape)  # type: ignore[arg-type]


def _conditions(kinds: tuple[str, ...], x: Node, y: Node) -> Iterator[tuple[str, Node]]:
    """kind -> where it goes wrong; what surely does not is left out."""
    if _may_be(y, 0):
        yield "divide", emit("eq", y, full_like_node(y, 0))
    if "over" not in kinds or x.dtype.kind != "int":
        return
    least = np.iinfo(x.dtype.numpy).min
    if _may_be(x, least) and _may_be(y, -1):
        is_least = emit("eq", x, full_like_node(x, least))
        yield "over", emit("bitwise_and", is_least, emit("eq", y, full_like_node(y, -1)))


def _may_be(node: Node, value: int) -> bool:
    return node.op.name != "constant" or bool((node.attributes.array == value).any())


def _again(ufunc: np.ufunc, kind: str, dtype: np.dtype, scalars: Sequence[type]) -> Callable[[], Any]:
    """A division with the fault; by Python's operator where it met two scalars, which NumPy words otherwise.
    """
    x, y = (1, 0) if kind == "divide" else (np.iinfo(dtype).min, -1)
    if len(scalars) == 2:
        return lambda: _OPERATORS[ufunc](scalars[0](x), scalars[1](y))
    return lambda: ufunc(np.array(x, dtype), np.array(y, dtype))


def _note(kind: str, node: Node, again: Callable[[], Any]) -> None:
    trace, frame, now = current(), user_frame(), errors()[kind]
    mode = now if now != trace.errors[kind] else None
    place = frame.f_code.co_filename, frame.f_lineno, frame.f_globals
    trace.faults.append(Fault(node, kind, again, mode, *place))


def _check_python_divisor(apply: Callable[[Any, Any], Any], operands: list[Tracer], divisor: Node) -> None:
    """Python's numbers: a divisor of 0 is Python's error, in its words."""
    if not _may_be(divisor, 0):
        return
    one, zero = (t.weak(n) for t, n in zip(operands, (1, 0)))  # type: ignore[misc]
    try:
        apply(one, zero)
    except ZeroDivisionError as error:
        check(emit("ne", divisor, full_like_node(divisor, 0)), "ZeroDivisionError", str(error))
