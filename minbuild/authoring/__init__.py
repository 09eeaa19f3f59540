"""Making training artifacts from a forward model: what ONNX Runtime's `generate_artifacts` does, for any model.

from minbuild.authoring import Recipe, generate_artifacts
generate_artifacts("model.onnx", "artifacts", Recipe(loss="cross-entropy", optimizer="adamw"))
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minbuild.artifacts.checkpoint import write_checkpoint
from minbuild.artifacts.files import read_file
from minbuild.artifacts.onnx_reader import opset_of, read_graph
from minbuild.artifacts.onnx_writer import opsets_of, write_graph
from minbuild.authoring.backward import Differentiated, Tape, differentiate
from minbuild.authoring.losses import LossOptions, find_loss
from minbuild.authoring.optimizers import OptimizerOptions, optimizer_graph
from minbuild.authoring.parameters import chosen
from minbuild.errors import BadInput
from minbuild.model import Checkpoint, ElementType, Graph, Node, Parameter, TensorType
from minbuild.ops import Registry, registry
from minbuild.ops.body import Body, named
from minbuild.ops.definition import Site

BUFFER, DONE, RESET = "_grad.accumulation.buffer", "_grad.accumulation.out", "lazy_reset_grad"
_TRUTH = TensorType(ElementType.BOOL, (1,))


@dataclass(frozen=True)
class Recipe:
    """How a model is to be trained.

    `train` and `frozen` name parameters (see parameters.py); `loss` is one of losses.LOSSES, or empty when output
    `loss_output` (by default the first) is the loss already; `loss_inputs` are the outputs the loss is taken of, by
    default the first; `outputs` are further outputs to keep in the training and evaluation models.
    """

    loss: str = ""
    loss_output: str = ""
    loss_inputs: Sequence[str] = ()
    loss_options: LossOptions = LossOptions()
    optimizer: str = "adamw"
    optimizer_options: OptimizerOptions = OptimizerOptions()
    train: Sequence[str] = ()
    frozen: Sequence[str] = ()
    outputs: Sequence[str] = ()
    nominal: bool = False


@dataclass(frozen=True)
class Artifacts:
    """The files, by name without prefix, and remarks a user should see."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...]


def make_artifacts(
    model: Path, recipe: Recipe, ops_folders: tuple[Path, ...] = (), prefix: str = ""
) -> Artifacts:
    """The training artifacts of the ONNX file `model`. Raises BadInput and Unsupported with all findings."""
    operators = registry(ops_folders)
    data = read_file(model)
    opset = opset_of(data, model)
    graph = read_graph(data, model)
    train, frozen = chosen(graph, recipe.train, recipe.frozen)
    with_loss, loss = _with_loss(graph, recipe, operators, opset)
    made = differentiate(with_loss, loss, train, operators, opset)
    notes = []
    if lost := [n for n in train if n not in made.gradients]:
        if len(lost) == len(train):
            raise BadInput(
                f"{model}: the loss depends on none of the parameters that should train: {', '.join(lost)}."
            )
        notes.append(f"{', '.join(lost)}: the loss does not depend on them; they are frozen.")
        train, frozen = tuple(n for n in train if n in made.gradients), (*frozen, *lost)
    outputs = (loss, *_known(recipe.outputs, made.types, model))
    training = _training(with_loss, made, train, frozen, outputs)
    evaluation = _evaluation(with_loss, (*train, *frozen), outputs)
    types = {n: made.types[n] for n in outputs} | {f"{n}{DONE}": _TRUTH for n in train}
    files = {
        "training_model.onnx": write_graph(training, types, opsets_of(training.nodes, opset)),
        "eval_model.onnx": write_graph(evaluation, types, opsets_of(evaluation.nodes, opset)),
        "checkpoint": write_checkpoint(_checkpoint(graph, train, frozen)),
    }
    if recipe.optimizer and recipe.optimizer != "none":
        step = optimizer_graph(recipe.optimizer, recipe.optimizer_options)
        files["optimizer_model.onnx"] = write_graph(step, {"updated": _TRUTH}, opsets_of(step.nodes, opset))
    if recipe.nominal:
        files["nominal_checkpoint"] = write_checkpoint(
            replace(_checkpoint(graph, train, frozen), nominal=True)
        )
    return Artifacts({prefix + name: content for name, content in files.items()}, tuple(notes))


def write_artifacts(made: Artifacts, out: Path) -> None:
    """Puts the files into folder `out`; each is complete before it takes the place of an old one. Raises BadInput."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as folder:
            for name, content in made.files.items():
                (Path(folder) / name).write_bytes(content)
            for name in made.files:
                os.replace(Path(folder) / name, out / name)
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be written: {error.strerror}. Choose another folder.") from error


def generate_artifacts(
    model: Path | str,
    out: Path | str = ".",
    recipe: Recipe | None = None,
    prefix: str = "",
    ops_folders: tuple[Path, ...] = (),
) -> Artifacts:
    """Makes the artifacts of the ONNX file `model` and writes them into folder `out`. Raises BadInput and
    Unsupported."""
    made = make_artifacts(Path(model), recipe or Recipe(loss="cross-entropy"), ops_folders, prefix)
    write_artifacts(made, Path(out))
    return made


def _with_loss(graph: Graph, recipe: Recipe, operators: Registry, opset: int) -> tuple[Graph, str]:
    """The graph with the loss behind it, and the loss's name."""
    if not recipe.loss or recipe.loss == "none":
        loss = recipe.loss_output or graph.outputs[0]
        if loss not in graph.outputs:
            raise BadInput(
                f"{graph.source}: the loss '{loss}' is no output; there are {', '.join(graph.outputs)}."
            )
        return graph, loss
    kind = find_loss(recipe.loss, recipe.loss_options)
    names = tuple(recipe.loss_inputs) or graph.outputs[:1]
    if missing := [n for n in names if n not in graph.outputs]:
        raise BadInput(
            f"{graph.source}: {', '.join(missing)}: no such output to take the loss of; there are "
            f"{', '.join(graph.outputs)}."
        )
    tape = Tape(graph, operators, opset)
    tape.record(())
    inputs, nodes, losses = dict(graph.inputs), list(graph.nodes), []
    for name in names:
        prediction = tape.type_of(name)
        target = ("labels" if kind.classes else "target") if len(names) == 1 else f"{name}_target"
        inputs[target] = kind.target(prediction)
        site = Site({}, (prediction, inputs[target]), (None, None), opset)
        body = Body(site, (name, target), (f"{name}_loss",), f"loss/{name}", opset)
        result = kind.build(body, recipe.loss_options)
        losses.append("loss" if len(names) == 1 else f"loss_of_{name}")
        nodes += named(body, (result,), (losses[-1],))
    if len(losses) > 1:
        nodes.append(Node("Sum", "", opset, "loss/total", tuple(losses), ("loss",), {}))
    return replace(graph, nodes=tuple(nodes), inputs=inputs, outputs=(*graph.outputs, "loss")), "loss"


def _known(names: Sequence[str], types: Mapping[str, TensorType], model: Path) -> tuple[str, ...]:
    if missing := [n for n in names if n not in types]:
        raise BadInput(
            f"{model}: {', '.join(missing)}: no such value to return. Name outputs of the model's nodes."
        )
    return tuple(names)


def _training(
    graph: Graph, made: Differentiated, train: Sequence[str], frozen: Sequence[str], outputs: tuple[str, ...]
) -> Graph:
    """Forward, backward, and one accumulation per trained parameter."""
    nodes = list(made.nodes)
    for number, name in enumerate(train, 1):
        inputs = (name + BUFFER, made.gradients[name], RESET)
        title = f"GradientAccumulator{number}"
        nodes.append(Node("InPlaceAccumulatorV2", "com.microsoft", 1, title, inputs, (name + DONE,), {}))
    types = dict(graph.inputs)
    types |= {n: made.types[n] for n in (*train, *frozen)}
    types |= {n + BUFFER: made.types[n] for n in train}
    types[RESET] = _TRUTH
    done = tuple(n + DONE for n in train)
    constants = _constants({**graph.initializers, **made.initializers}, nodes, types)
    return Graph("training_model.onnx", tuple(nodes), types, {}, (*outputs, *done), constants)


def _evaluation(graph: Graph, parameters: Sequence[str], outputs: tuple[str, ...]) -> Graph:
    """Forward and loss, with what behaves differently in training switched to inference."""
    nodes = [_inferring(node) for node in graph.nodes]
    types = dict(graph.inputs)
    types |= {n: _type(graph.initializers[n]) for n in parameters}
    return Graph(
        "eval_model.onnx", tuple(nodes), types, {}, outputs, _constants(graph.initializers, nodes, types)
    )


def _inferring(node: Node) -> Node:
    if node.op_type == "Dropout" and not node.domain:
        return replace(node, inputs=node.inputs[:2])
    if node.op_type == "BatchNormalization" and not node.domain and node.attributes.get("training_mode", 0):
        return replace(node, attributes={**node.attributes, "training_mode": 0}, outputs=node.outputs[:1])
    return node


def _constants(
    initializers: Mapping[str, np.ndarray], nodes: Sequence[Node], inputs: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """Initializers that some node reads and that are no parameters."""
    read = {name for node in nodes for name in node.inputs}
    return {n: np.asarray(a) for n, a in initializers.items() if n in read and n not in inputs}


def _type(array: np.ndarray) -> TensorType:
    element = ElementType.of(array.dtype)
    assert element is not None, "readers refuse other types"
    return TensorType(element, array.shape)


def _checkpoint(graph: Graph, train: Sequence[str], frozen: Sequence[str]) -> Checkpoint:
    def parameter(name: str, trainable: bool) -> Parameter:
        array = np.asarray(graph.initializers[name])
        return Parameter(name, _type(array).element, array.shape, trainable, array)

    return Checkpoint((*(parameter(n, True) for n in train), *(parameter(n, False) for n in frozen)))
