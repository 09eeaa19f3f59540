"""The English of docstrings, help and header comments: a noun or a verb comes first, and clauses that readers stumble
over stay out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from minbuild.cli.introspection import command_line

ROOT = Path(__file__).resolve().parents[2]
_OPENING = re.compile(r"(What|Who|Whose|Whether|How)\b")
_PHRASES = re.compile(
    r"\b(of which|so many|that there are|wants?|wanted|hears?|heard|tells?|told|answers?|answered)\b"
)  # code does not want, hear, tell or answer
_SOURCES = (".cc", ".c", ".h", ".inc")


def faults(text: str) -> list[str]:
    """The rules that a text breaks; what is quoted as code is exempt."""
    plain = re.sub(r"`[^`]*`", "", text)
    found = [f"opens with {match[0]}" for match in [_OPENING.match(plain)] if match]
    return found + [f"says {match!r}" for match in _PHRASES.findall(re.sub(r"\s+", " ", plain))]


def docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "minbuild").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def help_texts() -> Iterator[tuple[str, str]]:
    for command in command_line():
        yield command.name, command.help
        for parameter in command.parameters:
            yield f"{command.name} {'/'.join(parameter.names)}", parameter.help


def header_comments() -> Iterator[tuple[str, str]]:
    """The first comment of every source of the device library."""
    for path in sorted((ROOT / "kernels").rglob("*")):
        if path.suffix in _SOURCES and "bindings" not in path.parts:
            comment = re.match(r"(?://[^\n]*\n)+|/\*.*?\*/", path.read_text("utf-8"), re.DOTALL)
            assert comment, f"{path.relative_to(ROOT)} begins with a comment"
            yield str(path.relative_to(ROOT)), re.sub(r"(?m)^(//|/\*| \*)\s?", "", comment[0]).strip()


@pytest.mark.unit
@pytest.mark.parametrize("texts", [docstrings, help_texts, header_comments], ids=lambda f: f.__name__)
def test_texts_open_with_a_noun_or_a_verb(texts) -> None:
    found = [f"{place}: {fault}: {text[:60]}" for place, text in texts() for fault in faults(text)]
    assert not found, "\n".join(found)


@pytest.mark.unit
@pytest.mark.parametrize("texts", [docstrings, help_texts, header_comments], ids=lambda f: f.__name__)
def test_there_are_texts(texts) -> None:
    assert len(list(texts())) > 50


@pytest.mark.unit
def test_every_package_says_what_lives_in_it() -> None:
    """The docstring of each `__init__` says what lives in the folder, and what may import or change it: two sentences
    at least."""
    for path in (ROOT / "minbuild").rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        assert len(re.findall(r"[a-z)`]{2}\.(?=\s|$)", text)) >= 2, path


@pytest.mark.unit
@pytest.mark.parametrize(
    "text,count",
    [
        ("What a plan is.", 1),
        ("Whatever is left.", 0),
        ("A list, of which one is\nso many.", 2),
        ("`of which` is code.", 0),
        ("The kernel is told a size, and answers with a sum.", 2),
    ],
)
def test_faults_are_found(text, count) -> None:
    assert len(faults(text)) == count


def undocumented(source: str, exempt: frozenset[str] = frozenset()) -> list[str]:
    """The arguments of public functions with more than two that neither their docstring nor their class's names;
    `exempt` functions are left out."""
    found: list[str] = []

    def visit(body: list[ast.stmt], owner: str, about: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                visit(node.body, f"{node.name}.", ast.get_docstring(node) or "")
            elif isinstance(node, ast.FunctionDef) and not re.match(r"_(?!_init__|_call__)", node.name):
                if node.name in exempt:
                    continue
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                names = [a.arg for a in given if a.arg not in ("self", "cls")]
                text = f"{about} {ast.get_docstring(node) or ''}"
                missing = [n for n in names if len(names) > 2 and not re.search(rf"`{n}\b", text)]
                found.extend(f"{owner}{node.name}: {name}" for name in missing)

    visit(ast.parse(source).body, "", "")
    return found


ROOMS = sorted(p.parent.name for p in (ROOT / "minbuild").glob("*/__init__.py"))


@pytest.mark.unit
@pytest.mark.parametrize("room", [*ROOMS, "."])
def test_arguments_are_documented(room) -> None:
    """Of every public function; commands have a help text for each instead."""
    place = ROOT / "minbuild" / room
    commands = {c.name.replace("-", "_") for c in command_line()} if room == "cli" else set()
    modules = sorted(place.glob("*.py") if room == "." else place.rglob("*.py"))
    found = {p.name: undocumented(p.read_text("utf-8"), frozenset(commands)) for p in modules}
    assert modules and not {name: missing for name, missing in found.items() if missing}


@pytest.mark.unit
def test_every_option_has_a_help_text() -> None:
    assert not [f"{c.name} {p.names}" for c in command_line() for p in c.parameters if len(p.help) < 10]


@pytest.mark.unit
def test_arguments_without_words_are_found() -> None:
    assert undocumented('def f(a, b, c):\n    """`a` and `b`."""') == ["f: c"]
    assert not undocumented("def f(a, b):\n    pass")
