"""Dynamically quantised LSTMs, as `quantize_dynamic` writes them, become loops that compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import trainers
from onnx.reference import ReferenceEvaluator
from planned_models import compiled
from quantizer_models import MICROSOFT, RANDOM, fake_quantised, numbers, outputs, proto_of, scales, source_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.errors import Unsupported
from minbuild.ops import registry
from minbuild.planning.inference_export import export_model
from minbuild.planning.kernel_selection import contents_of
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import EVAL, TRAIN, Session

BATCH, STEPS, WIDTH, HIDDEN = 3, 5, 2, 4
REGISTRY = registry()
LSTM = f"{MICROSOFT}:DynamicQuantizeLSTM"
READS = "t w r b - h c - ws wz rs rz"
FORMS = {  # directions, scales of a channel, opset, bias, and whether states are given or which
    "forward": ("forward", False, 17, True, True),
    "channels": ("forward", True, 21, True, False),
    "reverse": ("reverse", False, 12, False, False),
    "both": ("bidirectional", True, 13, True, True),
    "one state": ("forward", True, 17, True, "h h"),
    "old": ("bidirectional", False, 11, True, False),
}


def weights(direction: str, channels: bool) -> dict[str, np.ndarray]:
    count = 2 if direction == "bidirectional" else 1
    across = (count, 4 * HIDDEN) if channels else (count,)
    kind = np.uint8 if channels else np.int8
    return {
        "w": numbers(kind, count, WIDTH, 4 * HIDDEN),
        "r": numbers(kind, count, HIDDEN, 4 * HIDDEN),
        "b": (RANDOM.standard_normal((count, 8 * HIDDEN)) / 4).astype(np.float32),
        "h": (RANDOM.standard_normal((count, BATCH, HIDDEN)) / 4).astype(np.float32),
        "c": (RANDOM.standard_normal((count, BATCH, HIDDEN)) / 4).astype(np.float32),
        **{"ws": scales(*across), "rs": scales(*across)},
        **{n: numbers(kind, *across) // 8 for n in ("wz", "rz")},
    }


def model(form: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    direction, channels, opset, biased, begins = FORMS[form]
    constants = weights(direction, channels)
    count = len(constants["w"])
    reads = READS if biased else READS.replace(" b", " -")
    reads = reads.replace(" h c", f" {begins}" if isinstance(begins, str) else " h c" if begins else " - -")
    nodes = [
        ("Transpose", "x", "t", {"perm": [1, 0, 2]}),
        (LSTM, reads, "all last cells", {"hidden_size": HIDDEN, "direction": direction}),
        ("ReduceMean", "last", "m", {"keepdims": 0, **({"axes": [0]} if opset < 18 else {})}),
        ("Gather", "all one", "end", {}),
        ("ReduceMax", "end", "e", {"keepdims": 0, **({"axes": [0]} if opset < 18 else {})}),
        ("Gather", "cells zero", "first", {}),
        ("Add", "m e", "a", {}),
        ("Add", "a first", "s", {}),
        ("MatMul", "s head", "y", {}),
    ]
    if opset >= 18:
        nodes = [(op, f"{i} axes" if op.startswith("Reduce") else i, o, f) for op, i, o, f in nodes]
    used = set(" ".join(n[1] for n in nodes).split())
    head = (RANDOM.standard_normal((HIDDEN, 2)) / 2).astype(np.float32)
    constants |= {"head": head, "zero": np.array(0), "one": np.array(1), "axes": np.array([0])}
    given = {n: a for n, a in constants.items() if n in used}
    assert count == given["w"].shape[0]
    return proto_of(nodes, given, ((STEPS, WIDTH), (2,)), opset), given


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def expected(x: np.ndarray, form: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """The outputs of onnxruntime on one thread, in double precision."""
    direction = FORMS[form][0]
    count, entering = len(given["w"]), fake_quantised(x.astype(np.float64).transpose(1, 0, 2))
    stacks, ends, cells = [], [], []
    for d in range(count):
        real = {
            n: (given[n][d].astype(np.float64) - given[f"{n}z"][d]) * given[f"{n}s"][d] for n in ("w", "r")
        }
        bias = given["b"][d].astype(np.float64) if "b" in given else np.zeros(8 * HIDDEN)
        states = "hh" if form == "one state" else "hc"
        h, c = (given[n][d] if n in given else np.zeros((BATCH, HIDDEN)) for n in states)
        backward = direction == "reverse" or d == 1
        found = []
        for step in entering[::-1] if backward else entering:
            sums = step @ real["w"] + bias[: 4 * HIDDEN] + bias[4 * HIDDEN :] + fake_quantised(h) @ real["r"]
            i, o, f, new = np.split(sums, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
            h = sigmoid(o) * np.tanh(c)
            found.append(h)
        stacks.append(np.stack(found[::-1] if backward else found))
        ends.append(h)
        cells.append(c)
    some = np.mean(ends, 0) + np.max([s[1] for s in stacks], 0) + cells[0]
    return some @ given["head"]


def batch() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_a_quantised_lstm_computes_what_onnxruntime_does(form, tmp_path):
    proto, given = model(form)
    made = artifacts_of(source_of(proto), Recipe(loss="mse", optimizer="sgd", outputs=("y",)), REGISTRY)
    assert not any(node.op_type == "DynamicQuantizeLSTM" for node in made.training.nodes)
    assert [p.name for p in made.checkpoint.parameters] == [n for n in given if n in ("b", "h", "c", "head")]
    x = batch()
    np.testing.assert_allclose(outputs(made, x, (2,)), expected(x, form, given), rtol=1e-6)
    free = {} if "h" in given else {"batch": BATCH}  # the batch of states that are given
    plan = compiled(made, REGISTRY, **free)
    library = trainers.library_of(contents_of([plan]), REGISTRY, tmp_path)
    session, trainer = (
        Session(library, plan.plan_bytes, plan.checkpoint, list(free.values())),
        ReferenceTrainer(made),
    )
    target = np.ones((BATCH, 2), np.float32)
    np.testing.assert_allclose(
        session.run(EVAL, [x, target])[1], trainer.eval_step(x, target)[1], rtol=1e-5, atol=1e-6
    )
    session.run(TRAIN, [x, target])
    trainer.train_step(x, target)
    for name in trainer.trained:
        np.testing.assert_allclose(
            session.gradient(name), trainer.gradients[name], rtol=1e-4, atol=1e-6, err_msg=name
        )


def test_an_exported_model_quantises_in_every_step():
    proto, given = model("channels")
    made = artifacts_of(source_of(proto), Recipe(loss="mse", optimizer="sgd", outputs=("y",)), REGISTRY)
    _, data = export_model(made, made.checkpoint, ("y",))
    exported = onnx.load_from_string(data)
    onnx.checker.check_model(exported)
    (scan,) = (n for n in exported.graph.node if n.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    kinds = [n.op_type for n in body.node]
    assert kinds[:3] == ["DequantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear"]
    x = batch()
    (found,) = ReferenceEvaluator(exported).run(None, {"x": x})
    np.testing.assert_allclose(found, expected(x, "channels", given), rtol=1e-4, atol=1e-5)


UNUSUAL = {
    "parameters": (
        "t w r b - - - - ws wz rs rz",
        {"activations": ["Sigmoid", "LeakyRelu", "Tanh"], "activation_alpha": [0.3]},
    ),
    "activations": ("t w r b - - - - ws wz rs rz", {"activations": ["Sigmoid", "Affine", "Tanh"]}),
    "layout": ("t w r b - - - - ws wz rs rz", {"layout": 1}),
    "computed weights": ("t v r b - - - - ws wz rs rz", {}),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_other_forms_are_refused_with_a_cure(name):
    reads, attributes = UNUSUAL[name]
    constants = weights("forward", channels=False)
    nodes = [
        ("Transpose", "x", "t", {"perm": [1, 0, 2]}),
        ("Identity", "w", "v", {}),
        (LSTM, reads, "all last cells", {"hidden_size": HIDDEN, **attributes}),
        ("Squeeze", "last", "y", {}),
    ]
    used = set(" ".join(n[1] for n in nodes).split())
    proto = proto_of(nodes, {n: a for n, a in constants.items() if n in used}, ((STEPS, WIDTH), (HIDDEN,)))
    with pytest.raises(Unsupported, match=r"op_types_to_quantize=\['MatMul', 'Gather'\]"):
        artifacts_of(source_of(proto), Recipe(loss="mse"), REGISTRY)
