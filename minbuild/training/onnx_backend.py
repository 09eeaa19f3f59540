"""ONNX's standard backend interface (`onnx.backend.base`) over the full build: any ONNX model on the device library.

    from minbuild import onnx_backend
    outputs = onnx_backend.prepare(model).run([x])

The device computes no shapes, so a model is planned when its inputs are there: for their sizes, and where a shape
follows from what is in them (the target of Reshape, the starts of Slice), for those numbers too; as the last resort
(NonZero, Unique, NonMaxSuppression) for all that is in them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from minbuild.authoring.autodiff.gradient_operator import opset_of_nodes, without_gradient_nodes
from minbuild.codegen.sources import emit_sources
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.reader import read_graph
from minbuild.ir import Checkpoint, ElementType, Graph, Program, TensorType, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.library_contents import full_contents
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan, is_wide
from minbuild.toolchain import build_library, find_toolchain, host_target
from minbuild.training.library import TRAIN, Library, Session


def full_library(wide: bool = False) -> Library:
    """The full build for this machine, compiled or found in the cache, and loaded. With `wide` it takes plans of models
    that need more than 2 GB, and no others."""
    return _full_library(wide)


@cache  # by the value, given or not
def _full_library(wide: bool) -> Library:
    sources = emit_sources(full_contents(registry(), wide=wide), registry())
    built = build_library(sources, host_target(), find_toolchain())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libminbuild_full.so"
        path.write_bytes(built.shared)
        return Library(path)


class Representation(BackendRep):
    """A model ready to run."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **options: Any) -> tuple[np.ndarray, ...]:
        """The model's outputs. Raises Unsupported naming what the library or the planner lacks."""
        names = tuple(self.graph.inputs)
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        feeds = {name: np.asarray(array) for name, array in given.items()}
        for known in (frozenset[str](), _small(feeds, "iub"), _small(feeds, "iubfV")):
            try:
                return _run(_specialised(self.graph, feeds, known), feeds)
            except Unsupported:
                continue
        return _run(_specialised(self.graph, feeds, frozenset(feeds)), feeds)


def _small(feeds: Mapping[str, np.ndarray], kinds: str) -> frozenset[str]:
    """Scalars and vectors of these kinds of numbers, which shapes may depend on."""
    return frozenset(n for n, x in feeds.items() if x.dtype.kind in kinds and x.ndim <= 1)


def _specialised(graph: Graph, feeds: Mapping[str, np.ndarray], known: frozenset[str]) -> Graph:
    """The graph for inputs of these sizes, those in `known` as constants."""
    inputs = {
        name: TensorType(_element(array), array.shape) for name, array in feeds.items() if name not in known
    }
    constants = {name: feeds[name] for name in known}
    return replace(graph, inputs=inputs, initializers={**graph.initializers, **constants})


def _element(array: np.ndarray) -> ElementType:
    element = ElementType.of(array.dtype)
    if element is None:
        raise Unsupported([f"an input is of type {array.dtype}, which is not supported"])
    return element


def _run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    program = program_of(graph)
    constants = [program.procedures[0].values[name].constant for name in graph.outputs]
    if not program.procedures[0].calls:
        return tuple(np.asarray(c) for c in constants)  # everything followed from the types
    plan = build_plan(program, registry())
    encoded = encode_plan(plan, {})
    session = Session(full_library(is_wide(encoded)), encoded, None)
    try:
        found = session.run(TRAIN, [feeds[name] for name, _ in plan.routines[0].inputs])
    finally:
        session.close()
    return tuple(found)


def program_of(graph: Graph) -> Program:
    """One graph without parameters, after all passes."""
    graph = without_gradient_nodes(graph, (), registry(), opset_of_nodes(graph))
    artifacts = TrainingArtifacts(graph, None, None, Checkpoint(()), {})
    return optimize(lower(artifacts, registry(), {}), registry())


class MinbuildBackend(Backend):
    """The device library on the CPU of this machine."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> Representation:
        super().prepare(model, device, **options)
        return Representation(read_graph(model.SerializeToString(), Path("model.onnx")))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare = MinbuildBackend.prepare
run_model = MinbuildBackend.run_model
supports_device = MinbuildBackend.supports_device
