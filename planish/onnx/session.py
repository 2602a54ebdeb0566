"""`InferenceSession`: a model, compiled, that runs on arrays by name, with ONNX Runtime's interface.

In: a model (path or bytes) and `SessionOptions`. Out: outputs as new arrays, in the order asked for. What is
wrong with the model is an error when the session is made. A model whose sizes are all known is compiled then;
one with open sizes at its first call, whose sizes are taken as typical, for all sizes at once.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from planish.capture.onnx.model import Model, read_model
from planish.errors import PlanishError, ShapeError, SignatureError
from planish.ir import Graph
from planish.onnx.description import ModelMetadata, NodeArg, Size, argument_of, metadata_of
from planish.onnx.errors import Fail, InvalidArgument, as_session_error
from planish.onnx.feeds import Input, check_names
from planish.onnx.options import RunOptions, SessionOptions
from planish.onnx.platform import Provider, chosen_providers
from planish.onnx.profile import Profile
from planish.onnx.values import IOBinding, OrtValue, unwrapped
from planish.onnx.variants import Variant, Variants, compiler_options
from planish.types import Dim, is_static

_FOLDER = "session.model_external_initializers_file_folder_path"
_KEYWORDS = {"disabled_optimizers", "enable_fallback", "read_config_from_model"}  # taken, of no use here


class InferenceSession:
    """A model that runs.

    path_or_bytes     a path, or the bytes of a model
    sess_options      SessionOptions
    providers,        as ONNX Runtime takes them. There is one, "CPUExecutionProvider"; a warning tells of
    provider_options  others

    `compiles` counts how often a program was made for it, `recompiles` says why again. Any number of threads
    may call a session at the same time.

    Raises NoSuchFile, InvalidProtobuf, InvalidGraph, NotImplemented (planish.onnx.errors) for what is wrong
    with the model.
    """

    def __init__(self, path_or_bytes: str | bytes | os.PathLike[str],
                 sess_options: SessionOptions | None = None, providers: Sequence[Provider] | None = None,
                 provider_options: Sequence[dict[Any, Any]] | None = None, **keywords: Any):
        if unknown := keywords.keys() - _KEYWORDS:
            raise TypeError(f"InferenceSession takes no argument {', '.join(sorted(unknown))}")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is not planish.onnx.SessionOptions, but {type(sess_options)}")
        self._options = sess_options or SessionOptions()
        wanted = providers or list(self._options._providers) or None
        self._providers = chosen_providers(wanted, provider_options)
        prefix, profiled = self._options.profile_file_prefix, self._options.enable_profiling
        self._profile = Profile(prefix) if profiled else None
        self._fast: _Fast | None = None
        self._load(path_or_bytes)

    def _load(self, source: Any) -> None:
        if not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise TypeError(f"Unable to load from type '{type(source)}'")
        try:
            with self._event("model_loading"):
                self._model = read_model(source, self._options._config.get(_FOLDER))
                self._model.arrays.update(_given_initialisers(self._options, self._model))
                options = compiler_options(self._options)
                self._variants = Variants(self._model, options, self._options._dimensions)
            with self._event("session_initialization"):
                variant = self._variants.prepare()
        except (PlanishError, FileNotFoundError) as error:
            raise as_session_error(error) from error
        defaults = self._variants.defaults
        every = {v.name: Input(v) for v in self._model.graph.input}
        self._inputs = every
        self._required = [one for name, one in every.items() if name not in defaults]
        self._overridable = [one for name, one in every.items() if name in defaults]
        self._outputs = list(self._model.graph.output)
        self._output_names = [value.name for value in self._outputs]
        self._settle(variant)

    # --- running

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
            run_options: RunOptions | None = None) -> list[Any]:
        """The outputs of these names (all for None or none), for values by name: a list of arrays; a list for
        an output that is a sequence, None for an optional that holds nothing.

        Raises ValueError for inputs that are missing, InvalidArgument for any that do not fit.
        """
        fast = self._fast
        if fast is not None and run_options is None:
            try:
                return fast.run(output_names, input_feed)
            except (KeyError, SignatureError, ShapeError):
                pass  # told below, or mended: a list, an OrtValue, an array that is laid out otherwise
        return self._run(output_names, input_feed, run_options)

    def _run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
             run_options: RunOptions | None) -> list[Any]:
        names = self._checked_outputs(output_names)
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise TypeError(f"run_options is a {type(run_options).__name__}, not planish.onnx.RunOptions")
        if run_options is not None and run_options.terminate:
            raise Fail("Exiting due to terminate flag being set to true.")
        check_names(input_feed, self._required, self._inputs)
        feeds = {name: self._inputs[name].converted(value) for name, value in input_feed.items()}
        feeds.update((one.name, None) for one in self._required if one.name not in feeds)
        try:
            variant = self._variants.find(feeds)
            self._settle(variant)
            with self._event("model_run"):
                return variant.run(feeds, names)
        except PlanishError as error:
            raise as_session_error(error) from error

    def _checked_outputs(self, names: Sequence[str] | None) -> Sequence[str]:
        if not names:
            return self._output_names
        if isinstance(names, str):
            raise TypeError(f"output_names is a list of names, not the text {names!r}")
        for name in names:
            if name not in self._output_names:
                raise InvalidArgument(f"Invalid output name:{name}")
        return names

    def _settle(self, variant: Variant | None) -> None:
        """Where one program serves all calls, later ones go straight to it."""
        if self._fast is None and variant is not None and self._variants.is_single and self._profile is None:
            direct = variant.direct()
            if direct is not None and len(direct[0]) == len(self._required):
                self._fast = _Fast(variant, *direct)

    def run_with_ort_values(self, output_names: Sequence[str] | None,
                            input_dict_ort_values: Mapping[str, OrtValue],
                            run_options: RunOptions | None = None) -> list[OrtValue]:
        """`run` that takes and gives OrtValues."""
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
                  callback: Callable[[Any, Any, str], None], user_data: Any,
                  run_options: RunOptions | None = None) -> None:
        """`run` in a thread of its own, which then calls `callback(results, user_data, error)`; `error` is
        empty where it went well."""
        def work() -> None:
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as error:  # whatever it is, the callback is to hear of it
                callback([], user_data, str(error))
            else:
                callback(results, user_data, "")
        threading.Thread(target=work, daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound; `iobinding.get_outputs()` then has the results."""
        iobinding.run(self, run_options)

    # --- what it is

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return [one.description for one in self._required]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default, and may be fed."""
        return [one.description for one in self._overridable]

    def get_outputs(self) -> list[NodeArg]:
        graph = self._variants.graph
        return [argument_of(value, self._inferred(value.name, graph)) for value in self._outputs]

    def _inferred(self, name: str, graph: Graph | None) -> list[Size]:
        """The sizes of an output, as far as capture tells: numbers, and names that are the model's."""
        if graph is None or name not in graph.output_names:
            return []
        named = {d for one in self._inputs.values() for d in one.description.shape if isinstance(d, str)}
        return [_size(dim, named) for dim in graph.outputs[graph.output_names.index(name)].shape]

    def get_modelmeta(self) -> ModelMetadata:
        return metadata_of(self._model.proto)

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(options) for name, options in self._providers.items()}

    def set_providers(self, providers: Sequence[Provider] | None = None,
                      provider_options: Sequence[dict[Any, Any]] | None = None) -> None:
        """There is one provider; a warning tells of others."""
        self._providers = chosen_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """There is no other provider to fall back to."""

    def disable_fallback(self) -> None:
        """There is no other provider to fall back to."""

    @property
    def compiles(self) -> int:
        """How often a program was made for this session."""
        return self._variants.compiles

    @property
    def recompiles(self) -> list[str]:
        """Why, for each time but the first: which value, from what, to what."""
        return list(self._variants.reasons)

    # --- profiling

    def end_profiling(self) -> str:
        """Write the profile, and give the file's name; empty without `enable_profiling`."""
        return "" if self._profile is None else self._profile.write()

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._profile is None else self._profile.start_ns

    def _event(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._profile is None else self._profile.event(name)


class _Fast:
    """The way of a call that is as the one program takes it: plain arrays of the right types by name."""

    def __init__(self, variant: Variant, inputs: list[str], outputs: dict[str, int]):
        self.call = variant.compiled
        self.inputs, self.outputs = inputs, outputs
        self.every = list(outputs.values())

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Raises KeyError, SignatureError or ShapeError for any other call."""
        if len(feeds) != len(self.inputs) or names.__class__ is str:
            raise KeyError
        results = self.call(*[feeds[name] for name in self.inputs])
        return [results[i] for i in (map(self.outputs.__getitem__, names) if names else self.every)]


def _given_initialisers(options: SessionOptions, model: Model) -> dict[str, Any]:
    """The initialisers that the caller gives, as read-only arrays."""
    names = {tensor.name: tensor for tensor in model.graph.initializer}
    given = {name: unwrapped(value).view() for name, value in options._initializers.items()}
    for name, array in given.items():
        if name not in names:
            raise InvalidArgument(f"add_initializer: the model has no initialiser {name!r}")
        if array.shape != tuple(names[name].dims):
            raise InvalidArgument(f"add_initializer: {name!r} has the shape {tuple(names[name].dims)}, "
                                  f"not {array.shape}")
        array.flags.writeable = False
    return given


def _size(dim: Dim, named: set[str]) -> Size:
    if is_static(dim):
        return int(dim)
    return str(dim) if str(dim) in named else None
