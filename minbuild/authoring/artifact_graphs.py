"""The three models and the checkpoint of a set of artifacts, as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from minbuild.authoring.autodiff.sweep import Differentiated
from minbuild.frontend.onnx.subgraphs import names_read, renamed
from minbuild.ir import (
    GRADIENT_SUFFIX,
    RESET_INPUT,
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Parameter,
    TensorType,
    TrainingArtifacts,
)

DONE = "_grad.accumulation.out"
TRUTH = TensorType(ElementType.BOOL, (1,))


def training_graph(
    graph: Graph, made: Differentiated, train: Sequence[str], frozen: Sequence[str], outputs: Sequence[str]
) -> Graph:
    """Forward, backward, and one accumulation per trained parameter, or input, in `train`. `graph` is the forward
    graph with its loss, `made` its gradients, `frozen` the parameters that do not train, `outputs` the values it
    returns."""
    nodes = list(made.nodes)
    for number, name in enumerate(train, 1):
        inputs = (name + GRADIENT_SUFFIX, made.gradients[name], RESET_INPUT)
        title = f"GradientAccumulator{number}"
        nodes.append(
            Node(
                "InPlaceAccumulatorV2", "com.microsoft", 1, name=title, inputs=inputs, outputs=(name + DONE,)
            )
        )
    types = dict(graph.inputs)
    types |= {n: made.types[n] for n in (*train, *frozen)}
    types |= {n + GRADIENT_SUFFIX: made.types[n] for n in train}
    types[RESET_INPUT] = TRUTH
    done = tuple(n + DONE for n in train)
    constants = _constants({**graph.initializers, **made.initializers}, nodes, types)
    return Graph(
        "training_model.onnx",
        nodes=_distinct(nodes),
        inputs=types,
        sequences={},
        outputs=(*outputs, *done),
        initializers=constants,
    )


def without_input_gradients(artifacts: TrainingArtifacts) -> TrainingArtifacts:
    """The artifacts without what adds up gradients of inputs: no trainer has room for those."""
    graph, parameters = artifacts.training, {p.name for p in artifacts.checkpoint.parameters}
    buffers = {
        n
        for n in graph.inputs
        if n.endswith(GRADIENT_SUFFIX) and n[: -len(GRADIENT_SUFFIX)] not in parameters
    }
    kept = tuple(node for node in graph.nodes if buffers.isdisjoint(node.inputs))
    made = {name for node in kept for name in node.outputs}
    inputs = {n: t for n, t in graph.inputs.items() if n not in buffers}
    outputs = tuple(n for n in graph.outputs if n in made or n in inputs)
    return replace(artifacts, training=replace(graph, nodes=kept, inputs=inputs, outputs=outputs))


def evaluation_graph(graph: Graph, parameters: Sequence[str], outputs: tuple[str, ...]) -> Graph:
    """Forward and loss, with what behaves differently in training switched to inference. `graph` is the forward graph
    with its loss; `parameters` become inputs, `outputs` are the values it returns."""
    nodes = [inferring(node) for node in graph.nodes]
    types = dict(graph.inputs)
    types |= {n: type_of(graph.initializers[n]) for n in parameters}
    return Graph(
        "eval_model.onnx",
        nodes=_distinct(nodes),
        inputs=types,
        sequences={},
        outputs=outputs,
        initializers=_constants(graph.initializers, nodes, types),
    )


def _distinct(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, each under a name of its own, which ONNX Runtime insists on."""
    taken, kept = {node.name for node in nodes}, []
    seen: set[str] = set()
    for node in nodes:
        name, number = node.name, 1
        while name in seen or (name != node.name and name in taken):
            name, number = f"{node.name}_{number}", number + 1
        seen.add(name)
        kept.append(replace(node, name=name))
    return tuple(kept)


def inferring(node: Node) -> Node:
    """A node with what it does differently in training switched off."""
    if node.op_type == "Dropout" and not node.domain:
        return replace(
            node, inputs=(*node.inputs[:2], *("" for _ in node.inputs[2:]))
        )  # as ONNX Runtime's tools
    if node.op_type == "BatchNormalization" and not node.domain and node.attributes.get("training_mode", 0):
        return replace(node, attributes={**node.attributes, "training_mode": 0}, outputs=node.outputs[:1])
    return node


def _constants(
    initializers: Mapping[str, np.ndarray], nodes: Sequence[Node], inputs: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """Initializers that some node reads and that are no parameters."""
    read = {name for node in nodes for name in names_read(node)}
    return {n: np.asarray(a) for n, a in initializers.items() if n in read and n not in inputs}


def type_of(array: np.ndarray) -> TensorType:
    """Element type and shape of an initializer."""
    element = ElementType.of(array.dtype)
    assert element is not None, "readers refuse other types"
    return TensorType(element, array.shape)


def checkpoint_of(graph: Graph, train: Sequence[str], frozen: Sequence[str]) -> Checkpoint:
    """Parameters with their first values; no optimizer state. `graph` has the values; `train` and `frozen` are the
    names of either kind."""

    def parameter(name: str, trainable: bool) -> Parameter:
        array = np.asarray(graph.initializers[name])
        return Parameter(name, type_of(array).element, array.shape, trainable, array)

    return Checkpoint((*(parameter(n, True) for n in train), *(parameter(n, False) for n in frozen)))


def with_full_precision(graph: Graph, parameters: Sequence[str], opset: int) -> Graph:
    """The graph with its half-precision parameters kept in float and rounded where they are read: checkpoints hold no
    halves, and an update of less than half an ulp would be lost in them. `graph` is the forward graph, `parameters`
    are names, and `opset` is the version of ONNX's own operators."""
    halves = (ElementType.FLOAT16, ElementType.BFLOAT16)
    kept = {n: type_of(graph.initializers[n]).element for n in parameters}
    read = [n for n, element in kept.items() if element in halves]
    rounded = {n: f"{n}/rounded" for n in read if n not in _moved(graph)}
    if not read:
        return graph
    casts = [
        Node("Cast", "", opset, name=f"{n}/Cast", inputs=(n,), outputs=(r,), attributes={"to": int(kept[n])})
        for n, r in rounded.items()
    ]
    nodes = [replace(renamed(n, lambda i: rounded.get(i, i), ""), name=n.name) for n in graph.nodes]
    full = {n: np.asarray(a).astype(np.float32) if n in read else a for n, a in graph.initializers.items()}
    return replace(graph, nodes=(*casts, *nodes), initializers=full)


def _moved(graph: Graph) -> set[str]:
    """Running statistics that training changes, which would not reach a rounded copy. Their type is their own."""
    nodes = [
        n for n in graph.nodes if n.op_type == "BatchNormalization" and n.attributes.get("training_mode", 0)
    ]
    return {name for node in nodes for name in node.inputs[3:5]}
