"""The disk cache: what was stored comes back, whatever happens to the folder."""
from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from planish import knobs
from planish.errors import CacheWarning
from planish.runtime import cache as cache_module
from planish.runtime.blob import Blob
from planish.runtime.cache import Cache, cached_blob, default_folder


def _files(folder):
    return [p for p in folder.rglob("*") if p.is_file()]


def test_round_trip_in_memory_and_from_disk(tmp_path):
    folder = tmp_path / "deep" / "cache"
    cache = Cache(folder)
    assert cache.get("key") is None
    cache.put("key", b"code")
    cache.put("empty", b"")
    assert cache.get("key") == b"code"
    other = Cache(folder)
    assert other.get("key") == b"code" and other.get("empty") == b"" and other.get("kez") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(p.stat().st_mode & 0o077 == 0 for p in _files(folder))
    other.drop("key")
    assert other.get("key") is None and Cache(folder).get("key") is None


@pytest.mark.parametrize("damage", [
    lambda d: d[:-1], lambda d: d[:10], lambda d: b"", lambda d: d + b"x",
    lambda d: d[:-1] + bytes([d[-1] ^ 1]),
    lambda d: bytes([d[0] ^ 1]) + d[1:], lambda d: d[:60] + bytes([d[60] ^ 1]) + d[61:]])
def test_a_damaged_entry_is_dropped(tmp_path, damage):
    Cache(tmp_path / "c").put("a key of some length", b"code" * 10)
    file, = _files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert Cache(tmp_path / "c").get("a key of some length") is None
    assert not _files(tmp_path)


def test_the_whole_key_is_compared(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put("one", b"1")
    file, = _files(tmp_path)
    other = cache._path("two")
    other.parent.mkdir(exist_ok=True)
    file.rename(other)  # as if the hashes had collided
    assert Cache(tmp_path / "c").get("two") is None


def _gives_one_warning(cache):
    with pytest.warns(CacheWarning, match="PLANISH_CACHE_DIR"):
        cache.put("key", b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("other", b"more")
        assert cache.get("key") == b"code" and cache.get("other") == b"more" and cache.get("third") is None


def test_a_folder_that_is_a_file_gives_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    _gives_one_warning(Cache(tmp_path / "file"))


def test_a_folder_others_may_write_to_is_not_used(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    folder.chmod(0o777)
    _gives_one_warning(Cache(folder))
    assert not _files(folder)


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    _gives_one_warning(Cache(tmp_path / "c"))


def test_a_full_disk_gives_one_warning(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", full)
    _gives_one_warning(Cache(tmp_path / "c"))
    assert not _files(tmp_path)


def test_size_is_bounded_least_recently_used_first(tmp_path):
    cache = Cache(tmp_path / "c", limit=3500)
    for number in range(6):
        cache.put(f"key{number}", bytes(900))
        os.utime(cache._path(f"key{number}"), (number, number))
    assert Cache(tmp_path / "c").get("key0") is not None  # now the latest used
    cache.sweep()
    left = {n for n in range(6) if Cache(tmp_path / "c").get(f"key{n}") is not None}
    assert left == {0, 4, 5}


def test_memory_alone(tmp_path):
    cache = Cache(None)
    cache.put("key", b"code")
    assert cache.get("key") == b"code" and cache.get("other") is None


_WRITER = """
import sys
from planish.runtime.cache import Cache
cache = Cache(sys.argv[1], limit=20_000)
for round in range(12):
    for number in range(20):
        data = str(number).encode() * 300
        found = Cache(sys.argv[1]).get(f"key{number}")
        assert found in (None, data), number
        cache.put(f"key{number}", data)
    cache.sweep()
"""


def test_many_processes_share_a_folder(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    writers = [subprocess.Popen([sys.executable, "-W", "error", "-c", _WRITER, str(tmp_path / "c")], env=env,
                                stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for writer in writers:
        _, complaints = writer.communicate(timeout=120)
        assert writer.returncode == 0, complaints
    assert not [p for p in _files(tmp_path) if p.name.startswith("tmp-")]


def _blob(code):
    return Blob("x86_64", code, b"", 4096, {"f": 0}, (), ())


def test_cached_blob_makes_what_is_missing_or_corrupt(tmp_path):
    made = []
    def make():
        made.append(1)
        return _blob(b"\xc3" * 5)
    cache = Cache(tmp_path / "c")
    assert cached_blob("k", make, cache) == cached_blob("k", make, cache) == _blob(b"\xc3" * 5)
    assert len(made) == 1
    assert cached_blob("k", make, Cache(tmp_path / "c")) == _blob(b"\xc3" * 5) and len(made) == 1
    cache.put("k", b"not a blob")
    assert cached_blob("k", make, cache) == _blob(b"\xc3" * 5) and len(made) == 2


def test_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PLANISH_CACHE_DIR", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv("PLANISH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "planish"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "planish"
    with knobs.override(disable_cache=True):
        assert cache_module.default_cache().folder is None


_WARM = """
import sys
from planish.runtime import native
native.runtime()
print("llvmlite" in sys.modules)
"""


def test_a_warm_start_does_not_load_llvm(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
           "PLANISH_CACHE_DIR": str(tmp_path / "c")}
    def start():
        command = [sys.executable, "-c", _WARM]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert start() == "True\n"
    assert start() == "False\n"
