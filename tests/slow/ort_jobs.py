"""Lets ONNX Runtime go on from checkpoints, as JSON. Runs in an environment with onnxruntime-training-cpu 1.19.2.

    python tests/slow/ort_jobs.py JOBS.json

A job has `folder` (of a set), `checkpoint` (to start from), `steps`, and `save` (where to, with optimizer state); with
`plain`, graphs run as they are written. The answer has its losses and the properties it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main(path: Path) -> None:
    onnxruntime.set_default_logger_severity(4)
    print(json.dumps([_done(job) for job in json.loads(path.read_text())]))


def _done(job: dict) -> dict:
    folder = Path(job["folder"])
    kind = "onnx" if (folder / "training_model.onnx").exists() else "ort"
    recorded, meta = np.load(folder / "reference.npz"), json.loads((folder / "meta.json").read_text())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if job.get("plain"):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    state = CheckpointState.load_checkpoint(job["checkpoint"])
    properties = dict(state.properties)
    module = Module(str(folder / f"training_model.{kind}"), state, None, session_options=options)
    optimizer = Optimizer(str(folder / f"optimizer_model.{kind}"), module)
    optimizer.set_learning_rate(meta["lr"])
    losses = []
    for step in range(job["steps"]):
        batch = [recorded[f"in/{n}"][step % meta["n_batches"]] for n in module.input_names()]
        answer = module(*batch)
        losses.append(float(np.ravel(answer[0] if isinstance(answer, (list, tuple)) else answer)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, job["save"], True)
    return {"losses": losses, "properties": properties}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
