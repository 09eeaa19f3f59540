"""Compiled results by the digest of what they were made from, shared by all runs of one user.

Objects from here are linked into what ships, so a folder that another user owns or may write is not used. Above
MINBUILD_CACHE_LIMIT the entries that were not read for longest are evicted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from minbuild.errors import BadInput
from minbuild.options.byte_sizes import parse_size

_DIGEST = 32  # bytes of SHA-256 in front of every entry: a damaged one counts as absent
DEFAULT_LIMIT = 2 << 30  # bytes of entries
_ABANDONED = 24 * 3600  # seconds after which an unfinished file belongs to nobody
_KEPT = 0.8  # of the limit, after an eviction
_WAIT = 120.0  # seconds for another process that makes the same entry: it may hang
_PATIENCE = 2.0  # seconds of them without a word
_SCANS = 32  # evictions are considered each time that this part of the limit was written
_log = logging.getLogger(__name__)
_held: set[Path] = set()  # locks that threads of this process have
_announced: set[Path] = set()  # caches that this process waited for aloud
_announcing = threading.Lock()
_written: dict[Path, int] = {}  # bytes put into each cache by this process since its folder was last summed


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the cache: its bytes, and when it was last read or written (seconds since 1970)."""

    path: Path
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries named by their key. Entries appear whole or not at all, also with many writers. `limit` is in
    bytes of all entries."""

    root: Path
    limit: int = DEFAULT_LIMIT

    def get(self, key: str) -> bytes | None:
        """The entry, or None when there is none or its bytes are damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)  # its age is the time since it was last read
        except OSError:
            return None
        body = data[_DIGEST:]
        return body if hashlib.sha256(body).digest() == data[:_DIGEST] else None

    def put(self, key: str, body: bytes) -> None:
        """Store an entry. Raises OSError when it cannot be written; then nothing is left behind."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest())
                file.write(body)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        with suppress(
            OSError
        ):  # the entry is there; a folder that cannot be listed is evicted from another time
            self._made_room(len(body))

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """One process of this machine at a time for what has this key: the others then find it made. Two that do it
        at once, after a long wait or in a folder without locks, waste time and nothing else."""
        path = self.root / "locks" / key[:2]  # of many keys, so that the files are few
        with ExitStack() as held:
            with suppress(Timeout, OSError, NotImplementedError):
                path.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._acquired(path))
                _held.add(path)
                held.callback(_held.discard, path)
            yield

    def _acquired(self, path: Path) -> AbstractContextManager[object]:
        """The lock in file `path`, held. A long wait for another process is announced, once for each cache. Raises
        Timeout, OSError and NotImplementedError."""
        lock = FileLock(path)
        try:
            return lock.acquire(timeout=_PATIENCE)
        except Timeout:
            with _announcing:
                first = path not in _held and self.root not in _announced
                if first:
                    _announced.add(self.root)
            if first:
                _log.warning(
                    "Another build holds a lock of the cache %s. Waiting for it, at most %.0f seconds at a time.",
                    self.root,
                    _WAIT,
                )
        return lock.acquire(timeout=_WAIT - _PATIENCE)

    def _made_room(self, size: int) -> None:
        """Evict the oldest entries if `size` more bytes may have crossed the limit."""
        _written[self.root] = _written.get(self.root, self.limit) + size
        if _written[self.root] * _SCANS < self.limit:
            return
        _written[self.root] = 0
        entries = self.entries()
        excess = sum(entry.size for entry in entries) - self.limit
        if excess > 0:
            self._evict(entries, excess + int((1 - _KEPT) * self.limit))

    def _evict(self, entries: Iterable[Entry], size: int) -> None:
        """Remove entries, the oldest first, of `size` bytes together. Another process may do the same."""
        for entry in sorted(entries, key=lambda e: (e.used, e.path)):
            if size <= 0:
                return
            with suppress(OSError):
                entry.path.unlink()
            size -= entry.size

    def entries(self) -> list[Entry]:
        """All entries, and files that a killed process left unfinished more than a day ago."""
        found = []
        for path in (self.root / "built").glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                if not path.name.startswith(".") or time.time() - status.st_mtime > _ABANDONED:
                    found.append(Entry(path, status.st_size, status.st_mtime))
        return found

    def clear(self) -> None:
        """Remove everything, with what the compiler keeps. A build that is running starts over."""
        for folder in (self.root / "built", self.compiler):
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def compiler(self) -> Path:
        """Where the default compiler keeps the C libraries it built."""
        return self.root / "zig"

    def _path(self, key: str) -> Path:
        return self.root / "built" / key[:2] / key


def digest(parts: Iterable[str | bytes]) -> str:
    """A key of all parts, each with its length, so that moving a byte between two parts changes it."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def user_cache() -> Cache:
    """The cache of this user: MINBUILD_CACHE, else the platform's cache folder, else a private temporary one.

    MINBUILD_CACHE is taken as it is: if it cannot be written, writing into it raises OSError. Raises BadInput if it is
    another user's, or if MINBUILD_CACHE_LIMIT is no size.
    """
    limit = _limit()
    chosen = os.environ.get("MINBUILD_CACHE")
    if chosen:
        root = Path(chosen).expanduser().resolve()
        if root.is_dir() and not _trusted(root):
            raise BadInput(
                f"{root}: the folder of MINBUILD_CACHE belongs to another user, or others may write to it; "
                f"what is in it "
                "would be linked into your trainers. Choose a folder of your own, or change its owner and mode."
            )
        return Cache(root, limit)
    root = _platform_folder() / "minbuild"
    if _writable(root) and _trusted(root):
        return Cache(root, limit)
    # Homes are read-only in many containers and build services.
    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    fallback = Path(tempfile.gettempdir()) / f"minbuild-cache-{owner}"
    if _writable(fallback) and _private(fallback):
        return Cache(fallback, limit)
    return Cache(Path(tempfile.mkdtemp(prefix="minbuild-cache-")), limit)


def _limit() -> int:
    text = os.environ.get("MINBUILD_CACHE_LIMIT", "")
    size = parse_size(text) if text else DEFAULT_LIMIT
    if size is None:
        raise BadInput(
            f'MINBUILD_CACHE_LIMIT: {text!r} is no size. Write a number of bytes, or text such as "2 GiB".'
        )
    return size


def _platform_folder() -> Path:
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(tempfile.gettempdir())
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return Path(xdg) if os.path.isabs(xdg) else home / ".cache"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _trusted(folder: Path) -> bool:
    """True if the objects in the folder are this user's: nobody else owns it, and not everybody may write to it."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and status.st_mode & 0o002 == 0


def _private(folder: Path) -> bool:
    """The same for a folder in a place that everybody may write to: it is no link, and its group may not write
    either."""
    if not hasattr(os, "getuid"):
        return True
    return _trusted(folder) and not folder.is_symlink() and folder.lstat().st_mode & 0o022 == 0
