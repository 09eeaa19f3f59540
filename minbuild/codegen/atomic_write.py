"""Writing a package: beside its place first, moved there when complete, so that a failure leaves what was there; files
that minbuild did not write are never deleted."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from minbuild.codegen.exchange import exchange
from minbuild.codegen.ownership import MANIFEST, Inventory, inventory, read_manifest, refusal
from minbuild.errors import BadInput
from minbuild.ir import Package
from minbuild.ir.mapped import FileBytes, parts_of, write_bytes
from minbuild.ir.pieces import Pieces


def check_destination(out: Path, artifacts: Path, force: bool = False) -> None:
    """Refuse, before any work, a place where a package cannot or must not go: among others one with files that
    minbuild did not write, or that were edited, unless `force`. `out` is the folder of the package, `artifacts` the
    folder it is made of, which it must not replace. Raises BadInput."""
    place = _resolved(out)
    source = _resolved(artifacts)
    if place == source or place in source.parents:
        raise BadInput(
            f"--out {out}: the artifacts are in there ({artifacts}). Choose another folder for the package."
        )
    here = _resolved(Path())
    if place == here or place in here.parents:
        raise BadInput(
            f"--out {out}: is the current folder or one around it, which cannot be replaced while you are in it. "
            "Name a folder inside it."
        )
    if place.is_dir():
        _check_ours(out, place, force)
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


def _check_ours(out: Path, place: Path, force: bool) -> None:
    try:
        names = [p.name for p in place.iterdir()]
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be read: {error.strerror}. Choose another folder.") from error
    if names and read_manifest(place) is None:
        raise BadInput(
            f"--out {out}: exists and is no minbuild package ({MANIFEST} of minbuild is missing), "
            "so it is left alone. Remove it yourself, or choose another folder."
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise BadInput(
            f"--out {out}: no permission to replace it. Change its mode, or choose another folder."
        )
    _inventory(out, place, force)


def _inventory(out: Path, place: Path, force: bool) -> Inventory:
    """The files of a package that is to be replaced. Raises BadInput where it must not be."""
    try:
        found = inventory(place)
    except OSError as error:
        where = error.filename or out
        raise BadInput(
            f"--out {out}: {where}: cannot be read: {error.strerror}. Choose another folder."
        ) from error
    if not force and (text := refusal(out, found)):
        raise BadInput(text)
    return found


def write_package(out: Path, package: Package, force: bool = False) -> None:
    """Put `package` in place of folder `out`, all or nothing. Files of the folder that
    minbuild did not write stop this or, with `force`, stay. Raises BadInput, also when the disk is full."""
    place = _resolved(out)
    with _explained(out):
        made = _make_parents(place.parent)
        try:
            _replace(out, place, package.files, force)
        except BaseException:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            raise


def write_file(path: Path, data: FileBytes | Pieces) -> None:
    """Put `data` in place of file `path`: written beside it, synced, then moved over it, so that a failure or a
    loss of power at any moment leaves the old file or the new one. Raises BadInput."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            for piece in data if isinstance(data, Pieces) else (data,):
                for part in parts_of(piece):
                    file.write(part)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be written: {error.strerror or error}. Choose another place."
        ) from error
    finally:
        with suppress(OSError):  # it was moved away, or nobody can
            beside.unlink()


def _replace(out: Path, place: Path, files: Mapping[str, FileBytes], force: bool) -> None:
    """Write beside `place`, in one hidden folder for the new package and the old one, then exchange them."""
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    new, old = work / "new", work / "old"
    found: Inventory | None = None
    replaced = False  # `place` holds the new package
    try:
        _write(new, files)
        if os.path.lexists(place):
            found = _inventory(out, place, force)  # again: a build takes long enough for files to appear
            _share(out, found.foreign, place, new)
            if exchange(new, place):
                replaced = True
                new.rename(old)
            else:
                _move_in(new, place, old)
        else:
            new.rename(place)
        replaced = True
    except OSError:
        if not replaced:
            raise
        old = new  # where the old package is to be removed from
    finally:
        if not replaced:
            shutil.rmtree(new, ignore_errors=True)  # holds copies and second links only
        elif found is not None:
            _remove(old, (*found.own, *found.kept))
        with suppress(OSError):  # what appeared in the old package since stays in there
            work.rmdir()


def _move_in(new: Path, place: Path, old: Path) -> None:
    """Two steps, where the system cannot exchange folders; the first is undone if the second fails."""
    place.rename(old)
    try:
        new.rename(place)
    except BaseException:
        old.rename(place)
        raise


def _share(out: Path, names: Iterable[str], old: Path, new: Path) -> None:
    """Put files of the user into the new package too, as second links where the file system has them. Raises BadInput
    where a file of the package is in the way."""
    for name in names:
        source, target = old / name, new / name
        if name.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            continue
        if os.path.lexists(target):
            raise BadInput(
                f"--out {out}: {name} is not of minbuild and would be overwritten. Move it elsewhere."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, target, follow_symlinks=False)


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Delete these files of an old package, and the folders that are empty then: nothing else."""
    for name in names:
        if not name.endswith("/"):
            with suppress(OSError):
                (folder / name).unlink()
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(path)


def _make_parents(parent: Path) -> list[Path]:
    """Create what is missing of `parent`; what was created, innermost first."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing


def _write(folder: Path, files: Mapping[str, FileBytes]) -> None:
    folder.mkdir()
    for name in sorted(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, files[name])


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
