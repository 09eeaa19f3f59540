"""Trainers of artifacts for this machine, built when they are asked for, through the cache: what `Module` runs when it
is given the files that onnxruntime would be given."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minbuild.codegen.library_builder import build_checked
from minbuild.frontend.artifacts import read_artifacts
from minbuild.ir import Checkpoint, TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.inference_export import export_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_outline import SessionPlan
from minbuild.toolchain import find_toolchain, host_target
from minbuild.training.library import Library

SUFFIXES = (".onnx", ".ort")


@dataclass(frozen=True, slots=True)
class ArtifactFiles:
    """Models by path, and the checkpoint they are for, read and found to belong together."""

    training: Path
    evaluation: Path | None
    optimizer: Path | None
    artifacts: TrainingArtifacts

    @staticmethod
    def read(
        training: Path, evaluation: Path | None, optimizer: Path | None, checkpoint: Checkpoint
    ) -> ArtifactFiles:
        """The artifacts in files `training`, `evaluation` and `optimizer`, with a `checkpoint` that is read already.
        Raises BadInput and Unsupported."""
        artifacts = read_artifacts(training, evaluation, optimizer, checkpoint)
        return ArtifactFiles(training, evaluation, optimizer, artifacts)

    def with_optimizer(self, optimizer: Path) -> ArtifactFiles:
        """The same with another optimizer model. Raises as `read`."""
        return self.read(self.training, self.evaluation, optimizer, self.artifacts.checkpoint)

    def build(self) -> tuple[Library, SessionPlan]:
        """The library, trimmed as the one that ships, and its plan. Raises Unsupported and ToolchainFailed."""
        model = compile_artifacts(self.artifacts, b"", registry(), {}, {})
        built = build_checked(contents_of((model,)), model.registry, host_target(), find_toolchain())
        return _loaded(built.built.shared), SessionPlan.of(model.plan_bytes)

    def export(self, trained: Checkpoint, outputs: Sequence[str]) -> bytes:
        """The ONNX file for inference. Raises BadInput."""
        return export_model(self.artifacts, trained, outputs)[1]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where loaded libraries are for as long as this process is."""
    return tempfile.TemporaryDirectory(prefix="minbuild-", ignore_cleanup_errors=True)


@cache
def _loaded(shared: bytes) -> Library:
    path = (
        Path(_folder().name) / f"{hashlib.sha256(shared).hexdigest()[:16]}{host_target().traits.shared_name}"
    )
    path.write_bytes(shared)
    return Library(path)
