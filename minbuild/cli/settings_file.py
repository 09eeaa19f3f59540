"""The user's settings: `[tool.minbuild]` of a pyproject.toml, or a minbuild.toml, beside the artifacts or named."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.options.build_options import DEFAULT, PROFILES, BuildOptions, in_profile, table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN, PROJECT = "minbuild.toml", "pyproject.toml"
BUDGETS, PROFILE = "budgets", "profile"


@dataclass(frozen=True, slots=True)
class Key:
    """Something that settings can say besides build options: what it may be, in words, and how it is read, to None
    where it is none of that."""

    allowed: str
    read: Callable[[Any], Any]


def read_settings(path: Path) -> Mapping[str, Any]:
    """Read minbuild's settings from a file: the table `tool.minbuild` of a pyproject.toml, all of any other file that
    has no such table. Raises BadInput."""
    try:
        document = tomllib.loads(bytes(read_file(path, "Give a file with settings.")).decode("utf-8"))
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


# ------------------------------------------------------------------------------------------------- their keys


def checked_settings(settings: Mapping[str, Any], path: str, options: Mapping[str, Key]) -> dict[str, Any]:
    """Settings by key as they are read: build options, the profile, and `options` of a command; budgets are left as
    they are. `path` names the file in messages. `settings` are as the file has them. Raises BadInput that lists all
    that is wrong."""
    keys = {**_build_option_keys(), **options}
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in settings.items():
        if name == BUDGETS:
            found[name] = value
        elif name not in keys:
            wrong.append(f"{path}: {name}: there is no such setting. {_nearest(name, (*keys, BUDGETS))}")
        elif (read := keys[name].read(value)) is None:
            shown = f'"{value}"' if isinstance(value, str) else repr(value)
            wrong.append(f"{path}: {name}: {shown} is not allowed. Choose from: {keys[name].allowed}.")
        else:
            found[name] = read
    if wrong:
        raise BadInput("\n".join(wrong))
    return found


def known_keys(options: Mapping[str, Key]) -> Mapping[str, str]:
    """Every key of settings, with what it may be."""
    return {
        **{name: key.allowed for name, key in {**_build_option_keys(), **options}.items()},
        BUDGETS: "a table",
    }


def resolve_build_options(
    given: Mapping[str, Any], settings: Mapping[str, Any], profile: str | None
) -> BuildOptions:
    """The build options in force: what is `given`, by field, else what the checked settings say, else what the
    profile does, which itself is given or set. `settings` are those of the file, `profile` is that of the command
    line, if any. Raises BadInput that lists what is none of the values."""
    wrong = []
    if profile is not None and profile not in PROFILES:
        wrong.append(f"--{PROFILE} {profile}: there is none. Choose from {', '.join(PROFILES)}.")
    named = profile or settings.get(PROFILE, DEFAULT)
    base = in_profile(named)
    made = {}
    for option in table():
        value = given.get(option.name)
        if value is None:
            made[option.name] = settings.get(option.key, getattr(base, option.name))
            continue
        made[option.name] = option.read(value)
        if made[option.name] is None:
            shown = ",".join(value) if isinstance(value, (list, tuple)) else value
            wrong.append(f"--{option.key} {shown}: is not allowed. Choose from: {option.allowed}.")
    if wrong:
        raise BadInput("\n".join(wrong))
    return BuildOptions(**made)


def _build_option_keys() -> dict[str, Key]:
    def profile(value: Any) -> Any:
        return value if isinstance(value, str) and value in PROFILES else None

    return {PROFILE: Key(", ".join(PROFILES), profile)} | {c.key: Key(c.allowed, c.read) for c in table()}


def _nearest(name: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.replace("_", "-"), keys, 1)
    return f"Did you mean {near[0]}?" if near else f"Choose from {', '.join(sorted(keys))}."
