"""What a constant holds: an array, or how one follows from others; and what a compile learns of it.

A compile may use constants in two ways. It may *compute* with them (fold, pack, lay out): the result is a
derived content, made from others by a named function when somebody needs its value. Or it may *look* at
them, to decide: `ask` answers a named question, and whoever stores the compiled program notes which were
asked and what the answers were (`Looks`). So the same program serves other weights: what was derived is
derived anew, and what was asked is asked again. Reading `array` is a look at every element.
"""
from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planish.types import STRING, TensorType, as_text, dtype_of, python_number

SMALL = 4096  # bytes up to which constants are compared by content; larger ones are equal when one array

MOVING = frozenset({"transpose", "reshape"})  # ops whose result has each element of the operand once

KEPT = 64 << 10  # bytes of a value in between that is kept for others

Function = Callable[..., np.ndarray]
DERIVATIONS: dict[str, Function] = {}
QUESTIONS: dict[str, Callable[..., Any]] = {}


def derivation(name: str) -> Callable[[Function], Function]:
    """Register how a content follows from others: `f(parameters, *arrays)` gives the array. Parameters are a
    tuple of plain values (numbers, names, dtypes, tuples of them)."""
    def register_it(function: Function) -> Function:
        DERIVATIONS[name] = function
        return function
    return register_it


def question(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a question about the values of constants: `f(*arrays)` gives a plain value."""
    def register_it(function: Callable[..., Any]) -> Callable[..., Any]:
        QUESTIONS[name] = function
        return function
    return register_it


@dataclass(frozen=True)
class Derivation:
    """How a content is made: `DERIVATIONS[function](parameters, *values of the sources)`."""

    function: str
    parameters: tuple[Any, ...]
    sources: tuple[Content, ...]

    @property
    def is_movement(self) -> bool:
        """Whether the elements are those of the one source, in another order or shape."""
        return self.function == "transposed" or (self.function == "op" and self.parameters[0] in MOVING)

    def run(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(DERIVATIONS[self.function](self.parameters, *arrays))


@dataclass(frozen=True, eq=False)
class Content:
    """The attributes of a constant: its type, what makes it equal to another, and its array or derivation.

    `is_known`: its value follows from the graph's text: a single number, or what was made of such. All others
    stand for arrays of their type until somebody looks. `is_lent`: the array's memory is not ours for long (a
    file that others may write to): a program takes a copy of what it uses.
    """

    type: TensorType
    key: object
    is_known: bool
    derivation: Derivation | None = None
    _memo: dict[str, Any] = field(default_factory=dict)
    is_lent: bool = False

    def __post_init__(self) -> None:
        self._memo["hash"] = hash(self.key)

    @staticmethod
    def of(array: np.ndarray, is_known: bool | None = None, *, is_lent: bool = False) -> Content:
        """An array, read-only from now on by agreement."""
        if dtype_of(array) is STRING:
            return Content._of_text(as_text(array))
        is_known = array.size <= 1 if is_known is None else is_known
        key: object = id(array)
        if array.nbytes <= SMALL:
            array = array.copy()
            array.flags.writeable = is_lent = False
            key = (is_known, array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        type_ = TensorType(dtype_of(array), array.shape)
        made = Content(type_, key, is_known, None, {"value": array}, is_lent)
        if (looks := _looks.get()) is not None:
            looks.note("digest", (made,), None)  # should it be equal to one that was given, this is a look
        return made

    @staticmethod
    def _of_text(array: np.ndarray) -> Content:
        array.flags.writeable = False
        key = ("text", array.shape, *array.reshape(-1).tolist())
        return Content(TensorType(STRING, array.shape), key, True, None, {"value": array})

    @staticmethod
    def derived(function: str, parameters: tuple[Any, ...], sources: Sequence[Content],
                type_: TensorType) -> Content:
        """What a registered derivation makes of others; computed when its value is first needed."""
        made = Derivation(function, parameters, tuple(sources))
        return Content(type_, made, all(s.is_known for s in sources), made)

    def settled(self) -> Content:
        """The same, computed now where it follows from single numbers: equal to all of equal value then."""
        return Content.of(self.value, is_known=True) if self.is_known and self.derivation else self

    @property
    def value(self) -> np.ndarray:
        """The array, for who computes with it. Whoever decides something by it reads `array`, or asks."""
        if "value" not in self._memo:
            self._memo["value"] = evaluate(self)
        return self._memo["value"]

    @property
    def has_value(self) -> bool:
        """Whether the value is at hand without work."""
        return "value" in self._memo

    def settle(self, value: np.ndarray) -> None:
        """Give a derived content the value that its derivation has, made elsewhere."""
        self._memo["value"] = value

    @property
    def array(self) -> np.ndarray:
        """The value, seen: a compile under way depends on every element of it."""
        if (looks := _looks.get()) is not None:
            looks.note("digest", (self,), None)
        return self.value

    @property
    def digest(self) -> str:
        """A hash of dtype, shape and bytes: what tells two large constants of equal content."""
        return ask("digest", self)

    @property
    def is_interned(self) -> bool:
        """Whether another array of the same content is equal to this one; else only the same array is."""
        return not isinstance(self.key, int)

    @property
    def nbytes(self) -> int:
        assert isinstance(self.type.size, int)
        return self.type.size * self.type.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Content) and _are_equal(self, other))

    def __hash__(self) -> int:
        return self._memo["hash"]


def _are_equal(one: Content, other: Content) -> bool:
    """Whether two contents have the same key, down to where they are the same object. Each pair is looked at
    once: to what was doubled sixty times there are 2^60 ways."""
    pairs, seen = [(one, other)], set()
    while pairs:
        a, b = pairs.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        x, y = a.key, b.key
        if hash(a) != hash(b) or type(x) is not type(y):
            return False
        if isinstance(x, Derivation) and isinstance(y, Derivation):
            if (x.function, x.parameters, len(x.sources)) != (y.function, y.parameters, len(y.sources)):
                return False
            pairs += zip(x.sources, y.sources)
        elif x != y:
            return False
    return True


def unmoved(content: Content) -> Content:
    """What holds the same elements, before they were moved: without transposes and reshapes."""
    while (made := content.derivation) is not None and made.is_movement:
        content = made.sources[0]
    return content


def evaluate(content: Content) -> np.ndarray:
    """The array of a derived content. Large values in between are dropped as soon as they are used up."""
    order = dependencies([content])
    left = dict.fromkeys(order, 0)
    for one in order:
        for source in one.derivation.sources if one.derivation and not one.has_value else ():
            left[source] += 1
    values: dict[Content, np.ndarray] = {}
    for one in order:
        if one.derivation is None or one.has_value:
            values[one] = one.value
            continue
        values[one] = one.derivation.run([values[s] for s in one.derivation.sources])
        if one.nbytes <= KEPT:
            one.settle(values[one])
        for source in one.derivation.sources:
            left[source] -= 1
            if not left[source]:
                values.pop(source, None)
    return values[content]


def dependencies(contents: Sequence[Content], *, behind_values: bool = False) -> list[Content]:
    """The contents and all they are derived from, sources first. What has a value is looked behind only with
    `behind_values`: which have one differs from one process to the next."""
    order: dict[Content, None] = {}
    stack = list(contents)[::-1]
    while stack:
        one = stack[-1]
        made = one.derivation if behind_values or not one.has_value else None
        sources = made.sources if made else ()
        waiting = [] if one in order else [s for s in sources if s not in order]
        if waiting:
            stack += waiting[::-1]
        else:
            order[stack.pop()] = None
    return list(order)


def leaves(contents: Sequence[Content]) -> list[Content]:
    """The contents that are arrays, among these and all they are derived from."""
    order: dict[Content, None] = {}
    stack = list(contents)[::-1]
    while stack:
        one = stack.pop()
        if one not in order:
            order[one] = None
            stack += one.derivation.sources if one.derivation else ()
    return [c for c in order if c.derivation is None]


def with_leaves(content: Content, new: Mapping[Content, Content]) -> Content:
    """The same derivation of other arrays of equal content."""
    if content.derivation is None:
        return new.get(content, content)
    made = content.derivation
    sources = tuple(with_leaves(s, new) for s in made.sources)
    if all(a is b for a, b in zip(sources, made.sources)):
        return content
    changed = Content.derived(made.function, made.parameters, sources, content.type)
    if content.has_value:
        changed.settle(content.value)
    return changed


# --- looking

def ask(name: str, *contents: Content) -> Any:
    """The answer of a registered question about constants, noted where a compile is watched."""
    memo = contents[0]._memo if len(contents) == 1 else {}
    if name not in memo:
        memo[name] = QUESTIONS[name](*(c.value for c in contents))
    if (looks := _looks.get()) is not None:
        looks.note(name, contents, memo[name])
    return memo[name]


class Looks:
    """The questions a compile asked about constants in `given` and what is derived from them, with the
    answers; None for a digest that nobody has computed yet."""

    def __init__(self, given: Mapping[Content, int]):
        self.given = given
        self.answers: dict[tuple[str, tuple[Content, ...]], Any] = {}
        self._depends: dict[Content, bool] = {}

    def note(self, name: str, contents: tuple[Content, ...], answer: Any) -> None:
        if any(map(self.depends, contents)):
            self.answers[name, contents] = answer

    def depends(self, content: Content) -> bool:
        """Whether a content is, or is derived from, one of the given."""
        found = self._depends.get(content)
        if found is None:
            made = content.derivation
            found = content in self.given or (made is not None and any(map(self.depends, made.sources)))
            self._depends[content] = found
        return found


_looks: ContextVar[Looks | None] = ContextVar("planish_looks", default=None)


@contextmanager
def watched(looks: Looks) -> Iterator[Looks]:
    """Inside the block, looks at constants are noted."""
    token = _looks.set(looks)
    try:
        yield looks
    finally:
        _looks.reset(token)


@question("digest")
def _digest(array: np.ndarray) -> str:
    if dtype_of(array) is STRING:
        return hashlib.sha256(repr((array.shape, array.reshape(-1).tolist())).encode()).hexdigest()
    data = np.ascontiguousarray(array)
    head = f"{data.dtype.name}{data.shape}".encode()
    return hashlib.sha256(head + data.tobytes()).hexdigest()


@question("uniform")
def uniform_number(array: np.ndarray) -> bool | int | float | None:
    """The Python number that all elements are (their bits everywhere the same), else None."""
    flat = array.reshape(-1)
    if not flat.size or len(set(glance := _elements(flat))) > 1:
        return None
    if flat.size > len(glance) and flat.tobytes() != glance[0] * flat.size:
        return None
    return python_number(flat[0])


GLANCES = 16  # elements looked at before whole arrays are hashed


@question("equal")
def equal_groups(*arrays: np.ndarray) -> tuple[int, ...]:
    """For each array, the place of the first that has the same content."""
    first: dict[object, int] = {}
    glances = [tuple(_elements(a.reshape(-1))) for a in arrays]
    times = Counter(glances)
    found = []
    for i, (array, glance) in enumerate(zip(arrays, glances)):
        key: object = (glance, _digest(array)) if times[glance] > 1 else i
        found.append(first.setdefault(key, i))
    return tuple(found)


def _elements(flat: np.ndarray) -> list[bytes]:
    """The bits of a few elements from all over, the first and the last among them."""
    chosen = flat[::max(1, (flat.size - 1) // GLANCES)].tobytes() + flat[-1:].tobytes()
    size = flat.dtype.itemsize
    return [chosen[k:k + size] for k in range(0, len(chosen), size)]
