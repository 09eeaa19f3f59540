"""The user's settings: `[tool.minbuild]` of a pyproject.toml, or a minbuild.toml, beside the artifacts or named."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minbuild.artifacts.files import read_file
from minbuild.errors import BadInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN, PROJECT = "minbuild.toml", "pyproject.toml"


def read_settings(path: Path) -> Mapping[str, Any]:
    """What a file says to minbuild: the table `tool.minbuild` of a pyproject.toml, all of any other file that has no
    such table. Raises BadInput."""
    try:
        document = tomllib.loads(bytes(read_file(path)).decode("utf-8"))
    except ValueError as error:  # also of the encoding
        raise BadInput(f"{path}: is not TOML: {error}. Correct it.") from error
    tools = document.get("tool", {})
    own = tools.get("minbuild") if isinstance(tools, dict) else None
    if own is None:
        own = {} if path.name == PROJECT else document
    if not isinstance(own, dict):
        raise BadInput(f"{path}: tool.minbuild is no table. Write it as [tool.minbuild].")
    return own


def settings_beside(folders: Sequence[Path], named: Path | None) -> tuple[Mapping[str, Any], str]:
    """The settings in the file `named`, else in the first minbuild.toml or pyproject.toml beside or in one of the
    folders that says something, with the file's name for messages; nothing where there is none."""
    if named is not None:
        return read_settings(named), str(named)
    for folder in dict.fromkeys(place for f in folders for place in (f, f.resolve().parent)):
        for name in (OWN, PROJECT):
            if (folder / name).is_file():
                settings = read_settings(folder / name)
                if settings:
                    return settings, str(folder / name)
    return {}, ""
