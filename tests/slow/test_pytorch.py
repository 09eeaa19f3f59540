"""minbuild.torch beside PyTorch: the same losses and parameters, saved programs, and refusals. In an environment with
`pip install ".[torch,test,examples]"`:

    pytest tests/slow/test_pytorch.py
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import doc_blocks
import numpy as np
import pytest
from places import EXAMPLES, ROOT

import minbuild.torch
from minbuild.errors import BadInput, Unsupported
from minbuild.training.trainer import Trainer

torch = pytest.importorskip("torch")
nn = torch.nn
STEPS, BATCH = 12, 16
# Both sum float32 in other orders: rounding of 2^-24 in sums of some hundred terms, and steps that pass it on.
CLOSE = {"rtol": 3e-6, "atol": 3e-6}


class Classifier(nn.Module):
    """A body and a head, so that patterns have something to choose from."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(144, 5)

    def forward(self, image: Any) -> Any:
        return self.head(self.body(image))


def images(count: int = STEPS * BATCH) -> Any:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(3))


def labels(count: int = STEPS * BATCH) -> Any:
    return torch.arange(count) % 5


def classifier(training: bool = False) -> Any:
    torch.manual_seed(1)
    return Classifier().train(training)


def both(
    module: Any, trainer: Trainer, optimizer: Any, loss: Any, targets: Any
) -> tuple[list[float], list[float]]:
    """Losses of the trainer and of PyTorch on the same batches."""
    ours, theirs = [], []
    for first in range(0, STEPS * BATCH, BATCH):
        x, y = images()[first : first + BATCH], targets[first : first + BATCH]
        ours.append(trainer.step(x, y))
        optimizer.zero_grad()
        found = loss(module(x), y)
        found.backward()
        optimizer.step()
        theirs.append(found.item())
    return ours, theirs


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.99)),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001, alpha=0.9),
}


@pytest.mark.filterwarnings("ignore:BatchNormalization runs in inference mode")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_and_parameters_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    module = classifier(training=name == "adamw")
    optimizer = OPTIMIZERS[name](module.parameters())
    trainer = minbuild.torch.reduce(
        module, images(2), loss=nn.CrossEntropyLoss(), optimizer=optimizer, out=tmp_path / "dist"
    )
    ours, theirs = both(module, trainer, optimizer, nn.CrossEntropyLoss(), labels())
    np.testing.assert_allclose(ours, theirs, **CLOSE)
    assert ours[-1] != ours[0]
    other = classifier()
    assert set(minbuild.torch.copy_parameters(trainer, other)) == {n for n, _ in module.named_parameters()}
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(two.detach(), one.detach(), rtol=1e-4, atol=2e-5)
    if module.training:  # running statistics moved as PyTorch's: what the trained model says of other images
        evaluated = trainer.evaluate(images(40), labels(40))[0]
        wanted = nn.functional.cross_entropy(copy.deepcopy(module).eval()(images(40)), labels(40)).item()
        # ONNX keeps the variance of the batch, PyTorch n / (n - 1) of it; n is 16 * 36 here.
        assert evaluated == pytest.approx(wanted, rel=2 / (16 * 36))


LOSSES = {
    "weights": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 1, 1, 3]), reduction="sum"), labels()),
    "mse": (nn.MSELoss(), torch.randn(STEPS * BATCH, 5)),
    "huber": (nn.HuberLoss(delta=0.3), torch.randn(STEPS * BATCH, 5)),
    "smooth": (nn.SmoothL1Loss(), torch.randn(STEPS * BATCH, 5)),
    "bce": (nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 2.0)), torch.rand(STEPS * BATCH, 5)),
}


@pytest.mark.filterwarnings("ignore:BatchNormalization runs in inference mode")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_torch_nn(name: str, tmp_path: Path) -> None:
    loss, targets = LOSSES[name]
    module = classifier()
    for parameter in module.body.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(module.head.parameters(), lr=0.001)
    trainer = minbuild.torch.reduce(
        module, (images(2),), loss=loss, train="head.*", optimizer=optimizer, out=tmp_path / "dist"
    )
    assert trainer.trained == ("head.weight", "head.bias")
    ours, theirs = both(module, trainer, optimizer, loss, targets)
    np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_a_saved_program_becomes_a_trainer_by_command(tmp_path: Path) -> None:
    module = classifier()
    batch = torch.export.Dim("batch")
    torch.export.save(
        torch.export.export(module, (images(2),), dynamic_shapes=({0: batch},)), tmp_path / "model.pt2"
    )
    command(
        tmp_path,
        "reduce",
        "model.pt2",
        "--loss",
        "cross-entropy",
        "--optimizer",
        "sgd",
        "--no-analysis",
        "--out",
        "dist",
    )
    trainer = Trainer(tmp_path / "dist", learning_rate=0.05)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    ours, theirs = both(module, trainer, optimizer, nn.CrossEntropyLoss(), labels())
    np.testing.assert_allclose(ours, theirs, **CLOSE)


def command(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        (sys.executable, "-m", "minbuild", *arguments), cwd=folder, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr


def test_damaged_programs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"PK no program")
    text = command(tmp_path, "reduce", "model.pt2", "--loss", "mse", "--out", "dist", code=2)
    assert "cannot read it as a torch.export program" in text and "Traceback" not in text


class Unsteady(nn.Module):
    """Its control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.head(x) if x.sum() > 0 else x


class OfTwo(nn.Module):
    """Its code knows the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.head(x).reshape(2, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"train": "tail.*"}, BadInput, "no parameter of .* matches. There are: body.0.weight.*head.bias"),
        ({"loss": nn.CosineEmbeddingLoss()}, BadInput, "loss CosineEmbeddingLoss: not supported. Choose from CrossEnt"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, BadInput, "label_smoothing is not supported"),
        ({"loss": "crossentropy"}, BadInput, "no such loss. Did you mean cross-entropy"),
        ({"optimizer": torch.optim.LBFGS([torch.zeros(2)])}, BadInput, "optimizer LBFGS: not supported. Choose from"),
        (
            {"optimizer": torch.optim.RMSprop([torch.zeros(2)], centered=True, momentum=0.5)},
            BadInput,
            "centered, momentum cannot be changed",
        ),
        ({"example_inputs": ()}, BadInput, r"Classifier refuses \(\): TypeError: .*missing 1 required"),
        ({"example_inputs": (torch.zeros(2, 1, 5, 5),)}, BadInput, r"refuses \(float32\[2, 1, 5, 5\]\): RuntimeError"),
        ({"example_inputs": (np.zeros((2, 1, 8, 8)),)}, BadInput, r"example_inputs\[0\] is ndarray"),
        ({"module": nn.ReLU()}, BadInput, "ReLU: the module has no parameters"),
        ({"module": "model.pt"}, BadInput, "module is str. Give a torch.nn.Module"),
        ({"module": Unsteady(), "example_inputs": (torch.ones(2, 3),)}, Unsupported, "torch.export.export says"),
        ({"profile": "smalest"}, BadInput, "Did you mean smallest"),
        ({"target": "z80"}, BadInput, "z80"),
    ],
)  # fmt: skip
def test_refusals_say_what_and_the_cure(
    arguments: dict[str, Any], kind: type[Exception], text: str, tmp_path: Path
) -> None:
    given = {"module": classifier(), "example_inputs": (images(2),), "out": tmp_path / "dist"} | arguments
    with pytest.raises(kind, match=text):
        minbuild.torch.reduce(**given)
    assert not (tmp_path / "dist").exists()


def test_a_batch_that_the_code_fixes_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the batch is fixed at 2: with a free one"):
        trainer = minbuild.torch.reduce(OfTwo(), (torch.ones(2, 3),), out=tmp_path / "dist")
    assert trainer.step(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)) > 0
    with pytest.raises(Exception, match=r"\[3, 3\], the model takes \[2, 3\]"):
        trainer.step(torch.ones(3, 3), torch.zeros(3, dtype=torch.int64))


def test_parameters_of_another_module_are_refused(tmp_path: Path) -> None:
    trainer = minbuild.torch.reduce(OfTwo(), (torch.ones(2, 3),), out=tmp_path / "dist")
    with pytest.raises(BadInput, match="'head.weight' is .*, .* in the module. Give the module"):
        minbuild.torch.copy_parameters(trainer, classifier())


@pytest.mark.parametrize(
    "page", [ROOT / "docs/guides/pytorch.md", EXAMPLES / "pytorch/README.md"], ids=lambda p: p.parent.name
)
def test_guide_and_example_run(page: Path, tmp_path: Path) -> None:
    run = doc_blocks.run_example if page.parent.parent == EXAMPLES else doc_blocks.run_page
    assert run(page.parent if run is doc_blocks.run_example else page, tmp_path) == []
