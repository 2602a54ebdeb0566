"""The ground rules: which folder may import which, and what `import planish` may cost."""
from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import planish

PACKAGE = Path(planish.__file__).parent

# Left may not see right. Places on one line stand side by side and do not see each other.
ORDER = [
    {"errors", "knobs"},
    {"logs"},
    {"types"},
    {"ops"},
    {"ir"},
    {"rewrite", "capture", "transform"},
    {"passes"},
    {"schedule"},
    {"codegen"},
    {"runtime"},
    {"program_cache", "tuning"},
    {"compiled"},
    {"compiler"},
    {"variants"},
    {"api", "onnx", "torch"},
    {"inspect"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
RANK = {place: rank for rank, places in enumerate(ORDER) for place in places}

# Read programs from outside into the graph, or graph into graph: they see only what a graph is.
NARROW = {
    "capture": {"errors", "knobs", "types", "ops", "ir"},
    "transform": {"errors", "knobs", "types", "ops", "ir"},
}

HEAVY = ["torch", "jax", "onnx", "llvmlite", "numpy", "ml_dtypes", "rich", "typer", "onnxruntime", "triton"]


def may_import(importer: str, imported: str) -> bool:
    """Whether files under `importer` may import from `imported`; both are places of ORDER."""
    if importer == imported:
        return True
    if importer in NARROW:
        return imported in NARROW[importer]
    if {importer, imported} == {"errors", "knobs"}:
        return importer == "knobs"
    return RANK[imported] < RANK[importer]


def place_of(module: str) -> str:
    """`planish.ir.graph` -> `ir`; `planish` itself is ''."""
    return module.partition(".")[2].partition(".")[0]


def imports_of(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of all of planish that a file imports, anywhere in it, for types or to run."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [f"planish.{alias.name}" for alias in node.names] if base == "planish" else [base]
        else:
            continue
        ours = (name for name in names if name.split(".")[0] == "planish" and name != "planish.__version__")
        yield from ((node.lineno, name) for name in ours)


def modules() -> list[tuple[Path, str]]:
    """Path and dotted name of every file of the package but its own `__init__.py`, which stands above all."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in paths]
    return [(path, ".".join(p).removesuffix(".__init__")) for path, p in zip(paths, parts, strict=True)]


def test_imports_go_left() -> None:
    faults = []
    for path, module in modules():
        importer = place_of(module)
        assert importer in RANK, f"{path}: give {importer!r} its place in ORDER"
        for line, name in imports_of(path, module):
            imported = place_of(name)
            # The package itself has lazy names of every place: inside, import from where a thing lives.
            if imported not in RANK or not may_import(importer, imported):
                faults.append(f"{path}:{line}: {importer} imports {name}")
    assert not faults, "\n" + "\n".join(faults)


def test_order_refuses_what_it_must() -> None:
    assert may_import("ir", "ops") and not may_import("ops", "ir")
    assert not may_import("capture", "rewrite") and not may_import("rewrite", "capture")
    assert may_import("knobs", "errors") and not may_import("errors", "knobs")
    assert may_import("cli", "api") and not may_import("runtime", "compiler")


@pytest.mark.parametrize(("source", "names"), [
    ("import planish.ir.graph", ["planish.ir.graph"]),
    ("from planish import errors, jit", ["planish.errors", "planish.jit"]),
    ("def f():\n    from planish.runtime import pool", ["planish.runtime"]),
    ("from .dims import Dim", ["planish.ir.dims"]),
    ("from ..ops import add", ["planish.ops"]),
    ("from .. import ops", ["planish.ops"]),
    ("from planish import __version__", []),
    ("import planish", ["planish"]),
    ("import numpy", []),
])
def test_imports_are_found(source: str, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "graph.py"
    path.write_text(source)
    assert [name for _, name in imports_of(path, "planish.ir.graph")] == names


def test_import_is_cheap() -> None:
    """`import planish` loads no heavy module, and of its own only itself. The time is printed, not judged."""
    program = f"""if True:
        import sys, time
        sys.path.insert(0, {str(PACKAGE.parent)!r})
        start = time.perf_counter()
        import planish
        print((time.perf_counter() - start) * 1e3, *sys.modules)"""
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    milliseconds, *loaded = run.stdout.split()
    print(f"import planish: {float(milliseconds):.1f} ms, {len(loaded)} modules")
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []
    assert [name for name in loaded if name.split(".")[0] == "planish"] == ["planish"]


@pytest.mark.parametrize("name", sorted(planish._LAZY))
def test_public_name_resolves(name: str) -> None:
    module_name, _, attribute = planish._LAZY[name].partition(":")
    value = getattr(planish, name)
    module = sys.modules[module_name]
    assert value is (getattr(module, attribute) if attribute else module)
    assert name in dir(planish) and name in planish.__all__


@pytest.mark.parametrize("name", sorted(n for n, target in planish._LAZY.items() if ":" in target))
def test_public_name_is_no_submodule(name: str) -> None:
    assert importlib.util.find_spec(f"planish.{name}") is None, "the module would hide the name once imported"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'planish' has no attribute 'compyle'"):
        planish.compyle  # noqa: B018


def test_version_is_the_first_of_the_changelog() -> None:
    changelog = PACKAGE.parent / "CHANGELOG.md"
    headings = [line for line in changelog.read_text().splitlines() if line.startswith("## ")]
    assert headings[0].split()[1] == planish.__version__
