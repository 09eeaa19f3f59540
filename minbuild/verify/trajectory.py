"""A recorded trajectory and the script that replays it.

The layout of the recording is that of `tests/golden/README.md`: an `.npz` with inputs and results, and beside
it `meta.json` (learning rate, steps, noise) and `checkpoint_final_opt`, both optional."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.ir import Program
from minbuild.ir.mapped import FileBytes
from minbuild.reference.synthetic_data import inputs_of, sizes_in
from minbuild.verify.script import Action, TestScript

RESUMED = 3  # steps after the last checkpoint


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording: arrays by name, and what meta.json says."""

    path: Path
    arrays: Mapping[str, np.ndarray]
    rate: float
    batches: int
    noise: Mapping[str, Any]
    resume: bytes | None  # checkpoint after the last step, with optimizer state

    @property
    def steps(self) -> int:
        return len(self.arrays["loss"])


def read_reference(path: Path) -> Reference:
    """A recording and what lies beside it. Raises BadInput."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise BadInput(f"--reference {path}: no such file. Give the .npz of a recorded trajectory.") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise BadInput(
            f"--reference {path}: cannot be read as .npz: {error}. Record or copy it again."
        ) from error
    if not arrays.get("loss", np.empty(0)).size:
        raise BadInput(
            f"--reference {path}: holds no 'loss' per step. Give the .npz of a recorded trajectory."
        )
    for name in {"loss", "loss_resume_opt"} & set(arrays):  # a loss is a scalar or has one element
        arrays[name] = arrays[name].reshape(len(arrays[name]), -1)[:, 0]
    meta = _meta(path.with_name("meta.json"))
    recorded = [len(a) for n, a in arrays.items() if n.startswith("in/") and a.ndim]
    if not recorded or not all(recorded):
        raise BadInput(f"--reference {path}: holds no 'in/<input>' batches. Record it again.")
    final = path.with_name("checkpoint_final_opt")
    return Reference(
        path,
        arrays=arrays,
        rate=float(meta.get("lr", 0.001)),
        batches=min(int(meta.get("n_batches", min(recorded))), min(recorded)),
        noise=_noise(meta),
        resume=read_file(final) if final.is_file() else None,
    )


def _meta(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        meta = json.loads(read_file(path))
    except ValueError as error:
        raise BadInput(f"{path}: not readable as JSON: {error}. Correct it, or move it away.") from error
    return meta if isinstance(meta, dict) else {}


def _noise(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The differences between legitimate runs; where a run in double precision was recorded, it is one of them."""
    noise = dict(meta.get("noise", {}))
    exact = meta.get("torch64", {}).get("grad1_max_rel", 0.0)
    return noise | {"grad1_rel_max": max(noise.get("grad1_rel_max", 0.0), exact)}


def reference_script(reference: Reference, program: Program, checkpoint: FileBytes) -> TestScript:
    """The steps of the recording `reference`, and the first ones after its last checkpoint, for the inputs of
    `program`, started from `checkpoint`, a file's bytes. Raises BadInput when its batches do not fit the model."""
    inputs, arrays = inputs_of(program), reference.arrays
    batches: dict[str, tuple[np.ndarray, ...]] = {}
    sizes: dict[str, int] = {}
    order = {p.name: p.inputs for p in program.procedures}
    for number in range(reference.batches):
        batch = {n: arrays[f"in/{n}"][number] for n in order["train"] if f"in/{n}" in arrays}
        sizes |= _fit(reference, {n: inputs[n] for n in order["train"]}, batch, sizes)
        batches[f"train {number}"] = tuple(batch[n] for n in order["train"])
    evaluated = "eval_before" in arrays and "eval" in order
    if evaluated:
        batch = {n: arrays[f"eval_in/{n}"] for n in order["eval"] if f"eval_in/{n}" in arrays}
        sizes |= _fit(reference, {n: inputs[n] for n in order["eval"]}, batch, sizes)
        batches["eval"] = tuple(batch[n] for n in order["eval"])
    checkpoints = {"start": checkpoint} | ({"resume": reference.resume} if reference.resume else {})
    actions = tuple(_actions(reference, evaluated, "optimize" in order, program.fused_updates))
    return TestScript(tuple(sizes[s] for s in program.symbols), batches, checkpoints, actions)


def _fit(
    reference: Reference,
    inputs: Mapping[str, Any],
    batch: Mapping[str, np.ndarray],
    before: Mapping[str, int],
) -> dict[str, int]:
    found = sizes_in(inputs, batch, f"--reference {reference.path}")
    return {name: max(size, before.get(name, 0)) for name, size in found.items()}


def _actions(reference: Reference, evaluated: bool, optimizes: bool, fused: bool) -> Iterator[Action]:
    """The actions of a replay; steps with `fused` updates have no gradients to compare."""
    train = "train_and_update" if fused else "train"
    optimizer = [Action("optimizer")] if optimizes else []
    rate = Action("rate", repr(reference.rate))
    yield from (Action("create", "start"), rate)
    if evaluated:
        yield Action("eval", "eval", "eval_before")
    for step in range(reference.steps):
        yield Action(train, f"train {step % reference.batches}", f"loss {step}")
        if step == 0 and not fused:
            yield Action("gradients", label="grad_step1")
        yield from (*optimizer, Action("reset"))
        if step == 0:
            yield Action("parameters", label="param_step1")
    if evaluated:
        yield Action("eval", "eval", "eval_after")
    if reference.resume is None or "loss_resume_opt" not in reference.arrays:
        return
    yield from (Action("create", "resume"), rate)
    for step in range(min(RESUMED, len(reference.arrays["loss_resume_opt"]))):
        yield Action(train, f"train {(reference.steps + step) % reference.batches}", f"resume {step}")
        if step == 0 and not fused:
            yield Action("gradients", label="resume1_grad")
        yield from (*optimizer, Action("reset"))
        if step == 0:
            yield Action("parameters", label="resume1_param")
