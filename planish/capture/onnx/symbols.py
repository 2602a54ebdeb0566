"""Sizes of graph inputs: dim_param names and anonymous dims become symbols with readable names.

The same dim_param is the same symbol. A dim_param that is a formula over other ones ("past + seq") becomes
that formula; one that is no name at all ("?") is as good as none. The caller may fix a symbol to a number or
give it a range; without one, it lies in [0, LONGEST].
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from planish.capture.onnx.ends import check_given, describe
from planish.capture.onnx.structure import Given, is_open
from planish.capture.onnx.tensors import onnx_dtype
from planish.errors import ModelError, ParseError, UnsupportedOp
from planish.types import Dim, TensorType, parse_dim, symbol, symbols_of

UNKNOWN = -1     # what some exporters write for a size that they leave open
LONGEST = 10**9  # the size of an axis that exporters write for "no limit"

Known = Mapping[str, "int | tuple[int, int | None] | tuple[int, int | None, int]"]


class SymbolTable:
    """The sizes of a model's inputs, by the names the model gives them."""

    def __init__(self, file: str, known: Known | None = None):
        self.file = file
        self.known = dict(known or {})
        self.dims: dict[str, Dim] = {}
        self.steps: dict[str, int] = {}

    def input_types(self, inputs: Iterable[Any], given: Mapping[str, Given]) -> dict[str, Given]:
        """What each of a model's inputs (ValueInfoProto) holds; `given` says it of those that the model
        leaves open. Raises ModelError, and UnsupportedOp for an open one that `given` does not have."""
        values = list(inputs)
        self._require_open(values, given)
        asked = set(self.known)
        self.known = {**_sizes_said(values, given), **self.known}
        self._declare_plain([value for value in values if not is_open(value)])
        types = {v.name: self._open_type(v, given) if is_open(v) else self._type(v) for v in values}
        unused = asked - set(self.dims)
        if unused:
            raise ModelError(f"{self.file} has no size called {', '.join(sorted(unused))}; "
                             f"its sizes are {', '.join(self.dims) or 'all numbers'}")
        return types

    def _require_open(self, values: Iterable[Any], given: Iterable[str]) -> None:
        """`given` may have the inputs that the model leaves open, and no others."""
        names = [value.name for value in values if is_open(value)]
        for name in given:
            if name not in names:
                raise ModelError(f"{self.file}: a type is given for {name!r}; the model leaves open the type "
                                 f"of {', '.join(names) or 'no input'}")

    def _open_type(self, value: Any, given: Mapping[str, Given]) -> Given:
        what = f"{self.file}: input {value.name!r}"
        if value.type.WhichOneof("value") is None:
            raise ModelError(f"{what} has no type")
        if value.name not in given:
            is_tensor = value.type.WhichOneof("value") == "tensor_type"
            fault = "has no rank" if is_tensor else f"is a {describe(value.type)}"
            raise UnsupportedOp(f"{what} {fault}: the model does not say what it holds; say it: "
                                "load_graph(..., types={name: a TensorType, a list of them, or None})")
        check_given(value.type, given[value.name], what)
        return given[value.name]

    def _declare_plain(self, values: Iterable[Any]) -> None:
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if is_name(dim.dim_param):
                    self._declare(dim.dim_param)

    def _type(self, value: Any) -> TensorType:
        tensor = value.type.tensor_type
        dtype = onnx_dtype(tensor.elem_type, f"{self.file}: input {value.name!r}")
        return TensorType(dtype, tuple(self._dim(value.name, i, d) for i, d in enumerate(tensor.shape.dim)))

    def _dim(self, name: str, axis: int, dim: Any) -> Dim:
        fixed = fixed_size(dim)
        if fixed is not None:
            if fixed < 0:
                raise ModelError(f"{self.file}: size {axis} of input {name!r} is {fixed}")
            return fixed
        if not re.search(r"\w", dim.dim_param, flags=re.ASCII) or dim.dim_param == str(UNKNOWN):
            return self._declare(_identifier(f"{name}_{axis}"))
        if dim.dim_param in self.dims:
            return self.dims[dim.dim_param]
        formula = self._formula(dim.dim_param)
        return self._declare(_identifier(dim.dim_param)) if formula is None else formula

    def _formula(self, text: str) -> Dim | None:
        """`text` as arithmetic over declared sizes, or None."""
        try:
            dim = parse_dim(text, self.dims)
        except (ParseError, ZeroDivisionError, RecursionError):
            return None
        return dim if set(symbols_of(dim)) <= set(self.dims) else None

    def _declare(self, name: str) -> Dim:
        if name not in self.dims:
            known = self.known.get(name, (0, LONGEST))
            self.dims[name] = known if isinstance(known, int) else symbol(name, *known[:2])
            self.steps[name] = 1 if isinstance(known, int) else (*known, 1)[2]
        return self.dims[name]


def _sizes_said(values: Iterable[Any], given: Mapping[str, Given]) -> dict[str, int]:
    """The sizes that the model names in the types of open inputs, and that are the same number in all that
    they hold."""
    found: dict[str, set[Dim]] = {}
    for value in values:
        for size, dim in _named_sizes(value.type, given.get(value.name)):
            found.setdefault(size, set()).add(dim)
    single = {name: next(iter(dims)) for name, dims in found.items() if len(dims) == 1}
    return {name: dim for name, dim in single.items() if isinstance(dim, int)}


def _named_sizes(type_: Any, given: Given) -> Iterator[tuple[str, Dim]]:
    kind = type_.WhichOneof("value")
    if isinstance(given, TensorType) and kind == "tensor_type":
        yield from ((size.dim_param, d) for size, d in zip(type_.tensor_type.shape.dim, given.shape)
                    if is_name(size.dim_param))
    elif kind == "optional_type":
        yield from _named_sizes(type_.optional_type.elem_type, given)
    elif kind == "sequence_type" and isinstance(given, Sequence):
        for part in given:
            yield from _named_sizes(type_.sequence_type.elem_type, part)


def fixed_size(dim: Any) -> int | None:
    """The number that a TensorShapeProto.Dimension is, None where it is open."""
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value != UNKNOWN else None


def _identifier(text: str) -> str:
    """`text` as a name: what is not a letter, digit or underscore becomes one underscore."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    return name if is_name(name) else f"d_{name}"


def is_name(text: str) -> bool:
    """Whether a size can be called that in the text forms."""
    return text.isidentifier() and not iskeyword(text)
