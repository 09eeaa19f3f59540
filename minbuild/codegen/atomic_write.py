"""Where a package goes: written beside its place and moved there when complete, so that a failure leaves what
was there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from minbuild.errors import BadInput

MANIFEST = "manifest.json"
TOOL = "minbuild"  # what the manifest of a package of ours says


def check_destination(out: Path, artifacts: Path) -> None:
    """Refuse, before any work, a place where a package cannot or must not go. Raises BadInput."""
    place = _resolved(out)
    source = _resolved(artifacts)
    if place == source or place in source.parents:
        raise BadInput(
            f"--out {out}: the artifacts are in there ({artifacts}). Choose another folder for the package."
        )
    if place.is_dir():
        _check_ours(out, place)
    elif place.exists():
        raise BadInput(f"--out {out}: is a file. Remove it, or choose another folder.")
    parent = place.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise BadInput(f"--out {out}: {parent} is a file, not a folder. Choose another place.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BadInput(
            f"--out {out}: no permission to write in {parent}. Choose another folder or change its mode."
        )


def _resolved(path: Path) -> Path:
    """Where `path` really is: a link is replaced by what it points to, never itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{path}: cannot be resolved: {error}. Choose another path.") from error


def _check_ours(out: Path, place: Path) -> None:
    try:
        names = [p.name for p in place.iterdir()]
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be read: {error.strerror}. Choose another folder.") from error
    if names and not is_package(place):
        raise BadInput(
            f"--out {out}: exists and is no minbuild package ({MANIFEST} of minbuild is missing), "
            "so it is left alone. Remove it yourself, or choose another folder."
        )


def is_package(folder: Path) -> bool:
    """Whether `folder` holds a package that this tool wrote."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("tool") == TOOL


def write_package(out: Path, files: Mapping[str, bytes]) -> None:
    """Put `files` (relative path -> contents) in place of folder `out`, all or nothing. Raises BadInput when
    the disk is full or does not let us write."""
    place = _resolved(out)
    with _explained(out):
        made = _make_parents(place.parent)
        try:
            _replace(place, files)
        except BaseException:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            raise


def write_file(path: Path, data: bytes) -> None:
    """Put `data` in place of file `path`: written beside it, synced, then moved over it, so that a failure or a
    loss of power at any moment leaves the old file or the new one. Raises BadInput."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be written: {error.strerror or error}. Choose another place."
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def _replace(place: Path, files: Mapping[str, bytes]) -> None:
    """Write beside `place`, in one hidden folder for the new package and the old one, then exchange them."""
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    new, old = work / "new", work / "old"
    try:
        _write(new, files)
        if place.exists():
            place.rename(old)
        new.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
        shutil.rmtree(work, ignore_errors=True)


def _make_parents(parent: Path) -> list[Path]:
    """Create what is missing of `parent`; what was created, innermost first."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for name in sorted(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cure = "Change its permissions"
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG):
            cure = "Free some space"
        elif error.errno in (errno.EBUSY, errno.EXDEV):
            cure = "Where a file system is mounted no folder can be replaced: name a folder inside"
        raise BadInput(
            f"--out {out}: cannot be written: {error.strerror or error}. {cure}, or choose another folder; "
            "what was there before is unchanged."
        ) from error
