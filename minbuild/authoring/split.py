"""A forward model cut where training begins: the backbone, which never changes, and the tail, which trains.

A node is of the tail when its result depends on a parameter that trains, on a random draw, or on the statistics of a
batch; everything before is the backbone. The features are the backbone's values that the tail reads: they are those of
one sample each, so that whoever keeps them computes the backbone once per sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from minbuild.authoring.autodiff.topological_order import in_order, leading_to
from minbuild.authoring.folded_constants.unfold import with_unfolded_constants
from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.authoring.parameters import chosen, with_lifted_constants
from minbuild.authoring.recipe import Recipe, Source
from minbuild.errors import BadInput
from minbuild.frontend.onnx.exporter_metadata import ExporterMetadata
from minbuild.frontend.onnx.subgraphs import graphs_in, names_read
from minbuild.frontend.onnx.writer import LARGEST_FILE, opsets_of, write_files
from minbuild.ir import Graph, Node, TensorType
from minbuild.ir.dims import Dim, symbol, symbols_in
from minbuild.ir.pieces import FileContent
from minbuild.ops import Registry

BACKBONE, TAIL = "backbone.onnx", "tail.onnx"
_DRAWS = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)
_TRAINING_MODE = 2  # the input of Dropout


@dataclass(frozen=True)
class Split:
    """Both models, the types of the features in the order of the backbone's outputs, the tail's parameters that train
    and those that do not, and notes."""

    backbone: Graph
    tail: Source
    features: Mapping[str, TensorType]
    train: tuple[str, ...]
    frozen: tuple[str, ...]
    types: Mapping[str, TensorType]
    notes: tuple[str, ...]

    @property
    def feature_bytes(self) -> int | None:
        """Bytes of the features of one sample; None where a size is free."""
        total = 0
        for tensor in self.features.values():
            sizes = [dim for dim in (tensor.shape or ())[1:] if isinstance(dim, int)]
            if len(sizes) + 1 != len(tensor.shape or ()):
                return None
            total += prod(sizes) * tensor.element.dtype.itemsize
        return total

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe of the whole model as one of the tail."""
        return replace(
            recipe, train=self.train, frozen=self.frozen, sizes=_those_of(recipe.sizes, self.tail.graph)
        )

    def files(self, largest: int = LARGEST_FILE) -> dict[str, FileContent]:
        """Both models as ONNX files, by name."""
        return {
            name: data
            for graph in (self.backbone, self.tail.graph)
            for name, data in write_files(
                graph, self.types, opsets_of(graph.nodes, self.tail.opset), largest=largest
            ).items()
        }


def split_model(model: Source, recipe: Recipe, operators: Registry) -> Split:
    """`model` cut before the first node that depends on what `recipe` trains. `operators` have the shape rules.
    Raises BadInput where nothing is left for the backbone, or the recipe does not fit the model, and Unsupported for
    operators without a shape rule."""
    if recipe.lora.weights or not recipe.train:
        raise BadInput(
            "--train: name the parameters of the last layers, such as last:2. All others are the backbone's."
        )
    model, notes = with_unfolded_constants(model)
    graph = with_lifted_constants(model.graph)
    metadata = model.metadata
    train, frozen = chosen(graph, recipe.train, recipe.frozen, metadata.constants, metadata.parameters)
    types = TypedGraphBuilder(graph, operators, model.opset, recipe.sizes)
    nodes = in_order(graph.nodes)
    moving = _moving(nodes, train)
    notes += tuple(_early(nodes, moving, train))
    features = _features(graph, nodes, moving, types)
    data = _of_data(graph, nodes)
    tail_nodes = leading_to(
        [node for node in nodes if id(node) in moving or data.isdisjoint(node.outputs)],
        {n for node in nodes if id(node) in moving for n in node.outputs if n in graph.outputs},
    )
    computed = [name for name in features if name not in graph.inputs]
    if not computed:
        raise BadInput(
            f"{graph.source}: --train {', '.join(recipe.train)}: training begins at node '{tail_nodes[0].name}', and "
            "nothing of the data is computed before it. Train fewer layers, such as last:1."
        )
    tail = _part(
        graph, TAIL, tail_nodes, {n: _as_input(n, t) for n, t in features.items()}, _made(tail_nodes, graph)
    )
    kept = leading_to([node for node in nodes if id(node) not in moving], {*computed, *graph.outputs})
    backbone = _part(
        graph,
        BACKBONE,
        kept,
        types.inputs,
        (*computed, *(n for n in _made(kept, graph) if n not in computed)),
    )
    found = {n: types.type_of(n) for g in (tail, backbone) for n in g.outputs} | dict(tail.inputs)
    return Split(
        backbone,
        Source(tail, model.opset, Path(TAIL), _of_tail(metadata, tail)),
        features={n: found[n] for n in computed},
        train=train,
        frozen=tuple(n for n in frozen if n in tail.initializers),
        types=found,
        notes=notes,
    )


def _moving(nodes: Sequence[Node], train: Iterable[str]) -> set[int]:
    """The nodes, by identity, whose results change from step to step for the same sample."""
    names, found = set(train), set[int]()
    for node in nodes:
        if _varies(node) or not names.isdisjoint(names_read(node)):
            names.update(node.outputs)
            found.add(id(node))
    return found


def _varies(node: Node) -> bool:
    """True if a node draws random numbers, or normalises by the batch."""
    if node.op_type == "Dropout":
        return len(node.inputs) > _TRAINING_MODE and bool(node.inputs[_TRAINING_MODE])
    if node.op_type == "BatchNormalization":
        return bool(node.attributes.get("training_mode", 0))
    return node.op_type in _DRAWS or any(_varies(inner) for graph in graphs_in(node) for inner in graph.nodes)


def _early(nodes: Sequence[Node], moving: set[int], train: Iterable[str]) -> Iterable[str]:
    """A note where something else than a parameter makes the tail begin."""
    first = next((node for node in nodes if id(node) in moving), None)
    if first is not None and _varies(first) and names_read(first).isdisjoint(train):
        what = "draws random numbers" if first.op_type != "BatchNormalization" else "normalises by the batch"
        yield (
            f"node '{first.name}' ({first.op_type}) {what} in training mode, so the tail begins there. Export the "
            "model in evaluation mode for a tail that begins at the parameters that train."
        )


def _of_data(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """The values that depend on the inputs."""
    found = set(graph.inputs)
    for node in nodes:
        if not found.isdisjoint(names_read(node)):
            found.update(node.outputs)
    return found


def _features(
    graph: Graph, nodes: Sequence[Node], moving: set[int], types: TypedGraphBuilder
) -> dict[str, TensorType]:
    """The values of the backbone that the tail reads. A value without one row per sample, such as a shape, is computed
    in the tail: its node is added to `moving`."""
    makers = {name: node for node in nodes for name in node.outputs}
    data = _of_data(graph, nodes)
    batches = {tensor.shape[0] for tensor in graph.inputs.values() if tensor.shape}
    batches |= {tensor.shape[0] for tensor in types.inputs.values() if tensor.shape}
    found: dict[str, TensorType] = {}
    waiting = [name for node in nodes if id(node) in moving for name in sorted(names_read(node))]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in data or (name in makers and id(makers[name]) in moving):
            continue
        seen.add(name)
        tensor = types.type_of(name) if types.has(name) else None
        if name in graph.inputs or (tensor is not None and _per_sample(tensor, batches)):
            assert tensor is not None
            found[name] = tensor
        else:
            moving.add(id(makers[name]))
            waiting += sorted(names_read(makers[name]))
    order = [*graph.inputs, *(name for node in nodes for name in node.outputs)]
    return {name: found[name] for name in order if name in found and _is_read(name, nodes, moving)}


def _is_read(name: str, nodes: Sequence[Node], moving: set[int]) -> bool:
    return any(name in names_read(node) for node in nodes if id(node) in moving)


def _per_sample(tensor: TensorType, batches: set[Dim]) -> bool:
    """True if dimension 0 is the batch, and the values are real numbers, or of a batch that is free."""
    if not tensor.shape or tensor.shape[0] not in batches:
        return False
    return tensor.element.dtype.kind in "fV" or not isinstance(tensor.shape[0], int)


def _made(nodes: Sequence[Node], graph: Graph) -> tuple[str, ...]:
    """The model's outputs among the results of nodes."""
    made = {name for node in nodes for name in node.outputs}
    return tuple(n for n in graph.outputs if n in made)


def _part(
    graph: Graph, source: str, nodes: Sequence[Node], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> Graph:
    """A graph of some of the nodes, with the inputs and constants that these read."""
    read = {name for node in nodes for name in names_read(node)}
    return replace(
        graph,
        source=source,
        nodes=tuple(nodes),
        inputs={n: t for n, t in inputs.items() if n in read},
        outputs=tuple(outputs),
        initializers={n: a for n, a in graph.initializers.items() if n in read},
    )


def _as_input(name: str, tensor: TensorType) -> TensorType:
    """The type of a feature as an input: free sizes that follow from others are free by themselves."""
    shape = tensor.shape or ()
    dims = tuple(
        dim if isinstance(dim, int) or symbols_in(dim) == {str(dim)} else symbol(f"{name}_{place}")
        for place, dim in enumerate(shape)
    )
    return replace(tensor, shape=dims)


def _of_tail(metadata: ExporterMetadata, tail: Graph) -> ExporterMetadata:
    """The exporter's metadata of the tail's values."""
    there = set(tail.initializers)
    return replace(
        metadata,
        constants=tuple(n for n in metadata.constants if n in there),
        lost=(),
        parameters=tuple(n for n in metadata.parameters if n in there),
        folded={n: sources for n, sources in metadata.folded.items() if n in there},
        joined=(),
    )


def _those_of(sizes: Mapping[str, int], graph: Graph) -> dict[str, int]:
    names = {n for t in graph.inputs.values() for d in t.shape or () for n in symbols_in(d)}
    return {n: size for n, size in sizes.items() if n in names}
