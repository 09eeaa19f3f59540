"""What trains a model, whichever way it is written: a folder of artifacts, or a model with training information."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from minbuild.artifacts import load_bundle
from minbuild.artifacts.files import read_file
from minbuild.artifacts.training_info import read_training_model
from minbuild.authoring.training_info import training_bundle
from minbuild.model import Bundle
from minbuild.ops import Registry


def read_bundle(path: Path, operators: Registry) -> Bundle:
    """The artifacts in folder `path`, or what the ONNX file `path` says about its own training. Raises BadInput and
    Unsupported, each with all findings."""
    if not path.is_file():
        return load_bundle(path)
    data = read_file(path)
    model = read_training_model(data, path)
    return training_bundle(model, {path.name: sha256(data).hexdigest()}, operators)
