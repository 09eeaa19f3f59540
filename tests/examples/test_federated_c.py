"""The C client of the example beside the same training in Python: the update before noise and int8."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import call
from places import EXAMPLES
from programs import CC

from minbuild.federated import clipped
from minbuild.training.trainer import Trainer

EXAMPLE = EXAMPLES / "federated-c"
BATCH, EPOCHS, RATE, NORM = 20, 2, 0.2, 1.5  # as in client.c


@pytest.mark.docs
@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_an_update_is_that_of_python(tmp_path: Path) -> None:
    subprocess.run((sys.executable, EXAMPLE / "make_data.py"), cwd=tmp_path, check=True)
    options = (
        "--loss",
        "cross-entropy",
        "--optimizer",
        "sgd",
        "--dim",
        f"batch={BATCH}",
        "--with",
        "buffers",
    )
    said = call("reduce", "model.onnx", *options, "--no-analysis", "--out", "dist", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    trainer = Trainer(tmp_path / "dist", learning_rate=RATE)
    server = trainer.flat() + np.float32(0.01)
    library = next((tmp_path / "dist/lib").glob("*/libminbuild.a"))
    program = (
        *CC,
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{tmp_path / 'dist/include'}",
        EXAMPLE / "client.c",
    )
    subprocess.run((*program, library, "-o", tmp_path / "client"), check=True)
    command = (tmp_path / "client", tmp_path / "dist", tmp_path / "client0.bin", "--float")
    sent = subprocess.run(command, input=server.tobytes(), capture_output=True, check=True).stdout
    rows = np.fromfile(tmp_path / "client0.bin", np.dtype([("pixels", "<f4", 64), ("label", "<i8")]))
    trainer.set_flat(server)
    for first in (*range(0, len(rows), BATCH),) * EPOCHS:
        part = rows[first : first + BATCH]
        trainer.step(np.ascontiguousarray(part["pixels"]), np.ascontiguousarray(part["label"]))
    whole = trainer.flat() - server
    assert np.linalg.norm(whole) > NORM  # or clipping would not be seen
    np.testing.assert_allclose(np.frombuffer(sent, np.float32), clipped(whole, NORM), rtol=1e-6, atol=1e-9)
