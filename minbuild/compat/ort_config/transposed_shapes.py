"""Shapes of transposed values, which ONNX Runtime takes from what was transposed when it loads a model."""

from __future__ import annotations

from dataclasses import replace

from minbuild.compat.ort_config.effective_graph import EffectiveGraph
from minbuild.compat.ort_config.simplify import remove_dead_nodes
from minbuild.frontend.onnx.subgraphs import names_read
from minbuild.ir import ElementType, Node, TensorType

# What 1.19.2 can push a transpose through. One that anything else reads stays, and so does its shape.
_PASSABLE = frozenset(
    (
        *(
            "Abs",
            "Acos",
            "Acosh",
            "Add",
            "ArgMax",
            "ArgMin",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Cast",
            "CastLike",
        ),
        *("Ceil", "Celu", "Clip", "Concat", "Cos", "Cosh", "Div", "Equal", "Erf", "Exp", "Floor", "Greater"),
        *(
            "GreaterOrEqual",
            "HardSigmoid",
            "HardSwish",
            "Hardmax",
            "Identity",
            "IsInf",
            "IsNaN",
            "LeakyRelu",
            "Less",
        ),
        *(
            "LessOrEqual",
            "Log",
            "LogSoftmax",
            "Max",
            "MaxPool",
            "Mean",
            "Min",
            "Mod",
            "Mul",
            "Neg",
            "PRelu",
            "Pad",
        ),
        *(
            "Pow",
            "Reciprocal",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
        ),
        *(
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
            "Relu",
            "Reshape",
            "Round",
            "Selu",
            "Shape",
        ),
        *(
            "Shrink",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Slice",
            "Softmax",
            "Softplus",
            "Softsign",
            "Split",
            "Sqrt",
        ),
        *("Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)


def untranspose_shapes(graph: EffectiveGraph) -> None:
    """The shape of a transposed value is a Gather of the shape of what was transposed."""
    for shape in [node for node in graph.nodes if node.op_type == "Shape" and not node.domain]:
        turned = graph.maker(shape.inputs[0])
        if turned is not None and _goes(turned, graph):
            _untranspose(shape, turned, graph)
    while remove_dead_nodes(graph):
        pass


def _goes(node: Node, graph: EffectiveGraph) -> bool:
    """True if it is a transpose of more than ones that can be pushed through all that reads it."""
    if node.op_type != "Transpose" or node.domain or "perm" not in node.attributes:
        return False
    value, sizes = node.outputs[0], graph.shape(node.inputs[0])
    readers = [reader for reader in graph.nodes if value in names_read(reader)]
    return (
        value not in graph.outputs
        and (sizes is None or any(size != 1 for size in sizes))
        and all(reader.op_type in _PASSABLE and not reader.domain for reader in readers)
    )


def _untranspose(shape: Node, turned: Node, graph: EffectiveGraph) -> None:
    sizes, axes = f"{shape.name}/of {turned.inputs[0]}", f"{shape.name}/axes"
    whole = TensorType(ElementType.INT64, (len(turned.attributes["perm"]),))
    graph.types = {**graph.types, sizes: whole, axes: whole}
    graph.constants.add(axes)
    taken = replace(shape, inputs=turned.inputs[:1], outputs=(sizes,))
    chosen = graph.like(shape, "Gather", (sizes, axes))
    at = graph.nodes.index(shape)
    graph.nodes[at : at + 1] = [taken, chosen]
