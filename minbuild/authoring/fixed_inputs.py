"""Inputs that a recipe fixes to one number, such as the sampling rate that a model branches on or the limit of a mask,
and the branches that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from minbuild.authoring.recipe import Recipe, Source
from minbuild.frontend.onnx.unroll import unrolled
from minbuild.ir import ElementType, Graph, Node, Shape, TensorType
from minbuild.ops import Registry
from minbuild.ops.core.definition import UnsupportedUse

# Operators that conditions are written with.
_CONDITIONS = frozenset(
    ("And", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Not", "Or", "Xor")
)


def with_fixed_inputs(model: Source, recipe: Recipe) -> tuple[Source, Recipe]:
    """The model with the inputs among `recipe.sizes` as constants, and the recipe without these."""
    graph = model.graph
    fixed = {n: recipe.sizes[n] for n, t in graph.inputs.items() if n in recipe.sizes and is_single_number(t)}
    if not fixed:
        return model, recipe
    constants = {
        n: np.full([1] * len(graph.inputs[n].shape or ()), value, graph.inputs[n].element.dtype)
        for n, value in fixed.items()
    }
    inputs = {n: t for n, t in graph.inputs.items() if n not in fixed}
    graph = replace(graph, inputs=inputs, initializers={**graph.initializers, **constants})
    sizes = {n: size for n, size in recipe.sizes.items() if n not in fixed}
    return replace(model, graph=graph), replace(recipe, sizes=sizes)


def is_single_number(tensor: TensorType) -> bool:
    """True for the type of a single number: of any whole number, and of a real number without dimensions."""
    shape = tensor.shape
    return shape == () or (not tensor.element.is_real and shape is not None and all(d == 1 for d in shape))


@dataclass(frozen=True, slots=True)
class KnownContents:
    """A scope in which some contents are known, and no types."""

    known: Mapping[str, np.ndarray]

    def content(self, name: str) -> np.ndarray | None:
        return self.known.get(name)

    def shape(self, name: str) -> Shape:
        raise UnsupportedUse(f"the shape of '{name}' is not known here")

    def element(self, name: str) -> ElementType:
        raise UnsupportedUse(f"the element type of '{name}' is not known here")


def with_known_branches(graph: Graph, operators: Registry) -> Graph:
    """The graph with the branch that is taken in place of each If whose condition follows from constants: parameters
    in it are then those of layers."""
    if not any(node.op_type == "If" and not node.domain for node in graph.nodes):
        return graph
    known = {n: a for n, a in graph.initializers.items() if a.size == 1}
    nodes: list[Node] = []

    def add(node: Node) -> None:
        content = _content(node, known, operators)
        if content is not None:
            known[node.outputs[0]] = content
        if node.op_type == "If" and not node.domain and node.inputs[0] in known:
            for part in unrolled(node, KnownContents(known)) or ():
                add(part)
        else:
            nodes.append(node)

    for node in graph.nodes:
        add(node)
    return replace(graph, nodes=tuple(nodes))


def _content(node: Node, known: Mapping[str, np.ndarray], operators: Registry) -> np.ndarray | None:
    """The single number that a node computes of single numbers, None for others."""
    if node.domain or len(node.outputs) != 1:
        return None
    if node.op_type == "Constant":
        value = node.attributes.get("value")
        return value if isinstance(value, np.ndarray) and value.size == 1 else None
    op = operators.find("", node.op_type)
    if node.op_type not in _CONDITIONS or op is None or op.reference is None:
        return None
    return (
        np.asarray(op.reference(node.attributes, *(known[n] for n in node.inputs)))
        if all(n in known for n in node.inputs)
        else None
    )
