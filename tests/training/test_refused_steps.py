"""Steps that a package refuses for its choice of --updates: the error names the call to make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_sets import load
from commands import SMALL, Command, command_fixture  # noqa: F401  the fixture `minbuild`

from minbuild.training.library import TrainerError
from minbuild.training.trainer import Trainer


@pytest.mark.parametrize("messages", ["text", "codes"])
def test_a_fused_package_names_train_and_update(tmp_path: Path, minbuild: Command, messages: str) -> None:
    options = ("--updates", "fused", "--error-messages", messages)
    said = minbuild("reduce", SMALL, "--out", tmp_path / "dist", "--no-analysis", *options)
    assert said.code == 0, said.err
    trainer, batch = Trainer(tmp_path / "dist"), load(SMALL).batch(0)
    before = trainer.flat().copy()
    for refused in (lambda: trainer.module(*batch), trainer.optimizer.step):
        with pytest.raises(TrainerError, match=r"no such graph: .*--updates fused.*train_and_update\("):
            refused()
    np.testing.assert_array_equal(trainer.flat(), before)
    loss = trainer.module.eval()(*batch)
    assert np.isfinite(trainer.module.train_and_update(*batch)) and np.isfinite(loss)
    assert not np.array_equal(trainer.flat(), before)


def test_other_packages_name_the_two_calls(package) -> None:
    trainer = Trainer(package("dense_fixed"))
    before = trainer.flat().copy()
    with pytest.raises(TrainerError, match=r"no such graph: .*Call the module, then Optimizer.step\(\)"):
        trainer.module.train_and_update(*load(SMALL).batch(0))
    np.testing.assert_array_equal(trainer.flat(), before)
