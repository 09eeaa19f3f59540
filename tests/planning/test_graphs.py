"""Trainers with some of a model's graphs, and libraries without files or saving: what is not asked for is not there."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import FREE, Command, command_fixture  # noqa: F401  the fixture `minbuild`
from programs import CC, run

from minbuild.analysis.measure import persistent_of
from minbuild.codegen.package_docs import PackagedModel, introduction, values_of
from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir.size_report import ModelReport
from minbuild.options.graph_selection import EVERY, GRAPHS
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_models
from minbuild.planning.compiled_model import CompiledModel, with_components
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.library_contents import LibraryContents
from minbuild.templating import render
from minbuild.toolchain import BuildOutput, build_library, find_emulator, find_toolchain, host_target
from minbuild.training.library import EVAL, TRAIN, Library, Session, TrainerError
from minbuild.verify.differential import prove_equal, run_script, seeded_script
from minbuild.verify.prove import starting_point

CHOICES = [("train", "optimize"), ("train",), ("evaluate",), ("optimize",), ("evaluate", "optimize")]


def planned(*graphs: str, folder: Path = FREE) -> CompiledModel:
    (model,) = compile_models((folder,), {}, {}, options=PlanOptions(graphs=graphs))
    return model


def built(contents: LibraryContents, model: CompiledModel) -> BuildOutput:
    return build_library(emit_sources(contents, model.registry), host_target(), find_toolchain())


def session(
    model: CompiledModel,
    folder: Path,
    contents: LibraryContents | None = None,
    checkpoint: bytes | None = None,
) -> Session:
    library = built(contents or contents_of((model,)), model).shared
    path = folder / f"{hashlib.sha256(library).hexdigest()[:16]}.so"
    if not path.exists():  # one that is loaded must stay as it is
        path.write_bytes(library)
    return Session(Library(path), model.plan_bytes, checkpoint or model.checkpoint)


@pytest.fixture(scope="module")
def everything() -> CompiledModel:
    return planned(*EVERY)


def batch(model: CompiledModel) -> tuple[np.ndarray, ...]:
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    return script.batches["train 0"]


@pytest.mark.parametrize("graphs", CHOICES, ids="+".join)
def test_what_is_not_asked_for_is_not_there(graphs, everything, tmp_path) -> None:
    model = planned(*graphs)
    names = {"train": "train", "evaluate": "eval", "optimize": "optimize"}
    assert [r.name for r in model.plan.routines] == [names[g] for g in GRAPHS if g in graphs]
    some, every = contents_of((model,)), contents_of((everything,))
    assert set(some.kernels) <= set(every.kernels)
    assert len(model.plan_bytes) < len(everything.plan_bytes)
    assert len(built(some, model).shared) <= len(built(every, everything).shared)
    memory, most = persistent_of(model.plan), persistent_of(everything.plan)
    if "optimize" not in graphs:
        assert memory.optimizer == 0 < most.optimizer and len(built(some, model).shared) < len(
            built(every, everything).shared
        )
    trains = "train" in graphs or "optimize" in graphs
    assert (
        (memory.gradients == most.gradients) if trains else (memory.total == memory.other <= 48)
    )  # the counters, and their copy
    device, arrays = session(model, tmp_path), batch(everything)
    for graph, name, inputs in ((TRAIN, "train", arrays), (EVAL, "evaluate", arrays), (2, "optimize", ())):
        if name not in graphs:
            with pytest.raises(TrainerError, match="unsupported: no such graph"):
                device.run(graph, inputs)


@pytest.mark.parametrize("graphs", CHOICES, ids="+".join)
def test_every_choice_is_proven(graphs, everything) -> None:
    model = planned(*graphs)
    script = seeded_script(model.program, model.plan, starting_point(model), model.registry)
    full = built(contents_of((everything, model)), everything).shared
    proof = prove_equal(script, model.plan_bytes, built(contents_of((model,)), model).shared, full)
    assert ("losses" in proof.text) == ("train" in graphs)
    assert ("evaluation" in proof.text) == ("evaluate" in graphs)
    before = {p.name: p.data for p in read_checkpoint(starting_point(model)).parameters}
    after = {n.partition("/")[2]: a for n, a in proof.results.items() if n.startswith("final parameters/")}
    moved = any(not np.array_equal(before[name], array) for name, array in after.items())
    assert after and moved == ("optimize" in graphs)


def test_evaluation_alone_gives_the_same_bits_from_any_checkpoint(everything, tmp_path) -> None:
    """Also of one that was trained elsewhere, where parameters are trainable."""
    (tmp_path / "whole").mkdir()
    trainer = session(everything, tmp_path / "whole")
    arrays = batch(everything)
    for _ in range(3):
        trainer.run(TRAIN, arrays)
        trainer.optimizer_step()
    trained = trainer.checkpoint(True)
    alone = planned("evaluate")
    for checkpoint in (alone.checkpoint, trained):
        device = session(alone, tmp_path, checkpoint=checkpoint)
        wanted = session(
            everything, tmp_path / "whole", checkpoint=checkpoint if checkpoint is trained else None
        )
        for ours, theirs in zip(device.run(EVAL, arrays), wanted.run(EVAL, arrays), strict=True):
            assert ours.tobytes() == theirs.tobytes()
    device.load(trained)
    assert all(device.gradient(name) is None for name in device.parameters)
    assert {p.name for p in read_checkpoint(device.checkpoint(True)).parameters} == set(device.parameters)


def test_gradients_and_updates_may_be_on_two_machines(everything, tmp_path) -> None:
    """One library makes gradients, another one updates the parameters: together they are one trainer."""
    places = [tmp_path / name for name in ("whole", "client", "server")]
    for place in places:
        place.mkdir()
    whole, client, server = (
        session(model, place)
        for model, place in zip((everything, planned("train"), planned("optimize")), places, strict=True)
    )
    arrays = batch(everything)
    for _ in range(3):
        (expected, *_), (found, *_) = whole.run(TRAIN, arrays), client.run(TRAIN, arrays)
        assert expected.tobytes() == found.tobytes()
        for name in client.parameters:
            gradient = server.gradient(name)
            if gradient is not None:
                gradient[...] = client.gradient(name)
        for each in (whole, server):
            each.optimizer_step()
        for each in (whole, client):
            each.lazy_reset_grad()
        for name in client.parameters:
            client.parameter(name)[...] = server.parameter(name)
    for name in whole.parameters:
        assert whole.parameter(name).tobytes() == server.parameter(name).tobytes()


def test_export_needs_no_evaluation_on_the_device(everything) -> None:
    model = with_components(planned("train", "optimize"), ("export",))
    assert model.export_template == with_components(everything, ("export",)).export_template


def test_excluded_operators_may_be_in_other_graphs() -> None:
    extra = ExtraRequirements(
        exclude=(
            "com.microsoft:SoftmaxCrossEntropyLossGrad",
            "com.microsoft:SoftmaxCrossEntropyLossInternalGrad",
        )
    )
    contents_of((planned("evaluate"),), extra)
    with pytest.raises(BadInput, match="--exclude-op"):
        contents_of((planned("train"),), extra)


def test_graphs_that_the_artifacts_lack(tmp_path) -> None:
    for name in ("training_model.onnx", "checkpoint"):
        (tmp_path / name).write_bytes((FREE / name).read_bytes())
    with pytest.raises(BadInput, match="--graphs evaluate: the artifacts have train. Choose"):
        planned("evaluate", folder=tmp_path)
    assert [r.name for r in planned(*EVERY, folder=tmp_path).plan.routines] == ["train"]


def test_a_recording_needs_training(minbuild: Command, tmp_path) -> None:
    reference = ("--reference", FREE / "reference.npz", "--no-analysis", "-o", tmp_path / "dist")
    said = minbuild("reduce", FREE, "--graphs", "evaluate", *reference)
    assert said.code == 2 and "needs the graphs train and optimize" in said.err
    assert not (tmp_path / "dist").exists()


# ------------------------------------------------------------------------------------------- files and saving


def test_a_library_without_saving(everything, tmp_path) -> None:
    whole = contents_of((everything,))
    less = replace(whole, checkpoint_writing=False)
    assert len(built(less, everything).shared) < len(built(whole, everything).shared) - 1000
    device = session(everything, tmp_path, less)
    device.run(TRAIN, batch(everything))
    for save in (lambda: device.checkpoint(True), lambda: device.save(tmp_path / "x", True)):
        with pytest.raises(
            TrainerError,
            match="unsupported: .* without checkpoint writing. Reduce again with --checkpoint-writing on",
        ):
            save()
    device.load(everything.checkpoint)
    script = seeded_script(
        everything.program, everything.plan, everything.checkpoint, everything.registry, saves=False
    )
    results = run_script("", script, built(less, everything).shared, everything.plan_bytes, 0)
    assert "checkpoint" not in results and "final parameters/fc2.bias" in results


@pytest.mark.parametrize(
    "graphs,build_options",
    [
        (EVERY, {}),
        (EVERY, {"checkpoint_writing": False}),
        (EVERY, {"file_io": False}),
        (("evaluate",), {}),
        (("evaluate",), {"file_io": False, "checkpoint_writing": False}),
        (("optimize",), {"checkpoint_writing": False}),
    ],
    ids=str,
)
def test_samples_run_with_any_choice(graphs, build_options, tmp_path) -> None:
    if find_emulator(host_target()) is None:
        pytest.skip("programs for this machine do not run here")
    model = planned(*graphs)
    contents = replace(contents_of((model,)), **build_options)
    persistent = persistent_of(model.plan)
    facts = ModelReport("m", "0", (), (), model.arenas, persistent, 1, 1, 1, 1)
    parts = PackagedModel("", model, facts)
    values = values_of(parts, contents)
    library = built(contents, model)
    files = {
        f"{parts.sample}.c": render(values["template"], **values).encode(),
        "libminbuild.a": library.archive,
        "include/minbuild/trainer.h": emit_sources(contents, model.registry)["include/minbuild/trainer.h"],
        "model/trainer.plan": model.plan_bytes,
        "model/checkpoint": model.checkpoint,
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    run(*CC, "-std=c99", "-Iinclude", f"{parts.sample}.c", "libminbuild.a", "-o", "sample", cwd=tmp_path)
    said = run("./sample", cwd=tmp_path)
    assert (
        ("reloaded" in said)
        == (parts.sample == "train" and contents.checkpoint_writing)
        == ("save" in files[f"{parts.sample}.c"].decode())
    )
    assert "nan" not in said and len(said.splitlines()) > (1 if parts.sample == "evaluate" else 2) - 1
    program = "\n".join(values["program"])
    assert ("mb_train_step" in program) == ("train" in graphs)
    assert ("from_files" in program) == contents.file_io and (
        "_checkpoint(" in program
    ) == contents.checkpoint_writing
    told = introduction((parts,), contents)
    assert ("backward pass" in told["abilities"]) == ("train" in graphs)
