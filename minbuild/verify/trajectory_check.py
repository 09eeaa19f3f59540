"""A trainer beside a recorded trajectory of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import BadInput, VerificationFailed
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.options.graph_selection import OPTIMIZE, TRAIN
from minbuild.planning.compiled_model import CompiledModel
from minbuild.verify.differential import TRIMMED_GARBAGE, run_script
from minbuild.verify.kinks import KinkFinder
from minbuild.verify.script import TestScript
from minbuild.verify.tolerance import describe, deviations
from minbuild.verify.trajectory import Reference, read_reference, reference_script


def follow(
    recording: Path, model: CompiledModel, library: BuiltLibrary, note: Callable[[str], None]
) -> float:
    """The worst deviation of `library`, built for this machine from the plan of `model`, from the trajectory in file
    `recording`, in units of its noise. `note` takes remarks for the user. Raises BadInput, and VerificationFailed above
    the limit."""
    if not {TRAIN, OPTIMIZE} <= set(model.options.graphs):
        raise BadInput(
            f"--reference {recording}: is of training, for which the device needs the graphs {TRAIN} and {OPTIMIZE}. "
            "Leave out --reference, or --graphs."
        )
    reference = read_reference(recording)
    script = reference_script(reference, model.program, model.checkpoint)
    results = run_script(
        "trimmed build", script, library.built.shared, library.plan_for(model.plan_bytes), TRIMMED_GARBAGE
    )
    draws = _random_nodes(model)
    finders = {} if draws else _finders(reference, model, script)
    found = deviations(reference, results, finders)
    if draws:  # only evaluation does without
        found = tuple(d for d in found if d.what == "eval before")
    text = describe(found)
    note(f"Worst deviations from {recording.name}, in units of its noise: {text}")
    beyond = [d for d in found if not d.noise <= d.limit]
    if beyond:
        raise VerificationFailed(
            f"--reference {recording}: the trainer does not follow it. In units of its noise, of which "
            f"{beyond[0].limit:g} are allowed: {describe(beyond)}. Check that it was recorded with these "
            "artifacts; if it was, please report this text."
        )
    if draws:
        raise BadInput(
            f"--reference {recording}: the model draws random numbers while it trains ({', '.join(draws[:3])}"
            f"{f' and {len(draws) - 3} more' if len(draws) > 3 else ''}), and ONNX Runtime's own are "
            "not those of this trainer, whatever the seed: nobody else can follow its recording. What does not depend "
            f"on them agrees{f': {text}' if text else ''}. Record it with a dropout ratio of 0, or leave out "
            "--reference."
        )
    return max((d.noise for d in found), default=0.0)


def _random_nodes(model: CompiledModel) -> list[str]:
    """Nodes whose random numbers training depends on."""
    found = []
    for procedure in model.program.procedures:
        for call in procedure.calls if procedure.name == "train" else ():
            op = model.registry.ops.get(call.op)
            ratio = (
                procedure.values[call.inputs[1]].constant if len(call.inputs) > 1 and call.inputs[1] else None
            )
            idle = call.op == "minbuild:RandomMask" and ratio is not None and not np.any(ratio)
            if op is not None and op.generator is not None and not idle:
                found.append(f"node '{call.node}'")
    return list(dict.fromkeys(found))


def _finders(reference: Reference, model: CompiledModel, script: TestScript) -> dict[str, KinkFinder]:
    """Where to look for kinks, for each kind of recorded gradients."""
    starts = {"grad_step1": (script.checkpoints["start"], 0)}
    if "resume" in script.checkpoints:
        starts["resume1_grad"] = script.checkpoints["resume"], reference.steps % reference.batches
    return {
        kind: KinkFinder(
            model.artifacts, model.registry, read_checkpoint(start), script.batches[f"train {number}"]
        )
        for kind, (start, number) in starts.items()
        if not read_checkpoint(start).nominal
    }
