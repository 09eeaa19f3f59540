"""Readers of the training artifacts: a folder becomes a Bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.files import read_shared
from minbuild.frontend.onnx.large_files import without_weights
from minbuild.frontend.onnx.reader import read_graph
from minbuild.frontend.ort_format.reader import is_ort, read_ort_graph
from minbuild.frontend.validation import inconsistencies, with_graph_shapes
from minbuild.ir import Checkpoint, Graph, TrainingArtifacts
from minbuild.ir.mapped import sha256_of

_LARGE_ARRAY = 1 << 16  # bytes of a weight that is worth to be shared
_TRAINING = "training_model"
_EVALUATION = "eval_model"
_OPTIMIZER = "optimizer_model"
_FORMATS = (".onnx", ".ort")  # where a model is there in both, the first is read: ORT made the other from it
_CHECKPOINT = "checkpoint"
_NOMINAL = "nominal_checkpoint"

_T = TypeVar("_T")


def load_artifacts(path: Path) -> TrainingArtifacts:
    """The artifacts in folder `path`: `<prefix>training_model.onnx` (or `.ort`), `<prefix>checkpoint`, and where
    present `<prefix>eval_model.onnx` and `<prefix>optimizer_model.onnx`, or one of them. Other files are left
    alone. Raises BadInput (files missing, damaged, or not belonging together) and Unsupported, each with all
    findings."""
    training, evaluation, optimizer, saved = _locate(path)
    collect = _Collector()
    paths = (training, evaluation, optimizer)
    digests: dict[str, str] = {}
    graphs = [collect.run(_read_digested, p, digests) if p is not None else None for p in paths]
    file = collect.run(read_shared, saved)
    checkpoint = collect.run(read_checkpoint, saved) if file is not None else None
    collect.finish()
    assert checkpoint is not None and file is not None
    digests[saved.name] = sha256_of(file)
    return _bundle(path, graphs, checkpoint, saved.name, digests)


def read_artifacts(
    training: Path, evaluation: Path | None, optimizer: Path | None, checkpoint: Checkpoint
) -> TrainingArtifacts:
    """The same of single files, which may be called and be anywhere, and a checkpoint that is read already.
    `training`, `evaluation` and `optimizer` are ONNX or `.ort` files, `checkpoint` is that one. Raises as
    `load_artifacts`."""
    collect = _Collector()
    paths = (training, evaluation, optimizer)
    digests: dict[str, str] = {}
    graphs = [collect.run(_read_digested, p, digests) if p is not None else None for p in paths]
    collect.finish()
    return _bundle(training.parent, graphs, checkpoint, "the checkpoint", digests)


def _bundle(
    path: Path, graphs: list[Graph | None], checkpoint: Checkpoint, saved: str, digests: Mapping[str, str]
) -> TrainingArtifacts:
    """The artifacts that were read, if they belong together: training, evaluation and optimizer graph, and a
    checkpoint from `saved`; `digests` are those of their files."""
    train, evaluate, optimize = graphs
    assert train is not None
    checkpoint = with_graph_shapes(checkpoint, train)
    findings = list(inconsistencies(checkpoint, saved, train, evaluate, optimize))
    if findings:
        raise BadInput("\n".join(f"{path}/{finding}." for finding in findings))
    notes: tuple[str, ...] = ()
    if evaluate is not None:
        evaluate, notes = repair_normalization(_with_arrays_of(train, evaluate))
    return TrainingArtifacts(
        train, evaluation=evaluate, optimizer=optimize, checkpoint=checkpoint, digests=digests, notes=notes
    )


def _with_arrays_of(train: Graph, evaluate: Graph) -> Graph:
    """The evaluation graph with large weights of the training graph in place of equal ones of its own, so that they are
    in memory once. Those in files of their own are left there."""
    shared = {
        name: train.initializers[name]
        for name, array in evaluate.initializers.items()
        if array.nbytes >= _LARGE_ARRAY
        and name in train.initializers
        and _equal(array, train.initializers[name])
    }
    return replace(evaluate, initializers={**evaluate.initializers, **shared}) if shared else evaluate


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if isinstance(one, np.memmap) or one.dtype != other.dtype or one.shape != other.shape:
        return False
    here, there = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other))
    return np.array_equal(here, there)


def _read_digested(path: Path, digests: dict[str, str]) -> Graph:
    """The graph of one file, whose bytes are in memory no longer than that takes; `digests` gets its own. Large weights
    of a large ONNX file stay in it."""
    data = read_shared(path)
    digests[path.name] = sha256_of(data)
    if is_ort(data):
        return read_ort_graph(data, path)
    in_memory = data if isinstance(data, bytes) else without_weights(path) or bytes(data)
    return read_graph(in_memory, path)


class _Collector:
    """Runs readers one after the other and keeps their failures, so that all files are reported at once."""

    def __init__(self) -> None:
        self.bad: list[str] = []
        self.unsupported: list[str] = []

    def run(self, reader: Callable[..., _T], *arguments: object) -> _T | None:
        try:
            return reader(*arguments)
        except Unsupported as error:
            self.unsupported += error.findings
        except BadInput as error:
            self.bad.append(str(error))
        return None

    def finish(self) -> None:
        if self.bad:
            raise BadInput("\n".join(self.bad + self.unsupported))
        if self.unsupported:
            raise Unsupported(self.unsupported)


def _locate(path: Path) -> tuple[Path, Path | None, Path | None, Path]:
    """Training, evaluation, optimizer model and checkpoint of folder `path`."""
    try:
        names = sorted(p.name for p in path.iterdir())
    except FileNotFoundError:
        raise BadInput(f"{path}: no such folder. Give the folder that generate_artifacts wrote.") from None
    except NotADirectoryError:
        raise BadInput(f"{path}: this is a file. Give the folder that it is in.") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}.") from error
    found = [n for n in names if n.endswith(_TRAINING + _FORMATS[0])] or [
        n for n in names if n.endswith(_TRAINING + _FORMATS[1])
    ]
    if len(found) > 1:
        raise BadInput(
            f"{path}: holds several sets of artifacts: {', '.join(found)}. "
            "Leave one, or give each its own folder."
        )
    if not found:
        missing = f"*{_TRAINING}{_FORMATS[0]}" + (
            "" if any(n.endswith(_CHECKPOINT) for n in names) else f" and *{_CHECKPOINT}"
        )
        raise BadInput(f"{path}: no {missing} here. Give the folder that generate_artifacts wrote.")
    prefix = found[0].rpartition(".")[0].removesuffix(_TRAINING)
    saved = next((n for n in (prefix + _CHECKPOINT, prefix + _NOMINAL) if n in names), None)
    if saved is None:
        raise BadInput(f"{path}: no {prefix + _CHECKPOINT} beside {found[0]}. Copy it there.")

    def optional(name: str) -> Path | None:
        return next((path / (prefix + name + f) for f in _FORMATS if prefix + name + f in names), None)

    return path / found[0], optional(_EVALUATION), optional(_OPTIMIZER), path / saved


def repair_normalization(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Drop the running-statistics outputs of BatchNormalization nodes in inference mode, with a note. Eval
    models are generated with them, the operator forbids them there, and ONNX Runtime refuses such a file."""
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    nodes = tuple(
        replace(node, outputs=node.outputs[:1])
        if node.op_type == "BatchNormalization"
        and not node.domain
        and not node.attributes.get("training_mode", 0)
        and read.isdisjoint(node.outputs[1:])
        else node
        for node in graph.nodes
    )
    repaired = [after.name for before, after in zip(graph.nodes, nodes, strict=True) if before is not after]
    if not repaired:
        return graph, ()
    note = (
        f"{graph.source}: dropped the unused statistics outputs of {len(repaired)} BatchNormalization "
        "node(s) in inference mode, which the operator does not have and ONNX Runtime refuses."
    )
    return replace(graph, nodes=nodes), (note,)
