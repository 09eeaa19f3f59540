"""Dynamically quantised LSTMs with lengths of sequences, peepholes, a limit, coupled gates and other activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from beside_interpreter import farthest
from quantizer_models import MICROSOFT, fake_quantised, numbers, outputs, proto_of, scales, source_of

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ops import registry

BATCH, STEPS, WIDTH, HIDDEN = 3, 5, 2, 4
LENGTHS = np.array([5, 3, 1], np.int32)
FORMS = {  # direction, further inputs, attributes, opset
    "lengths": ("forward", "n", {}, 17),
    "lengths backward": ("reverse", "n", {}, 11),
    "lengths both ways": ("bidirectional", "n", {}, 21),
    "peepholes": ("forward", "p", {}, 17),
    "peepholes, lengths": ("bidirectional", "n p", {}, 13),
    "limit": ("forward", "p", {"clip": 0.3}, 17),
    "rectified": ("forward", "", {"activations": ["Sigmoid", "Relu", "Tanh"]}, 17),
    "both rectified": (
        "bidirectional",
        "",
        {"activations": ["sigmoid", "tanh", "Softsign", "HardSigmoid", "LeakyRelu", "Elu"]},
        17,
    ),
    "coupled": ("forward", "p", {"input_forget": 1}, 17),
}
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "hardsigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "leakyrelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "elu": lambda x: np.where(x < 0, np.expm1(x), x),
}
random = np.random.default_rng(11)
X = random.standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32)
T = random.standard_normal((BATCH, HIDDEN)).astype(np.float32)


def model(form: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    direction, further, flags, opset = FORMS[form]
    count = 2 if direction == "bidirectional" else 1
    given = {
        **{"w": numbers(np.int8, count, WIDTH, 4 * HIDDEN), "r": numbers(np.int8, count, HIDDEN, 4 * HIDDEN)},
        **{"ws": scales(count), "rs": scales(count)},
        **{n: np.zeros(count, np.int8) for n in ("wz", "rz")},
        "n": LENGTHS,
    }
    for name, shape in (
        ("b", (8 * HIDDEN,)),
        ("p", (3 * HIDDEN,)),
        ("h", (BATCH, HIDDEN)),
        ("c", (BATCH, HIDDEN)),
    ):
        given[name] = (random.standard_normal((count, *shape)) / 2).astype(np.float32)
    lengths, peepholes = (n if n in further else "-" for n in "np")
    reads = f"t w r b {lengths} h c {peepholes} ws wz rs rz"
    sums = {"keepdims": 0, **({} if opset >= 18 else {"axes": [0, 1]})}
    axes = " both" if opset >= 18 else ""
    nodes = [
        ("Transpose", "x", "t", {"perm": [1, 0, 2]}),
        (
            f"{MICROSOFT}:DynamicQuantizeLSTM",
            reads,
            "all last cells",
            {"hidden_size": HIDDEN, "direction": direction, **flags},
        ),
        ("ReduceMean", f"all{axes}", "m", sums),
        ("Unsqueeze", "last zero" if opset >= 13 else "last", "u", {} if opset >= 13 else {"axes": [0]}),
        ("Unsqueeze", "cells zero" if opset >= 13 else "cells", "v", {} if opset >= 13 else {"axes": [0]}),
        ("ReduceMean", f"u{axes}", "l", sums),
        ("ReduceMean", f"v{axes}", "d", sums),
        ("Add", "m l", "s", {}),
        ("Add", "s d", "y", {}),
    ]
    given |= {"both": np.array([0, 1]), "zero": np.array([0])}
    used = set(" ".join(n[1] for n in nodes).split())
    proto = proto_of(nodes, {n: a for n, a in given.items() if n in used}, ((STEPS, WIDTH), (HIDDEN,)), opset)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    return proto, given


def expected(form: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """The outputs of onnxruntime on one thread, in double precision."""
    direction, further, flags, _ = FORMS[form]
    ends = LENGTHS if "n" in further else np.full(BATCH, STEPS)
    limit = flags.get("clip", np.inf)
    entering, total = fake_quantised(X.astype(np.float64).transpose(1, 0, 2)), 0
    for d in range(len(given["w"])):
        names = (flags.get("activations") or ["Sigmoid", "Tanh", "Tanh"] * 2)[3 * d : 3 * d + 3]
        gate, candidate, squash = (FUNCTIONS[n.lower()] for n in names)
        w, r = (given[n][d].astype(np.float64) * given[f"{n}s"][d] for n in "wr")
        bias, sight = given["b"][d].astype(np.float64), np.zeros((3, HIDDEN))
        if "p" in further:
            sight = given["p"][d].astype(np.float64).reshape(3, HIDDEN)
        h, c = (given[n][d].astype(np.float64) for n in "hc")
        read, found = h, np.zeros((STEPS, BATCH, HIDDEN))
        backward = direction == "reverse" or d == 1
        for step in range(STEPS):
            at = np.where(step < ends, ends - 1 - step if backward else step, step)
            x = entering[at, np.arange(BATCH)]
            sums = x @ w + bias[: 4 * HIDDEN] + bias[4 * HIDDEN :] + fake_quantised(read) @ r
            i, o, f, new = np.split(sums, 4, axis=1)
            i = gate(np.clip(i + sight[0] * c, -limit, limit))
            f = 1 - i if flags.get("input_forget") else gate(np.clip(f + sight[2] * c, -limit, limit))
            cell = f * c + i * candidate(np.clip(new, -limit, limit))
            result = gate(np.clip(o + sight[1] * cell, -limit, limit)) * squash(cell)
            runs = (step < ends)[:, None]
            read, h, c = np.where(runs, result, 0), np.where(runs, result, h), np.where(runs, cell, c)
            found[at, np.arange(BATCH)] = read
        total = total + np.stack([found.mean(0), h, c])
    states, last, cells = total / len(given["w"])
    return states + last + cells


def artifacts(form: str):
    return artifacts_of(source_of(model(form)[0]), Recipe("mse", optimizer="sgd", outputs=("y",)), registry())


@pytest.mark.parametrize("form", FORMS)
def test_they_compute_what_onnxruntime_does(form):
    proto, given = model(form)
    made = artifacts_of(source_of(proto), Recipe("mse", optimizer="sgd", outputs=("y",)), registry())
    trained = {p.name for p in made.checkpoint.parameters}
    assert trained == {"b", "h", "c", *("p" if "p" in FORMS[form][1] else ())}
    np.testing.assert_allclose(outputs(made, X, (HIDDEN,)), expected(form, given), rtol=1e-6, atol=1e-7)


def test_trainers_compute_what_their_graphs_say(tmp_path):
    made = {form: artifacts(form) for form in FORMS}
    assert max(farthest(made, dict.fromkeys(made, [(X, T)]), tmp_path).values()) < 1e-6
