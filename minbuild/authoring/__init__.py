"""Making training artifacts from a forward model: what ONNX Runtime's `generate_artifacts` does, for any model.

Users import from this module; the other modules of the folder are its parts. A new loss is an entry in `losses`, a new
optimizer one in `optimizers`, and gradient rules stand with the operators in `minbuild/ops/`.

from minbuild.authoring import Recipe, generate_artifacts
generate_artifacts("model.onnx", "artifacts", Recipe(loss="cross-entropy", optimizer="adamw"))
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from minbuild.authoring.artifact_graphs import (
    DONE,
    TRUTH,
    checkpoint_of,
    evaluation_graph,
    training_graph,
    with_full_precision,
)
from minbuild.authoring.autodiff.backward import differentiate
from minbuild.authoring.fused_activations import with_fused_activations
from minbuild.authoring.lint import lint
from minbuild.authoring.loss_scaling import loss_scaling
from minbuild.authoring.ort_files import ort_files
from minbuild.authoring.recipe import GeneratedArtifacts, Recipe, Source
from minbuild.authoring.resolve import resolve_recipe
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend import pytorch
from minbuild.frontend.checkpoint import write_checkpoint, write_checkpoint_files
from minbuild.frontend.files import read_file
from minbuild.frontend.onnx.exporter_metadata import exporter_notes
from minbuild.frontend.onnx.large_files import without_weights
from minbuild.frontend.onnx.quantization_pairs import with_quantization_pairs
from minbuild.frontend.onnx.reader import opset_in, parse_model, raised, read_model
from minbuild.frontend.onnx.writer import LARGEST_FILE, opsets_of, write_files
from minbuild.ir import TensorType, TrainingArtifacts
from minbuild.ir.pieces import FileContent
from minbuild.ops import Registry, registry
from minbuild.passes.lowering.lower import lower
from minbuild.uncollected import uncollected

__all__ = [
    "GeneratedArtifacts",
    "Recipe",
    "Source",
    "artifacts_of",
    "generate_artifacts",
    "in_directory",
    "make_artifacts",
    "read_source",
    "source_of",
    "types_of",
    "write_artifacts",
]

_Types = Mapping[str, TensorType]


def read_source(path: Path) -> Source:
    """The forward model in ONNX file `path`, or in a `torch.export` program (.pt2). Raises BadInput and Unsupported."""
    if path.is_dir():
        raise BadInput(
            f"{path}: is a folder. Give the ONNX file of the forward model; artifacts that are made already have their "
            "loss, and `minbuild reduce` takes their folder without --loss."
        )
    if path.suffix in pytorch.SUFFIXES:
        return source_of(pytorch.read_program(path), path)
    data = without_weights(path) or read_file(path, "Give the ONNX file of the model.")
    return source_of(parse_model(data, path), path)


def source_of(model: Any, path: Path) -> Source:
    """The forward model of `model`, an onnx.ModelProto that is called `path` in messages. Raises BadInput and
    Unsupported."""
    current = raised(model)
    return Source(read_model(current, path), opset_in(current), path, exporter_notes(model))


def artifacts_of(model: Source, recipe: Recipe, operators: Registry) -> TrainingArtifacts:
    """The graphs and the checkpoint that train `model`, before anything is written.

    `recipe` says which parameters train, by which loss and optimizer; `operators` is the registry with the gradient
    rules. Raises BadInput and Unsupported with all findings."""
    settled = resolve_recipe(model, recipe, operators)
    train, frozen = settled.train, settled.frozen
    graph = with_full_precision(settled.graph, (*train, *frozen), model.opset)
    wrt = (*train, *recipe.input_gradients)
    kept = (*wrt, *frozen, *settled.losses, *recipe.outputs, *recipe.stops)
    made = differentiate(
        with_fused_activations(graph, kept),
        settled.losses[0],
        wrt=wrt,
        registry=operators,
        opset=model.opset,
        stops=recipe.stops,
    )
    scaling = loss_scaling(recipe.loss_scale, graph, made, settled.optimizer, model.opset)
    made = scaling.differentiated
    notes = list(settled.notes)
    if lost := [n for n in train if n not in made.gradients]:
        if len(lost) == len(train) and not recipe.input_gradients:
            raise BadInput(
                f"{model.path}: the loss depends on none of the parameters that should train: {', '.join(lost)}."
            )
        notes.append(f"{', '.join(lost)}: the loss does not depend on them; they are frozen.")
        train, frozen = tuple(n for n in train if n in made.gradients), (*frozen, *lost)
    notes += lint(graph, train, settled.metadata, named=bool(recipe.train or recipe.lora.weights))
    outputs = tuple(dict.fromkeys((*settled.losses, *recipe.outputs)))
    return TrainingArtifacts(
        training_graph(graph, made, (*train, *recipe.input_gradients), (*frozen, *scaling.states), outputs),
        evaluation=evaluation_graph(
            with_quantization_pairs(graph, model.opset, per_tensor=False), (*train, *frozen), outputs
        ),
        optimizer=scaling.optimizer,
        checkpoint=checkpoint_of(
            replace(graph, initializers={**graph.initializers, **scaling.states}),
            train,
            (*frozen, *scaling.states),
        ),
        digests={},
        notes=tuple(notes),
    )


@uncollected()
def make_artifacts(
    model: Path | Source,
    recipe: Recipe,
    ops_folders: tuple[Path, ...] = (),
    prefix: str = "",
    largest: int = LARGEST_FILE,
) -> GeneratedArtifacts:
    """The training artifacts of a model, as files by name.

    `model` is the forward model or the path of its ONNX file; `recipe` is as for `artifacts_of`; `ops_folders` are
    folders with custom operators; `prefix` begins the name of every file. The tensors of a model with more than
    `largest` bytes of them stand in a second file beside it. Raises BadInput and Unsupported with all findings:
    whatever a trainer could not run is refused here."""
    model = read_source(model) if isinstance(model, Path) else model
    operators = registry(ops_folders)
    artifacts = artifacts_of(model, recipe, operators)
    types = types_of(artifacts, operators)
    files: dict[str, FileContent] = {}
    findings: list[str] = []
    for graph in (artifacts.training, artifacts.evaluation, artifacts.optimizer):
        if graph is None:
            continue
        opsets = opsets_of(graph.nodes, model.opset)
        files |= write_files(graph, types[graph.source], opsets, prefix, largest)
        try:
            files |= ort_files(graph, types[graph.source], opsets, prefix) if recipe.ort else {}
        except Unsupported as error:
            findings += error.findings
    if findings:
        raise Unsupported(findings)
    files |= write_checkpoint_files(artifacts.checkpoint, f"{prefix}checkpoint", largest)
    if recipe.nominal:
        files[f"{prefix}nominal_checkpoint"] = write_checkpoint(replace(artifacts.checkpoint, nominal=True))
    return GeneratedArtifacts(files, artifacts.notes)


def types_of(artifacts: TrainingArtifacts, operators: Registry) -> dict[str, _Types]:
    """By file, the types of what its nodes compute. Raises Unsupported with everything a trainer could not run."""
    found: dict[str, dict[str, TensorType]] = {}
    for procedure in lower(artifacts, operators, {}).procedures:
        found[procedure.source] = {n: v.type for n, v in procedure.values.items()}
    # Flags are of no interest to a trainer, and what is between an optimizer's nodes are sequences of tensors.
    found[artifacts.training.source] |= {n: TRUTH for n in artifacts.training.outputs if n.endswith(DONE)}
    if artifacts.optimizer is not None:
        found[artifacts.optimizer.source] = dict.fromkeys(artifacts.optimizer.outputs, TRUTH)
    return dict(found)


def write_artifacts(made: GeneratedArtifacts, out: Path) -> tuple[str, ...]:
    """Puts the files into folder `out`; each is complete before it takes the place of an old one. Files of an earlier
    set under the same prefix that are not in this one would be taken for part of it: they are removed, and their names
    returned. Raises BadInput."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as folder:
            for name, content in made.files.items():
                with (Path(folder) / name).open("wb") as file:
                    file.writelines((content,) if isinstance(content, bytes) else content)
            for name in made.files:
                os.replace(Path(folder) / name, out / name)
        stale = tuple(n for n in _of_a_set(made) if n not in made.files and (out / n).is_file())
        for name in stale:
            (out / name).unlink()
        return stale
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be written: {error.strerror}. Choose another folder.") from error


def _of_a_set(made: GeneratedArtifacts) -> Iterator[str]:
    """The name of a set of artifacts, from the names of its files, or None."""
    training = next((n for n in made.files if n.endswith("training_model.onnx")), None)
    if training is not None:
        prefix = training.removesuffix("training_model.onnx")
        models = (f"{prefix}{kind}_model" for kind in ("training", "eval", "optimizer"))
        kinds = (".onnx", ".onnx.data", ".ort", ".required_operators.config")
        yield from (model + kind for model in models for kind in kinds)
        yield from (f"{prefix}{name}" for name in ("checkpoint.data", "nominal_checkpoint"))


@contextmanager
def in_directory(made: GeneratedArtifacts) -> Iterator[Path]:
    """The artifacts in a folder that is there for as long as it is looked at."""
    with tempfile.TemporaryDirectory(prefix="minbuild-artifacts-") as folder:
        write_artifacts(made, Path(folder))
        yield Path(folder)


def generate_artifacts(
    model: Path | str,
    out: Path | str = ".",
    recipe: Recipe | None = None,
    prefix: str = "",
    ops_folders: tuple[Path, ...] = (),
) -> GeneratedArtifacts:
    """Makes the artifacts of the ONNX file `model` and writes them into folder `out`.

    `recipe` chooses parameters, loss and optimizer; without one, all parameters train by cross-entropy and AdamW.
    `prefix` begins the name of every file; `ops_folders` are folders with custom operators. Returns what was written.
    Raises BadInput and Unsupported."""
    made = make_artifacts(Path(model), recipe or Recipe(loss="cross-entropy"), ops_folders, prefix)
    write_artifacts(made, Path(out))
    return made
