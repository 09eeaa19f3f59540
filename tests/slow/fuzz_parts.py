"""Feeds damaged checkpoints with properties, nominal ones, and damaged export templates to a library with all parts,
built by g++ with the address and undefined-behaviour sanitizers.

    python tests/slow/fuzz_parts.py [ROUNDS]

Ends with 1, and the sanitizer's report, if it finds anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent), str(TESTS / "slow")]

import sanitizers  # noqa: E402
from case_sets import GOLDEN, Library, load, trainer  # noqa: E402

from minbuild.codegen.sources import COMPONENTS  # noqa: E402
from minbuild.frontend.checkpoint import write_checkpoint  # noqa: E402
from minbuild.ir import Checkpoint  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.compiled_model import with_components  # noqa: E402
from minbuild.training.library import Session, TrainerError  # noqa: E402

CASE = GOLDEN / "residual"
PROPERTIES = {"epoch": 2**40, "loss": 0.5, "note": "halfway", "long": "x" * 300, "": ""}


def main() -> int:
    rounds = sys.argv[1] if len(sys.argv) > 1 else "20000"
    with tempfile.TemporaryDirectory() as name:
        built = trainer(CASE)
        whole = replace(built, contents=replace(built.contents, components=frozenset(COMPONENTS)))
        library = sanitizers.shared_library(whole, Path(name) / "all.so")
        environment = {**os.environ, **sanitizers.preload()}
        return subprocess.run(
            [sys.executable, __file__, rounds, library], env=environment, check=False
        ).returncode


def fuzz(rounds: int, path: Path) -> None:
    case, built, model = (
        load(CASE),
        trainer(CASE),
        with_components(compile_model(CASE, {}, {}), list(COMPONENTS)),
    )
    held = case.artifacts.checkpoint
    assert model.export_template is not None
    victims = (
        write_checkpoint(replace(held, properties=PROPERTIES)),
        write_checkpoint(Checkpoint(held.parameters, nominal=True)),
        model.export_template,
    )
    library, random = Library(path), np.random.default_rng(1)
    session, done = Session(library, built.data, case.checkpoint), 0
    for number in range(rounds):
        which = number % len(victims)
        data = _damaged(victims[which], random)
        try:
            session.export(data) if which == 2 else session.load(data)
            session.properties()
            session.set_property(f"p{number % 9}", "x" * int(random.integers(400)))
            session.checkpoint(True)
            done += 1
        except (TrainerError, UnicodeDecodeError):
            session.load(case.checkpoint)
    print(f"{rounds} mutations, {done} of them accepted, no finding")


def _damaged(data: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, mostly among the first, where the tables are; sometimes cut."""
    found = bytearray(data)
    for _ in range(int(random.integers(1, 6))):
        end = len(found) if random.random() < 0.3 else min(len(found), 600)
        found[int(random.integers(end))] = int(random.integers(256))
    return bytes(found[: int(random.integers(len(found)))] if random.random() < 0.1 else found)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        fuzz(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.exit(main())
