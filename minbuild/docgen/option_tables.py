"""Documentation of the build options: the table, what settings may hold, and an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minbuild.analysis.budgets import LIMITS, WARN_AT
from minbuild.docgen.markdown import row
from minbuild.options.build_options import DEFAULT, PROFILES, table
from minbuild.options.option_row import BuildOption

EXAMPLE = """profile = "smallest"
target = ["aarch64-linux-musl", "wasm32"]
dim = { batch = 8 }
graphs = ["train", "optimize"]
speed-for = ["Conv", "Gemm"]
unwind-tables = true

[budgets]
flash = "24 KiB"
"""
_HEAD = f"""# Build options

What goes into a library and how it is made is chosen by a profile, and by every build option by itself: on the
command line (`minbuild reduce --profile smallest --unwind-tables on`), or in settings. The command line wins over
settings, settings win over the profile, and without one that is {DEFAULT}. Every report lists the build options in
force.

"""
_NOTES = """
A build option that saves bytes is a step of the report's waterfall, with what it is worth on a real build; what it
would save where it was not made is a suggestion of the report. The model itself chooses operators, element types and
versions of operators: what a version does otherwise is settled when the model is read, so that others cost nothing.

A compiler or a format of libraries may have no way to do what was chosen. `minbuild reduce` then says which build
options were not applied, and builds without them.
"""
_SETTINGS = """
## Settings

They stand in `minbuild.toml`, or in `[tool.minbuild]` of `pyproject.toml`, beside the artifacts or in their folder, or
in the file that `--settings` names. Paths are seen from the folder of that file. All errors in it are reported
together.

"""

BUDGET_EXAMPLE = """[budgets]
flash = "24 KiB"
ram = 65536

[budgets.operators]
Conv = "4 KiB"

[budgets.targets.cortex-m4f]
flash = "16 KiB"
"""
_BUDGETS = f"""
## Budgets

Above a limit of the table `budgets`, `minbuild reduce` ends with exit code 5 and names what grew or what is largest;
from {WARN_AT:.0%} of it on, it prints a note. A size is a number of bytes, or a text such as "64 KiB".
[Keep to a size budget in CI](../guides/ci-budgets.md) is the guide.

| key | limit, on every target |
|---|---|
"""
_TABLES = (
    ("operators", "a table: bytes of the code of single operators, by name"),
    ("targets", "a table of such tables, by target: their limits replace those for every target"),
)


def summary() -> str:
    """Markdown: the profiles, and settings as they are written."""
    lines = [f"- `--profile {name}`: {what}" for name, what in PROFILES.items()]
    return "\n".join(lines) + "\n\n" + _example()


def document(keys: Mapping[str, str], measured: str) -> str:
    """Markdown: all about build options. `keys` are those of settings with what they may be; `measured` is a table
    of the profiles."""
    profiles = "\n".join(f"- **{name}**: {what}" for name, what in PROFILES.items())
    rows = [_row(c) for c in table()]
    head = [
        "option",
        "values",
        DEFAULT,
        *(p for p in PROFILES if p != DEFAULT),
        "what it chooses",
        "cost of the smallest value",
    ]
    linked = {**keys, "budgets": "a table: [budgets](#budgets)"}
    settings = [row((f"`{key}`", allowed)) for key, allowed in linked.items()]
    limits = [row((f"`{key}`", limit)) for key, limit in (*LIMITS.items(), *_TABLES)]
    return "".join(
        (
            _HEAD,
            profiles,
            "\n\n",
            _table(head, rows),
            _NOTES,
            _SETTINGS,
            _example(),
            "\n| key | value |\n|---|---|\n",
            "\n".join(settings),
            "\n",
            _BUDGETS,
            "\n".join(limits),
            f"\n\n```toml\n{BUDGET_EXAMPLE}```\n",
            f"\n## Profiles, measured\n\n{measured}",
        )
    )


def _example() -> str:
    return f"```toml\n{EXAMPLE}```\n"


def _row(option: BuildOption) -> list[str]:
    others = [_words(option.of(name)) for name in PROFILES if name != DEFAULT]
    loses = f"{_words(option.min_size)}: {option.tradeoff}" if option.tradeoff else ""
    return [f"`--{option.key}`", option.allowed, _words(option.default), *others, option.description, loses]


def _words(value: object) -> str:
    return (", ".join(value) if isinstance(value, tuple) else str(value)) or "none"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
