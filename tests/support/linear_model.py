"""A linear model with its gradient as ONNX Runtime writes it, and its program: what tests of passes start from."""

from __future__ import annotations

import numpy as np

from minbuild.ir import (
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Parameter,
    Program,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower

FLOAT, INT64 = ElementType.FLOAT, ElementType.INT64
BATCH = symbol("batch")


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: object) -> Node:
    return Node(
        op, domain, 17, f"{op}_{outputs}", tuple(inputs.split(",")), tuple(outputs.split(",")), attributes
    )


def linear(extra: tuple[Node, ...] = (), outputs: tuple[str, ...] = ("loss",)) -> TrainingArtifacts:
    """y = relu(x w'), loss = sum of y, with the gradient of w as ORT writes it."""
    nodes = (
        node("Gemm", "x,w", "h", transB=1),
        node("Relu", "h", "y"),
        node("ReduceSum", "y", "loss", keepdims=0),
        node("Shape", "y", "shape"),
        node("Expand", "one,shape", "dy"),
        node("ReluGrad", "dy,y", "dh", domain="com.microsoft"),
        node("Gemm", "dh,x", "dw", transA=1, beta=0.0),
        node("Identity", "dw", "w_grad"),
        *extra,
        node(
            "InPlaceAccumulatorV2",
            "w_grad.accumulation.buffer,w_grad,lazy_reset_grad",
            "w_grad.accumulation.out",
            domain="com.microsoft",
        ),
    )
    weight = TensorType(FLOAT, (3, 4))
    inputs = {
        "x": TensorType(FLOAT, (BATCH, 4)),
        "w": weight,
        "w_grad.accumulation.buffer": weight,
        "lazy_reset_grad": TensorType(ElementType.BOOL, (1,)),
    }
    graph = Graph(
        "training_model.onnx",
        nodes,
        inputs,
        {},
        (*outputs, "w_grad.accumulation.out"),
        {"one": np.array(1, np.float32)},
    )
    parameter = Parameter("w", FLOAT, (3, 4), True, np.zeros((3, 4), np.float32))
    return TrainingArtifacts(graph, None, None, Checkpoint((parameter,)), {})


def lowered(artifacts: TrainingArtifacts) -> Program:
    return lower(artifacts, registry(), {})
