"""Running the command in this process, and artifacts to run it on: shared by tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from places import GOLDEN, ROOT

from minbuild.cli import main as cli
from minbuild.codegen.ownership import sealed

SMALL = GOLDEN / "dense_fixed"  # every size fixed
FREE = GOLDEN / "dense"  # a free batch, clipped gradients


@dataclass(frozen=True)
class Said:
    """What a command left."""

    code: int
    out: str
    err: str


class Command:
    """Calls the command as a shell would."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Said:
        self.capsys.readouterr()
        try:
            cli.app([str(a) for a in arguments])
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = self.capsys.readouterr()
        return Said(code, captured.out, captured.err)


@pytest.fixture(name="minbuild")
def command_fixture(capsys: pytest.CaptureFixture[str]) -> Command:
    """`minbuild("reduce", ...)` runs the command; test files import this fixture to have it."""
    return Command(capsys)


def copy_of(artifacts: Path, folder: Path) -> Path:
    """The four artifacts of a golden set, to be damaged."""
    folder.mkdir()
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        shutil.copyfile(artifacts / name, folder / name)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def call(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, "-m", "minbuild.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def with_manifest(files: dict[str, bytes]) -> dict[str, bytes]:
    """A package of these files."""
    digests = {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    return {**files, "manifest.json": sealed({"tool": "minbuild", "files": digests})}
