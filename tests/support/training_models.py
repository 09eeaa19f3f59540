"""Small ONNX models that carry their own training, written down as briefly as possible: shared by tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import trainers
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from minbuild.authoring.load import load
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import TrainingArtifacts
from minbuild.ops import registry
from minbuild.planning.plan_encoding import encode_plan
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN, Session, aligned_copy, arena_size

PREVIEW = "ai.onnx.preview.training"
OPSET = 17
ULPS = 64 * 2.0**-24  # of the largest element
Values = Mapping[str, np.ndarray]
Ports = Mapping[str, Sequence[int | str]]  # float tensors by name: their shapes


def node(op_type: str, inputs: str, outputs: str, **attributes: object) -> NodeProto:
    """`node("Add", "a b", "c")`; `-` is an absent input or output."""
    domain = PREVIEW if op_type in ("Gradient", "GraphCall", "Adagrad", "Adam", "Momentum") else ""
    read, made = (["" if n == "-" else n for n in names.split()] for names in (inputs, outputs))
    return helper.make_node(op_type, read, made, name=f"{op_type} of {outputs}", domain=domain, **attributes)


def gradient(xs: str, zs: str, y: str, outputs: str, inputs: str | None = None) -> NodeProto:
    """A Gradient node; `inputs` where they are not the values it names."""
    given = f"{xs} {zs}" if inputs is None else inputs
    zs_given = {"zs": zs.split()} if zs else {}
    return node("Gradient", given, outputs, xs=xs.split(), y=y, **zs_given)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Ports,
    outputs: str,
    initializers: Values | None = None,
    name: str = "net",
) -> GraphProto:
    """A graph; what its outputs are follows from the nodes."""
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs.split()],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in (initializers or {}).items()],
    )


@dataclass
class Info:
    """One TrainingInfoProto; bindings as `variable=output ...`."""

    algorithm: GraphProto
    updates: str = ""
    initialization: GraphProto | None = None
    resets: str = ""


@dataclass
class Trainable:
    """A model with training information."""

    inference: GraphProto
    infos: Sequence[Info] = field(default_factory=list)

    def proto(self) -> ModelProto:
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(PREVIEW, 1)]
        model = helper.make_model(self.inference, opset_imports=opsets, ir_version=8)
        for info in self.infos:
            made = model.training_info.add()
            made.algorithm.CopyFrom(info.algorithm)
            if info.initialization is not None:
                made.initialization.CopyFrom(info.initialization)
            for field_, text in (
                (made.update_binding, info.updates),
                (made.initialization_binding, info.resets),
            ):
                for pair in text.split():
                    entry = field_.add()
                    entry.key, entry.value = pair.split("=")
        return model

    def save(self, path: Path) -> Path:
        path.write_bytes(self.proto().SerializeToString())
        return path

    def artifacts(self, folder: Path) -> TrainingArtifacts:
        return load(self.save(folder / "model.onnx"), registry())


def single(x: float) -> np.ndarray:
    """A float without axes."""
    return np.array(x, np.float32)


def regression(step: Sequence[NodeProto], updates: str, state: Values, **more: object) -> Trainable:
    """y = tanh(x W + b), loss = mean (y - t)^2 with the gradients dW and db; then the nodes of `step`."""
    random = np.random.default_rng(5)
    weights = random.standard_normal((4, 3)).astype(np.float32)
    inference = graph(
        [node("MatMul", "x W", "xW"), node("Add", "xW b", "a"), node("Tanh", "a", "y")],
        {"x": ["batch", 4]},
        "y",
        {"W": weights, "b": random.standard_normal(3).astype(np.float32)},
    )
    loss = [
        node("Sub", "y t", "d"),
        node("Mul", "d d", "dd"),
        node("ReduceMean", "dd", "loss", keepdims=0),
        gradient("W b", "x t", "loss", "dW db"),
    ]
    news = " ".join(pair.split("=")[1] for pair in updates.split())
    algorithm = graph([*loss, *step], {"t": ["batch", 3]}, f"loss {news}", state)
    return Trainable(inference, [Info(algorithm, updates, **more)])  # type: ignore[arg-type]


def regression_gradients(
    x: np.ndarray, t: np.ndarray, w: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Loss, prediction and gradients of `regression`, by hand."""
    y = np.tanh(x @ w + b)
    da = 2 * (y - t) / y.size * (1 - y * y)
    return np.mean((y - t) ** 2), y, x.T @ da, da.sum(0)


def with_momentum() -> Trainable:
    """`regression` trained by Momentum with a step count; initialization draws W and sets the count to 0."""
    attributes = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.01, "mode": "nesterov"}
    step = [
        node("Momentum", "R T W b dW db vW vb", "W1 b1 vW1 vb1", **attributes),
        node("Add", "T one", "T1"),
    ]
    state = {
        "R": single(0.1),
        "T": np.array(0),
        "one": np.array(1),
        "vW": np.zeros((4, 3), np.float32),
        "vb": np.zeros(3, np.float32),
    }
    zero = numpy_helper.from_array(np.array(0))
    initialization = graph(
        [
            node("RandomNormal", "", "W0", shape=[4, 3], scale=0.5, seed=3.0),
            node("Constant", "", "T0", value=zero),
        ],
        {},
        "W0 T0",
    )
    updates = "W=W1 b=b1 vW=vW1 vb=vb1 T=T1"
    return regression(step, updates, state, initialization=initialization, resets="W=W0 T=T0")


def device(artifacts: TrainingArtifacts, folder: Path) -> Session:
    """A session of a trimmed library, in memory full of NaN."""
    operators = registry()
    plan = trainers.plan_of(artifacts, operators)
    library = trainers.library_of(trainers.contents_of([plan]), operators, folder)
    data = encode_plan(plan, dict.fromkeys(plan.symbols, 8))
    arena = aligned_copy(b"\xff" * arena_size(library, data))
    return Session(library, data, write_checkpoint(artifacts.checkpoint), arena=arena)


def check_steps(
    artifacts: TrainingArtifacts, folder: Path, *batch: np.ndarray, steps: int = 3
) -> dict[str, np.ndarray]:
    """Trains with the interpreter and on the device; both agree in outputs and variables after every step. Answers
    with what they end with: outputs of the last step and variables."""
    exact, session = ReferenceTrainer(artifacts), device(artifacts, folder)
    names = session.names(TRAIN, True)
    found: dict[str, np.ndarray] = {}
    for _ in range(steps):
        wanted = dict(zip(names, exact.train_step(*batch), strict=True)) | exact.parameters
        found = dict(zip(names, session.run(TRAIN, batch), strict=True))
        found |= {n: session.parameter(n).copy() for n in session.parameters}
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert_close(found[name], value, name)
    return {n: np.array(v) for n, v in wanted.items()}


def assert_close(found: np.ndarray, wanted: np.ndarray, label: str = "") -> None:
    scale = max(float(np.abs(wanted).max(initial=0)), 1e-30)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ULPS * scale, err_msg=label)
