"""Calls that a reader can check without the callee at hand: at most five arguments stand by their place alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_MOST = 5
_VARIADIC = frozenset({"max", "min", "print", "zip", "join"})  # any number of arguments of one meaning


def modules() -> dict[str, ast.Module]:
    """The syntax trees of the package by path."""
    paths = sorted((ROOT / "minbuild").rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in paths}


def variadic(trees: dict[str, ast.Module]) -> frozenset[str]:
    """Names of the functions that only take any number of arguments of one meaning, `def f(*words)`."""
    functions = (n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    return _VARIADIC | {f.name for f in functions if f.args.vararg and not f.args.args}


def long_calls(tree: ast.AST, exempt: frozenset[str]) -> Iterator[ast.Call]:
    """Calls with more than `_MOST` arguments by position. What is unpacked, `*rest`, counts as named."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        plain = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
        if len(plain) > _MOST and name not in exempt:
            yield call


@pytest.mark.unit
def test_calls_name_all_arguments_but_the_first_five() -> None:
    trees = modules()
    exempt = variadic(trees)
    found = [
        f"{path}:{call.lineno}: {ast.unparse(call)[:80]}"
        for path, tree in trees.items()
        for call in long_calls(tree, exempt)
    ]
    assert not found, "pass keywords:\n" + "\n".join(found)


@pytest.mark.unit
@pytest.mark.parametrize(
    "text,count",
    [
        ("f(1, 2, 3, 4, 5)", 0),
        ("f(1, 2, 3, 4, 5, 6)", 1),
        ("a.f(1, 2, 3, 4, 5, 6)", 1),
        ("f(1, 2, 3, 4, 5, six=6)", 0),
        ("f(1, 2, *others, six=6)", 0),
        ("f(g(1, 2, 3, 4, 5, 6))", 1),
        ("max(1, 2, 3, 4, 5, 6)", 0),
    ],
)
def test_the_check_counts_arguments_by_position(text: str, count: int) -> None:
    assert len(list(long_calls(ast.parse(text), _VARIADIC))) == count
