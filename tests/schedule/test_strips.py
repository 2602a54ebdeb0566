"""Chains of kernels by strips: what is one, that the plan and the verifier keep rounds apart, and that any
number of threads gives the same bits."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planish
from planish.errors import VerificationError
from planish.passes import run_pipeline
from planish.schedule import strips
from planish.schedule.buffers import Buffers
from planish.schedule.build import Built, build_program
from planish.schedule.interpret import interpret_kernel
from planish.schedule.machine import Machine
from planish.schedule.program import For, Launch
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program, print_steps, program_constants
from planish.schedule.program_verify import verify_program
from planish.schedule.strips import cut_of
from planish.schedule.text import parse_kernel
from planish.schedule.verify import verify_kernel
from planish.types import symbol

RNG = np.random.default_rng(11)


def weights(count: int, rows: int, columns: int) -> list[np.ndarray]:
    return planish.freeze([(RNG.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
                           for _ in range(count)])


UP, DOWN = weights(2, 32, 48), weights(2, 48, 32)
SQUARE = weights(3, 32, 32)


def normed(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))


def blocks(x: Any) -> Any:
    """Norm, product, tanh, product, residual: twice."""
    for up, down in zip(UP, DOWN):
        x = x + np.tanh(normed(x) @ up) @ down
    return x


def built(function: Callable[..., Any], *arrays: np.ndarray, threads: int = 2, **options: Any) -> Built:
    graph, _ = run_pipeline(planish.make_graph(function)(*arrays))
    return build_program(graph, Machine(threads=threads), {}, **options)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def loops(made: Built) -> list[For]:
    return [s for s in made.program.steps if isinstance(s, For)]


def test_a_chain_is_one_parallel_loop() -> None:
    x = random(2, 16, 32)
    made = built(blocks, x)
    loop, = loops(made)
    assert loop.parallel and loop.length == 2 and len(made.program.steps) == 1
    assert all(isinstance(s, Launch) and not any(a.parallel for a in s.kernel.shared) for s in loop.body)
    text = print_program(made.program)
    assert f"for {loop.counter} in 2 parallel {{" in text
    assert print_program(parse_program(text, program_constants(made.program))) == text
    assert any("2 strips of" in d and "barriers less" in d for d in made.decisions)
    plain = built(blocks, x, disable=frozenset({"strips"}))
    assert not loops(plain) and built(blocks, x, threads=1).program.steps[0].writes
    one, = interpret_program(made.program, [x], harsh=True)
    other, = interpret_program(plain.program, [x])
    np.testing.assert_allclose(one, blocks(x), rtol=1e-4, atol=1e-5)
    assert np.array_equal(one, other)


def given_weights(x: Any, up: Any, down: Any) -> Any:
    return np.tanh(x @ up.T) @ down.T


def test_weights_that_are_arguments_are_packed_before_the_loop() -> None:
    arrays = random(64, 32), random(48, 32), random(32, 48)
    made = built(given_weights, *arrays)
    *packing, loop = made.program.steps
    assert all(isinstance(s, Launch) and s.kernel.ops == ("pack",) for s in packing) and len(packing) == 2
    assert isinstance(loop, For) and len(loop.body) == 2
    verify_program(made.program)
    y, = interpret_program(made.program, list(arrays), harsh=True)
    np.testing.assert_allclose(y, given_weights(*arrays), rtol=1e-4, atol=1e-4)


def test_a_chain_ends_where_its_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = random(64, 32), random(48, 32), random(32, 48)
    monkeypatch.setattr(strips, "MOST_WEIGHTS", arrays[1].nbytes + arrays[2].nbytes - 1)
    assert not loops(built(given_weights, *arrays))


def test_large_products_of_constants_are_no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loops(built(blocks, random(64, 32)))
    monkeypatch.setattr(strips, "MOST_WORK", 1 << 10)
    assert not loops(built(blocks, random(64, 32)))


def test_a_strip_that_would_prepare_its_own_operand_is_no_chain() -> None:
    """Rows of float16 are widened by a kernel before, into memory that strips would share."""
    arrays = [a.astype(np.float16) for a in (random(64, 32), random(48, 32), random(32, 48))]
    made = built(given_weights, *arrays)
    assert not loops(made) and any(k.name.endswith("_widen") for k in made.program.kernels)


def test_rounds_take_turns_in_equal_pieces_only() -> None:
    """Values of a chain share memory where their pieces are of one size; none shares part of another's."""
    made = built(blocks, random(32, 32))
    verify_program(made.program)
    assert made.memory.planned < made.memory.naive
    spans = {(int(p.offset), int(p.offset) + int(p.bytes)) for p in made.program.buffers if p.kind == "arena"}
    assert all(a == b or max(a[0], b[0]) >= min(a[1], b[1]) for a in spans for b in spans)


def by_neighbour(x: Any) -> Any:
    y = x @ SQUARE[0]
    return np.concatenate([y[1:], y[:1]]) @ SQUARE[1]


def by_column(x: Any) -> Any:
    y = x @ SQUARE[0]
    return (y - y.mean(0)) @ SQUARE[1]


def by_weight(x: Any) -> Any:
    return (x @ SQUARE[0]) @ (x[:32] @ SQUARE[1])


@pytest.mark.parametrize("function", [by_neighbour, by_column, by_weight])
def test_rows_that_look_elsewhere_are_no_chain(function: Callable[..., Any]) -> None:
    """Kernels that look at other rows, or at all of them, keep their barrier, and are right."""
    x = random(64, 32)
    made = built(function, x)
    verify_program(made.program)
    y, = interpret_program(made.program, [x], harsh=True)
    np.testing.assert_allclose(y, function(x), rtol=2e-4, atol=2e-4)
    for loop in loops(made):
        inside = [s.kernel for s in loop.body if isinstance(s, Launch)]
        assert len(inside) < len(made.program.kernels)


KERNEL = """
kernel k(x: f32[64, 8], z: f32[64]) -> (y: f32[64, 8]) {{
  for s0 in 64, s1 in 8:
    t0: f32 = map:
      {store} = {value}
}}"""


@pytest.mark.parametrize("store, value, cut", [
    ("y[s0, s1]", "x[s0, s1] * z[s0]", {"x", "y", "z"}),
    ("y[s0, s1]", "x[s0, s1] * z[s1]", {"x", "y"}),             # all strips read z whole
    ("y[s0, s1]", "x[s0, s1] * z[s0] + z[s1]", None),
    ("y[s0, s1]", "x[s0, s1] * x[min(s0 + 1, 63), s1]", None),
    ("y[s0, s1]", "x[s0, s1] * z[s0 // 2]", None),
    ("y[s0, s1]", "cast(index(s0), f32)", None),
    ("y[63 - s0, s1]", "x[s0, s1]", None),
    ("y[8*s1 + (s0 % 8), s0 // 8]", "x[s0, s1]", None),
])
def test_what_is_cut_with_a_kernel(store: str, value: str, cut: set[str] | None) -> None:
    kernel = verify_kernel(parse_kernel(KERNEL.format(store=store, value=value)))
    buffers = Buffers({})
    found = cut_of(kernel, 4, buffers)
    assert (found and found.cut) == cut
    if found is None:
        return
    arrays = {"x": random(64, 8), "z": random(64)}
    whole = interpret_kernel(kernel, arrays)["y"]
    strip = verify_kernel(found.strip(4, symbol("t", 0, 3), buffers))
    for t in range(4):
        mine = {name: a[16 * t:16 * t + 16] if name in found.cut else a for name, a in arrays.items()}
        part = interpret_kernel(strip, {b.name: mine[b.name.removesuffix("_t")] for b in strip.inputs})
        assert np.array_equal(part["y_t"], whole[16 * t:16 * t + 16])


@pytest.mark.parametrize("rows", [63, 24])
def test_uneven_and_few_rows_are_no_chain(rows: int) -> None:
    assert not loops(built(blocks, random(rows, 32)))


def three(x: Any) -> Any:
    return np.tanh(np.tanh(x @ SQUARE[0]) @ SQUARE[1]) @ SQUARE[2]


def faulty(change: Callable[[str], str]) -> str:
    made = built(three, random(128, 32))
    text, constants = print_program(made.program), program_constants(made.program)
    verify_program(parse_program(text, constants))
    changed = change(text)
    assert changed != text
    with pytest.raises(VerificationError) as caught:
        verify_program(parse_program(changed, constants))
    return str(caught.value)


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


def test_the_verifier_keeps_rounds_apart() -> None:
    program = built(three, random(128, 32)).program
    pieces = [p for p in program.buffers if p.kind == "slice"]
    first = pieces[1]
    offset = f"slice {first.base} {first.offset}"
    assert offset in print_steps(program)
    assert "is not a piece for each round" in faulty(replaced(offset, f"slice {first.base} 0"))
    counter = program.steps[0].counter.name  # type: ignore[union-attr]
    line = next(li for li in print_steps(program).splitlines() if offset in li)
    other = line.replace(f"{first.name}:", "other:").replace(f"8192*{counter}", f"8192 - 8192*{counter}")
    launch = next(s for s in program.steps[0].body if first.name in s.reads)  # type: ignore[union-attr]
    call = f"{launch.kernel.name}({', '.join(launch.reads)}"
    fault = faulty(lambda text: text.replace(line, f"{line}\n{other}").replace(
        call, call.replace(first.name, "other")))
    assert "other is read before it is written" in fault
    again = launch.arguments[-1]
    fault = faulty(lambda text: text.replace(line, f"{line}\n{other}").replace(
        f"-> ({again})", "-> (other)").replace(f"({again},", "(other,"))
    assert "other is not the piece that its round" in fault
    taken = [p for p in program.buffers if p.kind == "arena"]
    place = f"{taken[1].name}: f32[128, 32] = arena "
    moved = replaced(f"{place}{taken[1].offset}", f"{place}{int(taken[0].offset) + 4096}")
    assert "overlaps" in faulty(moved)


def test_every_number_of_threads_gives_the_same_bits() -> None:
    x = random(96, 32)
    cut, plain = planish.jit(blocks), planish.jit(blocks, disable={"strips"})
    before = planish.get_num_threads()
    try:
        seen = []
        for threads in (1, 2, 3):
            planish.set_num_threads(threads)
            seen += [cut(x) for _ in range(3)]
    finally:
        planish.set_num_threads(before)
    np.testing.assert_allclose(seen[0], blocks(x), rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(seen[0], y) for y in (*seen, plain(x)))
