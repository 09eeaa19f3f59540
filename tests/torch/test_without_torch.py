"""minbuild.torch where torch is not installed, and the names of its losses and optimizers. What needs torch is in
tests/slow/test_pytorch.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Command, command_fixture  # noqa: F401

from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.errors import BadInput
from minbuild.torch import reduce
from minbuild.torch.losses import loss_of
from minbuild.torch.optimizers import optimizer_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def named(name: str, **attributes: Any) -> Any:
    """An object of a class of this name."""
    return type(name, (SimpleNamespace,), {})(**attributes)


def test_a_module_needs_torch() -> None:
    with pytest.raises(
        BadInput, match=r"needs the package (torch|onnxscript), .* pip install 'torch>=2.9' 'onnxscript>=0.5'"
    ):
        reduce(object(), ())


def test_a_program_needs_torch(tmp_path: Path, minbuild: Command) -> None:
    (tmp_path / "model.pt2").write_bytes(b"PK")
    said = minbuild("reduce", tmp_path / "model.pt2", "--loss", "mse", "--out", tmp_path / "dist")
    assert said.code == 2 and "pip install 'torch>=2.9' 'onnxscript>=0.5'" in said.err


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_weights_are_no_program(suffix: str, tmp_path: Path, minbuild: Command) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"PK")
    said = minbuild("artifacts", path, "--out", tmp_path / "artifacts")
    assert said.code == 2 and f"a {suffix} file holds weights" in said.err and "torch.export.save" in said.err


def test_a_missing_program_is_named(tmp_path: Path, minbuild: Command) -> None:
    said = minbuild("artifacts", tmp_path / "model.pt2", "--out", tmp_path / "artifacts")
    assert said.code == 2 and "model.pt2: no such file" in said.err


def test_losses_have_the_options_of_torch() -> None:
    plain = {"weight": None, "ignore_index": -100, "label_smoothing": 0.0}
    assert loss_of(named("CrossEntropyLoss", reduction="sum", **plain)) == (
        "cross-entropy", LossOptions(reduction="sum"),
    )  # fmt: skip
    padded = named("CrossEntropyLoss", reduction="mean", **(plain | {"ignore_index": 3}))
    assert loss_of(padded)[1].ignore_index == 3
    assert loss_of(named("KLDivLoss", log_target=False, reduction="batchmean"))[1].reduction == "mean"
    assert loss_of("none") == ("", LossOptions())


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (named("KLDivLoss", log_target=False, reduction="mean"), "batchmean"),
        (named("SmoothL1Loss", beta=0.5, reduction="mean"), "HuberLoss"),
        (named("CTCLoss"), "CTCLoss: not supported. Choose from CrossEntropyLoss"),
        ("cros-entropy", "Did you mean cross-entropy"),
    ],
)
def test_losses_that_differ_are_refused(loss: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        loss_of(loss)


def optimizer(name: str, *groups: dict[str, Any]) -> Any:
    return named(name, param_groups=[{"params": [], **group} for group in groups])


def test_optimizers_have_the_options_of_torch() -> None:
    adamw = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False}
    decayed = OptimizerOptions(betas=(0.8, 0.9), epsilon=1e-8, weight_decay=0.01, decay_first=True)
    assert optimizer_of(optimizer("AdamW", adamw)) == ("adamw", decayed, 0.1)
    assert optimizer_of(optimizer("Adam", {**adamw, "decoupled_weight_decay": True})) == (
        "adamw",
        decayed,
        0.1,
    )
    plain = {"lr": 0.5, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False}
    assert optimizer_of(optimizer("SGD", plain)) == ("sgd", OptimizerOptions(), 0.5)
    assert optimizer_of(optimizer("SGD", {**plain, "momentum": 0.9}))[0] == "momentum"
    assert optimizer_of("adamw") == ("adamw", OptimizerOptions(), None)


def test_optimizers_that_differ_are_refused() -> None:
    plain = {"lr": 0.5, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0, "nesterov": False}
    with pytest.raises(BadInput, match="dampening cannot be changed"):
        optimizer_of(optimizer("SGD", plain))
    with pytest.raises(BadInput, match="groups of parameters with different options"):
        optimizer_of(optimizer("SGD", plain, {**plain, "lr": 0.1}))
    with pytest.raises(BadInput, match="LBFGS: not supported"):
        optimizer_of(optimizer("LBFGS", {"lr": 1}))
