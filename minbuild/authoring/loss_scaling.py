"""Loss scaling: gradients of a model in half precision are computed times a factor, lest small ones underflow.

The backward pass starts from the scale in place of 1, and every gradient is divided by it before it is added up: what
a session holds as gradients, clips and gives to the optimizer has no scale in it. The scale is a power of two, so that
neither rounds.

A static scale is a constant. A dynamic one is a parameter of the checkpoint that does not train, with another that
counts updates since it changed; the first node of the optimizer model, minbuild:AdaptLossScale, changes both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import frexp, isfinite

import numpy as np

from minbuild.authoring.artifact_graphs import type_of
from minbuild.authoring.autodiff.sweep import Differentiated
from minbuild.authoring.recipe import LossScale
from minbuild.errors import BadInput
from minbuild.ir import ElementType, Graph, Node, TensorType
from minbuild.ops.optimizer.adapt_loss_scale import LARGEST_SCALE, SMALLEST_SCALE

SCALE, GOOD = "loss_scale", "loss_scale.good_steps"  # the parameters of a dynamic scale
_FLOAT = ElementType.FLOAT


@dataclass(frozen=True)
class ScaledTraining:
    """Gradients of the scaled loss without the scale; the optimizer model; and parameters to add, with first values."""

    differentiated: Differentiated
    optimizer: Graph | None
    states: Mapping[str, np.ndarray] = field(default_factory=dict)


def loss_scaling(
    asked: LossScale | None, graph: Graph, made: Differentiated, optimizer: Graph | None, opset: int
) -> ScaledTraining:
    """Scales the loss where that is `asked` for. `graph` is the forward graph with its loss, `made` its gradients,
    `optimizer` the optimizer model; `opset` is the version of ONNX's own operators. Raises BadInput."""
    if asked is None:
        return ScaledTraining(made, optimizer)
    if problems := list(_problems(asked, graph, made, optimizer)):
        raise BadInput("\n".join(problems))
    if not asked.growth_interval:
        ones = made.initializers[made.seed]
        seed = {made.seed: (ones * ones.dtype.type(asked.initial)).astype(ones.dtype)}
        made = replace(made, initializers={**made.initializers, **seed})
        return ScaledTraining(_unscaled(made, [], asked.initial, opset), optimizer)
    assert optimizer is not None, "see _problems"
    states = {SCALE: np.array([asked.initial], np.float32), GOOD: np.zeros(1, np.float32)}
    seed_nodes = _seed(made, opset)
    initializers = {n: a for n, a in made.initializers.items() if n != made.seed}
    shape = np.array(made.initializers[made.seed].shape, np.int64)
    initializers |= {f"{SCALE}/shape": shape, f"{SCALE}/one": np.ones(1, np.float32)}
    made = replace(
        made,
        nodes=(*made.nodes[: made.turn], *seed_nodes, *made.nodes[made.turn :]),
        initializers=initializers,
        types={**made.types, **{n: type_of(a) for n, a in states.items()}},
    )
    inverse = _node("Div", (f"{SCALE}/one", SCALE), f"{SCALE}/inverse", opset)
    return ScaledTraining(_unscaled(made, [inverse], None, opset), _adapting(optimizer, asked), states)


def _node(op: str, inputs: tuple[str, ...], output: str, opset: int, **attributes: int) -> Node:
    return Node(op, "", opset, name=output, inputs=inputs, outputs=(output,), attributes=attributes)


def _seed(made: Differentiated, opset: int) -> list[Node]:
    """The scale in shape and type of the loss."""
    element = type_of(made.initializers[made.seed]).element
    shaped = made.seed if element is _FLOAT else f"{made.seed}/float"
    nodes = [_node("Reshape", (SCALE, f"{SCALE}/shape"), shaped, opset)]
    if element is not _FLOAT:
        nodes.append(_node("Cast", (shaped,), made.seed, opset, to=int(element)))
    return nodes


def _unscaled(made: Differentiated, nodes: list[Node], scale: float | None, opset: int) -> Differentiated:
    """Every gradient divided by the scale: a number, or what `nodes` invert."""
    initializers, gradients, factors = dict(made.initializers), {}, dict[ElementType, str]()
    if scale is None:
        factors[_FLOAT] = f"{SCALE}/inverse"
    for name, gradient in made.gradients.items():
        element = made.types[name].element
        if element not in factors:
            factors[element] = factor = f"{SCALE}/inverse {element.label}"
            if scale is None:
                nodes.append(_node("Cast", (factors[_FLOAT],), factor, opset, to=int(element)))
            else:
                initializers[factor] = np.array([1 / scale], element.dtype)
        gradients[name] = f"{gradient}/unscaled"
        nodes.append(_node("Mul", (gradient, factors[element]), gradients[name], opset))
    return replace(made, nodes=(*made.nodes, *nodes), gradients=gradients, initializers=initializers)


def _adapting(optimizer: Graph, asked: LossScale) -> Graph:
    """The optimizer model with the change of the scale before everything else."""
    checked = "gradients/finite"
    adapt = Node(
        "AdaptLossScale",
        "minbuild",
        1,
        name="adapt_loss_scale",
        inputs=("gradients", SCALE, GOOD),
        outputs=(checked, f"{SCALE}/new", f"{GOOD}/new"),
        attributes={"growth_interval": asked.growth_interval},
    )
    rest = (
        replace(node, inputs=tuple(checked if n == "gradients" else n for n in node.inputs))
        for node in optimizer.nodes
    )
    states = dict.fromkeys((SCALE, GOOD), TensorType(_FLOAT, (1,)))
    return replace(optimizer, nodes=(adapt, *rest), inputs={**optimizer.inputs, **states})


def _problems(asked: LossScale, graph: Graph, made: Differentiated, optimizer: Graph | None) -> Iterator[str]:
    scale = asked.initial
    told = f"--loss-scale {scale:g}"
    if not isfinite(scale) or frexp(scale)[0] != 0.5 or not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        yield f"{told}: a scale is a power of two from 2^-24 to 2^24, such as 1024, so that it rounds no gradient."
        return
    loss = made.initializers[made.seed].dtype
    if loss == np.float16 and scale > float(np.finfo(np.float16).max):
        yield f"{told}: the loss is computed in float16, whose largest number is 65,504. Take 32768 or less."
    if asked.growth_interval and optimizer is None:
        yield "--loss-scale dynamic: the optimizer model adapts the scale, and there is none. Give a number."
    for name in (SCALE, GOOD) if asked.growth_interval else ():
        if name in graph.initializers or name in graph.inputs or any(name in n.outputs for n in graph.nodes):
            yield f"--loss-scale dynamic: the model has a value '{name}' of its own. Rename it, or give a number."
