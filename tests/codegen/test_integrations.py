"""`--integration`: each package is built by its tool where that is here, runs its sample, and follows its schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from places import GOLDEN
from programs import CXX, run, tool

from minbuild.codegen.integrations import INTEGRATIONS, bindings_of, parse_integrations
from minbuild.errors import BadInput
from minbuild.options.build_options import BuildOptions
from minbuild.pipeline import Request, reduce
from minbuild.training.library import TRAIN, Library, Session

STEPS = 12
# The part of Arduino.h that the sketch uses, on this machine.
ARDUINO = """
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
struct Printer {
  void begin(long) {}
  void println(const char* text) { printf("%s\\n", text); }
  void println(float number, int digits) { printf("%.*f\\n", digits, static_cast<double>(number)); }
};
static Printer Serial;
"""
MAIN = """
#include "Arduino.h"
#include "Train.ino"
int main() {{ setup(); for (int i = 0; i < {steps}; ++i) loop(); }}
"""
# The fields that the specification of Arduino libraries asks for, and its categories.
REQUIRED = {
    "name",
    "version",
    "author",
    "maintainer",
    "sentence",
    "paragraph",
    "category",
    "url",
    "architectures",
}
CATEGORIES = {"Communication", "Data Processing", "Data Storage", "Device Control", "Display", "Other", "Sensors"} | {
    "Signal Input/Output", "Timing", "Uncategorized"
}  # fmt: skip


class Quiet:
    def stage(self, text: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("integrations") / "dist"
    options = BuildOptions(flavor="interpreted")
    names = ("arduino,platformio", "cargo")
    reduce(
        Request((GOLDEN / "dense",), folder, analysis=False, build_options=options, integrations=names),
        Quiet(),
    )
    return folder


def expected_losses(dist: Path, steps: int) -> list[float]:
    """The losses of the batches that the sketch makes, seen from Python."""
    state = 1

    def bits() -> int:
        nonlocal state
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        return state >> 8

    def normal() -> np.float32:
        total = np.float32(-6)
        for _ in range(12):
            total = np.float32(total + np.float32(bits()) / np.float32(16777216))
        return total

    sketch = (dist / "integrations/arduino/examples/Train/Train.ino").read_text()
    batch, dim = (int(n) for n in re.search(r"MB_FLOAT, 2, \{(\d+), (\d+)\}", sketch).groups())  # type: ignore[union-attr]
    limit = int(re.search(r"random_bits\(\) % (\d+)u", sketch)[1])  # type: ignore[index]
    library = next((dist / "lib").glob("*/libminbuild.so"))
    plan, checkpoint = ((dist / "model" / name).read_bytes() for name in ("trainer.plan", "checkpoint"))
    session = Session(Library(library), plan, checkpoint)
    losses = []
    for _ in range(steps):
        inputs = np.array([normal() for _ in range(batch * dim)], np.float32).reshape(batch, dim)
        labels = np.array([bits() % limit for _ in range(batch)], np.int64)
        losses.append(float(session.run(TRAIN, [inputs, labels])[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


def test_the_sketch_trains(dist: Path, tmp_path: Path) -> None:
    """Compiled as the IDE does it: all that is in src, with src as the only include folder, and the sketch."""
    library = dist / "integrations/arduino"
    (tmp_path / "Arduino.h").write_text(ARDUINO)
    (tmp_path / "main.cc").write_text(MAIN.format(steps=STEPS))
    flags = ("-w", "-O1", f"-I{library / 'src'}", f"-I{library / 'examples/Train'}", f"-I{tmp_path}")
    sources = sorted((library / "src").rglob("*.cc"))
    run(*CXX, *flags, "-fno-exceptions", "-fno-rtti", "main.cc", *sources, "-o", "train", cwd=tmp_path)
    losses = [float(line) for line in run("./train", cwd=tmp_path).split()]
    np.testing.assert_allclose(losses, expected_losses(dist, STEPS), rtol=1e-5, atol=2e-6)


def test_the_library_is_described(dist: Path) -> None:
    folder = dist / "integrations/arduino"
    lines = (folder / "library.properties").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found.keys() >= REQUIRED and all(found[name] for name in REQUIRED)
    assert re.fullmatch(r"\d+\.\d+\.\d+", found["version"]) and found["category"] in CATEGORIES
    assert (
        re.fullmatch(r"[\w][\w .-]{0,62}", found["name"]) and (folder / "src" / found["includes"]).is_file()
    )
    manifest = json.loads((folder / "library.json").read_text())
    assert (
        manifest.keys() >= {"name", "version", "description", "keywords"}
        and manifest["version"] == found["version"]
    )
    for example in manifest["examples"]:
        assert all((folder / example["base"] / name).is_file() for name in example["files"])


def test_the_crate_trains(dist: Path, tmp_path: Path) -> None:
    cargo = tool("cargo")
    folder = dist / "integrations/cargo"
    steps = ("--", dist, 40)
    said = run(
        cargo,
        "run",
        "--offline",
        "--quiet",
        "--target-dir",
        tmp_path,
        "--example",
        "train",
        *steps,
        cwd=folder,
    )
    losses = [float(line) for line in said.split()]
    assert len(losses) == 40 and losses[-1] < losses[0], "one batch again and again is learned"
    assert (folder / "trained.checkpoint").stat().st_size > (dist / "model/checkpoint").stat().st_size


def test_names() -> None:
    assert parse_integrations(["npm,Cargo", "arduino"], 1) == ("arduino", "cargo", "npm")
    assert bindings_of(("arduino", "npm", "aar", "swiftpm")) == ("js", "java", "swift")
    assert {"arduino", "platformio", "cargo", "npm", "aar", "swiftpm"} == set(INTEGRATIONS)
    with pytest.raises(BadInput, match="--integration bazel: unknown. There are arduino"):
        parse_integrations(["bazel"], 1)
    with pytest.raises(BadInput, match="--integration arduino: its sample is for one model"):
        parse_integrations(["npm,arduino"], 2)
