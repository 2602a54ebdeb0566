"""Whole programs in the cache: a graph that was compiled before skips the passes, the schedule and the
generator.

In: a graph and what it is compiled with. Out: a `Stored` program, or None. The key is the graph's form
(`ir/encoding.py`), in which constants are only numbered; beside the program an entry holds what the compile
learnt of their values (guards, asked again of the constants at hand) and how the program's own constants
follow from them (derivations, run again). So one entry serves all weights of a model, and weights are never
hashed. An entry has a few variants, one for each set of answers. docs/architecture.md has the reasons.
"""
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planish import knobs
from planish.codegen.llvm.host import Target
from planish.codegen.llvm.version import program_version
from planish.ir.encoding import EncodingError, GraphEncoder, decode, decode_array, encode, encode_array
from planish.ir.graph import Graph
from planish.logs import channel
from planish.ops.content import DERIVATIONS, QUESTIONS, Content, Looks, ask
from planish.passes.protocol import PassRecord
from planish.runtime.cache import default_cache
from planish.runtime.spec import ProgramSpec
from planish.schedule.measure import KernelRecord
from planish.types import TensorType, dtype_of

VARIANTS = 8                # kept per graph, the latest first
LITERAL_BYTES = 4 << 20     # of constants that passes made, beyond which a program is not stored


class Unfit(Exception):
    """An entry of the cache does not hold what it should."""


@dataclass(frozen=True)
class Summary:
    """What a report says of a program that is not rebuilt for it."""

    passes: tuple[PassRecord, ...]
    kernels: tuple[KernelRecord, ...]
    decisions: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    memory_naive: int
    memory_planned: int
    memory_bound: int


@dataclass(frozen=True)
class Stored:
    """A program as the cache has it: `code` is the key of its machine code, `outputs` as `Built` has them."""

    spec: ProgramSpec
    outputs: tuple[tuple[str, int], ...]
    contents: tuple[Content, ...]
    code: str
    summary: Summary


TELLING = ("passes", "fusion", "rewrite")  # the channels of what a compile does


class ProgramEntry:
    """The place of one graph in the cache. `kind` tells what becomes of the graph, `options` all that may
    change it, as plain values; `looks` is to watch the compile of what `find` has not found.

    EncodingError for a graph that has no form.
    """

    def __init__(self, graph: Graph, kind: str, options: Sequence[Any], target: Target,
                 hint: Mapping[str, int]):
        encoder = GraphEncoder()
        form = [encoder.graph(graph), encode(target), sorted(hint.items()), encode(tuple(options))]
        digest = hashlib.sha256(json.dumps(form).encode()).hexdigest()
        self.key = f"{kind} {digest} {program_version()}"
        self.name = f"program {digest[:12]}"
        self.given = tuple(encoder.given)
        self.looks = Looks(encoder.given)
        self.cache = default_cache()

    def find(self) -> Stored | None:
        """The first variant all of whose guards hold. What can't be read is dropped."""
        log = channel("cache")
        try:
            for variant in self._variants():
                reader = _Reader(variant, self.given)
                if reader.guards_hold():
                    log.info("hit %s", self.name)
                    return reader.stored()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, Unfit, EncodingError) as error:
            log.info("corrupt %s: %r", self.name, error)
            self.cache.drop(self.key)
        log.info("miss %s", self.name)
        return None

    def put(self, stored: Stored) -> None:
        """Enter a program that was compiled under the watch of `looks`."""
        try:
            made = _Writer(self.looks).variant(stored)
        except (EncodingError, Unfit) as error:
            channel("cache").info("%s is not stored: %s", self.name, error)
            return
        kept = [v for v in self._known_variants() if v["guards"] != made["guards"]]
        self.cache.put(self.key, json.dumps([made, *kept][:VARIANTS], separators=(",", ":")).encode())

    def _variants(self) -> list[dict[str, Any]]:
        data = self.cache.get(self.key)
        found = [] if data is None else json.loads(data)
        if not isinstance(found, list) or not all(isinstance(v, dict) for v in found):
            raise Unfit("not a list of variants")
        return found

    def _known_variants(self) -> list[dict[str, Any]]:
        try:
            return [v for v in self._variants() if "guards" in v]
        except (ValueError, Unfit):
            return []


def entry_of(graph: Graph, kind: str, options: Sequence[Any], target: Target,
             hint: Mapping[str, int]) -> ProgramEntry | None:
    """The place of a graph in the cache; None where every compile is to be seen (PLANISH_TRACE, the logs of
    what a compile does), and for graphs that have no form."""
    if knobs.trace or any(channel(name).isEnabledFor(logging.INFO) for name in TELLING):
        return None
    try:
        return ProgramEntry(graph, kind, options, target, hint)
    except EncodingError as error:
        channel("cache").info("%s has no place in the cache: %s", graph.name, error)
        return None


# --- writing

class _Writer:
    """Contents as lines of a table: ["given", n], ["array", bits] or [derivation, parameters, sources, dtype,
    shape]."""

    def __init__(self, looks: Looks):
        self.looks = looks
        self.lines: list[list[Any]] = []
        self.places: dict[Content, int] = {}
        self.bytes = 0

    def variant(self, stored: Stored) -> dict[str, Any]:
        guards = [[name, list(map(self.place, contents)), encode(self.answer(name, contents, answer))]
                  for (name, contents), answer in self.looks.answers.items()]
        constants = list(map(self.place, stored.contents))
        return {"guards": guards, "constants": constants, "contents": self.lines, "code": stored.code,
                "spec": stored.spec.to_json(), "outputs": [list(o) for o in stored.outputs],
                "summary": _summary_form(stored.summary)}

    def answer(self, name: str, contents: tuple[Content, ...], answer: Any) -> Any:
        return contents[0].digest if name == "digest" else answer

    def place(self, content: Content) -> int:
        stack = [content]
        while stack:
            one = stack[-1]
            sources = () if one in self.looks.given or one.derivation is None else one.derivation.sources
            waiting = [s for s in sources if s not in self.places]
            if waiting and one not in self.places:
                stack += waiting
            elif stack.pop() not in self.places:
                self.places[one] = len(self.lines)
                self.lines.append(self.line(one))
        return self.places[content]

    def line(self, content: Content) -> list[Any]:
        if content in self.looks.given:
            return ["given", self.looks.given[content]]
        made = content.derivation
        if made is None:
            self.bytes += content.nbytes
            if self.bytes > LITERAL_BYTES:
                raise Unfit("passes made large constants anew")
            return ["array", encode_array(content.value)]
        decode(parameters := encode(made.parameters))
        return [made.function, parameters, [self.places[s] for s in made.sources], content.type.dtype.name,
                list(content.type.shape)]


def _summary_form(summary: Summary) -> dict[str, Any]:
    return {"passes": [[p.name, p.before, p.after, p.fired, p.reason] for p in summary.passes],
            "kernels": [[k.name, k.kind, list(k.ops), k.bytes, k.flops, list(k.schedule)]
                        for k in summary.kernels],
            "decisions": list(summary.decisions), **{name: getattr(summary, name) for name in _FIGURES}}


_FIGURES = ("bytes_before", "bytes_after", "memory_naive", "memory_planned", "memory_bound")


# --- reading

class _Reader:
    """One variant over the constants at hand. Contents are made when something asks for them."""

    def __init__(self, variant: dict[str, Any], given: Sequence[Content]):
        self.variant, self.given = variant, given
        self.contents: list[Content] = []
        for line in variant["contents"]:
            self.contents.append(self.content(line))

    def content(self, line: list[Any]) -> Content:
        kind = line[0]
        if kind == "given":
            return self.given[line[1]]
        if kind == "array":
            return Content.of(decode_array(line[1]), is_known=True)
        if kind not in DERIVATIONS:
            raise Unfit(f"there is no derivation {kind}")
        _, parameters, sources, dtype, shape = line
        made = TensorType(dtype_of(dtype), tuple(shape))
        return Content.derived(kind, decode(parameters), [self.contents[s] for s in sources], made)

    def guards_hold(self) -> bool:
        for name, subjects, answer in self.variant["guards"]:
            if name not in QUESTIONS:
                raise Unfit(f"there is no question {name}")
            if encode(ask(name, *(self.contents[s] for s in subjects))) != answer:
                return False
        return True

    def stored(self) -> Stored:
        v = self.variant
        outputs = tuple((str(kind), int(k)) for kind, k in v["outputs"])
        constants = tuple(self.contents[k] for k in v["constants"])
        return Stored(ProgramSpec.from_json(v["spec"]), outputs, constants, v["code"], _summary(v["summary"]))


def _summary(form: dict[str, Any]) -> Summary:
    passes = tuple(PassRecord(name, 0.0, before, after, fired, reason)
                   for name, before, after, fired, reason in form["passes"])
    kernels = tuple(KernelRecord(name, kind, tuple(ops), bytes_, flops, tuple(schedule))
                    for name, kind, ops, bytes_, flops, schedule in form["kernels"])
    return Summary(passes, kernels, tuple(form["decisions"]), *(int(form[name]) for name in _FIGURES))


