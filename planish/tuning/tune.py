"""max-autotune: measure what could be faster, keep what clearly is, remember it.

In: a `Road`, which is what the compiler lends: the optimised graphs, and ways to make programs of them. Out:
`Decisions`, and a finding for everything that was looked at. Three rounds:

1. every distinct kernel, alone: a handful of schedules beside the chosen one;
2. every distinct op that a library has a kernel for, alone: the library beside native code;
3. the whole program: with the decisions so far, with ops by libraries, by the library strategy; each takes
   the place of the program without any only if it is clearly faster. So a program is never slower for having
   been tuned.

Findings are entered in the database when they are made, so what is stopped half way is not lost. A program
whose finding is known is not measured at all, nor is a kernel or op that another program has met.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, sleep
from typing import Any, Protocol

import numpy as np

from planish import knobs
from planish.codegen.llvm.version import generator_version
from planish.ir import Graph, Node
from planish.logs import channel
from planish.schedule.choice import ANALYTIC, Choice
from planish.tuning import onednn_kernels
from planish.tuning.database import Database, default_database
from planish.tuning.decisions import UNTUNED, Decisions
from planish.tuning.library import alone, kernel_of, libraries_of, op_key, real_tensors, takes_turns, titled
from planish.tuning.machine import libraries, signature
from planish.tuning.pairs import Clock, Run
from planish.tuning.record import Finding, Kind
from planish.tuning.search import FAILURES, Contest, search
from planish.tuning.trial import Candidate, Setting, Subject, candidate, random_array, sized, subjects

SPIN = 12e-3  # seconds for which a thread of GNU's OpenMP spins after its part, and some more

Program = Callable[..., Any]  # takes the inputs, gives an array or a sequence of them


class Road(Protocol):
    """What the compiler lends. `key` names the program and all that it is compiled with."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def setting(self) -> Setting: ...

    @property
    def inputs(self) -> Sequence[Node]: ...

    def scheduled(self) -> Sequence[tuple[Graph, Setting]]:
        """The graphs that are scheduled, with what for."""

    def native(self, decisions: Decisions) -> Program:
        """The whole program, compiled with these decisions."""

    def native_alone(self, graph: Graph) -> Program:
        """One op's graph, compiled."""

    def library(self) -> Program:
        """The whole program by the library strategy."""


@dataclass
class Session:
    """What compiles are tuned with. `say(text, done, total)` hears of every step; `seconds` is how long one
    may measure, else the knob `tune_seconds`; `examples` are the program's inputs, random ones without;
    `findings` fills up meanwhile; `is_whole` says whether there was time for everything."""

    say: Callable[[str, int, int], None] = lambda text, done, total: None
    seconds: float | None = None
    examples: Sequence[np.ndarray] | None = None
    clock: Clock = perf_counter
    findings: list[Finding] = field(default_factory=list)
    is_whole: bool = True


_session: ContextVar[Session | None] = ContextVar("planish_tuning", default=None)


@contextmanager
def tuning(session: Session) -> Iterator[Session]:
    """Compiles in a `with` block are tuned with this session."""
    token = _session.set(session)
    try:
        yield session
    finally:
        _session.reset(token)


def tune(road: Road) -> tuple[Decisions, list[Finding]]:
    """What is decided for a program, and all findings about it."""
    session = _session.get() or Session()
    before = len(session.findings)
    with real_tensors():
        try:
            decisions = _Tuner(road, session, default_database()).decisions()
        finally:
            onednn_kernels.release()  # weights that losers laid out
    return decisions, session.findings[before:]


class _Tuner:
    def __init__(self, road: Road, session: Session, database: Database):
        self.road, self.session, self.database, self.clock = road, session, database, session.clock
        seconds = knobs.value("tune_seconds") if session.seconds is None else session.seconds
        self.until = self.clock() + seconds
        s = road.setting
        self.machine = signature(s.target, s.threads)
        self.common = (s.numerics, str(sorted(s.disable)), self.machine, generator_version())
        self.done, self.total = 0, 0
        self.parts: list[str] = []

    def decisions(self) -> Decisions:
        key = self.key("program", self.road.key, libraries())
        if (known := self.known_program(key)) is not None:
            return known
        graphs = self.road.scheduled()
        found = {s.key: s for graph, setting in graphs for s in subjects(graph, setting)}
        nodes = {op_key(n, setting.hint): (n, setting) for graph, setting in graphs for n in graph.nodes()
                 if libraries_of(n)}
        self.total = len(found) + len(nodes) + 3
        kernels = [(s.key, choice) for s in found.values() if (choice := self.kernel(s)) != ANALYTIC]
        ops = [(k, name) for k, (n, setting) in nodes.items() if (name := self.op(k, n, setting))]
        return self.program(key, tuple(kernels), tuple(ops))

    def key(self, *parts: str) -> str:
        return hashlib.sha256("\n".join((*parts, *self.common)).encode()).hexdigest()[:32]

    def say(self, text: str) -> None:
        self.session.say(text, self.done, self.total)
        self.done += 1

    # --- what is known

    def known_program(self, key: str) -> Decisions | None:
        """The decisions of a program that was tuned before, with its findings."""
        finding = self.database.find(key)
        if finding is None:
            return None
        try:
            decisions = Decisions.from_json(finding.value["decisions"])
            parts = [self.database.find(str(part)) for part in finding.value["parts"]]
        except (ValueError, KeyError, TypeError):
            return None
        self.session.findings += [p for p in parts if p is not None] + [finding]
        return decisions

    def enter(self, key: str, finding: Finding, *, is_whole: bool) -> None:
        """Tell of a finding; what was not stopped half way is kept."""
        self.session.findings.append(finding)
        self.session.is_whole = self.session.is_whole and is_whole
        if is_whole:
            self.database.put(key, finding, self.machine)
            self.parts.append(key)
        log = channel("tuning")
        log.info("%s %s: %s, %.2fx", finding.kind, finding.what, finding.winner, finding.speedup)
        for one in finding.tried:
            log.debug("%s: %s: %.3f, %s", finding.what, one.candidate, one.ratio, one.verdict)

    def remembered(self, key: str) -> Finding | None:
        finding = self.database.find(key)
        if finding is not None:
            self.session.findings.append(finding)
            self.parts.append(key)
        return finding

    # --- 1. kernels

    def kernel(self, subject: Subject) -> Choice:
        self.say(f"kernel {subject}")
        if subject.why_not:
            channel("tuning").debug("kernel %s is not measured: %s", subject, subject.why_not)
            return ANALYTIC
        key = self.key("kernel", subject.key, str(subject.setting.cold))
        if (known := self.remembered(key)) is not None:
            return _choice_of(known)
        if self.is_late():
            return ANALYTIC
        arrays = subject.arrays()
        contest = search(lambda choice: candidate(subject, choice, arrays), subject.moves, clock=self.clock,
                         until=self.until)
        choice = contest.name
        times = f" ({subject.launches} times)" if subject.launches > 1 else ""
        self.enter(key, _finding("kernel", f"{subject}{times}", contest, choice.to_json()),
                   is_whole=contest.is_whole)
        return choice

    def is_late(self) -> bool:
        late = self.clock() >= self.until
        self.session.is_whole = self.session.is_whole and not late
        return late

    def rest(self, names: Sequence[str]) -> Run | None:
        """What comes before a sample where threads of one of these libraries may still spin, on the CPUs that
        the next to run has threads on."""
        is_shared = self.road.setting.threads > 1 and any(map(takes_turns, names))
        return partial(sleep, SPIN) if is_shared else None

    # --- 2. ops by libraries

    def op(self, op: str, node: Node, setting: Setting) -> str:
        """The library whose kernel is clearly faster than ours; "" where none is."""
        what = _described(node, setting.hint)
        self.say(f"op {what}")
        key = self.key("op", op, str(setting.hint), libraries())
        if (known := self.remembered(key)) is not None:
            return str(known.value)
        if self.is_late():
            return ""
        rng = np.random.default_rng(0)
        arrays = [o.attributes.value if o.op.name == "constant" else random_array(rng, o.tensor, setting.hint)
                  for o in node.operands]
        fed = [a for o, a in zip(node.operands, arrays) if o.op.name != "constant"]
        native = self.road.native_alone(alone(node))
        names, incumbent = libraries_of(node), _candidate(native, fed)
        contest: Contest[str] = Contest("native", incumbent, self.clock, self.until, self.rest(names))
        ways = [(name, partial(_candidate, kernel_of(node, name, setting.threads), arrays)) for name in names]
        winner = contest.group(ways)
        onednn_kernels.release()
        value = "" if winner == "native" else winner
        contest.tried = [replace(t, candidate=titled(t.candidate)) for t in contest.tried]
        finding = replace(_finding("op", what, contest, value), winner=titled(winner))
        self.enter(key, finding, is_whole=contest.is_whole)
        return value

    # --- 3. the whole program

    def program(self, key: str, kernels: Kernels, ops: Ops) -> Decisions:
        """The decisions that stand when the whole program has run with them."""
        road = self.road
        arrays = self.session.examples
        if arrays is None:
            rng = np.random.default_rng(0)
            arrays = [random_array(rng, n.tensor, road.setting.hint) for n in road.inputs]
        try:
            native = _candidate(road.native(UNTUNED), arrays)
        except FAILURES as error:  # what it is fed decides whether it can run
            channel("tuning").info("program %s is not measured as a whole: %s", road.name, error)
            return Decisions(kernels)
        rest = self.rest([name for _, name in ops])
        contest: Contest[str] = Contest("as compiled", native, self.clock, self.until, rest)
        stands = UNTUNED
        for name, wanted, veto in self.ways(kernels, ops):
            self.say(f"program: {name}")
            made = Decisions(kernels if stands.kernels or wanted.kernels else (), wanted.ops, wanted.whole)
            make = partial(self.run_whole, made, arrays)
            if contest.group([(name, make)], veto=veto) == name:
                stands = made
        parts = {"decisions": stands.to_json(), "parts": list(self.parts)}
        finding = _finding("program", road.name, contest, parts)
        self.enter(key, finding, is_whole=contest.is_whole and self.session.is_whole)
        return stands

    def ways(self, kernels: Kernels, ops: Ops) -> Iterator[tuple[str, Decisions, bool]]:
        """What is held against the program as it is compiled, in order; whether it need not win."""
        if kernels:
            yield "tuned kernels", Decisions(kernels=kernels), True
        if ops:
            yield "ops by libraries", Decisions(ops=ops), False
        yield "library strategy", Decisions(whole=True), False

    def run_whole(self, decisions: Decisions, arrays: Sequence[np.ndarray]) -> Candidate:
        program = self.road.library() if decisions.whole else self.road.native(decisions)
        return _candidate(program, arrays)


Kernels = tuple[tuple[str, Choice], ...]
Ops = tuple[tuple[str, str], ...]


def _candidate(program: Program, arrays: Sequence[np.ndarray]) -> Candidate:
    outputs = program(*arrays)
    made = outputs if isinstance(outputs, tuple) else (outputs,)
    return Candidate(lambda: program(*arrays), made)


def _choice_of(finding: Finding) -> Choice:
    try:
        return Choice.from_json(finding.value)
    except ValueError:
        return ANALYTIC


def _finding(kind: Kind, what: str, contest: Contest[Any], value: Any) -> Finding:
    return Finding(kind, what, str(contest.name), value, contest.speedup, contest.us, tuple(contest.tried))


def _described(node: Node, hint: dict[str, int]) -> str:
    """`dot_general f32[128, 768] f32[768, 3072]`, at the hinted sizes."""
    return " ".join((node.op.name, *(sized(o.tensor, hint) for o in node.operands)))
