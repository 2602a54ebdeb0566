"""Dtypes, sizes, layouts, refusals: what stands around the translations."""

from __future__ import annotations

from typing import Any

import pytest

from planish.capture.torch.promotion import foreign_dtypes, own_dtype, promote
from planish.errors import UnsupportedDType, UnsupportedOp
from planish.ir import input_node
from planish.types import DTYPES, TensorType, bounds

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_promotion_is_torchs() -> None:
    """Every pair of dtypes, of tensors with and without axes, and with numbers."""
    foreign = foreign_dtypes()
    for a in DTYPES:
        if a not in foreign:
            continue
        for b in DTYPES:
            if b not in foreign:
                continue
            for ranks in ((1, 1), (1, 0), (0, 1)):
                tensors = [torch.ones([2] * r, dtype=foreign[d]) for d, r in zip((a, b), ranks)]
                nodes = [input_node("x", TensorType(d, (2,) * r)) for d, r in zip((a, b), ranks)]
                try:
                    expected = own_dtype(torch.result_type(*tensors))
                except RuntimeError:
                    continue  # torch has no promotion of this pair
                assert promote(*nodes) is expected, (a, b, ranks)
        for number in (True, 3, 2.5):
            for rank in (0, 1):
                tensor, node = (
                    torch.ones([2] * rank, dtype=foreign[a]),
                    input_node("x", TensorType(a, (2,) * rank)),
                )
                assert promote(node, number) is own_dtype(torch.result_type(tensor, number)), (
                    a,
                    rank,
                    number,
                )


def test_missing_operators_are_listed_at_once(graph_of: Any) -> None:
    from planish.capture.torch import translate

    graph = graph_of(lambda x: torch.linalg.eigvalsh(x) + torch.linalg.svdvals(x), [torch.randn(3, 3)])
    with pytest.raises(UnsupportedOp, match=r"_linalg_eigh[\s\S]*_linalg_svd"):
        translate(graph, host=False)


def test_a_dtype_that_planish_does_not_have_is_refused(graph_of: Any) -> None:
    from planish.capture.torch import translate

    graph = graph_of(lambda x: x.to(torch.float8_e5m2), [torch.randn(3)])
    with pytest.raises((UnsupportedDType, UnsupportedOp), match="float8_e5m2"):
        translate(graph)


def test_symbols_have_ranges_and_hints(graph_of: Any) -> None:
    from planish.capture.torch import translate

    graph = graph_of(
        lambda x, y: (x.reshape(-1) * 2, x @ y), [torch.randn(5, 7), torch.randn(7, 3)], "symbolic"
    )
    captured = translate(graph)
    assert sorted(captured.hints.values()) == [3, 5, 7]
    symbols = captured.graph.symbols()
    assert all(s.low >= 2 for s in symbols.values())
    (size,) = captured.graph.outputs[0].shape
    assert bounds(size)[0] == 4 and "*" in str(size)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 5).t(),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(8, 9)[1:, ::2],
        lambda: torch.randn(5, 1).expand(5, 4),
        lambda: torch.randn(0, 3),
        lambda: torch.randn(3, 4, 5).permute(1, 0, 2),
        lambda: torch.randn(()),
        lambda: torch.randn(1, 4, 1).mT,
        lambda: torch.randn(6, dtype=torch.bfloat16)[::2],
        lambda: torch.randn(3, 4)[1],
        lambda: torch._neg_view(torch.randn(3, 4)),
    ],
)
def test_arguments_lie_anyhow(run: Any, same: Any, make: Any) -> None:
    x = make()

    def program(x: Any) -> list[Any]:
        return [x * 2, x.sum(), x.contiguous() + 1, x.transpose(0, -1) + 1 if x.ndim else x + 1]

    same(run(program, x), program(x))


def test_library_strategy(run: Any, same: Any) -> None:
    x = torch.randn(3, 4)
    same(run(lambda x: [x.softmax(1) @ x.t()], x, strategy="library"), [x.softmax(1) @ x.t()])


def test_what_has_no_native_form_runs_on_the_host(run: Any, same: Any, graph_of: Any) -> None:
    from planish.capture.torch import translate

    def program(x: Any) -> list[Any]:
        values, _ = (x * 2).sort(1)
        narrow = values.to(torch.bfloat16)
        return [torch.linalg.svdvals(values) + 1, *torch.linalg.eigh(x @ x.t()), torch.hash_tensor(narrow)]

    x = torch.rand(4, 4)
    same(run(program, x), program(x))
    graph = translate(graph_of(program, [x])).graph
    hosts = [n.attributes.function for n in graph.nodes() if n.op.name == "host"]
    assert len(hosts) == 3 and all(str(f) == "torch_call" for f in hosts)


def test_sizes_that_depend_on_values(run: Any, same: Any) -> None:
    def program(x: Any, y: Any) -> list[Any]:
        places = torch.nonzero(x)
        return [places, places.float().sum(1) * 2, torch.masked_select(y, x)]

    for density in (0.2, 0.5, 0.0, 1.0):
        x, y = torch.rand(5, 6) < density, torch.randn(5, 6)
        same(run(program, x, y), program(x, y))


def test_random_host_operators_are_not_shared(run: Any) -> None:
    rates = torch.full((50,), 1e4)
    first, second = run(lambda r: [torch.poisson(r), torch.poisson(r)], rates)
    assert not torch.equal(first, second)


def test_views_of_memory(run: Any, same: Any) -> None:
    def program(x: Any) -> list[Any]:
        y = (x * 2).transpose(0, 1)
        return [
            torch.as_strided(x, (3, 2), (2, 5), 1) + 0,
            torch.as_strided(y, (2, 2, 2), (1, 1, 3), 2) + 0,
            torch.as_strided(x, (4, 1, 5), (5, 7, 1)) + 0,
            torch.as_strided_scatter(y, x[:2, :3], (2, 3), (8, 1), 1) + 0,
        ]

    x = torch.randn(4, 5)
    same(run(program, x), program(x))


def test_views_of_memory_with_gaps_are_refused(run: Any) -> None:
    x = torch.randn(6, 5)[::2]
    with pytest.raises(UnsupportedOp, match="memory with gaps"):
        run(lambda x: [torch.as_strided(x, (2, 2), (1, 1)) + 0], x)


def test_what_a_translation_refuses_runs_on_the_host(run: Any, same: Any) -> None:
    x = torch.rand(3, 4) < 0.5
    same(run(lambda x: [x.reshape(-1).view(torch.uint8)], x), [x.reshape(-1).view(torch.uint8)])
