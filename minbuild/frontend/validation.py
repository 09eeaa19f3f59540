"""Do the graphs and the checkpoint belong together? Every disagreement is found before one is reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minbuild.frontend.checkpoint import GROUP
from minbuild.ir import GRADIENT_SUFFIX, RESET_INPUT, Checkpoint, Graph, Parameter, TensorType


def with_graph_shapes(checkpoint: Checkpoint, training: Graph) -> Checkpoint:
    """A nominal checkpoint has no shapes: take them from the training graph where it knows them."""
    if not checkpoint.nominal:
        return checkpoint
    return replace(checkpoint, parameters=tuple(_with_shape(p, training) for p in checkpoint.parameters))


def _with_shape(parameter: Parameter, training: Graph) -> Parameter:
    declared = training.inputs.get(parameter.name)
    known = _static(declared)
    return parameter if known is None else replace(parameter, shape=known)


def _static(declared: TensorType | None) -> tuple[int, ...] | None:
    if declared is None or declared.shape is None:
        return None
    shape = tuple(d for d in declared.shape if isinstance(d, int))
    return shape if len(shape) == len(declared.shape) else None


def inconsistencies(
    checkpoint: Checkpoint, name: str, training: Graph, evaluation: Graph | None, optimizer: Graph | None
) -> Iterator[str]:
    """One sentence per disagreement, naming file and parameter. `name` is the checkpoint's file name. `checkpoint`
    has the parameters that `training`, `evaluation` and `optimizer` name."""
    yield from _training(checkpoint, name, training)
    for graph in (training,) if evaluation is None else (training, evaluation):
        yield from _inputs(checkpoint, name, graph)
    if evaluation is not None:
        known = set(training.inputs) | {p.name for p in checkpoint.parameters}
        lost = [n for n in _before_parameters(checkpoint, evaluation) if n not in known]
        yield from (f"{evaluation.source}: input '{n}' is not an input of {training.source}" for n in lost)
    if optimizer is not None:
        if "params" not in optimizer.sequences:
            yield (
                f"{optimizer.source}: no optimizer model, as it takes no sequence 'params' of parameters to update. "
                f"Copy the one that was generated with {training.source}"
            )
        else:
            yield from _moments(checkpoint, name, optimizer)


def _training(checkpoint: Checkpoint, name: str, training: Graph) -> Iterator[str]:
    """Trained parameters, their gradient buffers, and nothing of one without the other."""
    trainable = {p.name for p in checkpoint.parameters if p.trainable}
    frozen = {p.name for p in checkpoint.parameters if not p.trainable}
    buffers = [n.removesuffix(GRADIENT_SUFFIX) for n in training.inputs if n.endswith(GRADIENT_SUFFIX)]
    if not trainable:
        yield f"{name}: no parameter is trainable. Generate the artifacts with requires_grad parameters"
    for p in checkpoint.parameters:
        if p.trainable and p.name not in training.inputs:
            yield f"{name}: trainable parameter '{p.name}' is not an input of {training.source}"
        if p.trainable and p.name + GRADIENT_SUFFIX not in training.inputs:
            yield f"{training.source}: has no gradient buffer '{p.name + GRADIENT_SUFFIX}' for trainable '{p.name}'"
        if checkpoint.nominal and p.name in training.inputs and _static(training.inputs[p.name]) is None:
            yield f"{training.source}: parameter '{p.name}' needs a fixed shape, as {name} is nominal"
    for buffer in buffers:
        if buffer in frozen:
            yield f"{name}: parameter '{buffer}' is frozen, but {training.source} accumulates its gradient"
        elif buffer not in trainable and buffer not in training.inputs:
            yield f"{training.source}: gradient buffer '{buffer + GRADIENT_SUFFIX}' belongs to no parameter"
        declared = training.inputs.get(buffer)
        if declared is not None and _clash(
            training.inputs[buffer + GRADIENT_SUFFIX], declared.element, _static(declared)
        ):
            yield f"{training.source}: gradient buffer '{buffer + GRADIENT_SUFFIX}' has another type than '{buffer}'"
    if buffers and RESET_INPUT not in training.inputs:
        yield f"{training.source}: accumulates gradients, but has no input '{RESET_INPUT}'"


def _inputs(checkpoint: Checkpoint, name: str, graph: Graph) -> Iterator[str]:
    """Parameters among the graph's inputs exist in the checkpoint, with the same type and shape."""
    parameters = {p.name: p for p in checkpoint.parameters}
    outside = set(_before_parameters(checkpoint, graph))
    for input_name, declared in graph.inputs.items():
        found = parameters.get(input_name)
        if found is not None and _clash(declared, found.element, found.shape):
            there = f"{found.element.label}{list(found.shape)}"
            here = f"{declared.element.label}{[str(d) for d in declared.shape or ()]}".replace("'", "")
            yield f"{name}: parameter '{input_name}' is {there}, but {graph.source} wants {here}"
        if (
            found is None
            and input_name not in outside
            and not input_name.endswith(GRADIENT_SUFFIX)
            and input_name != RESET_INPUT
        ):
            yield f"{name}: parameter '{input_name}' of {graph.source} is missing"


def _before_parameters(checkpoint: Checkpoint, graph: Graph) -> list[str]:
    """The user's inputs: generate_artifacts puts them in front of the first parameter. A frozen parameter
    that comes first and is missing in the checkpoint counts as one: nothing in the graph distinguishes it."""
    parameters = {p.name for p in checkpoint.parameters}
    names: list[str] = []
    for name in graph.inputs:
        if (
            name in parameters
            or name + GRADIENT_SUFFIX in graph.inputs
            or name.endswith(GRADIENT_SUFFIX)
            or name == RESET_INPUT
        ):
            break
        names.append(name)
    return names


def _clash(declared: TensorType, element: int, shape: tuple[int, ...] | None) -> bool:
    if declared.element != element:
        return True
    if declared.shape is None or shape is None:
        return False
    return len(declared.shape) != len(shape) or any(
        isinstance(d, int) and d != n for d, n in zip(declared.shape, shape, strict=True)
    )


def _moments(checkpoint: Checkpoint, name: str, optimizer: Graph) -> Iterator[str]:
    """Saved optimizer state covers every trainable parameter with every moment the optimizer graph takes."""
    required = [
        f"momentum{i}" for i in range(max(len(optimizer.sequences) - 2, 0))
    ]  # without params, gradients
    for group in checkpoint.groups:
        if group.name != GROUP:
            continue
        for p in checkpoint.parameters:
            if not p.trainable:
                continue
            moments = group.moments.get(p.name, {})
            for moment in required:
                label = f"{name}: optimizer state '{moment}' of parameter '{p.name}'"
                if moment not in moments:
                    yield f"{label} is missing"
                elif moments[moment].shape != p.shape or moments[moment].dtype != p.element.dtype:
                    there = f"{moments[moment].dtype}{list(moments[moment].shape)}"
                    yield f"{label} is {there}, but the parameter is {p.element.label}{list(p.shape)}"
