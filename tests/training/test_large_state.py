"""Trainers from Python where parameters pass the 2 GB of ONNX Runtime's format. The limits are lowered, so that no test
needs as many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_sets import GOLDEN, load

from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.training.api import CheckpointState, Module, Optimizer
from minbuild.training.library import Session, TrainerError
from minbuild.training.trainer import Trainer

FOLDER = GOLDEN / "transfer"  # has parameters that do not train
CASE = load(FOLDER)


@pytest.fixture
def _small_format(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("planning.compile", "training.state"):
        monkeypatch.setattr(f"minbuild.{module}.LARGEST_FILE", 100)


def opened(checkpoint: Path) -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(FOLDER / "training_model.onnx", state, FOLDER / "eval_model.onnx")
    return state, module, Optimizer(FOLDER / "optimizer_model.onnx", module)


def trained(checkpoint: Path) -> list[bytes]:
    state, module, optimizer = opened(checkpoint)
    losses = []
    for step in range(3):
        losses.append(np.asarray(module(*CASE.batch(step))).tobytes())
        optimizer.step()
        module.lazy_reset_grad()
    return [*losses, *(parameter.data.tobytes() for _, parameter in state.parameters)]


def test_they_train_as_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = trained(FOLDER / "checkpoint")
    request.getfixturevalue("_small_format")
    asked = []
    create = Session.__init__

    def creates(self: Session, library: object, plan: bytes, checkpoint: bytes, *rest: object) -> None:
        asked.append(bytes(checkpoint[4:8]))
        create(self, library, plan, checkpoint, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "__init__", creates)
    assert trained(FOLDER / "checkpoint") == wanted
    assert asked == [b"MBCP"]


@pytest.mark.usefixtures("_small_format")
def test_optimizer_state_beside_them_is_refused(tmp_path: Path) -> None:
    held = read_checkpoint(CASE.trained[0])
    assert held.groups
    (tmp_path / "checkpoint").write_bytes(write_checkpoint(held))
    with pytest.raises(BadInput, match="parameters are more than .* has optimizer state besides"):
        trained(tmp_path / "checkpoint")


def test_a_batch_that_needs_another_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, _ = opened(FOLDER / "checkpoint")
    batch = CASE.batch(0)
    module(*batch)

    def refuses(*_: object) -> bytes:
        raise TrainerError(9, "a checkpoint has less than two gigabytes: save parameters alone, or read them")

    monkeypatch.setattr(Session, "checkpoint", refuses)
    with pytest.raises(TrainerError, match="larger batch than before .* Reduce with --max-dim"):
        module(*(np.concatenate([array] * 40) for array in batch))


def test_a_package_without_names_asks_for_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "checkpoint.compact").write_bytes(b"0000MBCP")
    with pytest.raises(BadInput, match=r"checkpoint.compact: parameters without names.*Trainer\(package"):
        _ = Trainer(tmp_path).state


@pytest.mark.usefixtures("_small_format")
def test_they_are_saved_in_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over the files that they were read from, which are mapped."""
    monkeypatch.setattr("minbuild.frontend.checkpoint._LEAST_OUTSIDE", 16)
    state, module, optimizer = opened(FOLDER / "checkpoint")
    state.properties["epoch"] = 3
    module(*CASE.batch(0))
    optimizer.step()
    for _ in range(2):
        CheckpointState.save_checkpoint(state, tmp_path / "saved")
        assert (tmp_path / "saved.data").stat().st_size > 100
        again = CheckpointState.load_checkpoint(tmp_path / "saved")
        assert dict(again.properties) == {"epoch": 3}
        assert [(n, p.requires_grad) for n, p in again.parameters] == [
            (n, p.requires_grad) for n, p in state.parameters
        ]
        assert all(np.array_equal(p.data, state.parameters[n].data) for n, p in again.parameters)
        state = again
    with pytest.raises(BadInput, match="bytes of tensors do not fit"):
        monkeypatch.setattr("minbuild.frontend.checkpoint.LARGEST_FILE", 100)
        CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)


def test_their_export_has_the_same_bytes_or_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, module, _ = opened(FOLDER / "checkpoint")
    module(*CASE.batch(0))
    module.export_model_for_inferencing(tmp_path / "small.onnx", ["output"])
    request.getfixturevalue("_small_format")
    assert state._large() is not None
    module.export_model_for_inferencing(tmp_path / "large.onnx", ["output"])
    assert (tmp_path / "large.onnx").read_bytes() == (tmp_path / "small.onnx").read_bytes()
    monkeypatch.setattr("minbuild.planning.inference_export.MOST_IN_FILE", 100)
    with pytest.raises(BadInput, match="inference model takes .* an ONNX file ends at 2 GiB"):
        module.export_model_for_inferencing(tmp_path / "large.onnx", ["output"])
