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
from minbuild.frontend.artifacts import read_bundle
from minbuild.ir import Bundle, Checkpoint
from minbuild.ops import registry
from minbuild.planning.compile import plan_bundle
from minbuild.planning.inference_export import export_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, host_target
from minbuild.training.library import Library

SUFFIXES = (".onnx", ".ort")


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Models by path, and the checkpoint they are for, read and found to belong together."""

    training: Path
    evaluation: Path | None
    optimizer: Path | None
    bundle: Bundle

    @staticmethod
    def read(
        training: Path, evaluation: Path | None, optimizer: Path | None, checkpoint: Checkpoint
    ) -> Artifacts:
        """Raises BadInput and Unsupported."""
        bundle = read_bundle(training, evaluation, optimizer, checkpoint)
        return Artifacts(training, evaluation, optimizer, bundle)

    def with_optimizer(self, optimizer: Path) -> Artifacts:
        """The same with another optimizer model. Raises as `read`."""
        return self.read(self.training, self.evaluation, optimizer, self.bundle.checkpoint)

    def build(self) -> tuple[Library, bytes]:
        """The library, trimmed as the one that ships, and its plan. Raises Unsupported and ToolchainFailed."""
        model = plan_bundle(self.bundle, b"", registry(), {}, {})
        built = build_checked(contents_of((model,)), model.registry, host_target(), find_toolchain())
        return _loaded(built.built.shared), model.plan_bytes

    def export(self, trained: Checkpoint, outputs: Sequence[str]) -> bytes:
        """The ONNX file for inference. Raises BadInput."""
        return export_model(self.bundle, trained, outputs)[1]


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
