"""What every command on a model is told, in one place, and the model, inputs and program that follow from it.
"""
from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from planish.cli.faults import UsageError
from planish.runtime.pool import MAX_THREADS

if TYPE_CHECKING:
    from planish.cli.inputs import Inputs
    from planish.cli.models import Loaded
    from planish.compiled import Compiled, Options, Strategy
    from planish.inspect.peers import Peer
    from planish.inspect.validate import Runner
    from planish.ir import Graph
    from planish.onnx.variants import Variants
    from planish.tuning.tune import Session


class NumericsClass(str, Enum):
    strict = "strict"
    default = "default"
    fast = "fast"


class ModeName(str, Enum):
    default = "default"
    max_autotune = "max-autotune"


class StrategyName(str, Enum):
    native = "native"
    library = "library"


INPUT_HELP = ("NAME=SHAPE for random data, such as x=1x2048 or x=1x2048:0..255 (a range; integers are 0..9 "
              "without one), or NAME=FILE.npy. Repeat it for more inputs; those not given are random, sizes "
              "not given are 1.")
DISABLE_HELP = "Passes, schedule steps or rules to leave out."


@dataclass(frozen=True)
class Request:
    """The options that `run`, `bench`, `inspect`, `explain` and `validate` share; typer reads the
    annotations.
    """

    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.", show_default=False)]
    inputs: Annotated[list[str], typer.Option("--input", "-i", metavar="NAME=...", help=INPUT_HELP,
                                              default_factory=list, show_default=False)]
    mode: Annotated[ModeName, typer.Option(help="Choices by rules, or measured (and remembered).")] = \
        ModeName.default
    numerics: Annotated[NumericsClass, typer.Option(help="What rewriting may change in the last bits.")] = \
        NumericsClass.default
    strategy: Annotated[StrategyName, typer.Option(help="Native code, or a NumPy kernel per op.")] = \
        StrategyName.native
    threads: Annotated[int, typer.Option(min=0, max=MAX_THREADS,
                                         help="Threads per call; 0: one per CPU.")] = 0
    disable: Annotated[str, typer.Option(metavar="NAME,...", help=DISABLE_HELP)] = ""
    seed: Annotated[int, typer.Option(min=0, help="Of random inputs.")] = 0
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False
    traceback: Annotated[bool, typer.Option("--traceback", help="Show whole tracebacks.")] = False

    @cached_property
    def options(self) -> Options:
        """What the compiler is told. Raises UsageError for a name that switches nothing off."""
        from planish.compiler import Options, check_switches
        from planish.errors import PlanishError

        disable = frozenset(name.strip() for name in self.disable.split(",") if name.strip())
        try:
            check_switches(disable)
        except PlanishError as error:
            raise UsageError(f"--disable {self.disable}: {error}") from None
        return Options(mode=self.mode.value, numerics=self.numerics.value, strategy=self.strategy.value,
                       disable=disable)

    @cached_property
    def variants(self) -> Variants:
        """The model, read."""
        self.apply_threads()
        options = self.options  # a wrong one is told before the model is read
        from planish.capture.onnx.model import read_model
        from planish.onnx.variants import Variants

        return Variants(read_model(self.model), options)

    @cached_property
    def loaded(self) -> Loaded:
        """The model, captured, and its inputs."""
        from planish.cli.models import load

        return load(self.variants, self.inputs, self.seed)

    @property
    def graph(self) -> Graph:
        return self.loaded.captured.graph

    @property
    def data(self) -> Inputs:
        """The inputs of the graph."""
        return self.loaded.inputs

    def compile(self, strategy: Strategy | None = None, session: Session | None = None) -> Compiled:
        """The program, by this strategy or the one asked for; the sizes of the inputs are its hint. In mode
        max-autotune it is measured with these inputs, in `session`."""
        from planish.compiler import compile_graph
        from planish.tuning.tune import Session, tuning

        options = replace(self.options, strategy=strategy or self.options.strategy)
        session = Session() if session is None else session
        session.examples = self.data.arrays
        with tuning(session):
            return compile_graph(self.graph, options, hint=self.data.sizes)

    def onnx_runtime(self, proto: Any = None) -> Runner:
        """The model, or `proto` that was made of it, in ONNX Runtime: what it gives for the inputs."""
        from planish.inspect.peers import onnx_runtime
        from planish.runtime.threads import get_num_threads

        return self._on_feeds(onnx_runtime(self.model if proto is None else proto, get_num_threads(),
                                           self.model.parent if proto is not None else ""))

    def reference_evaluator(self, proto: Any = None) -> Runner:
        """The same in the package onnx's own evaluator."""
        from planish.inspect.peers import reference_evaluator

        return self._on_feeds(reference_evaluator(self.model if proto is None else proto,
                                                  self.model.parent if proto is not None else ""))

    def _on_feeds(self, peer: Peer) -> Runner:
        """A peer as a runner of the graph: it takes the model's own inputs, whatever the graph's are."""
        from planish.inspect.peers import flat

        return lambda *arrays: flat(peer(self.loaded.feeds))

    def whole_model(self) -> Any:
        """The ModelProto with its weights, but for external data."""
        import onnx

        return onnx.load(self.model, load_external_data=False)

    def of_every_value(self, proto: Any) -> Request:
        """The request for a model that was made of this one, with the same inputs."""
        from planish.capture.onnx.model import read_model
        from planish.onnx.variants import Variants

        made = replace(self)
        made.__dict__["variants"] = Variants(read_model(proto, self.model.parent), self.options)
        return made

    def apply_threads(self) -> None:
        """The same number for us, NumPy's library of matrix products (which reads it when loaded) and peers.
        """
        if self.threads:
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
                os.environ[name] = str(self.threads)
            from planish.runtime.threads import set_num_threads

            set_num_threads(self.threads)


def model_command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make `action(request, own options...)` a command that has the options of `Request` and its own."""
    hints = get_type_hints(Request, include_extras=True)
    shared = [_parameter(f.name, hints[f.name], f.default) for f in fields(Request)]

    def register(action: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(action, eval_str=True).parameters.values())[1:]
        parameters = [*shared, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)]

        def command(**given: Any) -> None:
            request = Request(**{p.name: given.pop(p.name) for p in shared})
            action(request, **given)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = action.__doc__
        app.command(action.__name__)(command)
        return action
    return register


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
