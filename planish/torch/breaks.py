"""Graph breaks: Dynamo's message about one, read into a record with the cause by name, the user's line, and
what to write instead.

In: the text of torch's log artifact `graph_breaks`. Out: a `Break`. The table of causes looks for words of
that text, those of torch 2.5 and of later versions; what none of them fits is named as Dynamo names it.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Break:
    """One place at which a captured program is cut.

    cause      by name: ".item()", "data-dependent if", "unsupported library call", "print"...
    what       the call or operator, where the cause alone does not say it: "zlib.crc32"
    file, line the user's; `function` and `source` are what stands there
    advice     what to write instead
    skipped    the whole function runs in Python: torch can't resume at this place
    reason     Dynamo's own explanation
    """

    cause: str
    what: str
    file: str
    line: int
    function: str
    source: str
    advice: str
    skipped: bool
    reason: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        named = f"{self.cause} ({self.what})" if self.what else self.cause
        lines = [f"{self.place} in {self.function}: {named}", f"    {self.source}"]
        if self.skipped:
            lines.append(f"  all of {self.function} runs in Python: torch can't resume at this place")
        return "\n".join([*lines, f"  instead: {self.advice}"])


@dataclass(frozen=True)
class Cause:
    """`pattern` finds it in Dynamo's text."""

    name: str
    pattern: re.Pattern[str]
    advice: str


def _cause(name: str, pattern: str, advice: str) -> Cause:
    return Cause(name, re.compile(pattern, re.IGNORECASE), advice)


CAUSES = (
    _cause(
        "recompile limit",
        r"recompile limit exceeded|cache_size_limit",
        "see its recompiles (PLANISH_LOGS=recompiles); pass what changes as a tensor, or mark_dynamic",
    ),
    _cause(
        "data-dependent if",
        r"data-dependent (branching|jump|control flow)|generic_jump",
        "torch.where for a choice per element, torch.cond for two branches, or decide outside",
    ),
    _cause(
        "data-dependent assert",
        r"data-dependent assertion|assert_async|assertion failed on symbolic",
        "torch._check(condition) or torch._assert_async(tensor, message)",
    ),
    _cause(
        ".tolist()",
        r"\.?tolist\b",
        "keep the values in a tensor, or call .tolist() on the result outside the compiled part",
    ),
    _cause(
        ".item()",
        r"\.item\b|Tensor\.item|_local_scalar_dense",
        "keep the number as a 0-d tensor (x.sum(), not x.sum().item()), or return it and read it outside",
    ),
    _cause(
        "size that depends on values",
        r"dynamic shape operator|output shape depends|dynamic slicing with tensor",
        "torch.where or a mask of fixed size; or set "
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    ),
    _cause(
        "print",
        r"builtin:? `?print\b|call_function BuiltinVariable\(print\)",
        "remove it, print outside the compiled part, or add print to "
        "torch._dynamo.config.reorderable_logging_functions",
    ),
    _cause(
        "logging",
        r"logging\.Logger method|LoggingLoggerVariable|trace the builtin `_?warnings\.warn",
        "log outside the compiled part, or add the function to torch._dynamo.config.ignore_logging_functions",
    ),
    _cause(
        "torch.compiler.disable",
        r"torch\.compiler\.disable|torch\._dynamo\.disable|marked .*disable",
        "remove the decorator where the function can be compiled",
    ),
    _cause("graph_break()", r"graph_break\(\)|user-inserted graph break", "remove the call"),
    _cause(
        "backward()",
        r"Tensor\.backward|autograd\.grad\b.*trace_autograd_ops|\.backward\(\) call",
        "compile the forward pass and the loss; call backward() outside (its graph is compiled too)",
    ),
    _cause(
        "requires_grad inside",
        r"requires_grad=True|requires_grad_\(",
        "make tensors that need gradients outside the compiled part",
    ),
    _cause("deepcopy of a tensor", r"copy\.deepcopy", "x.clone()"),
    _cause(
        "assignment to .data",
        r"\.data\b.*tensor|tensor data attribute",
        "an in-place operation under torch.no_grad(), such as x.copy_(y)",
    ),
    _cause(
        "sparse or nested tensor",
        r"sparse tensor|nestedtensor",
        "dense tensors inside the compiled part",
    ),
    _cause(
        "context manager",
        r"context manager",
        "enter the context outside the compiled part",
    ),
    _cause(
        "exception",
        r"observed exception|failed to raise exception",
        "call the function in eager: it raises",
    ),
    _cause(
        "unsupported library call",
        r"builtin|function marked as skipped|skip function|call_function args|is not modelled|"
        r"unsupported (function|method|ndarray method) call|data dependent operator|fake tensor|foreign",
        "call it outside the compiled part, use torch's own function for it, or wrap it with "
        "torch.library.custom_op",
    ),
)

# What a message calls the function it could not trace, the most exact first.
CALLS = tuple(
    re.compile(pattern)
    for pattern in (
        r"module: (?!None)(?P<module>[\w.]+), qualname: (?P<name>[\w.]+)",
        r"trace the builtin `(?P<name>[\w.]+?)\.?`",
        r"builtin operator `(?P<name>\w+)`",
        r"`(?P<name>[\w.]+)\(\)` is not modelled",
        r"method `(?P<name>\w+)` of class `(?P<module>\w+)`",
        r"Operator `(?P<name>[\w.]+)`",
    )
)


def break_of(text: str) -> Break:
    """The record of one message of Dynamo's."""
    stack = user_frames(text)
    file, line, function = stack[-1] if stack else _stated_place(text)
    reason = reason_of(text)
    cause, what, advice = cause_of(reason)
    source = linecache.getline(file, line).strip()
    if cause == "data-dependent if" and source.startswith("while"):
        cause = "data-dependent while"
        advice = "torch.while_loop, or the loop outside the compiled part"
    return Break(cause, what, file, line, function, source, advice, _is_skip(text), reason)


def cause_of(reason: str) -> tuple[str, str, str]:
    """Name, call and advice. A cause that no line of the table fits has Dynamo's name."""
    told = re.sub(r"^ *Hint: .*(\n {6,}.*)*", "", reason, flags=re.MULTILINE)
    for cause in CAUSES:
        if cause.pattern.search(told):
            return cause.name, _call(told) if cause.name == "unsupported library call" else "", cause.advice
    first = reason.splitlines()[0] if reason else "unknown"
    return first, "", "call it outside the compiled part"


def _call(told: str) -> str:
    for pattern in CALLS:
        if found := pattern.search(told):
            return ".".join(v for _, v in sorted(found.groupdict().items()))
    return ""


def reason_of(text: str) -> str:
    """The part of a message that says why: without the stack, without the sentence about bytecode."""
    text = re.split(r"\n(?:User code traceback|Stack variable source attribution):", text, maxsplit=1)[0]
    text = re.split(r"(?:Graph Break )?Reason: ", text, maxsplit=1)[-1]
    text = re.sub(r"^(?:Encountered graph break when|Failed to handle graph break)[^\n]*\n\s*", "", text)
    return re.sub(r"\n\s*For more details about this graph break[^\n]*", "", text).strip()


def _is_skip(text: str) -> bool:
    return "Skipping the function" in text or "graph break in loop" in text or "results in a skip" in text


_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)


def user_frames(text: str) -> list[tuple[str, int, str]]:
    """(file, line, function) of the stack in a message, outermost first, without frames below the user's
    code: those of torch and of Python's library."""
    stack = text.split("User code traceback:", 1)[-1]
    frames = [(file, int(line), name) for file, line, name in _FRAME.findall(stack)]
    while frames and is_foreign(frames[-1][0]):
        frames.pop()
    return [(file, line, _plain(name)) for file, line, name in frames]


def _plain(name: str) -> str:
    """A function that resumes after a break has the name of the one it resumes."""
    return re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", name)


def _stated_place(text: str) -> tuple[str, int, str]:
    """(file, line, function) of a message without a stack."""
    found = re.search(r"in user code at (.+?):(\d+)", text)
    if not found:
        return "?", 0, "?"
    return found[1], int(found[2]), _function_at(found[1], int(found[2]))


def _function_at(file: str, line: int) -> str:
    """The innermost function that a line of a file is in."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return "?"
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not around:
        return "<module>"
    return getattr(max(around, key=lambda node: node.lineno), "name", "<lambda>")


def is_foreign(file: str) -> bool:
    """Whether a file is torch's or Python's own."""
    import torch

    library = sysconfig.get_paths()["stdlib"] + os.sep
    if file.startswith((str(Path(torch.__file__).parent) + os.sep, "<")):
        return True
    return file.startswith(library) and "-packages" not in file
