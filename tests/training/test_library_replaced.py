"""A package that is reduced again while a program has its library loaded, as happens in notebooks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from commands import SMALL, Command, command_fixture  # noqa: F401
from places import GOLDEN

from minbuild.training.trainer import Trainer


def test_the_new_library_is_used(tmp_path: Path, minbuild: Command) -> None:
    """With the plan compiled in, the old library would train the old model without a word."""
    seen = []
    for artifacts in (SMALL, GOLDEN / "conv", SMALL):
        said = minbuild(
            "reduce",
            artifacts,
            "--out",
            tmp_path / "dist",
            "--no-analysis",
            "--flavor",
            "compiled",
            "--force",
        )
        assert said.code == 0, said.err
        trainer = Trainer(tmp_path / "dist")
        seen.append((trainer.trained, trainer.flat()))
    (first, start), (other, _), (again, last) = seen
    assert first == again and first != other
    np.testing.assert_array_equal(start, last)
