"""Options that follow from tables: the build options on the command line, and a command's other options in settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from minbuild.cli.progress import SIZES, exit_with_code
from minbuild.cli.settings_file import (
    BUDGETS,
    PROFILE,
    Key,
    checked_settings,
    resolve_build_options,
    settings_beside,
)
from minbuild.options.build_options import DEFAULT, PROFILES, BuildOptions, table
from minbuild.options.option_row import BuildOption

_PASSED = "resolved"
_PANEL = "Build options"
_WIDEST = 14  # characters of values that are shown in the help's column of values


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """Options and settings, resolved: the build options, and what settings say of budgets, with their file."""

    build_options: BuildOptions
    budgets: Any
    path: str


# Where a command writes to and how it prints are said when it is called.
LEFT_OUT = frozenset(
    ("artifacts", "out", "force", "settings", "history", "report_form", "json_output", "verbose")
)


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for the profile and one for each build option; options that are not given have the
    values of the settings beside `artifacts`, or in `settings`. It is handed `resolved`."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command)
    parameters = [p.replace(annotation=hints[p.name]) for p in own.parameters.values() if p.name != _PASSED]
    parameters += [_keyword(PROFILE, str | None, _profile_option())]
    parameters += [
        _keyword(c.name, list[str] | None if c.multiple else str | None, _option(c)) for c in table()
    ]
    keys = options_of(command)

    def call(**given: Any) -> None:
        with exit_with_code(given["verbose"]):
            found, path = settings_beside(given["artifacts"], given["settings"])
            settings = checked_settings(found, path, keys)
            made = {option.name: given.pop(option.name) for option in table()}
            build_options = resolve_build_options(made, settings, given.pop(PROFILE))
            for name in given:
                if given[name] is None and name not in LEFT_OUT:
                    given[name] = _beside(path, settings.get(_title(name)))
            command(**given, resolved=ResolvedOptions(build_options, settings.get(BUDGETS, {}), path))

    call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    call.__name__, call.__doc__, call.__module__ = command.__name__, command.__doc__, command.__module__
    return call


def _beside(file: str, value: Any) -> Any:
    """A setting, where it is a path seen from the file's folder."""
    if isinstance(value, list):
        return [_beside(file, part) for part in value]
    return Path(file).parent / value if isinstance(value, Path) else value


def _keyword(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _profile_option() -> Any:
    told = "; ".join(f"{name}: {what}" for name, what in PROFILES.items())
    return typer.Option(help=f"{told}. Default: {DEFAULT}.", metavar="PROFILE", rich_help_panel=_PANEL)


def _option(option: BuildOption) -> Any:
    values = "|".join(option.values)
    short = len(values) <= _WIDEST  # else the column of values leaves no room for the texts
    choose = "" if short else f" Values: {', '.join(option.values)}."
    return typer.Option(
        f"--{option.key}",
        help=f"{option.description[0].upper()}{option.description[1:]}.{choose} {defaults_of(option)}",
        metavar="BYTES" if option.sized else (values if short else "VALUE") or "NAME",
        envvar="MINBUILD_AVX512" if option.name == "avx512" else None,
        rich_help_panel=_PANEL,
    )


def defaults_of(option: BuildOption) -> str:
    """The values in the profiles, in words."""
    others = [f"{name}: {_words(value)}" for name, value in option.profiles.items()]
    default = _words(option.default) if option.default else "none"
    several = " Repeatable, or with commas." if option.multiple else ""
    return f"{'; '.join((f'Default: {default}', *others))}.{several}"


def _words(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def options_of(command: Callable[..., None]) -> Mapping[str, Key]:
    """The command's options as settings, by name without dashes, but for profile and build options."""
    hints = get_type_hints(command, include_extras=True)
    others = LEFT_OUT | {PROFILE, *(option.name for option in table())}
    found = {}
    for name in inspect.signature(command).parameters:
        kind, *notes = get_args(hints[name]) or (None,)
        option = next((note for note in notes if isinstance(note, OptionInfo)), None)
        if option is not None and name not in others:
            found[_title(name)] = _key(kind, option)
    return found


def _title(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _key(kind: Any, option: OptionInfo) -> Key:
    if option.metavar == SIZES:
        return Key('a table such as { batch = 8 }, or a list such as ["batch=8"]', _sizes)
    parts = {kind, *get_args(kind)}
    within = parts.union(*(get_args(part) for part in parts))
    if bool in parts:
        return Key("true, false", lambda value: value if isinstance(value, bool) else None)
    if int in parts:
        return Key("a whole number", lambda value: value if type(value) is int else None)
    what, word = ("path", _path) if Path in within else ("text", _text)
    if within != parts:
        return Key(f"a list of {what}s, or one {what}", lambda value: _each(value, word))
    return Key(f"a {what}", word)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _path(value: Any) -> Path | None:
    return Path(value) if isinstance(value, str) and value else None


def _each(value: Any, word: Callable[[Any], Any]) -> list[Any] | None:
    values = [word(part) for part in (value if isinstance(value, list) else [value])]
    return None if None in values else values


def _sizes(value: Any) -> list[str] | None:
    if isinstance(value, dict):
        fine = all(isinstance(size, int) and not isinstance(size, bool) for size in value.values())
        return [f"{name}={size}" for name, size in value.items()] if fine else None
    return _each(value, _text)
