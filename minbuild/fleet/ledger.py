"""The finished builds of a fleet, in a file that survives every stop: a line follows after its package stands."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from filelock import FileLock, Timeout

from minbuild.codegen.ownership import MANIFEST, inventory
from minbuild.errors import BadInput

LEDGER, LOCK = "fleet.jsonl", ".fleet.lock"


@dataclass(frozen=True, slots=True)
class Record:
    """A finished build: its name, the key of its job, the digest of its package's manifest, seconds and worker."""

    name: str
    key: str
    manifest: str
    seconds: float
    worker: str


class Ledger:
    """The records of all finished builds in a folder of packages; of one name the last counts."""

    def __init__(self, folder: Path) -> None:
        """Read what there is. A line that was cut off, or that is of another version, counts as not written."""
        self._path = folder / LEDGER
        self._records: dict[str, Record] = {}
        names = {each.name for each in fields(Record)}
        try:
            lines = self._path.read_text("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise BadInput(
                f"{self._path}: cannot be read: {error.strerror}. Choose another folder."
            ) from error
        for line in lines:
            with suppress(ValueError, TypeError, AttributeError):
                found = json.loads(line)
                if found.keys() == names:
                    self._records[found["name"]] = Record(**found)

    def finished(self, name: str, key: str, package: Path) -> Record | None:
        """The record of a build with this key whose package stands unchanged; else None. `name` is the build's, `key`
        the digest of its inputs and arguments, `package` its folder."""
        record = self._records.get(name)
        if record is None or record.key != key or record.manifest != manifest_digest(package):
            return None
        try:
            found = inventory(package)
        except (OSError, BadInput):
            return None
        listed = json.loads((package / MANIFEST).read_bytes())["files"]
        return record if not found.edited and {*found.own} == {*listed, MANIFEST} else None

    def add(self, record: Record) -> None:
        """Write a record behind the others. Raises BadInput."""
        text = json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":"))
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(("\n" if _torn(self._path) else "") + text + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise BadInput(f"{self._path}: cannot be written: {error.strerror}. Free some space.") from error
        self._records[record.name] = record


def _torn(path: Path) -> bool:
    """True if the last line was cut off."""
    with path.open("rb") as stream:
        if not stream.seek(0, os.SEEK_END):
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"


def manifest_digest(package: Path) -> str:
    """The SHA-256 of a package's manifest, which has the digests of all its files; empty where there is none."""
    try:
        return hashlib.sha256((package / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second fleet out of the folder meanwhile, by a lock that ends with its process. Raises BadInput when
    another one is at work."""
    try:
        lock = FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise BadInput(
            f"--out {folder}: another `minbuild fleet` is writing there. Wait for it, or choose another folder."
        ) from None
    with lock:
        yield
