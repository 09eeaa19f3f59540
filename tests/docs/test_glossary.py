"""Retired names do not come back: what `docs/glossary.md` lists is no module, identifier, header, option or key any
more.

Prose, comments and the changelog are free to use these words.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from places import ROOT

from minbuild.cli.introspection import command_line
from minbuild.cli.option_parsing import options_of
from minbuild.cli.reduce import reduce
from minbuild.cli.settings_file import known_keys

pytestmark = pytest.mark.unit

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def retired(section: str) -> list[str]:
    """The names in backquotes of the left column of the table below a heading of the glossary."""
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    body = re.split(r"\n#+ ", text[text.index(f"\n### {section}\n") + 5 :])[0]
    rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("|")]
    return sorted({name for row in rows for name in re.findall(r"`([^`]+)`", row)})


@cache
def modules() -> frozenset[str]:
    """File and folder names of the package, without suffix."""
    return frozenset(p.stem for p in (ROOT / "minbuild").rglob("*") if p.suffix == ".py" or p.is_dir())


@cache
def definitions() -> frozenset[str]:
    """Names that Python code defines for others: classes, functions, methods, their arguments, fields, constants. Local
    names are free."""
    found: set[str] = set()
    for path in (ROOT / "minbuild").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        found.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
        for owner in ast.walk(tree):
            if not isinstance(owner, (ast.Module, ast.ClassDef)):
                continue
            for node in owner.body:
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                    found.add(node.name)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(node.target.id)
                elif isinstance(node, ast.Assign):
                    found.update(t.id for t in node.targets if isinstance(t, ast.Name))
    return frozenset(found)


@cache
def device_names() -> frozenset[str]:
    """Identifiers and file names of the code that runs on devices."""
    found: set[str] = set()
    for path in (ROOT / "kernels").rglob("*"):
        if path.suffix in (".cc", ".c", ".h", ".inc"):
            found.add(path.name)
            found.update(re.findall(r"[A-Za-z_]\w*", _COMMENT.sub(" ", path.read_text("utf-8"))))
    return frozenset(found)


@cache
def options() -> frozenset[str]:
    """Commands, options and keys of settings, as users write them."""
    commands = command_line()
    names = {name for c in commands for p in c.parameters for name in p.names}
    keys = {f"--{key}" for key in known_keys(options_of(reduce))}
    return frozenset(names | keys | {c.name for c in commands})


@pytest.mark.parametrize(
    ("section", "present"),
    [
        ("Modules", modules),
        ("Python", definitions),
        ("C++", device_names),
        ("Command line and settings", options),
    ],
)
def test_retired_names_stay_away(section, present) -> None:
    names = retired(section)
    assert len(names) > 5, "the glossary lists them"
    assert not [name for name in names if name in present()], "use the name beside it in docs/glossary.md"


def test_the_search_would_find_them() -> None:
    """Names in use are found by the same means, so that nothing passes because nothing was looked at."""
    assert {"pipeline", "arena", "planning"} <= modules()
    assert {"CompiledModel", "reduce", "registry"} <= definitions()
    assert {"Tensor", "relu", "vec.h"} <= device_names()
    assert {"--target", "--profile", "--out", "reduce", "scan"} <= options()


def test_every_commit_of_an_old_name_has_a_new_one() -> None:
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    tables = text[text.index("## Retired names") :]
    for line in tables.splitlines():
        if line.startswith("| `"):
            assert line.split("|")[2].strip(), line
