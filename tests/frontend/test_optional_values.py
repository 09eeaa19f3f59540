"""Optional values: graphs that have them compute and train as the ones without them, wherever presence is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from authored import differences, trainer_of, uniform
from beside_interpreter import farthest
from onnx import TensorProto, helper

from minbuild.authoring import Recipe, Source, artifacts_of
from minbuild.errors import Unsupported
from minbuild.frontend.onnx.reader import read_model
from minbuild.ir import Checkpoint, Graph, TrainingArtifacts
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.reference.interpreter import ReferenceTrainer

X, W, V = uniform((4, 6), (6, 6), (6, 6))
TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, [4, 6])
OPTIONAL = helper.make_optional_type_proto(TENSOR)
ANY = helper.make_value_info("x", OPTIONAL)


def nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes written as text."""
    graph = onnx.parser.parse_graph(f"g () => () {{ {text} }}")
    for node in graph.node:
        if node.op_type == "Optional" and not node.input:
            node.attribute.append(helper.make_attribute("type", TENSOR))
    return list(graph.node)


def branch(text: str, *outputs: str) -> onnx.GraphProto:
    results = [helper.make_empty_tensor_value_info(n) for n in outputs]
    return helper.make_graph(nodes(text), outputs[0], [], results)


def chosen(condition: str, output: str, then: str, other: str) -> onnx.NodeProto:
    """An If whose branches make `a` and `b`."""
    branches = {"then_branch": branch(then, "a"), "else_branch": branch(other, "b")}
    return helper.make_node("If", [condition], [output], f"choice of {output}", **branches)


def looped(states: list[str], outputs: list[str], body: str) -> onnx.NodeProto:
    """A Loop of three rounds, whose body turns the states `s` and `o` into `s2` and `o2`."""
    names = (("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("s", TensorProto.FLOAT), ("o", 1))
    inputs = [helper.make_tensor_value_info(n, t, None) for n, t in names]
    results = [helper.make_empty_tensor_value_info(n) for n in ("d", "s2", "o2")]
    graph = helper.make_graph(nodes(f"d = Identity (c) {body}"), "round", inputs, results)
    return helper.make_node("Loop", ["three", "yes", *states], outputs, "rounds", body=graph)


HIDDEN = "h = MatMul (x, w)"
END = "y = MatMul (r, v)"
PRESENT = {
    "passed": nodes(f"{HIDDEN} p = Optional (h) q = Identity (p) r = OptionalGetElement (q) {END}"),
    "absent": [
        *nodes(f"{HIDDEN} p = Optional () there = OptionalHasElement (p)"),
        chosen("there", "r", "a = OptionalGetElement (p)", "b = Tanh (h)"),
        *nodes(END),
    ],
    "given by the branch that is taken": [
        *nodes(f"{HIDDEN} no = Not (yes)"),
        chosen("no", "p", "a = Optional ()", "t = Tanh (h) b = Optional (t)"),
        *nodes("there = OptionalHasElement (p)"),
        chosen("there", "r", "a = OptionalGetElement (p)", "b = Sigmoid (h)"),
        *nodes(END),
    ],
    "given by both branches": [
        *nodes(f"{HIDDEN} m = ReduceMax <keepdims = 0> (x) large = Less (m, limit)"),
        chosen("large", "p", "t = Tanh (h) a = Optional (t)", "u = Sigmoid (h) b = Optional (u)"),
        *nodes(f"r = OptionalGetElement (p) {END}"),
    ],
    "given by neither branch": [
        *nodes(f"{HIDDEN} m = ReduceMax <keepdims = 0> (x) large = Less (m, limit)"),
        chosen("large", "p", "a = Optional ()", "b = Optional ()"),
        *nodes("there = OptionalHasElement (p)"),
        chosen("there", "r", "a = OptionalGetElement (p)", "b = Sigmoid (h)"),
        *nodes(END),
    ],
    "a state with a tensor": [
        *nodes(f"{HIDDEN} p = Optional (h)"),
        looped(
            ["h", "p"],
            ["r", "last"],
            "e = OptionalGetElement (o) t = Tanh (s) s2 = Mul (t, e) u = Sigmoid (e) o2 = Optional (u)",
        ),
        *nodes(END),
    ],
    "a state without one": [
        *nodes(f"{HIDDEN} p = Optional ()"),
        looped(["h", "p"], ["r", "last"], "s2 = Tanh (s) o2 = Identity (o)"),
        *nodes(f"there = OptionalHasElement (last) {END}"),
    ],
}


def model_of(body: list[onnx.NodeProto], x: onnx.ValueInfoProto | None = None) -> onnx.ModelProto:
    inputs = [x or helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])]
    constants = {"w": W, "v": V, "yes": np.array(True), "three": np.array(3), "limit": np.float32(0.5)}
    held = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(body, "m", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def read(model: onnx.ModelProto) -> Graph:
    return read_model(model, Path("model.onnx"))


def artifacts(model: onnx.ModelProto) -> TrainingArtifacts:
    source = Source(read(model), 18, Path("model.onnx"))
    return artifacts_of(source, Recipe(loss="mse", optimizer="sgd"), registry())


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def rounds(h: np.ndarray) -> np.ndarray:
    optional = h
    for _ in range(3):
        h, optional = np.tanh(h) * optional, sigmoid(optional)
    return h


MEANT = {
    "passed": lambda h: h,
    "absent": np.tanh,
    "given by the branch that is taken": np.tanh,
    "given by both branches": lambda h: np.tanh(h) if X.max() < 0.5 else sigmoid(h),
    "given by neither branch": sigmoid,
    "a state with a tensor": rounds,
    "a state without one": lambda h: np.tanh(np.tanh(np.tanh(h))),
}


@pytest.mark.parametrize("name", PRESENT)
def test_what_is_read_computes_the_same(name):
    graph = read(model_of(PRESENT[name]))
    assert "op_type='Optional" not in str(graph.nodes)
    found = ReferenceTrainer(TrainingArtifacts(graph, None, None, Checkpoint(()), {})).train_step(X)[0]
    np.testing.assert_allclose(found, MEANT[name](X.astype(np.float64) @ W) @ V, rtol=1e-6)


@pytest.mark.parametrize("name", PRESENT)
def test_gradients_flow_through_them(name):
    made = trainer_of(Source(read(model_of(PRESENT[name])), 18, Path("model.onnx")), Recipe("mse"))
    assert max(differences(made, X, np.zeros((4, 6), np.float32)).values()) < 1e-6


def test_trainers_compute_what_their_graphs_say(tmp_path):
    body = [
        *nodes("there = OptionalHasElement (x)"),
        chosen("there", "e", "a = OptionalGetElement (x)", "b = Identity (v)"),
        *nodes("h = MatMul (e, w) r = Tanh (h) y = MatMul (r, v)"),
    ]
    made = {name: artifacts(model_of(each)) for name, each in PRESENT.items()}
    made["an input, fed with every batch"] = artifacts(model_of(body, ANY))
    assert all(list(each.training.inputs)[:1] == ["x"] for each in made.values())
    batches = dict.fromkeys(made, [(X, V[:4]), (X + 1, V[:4])])
    assert max(farthest(made, batches, tmp_path).values()) < 1e-6


@pytest.mark.parametrize(
    "body, node",
    [
        (
            [
                *nodes("h = MatMul (x, w) m = ReduceMax <keepdims = 0> (x) large = Less (m, limit)"),
                chosen("large", "p", "a = Optional (h)", "[empty] b = Optional ()"),
                *nodes("there = OptionalHasElement (p)"),
                chosen("there", "r", "a = OptionalGetElement (p)", "b = Sigmoid (h)"),
                *nodes(END),
            ],
            "empty",
        ),
        (
            [
                *nodes("h = MatMul (x, w) [empty] p = Optional ()"),
                looped(["h", "p"], ["r", "last"], "s2 = Tanh (s) o2 = Optional (s2)"),
                *nodes(END),
            ],
            "empty",
        ),
    ],
    ids=["branches", "rounds"],
)
def test_presence_that_depends_on_data_is_refused(body, node):
    graph = read(model_of(body))
    with pytest.raises(
        Unsupported, match=rf"'[^']*{node}' \(Optional, opset 18\): it makes an optional value"
    ) as caught:
        lower(TrainingArtifacts(graph, None, None, Checkpoint(()), {}), registry(), {})
    assert "such as zeros of the same shape, and beside it a truth value" in str(caught.value)


def test_the_tensor_of_a_value_that_never_has_one_is_refused():
    graph = read(model_of(nodes("p = Optional () r = OptionalGetElement (p) y = MatMul (r, v)")))
    with pytest.raises(Unsupported, match="takes the tensor of an optional value that never has one"):
        lower(TrainingArtifacts(graph, None, None, Checkpoint(()), {}), registry(), {})
