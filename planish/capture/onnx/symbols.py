"""Sizes of graph inputs: dim_param names and anonymous dims become symbols with readable names.

The same dim_param is the same symbol. A dim_param that is a formula over other ones ("past + seq") becomes
that formula; one that is no name at all ("?") is as good as none. The caller may fix a symbol to a number or
give it a range; without one, it lies in [0, LONGEST].
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from typing import Any

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

    def input_types(self, inputs: Iterable[Any]) -> dict[str, TensorType]:
        """The type of each graph input (ValueInfoProto). Raises ModelError for one without a rank."""
        values = list(inputs)
        for value in values:
            self._require_tensor(value)
        self._declare_plain(values)
        types = {value.name: self._type(value) for value in values}
        unused = set(self.known) - set(self.dims)
        if unused:
            raise ModelError(f"{self.file} has no size called {', '.join(sorted(unused))}; "
                             f"its sizes are {', '.join(self.dims) or 'all numbers'}")
        return types

    def _require_tensor(self, value: Any) -> None:
        kind = value.type.WhichOneof("value")
        if kind is None:
            raise ModelError(f"{self.file}: input {value.name!r} has no type")
        if kind != "tensor_type":
            raise UnsupportedOp(
                f"{self.file}: input {value.name!r} is a {kind.removesuffix('_type')}; planish takes tensors"
            )
        if not value.type.tensor_type.HasField("shape"):
            raise ModelError(
                f"{self.file}: the rank of input {value.name!r} is not known; "
                "write its shape into the model (onnx.shape_inference, or the exporter's options)"
            )

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
        if dim.HasField("dim_value") and dim.dim_value != UNKNOWN:
            if dim.dim_value < 0:
                raise ModelError(f"{self.file}: size {axis} of input {name!r} is {dim.dim_value}")
            return dim.dim_value
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
        except ParseError:
            return None
        return dim if set(symbols_of(dim)) <= set(self.dims) else None

    def _declare(self, name: str) -> Dim:
        if name not in self.dims:
            known = self.known.get(name, (0, LONGEST))
            self.dims[name] = known if isinstance(known, int) else symbol(name, *known[:2])
            self.steps[name] = 1 if isinstance(known, int) else (*known, 1)[2]
        return self.dims[name]


def _identifier(text: str) -> str:
    """`text` as a name: what is not a letter, digit or underscore becomes one underscore."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    return name if is_name(name) else f"d_{name}"


def is_name(text: str) -> bool:
    """Whether a size can be called that in the text forms."""
    return text.isidentifier() and not iskeyword(text)
