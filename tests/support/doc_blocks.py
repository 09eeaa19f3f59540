"""Fenced blocks of Markdown: which are run, which make files, which need a tool. Shared by tests of documentation.

A comment before a block changes what is done with it: `<!-- needs: cmake, python:torch -->` names programs and
modules it is skipped without, `<!-- not run: reason -->` keeps it from running, `<!-- file: name -->` writes it to a
file instead, `<!-- as in: example -->` has lines of that example's README, which are run there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from places import EXAMPLES, ROOT

RUN = ("sh", "python")  # languages that run where no comment says otherwise
_BLOCK = re.compile(
    r"(?:^<!-- (?P<key>needs|not run|file|as in): (?P<value>.*?) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
TIMEOUT = 900  # seconds of one block, of full libraries on a slow machine too


@dataclass(frozen=True)
class Block:
    """One fenced block: `key` is the word of the comment before it, "" without one."""

    language: str
    key: str
    value: str
    body: str
    line: int

    @property
    def missing(self) -> list[str]:
        """Programs and modules that the block needs and this machine lacks."""
        return [name for name in self.value.split(", ") if not _present(name)] if self.key == "needs" else []

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.key in ("", "needs")


def blocks(path: Path) -> list[Block]:
    """The blocks of a page, in its order."""
    text = path.read_text("utf-8")
    return [
        Block(
            m["language"], m["key"] or "", m["value"] or "", m["body"], text.count("\n", 0, m.start("body"))
        )
        for m in _BLOCK.finditer(text)
    ]


def _present(name: str) -> bool:
    if name.startswith("python:"):
        return importlib.util.find_spec(name.removeprefix("python:")) is not None
    return shutil.which(name) is not None


def run_page(path: Path, folder: Path) -> list[str]:
    """Runs the blocks of a page of the documentation in `folder`, which gets a copy of the sample artifacts and of the
    examples. The names of missing tools; raises AssertionError with the output of a block that fails."""
    shutil.copytree(ROOT / "artifacts", folder / "artifacts")
    shutil.copytree(EXAMPLES, folder / "examples")
    return _run_blocks(path, folder)[0]


def run_example(example: Path, folder: Path) -> list[str]:
    """Runs the blocks of an example's README in a copy of the example. Where every tool is there, its blocks of text
    must be what was printed, but for the numbers."""
    shutil.copytree(example, folder, dirs_exist_ok=True)
    page = example / "README.md"
    absent, printed = _run_blocks(page, folder)
    if not absent:
        lines = {_without_numbers(line) for line in printed.splitlines()}
        for block in blocks(page):
            if block.language == "text":
                assert {_without_numbers(line) for line in block.body.splitlines()} <= lines, printed
    return absent


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]+", "#", line.strip())


def _run_blocks(path: Path, folder: Path) -> tuple[list[str], str]:
    """The names of missing tools, and what was printed."""
    environment = environment_of(folder)
    absent: list[str] = []
    printed: list[str] = []
    for block in blocks(path):
        if block.key == "file":
            target = folder / block.value
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.body, "utf-8")
        elif block.missing:
            absent += block.missing
        elif block.runs:
            printed.append(_run(block, path, folder, environment))
    return absent, "\n".join(printed)


def _run(block: Block, path: Path, folder: Path, environment: dict[str, str]) -> str:
    command = (
        ("bash", "-euo", "pipefail", "-c", block.body)
        if block.language == "sh"
        else (sys.executable, "-c", block.body)
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    where = f"{path.relative_to(ROOT)}:{block.line}"
    assert done.returncode == 0, (
        f"{where}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return done.stdout + done.stderr


def environment_of(folder: Path) -> dict[str, str]:
    """With a `minbuild` on the path that is this checkout's, the `python` that runs it, and no analysis, which has
    tests of its own."""
    programs = folder / ".bin"
    programs.mkdir()
    for name, arguments in (("minbuild", " -m minbuild"), ("python", "")):
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n', "utf-8")
        script.chmod(0o755)
    found = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return found | {"MINBUILD_NO_ANALYSIS": "1", "COLUMNS": "100"}
