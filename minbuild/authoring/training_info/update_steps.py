"""Optimizers as nodes of a training algorithm: one step on every parameter, with the state it keeps.

Where ai.onnx.preview.training has an operator with the same formula, that is the node; else the formula is written out.
The results are those of the optimizer models that artifacts have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minbuild.authoring.optimizers import OptimizerOptions, optimizer_graph
from minbuild.errors import BadInput
from minbuild.frontend.onnx.training_info import DOMAIN
from minbuild.ir import ElementType, Node, TensorType

RATE, STEP = "learning_rate", "step"
FIRST_RATE = 0.001  # what a trainer of artifacts starts with

Attributes = Mapping[str, Any]


@dataclass
class UpdateWriter:
    """An algorithm being written. `state` are the variables it brings with their first values, `updates` the outputs
    that are new values of variables."""

    parameters: Mapping[str, TensorType]
    opset: int
    nodes: list[Node] = field(default_factory=list)
    state: dict[str, np.ndarray] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state[RATE] = np.array(FIRST_RATE, np.float32)

    def many(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """A node with outputs of these names, of the domain of training where its operator is there. `op_type` reads
        `inputs` and writes `outputs`."""
        domain, version = (DOMAIN, 1) if op_type in _OPERATORS else ("", self.opset)
        name = f"optimizer/{op_type}_{len(self.nodes)}"
        self.nodes.append(
            Node(
                op_type,
                domain,
                version,
                name=name,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                attributes=attributes,
            )
        )

    def add(self, op_type: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """A node with one output, called `result`: its name."""
        output = result or f"optimizer/{op_type}_{len(self.nodes)}:0"
        self.many(op_type, inputs, (output,), **attributes)
        return output

    def number(self, value: float, like: ElementType = ElementType.FLOAT) -> str:
        return self.add("Constant", value=np.array(value, like.dtype))

    def scalar(self, name: str, like: ElementType) -> str:
        """The learning rate or the step count in the type of a parameter."""
        plain = ElementType.of(self.state[name].dtype) if name in self.state else ElementType.INT64
        return name if plain is like else self.add("Cast", name, to=int(like))

    def moment(self, parameter: str, number: int) -> str:
        """A state tensor of a parameter, at first zero."""
        name, tensor = f"{parameter}.momentum{number}", self.parameters[parameter]
        shape = tuple(int(str(d)) for d in tensor.shape or ())
        self.state[name] = np.zeros(shape, tensor.element.dtype)
        return name

    def counted(self) -> str:
        """The number of this step, from 1."""
        self.state[STEP] = np.array(0, np.int64)
        one = self.number(1, ElementType.INT64)
        return self.assign(STEP, self.add("Add", STEP, one, result=new_name(STEP)))

    def assign(self, variable: str, value: str) -> str:
        self.updates[variable] = value
        return value

    def apply(
        self, op_type: str, step: str, gradients: Sequence[str], moments: int, **attributes: Any
    ) -> None:
        """Adds a node of `op_type` over all parameters. `step` is the value that counts steps, `gradients` are in the
        order of the parameters, `moments` is the number of arrays of state per parameter."""
        names = tuple(self.parameters)
        kept = [self.moment(n, k) for k in range(moments) for n in names]
        changed = (*names, *kept)
        outputs = [self.assign(n, new_name(n)) for n in changed]
        self.many(op_type, (RATE, step, *names, *gradients, *kept), outputs, **attributes)


def new_name(variable: str) -> str:
    """The name of the new value of a variable."""
    return f"{variable}.new"


_OPERATORS = ("Adagrad", "Adam", "Momentum")
Step = Callable[[UpdateWriter, Sequence[str], Attributes], None]


def write_updates(
    writer: UpdateWriter, gradients: Sequence[str], name: str, options: OptimizerOptions
) -> None:
    """Writes one step of optimizer `name` on all parameters, given their gradients. `writer` has the parameters,
    `gradients` are in their order, `options` are those of the optimizer. Raises BadInput for one there is not, and
    for an option it does not take."""
    *_, node = optimizer_graph(name, options).nodes  # which checks the options and knows the defaults
    if node.op_type not in _STEPS:
        raise BadInput(f"--optimizer {name}: has no form as training information. Choose another one.")
    if options.max_norm is not None:
        gradients = _clipped(writer, gradients, options.max_norm)
    _STEPS[node.op_type](writer, gradients, node.attributes)


def _clipped(w: UpdateWriter, gradients: Sequence[str], max_norm: float) -> list[str]:
    """Gradients whose common norm is `max_norm` at most; 1e-6 is added to the norm as ONNX Runtime does."""
    squares = [
        w.add("Cast", w.add("ReduceSumSquare", g, keepdims=0), to=int(ElementType.FLOAT)) for g in gradients
    ]
    norm = w.add("Add", w.add("Sqrt", w.add("Sum", *squares)), w.number(1e-6))
    scale = w.add("Min", w.number(1), w.add("Div", w.number(max_norm), norm))
    types = w.parameters.values()
    return [
        w.add("Mul", g, w.add("Cast", scale, to=int(t.element)))
        for g, t in zip(gradients, types, strict=True)
    ]


def _decayed_gradient(w: UpdateWriter, name: str, gradient: str, decay: float) -> str:
    """The gradient with that of decay / 2 * |x|^2."""
    if not decay:
        return gradient
    like = w.parameters[name].element
    return w.add("Add", gradient, w.add("Mul", w.number(decay, like), name))


def _mean(w: UpdateWriter, keep: float, old: str, new: str, like: ElementType, result: str) -> str:
    """keep * old + (1 - keep) * new"""
    kept = w.add("Mul", w.number(keep, like), old)
    return w.add("Add", kept, w.add("Mul", w.number(1 - keep, like), new), result=result)


def _move(w: UpdateWriter, name: str, direction: str) -> None:
    """x - rate * direction"""
    rate = w.scalar(RATE, w.parameters[name].element)
    w.assign(name, w.add("Sub", name, w.add("Mul", rate, direction), result=new_name(name)))


def _sgd(w: UpdateWriter, gradients: Sequence[str], attributes: Attributes) -> None:
    for name, gradient in zip(w.parameters, gradients, strict=True):
        _move(w, name, gradient)


def _momentum(w: UpdateWriter, gradients: Sequence[str], attributes: Attributes) -> None:
    mode = "nesterov" if attributes["nesterov"] else "standard"
    norm, alpha = attributes["weight_decay"], attributes["momentum"]
    w.apply("Momentum", w.counted(), gradients, 1, alpha=alpha, beta=1.0, norm_coefficient=norm, mode=mode)


def _adagrad(w: UpdateWriter, gradients: Sequence[str], attributes: Attributes) -> None:
    norm, epsilon = attributes["weight_decay"], attributes["epsilon"]
    w.apply("Adagrad", w.counted(), gradients, 1, norm_coefficient=norm, epsilon=epsilon)


def _adamw(w: UpdateWriter, gradients: Sequence[str], attributes: Attributes) -> None:
    """Adam with bias correction from step 1 on, none at step 0; then parameters decay in proportion to the rate."""
    get = attributes.get
    step = w.counted()
    if not get("correct_bias", 1):
        step = w.number(0, ElementType.INT64)
    w.apply("Adam", step, gradients, 2, alpha=get("alpha"), beta=get("beta"), epsilon=get("epsilon"))
    if not (decay := get("weight_decay", 0.0)):
        return
    for name, tensor in w.parameters.items():
        like = tensor.element
        shrink = w.add("Mul", w.scalar(RATE, like), w.number(decay, like))
        factor = w.add("Sub", w.number(1, like), shrink)
        w.assign(name, w.add("Mul", w.updates[name], factor, result=f"{new_name(name)}.decayed"))


def _adam(w: UpdateWriter, gradients: Sequence[str], attributes: Attributes) -> None:
    """As torch.optim.Adam: epsilon is added to the corrected root, unlike in the operator Adam."""
    alpha, beta = attributes["alpha"], attributes["beta"]
    step = w.counted()
    for (name, tensor), gradient in zip(w.parameters.items(), gradients, strict=True):
        like = tensor.element
        count = w.add("Cast", step, to=int(like))
        first, second = (
            w.add("Sub", w.number(1, like), w.add("Pow", w.number(base, like), count))
            for base in (alpha, beta)
        )
        g = _decayed_gradient(w, name, gradient, attributes["weight_decay"])
        m, v = w.moment(name, 0), w.moment(name, 1)
        mean = w.assign(m, _mean(w, alpha, old=m, new=g, like=like, result=new_name(m)))
        square = w.assign(v, _mean(w, beta, old=v, new=w.add("Mul", g, g), like=like, result=new_name(v)))
        root = w.add(
            "Add", w.add("Sqrt", w.add("Div", square, second)), w.number(attributes["epsilon"], like)
        )
        _move(w, name, w.add("Div", w.add("Div", mean, first), root))


def _rmsprop(w: UpdateWriter, gradients: Sequence[str], attributes: Attributes) -> None:
    for (name, tensor), gradient in zip(w.parameters.items(), gradients, strict=True):
        like = tensor.element
        g = _decayed_gradient(w, name, gradient, attributes["weight_decay"])
        v = w.moment(name, 0)
        square = w.assign(
            v, _mean(w, attributes["alpha"], old=v, new=w.add("Mul", g, g), like=like, result=new_name(v))
        )
        root = w.add("Add", w.add("Sqrt", square), w.number(attributes["epsilon"], like))
        _move(w, name, w.add("Div", g, root))


_STEPS: Mapping[str, Step] = {
    "SGDOptimizerV2": _sgd,
    "MomentumOptimizer": _momentum,
    "AdagradOptimizer": _adagrad,
    "AdamWOptimizer": _adamw,
    "AdamOptimizer": _adam,
    "RMSPropOptimizer": _rmsprop,
}
