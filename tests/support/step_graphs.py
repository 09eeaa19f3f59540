"""Training steps as plain ONNX graphs, with back-propagation written out: nets and optimizers to combine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

BATCH, INPUTS, OUTPUTS = 6, 5, 4


class Step:
    """A step being written: `arrays` are first values of states, `following` the names of their next values."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list = []
        self.constants: dict[str, str] = {}
        self.stored: list = []
        self.arrays: dict[str, np.ndarray] = {}
        self.following: dict[str, str] = {}

    def add(self, op: str, *inputs: str, name: str = "", **attributes) -> str:
        output = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def number(self, value) -> str:
        array = np.asarray(value, np.int64 if isinstance(value, list) else np.float32)
        name = f"c_{array.tolist()}".replace(" ", "")
        if name not in self.constants:
            self.constants[name] = name
            self.stored.append(numpy_helper.from_array(array, name))
        return name

    def mul(self, x: str, by: float | str) -> str:
        return self.add("Mul", x, by if isinstance(by, str) else self.number(by))

    def sum(self, x: str, axes: list[int], keep: int = 0) -> str:
        return self.add("ReduceSum", x, self.number(axes), keepdims=keep)

    def state(self, name: str, array: np.ndarray) -> str:
        self.arrays[name] = array.astype(np.float32)
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.state(name, self.random.standard_normal(shape) / np.sqrt(shape[0]))

    def next(self, name: str, value: str) -> None:
        self.following[name] = self.add("Identity", value, name=f"{name}_next")

    def model(self, opset: int = 17, values: bool = True) -> ModelProto:
        """Inputs x, t and lr beside the states; the loss is the first output."""
        shaped = {"x": (BATCH, INPUTS), "t": (BATCH, OUTPUTS), "lr": ()}
        kinds = {**shaped, **{n: a.shape for n, a in self.arrays.items()}}
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in kinds.items()]
        outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())]
        outputs += [
            helper.make_tensor_value_info(v, TensorProto.FLOAT, kinds[n]) for n, v in self.following.items()
        ]
        first = [numpy_helper.from_array(a, n) for n, a in self.arrays.items()] if values else []
        graph = helper.make_graph(self.nodes, "step", inputs, outputs, [*self.stored, *first])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


# ---------------------------------------------------------------------------------------------- activations


def _tanh(s: Step, x: str) -> tuple[str, Callable[[str], str]]:
    y = s.add("Tanh", x)
    return y, lambda d: s.add("Mul", d, s.add("Sub", s.number(1), s.add("Mul", y, y)))


def _sigmoid(s: Step, x: str) -> tuple[str, Callable[[str], str]]:
    y = s.add("Sigmoid", x)
    return y, lambda d: s.add("Mul", d, s.add("Mul", y, s.add("Sub", s.number(1), y)))


def _relu(s: Step, x: str) -> tuple[str, Callable[[str], str]]:
    return s.add("Relu", x), lambda d: s.add("Mul", d, s.add("Cast", s.add("Greater", x, s.number(0)), to=1))


def _softplus(s: Step, x: str) -> tuple[str, Callable[[str], str]]:
    return s.add("Softplus", x), lambda d: s.add("Mul", d, s.add("Sigmoid", x))


# ---------------------------------------------------------------------------------------------------- losses


def _squares(s: Step, y: str) -> tuple[str, str]:
    e = s.add("Sub", y, "t")
    loss = s.mul(s.sum(s.add("Mul", e, e), [0, 1]), 1 / (BATCH * OUTPUTS))
    return loss, s.mul(e, 2 / (BATCH * OUTPUTS))


def _cross_entropy(s: Step, y: str) -> tuple[str, str]:
    p = s.add("Softmax", "t", axis=1)
    logs = s.add("LogSoftmax", y, axis=1)
    loss = s.mul(s.sum(s.add("Mul", p, logs), [0, 1]), -1 / BATCH)
    return loss, s.mul(s.add("Sub", s.add("Softmax", y, axis=1), p), 1 / BATCH)


def _huber(s: Step, y: str) -> tuple[str, str]:
    e = s.add("Sub", y, "t")
    c = s.add("Min", s.add("Max", e, s.number(-1)), s.number(1))
    half = s.add("Sub", s.add("Mul", c, e), s.mul(s.add("Mul", c, c), 0.5))
    return s.mul(s.sum(half, [0, 1]), 1 / (BATCH * OUTPUTS)), s.mul(c, 1 / (BATCH * OUTPUTS))


# ------------------------------------------------------------------------------------------------ optimizers


def _mean(s: Step, keep: float, old: str, new: str) -> str:
    return s.add("Add", s.mul(old, keep), s.mul(new, 1 - keep))


def _moment(s: Step, name: str) -> str:
    return s.state(name, np.zeros_like(s.arrays[name.partition("/")[0]]))


def _move(s: Step, w: str, direction: str) -> None:
    s.next(w, s.add("Sub", w, s.mul(direction, "lr")))


def _sgd(s: Step, w: str, g: str) -> None:
    _move(s, w, g)


def _momentum(s: Step, w: str, g: str) -> None:
    m = _moment(s, f"{w}/m")
    new = s.add("Add", s.mul(m, 0.9), g)
    s.next(m, new)
    _move(s, w, new)


def _nesterov(s: Step, w: str, g: str) -> None:
    m = _moment(s, f"{w}/m")
    new = s.add("Add", s.mul(m, 0.9), g)
    s.next(m, new)
    _move(s, w, s.add("Add", g, s.mul(new, 0.9)))


def _rmsprop(s: Step, w: str, g: str) -> None:
    v = _moment(s, f"{w}/v")
    new = _mean(s, 0.99, v, s.add("Mul", g, g))
    s.next(v, new)
    _move(s, w, s.add("Div", g, s.add("Add", s.add("Sqrt", new), s.number(1e-6))))


def _adagrad(s: Step, w: str, g: str) -> None:
    v = _moment(s, f"{w}/v")
    new = s.add("Add", v, s.add("Mul", g, g))
    s.next(v, new)
    _move(s, w, s.add("Div", g, s.add("Add", s.add("Sqrt", new), s.number(1e-5))))


def _adam(s: Step, w: str, g: str, decay: float = 0.0) -> None:
    """The number of the step is a state, too: one for every parameter, so that any subset is a step."""
    m, v, n = _moment(s, f"{w}/m"), _moment(s, f"{w}/v"), s.state(f"{w}/n", np.zeros(()))
    count = s.add("Add", n, s.number(1))
    mean, square = _mean(s, 0.9, m, g), _mean(s, 0.999, v, s.add("Mul", g, g))
    first, second = (s.add("Sub", s.number(1), s.add("Pow", s.number(b), count)) for b in (0.9, 0.999))
    for name, value in ((m, mean), (v, square), (n, count)):
        s.next(name, value)
    root = s.add("Add", s.add("Sqrt", s.add("Div", square, second)), s.number(1e-6))
    direction = s.add("Div", s.add("Div", mean, first), root)
    _move(s, w, s.add("Add", direction, s.mul(w, decay)) if decay else direction)


def _adamw(s: Step, w: str, g: str) -> None:
    _adam(s, w, g, 0.05)


OPTIMIZERS: dict[str, Callable[[Step, str, str], None]] = {
    "sgd": _sgd, "momentum": _momentum, "nesterov": _nesterov, "rmsprop": _rmsprop, "adagrad": _adagrad,
    "adam": _adam, "adamw": _adamw,
}  # fmt: skip
NETS: dict[str, tuple[Sequence[int], Callable, Callable]] = {  # hidden sizes, activation, loss
    "linear": ((), _tanh, _squares),
    "logistic": ((), _tanh, _cross_entropy),
    "tanh": ((8,), _tanh, _squares),
    "relu": ((16, 8), _relu, _cross_entropy),
    "sigmoid": ((7,), _sigmoid, _huber),
    "softplus": ((9, 6, 5), _softplus, _squares),
}


def step(net: str, optimizer: str) -> Step:
    """A step of a net with an optimizer."""
    sizes, activation, loss = NETS[net]
    s = Step(sum(map(ord, net + optimizer)))
    sizes = [INPUTS, *sizes, OUTPUTS]
    layers = []
    y = "x"
    for i, (rows, columns) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        w, b = s.weight(f"w{i}", rows, columns), s.state(f"b{i}", np.zeros(columns))
        x, y = y, s.add("Add", s.add("MatMul", y, w), b)
        back = None
        if i < len(sizes) - 2:
            y, back = activation(s, y)
        layers.append((w, b, x, back))
    value, d = loss(s, y)
    s.add("Identity", value, name="loss")
    gradients = {}
    for i, (w, b, x, back) in reversed(list(enumerate(layers))):
        d = back(d) if back else d
        gradients[w] = s.add("MatMul", s.add("Transpose", x, perm=[1, 0]), d)
        gradients[b] = s.sum(d, [0])
        if i:
            d = s.add("MatMul", d, s.add("Transpose", w, perm=[1, 0]))
    for name, gradient in gradients.items():
        OPTIMIZERS[optimizer](s, name, gradient)
    return s


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(99)
    return [
        (
            random.standard_normal((BATCH, INPUTS)).astype(np.float32),
            random.standard_normal((BATCH, OUTPUTS)).astype(np.float32),
        )
        for _ in range(count)
    ]
