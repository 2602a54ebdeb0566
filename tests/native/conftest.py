from __future__ import annotations

from collections.abc import Iterator

import pytest

from planish import knobs


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generated code goes to a folder of this test run, not to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(knobs.KNOBS["cache_dir"].env, str(tmp_path_factory.mktemp("cache")))
        yield
