"""The files of an existing package that are minbuild's own, by the digests of its manifest: no others are deleted."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minbuild.errors import BadInput
from minbuild.escape import for_json
from minbuild.ir.mapped import map_large, sha256_of

MANIFEST = "manifest.json"
TOOL = "minbuild"  # `tool` in the manifest of a package
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of a package folder, as paths in it. `own` are files as minbuild wrote them, `edited`
    were written by minbuild and changed since; `foreign` is everything else: files, links, empty folders."""

    own: tuple[str, ...]
    edited: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The files that a new package must not delete."""
        return (*self.foreign, *self.edited)


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """The text of a manifest with its own digest in it."""
    digest = hashlib.sha256(_text(manifest)).hexdigest()
    return _text({**manifest, "sha256": digest})


def _text(manifest: Mapping[str, Any]) -> bytes:
    return (for_json(json.dumps(manifest, indent=1, ensure_ascii=False)) + "\n").encode()


def read_manifest(folder: Path) -> Mapping[str, Any] | None:
    """The manifest of a package of minbuild; None where the folder is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("tool") == TOOL else None


def inventory(folder: Path) -> Inventory:
    """Every file of a package by its owner. Raises OSError, and BadInput for a file system that is mounted in it."""
    manifest = read_manifest(folder) or {}
    listed = manifest.get("files")
    digests = {
        name: entry.get("sha256")
        for name, entry in (listed.items() if isinstance(listed, dict) else ())
        if isinstance(entry, dict)
    }
    own: list[str] = []
    edited: list[str] = []
    foreign: list[str] = []
    for name, plain in _walk(folder, "", folder.stat().st_dev):
        if name == MANIFEST and plain and manifest:
            (own if _is_sealed(folder / name, manifest) else edited).append(name)
        elif name not in digests:
            foreign.append(name)
        elif plain and _sha256_of(folder / name) == digests[name]:
            own.append(name)
        else:
            edited.append(name)
    return Inventory(tuple(own), tuple(edited), tuple(foreign))


def _sha256_of(path: Path) -> str:
    return sha256_of(map_large(path) or path.read_bytes())


def _is_sealed(path: Path, manifest: Mapping[str, Any]) -> bool:
    if "sha256" not in manifest:  # of a version that wrote none
        return True
    return path.read_bytes() == sealed({k: v for k, v in manifest.items() if k != "sha256"})


def _walk(folder: Path, prefix: str, device: int) -> Iterator[tuple[str, bool]]:
    """Everything below a folder that is no folder with contents, by its path, and whether it is a plain file. Links are
    not followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        name, path = f"{prefix}{entry.name}", Path(entry.path)
        mode = entry.stat(follow_symlinks=False)
        if mode.st_dev != device:
            raise BadInput(f"{path}: another file system is mounted there. Choose another folder for --out.")
        if not stat.S_ISDIR(mode.st_mode):
            yield name, stat.S_ISREG(mode.st_mode)
            continue
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise BadInput(
                f"{path}: no permission to write in it. Change its mode, or choose another folder."
            )
        below = list(_walk(path, f"{name}/", device))
        yield from below or [(f"{name}/", False)]


def refusal(out: Path, found: Inventory) -> str:
    """Why a package with foreign or edited files is left alone, naming them; empty where there are none."""
    if not found.kept:
        return ""
    names = [f"{name} (edited)" for name in found.edited] + list(found.foreign)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"--out {out}: holds files that minbuild did not write, or that were edited since: {', '.join(names[:_SHOWN])}"
        f"{more}. Move them, or choose another folder; --force overwrites the edited ones and keeps the others."
    )
