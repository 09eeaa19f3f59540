"""The compile cache: whose it is, how large it grows, what `minbuild cache` prints."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import command_fixture  # noqa: F401  the fixture `minbuild`
from filelock import FileLock

from minbuild.errors import BadInput
from minbuild.options.byte_sizes import parse_size, size_text
from minbuild.toolchain import cache as caching
from minbuild.toolchain.cache import Cache, user_cache

pytestmark = pytest.mark.unit


def _fill(cache: Cache, keys: str, size: int) -> None:
    """Entries that were used in the order of `keys`, a second apart."""
    for age, key in enumerate(keys):
        cache.put(key * 4, bytes(size))
        path = cache.root / "built" / (key * 2) / (key * 4)
        if path.exists():
            os.utime(path, (1000 + age, 1000 + age))


def test_the_oldest_entries_go_when_the_limit_is_crossed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    _fill(cache, "abcdefg", 100)
    assert all(cache.get(key * 4) is not None for key in "bcdefg")
    for age, key in enumerate("bcdefg"):  # ages that no clock is too coarse for
        os.utime(tmp_path / "built" / (key * 2) / (key * 4), (1001 + age, 1001 + age))
    assert cache.get("aaaa") is not None  # reading makes it the newest
    cache.put("hhhh", bytes(100))
    assert cache.get("bbbb") is None and cache.get("aaaa") is not None and cache.get("hhhh") is not None
    assert sum(entry.size for entry in cache.entries()) <= 1000


def test_a_damaged_entry_is_none(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("aaaa", b"an object")
    path = tmp_path / "built/aa/aaaa"
    whole = path.read_bytes()
    for at in (0, 31, 32, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.get("aaaa") is None
    for length in (0, 31, 32, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert cache.get("aaaa") is None
    path.write_bytes(whole)
    assert cache.get("aaaa") == b"an object"


def test_an_entry_above_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=50)
    cache.put("aaaa", bytes(100))
    assert cache.get("aaaa") is None


def test_entries_under_way_are_left_alone_and_abandoned_ones_are_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    folder = tmp_path / "built" / "aa"
    folder.mkdir(parents=True)
    (folder / ".new-now").write_bytes(bytes(500))
    (folder / ".new-old").write_bytes(bytes(500))
    os.utime(folder / ".new-old", (1000, 1000))
    cache.put("aabb", bytes(10))
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".new-now"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are those of POSIX")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path))
    assert user_cache().root == tmp_path
    monkeypatch.setattr(caching.os, "getuid", lambda: 12345)
    with pytest.raises(BadInput, match="belongs to another user"):
        user_cache()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes are those of POSIX")
def test_a_folder_that_everybody_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(BadInput, match="others may write to it"):
        user_cache()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes are those of POSIX")
def test_without_a_trusted_home_the_cache_is_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINBUILD_CACHE", raising=False)
    monkeypatch.setattr(caching, "_platform_folder", lambda: tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "minbuild").mkdir()
    (tmp_path / "minbuild").chmod(0o777)
    root = user_cache().root
    assert root != tmp_path / "minbuild" and root.stat().st_mode & 0o077 == 0


def test_the_command_tells_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minbuild) -> None:
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path))
    monkeypatch.setenv("MINBUILD_CACHE_LIMIT", "3 MiB")
    user_cache().put("aaaa", bytes(2016))
    said = minbuild("cache")
    assert said.code == 0
    assert str(tmp_path) in said.out and "1 of 2.0 KiB" in said.out and "3.0 MiB" in said.out
    assert "0 of 0 B" in minbuild("cache", "--clear").out
    assert user_cache().get("aaaa") is None


def test_a_limit_that_is_no_size_is_named(monkeypatch: pytest.MonkeyPatch, minbuild) -> None:
    monkeypatch.setenv("MINBUILD_CACHE_LIMIT", "plenty")
    said = minbuild("cache")
    assert said.code == 2 and re.search("MINBUILD_CACHE_LIMIT: 'plenty' is no size", said.err)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64 KiB", 65536), ("64K", 65536), ("1.5 MB", 1_500_000), ("x", None), ("1 q", None)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_sizes_are_written_as_people_read_them() -> None:
    assert [size_text(n) for n in (5, 2048, 3 << 20, 3 << 29)] == ["5 B", "2.0 KiB", "3.0 MiB", "1.5 GiB"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """One whose waits are announced at once."""
    monkeypatch.setattr("minbuild.toolchain.cache._PATIENCE", 0.1)
    return Cache(tmp_path)


def test_a_wait_for_another_process_is_announced_once(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    (cache.root / "locks").mkdir()
    # The lock is released before the pool waits for what waits for it.
    with ThreadPoolExecutor() as pool, FileLock(cache.root / "locks" / "ab"):
        waiting = [pool.submit(entered, cache, "ab" + end) for end in "cd"]
        time.sleep(0.5)
        assert not any(each.done() for each in waiting)
        assert [r.getMessage() for r in caplog.records] == [
            f"Another build holds a lock of the cache {cache.root}. Waiting for it, at most 120 seconds at a time."
        ]
    for each in waiting:
        each.result()
    assert len(caplog.records) == 1


def test_a_wait_for_a_thread_of_the_same_build_is_not(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor() as pool:
        with cache.alone("abc"):
            waiting = pool.submit(entered, cache, "abd")
            time.sleep(0.5)
            assert not waiting.done()
        waiting.result()
    assert not caplog.records


def entered(cache: Cache, key: str) -> None:
    with cache.alone(key):
        pass
