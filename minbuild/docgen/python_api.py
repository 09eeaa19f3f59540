"""docs/reference/python-api.md: public classes and functions of minbuild.training, from their sources."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

_HEAD = """# Python API

The modules that users import, with their public names as the sources declare and document them. Names and arguments
of `minbuild.training.api`, `minbuild.training.artifacts` and `minbuild.training.onnxblock` are those of ONNX Runtime
1.19.2.

"""
MODULES = (
    "minbuild/training/api.py",
    "minbuild/training/state.py",
    "minbuild/training/artifacts.py",
    "minbuild/training/library.py",
    "minbuild/training/onnx_backend.py",
    "minbuild/compat/onnx_backend.py",
    "minbuild/training/trainer.py",
    "minbuild/training/feature_cache.py",
    "minbuild/training/learning_kit.py",
    "minbuild/torch/from_module.py",
    "minbuild/federated/client.py",
    "minbuild/federated/updates.py",
    "minbuild/federated/privacy.py",
    "minbuild/federated/flower.py",
)


def python_api_page(root: Path) -> str:
    """Markdown for the modules of the checkout at `root` that exist."""
    return _HEAD + "\n".join(_module(root, path) for path in MODULES if (root / path).is_file())


def _module(root: Path, path: str) -> str:
    tree = ast.parse((root / path).read_text("utf-8"))
    name = path.removesuffix(".py").replace("/", ".")
    parts = [f"## {name}\n", _doc(tree, first_code=True)]
    for node in _public(tree.body):
        if isinstance(node, ast.ClassDef):
            parts += [f"### class {node.name}\n", _class_signature(node), _doc(node)]
            parts += [_member(node.name, m) for m in _public(node.body) if isinstance(m, ast.FunctionDef)]
        else:
            parts += [f"### {node.name}\n", _signature(node.name, node), _doc(node)]
    return "\n".join(part for part in parts if part)


def _public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        if node.name == "__call__" or not node.name.startswith("_"):
            overload = isinstance(node, ast.FunctionDef) and any(
                ast.unparse(d).endswith((".setter", "overload")) for d in node.decorator_list
            )
            if not overload:
                yield node


def _member(owner: str, node: ast.FunctionDef) -> str:
    if any(ast.unparse(d).endswith("property") for d in node.decorator_list):
        returns = f": {ast.unparse(node.returns)}" if node.returns else ""
        return f"**{owner}.{node.name}**{'' if not returns else f' `{returns[2:]}`'}\n\n{_doc(node)}"
    shown = owner if node.name == "__call__" else f"{owner}.{node.name}"
    return f"**{shown}{'(...)' if node.name == '__call__' else ''}**\n\n{_signature(node.name, node)}\n{_doc(node)}"


def _class_signature(node: ast.ClassDef) -> str:
    first = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    if first is None:
        bases = ", ".join(ast.unparse(b) for b in node.bases)
        return f"```python\nclass {node.name}{f'({bases})' if bases else ''}\n```\n"
    return _signature(node.name, first, returns=False)


def _signature(name: str, node: ast.FunctionDef, returns: bool = True) -> str:
    arguments = _split_arguments(ast.unparse(node.args))
    if arguments and arguments[0] in ("self", "cls"):
        arguments = arguments[1:]
    result = f" -> {ast.unparse(node.returns)}" if returns and node.returns else ""
    text = f"{name}({', '.join(arguments)}){result}"
    if len(text) > 100:
        inner = _split_arguments(", ".join(arguments))
        text = f"{name}(\n" + "".join(f"    {a},\n" for a in inner) + f"){result}"
    return f"```python\n{text}\n```\n"


def _split_arguments(text: str) -> list[str]:
    """At commas outside of brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


def _doc(node: ast.Module | ast.ClassDef | ast.FunctionDef, first_code: bool = False) -> str:
    text = inspect.cleandoc(ast.get_docstring(node) or "").replace("<", "&lt;")
    if first_code and "\n\n" in text:
        paragraphs = [
            f"```python\n{p.replace('&lt;', '<')}\n```" if " = " in p.split("\n")[0] else p
            for p in text.split("\n\n")
        ]
        text = "\n\n".join(paragraphs)
    return text + "\n" if text else ""
