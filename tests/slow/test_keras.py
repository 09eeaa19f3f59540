"""Models of Keras 3 on its PyTorch backend, through its own ONNX export: the same losses as Keras. In one with
`pip install ".[torch,test]" keras`:

    pytest tests/slow/test_keras.py
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from commands import call

os.environ.setdefault("KERAS_BACKEND", "torch")
torch = pytest.importorskip("torch")
keras = pytest.importorskip("keras")

import minbuild.torch  # noqa: E402
from minbuild.errors import BadInput  # noqa: E402
from minbuild.training.trainer import Trainer  # noqa: E402

BATCH, STEPS, RATE = 16, 12, 0.05
layers = keras.layers


def convolutions() -> object:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, name="head"),
        ]
    )


def dense() -> object:
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="gelu"),
            layers.Dense(16, activation="tanh"),
            layers.Dense(5),
        ]
    )


@pytest.mark.parametrize(("make", "shape", "classes"), [(convolutions, (8, 8, 1), 10), (dense, (12,), 5)])
def test_losses_are_those_of_keras(
    make: object, shape: tuple[int, ...], classes: int, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(3)
    model = make()  # type: ignore[operator]
    x = np.random.default_rng(0).standard_normal((BATCH * STEPS, *shape)).astype(np.float32)
    y = np.arange(BATCH * STEPS) % classes
    model(x[:2])
    model.export(str(tmp_path / "model.onnx"), format="onnx", verbose=False)
    options = ("--loss", "cross-entropy", "--optimizer", "sgd", "--no-analysis", "--out", tmp_path / "dist")
    said = call("reduce", tmp_path / "model.onnx", *options)
    assert said.returncode == 0, said.stderr
    trainer = Trainer(tmp_path / "dist", learning_rate=RATE)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for first in range(0, BATCH * STEPS, BATCH):
        rows = slice(first, first + BATCH)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(x[rows])), torch.tensor(y[rows]))
        loss.backward()
        optimizer.step()
        # Sums of some hundred terms in float32, in another order, passed on by a dozen steps.
        assert trainer.step(x[rows], y[rows]) == pytest.approx(float(loss), rel=3e-6)


def test_a_module_without_parameters_of_its_own_is_refused(tmp_path: Path) -> None:
    model = dense()
    x = torch.zeros(2, 12)
    model(x)  # type: ignore[operator]
    with pytest.raises(BadInput, match="A Keras model exports itself"):
        minbuild.torch.reduce(model, (x,), loss="cross-entropy", out=tmp_path / "dist")
