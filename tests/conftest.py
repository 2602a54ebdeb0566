"""What all tests share: a cache of their own, and golden files, compared as text.

`pytest --update-golden` writes what the code gives now; look at the difference before you commit it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planish import knobs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true",
                     help="write golden files instead of comparing with them")


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generated code goes to a folder of this test run, not to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(knobs.KNOBS["cache_dir"].env, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)`: the file at `path` holds `text`. A missing file is a failure."""
    update = request.config.getoption("--update-golden")

    def compare(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {path.name}: run pytest --update-golden and look at it"
        assert text == path.read_text()
    return compare
