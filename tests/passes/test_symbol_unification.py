"""Free dimensions that a weight, a constant or a reshape fixes get their size; conflicts name both nodes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from minbuild.cli.main import app
from minbuild.errors import BadInput, Unsupported
from minbuild.frontend.artifacts import load_artifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.lowering.symbol_unification import SymbolUnification
from minbuild.training.artifacts import LossType, OptimType, Refused, WrongType, generate_artifacts

pytestmark = pytest.mark.unit

N, F, G = symbol("N"), symbol("F"), symbol("G")


def solved(*pairs):
    sizes = SymbolUnification()
    for left, right in pairs:
        sizes.add(left, right, "node 'a'")
    sizes.solve()
    return sizes.sizes


@pytest.mark.parametrize(
    "left, right, found",
    [
        (F, 6, {"F": 6}),
        (6, F, {"F": 6}),
        (2 * F, 12, {"F": 6}),
        (2 * F, 13, {}),
        (N * F * 49, N * 3136, {"F": 64}),
        (N * 784, 784, {"N": 1}),
        (F, 0, {}),
        (F + 1, 1, {}),
        (F, N * 32, {"F": N * 32}),
    ],
)
def test_a_pair_of_sizes_is_solved(left, right, found):
    assert solved((left, right)) == found


def test_pairs_are_solved_one_after_the_other():
    assert solved((F, G), (G, 6)) == {"F": 6, "G": 6}
    assert solved((F, 6), (F, 7)) == {"F": 6}


def model(nodes, inputs, weights, outputs=("y",), opset=17):
    random = np.random.default_rng(1)
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [
            numpy_helper.from_array(
                w if isinstance(w, np.ndarray) else random.standard_normal(w).astype(np.float32), n
            )
            for n, w in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op, *inputs, name="", **attributes):
    return helper.make_node(op, inputs, ["y"], name=name or op, **attributes)


SHAPED = {
    "Gemm": ([node("Gemm", "x", "w", "b", transB=1)], ("N", "F"), {"w": (4, 6), "b": (4,)}, ("N", 6)),
    "MatMul": ([node("MatMul", "x", "w")], ("N", "T", "F"), {"w": (6, 4)}, ("N", "T", 6)),
    "Conv": (
        [node("Conv", "x", "w", group=2)],
        ("N", "C", 8, 8),
        {"w": (4, 3, 3, 3)},
        ("N", 6, 8, 8),
    ),
    "ConvTranspose": (
        [node("ConvTranspose", "x", "w")],
        ("N", "C", 8, 8),
        {"w": (6, 3, 3, 3)},
        ("N", 6, 8, 8),
    ),
    "BatchNormalization": (
        [node("BatchNormalization", "x", "s", "b", "m", "v")],
        ("N", "C", "H"),
        {n: np.ones(5, np.float32) for n in "sbmv"},
        ("N", 5, "H"),
    ),
    "InstanceNormalization": (
        [node("InstanceNormalization", "x", "s", "b")],
        ("N", "C", 7),
        {"s": (5,), "b": (5,)},
        ("N", 5, 7),
    ),
    "LayerNormalization": (
        [node("LayerNormalization", "x", "s", "b")],
        ("N", "D"),
        {"s": (5,), "b": (5,)},
        ("N", 5),
    ),
    "PRelu": ([node("PRelu", "x", "s")], ("N", "C", 3), {"s": (5, 1)}, ("N", 5, 3)),
    "Concat": (
        [node("Concat", "x", "w", axis=1)],
        ("N", 4, "F"),
        {"w": (2, 1, 3)},
        (2, 4, 3),
    ),
    "Reshape": (
        [
            helper.make_node("Mul", ["x", "w"], ["z"]),
            node("Reshape", "z", "shape"),
        ],
        ("N", "C", 2, 2),
        {"w": (1,), "shape": np.array([0, 20], np.int64)},
        ("N", 5, 2, 2),
    ),
    "Squeeze": (
        [helper.make_node("Mul", ["x", "w"], ["z"]), node("Squeeze", "z", "axes")],
        ("N", "S", 4),
        {"w": (4,), "axes": np.array([1], np.int64)},
        ("N", 1, 4),
    ),
    "GRU": (
        [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=3)],
        ("T", "N", "F"),
        {"w": (1, 9, 5), "r": (1, 9, 3)},
        ("T", "N", 5),
    ),
}


@pytest.mark.parametrize("case", SHAPED)
def test_artifacts_have_the_sizes_that_weights_imply(case, tmp_path):
    nodes, shape, weights, wanted = SHAPED[case]
    generate_artifacts(
        model(nodes, {"x": shape}, weights),
        loss=LossType.MSELoss,
        optimizer=OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    written = onnx.load(tmp_path / "training_model.onnx").graph.input[0].type.tensor_type.shape.dim
    assert tuple(d.dim_param or d.dim_value for d in written) == wanted
    lower(load_artifacts(tmp_path), registry(), {})  # raises where a shape does not fit


def test_artifacts_of_others_with_free_sizes_are_lowered(tmp_path):
    """Files that ONNX Runtime made keep the names that the exporter gave."""
    nodes, _, weights, _ = SHAPED["Gemm"]
    generate_artifacts(
        model(nodes, {"x": ("N", 6)}, weights), loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    for name in ("training_model.onnx", "eval_model.onnx"):
        changed = onnx.load(tmp_path / name)
        changed.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "F"
        onnx.save(changed, tmp_path / name)
    program = lower(load_artifacts(tmp_path), registry(), {})
    assert program.symbols == ("N",)
    assert program.procedures[0].values["x"].type.shape == (N, 6)


CONFLICT = model(
    [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "v"], ["b"], name="second"),
        node("Add", "a", "b"),
    ],
    {"x": ("N", "F")},
    {"w": (6, 4), "v": (7, 4)},
)


def test_a_conflict_names_both_nodes(tmp_path):
    with pytest.raises(Unsupported) as told:
        generate_artifacts(CONFLICT, loss=LossType.MSELoss, artifact_directory=tmp_path)
    (finding,) = told.value.findings
    assert "node 'second' (MatMul, opset 17)" in finding
    assert "6 is not 7; 'F' is 6 because node 'first' (MatMul) requires it" in finding


def test_a_conflict_with_a_size_that_was_given_says_so(tmp_path):
    nodes, shape, weights, _ = SHAPED["Gemm"]
    with pytest.raises(Unsupported, match="5 is not 6; 'F' was fixed to 5"):
        generate_artifacts(
            model(nodes, {"x": shape}, weights),
            loss=LossType.MSELoss,
            artifact_directory=tmp_path,
            dims={"F": 5},
        )


def test_dims_fix_sizes(tmp_path):
    nodes, shape, weights, _ = SHAPED["MatMul"]
    path = tmp_path / "model.onnx"
    onnx.save(model(nodes, {"x": shape}, weights), path)
    out = tmp_path / "a"
    generate_artifacts(path, loss=LossType.MSELoss, artifact_directory=out, dims={"T": 3})
    by_command = tmp_path / "b"
    told = CliRunner().invoke(
        app,
        [
            "artifacts",
            str(path),
            "-o",
            str(by_command),
            "--loss",
            "mse",
            "--optimizer",
            "none",
            "--dim",
            "T=3",
        ],
    )
    assert told.exit_code == 0, told.output
    for folder in (out, by_command):
        dims = onnx.load(folder / "training_model.onnx").graph.input[0].type.tensor_type.shape.dim
        assert [d.dim_param or d.dim_value for d in dims] == ["N", 3, 6]


def test_unknown_dims_are_refused_in_the_words_of_the_caller(tmp_path):
    nodes, shape, weights, _ = SHAPED["MatMul"]
    path = tmp_path / "model.onnx"
    onnx.save(model(nodes, {"x": shape}, weights), path)
    with pytest.raises(Refused, match=r"dims TT=3: .*no such free dimension") as told:
        generate_artifacts(path, loss=LossType.MSELoss, artifact_directory=tmp_path, dims={"TT": 3})
    assert "--" not in str(told.value)
    with pytest.raises(WrongType, match="dims: T is 0"):
        generate_artifacts(path, loss=LossType.MSELoss, artifact_directory=tmp_path, dims={"T": 0})
    with pytest.raises(BadInput, match="requires_grad wrong: no parameter") as told:
        generate_artifacts(path, requires_grad=["wrong"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert "--" not in str(told.value)
