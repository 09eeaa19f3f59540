"""Small numbers of float16, which are denormal there and normal as float, were read as zero during a call."""

from __future__ import annotations

import numpy as np
from authored import source

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.training.api import CheckpointState, Module


def test_small_halves_are_read_as_they_are(tmp_path):
    text = "m (float16[n,2] x) => (float[n,2] y) { a = Cast <to=1> (x) y = Mul (a, w) }"
    model = source(text, {"w": np.float32([2**24, 2**24])})
    write_artifacts(make_artifacts(model, Recipe(loss="mse", outputs=("y",))), tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx").eval()
    x = np.float16([[2**-24, -(2**-23)], [2**-14, 3 * 2**-20]])
    _, y = module(x, np.zeros((2, 2), np.float32))
    assert (y == x.astype(np.float32) * 2**24).all() and y[0, 0] == 1
