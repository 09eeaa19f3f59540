"""Making a model that carries its own training (ONNX training information) from a forward model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minbuild.authoring import in_directory
from minbuild.authoring.artifact_graphs import type_of, with_full_precision
from minbuild.authoring.autodiff.backward import differentiate
from minbuild.authoring.autodiff.gradient_operator import GRADIENT
from minbuild.authoring.autodiff.topological_order import leading_to
from minbuild.authoring.load import load
from minbuild.authoring.recipe import GeneratedArtifacts, Recipe, Source
from minbuild.authoring.resolve import resolve_recipe
from minbuild.authoring.training_info.update_steps import UpdateWriter, new_name, write_updates
from minbuild.errors import BadInput
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.frontend.onnx.training_info import DOMAIN, FILE
from minbuild.frontend.onnx.training_info_writer import TrainingParts, write_training_model
from minbuild.frontend.onnx.writer import LARGEST_FILE
from minbuild.ir import Graph, Node, TensorType
from minbuild.ops import Registry
from minbuild.passes.lowering.lower import lower


def make_training_model(
    model: Source, recipe: Recipe, operators: Registry, prefix: str = "", largest: int = LARGEST_FILE
) -> GeneratedArtifacts:
    """The file `<prefix>training_info.onnx`, and one with data beside it where more than `largest` bytes of tensors
    are in it: the forward model, and training that gives the numbers which the artifacts of the same recipe give. The
    learning rate is variable `learning_rate`; initialization resets it, the step count and the optimizer's state, and
    leaves parameters alone. `model` is the forward model, `prefix` begins the name, `recipe` describes its training,
    `operators` have gradient and shape rules. Raises BadInput and Unsupported with all findings: whatever a trainer
    could not run is refused here."""
    settled = resolve_recipe(model, recipe, operators, _inexpressible(recipe, model))
    added = len(settled.graph.nodes) - len(model.graph.nodes)
    train = settled.train
    whole = with_full_precision(settled.graph, (*train, *settled.frozen), model.opset)
    made = differentiate(whole, settled.losses[0], train, operators, model.opset)
    lost = tuple(n for n in train if n not in made.gradients)
    train = tuple(n for n in train if n in made.gradients)
    if not train:
        raise BadInput(f"{model.path}: the loss depends on none of the parameters that should train.")
    returned = tuple(dict.fromkeys((*settled.losses, *recipe.outputs)))
    plan = _Plan(
        model, whole=whole, split=len(whole.nodes) - added, returned=returned, train=train, types=made.types
    )
    parts = _parts(plan, recipe)
    files = write_training_model(parts, model.opset, prefix + FILE, largest)
    with in_directory(GeneratedArtifacts(files, ())) as folder:
        lower(load(folder / (prefix + FILE), operators), operators, {})
    notes = (f"{', '.join(lost)}: the loss does not depend on them; they are frozen.",) if lost else ()
    return GeneratedArtifacts(files, notes)


@dataclass(frozen=True)
class _Plan:
    """The forward model with the loss behind it: the first `split` nodes of `whole` are the model's own. `returned` are
    the loss and what steps return beside it, `train` the parameters, `types` those of all values."""

    model: Source
    whole: Graph
    split: int
    returned: Sequence[str]
    train: Sequence[str]
    types: Mapping[str, TensorType]


def _inexpressible(recipe: Recipe, model: Source) -> Iterator[str]:
    """A sentence for what the format has no place for."""
    if not isinstance(recipe.optimizer, str) or recipe.optimizer.endswith(".onnx"):
        yield (
            f"{model.path}: an optimizer model works on all parameters at once, which training information does not "
            "know. Choose one of the optimizers by name, or make artifacts."
        )
    elif recipe.optimizer in ("", "none"):
        yield f"{model.path}: training information needs an optimizer. Choose one with --optimizer."
    if recipe.stops:
        yield (
            f"{model.path}: the Gradient operator cannot stop at {', '.join(recipe.stops)}. Make artifacts instead."
        )


def _forward(graph: Graph, whole: Graph, split: int) -> Graph:
    """The forward model as it stands in the whole: its own nodes, inputs and outputs."""
    nodes = whole.nodes[:split]
    read = {n for node in nodes for n in names_read(node)} | set(graph.outputs)
    constants = {n: np.asarray(a) for n, a in whole.initializers.items() if n in read}
    return replace(graph, nodes=nodes, initializers=constants)


def _with_statistics(graph: Graph) -> tuple[Graph, Mapping[str, str]]:
    """The graph with the running statistics of BatchNormalization in training mode among its outputs, and those as new
    values of the statistics they are made of."""
    updates: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0):
            names = [*node.outputs[1:3], *("",) * (3 - len(node.outputs))]
            names = [n or new_name(s) for n, s in zip(names, node.inputs[3:5], strict=True)]
            updates |= {s: n for s, n in zip(node.inputs[3:5], names, strict=True) if s in graph.initializers}
            node = replace(node, outputs=(node.outputs[0], *names))
        nodes.append(node)
    outputs = tuple(dict.fromkeys((*graph.outputs, *updates.values())))
    return replace(graph, nodes=tuple(nodes), outputs=outputs), updates


def _parts(plan: _Plan, recipe: Recipe) -> TrainingParts:
    whole, opset = plan.whole, plan.model.opset
    inference, statistics = _with_statistics(_forward(plan.model.graph, whole, plan.split))
    writer = UpdateWriter({n: plan.types[n] for n in plan.train}, opset)
    gradients = tuple(f"{n}.gradient" for n in plan.train)
    gradient = _gradient(whole, plan.returned[0], plan.train, gradients)
    assert isinstance(recipe.optimizer, str), "checked before"
    write_updates(writer, gradients, recipe.optimizer, recipe.optimizer_options)
    own = {n: np.asarray(a) for n, a in whole.initializers.items() if n not in inference.initializers}
    algorithm = Graph(
        "algorithm.onnx",
        nodes=(*whole.nodes[plan.split :], gradient, *writer.nodes),
        inputs={n: t for n, t in whole.inputs.items() if n not in inference.inputs},
        sequences={},
        outputs=tuple(n for n in (*plan.returned, *writer.updates.values()) if n not in inference.outputs),
        initializers=own | writer.state,
    )
    initialization, resets = _initialization(writer.state, opset)
    types = dict(plan.types) | {n: type_of(a) for n, a in writer.state.items()}
    types |= {value: types[variable] for variable, value in (*writer.updates.items(), *statistics.items())}
    types |= {value: types[variable] for variable, value in resets.items()}
    return TrainingParts(
        inference,
        algorithm=algorithm,
        initialization=initialization,
        updates={**writer.updates, **statistics},
        resets=resets,
        types=types,
    )


def _gradient(whole: Graph, loss: str, train: Sequence[str], gradients: tuple[str, ...]) -> Node:
    """The Gradient of the loss by what trains; everything else that the loss is made of is in zs."""
    read = {n for node in leading_to(whole.nodes, {loss}) for n in names_read(node)}
    zs = tuple(n for n in (*whole.inputs, *whole.initializers) if n in read and n not in train)
    attributes: dict[str, object] = {"xs": tuple(train), "y": loss}
    if zs:
        attributes["zs"] = zs
    return Node(
        GRADIENT, DOMAIN, 1, name="gradient", inputs=(*train, *zs), outputs=gradients, attributes=attributes
    )


def _initialization(state: Mapping[str, np.ndarray], opset: int) -> tuple[Graph, Mapping[str, str]]:
    """A graph that computes the initial value of every state variable, and its bindings."""
    nodes = []
    for name, first in state.items():
        value, title = f"{name}.first", f"first {name}"
        if first.ndim == 0:
            nodes.append(
                Node(
                    "Constant",
                    "",
                    opset,
                    name=title,
                    inputs=(),
                    outputs=(value,),
                    attributes={"value": first},
                )
            )
            continue
        shape = np.array(first.shape, np.int64)
        nodes.append(
            Node(
                "Constant",
                "",
                opset,
                name=f"shape of {name}",
                inputs=(),
                outputs=(f"{name}.shape",),
                attributes={"value": shape},
            )
        )
        zero = np.zeros(1, first.dtype)
        nodes.append(
            Node(
                "ConstantOfShape",
                "",
                opset,
                name=title,
                inputs=(f"{name}.shape",),
                outputs=(value,),
                attributes={"value": zero},
            )
        )
    resets = {name: f"{name}.first" for name in state}
    return Graph(
        "initialization.onnx",
        nodes=tuple(nodes),
        inputs={},
        sequences={},
        outputs=tuple(resets.values()),
        initializers={},
    ), resets
