"""A forward model with its loss behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minbuild.authoring.graph_builder import TypedGraphBuilder
from minbuild.authoring.losses import LossOptions, find_loss, loss_mismatches
from minbuild.authoring.recipe import Recipe, Source
from minbuild.errors import BadInput
from minbuild.frontend.files import read_file
from minbuild.frontend.onnx.reader import opset_in, parse_model, raised, read_model
from minbuild.frontend.onnx.subgraphs import renamed
from minbuild.ir import Graph, Node
from minbuild.ops import Registry
from minbuild.ops.core.definition import OpContext
from minbuild.ops.core.graph_builder import GraphBuilder, named


def with_loss(model: Source, recipe: Recipe, operators: Registry) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the loss behind it; the loss's name, then those of what a loss of one's own returns beside it.
    `model` is the forward model, `recipe` describes the loss, `operators` have the shape rules. Raises BadInput and
    Unsupported."""
    graph = model.graph
    compose = TypedGraphBuilder(graph, operators, model.opset, recipe.sizes)
    if not recipe.loss or recipe.loss == "none":
        return compose.graph(graph.outputs), (_loss_there(compose, recipe.loss_output),)
    if not isinstance(recipe.loss, str):
        made = recipe.loss(compose, *_outputs(graph, recipe.loss_inputs or graph.outputs))
        names = (made,) if isinstance(made, str) else tuple(made)
    elif recipe.loss.endswith(".onnx"):
        names = _from_file(compose, Path(recipe.loss), _outputs(graph, recipe.loss_inputs))
    else:
        names = (_by_name(compose, recipe.loss, recipe.loss_options, _outputs(graph, recipe.loss_inputs)),)
    _check_single(compose, names[0], "Take the mean or the sum of it.")
    return compose.graph((*graph.outputs, *names)), names


def _loss_there(compose: TypedGraphBuilder, name: str) -> str:
    """The output that is the loss already."""
    graph = compose.start
    loss = name or graph.outputs[0]
    if loss not in graph.outputs:
        raise BadInput(
            f"{graph.source}: the loss '{loss}' is no output; there are {', '.join(graph.outputs)}."
        )
    cure = "Choose a loss with --loss, or another output with --loss-output."
    _check_single(compose, loss, cure)
    return loss


def _check_single(compose: TypedGraphBuilder, loss: str, cure: str) -> None:
    """Raises BadInput where the value that is the loss is more than one number."""
    shape = compose.type_of(loss).shape or ()
    if any(dim != 1 for dim in shape):
        raise BadInput(
            f"{compose.start.source}: value '{loss}' has shape [{', '.join(map(str, shape))}], but a loss is a single "
            f"number. {cure}"
        )


def _outputs(graph: Graph, names: Sequence[str]) -> tuple[str, ...]:
    """The outputs that a loss is taken of, by default the first."""
    if missing := [n for n in names if n not in graph.outputs]:
        raise BadInput(
            f"{graph.source}: {', '.join(missing)}: no such output to take the loss of; there are "
            f"{', '.join(graph.outputs)}."
        )
    return tuple(names) or graph.outputs[:1]


def _by_name(compose: TypedGraphBuilder, kind: str, options: LossOptions, names: tuple[str, ...]) -> str:
    """One of LOSSES, of each of `names` against a target of its own, added up."""
    loss, losses = find_loss(kind, options), []
    for name in names:
        target = ("labels" if loss.classes else "target") if len(names) == 1 else f"{name}_target"
        result = "loss" if len(names) == 1 else f"loss_of_{name}"
        losses.append(loss_of(compose, kind, options=options, prediction=name, target=target, result=result))
    if len(losses) > 1:
        compose.extend(
            [Node("Sum", "", compose.opset, name="loss/total", inputs=tuple(losses), outputs=("loss",))]
        )
    return "loss"


def loss_of(
    compose: TypedGraphBuilder,
    kind: str,
    options: LossOptions,
    prediction: str,
    target: str,
    result: str = "",
    computed: bool = False,
) -> str:
    """Writes loss `kind` of value `prediction` against the new input `target`, or against a value of that name if the
    target may be `computed`: the name of the result. `compose` is the graph they are written to, `options` are those
    of the loss, `result` the name to use, if any."""
    loss, tensor = find_loss(kind, options), compose.type_of(prediction)
    if problems := list(loss_mismatches(options, tensor)):
        raise BadInput("\n".join(problems))
    if not (computed and compose.has(target)):
        compose.input(target, loss.target(tensor))
    title = compose.unused(f"loss/{prediction}")
    ctx = OpContext({}, (tensor, compose.type_of(target)), (None, None), compose.opset)
    body = GraphBuilder(ctx, (prediction, target), (result or f"{title}:loss",), title, compose.opset)
    compose.extend(named(body, (loss.build(body, options),), (body.y[0].name,)))
    return body.y[0].name


def _from_file(compose: TypedGraphBuilder, path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """The graph in ONNX file `path`: its first inputs are the outputs the loss is taken of, the others become inputs
    of the model. Its first output is the loss."""
    data = read_file(path, "Give the ONNX file of the loss.")
    model = raised(parse_model(data, path))
    loss = read_model(model, path)
    if opset_in(model) != compose.opset:
        raise BadInput(
            f"{path}: imports opset {opset_in(model)}, but the model imports {compose.opset}. Convert one of them."
        )
    inputs = tuple(loss.inputs)
    if len(inputs) < len(names):
        raise BadInput(
            f"{path}: takes {len(inputs)} inputs, but the loss is to be taken of {len(names)} outputs: "
            f"{', '.join(names)}."
        )
    given = dict(zip(inputs, names, strict=False))
    for name in inputs[len(names) :]:
        given[name] = compose.input(name, loss.inputs[name])
    for name, array in loss.initializers.items():
        given[name] = compose.add("Constant", name=f"loss/{name}", value=np.asarray(array))
    given |= {n: compose.unused(f"loss/{n}") for node in loss.nodes for n in node.outputs if n}
    compose.extend([renamed(node, lambda n: given.get(n, n), "loss") for node in loss.nodes])
    return tuple(given[n] for n in loss.outputs)
