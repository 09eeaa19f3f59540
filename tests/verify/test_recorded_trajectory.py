"""A recorded trajectory is followed, and every quantity of it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import FREE

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import BadInput, VerificationFailed
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.ir import ElementType, Role, TensorType, Value
from minbuild.options.graph_selection import EVALUATE, OPTIMIZE, TRAIN
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compiled_model import CompiledModel
from minbuild.verify import differential as verify
from minbuild.verify.kinks import KinkFinder
from minbuild.verify.tolerance import Deviation, describe, deviations
from minbuild.verify.trajectory import read_reference, reference_script
from minbuild.verify.trajectory_check import follow


@pytest.fixture(scope="module")
def replayed(model: CompiledModel, good: BuiltLibrary) -> dict[str, np.ndarray]:
    reference = read_reference(FREE / "reference.npz")
    script = reference_script(reference, model.program, model.checkpoint)
    return dict(verify.run_script("", script, good.built.shared, model.plan_bytes, 0xFF))


def test_the_recorded_trajectory_is_followed(replayed: dict[str, np.ndarray]) -> None:
    found = deviations(read_reference(FREE / "reference.npz"), replayed)
    assert {d.what for d in found} == {
        "loss",
        "resume loss",
        "step-1 gradients",
        "step-1 parameters",
        "resume-step gradients",
        "resume-step parameters",
        "eval before",
        "eval after",
    }
    assert max(d.noise for d in found) < 2, describe(found)


@pytest.mark.parametrize(
    "what,name",
    [
        ("step-1 gradients", "grad_step1/fc1.weight"),
        ("step-1 parameters", "param_step1/fc2.bias"),
        ("resume-step gradients", "resume1_grad/fc2.weight"),
        ("resume-step parameters", "resume1_param/fc1.bias"),
        ("loss", "loss 3/onnx::loss::2"),
        ("eval before", "eval_before/onnx::loss::2"),
    ],
)
def test_every_quantity_counts(replayed: dict[str, np.ndarray], what: str, name: str) -> None:
    reference = read_reference(FREE / "reference.npz")
    wrong = {**replayed, name: replayed[name] + np.float32(0.1) * np.abs(replayed[name]).max()}
    beyond = [d.what for d in deviations(reference, wrong) if not d.noise <= d.limit]
    assert beyond == [what] or (what.endswith("gradients") and what in beyond)
    nothing = {**replayed, name: np.full_like(replayed[name], np.nan)}
    assert what in [d.what for d in deviations(reference, nothing) if not d.noise <= d.limit]


def test_no_deviation_passes_for_a_kink(model: CompiledModel, replayed: dict[str, np.ndarray]) -> None:
    """What lies before a ReLU is off by little and nothing behind it: no kink is there to explain it."""
    reference = read_reference(FREE / "reference.npz")
    name = "grad_step1/fc1.weight"
    checkpoint = read_checkpoint(model.checkpoint)
    batch = reference_script(reference, model.program, model.checkpoint).batches["train 0"]
    finder = {"grad_step1": KinkFinder(model.artifacts, model.registry, checkpoint, batch)}
    for wrong in (replayed[name] * np.float32(1.001), replayed[name] + np.float32(1e-6)):
        found = deviations(reference, {**replayed, name: wrong}, finder)
        deviation = next(d for d in found if d.what == "step-1 gradients")
        assert not deviation.kinks and not deviation.noise <= deviation.limit


def test_a_kink_is_shown(model: CompiledModel, replayed: dict[str, np.ndarray]) -> None:
    """A value that rounding puts on the other side of a ReLU's edge: gradients differ by far more than noise, and
    the element is named."""
    reference = read_reference(FREE / "reference.npz")
    checkpoint = read_checkpoint(model.checkpoint)
    batch = reference_script(reference, model.program, model.checkpoint).batches["train 0"]
    # The bias puts one element of the first layer a hair above 0.
    weights = {p.name: np.asarray(p.data, np.float64) for p in checkpoint.parameters}
    x = batch[0].astype(np.float64).reshape(len(batch[0]), -1)
    scores = x @ weights["fc1.weight"].T + weights["fc1.bias"]
    row, column = np.unravel_index(np.abs(scores).argmin(), scores.shape)
    bias = weights["fc1.bias"].copy()
    bias[column] -= scores[row, column] - 1e-8
    parameters = tuple(
        replace(p, data=bias.astype(np.float32)) if p.name == "fc1.bias" else p for p in checkpoint.parameters
    )
    start = replace(checkpoint, parameters=parameters)
    finder = KinkFinder(model.artifacts, model.registry, start, batch)
    kink = finder.run(()).near[0]
    ours, theirs = (finder.run(flipped).gradients for flipped in ((), (kink,)))
    arrays = {**reference.arrays} | {f"grad_step1/{n}": g.astype(np.float32) for n, g in theirs.items()}
    results = {**replayed} | {f"grad_step1/{n}": g.astype(np.float32) for n, g in ours.items()}
    recording = replace(reference, arrays=arrays)

    def judged(finders: dict[str, KinkFinder]) -> Deviation:
        found = deviations(recording, results, finders)
        return next(d for d in found if d.what == "step-1 gradients")

    assert judged({}).noise > 100
    shown = judged({"grad_step1": finder})
    assert shown.noise <= shown.limit and [(k.value, k.element) for k in shown.kinks] == [
        (kink.value, kink.element)
    ]
    assert kink.element == row * scores.shape[1] + column and abs(kink.distance) < 1e-6
    assert f"element {kink.element} of '{kink.value}', input of node" in describe([shown])
    # Explained is only what the kink does.
    results["grad_step1/fc2.bias"] = results["grad_step1/fc2.bias"] * np.float32(1.001)
    assert not judged({"grad_step1": finder}).noise <= shown.limit


def dropping(model: CompiledModel, ratio: float | None) -> CompiledModel:
    """The model with a node that draws a mask while it trains; a ratio of None is computed there."""
    train = next(p for p in model.program.procedures if p.name == "train")
    given = None if ratio is None else np.float32(ratio)
    role = Role.TEMPORARY if ratio is None else Role.CONSTANT
    values = {**train.values, "ratio": Value("ratio", TensorType(ElementType.FLOAT, ()), role, given)}
    mask = replace(train.calls[0], op="minbuild:RandomMask", node="drop", inputs=("input", "ratio"))
    drawing = replace(train, calls=(*train.calls, mask), values=values)
    procedures = tuple(drawing if p is train else p for p in model.program.procedures)
    return replace(model, program=replace(model.program, procedures=procedures))


@pytest.mark.parametrize("ratio", [0.25, None])
def test_random_numbers_of_others_cannot_be_followed(
    model: CompiledModel, good: BuiltLibrary, ratio: float | None
) -> None:
    said: list[str] = []
    with pytest.raises(
        BadInput, match=r"draws random numbers while it trains \(node 'drop'\).*eval before"
    ) as refused:
        follow(FREE / "reference.npz", dropping(model, ratio), good, said.append)
    assert "report" not in str(refused.value) and said and "loss" not in said[0]


def test_what_drops_nothing_is_followed(model: CompiledModel, good: BuiltLibrary) -> None:
    assert 0 < follow(FREE / "reference.npz", dropping(model, 0.0), good, print) < 2


def test_training_alone_is_followed(model: CompiledModel, good: BuiltLibrary) -> None:
    """A device without evaluation; one that does not train, or takes no step, has nothing to compare."""
    said: list[str] = []
    procedures = tuple(p for p in model.program.procedures if p.name != "eval")
    alone = replace(
        model, options=PlanOptions((TRAIN, OPTIMIZE)), program=replace(model.program, procedures=procedures)
    )
    assert 0 < follow(FREE / "reference.npz", alone, good, said.append) < 2
    assert "step-1 gradients" in said[0] and "eval" not in said[0]
    for graphs in ((TRAIN, EVALUATE), (OPTIMIZE,)):
        with pytest.raises(BadInput, match="needs the graphs train and optimize"):
            follow(FREE / "reference.npz", replace(model, options=PlanOptions(graphs)), good, said.append)


def test_nan_proves_nothing(model: CompiledModel, good: BuiltLibrary) -> None:
    checkpoint = read_checkpoint(model.checkpoint)
    parameters = tuple(
        replace(p, data=np.full(p.shape, np.nan, np.float32)) if p.name == "fc1.bias" else p
        for p in checkpoint.parameters
    )
    start = write_checkpoint(replace(checkpoint, parameters=parameters))
    script = verify.seeded_script(model.program, model.plan, start, model.registry)
    with pytest.raises(VerificationFailed, match="computes NaN or infinite values: .*prove nothing"):
        verify.prove_equal(script, model.plan_bytes, good.built.shared, good.built.shared)


def test_recordings_that_are_none(tmp_path: Path, model: CompiledModel) -> None:
    path = tmp_path / "r.npz"
    with pytest.raises(BadInput, match="no such file"):
        read_reference(path)
    path.write_bytes(b"PK\3\4 and more")
    with pytest.raises(BadInput, match="cannot be read"):
        read_reference(path)
    np.savez(path, loss=np.zeros(3))
    with pytest.raises(BadInput, match="holds no 'in/"):
        read_reference(path)
    np.savez(path, **{"in/x": np.zeros((2, 3))})
    with pytest.raises(BadInput, match="holds no 'loss'"):
        read_reference(path)
    np.savez(path, **{"loss": np.zeros(2), "in/input": np.zeros((2, 4, 99), np.float32)})
    with pytest.raises(BadInput, match="belongs to another model|the model takes"):
        reference_script(read_reference(path), model.program, model.checkpoint)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(BadInput, match="meta.json: not readable"):
        read_reference(path)


def test_a_recording_without_meta(model: CompiledModel, replayed: dict[str, np.ndarray]) -> None:
    reference = replace(read_reference(FREE / "reference.npz"), noise={})
    assert max(d.noise for d in deviations(reference, replayed)) < 4
