"""docs/reference/commands.md: every command with its arguments and options, from the command line itself."""

from __future__ import annotations

import textwrap

from minbuild.cli.introspection import CommandHelp, ParameterHelp, command_line
from minbuild.docgen.markdown import cell, code, table
from minbuild.options.build_options import table as build_options

_HEAD = """# Commands

`minbuild COMMAND --help` prints the same on the terminal, and for `minbuild reduce` the [build options](options.md) as
well. `python -m minbuild` is the same program.

"""
_CODE = " " * 4  # before the lines of commands and files
_BUILD = "Options that control how the library is built are listed in [build options](options.md).\n"


def commands_page() -> str:
    """Markdown: a summary, then one section per command."""
    commands = command_line()
    rows = [[f"[`minbuild {c.name}`](#minbuild-{c.name})", cell(c.help)] for c in commands]
    return _HEAD + table(["command", "purpose"], rows) + "".join(map(_section, commands))


def _section(command: CommandHelp) -> str:
    # Other commands that take such an option describe it and its default themselves.
    built = {f"--{option.key}" for option in build_options()} if command.name == "reduce" else set()
    own = [p for p in command.parameters if p.names[0] not in built]
    panels = dict.fromkeys(p.panel for p in own)
    parts = [f"\n## minbuild {command.name}\n\n{_html_safe(command.help)}\n"]
    for panel in panels:
        rows = [_row(p) for p in own if p.panel == panel]
        parts.append(f"\n**{panel}**\n\n{table(['name', 'value', 'meaning'], rows)}")
    if len(own) < len(command.parameters):
        parts.append(f"\n{_BUILD}")
    return "".join((*parts, *map(_paragraph, command.epilog.split("\n\n") if command.epilog else ())))


def _paragraph(text: str) -> str:
    """A paragraph of what the help ends with: indented lines are code, the word at its head is a title."""
    if text.startswith(_CODE):
        return f"\n```text\n{textwrap.dedent(text)}\n```\n"
    return f"\n**{text}**\n" if text == "Examples" else f"\n{_html_safe(text)}\n"


def _row(parameter: ParameterHelp) -> list[str]:
    names = ", ".join(code(name) for name in parameter.names)
    required = " Required." if parameter.required and parameter.is_option else ""
    return [names, code(parameter.metavar) if parameter.metavar else "", cell(parameter.help) + required]


def _html_safe(text: str) -> str:
    return text.replace("<", "&lt;")
