"""`planish.from_exported`: a program that torch.export captured, compiled as one whole.

Parameters, buffers and lifted tensors are constants. Buffers that the program changes are its state: they are
read at each call and written back to the exported program's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planish.capture.torch import decompositions, translate
from planish.compiled import Compiled
from planish.errors import ShapeError, SignatureError, UnsupportedOp
from planish.torch.dynamo import compile_captured
from planish.torch.program import TorchProgram, feeder
from planish.torch.settings import settings_of


def from_exported(
    exported: Any,
    *,
    mode: str | None = None,
    numerics: str = "default",
    strategy: str = "native",
    disable: Any = (),
    host: bool = True,
    random: str = "keys",
) -> ExportedProgram:
    """Compile a torch.export.ExportedProgram. Dynamic sizes keep their ranges; the result is called with the
    arguments of the program that was exported and gives what it gives.

    Raises UnsupportedOp for operators without a translation, all at once.
    """
    options = {"numerics": numerics, "strategy": strategy, "disable": disable, "host": host, "random": random}
    settings = settings_of(mode, options)
    lowered = exported.run_decompositions(decompositions())
    signature = lowered.graph_signature
    if signature.user_inputs_to_mutate:
        names = ", ".join(signature.user_inputs_to_mutate.values())
        raise UnsupportedOp(f"the exported program writes to its arguments {names}")
    held = held_tensors(lowered)
    changed = set(signature.buffers_to_mutate.values())
    places = {
        i: (spec.target, held[spec.target])
        for i, spec in enumerate(signature.input_specs)
        if spec.target in held
    }
    fixed = {i: tensor.detach() for i, (name, tensor) in places.items() if name not in changed}
    captured = translate(lowered.graph_module, "exported", fixed, settings.host, settings.random)
    program = TorchProgram(captured, compile_captured(captured, settings))
    return ExportedProgram(lowered, program, {i: tensor for i, (_, tensor) in places.items()}, held)


def held_tensors(exported: Any) -> dict[str, Any]:
    """Parameters, buffers and lifted tensors by name."""
    return {**exported.constants, **exported.state_dict}


class ExportedProgram:
    """A compiled exported program; `captured` and `compiled` are open to inspection."""

    def __init__(
        self, exported: Any, program: TorchProgram, held: Mapping[int, Any], by_name: Mapping[str, Any]
    ):
        self.exported, self.program, self.held, self.by_name = exported, program, held, by_name
        self.captured, self.compiled = program.captured, program.compiled
        self._check = _argument_checks(exported, program)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        from torch.utils import _pytree as pytree

        results = self.program(self._arguments(args, keywords))
        return pytree.tree_unflatten(self._written_back(results), self.exported.call_spec.out_spec)

    def prepared(self, *args: Any, **keywords: Any) -> tuple[Compiled, list[np.ndarray]]:
        """The compiled graph, and the arrays that go into it in such a call."""
        arguments = self._arguments(args, keywords)
        return self.compiled, [feeder(feed)(arguments) for feed in self.captured.feeds]

    def _arguments(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
        """All that the program takes, checked: what a call gives, and the tensors held."""
        from torch.utils import _pytree as pytree

        spec = self.exported.call_spec
        ordered = {name: keywords[name] for name in _keyword_names(spec) if name in keywords}
        leaves, tree = pytree.tree_flatten((args, ordered if len(ordered) == len(keywords) else keywords))
        if tree != spec.in_spec:
            raise SignatureError(f"the program takes arguments of structure {spec.in_spec}, not {tree}")
        given = iter(leaves)
        arguments = [
            self.held[i] if i in self.held else next(given)
            for i in range(len(self.exported.graph_signature.input_specs))
        ]
        for check in self._check:
            check(arguments)
        return arguments

    def _written_back(self, results: Sequence[Any]) -> list[Any]:
        """Results that are new values of buffers are copied to them; the rest is the user's."""
        import torch

        kept = []
        with torch.no_grad():
            for spec, value in zip(self.exported.graph_signature.output_specs, results, strict=True):
                if spec.kind.name == "USER_OUTPUT":
                    kept.append(value)
                elif spec.kind.name == "BUFFER_MUTATION":
                    self.by_name[spec.target].copy_(value)
        return kept


def _keyword_names(spec: Any) -> list[str]:
    keywords = (
        spec.in_spec.children()[1] if hasattr(spec.in_spec, "children") else spec.in_spec.children_specs[1]
    )
    return list(keywords.context or ())


def _argument_checks(exported: Any, program: TorchProgram) -> list[Any]:
    """One check per tensor argument: dtype, rank and the sizes that are fixed."""
    checks = []
    inputs = [n for n in exported.graph_module.graph.nodes if n.op == "placeholder"]
    fixed = set(program.captured.constants)
    for index, node in enumerate(inputs):
        value = node.meta.get("val")
        if index not in fixed and hasattr(value, "stride"):
            sizes = [d if isinstance(d, int) else None for d in value.shape]
            checks.append(_tensor_check(index, node.name, value.dtype, sizes))
        elif isinstance(value, (int, float, bool, str)) or value is None:
            checks.append(_value_check(index, node.name, value))
    return checks


def _tensor_check(index: int, name: str, dtype: Any, sizes: list[int | None]) -> Any:
    def check(arguments: list[Any]) -> None:
        import torch

        tensor = arguments[index]
        if not isinstance(tensor, torch.Tensor) or tensor.dtype is not dtype:
            got = getattr(tensor, "dtype", type(tensor).__name__)
            raise SignatureError(f"argument {name!r}: expected a tensor of {dtype}, got {got}")
        fits = len(sizes) == tensor.ndim and all(
            want is None or want == got for want, got in zip(sizes, tensor.shape)
        )
        if not fits:
            shape = ["?" if d is None else d for d in sizes]
            raise ShapeError(f"argument {name!r}: expected shape {shape}, got {list(tensor.shape)}")

    return check


def _value_check(index: int, name: str, value: Any) -> Any:
    def check(arguments: list[Any]) -> None:
        if arguments[index] != value:
            raise SignatureError(f"argument {name!r} was exported as {value!r}, got {arguments[index]!r}")

    return check
