"""What a compiled program takes and gives: the contract between generated code, the call path and engine
files.

A compiled program exports
    void planish_body(ptr frame, i64 tid, i64 threads)    one body that all threads run side by side
    i32  planish_derive(ptr dims)                         only with symbols: fills in the derived dims;
                                                          nonzero, a key of `messages`: out of range
and its frame is { ptr buffers; ptr dims; ptr pool; i32 status; i32 reserved }. `buffers` points to the data
of the inputs, the outputs, the constants and last the arena, in this order. Inputs are contiguous and aligned
to their elements; constants, the arena and outputs of 64 KiB and more start on a cache line. `dims` are i64:
the symbols, then what planish_derive adds. A check that fails at run time stores its nonzero code in
`status`.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DimRef:
    """A size known at run time: entry `index` of the call's dims."""

    index: int


Dim = int | DimRef


@dataclass(frozen=True)
class ArraySpec:
    """One input or output."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        sizes = ", ".join(f"d{d.index}" if isinstance(d, DimRef) else str(d) for d in self.shape)
        return f"{self.dtype}[{sizes}]"


@dataclass(frozen=True)
class ProgramSpec:
    """What a program takes and gives.

    The first `n_symbols` of its `n_dims` dims are symbols, bound by the inputs' shapes; planish_derive fills
    in the rest. `arena`: bytes of scratch memory. `work`: the multiply-adds, or as much time, that threads
    share in a call, which decides whether it uses several. `release_gil`: long enough
    to let other Python threads run. `messages`: what a nonzero status or planish_derive means, as (name of
    exception type, text). `unwrap_single`: a program with one output returns it, not a tuple.
    """

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    n_symbols: int = 0
    n_dims: int = 0
    arena: Dim = 0
    work: Dim = 0
    release_gil: bool = False
    unwrap_single: bool = False
    messages: dict[int, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        specs = [*self.inputs, *self.outputs]
        refs = [d for s in specs for d in s.shape if isinstance(d, DimRef)]
        refs += [d for d in (self.arena, self.work) if isinstance(d, DimRef)]
        if not 0 <= self.n_symbols <= self.n_dims or any(not 0 <= r.index < self.n_dims for r in refs):
            raise ValueError("a program's dims refer to entries it does not have")
        if any(isinstance(d, int) and d < 0 for s in specs for d in s.shape):
            raise ValueError("a program's sizes are from 0 up")
        bound = {d.index for s in self.inputs for d in s.shape if isinstance(d, DimRef)}
        if unbound := set(range(self.n_symbols)) - bound:
            raise ValueError(f"no input binds symbol {min(unbound)}")
        if self.unwrap_single and len(self.outputs) != 1:
            raise ValueError("only a program with one output can return it bare")

    def to_json(self) -> dict[str, Any]:
        """A value that json.dumps takes; `from_json` reads it back."""
        return {"inputs": [_array_to_json(s) for s in self.inputs],
                "outputs": [_array_to_json(s) for s in self.outputs],
                "arena": _dim_to_json(self.arena), "work": _dim_to_json(self.work),
                "messages": {str(code): list(message) for code, message in self.messages.items()},
                "n_symbols": self.n_symbols, "n_dims": self.n_dims,
                **{name: getattr(self, name) for name in _FLAGS}}

    @staticmethod
    def from_json(value: dict[str, Any]) -> ProgramSpec:
        """The spec of a `to_json` value. ValueError for anything else."""
        try:
            return ProgramSpec(
                tuple(map(_array_from_json, value["inputs"])), tuple(map(_array_from_json, value["outputs"])),
                arena=_dim_from_json(value["arena"]), work=_dim_from_json(value["work"]),
                messages={int(code): (str(k), str(text)) for code, (k, text) in value["messages"].items()},
                n_symbols=int(value["n_symbols"]), n_dims=int(value["n_dims"]),
                **{name: bool(value[name]) for name in _FLAGS})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a program's spec: {error!r}") from None


_FLAGS = ("release_gil", "unwrap_single")


def _dim_to_json(dim: Dim) -> Any:
    return {"dim": dim.index} if isinstance(dim, DimRef) else dim


def _dim_from_json(value: Any) -> Dim:
    return DimRef(int(value["dim"])) if isinstance(value, dict) else int(value)


def _array_to_json(spec: ArraySpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": [_dim_to_json(d) for d in spec.shape]}


def _array_from_json(value: Any) -> ArraySpec:
    return ArraySpec(str(value["name"]), str(value["dtype"]), tuple(map(_dim_from_json, value["shape"])))
