"""What artifacts say of a model that its exporter wrote otherwise than it is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from authored import source
from onnx import ModelProto, helper, numpy_helper

from minbuild.authoring import Recipe, artifacts_of, make_artifacts, read_source
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.frontend.onnx.exporter_metadata import exporter_notes
from minbuild.ops import registry

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
LINES = (
    "p_weight: PARAMETER target='weight'",
    "p_twin: PARAMETER target='twin'",
    "p_table: PARAMETER target='table'",
    "b_turns: BUFFER target='turns' persistent=False",
    "x: USER_INPUT",
)
NODES = (
    ("MatMul", "x weight h"),
    ("Add", "h rows r"),
    ("Mul", "r turns t"),
    ("Add", "t mask s"),
    ("Add", "s free y"),
)
NAMES = ("weight", "rows", "turns", "mask", "free")
SAID = {
    "weight": {KIND: "PARAMETER"},
    "rows": {FOLDED: "['index', 'table']"},
    "turns": {KIND: "BUFFER"},
    "mask": {FOLDED: "['turns', 'val_1']"},
}


def exported(said=SAID, lines=LINES) -> ModelProto:
    """A layer whose module has a parameter, one that the exporter worked with, one that it left out, and a buffer."""
    random = np.random.default_rng(0)
    arrays = {
        n: random.standard_normal((4, 4) if n == "weight" else (1, 4)).astype(np.float32) for n in NAMES
    }
    nodes = [helper.make_node(op, given.split()[:2], given.split()[2:]) for op, given in NODES]
    ends = [helper.make_tensor_value_info(n, 1, ("batch", 4)) for n in "xy"]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    )
    for name, remarks in said.items():
        info = helper.make_tensor_value_info(name, 1, arrays[name].shape)
        helper.set_metadata_props(info, remarks)
        graph.value_info.append(info)
    if lines:
        helper.set_metadata_props(graph, {SIGNATURE: "\n".join(("", "# inputs", *lines))})
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def trained(made) -> set[str]:
    return {p.name for p in read_checkpoint(made.files["checkpoint"], Path("c")).parameters if p.trainable}


def made_of(model: ModelProto, folder: Path, **recipe):
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return make_artifacts(read_source(folder / "m.onnx"), Recipe(loss="mse", **recipe))


def test_buffers_and_what_comes_of_them_do_not_train(tmp_path: Path) -> None:
    """Tables of sines and masks, which exporters fold to constants with as many elements as a parameter."""
    made = made_of(exported(), tmp_path)
    assert trained(made) == {"weight", "rows", "free"}  # the exporter says nothing of the last one
    assert made.notes[0].startswith("turns, mask: no parameters of the module, says its exporter")


def test_who_names_a_constant_trains_it(tmp_path: Path) -> None:
    made = made_of(exported(), tmp_path, train=("mask",))
    assert trained(made) == {"mask"}
    assert not [n for n in made.notes if "no parameters" in n]


def test_merged_parameters_are_named(tmp_path: Path) -> None:
    """The exporter keeps one of several equal parameters: their layers would train as one unnoticed."""
    assert exporter_notes(exported()).lost == ("twin",)
    assert any(
        n.startswith("twin: parameters of the module that") for n in made_of(exported(), tmp_path).notes
    )


def test_weights_that_were_joined_of_others_train(tmp_path: Path) -> None:
    """Queries, keys and values in one product, as optimizers write them: of values that the file has no more."""
    lines = ("p_query: PARAMETER target='query'", *LINES[1:])
    made = made_of(exported({**SAID, "weight": {FOLDED: "['val_7', 'val_8']"}}, lines), tmp_path)
    assert trained(made) == {"weight", "rows", "free"}
    (told,) = (n for n in made.notes if n.startswith("weight: weights that the exporter joined"))
    assert "in place of query, twin" in told and "--frozen weight" in told
    assert not any(n.startswith(("query", "twin")) for n in made.notes)


def test_quantized_weights_are_not_called_lost(tmp_path: Path) -> None:
    """Integers take the place of a weight, under a name that says nothing of it."""
    model = exported()
    for name, values in (("_frozen", np.ones((1, 4), np.int8)), ("scale", np.float32(0.5))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
    nodes = [
        helper.make_node("DequantizeLinear", ["_frozen", "scale"], ["twin_values"]),
        *model.graph.node,
        helper.make_node("Add", ["y_before", "twin_values"], ["y"]),
    ]
    nodes[-2].output[0] = "y_before"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (told,) = (n for n in made_of(model, tmp_path).notes if n.startswith("twin: "))
    assert "not hold under these names" in told and "do not train" in told


def test_other_exporters_say_nothing(tmp_path: Path) -> None:
    for model in (exported(lines=()), exported(said={}, lines=()), exported(lines=("torn",))):
        made = made_of(model, tmp_path)
        assert trained(made) == set(NAMES)
        assert not made.notes


def test_a_torn_list_is_no_list() -> None:
    said = {**SAID, "mask": {FOLDED: "['turns', "}}
    assert exporter_notes(exported(said)).constants == ("turns", "mask")


def notes_of(text: str, arrays, **recipe) -> tuple[str, ...]:
    return artifacts_of(source(text, arrays), Recipe(loss="mse", **recipe), registry()).notes


NORMALIZED = "m (float[n,4,3] x) => (float[n,4,3] y) { y = BatchNormalization (x, s, b, m, v) }"


def test_batch_normalization_of_inference_is_told() -> None:
    channel = {n: np.linspace(1, 2, 4, dtype=np.float32) for n in "sbmv"}
    assert notes_of(NORMALIZED, channel)[0].startswith("BatchNormalization runs in inference mode")
    training = NORMALIZED.replace("y = Batch", "y, p, q = Batch").replace(
        "zation (", "zation <training_mode = 1> ("
    )
    assert notes_of(training, channel) == ()


TIED = "m (float[n,3] x) => (float[n,3] y) { h = MatMul (x, one) y = MatMul (h, other) }"


def test_tied_weights_that_came_apart_are_told() -> None:
    weight = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
    for other in (weight, weight.T.copy()):
        assert notes_of(TIED, {"one": weight, "other": other})[0].startswith(
            "one and other hold the same values"
        )
    assert notes_of(TIED, {"one": weight, "other": weight[::-1].copy()}) == ()  # the same numbers elsewhere
    assert notes_of(TIED, {"one": weight, "other": weight}, train=("one",)) == ()


SCALED = "m (float[n,3] x) => (float[n,3] y) { h = MatMul (x, w) y = Mul (h, NUMBER) }"


def test_single_numbers_with_names_of_parameters_are_told() -> None:
    def notes(name: str, train: tuple[str, ...] = ()) -> tuple[str, ...]:
        weights = {"w": np.eye(3, dtype=np.float32), name: np.float32(14)}
        return notes_of(SCALED.replace("NUMBER", name), weights, train=train)

    (said,) = notes("logit_scale")
    assert said.startswith("logit_scale: single numbers") and said.endswith(
        "--train '*' --train logit_scale."
    )
    assert notes("val_3") == notes("const_of_gelu") == notes("logit_scale", ("*", "logit_scale")) == ()
