"""Every fenced `python` block of README.md and docs/*.md runs: in order, in one namespace per file.

A block fenced as `python no-run` is skipped. One fenced as `text printed` is what the block before it prints.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def blocks_of(text: str) -> Iterator[tuple[str, int, str]]:
    """Kind, line of the first statement and source of each fenced block."""
    for fence in FENCE.finditer(text):
        indent = len(fence["indent"])
        source = "".join(line[indent:] for line in fence["body"].splitlines(keepends=True))
        yield " ".join(fence["info"].split()), text.count("\n", 0, fence.start("body")), source


def run_page(path: Path, text: str) -> None:
    """Run the blocks; the traceback of a failure has the page's own line numbers."""
    namespace: dict[str, object] = {"__name__": path.stem}
    printed = ""
    for kind, lines_before, source in blocks_of(text):
        if kind == "python":
            with redirect_stdout(StringIO()) as out:
                exec(compile("\n" * lines_before + source, str(path), "exec"), namespace)
            printed = out.getvalue()
        elif kind == "text printed":
            assert printed.strip() == source.strip(), f"{path.name}:{lines_before}: something else is printed"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_run(path: Path) -> None:
    run_page(path, path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    missing = [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]
    assert not missing


def test_blocks_share_a_namespace_and_no_run_is_skipped(tmp_path: Path) -> None:
    blocks = [("python", "x = 1"), ("python no-run", "x = 2"), ("sh", "x = 3"), ("python", "assert x == 1")]
    run_page(tmp_path / "page.md", "".join(f"```{info}\n{body}\n```\n" for info, body in blocks))


def test_a_block_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = "```python\nprint(1 + 1)\n```\n\n```text printed\n{}\n```\n"
    run_page(tmp_path / "page.md", page.format(2))
    with pytest.raises(AssertionError, match=r"page\.md:5: something else is printed"):
        run_page(tmp_path / "page.md", page.format(3))


def test_a_failing_block_fails_at_its_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run_page(tmp_path / "page.md", "text\n\n- item\n  ```python\n  1 / 0\n  ```\n")
    assert failure.traceback[-1].lineno + 1 == 5
