"""Compiled results by the content they were made from, shared by all runs of one user."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_DIGEST = 32  # bytes of SHA-256 in front of every entry: a damaged one counts as absent


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries named by their key. Entries appear whole or not at all, also with many writers."""

    root: Path

    def get(self, key: str) -> bytes | None:
        """The entry, or None when there is none or its bytes are damaged."""
        try:
            data = self._path(key).read_bytes()
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

    MINBUILD_CACHE is taken as it is: if it cannot be written, writing into it raises OSError.
    """
    chosen = os.environ.get("MINBUILD_CACHE")
    if chosen:
        return Cache(Path(chosen).expanduser().resolve())
    root = _platform_folder() / "minbuild"
    if _writable(root):
        return Cache(root)
    # Homes are read-only in many containers and build services.
    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    fallback = Path(tempfile.gettempdir()) / f"minbuild-cache-{owner}"
    if _writable(fallback) and _private(fallback):
        return Cache(fallback)
    return Cache(Path(tempfile.mkdtemp(prefix="minbuild-cache-")))


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


def _private(folder: Path) -> bool:
    """Nobody else may have put objects there for us to link."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.lstat()
    return status.st_uid == os.getuid() and not folder.is_symlink() and status.st_mode & 0o022 == 0
