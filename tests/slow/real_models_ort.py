"""ONNX Runtime's side of real_models.py. Runs in an environment with onnxruntime-training-cpu 1.19.2.

python tests/slow/real_models_ort.py infer MODEL BATCH.npz        adds the outputs of the forward model
python tests/slow/real_models_ort.py generate MODEL FOLDER JOB    its own artifacts: loss, names that train
python tests/slow/real_models_ort.py train FOLDER BATCH.npz OUT.npz
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

if "onnxruntime.training" not in sys.modules:
    # The package's own __init__ imports PyTorch for parts nobody needs here; its submodules do not.
    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [f"{onnxruntime.__path__[0]}/training"]
    sys.modules["onnxruntime.training"] = package


def options() -> onnxruntime.SessionOptions:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = 1
    onnxruntime.set_default_logger_severity(4)
    return found


def infer(model: str, batch: str) -> None:
    data = dict(np.load(batch))
    try:
        session = onnxruntime.InferenceSession(model, options(), providers=["CPUExecutionProvider"])
    except Exception:  # whatever its class is: shapes that ONNX Runtime infers wrongly from sizes with names
        session = onnxruntime.InferenceSession(
            sized(model, data), options(), providers=["CPUExecutionProvider"]
        )
    feeds = {i.name: data[f"in/{i.name}"] for i in session.get_inputs() if f"in/{i.name}" in data}
    names = [o.name for o in session.get_outputs()]
    data |= {f"out/{n}": y for n, y in zip(names, session.run(names, feeds), strict=True)}
    np.savez(batch, **data)


def sized(model: str, data: dict) -> bytes:
    """The model with the sizes of the batch in place of names."""
    proto = onnx.load(model)
    for value in proto.graph.input:
        if f"in/{value.name}" in data:
            for dim, size in zip(
                value.type.tensor_type.shape.dim, data[f"in/{value.name}"].shape, strict=True
            ):
                dim.dim_value = size
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto.SerializeToString()


def generate(model: str, folder: str, job: str) -> None:
    """What ONNX Runtime's own tool makes of the model, without any code of the project's."""
    from onnxruntime.training import artifacts

    asked = json.loads(Path(job).read_text())
    proto = onnx.load(model)
    Path(folder).mkdir(exist_ok=True)
    names = {i.name for i in proto.graph.initializer}
    train = asked["train"]
    if lacking := [n for n in train if n not in names]:
        raise SystemExit(f"{lacking[0]}: no initializer")
    artifacts.generate_artifacts(
        proto,
        requires_grad=train,
        frozen_params=[],
        loss=artifacts.LossType.MSELoss,
        optimizer=None,
        artifact_directory=folder,
        loss_input_names=[asked["output"]],
    )


def train(folder: str, batch: str, out: str) -> None:
    """Parameters after the long step, and the losses of the short ones."""
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    data, found = np.load(batch), {}
    for rate, steps in zip(data["rates"], (1, int(data["steps"])), strict=True):
        state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        files = f"{folder}/training_model.onnx", f"{folder}/eval_model.onnx"
        module = Module(files[0], state, files[1], session_options=options())
        optimizer = Optimizer(str(data["optimizer"]), module)
        optimizer.set_learning_rate(float(rate))
        for step in range(steps):
            module.train()
            names = module.input_names()
            outputs = module(*(data[f"in/{n}"] if f"in/{n}" in data else data["target"] for n in names))
            loss = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
            found[f"loss/{step}"] = np.asarray(loss, np.float32).reshape(())
            optimizer.step()
            module.lazy_reset_grad()
        for name in map(str, data["names"]):
            found.setdefault(f"parameter/{name}", np.array(state.parameters[name].data))
    np.savez(out, **found)


if __name__ == "__main__":
    {"infer": infer, "generate": generate, "train": train}[sys.argv[1]](*sys.argv[2:])
