"""The command line as data: commands with their arguments and options, for documentation and tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import typer

from minbuild.cli.main import app

_MARKUP = re.compile(r"\[/?(?:bold|italic|dim)\]")
_ESCAPED = re.compile(r"\\\[")


@dataclass(frozen=True, slots=True)
class ParameterHelp:
    """One argument or option: its spellings, the placeholder of its value, its panel in the help, and what it does."""

    names: tuple[str, ...]
    metavar: str
    panel: str
    required: bool
    help: str

    @property
    def is_option(self) -> bool:
        return self.names[0].startswith("-")


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """One command with its parameters in the order of its help."""

    name: str
    help: str
    epilog: str
    parameters: tuple[ParameterHelp, ...]


def command_line() -> tuple[CommandHelp, ...]:
    """All commands, in the order of `minbuild --help`."""
    group: Any = typer.main.get_command(app)
    return tuple(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> CommandHelp:
    parameters = (
        _parameter(p) for p in command.params if p.name != "help" and not getattr(p, "hidden", False)
    )
    text = " ".join((command.help or "").split())
    return CommandHelp(name, text, _plain(command.epilog or ""), tuple(parameters))


def _parameter(parameter: Any) -> ParameterHelp:
    option = parameter.opts[0].startswith("-")
    names = (
        (*parameter.opts, *parameter.secondary_opts)
        if option
        else (parameter.metavar or parameter.name.upper(),)
    )
    switch = getattr(parameter, "is_flag", False)
    metavar = "" if switch or not option else parameter.metavar or "VALUE"
    panel = getattr(parameter, "rich_help_panel", None) or ("Options" if option else "Arguments")
    text = _plain(" ".join((parameter.help or "").split()))
    if option and not switch and not parameter.required and parameter.default not in (None, (), []):
        shown = parameter.default.value if hasattr(parameter.default, "value") else parameter.default
        text += "" if "Default:" in text else f" Default: {shown}."
    if parameter.envvar:
        text += f" Environment variable: {parameter.envvar}."
    return ParameterHelp(tuple(names), metavar, panel, bool(parameter.required), text)


def _plain(text: str) -> str:
    return _ESCAPED.sub("[", _MARKUP.sub("", text))
