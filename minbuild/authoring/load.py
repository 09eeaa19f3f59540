"""Load the artifacts of a model in any form: a folder of artifacts, or a model with training information."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from minbuild.authoring.autodiff.gradient_operator import opset_of_nodes, without_gradient_nodes
from minbuild.authoring.training_info.to_artifacts import artifacts_of_training_info
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.files import read_file
from minbuild.frontend.onnx.training_info import FILE, read_training_model
from minbuild.ir import TrainingArtifacts
from minbuild.ops import Registry


def load(path: Path, operators: Registry) -> TrainingArtifacts:
    """The artifacts in folder `path`, or what the ONNX file `path` says about its own training; such a file may stand
    in a folder that holds no artifacts. Raises BadInput and Unsupported, each with all findings."""
    path = _model_in(path) or path
    if not path.is_file():
        return _without_gradient_nodes(load_artifacts(path), operators)
    data = read_file(path)
    model = read_training_model(data, path)
    return artifacts_of_training_info(model, {path.name: sha256(data).hexdigest()}, operators)


def _without_gradient_nodes(artifacts: TrainingArtifacts, operators: Registry) -> TrainingArtifacts:
    """The artifacts with plain nodes in place of ONNX's operator Gradient."""
    variables = [p.name for p in artifacts.checkpoint.parameters]
    training, evaluation = (
        graph and without_gradient_nodes(graph, variables, operators, opset_of_nodes(graph))
        for graph in (artifacts.training, artifacts.evaluation)
    )
    return replace(artifacts, training=training or artifacts.training, evaluation=evaluation)


def _model_in(folder: Path) -> Path | None:
    """The one model with training information in a folder without artifacts."""
    if not folder.is_dir() or any(folder.glob("*training_model.*")):
        return None
    found = list(folder.glob(f"*{FILE}"))
    return found[0] if len(found) == 1 else None
