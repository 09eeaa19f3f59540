"""Models whose sizes are free, or written in ways that exporters have: what is made of them computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from authored import differences, stepped
from onnx import TensorProto, helper, numpy_helper

from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir.dims import dim_max, dim_min, symbol
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.api import CheckpointState, Module
from minbuild.training.artifacts import LossType, generate_artifacts

RANDOM = np.random.default_rng(3)


def node(op, *inputs, out="y", name="", **attributes):
    return helper.make_node(op, inputs, [out], name=name or f"{op} {out}", **attributes)


def made(nodes, inputs, weights, outputs=("y",), opset=17):
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    domains = (("", opset), ("com.microsoft", 1), ("ai.onnx.preview.training", 1))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*d) for d in domains], ir_version=8)


def real(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def check(model, folder, *batches, loss=LossType.MSELoss):
    """Losses and gradients of artifacts, made of the model, against finite differences in double precision; and the
    device's losses against those, on batches of several sizes."""
    generate_artifacts(model, loss=loss, artifact_directory=folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    for batch in batches:
        reference = ReferenceTrainer(load_artifacts(folder))
        wanted = stepped(reference, *batch)
        assert max(differences(reference, *batch).values()) < 1e-6
        assert float(np.ravel(module(*batch))[0]) == pytest.approx(float(wanted), rel=2e-6)


IMAGE = {"x": ("N", 3, "H", "W")}
CONV = {"w": real(2, 3, 3, 3)}
SPATIAL = {
    "reflect": [
        node("Pad", "x", "pads", out="z", mode="reflect"),
        node("Conv", "z", "w"),
    ],
    "edge": [node("Pad", "x", "pads", out="z", mode="edge"), node("Conv", "z", "w")],
    "wrap": [node("Pad", "x", "pads", out="z", mode="wrap"), node("Conv", "z", "w")],
    "reflect behind": [
        node("Conv", "x", "w", out="z", pads=[1, 1, 1, 1]),
        node("Pad", "z", "pads", mode="reflect"),
    ],
}
PADS = {"pads": ints(0, 0, 1, 2, 0, 0, 2, 1)}


@pytest.mark.parametrize("case", SPATIAL)
def test_padding_of_free_sizes(case, tmp_path):
    conv = {"w": real(2, 3, 3, 3), **PADS}
    grown = 3 if case == "reflect behind" else 1
    batches = [(real(n, 3, h, w), real(n, 2, h + grown, w + grown)) for n, h, w in ((1, 4, 5), (2, 6, 4))]
    check(made(SPATIAL[case], IMAGE, conv), tmp_path, *batches)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "nearest"},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    ],
)
@pytest.mark.parametrize("factor", [2, 3])
def test_resizing_of_free_sizes_is_that_of_known_ones(attributes, factor, tmp_path):
    scales = np.array([1, 1, factor, 2], np.float32)
    nodes = [node("Conv", "x", "w", out="z", pads=[1, 1, 1, 1]), node("Resize", "z", "", "s", **attributes)]
    weights = {"w": real(2, 3, 3, 3), "s": scales}
    batch = real(2, 3, 4, 5), real(2, 2, 4 * factor, 10)
    check(
        made(nodes, IMAGE, weights),
        tmp_path / "free",
        batch,
        (batch[0][:1, :, :2], batch[1][:1, :, : 2 * factor]),
    )
    generate_artifacts(
        made(nodes, {"x": (2, 3, 4, 5)}, weights),
        loss=LossType.MSELoss,
        artifact_directory=tmp_path / "known",
    )
    free, known = (ReferenceTrainer(load_artifacts(tmp_path / n)) for n in ("free", "known"))
    assert stepped(free, *batch) == pytest.approx(float(stepped(known, *batch)), rel=1e-7)


def test_what_depends_on_a_free_size_says_which(tmp_path):
    for scale, attributes in ((1.5, {}), (2.0, {"mode": "cubic"})):
        scales = np.array([1, 1, scale, 1], np.float32)
        nodes = [
            node("Conv", "x", "w", out="z", pads=[1, 1, 1, 1]),
            node("Resize", "z", "", "s", **attributes),
        ]
        with pytest.raises(Unsupported, match="axis 2"):
            generate_artifacts(
                made(nodes, IMAGE, {"w": real(2, 3, 3, 3), "s": scales}),
                loss=LossType.MSELoss,
                artifact_directory=tmp_path,
            )


def test_a_reshape_tells_the_size_of_an_axis(tmp_path):
    nodes = [node("Reshape", "x", "s", out="z"), node("MatMul", "z", "w")]
    model = made(nodes, {"x": ("N", "C", 2, 2)}, {"s": ints(-1, 64), "w": real(64, 3)})
    check(model, tmp_path, (real(2, 16, 2, 2), real(2, 3)), (real(3, 16, 2, 2), real(3, 3)))


@pytest.mark.parametrize("op", ["ReduceProd", "ReduceSum"])
def test_products_and_sums_of_sizes_are_sizes(op, tmp_path):
    """The number of elements, as PyTorch's exporter counts them; and that of rows and columns together."""
    nodes = [
        node("Gemm", "x", "w", out="g"),
        node("Shape", "g", out="shape"),
        node(op, "shape", out="count", keepdims=1),
        node("Expand", "one", "count", out="ones"),
        node("ReduceSum", "ones", out="number", keepdims=0),
        node("Div", "g", "number"),
    ]
    model = made(nodes, {"x": ("N", 4)}, {"w": real(4, 2), "one": np.ones(1, np.float32)})
    check(model, tmp_path, (real(2, 4), real(2, 2)), (real(5, 4), real(5, 2)))


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_gemm_of_older_opsets(opset, tmp_path):
    nodes = [
        node("Gemm", "x", "w", "b", out="z", transB=1, alpha=0.5),
        node("Relu", "z", out="r"),
        node("Gemm", "r", "v", "c"),
    ]
    weights = {"w": real(3, 4), "b": real(3), "v": real(3, 2), "c": real(1, 2)}
    check(made(nodes, {"x": ("N", 4)}, weights, opset=opset), tmp_path, (real(5, 4), real(5, 2)))


def test_a_constant_of_an_empty_shape_with_a_free_size(tmp_path):
    """Zero rows of as many columns as there are samples: an initial state that is concatenated to."""
    nodes = [
        node("Shape", "x", out="shape"),
        node("Gather", "shape", "first", out="count", axis=0),
        node("Concat", "none", "count", out="empty", axis=0),
        node("ConstantOfShape", "empty", out="rows"),
        node("Transpose", "rows", out="columns", perm=[1, 0]),
        node("Gemm", "x", "w", out="g"),
        node("Concat", "g", "columns", axis=1),
    ]
    weights = {"w": real(4, 3), "first": ints(0), "none": ints(0)}
    check(made(nodes, {"x": ("N", 4)}, weights), tmp_path, (real(5, 4), real(5, 3)))


def test_weights_in_constant_nodes_train(tmp_path):
    nodes = [
        node("Constant", out="w", value=numpy_helper.from_array(real(4, 3))),
        node("Constant", out="b", value=numpy_helper.from_array(real(3))),
        node("Constant", out="half", value=numpy_helper.from_array(np.array(0.5, np.float32))),
        node("MatMul", "x", "w", out="h"),
        node("Mul", "h", "half", out="g"),
        node("Add", "g", "b"),
    ]
    check(made(nodes, {"x": ("N", 4)}, {}), tmp_path, (real(5, 4), real(5, 3)))
    assert [p.name for p in load_artifacts(tmp_path).checkpoint.parameters if p.trainable] == ["w", "b"]


def test_minus_one_is_a_free_size(tmp_path):
    model = made([node("MatMul", "x", "w")], {"x": (-1, 4)}, {"w": real(4, 3)})
    check(model, tmp_path, (real(5, 4), real(5, 3)), (real(2, 4), real(2, 3)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -2
    with pytest.raises(BadInput, match="negative size -2"):
        generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)


def test_no_size_reaches_the_largest_integer():
    n = symbol("n")
    for huge in (2**31 - 1, 2**63 - 1):
        assert dim_min(huge, n) == n == dim_min(n, huge)
        assert dim_max(huge, n) == huge == dim_max(n, huge)
    assert str(dim_min(n, 7)) == "min(n, 7)"


@pytest.mark.parametrize("sizes", [("N", "M"), ("A", "B"), ("N", "N")])
def test_a_target_with_free_sizes_against_a_size_of_one(sizes, tmp_path):
    nodes = [
        node("Gemm", "x", "w", out="z"),
        node("Sigmoid", "z", out="s"),
        node("Sub", "s", "t", out="d"),
        node("Mul", "d", "d", out="e"),
        node("ReduceMean", "e", keepdims=0),
    ]
    model = made(nodes, {"x": ("N", 4), "t": sizes}, {"w": real(4, 1)})
    columns = (5, 5) if sizes == ("N", "N") else (1, 3)
    check(model, tmp_path, *((real(5, 4), real(5, n)) for n in columns), loss=None)


def test_gradient_nodes_in_a_forward_model(tmp_path):
    """A penalty on the gradient of the output by the input, as ONNX's operator Gradient writes it."""
    nodes = [
        node("MatMul", "x", "w", out="h"),
        node("Tanh", "h", out="t"),
        node("ReduceSum", "t", out="total", keepdims=0),
        helper.make_node(
            "Gradient", ["x", "w"], ["dx"], domain="ai.onnx.preview.training", xs=["x"], zs=["w"], y="total"
        ),
        node("Mul", "dx", "dx", out="squares"),
        node("ReduceMean", "squares", keepdims=0),
    ]
    check(made(nodes, {"x": ("N", 4)}, {"w": real(4, 3)}), tmp_path, (real(5, 4),), loss=None)


def test_what_a_size_would_cure_names_the_option(tmp_path):
    nodes = [node("Reshape", "x", "s", out="z"), node("MatMul", "z", "w")]
    model = made(nodes, {"x": ("N", "T", 4)}, {"s": ints(0, -1, 8), "w": real(8, 3)})
    with pytest.raises(Unsupported, match="cannot tell what -1 stands for.*Give a size to N or T.*dims N=16"):
        generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path, dims={"T": 6})


def test_only_sizes_that_do_not_fit_are_asked_for(tmp_path):
    """Of x [N,C,T] halved and doubled along T, and N and C free as well, T alone is what a size cures."""
    nodes = [
        node("MaxPool", "x", out="p", kernel_shape=[2], strides=[2]),
        node("Concat", "p", "p", out="z", axis=2),
        node("Add", "z", "x", out="s"),
        node("MatMul", "s", "w"),
    ]
    model = made(nodes, {"x": ("N", "C", "T")}, {"w": real(8, 3)})
    with pytest.raises(Unsupported, match="cannot broadcast.*Give a size to T, such as dims T=16"):
        generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path, dims={"T": 8})


def test_inputs_of_onnx_runtimes_operators_are_counted(tmp_path):
    grad = helper.make_node(
        "SoftmaxCrossEntropyLossGrad", ["h", "w"], ["g"], name="grad", domain="com.microsoft"
    )
    model = made(
        [node("MatMul", "x", "w", out="h"), grad, node("Gemm", "g", "w")], {"x": ("N", 4)}, {"w": real(4, 4)}
    )
    with pytest.raises(
        BadInput, match=r"node 'grad' \(SoftmaxCrossEntropyLossGrad\) has 2 inputs; .* takes 3 to 5"
    ):
        generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
