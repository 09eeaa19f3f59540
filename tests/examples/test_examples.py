"""Examples run as their READMEs say."""

from __future__ import annotations

from pathlib import Path

import doc_blocks
import pytest
from places import EXAMPLES

FOLDERS = sorted(p.parent for p in EXAMPLES.glob("*/README.md"))
LONG = ("keyword-spotting", "lora-transformer")  # train what ships first, for ten seconds and more
RUNS = [pytest.param(p, marks=pytest.mark.journeys) if p.name in LONG else p for p in FOLDERS]


@pytest.mark.docs
@pytest.mark.parametrize("example", RUNS, ids=lambda p: p.name)
def test_the_commands_of_an_example_run(example: Path, tmp_path: Path) -> None:
    absent = doc_blocks.run_example(example, tmp_path)
    if absent:
        pytest.skip(f"all other commands ran; not installed: {', '.join(dict.fromkeys(absent))}")


def test_every_example_is_listed() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert FOLDERS and not [f.name for f in FOLDERS if f"]({f.name}/README.md)" not in text]
