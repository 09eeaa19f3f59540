"""Artifacts -> the configuration of a reduced build of ONNX Runtime that can train them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from minbuild.compat.ort_config.effective_graph import EffectiveGraph, effective_graphs
from minbuild.compat.ort_config.fusions import fuse, fuse_convolutions
from minbuild.compat.ort_config.requirements import Requirements, Types, union
from minbuild.compat.ort_config.simplify import simplify
from minbuild.compat.ort_config.transposed_shapes import untranspose_shapes
from minbuild.compat.ort_config.type_reduction import tracked_types, tracks
from minbuild.errors import Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.frontend.onnx.opsets import since_version
from minbuild.ir import ElementType
from minbuild.ops import Registry, registry

STYLES = ("fixed", "runtime")


def requirements(
    folders: Sequence[Path], style: str = "fixed", ops_folders: tuple[Path, ...] = ()
) -> Requirements:
    """The requirements of the artifacts in all `folders`: "fixed" for `.ort` files that hold what runs, "runtime" for
    those that may be optimised further where they run. `style` is one of these two; `ops_folders` hold operators of
    the user. Raises BadInput and Unsupported."""
    operators = registry(ops_folders)
    return union(_of_folder(folder, style, operators) for folder in folders)


def _of_folder(folder: Path, style: str, operators: Registry) -> Requirements:
    artifacts = load_artifacts(folder)
    each = []
    for graph in effective_graphs(artifacts, operators):
        if graph.source.endswith(".ort"):  # runs as it is
            each.append(_of_graph(graph))
            continue
        simplify(graph)
        untranspose_shapes(graph)
        if style == "runtime":
            each.append(_of_graph(graph))
            while fuse_convolutions(graph):
                pass
        else:
            fuse(graph)
        each.append(_of_graph(graph))
    return union(each)


def _of_graph(graph: EffectiveGraph) -> Requirements:
    found: dict[tuple[str, int, str], Types] = {}
    unknown: list[str] = []
    for node in graph.nodes:
        domain = node.domain or "ai.onnx"
        key = (domain, since_version(node.domain, node.op_type, node.version), node.op_type)
        types = tracked_types(
            domain, node.op_type, _elements(node.inputs, graph), _elements(node.outputs, graph)
        )
        if tracks(domain, node.op_type) and not types:
            unknown.append(
                f"{graph.source}: node '{node.name}' ({node.title}): the types of its values are not known."
            )
        found[key] = found.get(key, Types()) | types
    if unknown:
        raise Unsupported([*graph.problems, *unknown])
    return Requirements(found)


def _elements(names: Sequence[str], graph: EffectiveGraph) -> tuple[ElementType | None, ...]:
    return tuple(graph.types[n].element if n in graph.types else None for n in names)


def sources(folders: Sequence[Path]) -> Iterator[str]:
    """The models a configuration was made from: file names, with their folder's name where there are several."""
    for folder in folders:
        artifacts = load_artifacts(folder)
        for graph in (artifacts.training, artifacts.evaluation, artifacts.optimizer):
            if graph is not None:
                yield f"{folder.resolve().name}/{graph.source}" if len(folders) > 1 else graph.source
