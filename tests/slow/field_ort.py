"""ONNX Runtime's own artifacts of the models that field_export.py wrote, and its own losses with them. Runs in an
environment with onnxruntime-training-cpu 1.19.2.

    python tests/slow/field_ort.py FOLDER [NAME...]

Writes the artifacts into FOLDER/NAME/ort and FOLDER/NAME/ort.json: `losses`, `trained` (names of parameters), or what
`refused` says.
"""

from __future__ import annotations

import json
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer

LOSSES = {"cross-entropy": "CrossEntropyLoss", "mse": "MSELoss"}
LONGEST = 130  # characters of a message


def main(folder: Path, names: list[str]) -> None:
    for meta in sorted(folder.glob("*/meta.json")):
        place = meta.parent
        if (names and place.name not in names) or not (place / "legacy.onnx").exists():
            continue
        # Some models end the process: each has its own.
        process = get_context("spawn").Process(target=_answer, args=(place,))
        process.start()
        process.join()
        if process.exitcode:
            (place / "ort.json").write_text(json.dumps({"refused": f"ended by signal {-process.exitcode}"}))


def _answer(place: Path) -> None:
    """Writes what came of one model."""
    onnxruntime.set_default_logger_severity(4)
    try:
        answer = trained(place, json.loads((place / "meta.json").read_text()))
    except Exception as error:  # noqa: BLE001  (of any kind: it is the finding)
        answer = {"refused": _reason(error)}
    (place / "ort.json").write_text(json.dumps(answer))
    print(f"{place.name}: {answer.get('refused', 'trained')}", file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    """What a message ends with: before it stand places in ONNX Runtime's sources, and signatures."""
    text = " ".join(str(error).split())
    for mark in (" was false. ", "failed:"):
        text = text.rpartition(mark)[2] or text
    return text[-LONGEST:]


def trained(place: Path, meta: dict) -> dict:
    """Artifacts, and the losses of the recorded batches."""
    with np.load(place / "legacy.npz") as record:
        arrays = dict(record)
    model = onnx.load(place / "legacy.onnx")
    values = {n.removeprefix("gradient64/") for n in arrays if n.startswith("gradient64/")}
    wanted = [i.name for i in model.graph.initializer if i.name in values and numpy_helper.to_array(i).ndim]
    (place / "ort").mkdir(exist_ok=True)
    kind = LOSSES.get(meta["loss"])
    artifacts.generate_artifacts(
        model,
        requires_grad=wanted,
        loss=None if kind is None else artifacts.LossType[kind],
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(place / "ort"),
    )
    return {"losses": _losses(place / "ort", meta, arrays), "trained": wanted}


def _losses(folder: Path, meta: dict, arrays: dict[str, np.ndarray]) -> list[float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    files = [str(folder / f"{n}_model.onnx") for n in ("training", "optimizer")]
    module = Module(files[0], state, None, session_options=options)
    optimizer = Optimizer(files[1], module)
    optimizer.set_learning_rate(meta["rate"])
    losses: list[float] = []
    for step in range(len(arrays["loss64"])):
        module.train()
        given = [arrays.get(f"in/{n}", arrays.get("target"))[step] for n in module.input_names()]
        answer = module(*given)
        losses.append(float(np.ravel(answer[0] if isinstance(answer, (list, tuple)) else answer)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
