"""Uses all of the Python training API as a script written for ONNX Runtime does; prints what it sees as JSON.

python script_for_onnxruntime.py FOLDER SCRATCH
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

folder, scratch = Path(sys.argv[1]), Path(sys.argv[2])
recorded, meta = np.load(folder / "reference.npz"), json.loads((folder / "meta.json").read_text())
# ONNX Runtime cannot load the evaluation models of normalising networks.
evaluation = None if meta["forward_changes_params"] else str(folder / "eval_model.onnx")

state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
module = Module(str(folder / "training_model.onnx"), state, evaluation, device="cpu")
optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
optimizer.set_learning_rate(0.01)
seen, numbers = {}, {"rate": [optimizer.get_learning_rate()]}

seen["inputs"], seen["outputs"] = module.input_names(), module.output_names()
seen["sizes"] = [module.get_parameters_size(), module.get_parameters_size(False)]
seen["names"] = [name for name, _ in state.parameters]
seen["trained"] = [parameter.requires_grad for _, parameter in state.parameters]
seen["shapes"] = [[parameter.name, list(parameter.data.shape)] for _, parameter in state.parameters]
seen["contains"] = [seen["names"][0] in state.parameters, "nobody" in state.parameters, len(state.parameters)]


def batch(step, kind="in/"):
    return [recorded[kind + n][step % meta["n_batches"]] for n in seen["inputs"]]


def train(count):
    losses = []
    module.train()
    for step in range(count):
        found = module(*batch(step))
        losses.append(float(np.ravel(found)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


numbers["losses"] = train(4)
module(*batch(0))
module(*batch(1))
first = next(name for name, parameter in state.parameters if parameter.requires_grad)
numbers["summed gradient"] = np.ravel(state.parameters[first].grad).tolist()
module.lazy_reset_grad()
if evaluation is not None:
    seen["training"] = [module.training, module.eval().training]
    numbers["evaluation"] = [
        float(np.ravel(module(*[recorded["eval_in/" + n] for n in module.input_names()]))[0])
    ]
    module.export_model_for_inferencing(str(scratch / "model.onnx"), ["output"])
    seen["exported"] = (scratch / "model.onnx").stat().st_size > 0

buffer = module.get_contiguous_parameters(trainable_only=True)
numbers["buffer"] = buffer.numpy().tolist()
module.copy_buffer_to_parameters(buffer, trainable_only=True)
numbers["all parameters"] = module.get_contiguous_parameters().numpy().tolist()

state.parameters[first].data = np.full_like(state.parameters[first].data, 0.125)
numbers["written"] = np.ravel(state.parameters[first].data).tolist()
numbers["losses after writing"] = train(2)

state.properties["epoch"] = 3
state.properties["best"] = 0.25
state.properties["note"] = "text"
state.properties["flag"] = True
seen["properties"] = [dict(state.properties), len(state.properties), "epoch" in state.properties]
for wrong in (lambda: state.properties["nothing"], lambda: state.parameters["nobody"]):
    try:
        wrong()
    except KeyError as error:
        seen.setdefault("errors", []).append(str(error))
for wrong in (lambda: module(*batch(0)[:1]), lambda: module(*[x[..., :1] for x in batch(0)])):
    try:
        wrong()
    except Exception as error:
        seen.setdefault("failures", []).append(
            isinstance(error, (RuntimeError, ValueError))
            or "Fail" in repr(type(error))
            or "Invalid" in repr(type(error))
        )

CheckpointState.save_checkpoint(state, str(scratch / "saved"), include_optimizer_state=True)
state = CheckpointState.load_checkpoint(str(scratch / "saved"))
module = Module(str(folder / "training_model.onnx"), state, evaluation)
optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
seen["loaded"] = dict(state.properties)
# Equal counts: their order, which ONNX Runtime's class mixes up, does not show.
scheduler = LinearLRScheduler(optimizer, warmup_step_count=8, total_step_count=8, initial_lr=0.02)
for _ in range(4):
    numbers["rate"].append(optimizer.get_learning_rate())
    numbers.setdefault("losses after loading", []).extend(train(1))
    scheduler.step()
print(json.dumps({**seen, "numbers": numbers}))
