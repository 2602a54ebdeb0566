"""Graph breaks, recompiles and limits: told by name, with the user's line, once; and `planish.explain`."""

from __future__ import annotations

import inspect
import logging
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planish
from planish import knobs
from planish.errors import GraphBreakError, GraphBreakWarning, PlanishError, RecompileWarning

torch = pytest.importorskip("torch", reason="torch is not installed")
from planish.inspect.explain import Explanation, as_json  # noqa: E402
from planish.torch.breaks import break_of  # noqa: E402
from planish.torch.recompiles import recompile_of  # noqa: E402
from planish.torch.watch import BREAK_COSTS, _told, watching  # noqa: E402

nn = torch.nn
HERE = Path(__file__).name


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of this file on which a function says `text`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


# --- breaks


def branch(x: Any) -> Any:
    y = torch.relu(x) + 1
    if x.sum() > 0:
        return y * 2
    return y - 1


def loop(x: Any) -> Any:
    while x.sum() < 100:
        x = x * 2
    return x


def reads_a_number(x: Any) -> Any:
    return x * x.sum().item()


def reads_a_float(x: Any) -> Any:
    return x * float(x.sum())


def prints(x: Any) -> Any:
    y = x + 1
    print("between")
    return y * 2


def calls_a_library(x: Any) -> Any:
    y = x * 2
    checksum = zlib.crc32(b"planish")
    return y + checksum


def lists(x: Any) -> Any:
    return x + len((x * 2).tolist())


def logs(x: Any) -> Any:
    y = x * 2
    logging.getLogger("user").debug("between")
    return y + 1


def masks(x: Any) -> Any:
    return x[x > 0].sum()


def breaks_on_purpose(x: Any) -> Any:
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


@torch._dynamo.disable
def in_python(x: Any) -> Any:
    return x * 3


def calls_what_is_disabled(x: Any) -> Any:
    return in_python(x + 1) * 2


def goes_back(x: Any) -> Any:
    w = x.clone().detach().requires_grad_()
    (w * x).sum().backward()
    return w.grad


def prints_in_a_loop(x: Any) -> Any:
    for _ in range(2):
        x = x + 1
        print("again")
    return x


def inner(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


def breaks_inside(x: Any) -> Any:
    return inner(x * 2) * 3


BREAKS = [
    (branch, "data-dependent if", "if x.sum() > 0"),
    (loop, "data-dependent while", "while x.sum()"),
    (reads_a_number, ".item()", ".item()"),
    (reads_a_float, ".item()", "float(x.sum())"),
    (prints, "print", "print("),
    (calls_a_library, "unsupported library call", "zlib.crc32"),
    (lists, ".tolist()", ".tolist()"),
    (logs, "logging", "logging.getLogger"),
    (masks, "size that depends on values", "x[x > 0]"),
    (breaks_on_purpose, "graph_break()", "graph_break()"),
    (calls_what_is_disabled, "torch.compiler.disable", "in_python(x + 1)"),
    (prints_in_a_loop, "print", "print("),
]


def heard(function: Callable[..., Any], *args: Any) -> Any:
    """What is heard while a function is compiled and called once, which gives what eager gives."""
    with watching() as watch:
        torch.testing.assert_close(planish.compile(function)(*args), function(*args))
    return watch


@pytest.mark.parametrize(("function", "cause", "text"), BREAKS, ids=[f.__name__ for f, *_ in BREAKS])
def test_a_break_has_its_cause_and_line(function: Callable[..., Any], cause: str, text: str) -> None:
    (found,) = [b for b in heard(function, torch.rand(3, 3)).breaks if b.cause == cause]
    assert (Path(found.file).name, found.line) == (HERE, line_of(function, text))
    assert found.function == function.__name__ and text in found.source and found.advice
    assert found.skipped == (function is prints_in_a_loop)


def test_the_library_call_is_named() -> None:
    (found,) = heard(calls_a_library, torch.rand(3)).breaks
    assert found.what == "zlib.crc32" and "(zlib.crc32)" in str(found)


def test_a_break_in_a_called_function_is_one_break() -> None:
    (found,) = heard(breaks_inside, torch.rand(3)).breaks
    assert found.function == "inner" and found.line == line_of(inner, "if x.sum()")


def test_backward_inside() -> None:
    assert "backward()" in [b.cause for b in heard(goes_back, torch.rand(3)).breaks]


def test_what_torch_2_5_says() -> None:
    told = (
        "Graph break in user code at /home/u/model.py:12\nReason: Unsupported: Tensor.item\n"
        'User code traceback:\n  File "/home/u/model.py", line 12, in forward\n    n = x.item()\n'
    )
    found = break_of(told)
    assert (found.cause, found.place, found.function) == (".item()", "/home/u/model.py:12", "forward")
    jump = told.replace("Tensor.item", "generic_jump TensorVariable()")
    assert break_of(jump).cause == "data-dependent if"
    printed = told.replace("Tensor.item", "builtin: print [<class 'ConstantVariable'>] False")
    assert break_of(printed).cause == "print"


def test_logs_tell_each_break_once(capsys: Any) -> None:
    def twice(x: Any) -> Any:
        return x - 1 if x.mean() > 0 else x + 1

    with knobs.override(logs="graph_breaks"):
        for _ in range(2):
            torch.compiler.reset()
            compiled = planish.compile(twice)
            compiled(torch.ones(3)), compiled(-torch.ones(3))
    told = capsys.readouterr().err
    assert told.count("planish.graph_breaks:") == 1
    assert f"{HERE}:{line_of(twice, 'x.mean()')} in twice: data-dependent if" in told


def test_a_function_that_breaks_is_warned_of_once() -> None:
    def broken(x: Any) -> Any:
        x = x * 2 if x.sum() > 0 else x
        return x + x.mean().item()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = planish.compile(broken)
        compiled(torch.ones(3)), compiled(-torch.ones(3)), compiled(torch.ones(4))
    (warning,) = [w for w in told if w.category is GraphBreakWarning]
    assert (Path(warning.filename).name, warning.lineno) == (HERE, line_of(broken, "x.sum() > 0"))
    text = str(warning.message)
    assert "broken" in text and "data-dependent if" in text and BREAK_COSTS in text and "\n" not in text


def test_a_break_in_a_lambda_has_its_name() -> None:
    broken = lambda x: x + x.mean().item()  # noqa: E731
    with watching() as watch:
        planish.compile(broken)(torch.ones(3))
    (found,) = watch.breaks
    assert (found.function, found.line) == ("<lambda>", line_of(broken, ".item()"))


def test_a_break_too_many_is_an_error() -> None:
    def first(x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x

    def second(x: Any) -> Any:
        return x - 1 if x.sum() > 0 else x

    with knobs.override(max_graph_breaks=len(_told) + 1):
        planish.compile(first)(torch.ones(3))
        with pytest.raises(GraphBreakError, match=r"MAX_GRAPH_BREAKS.*in second: data-dependent if"):
            planish.compile(second)(torch.ones(3))
        with pytest.raises(Exception, match="GraphBreakError"):
            torch.compile(second, backend="planish")(torch.ones(3))


def test_other_backends_are_not_ours() -> None:
    with watching() as watch:
        torch.compile(branch, backend="eager")(torch.rand(3))
    assert not watch.breaks and not watch.compiles


# --- recompiles

SCALE = 2


def scaled(x: Any) -> Any:
    return x * SCALE


class Counting(nn.Module):
    """A module with plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.rate = 0, 0.5

    def forward(self, x: Any) -> Any:
        return x * self.steps + self.rate


ONE = torch.rand(3)


def r(*shape: int) -> Any:
    return torch.rand(*shape)


RECOMPILES: dict[str, tuple[Callable[..., Any], list[Any], tuple[str, str, str, str]]] = {
    "size": (lambda x: x * 2, [(r(3),), (r(4),)], ("size of axis 0", "x", "3", "4")),
    "dtype": (lambda x: x * 2, [(r(3),), (r(3).double(),)], ("dtype", "x", "float32", "float64")),
    "rank": (lambda x: x * 2, [(r(3),), (r(3, 3),)], ("rank", "x", "1", "2")),
    "stride": (lambda x: x * 2, [(r(3, 4),), (r(4, 3).t(),)], ("stride of axis 0", "x", "4", "1")),
    "gradient": (
        lambda x: x * 2,
        [(r(3),), (r(3).requires_grad_(),)],
        ("requires_grad", "x", "False", "True"),
    ),
    "int": (lambda x, n: x * n, [(r(3), 2), (r(3), 5)], ("int", "n", "2", "5")),
    "float": (lambda x, n=2.5: x * n, [(r(3),), (r(3), 5.5)], ("float", "n", "2.5", "5.5")),
    "str": (lambda x, n: x * len(n), [(r(3), "ab"), (r(3), "c")], ("str", "n", "'ab'", "'c'")),
    "bool": (
        lambda x, n: x * 2 if n else x * 3,
        [(r(3), True), (r(3), False)],
        ("bool", "n", "True", "False"),
    ),
    "length": (lambda x, n: x * len(n), [(r(3), [1]), (r(3), [1, 2])], ("length", "len(n)", "1", "2")),
    "key": (lambda x, n: x * n["a"], [(r(3), {"a": 2}), (r(3), {"a": 3})], ("int", "n['a']", "2", "3")),
    "twins": (
        lambda x, y: x.add_(1) * y,
        [(r(3), r(3)), lambda: (ONE, ONE)],
        ("aliasing", "x, y", "different tensors", "one tensor"),
    ),
}


@pytest.mark.parametrize("name", RECOMPILES)
def test_a_recompile_names_argument_old_and_new(name: str) -> None:
    """A float that is given is open from the first call on: here it is a default value."""
    function, calls, expected = RECOMPILES[name]
    compiled = torch.compile(function, backend="planish")
    with watching() as watch:
        for args in calls:
            compiled(*(args() if callable(args) else args))
    (found,) = watch.recompiles
    assert (found.kind, found.argument, found.old, found.new) == expected
    assert HERE in found.place and watch.compiles == 2


def test_recompiles_for_what_is_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Counting(), torch.rand(3)
    compiled, of_global = planish.compile(module), planish.compile(scaled)
    with watching() as watch:
        of_global(x)
        monkeypatch.setitem(globals(), "SCALE", 3)
        assert torch.equal(of_global(x), x * 3)
        compiled(x)
        module.rate = 0.75
        assert torch.equal(compiled(x), module(x))
        module.steps = 1
        assert torch.equal(compiled(x), module(x))
        with torch.no_grad():
            compiled(x)
    told = [str(found).partition(": ")[2] for found in watch.recompiles]
    assert told[0].startswith("global SCALE (int): 2 -> 3, used at")
    assert told[1].startswith("self.rate (float): 0.5 -> 0.75")
    assert told[2].startswith("self.steps (int): 0 -> 1")
    assert told[3] == "grad mode: True -> False"
    assert [f.function for f in watch.recompiles] == ["scaled", *["Counting.forward"] * 3]


def test_relations_between_sizes_are_told_as_they_are() -> None:
    compiled = planish.compile(lambda x: x.reshape(-1, 2).sum(0) if x.shape[0] % 2 == 0 else x)
    with watching() as watch:
        for n in (4, 6, 7):
            compiled(torch.rand(n))
    first, second = watch.recompiles
    assert (first.old, first.new) == ("4", "6")
    assert (second.kind, second.argument, second.new) == ("size", "x", "x.size()[0] = 7")
    assert "% 2 == 0" in second.old


def test_what_does_not_recompile() -> None:
    """Numbers and sizes generalise at the second miss; an argument that is not used is not looked at."""
    for function, calls, most in (
        (lambda x: x * 2, [(torch.rand(n),) for n in range(2, 22)], 2),
        (lambda x, n: x * n, [(torch.rand(3), n) for n in range(2, 10)], 2),
        (lambda x, n: x * n, [(torch.rand(3), 0.1 * n) for n in range(1, 9)], 2),
        (lambda x, y: x * 2, [(torch.rand(3), torch.rand(n)) for n in range(2, 8)], 1),
    ):
        compiled = planish.compile(function)
        with watching() as watch:
            for args in calls:
                torch.testing.assert_close(compiled(*args), function(*args))
        assert watch.compiles <= most


def test_logs_tell_recompiles(capsys: Any) -> None:
    compiled = planish.compile(lambda x: x + 3)
    with knobs.override(logs="recompiles"):
        compiled(torch.rand(3)), compiled(torch.rand(5)), compiled(torch.rand(7))
    told = capsys.readouterr().err
    assert told.count("planish.recompiles:") == 1 and "x (size of axis 0): 3 -> 5" in told


def test_a_limit_is_told_once_with_the_reason() -> None:
    def pick(x: Any, key: str) -> Any:
        return x * len(key)

    compiled = planish.compile(pick)
    with warnings.catch_warnings(record=True) as told, torch._dynamo.config.patch(recompile_limit=3):
        warnings.simplefilter("always")
        for key in ("a", "bb", "ccc", "dddd", "eeeee", "ffffff"):
            x = torch.rand(2)
            assert torch.equal(compiled(x, key), pick(x, key))
    (warning,) = [w for w in told if w.category is RecompileWarning]
    text = str(warning.message)
    assert "pick" in text and "3 compiled variants" in text and "key (str): 'ccc' -> 'dddd'" in text
    assert Path(warning.filename).name == HERE


def test_guards_that_are_not_known_stand_as_they_are() -> None:
    found = recompile_of("f", "a.py:1", "0/0: ___something_new(x) # b.py:2 in f", {})
    assert (found.kind, found.guard, found.source) == ("guard", "___something_new(x)", "b.py:2")
    kind = recompile_of("f", "a.py:1", "0/0: ___check_type_id(n, 123), type=<class 'int'>", {"n": 1.5})
    assert (kind.kind, kind.argument, kind.old, kind.new) == ("type", "n", "int", "float")


# --- explain


def test_explain_a_branch() -> None:
    what = planish.explain(branch)(torch.ones(4, 4))
    assert what.graph_break_count == 1 and what.graph_count == 2 == len(what.graphs)
    (found,) = what.breaks
    assert found.line == line_of(branch, "if x.sum() > 0") and found.cause == "data-dependent if"
    # relu, +, sum, >, * are compiled; reading the condition is not
    assert (what.operators.inside, what.operators.total) == (5, 6)
    assert 0 < what.milliseconds.inside <= what.milliseconds.total and what.guards > 0
    text = str(what)
    assert "branch: 2 graphs, 1 graph break" in text and "5 of 6 operators (83 %)" in text
    assert f"{HERE}:{found.line} in branch: data-dependent if" in text and "torch.where" in text


def test_explain_a_whole_graph_with_a_host_op() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    what = planish.explain(lambda x: torch.linalg.matrix_exp(model(x)))(torch.rand(4, 4))
    assert what.graph_break_count == 0 and what.operators.percent == 100
    (graph,) = what.graphs
    assert graph.kind == "forward" and graph.calls >= 4 and graph.kernels >= 1
    host = what.host_ops[0]
    assert "matrix_exp" in host.operator and HERE in host.place
    assert "run by torch inside the graphs" in str(what)


def test_explain_a_training_step() -> None:
    model, x = nn.Linear(4, 4), torch.rand(3, 4)

    def step(x: Any) -> Any:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    what = planish.explain(step)(x)
    assert [g.kind for g in what.graphs] == ["forward", "backward"]
    assert [b.cause for b in what.breaks] == ["backward()"]


def test_explain_tells_of_what_is_compiled_at_every_call() -> None:
    class Steps(nn.Module):
        """Counts its calls."""

        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: Any) -> Any:
            self.steps += 1
            return x * self.steps

    what = planish.explain(Steps())(torch.rand(3))
    assert {r.argument for r in what.recompiles} == {"self.steps"} and what.operators is None
    assert "every call is compiled again" in str(what) and "self.steps (int): 0 -> 1" in str(what)


def test_explain_of_something_compiled_and_as_json() -> None:
    compiled = torch.compile(branch, backend="planish")
    what = planish.explain(compiled)(torch.ones(2))
    assert what.function == "branch"
    assert as_json(what)["breaks"][0]["cause"] == "data-dependent if"


def test_one_word_for_all_front_ends() -> None:
    assert isinstance(planish.explain(lambda x: np.tanh(x) + 1)(np.ones(5, np.float32)), Explanation)
    exported = planish.from_exported(torch.export.export(nn.Linear(3, 2), (torch.rand(4, 3),)))
    assert planish.explain(exported).kernels.after >= 1
    with pytest.raises(PlanishError, match="not int"):
        planish.explain(3)
