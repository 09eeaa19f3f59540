"""The losses of ONNX Runtime training a folder of artifacts on the batches recorded beside them, as JSON. Runs in an
environment with onnxruntime-training-cpu 1.19.2.

    python tests/slow/ort_trainer.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main(folder: Path) -> None:
    recorded, meta = np.load(folder / "reference.npz"), json.loads((folder / "meta.json").read_text())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnxruntime.set_default_logger_severity(4)
    kind = "seed7_loss" if "seed7_loss" in recorded else "loss"
    onnxruntime.set_seed(7)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    files = str(folder / "training_model.onnx"), str(folder / "eval_model.onnx")
    module = Module(files[0], state, files[1], session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(meta["lr"])
    losses = []
    for step in range(len(recorded[kind])):
        module.train()
        batch = [recorded[f"in/{n}"][step % meta["n_batches"]] for n in module.input_names()]
        answer = module(*batch)
        losses.append(float(np.ravel(answer[0] if isinstance(answer, (list, tuple)) else answer)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    print(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
