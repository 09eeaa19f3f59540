"""Artifact sets with ONNX Runtime's own trajectories, and trainers built from them: the golden sets of this
repository, and the larger ones beside it where that folder exists."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from places import GOLDEN, ROOT
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.ir import Checkpoint, Plan, TrainingArtifacts
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.checkpointing import checkpointing
from minbuild.passes.rewrite.native_products import take_native_products
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan
from minbuild.reference.interpreter import user_inputs
from minbuild.training.library import EVAL, TRAIN, Library, Session, aligned_copy, arena_size

SHARED = Path(os.environ.get("MINBUILD_CASES", ROOT.parent / "shared" / "cases"))
LISTED = (
    *("mlp", "mlp_fixed", "mlp_sgd", "mlp_bce", "mlp_l1", "mlp_wd_clip", "lenet", "cnn_bn", "resnet8"),
    *("mobilenetv2", "mobilenet_tl", "mobilenet_tl_bn", "custom_loss", "multi_out"),
    *("mlp_nominal", "mlp_ort"),
    *("dscnn_kws_avgpool", "ae_up_concat", "mbv3_decomposed"),
    *("bert_tiny", "gpt_tiny_trilu", "lstm_cls", "gru_cls"),
)


def folders() -> list[Path]:
    """Every set there is, golden ones first."""
    golden = [p.parent for p in sorted(GOLDEN.glob("*/meta.json"))]
    return golden + [SHARED / name for name in LISTED if (SHARED / name / "meta.json").is_file()]


@dataclass(frozen=True)
class Trainer:
    """A trimmed trainer: its library, its plan as noun and as bytes, and what it was built of."""

    path: Path
    library: Library
    plan: Plan
    data: bytes
    contents: LibraryContents

    def session(self, checkpoint: bytes, sizes: Mapping[str, int] | None = None) -> Session:
        """A session in memory full of NaN, for free dimensions up to `sizes` (plan's default: 32)."""
        most = [(sizes or {}).get(symbol, 32) for symbol in self.plan.symbols]
        arena = aligned_copy(b"\xff" * arena_size(self.library, self.data, most))
        return Session(self.library, self.data, checkpoint, most, arena)


@dataclass(frozen=True)
class CaseSet:
    """One artifact set. `reference` holds the arrays of reference.npz by name."""

    folder: Path
    artifacts: TrainingArtifacts
    meta: Mapping[str, Any]
    reference: Mapping[str, np.ndarray]

    def batch(self, step: int, prefix: str = "in/") -> list[np.ndarray]:
        """The inputs of a recorded step, in the training graph's order."""
        return [self.reference[prefix + n][step % self.meta["n_batches"]] for n in self.inputs]

    def eval_batch(self) -> list[np.ndarray]:
        assert self.artifacts.evaluation is not None
        names = user_inputs(self.artifacts.evaluation, self.parameters)
        return [self.reference[f"eval_in/{n}"] for n in names]

    def samples(self, count: int) -> list[np.ndarray]:
        """The first `count` recorded samples, again from the start where there are not so many. An input may have
        several rows for each sample of the first one."""
        axes = [self._free_axis(n) for n in self.inputs]
        names = zip(self.inputs, axes, strict=True)
        whole = [np.moveaxis(self.reference[f"in/{n}"], 1 + axis, 1) for n, axis in names]
        recorded = whole[0].shape[1]
        chosen = [np.resize(x, (count * x.shape[1] // recorded, *x.shape[2:])) for x in whole]
        return [np.moveaxis(x, 0, axis) for x, axis in zip(chosen, axes, strict=True)]

    def _free_axis(self, name: str) -> int:
        """The axis of an input that counts samples: its first free one; recurrent networks have time in front."""
        shape = self.artifacts.training.inputs[name].shape or ()
        return next((i for i, d in enumerate(shape) if not isinstance(d, int)), 0)

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(p.name for p in self.artifacts.checkpoint.parameters)

    @property
    def inputs(self) -> list[str]:
        return list(user_inputs(self.artifacts.training, self.parameters))

    @property
    def rate(self) -> float:
        return float(np.float32(self.meta["lr"]))

    @property
    def fixed(self) -> bool:
        """Whether the batch size stands in the artifacts."""
        return all(
            isinstance(d, int) for n in self.inputs for d in self.artifacts.training.inputs[n].shape or ()
        )

    @property
    def checkpoint(self) -> bytes:
        return (self.folder / "checkpoint").read_bytes()

    @property
    def trained(self) -> tuple[bytes, Checkpoint]:
        """The checkpoint saved after the last step, with optimizer state."""
        data = (self.folder / "checkpoint_final_opt").read_bytes()
        return data, read_checkpoint(data)

    def losses(self, kind: str = "loss") -> list[float]:
        """Recorded losses; some models keep a dimension."""
        return [float(x) for x in self.reference[kind].ravel()]

    def recorded(self, kind: str) -> dict[str, np.ndarray]:
        """Arrays recorded per parameter, e.g. `grad_step1`."""
        start = len(kind) + 1
        return {n[start:]: x for n, x in self.reference.items() if n.startswith(f"{kind}/")}


@functools.lru_cache(maxsize=4)
def load(folder: Path) -> CaseSet:
    meta = json.loads((folder / "meta.json").read_text())
    with np.load(folder / "reference.npz") as arrays:
        return CaseSet(folder, load_artifacts(folder), meta, dict(arrays))


_keep = tempfile.TemporaryDirectory(prefix="minbuild-tests-")


@functools.cache
def loaded(shared: bytes) -> tuple[Path, Library]:
    path = Path(_keep.name) / f"{hashlib.sha256(shared).hexdigest()[:16]}.so"
    if (
        not path.exists()
    ):  # several sets may need the same library, and a mapped file must not be written again
        path.write_bytes(shared)
    return path, Library(path)


@functools.cache
def trainer(
    folder: Path,
    batch: int | None = None,
    threads: int = 1,
    live_bytes: int | None = None,
    dense: int = 0,
    wide: bool = False,
    native_halves: bool = False,
    packs_all: bool = False,
) -> Trainer:
    """The trimmed trainer of a set, for as many `threads`; with `batch`, the first free dimension fixed; with
    `live_bytes`, calls repeated for a training step of as many bytes, at 32 of each free dimension; `dense` is the
    form of its plan, see `dense_form`; `wide` asks for 64-bit sizes; `native_halves`: as by --half-arithmetic native;
    `packs_all`: as by --packing all, for 32 of each free dimension. Raises Unsupported."""
    case, operators = load(folder), registry()
    program = lower(case.artifacts, operators, {})
    if batch is not None:
        program = lower(case.artifacts, operators, dict.fromkeys(program.symbols[:1], batch))
    program = take_native_products(program, operators) if native_halves else program
    most = dict.fromkeys(program.symbols, 32)
    remade = () if live_bytes is None else checkpointing(live_bytes, most)
    kernels = KernelChoice(largest=most) if packs_all else EVERY_KERNEL
    plan = build_plan(optimize(program, operators, None, remade), operators, threads, kernels)
    contents = LibraryContents(
        plan.kernels,
        frozenset(plan.features),
        bool(plan.symbols),
        loops=plan.loops,
        threads=threads,
        dense=dense,
        wide=wide,
        idle_moments=int(plan.idle_moments),
        frozen_parameters=plan.frozen_parameters,
    )
    library = shared_library(emit_sources(contents, operators))
    data = encode_plan(plan, dict.fromkeys(plan.symbols, 32), wide, dense=dense)
    return Trainer(*loaded(library), plan, data, contents)


def persistent(session: Session, built: Trainer) -> bytes:
    """All that persists, as it lies in memory: parameters, gradients, moments, statistics, seeds, steps, rate."""
    end = ctypes.addressof(session._session.contents.progress.contents) + 24
    return ctypes.string_at(end - built.plan.persistent_bytes, built.plan.persistent_bytes)


__all__ = ["EVAL", "TRAIN", "CaseSet", "Trainer", "folders", "load", "persistent", "trainer"]
