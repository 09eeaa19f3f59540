"""docs/reference/commands.md: every command with its arguments and options, from the command line itself."""

from __future__ import annotations

from minbuild.cli.introspection import CommandHelp, ParameterHelp, command_line
from minbuild.docgen.markdown import cell, code, table
from minbuild.options.build_options import table as build_options

_HEAD = """# Commands

`minbuild COMMAND --help` prints the same on the terminal. `python -m minbuild` is the same program.

"""
_BUILD = "Options that control how the library is built are listed in [build options](options.md).\n"


def commands_page() -> str:
    """Markdown: a summary, then one section per command."""
    commands = command_line()
    rows = [[f"[`minbuild {c.name}`](#minbuild-{c.name})", cell(c.help)] for c in commands]
    return _HEAD + table(["command", "purpose"], rows) + "".join(map(_section, commands))


def _section(command: CommandHelp) -> str:
    built = {f"--{option.key}" for option in build_options()}
    own = [p for p in command.parameters if p.names[0] not in built]
    panels = dict.fromkeys(p.panel for p in own)
    parts = [f"\n## minbuild {command.name}\n\n{_html_safe(command.help)}\n"]
    for panel in panels:
        rows = [_row(p) for p in own if p.panel == panel]
        parts.append(f"\n**{panel}**\n\n{table(['name', 'value', 'meaning'], rows)}")
    if len(own) < len(command.parameters):
        parts.append(f"\n{_BUILD}")
    return "".join(parts)


def _row(parameter: ParameterHelp) -> list[str]:
    names = ", ".join(code(name) for name in parameter.names)
    required = " Required." if parameter.required and parameter.is_option else ""
    return [names, code(parameter.metavar) if parameter.metavar else "", cell(parameter.help) + required]


def _html_safe(text: str) -> str:
    return text.replace("<", "&lt;")
