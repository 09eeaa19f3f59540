"""Bundle -> Program: the graphs over known operators, and the parameters, states and sizes they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from minbuild.errors import Unsupported
from minbuild.ir import (
    GRADIENT_SUFFIX,
    RESET_INPUT,
    Checkpoint,
    ElementType,
    Graph,
    Procedure,
    Program,
    Role,
    TensorType,
    TrainingArtifacts,
    Value,
    fingerprint_of,
)
from minbuild.ir.dims import Dim, product, substitute, symbol, symbols_in
from minbuild.ops import Registry
from minbuild.passes.analysis.aliases import root
from minbuild.passes.lowering.loop_call import bodies
from minbuild.passes.lowering.program_builder import Lowering
from minbuild.passes.lowering.symbol_unification import SymbolUnification, labelled_pairs

ELSEWHERE = 0xFFFF  # index of a parameter that the training graph does not take
_SEQUENCES = ("params", "gradients", "first_order_moments", "second_order_moments")


def lower(artifacts: TrainingArtifacts, registry: Registry, fixed: Mapping[str, Dim]) -> Program:
    """The graphs of `artifacts` over the operators of `registry`. `fixed` gives free dimensions a size; others get the
    one that weights, constants and reshapes imply.

    Raises Unsupported with every node that has no operator, type or known shape.
    """
    findings: list[str] = []
    sizes = SymbolUnification(dict(fixed))
    parameters = _parameters(artifacts.checkpoint, artifacts.training)
    forward = [(artifacts.training, "train")]
    if artifacts.evaluation is not None:
        forward.append((artifacts.evaluation, "eval"))
    while True:
        procedures = [
            _lower(graph, name, parameters=parameters, registry=registry, sizes=sizes, findings=findings)
            for graph, name in forward
        ]
        if not findings:
            sizes.pairs += [pair for p in procedures for pair in labelled_pairs(p)]
        if not sizes.solve():
            break
        findings.clear()
    moments, idle = 0, False
    if artifacts.optimizer is not None:
        moments = sum(name in artifacts.optimizer.sequences for name in _SEQUENCES[2:])
        procedures.append(_lower_optimizer(artifacts.optimizer, parameters, registry, findings))
        idle = moments > 0 and not _uses_moments(procedures[-1])
    if artifacts.initialization is not None:
        graph = artifacts.initialization
        procedures.append(
            _lower(
                graph, "initialize", parameters=parameters, registry=registry, sizes=sizes, findings=findings
            )
        )
    if findings:
        raise Unsupported(findings)
    return Program(
        tuple(procedures),
        _with_state_roles(parameters, procedures),
        moments,
        _symbols(procedures),
        fingerprint_of(artifacts),
        has_bodies=any(True for p in procedures for _ in bodies(p)),
        idle_moments=idle,
    )


def _uses_moments(procedure: Procedure) -> bool:
    """False for SGD, whose checkpoints carry a moment only because ONNX Runtime refuses those without."""
    used = (name for call in procedure.calls for name in (*call.inputs, *call.outputs) if name)
    return any(procedure.values[root(procedure.alias, name)].role is Role.MOMENT for name in used)


def _parameters(checkpoint: Checkpoint, training: Graph) -> dict[str, Value]:
    """Every checkpoint tensor, trained ones first. The `index` of one is its place among the training graph's inputs
    that are parameters, ELSEWHERE if it is none of them. What a nominal checkpoint names has no bytes to be read from:
    those of a frozen parameter persist like state."""
    ordered = sorted(checkpoint.parameters, key=lambda p: not p.trainable)
    names = {p.name for p in ordered}
    order = {name: i for i, name in enumerate(n for n in training.inputs if n in names)}
    roles = {True: Role.PARAMETER, False: Role.BUFFER if checkpoint.nominal else Role.FROZEN}
    return {
        p.name: Value(
            p.name, TensorType(p.element, p.shape), roles[p.trainable], index=order.get(p.name, ELSEWHERE)
        )
        for p in ordered
    }


def _with_state_roles(parameters: Mapping[str, Value], procedures: list[Procedure]) -> tuple[Value, ...]:
    """Frozen parameters that some call writes are STATE. Training-graph order within each role."""
    written = {v.name for p in procedures for v in p.values.values() if v.role is Role.BUFFER}
    used = {v.name for p in procedures for v in p.values.values()}
    values = [replace(v, role=Role.BUFFER) if v.name in written else v for v in parameters.values()]
    kept = [v for v in values if v.role is Role.PARAMETER or v.name in used]
    order = {Role.PARAMETER: 0, Role.BUFFER: 1, Role.FROZEN: 2}
    return tuple(sorted(kept, key=lambda v: order[v.role]))


def _symbols(procedures: list[Procedure]) -> tuple[str, ...]:
    """Free dimensions of all user inputs, in order of first appearance."""
    found: dict[str, None] = {}
    for procedure in procedures:
        for name in procedure.inputs:
            for dim in procedure.values[name].type.shape or ():
                found.update(dict.fromkeys(sorted(symbols_in(dim))))
    return tuple(found)


def _lower(
    graph: Graph,
    name: str,
    parameters: Mapping[str, Value],
    registry: Registry,
    sizes: SymbolUnification,
    findings: list[str],
) -> Procedure:
    lowering, fixed = Lowering(graph, registry, findings, sizes), sizes.sizes
    inputs: list[str] = []
    given = {d for tensor in graph.inputs.values() for d in tensor.shape or ()}
    known = {name for d in given for name in symbols_in(d) if d == symbol(name) and name not in fixed}
    for input_name, tensor in graph.inputs.items():
        if input_name == RESET_INPUT:
            continue
        if input_name in parameters:
            lowering.values[input_name] = parameters[input_name]
        elif input_name.endswith(GRADIENT_SUFFIX):
            of = input_name[: -len(GRADIENT_SUFFIX)]
            lowering.values[input_name] = Value(input_name, parameters[of].type, Role.GRADIENT, of=of)
        else:
            shape = tuple(substitute(d, fixed) for d in tensor.shape or ())
            findings.extend(_unreadable(graph.source, input_name, shape, known))
            tensor = TensorType(tensor.element, shape)
            lowering.values[input_name] = Value(input_name, tensor, Role.INPUT, index=len(inputs))
            inputs.append(input_name)
    lowering.values[RESET_INPUT] = Value(RESET_INPUT, TensorType(ElementType.BOOL, (1,)))
    for constant_name, array in graph.initializers.items():
        lowering.add_constant(constant_name, np.asarray(array))
    for node in graph.nodes:
        lowering.node(node)
    lowering.made.clear()  # contexts refer to it, which would keep them all for as long as the collector rests
    flags = {call.outputs[0] for call in lowering.calls if call.op == "com.microsoft:InPlaceAccumulatorV2"}
    outputs = tuple(o for o in graph.outputs if o not in flags)
    calls = tuple(lowering.calls)
    return Procedure(
        name,
        source=graph.source,
        calls=calls,
        values=lowering.values,
        inputs=tuple(inputs),
        outputs=outputs,
        alias=lowering.alias,
    )


def _unreadable(source: str, name: str, shape: Sequence[Dim], known: Set[str]) -> Iterator[str]:
    """Findings about dimensions that depend on free ones that no input has by themselves: those in `told`."""
    for axis, dim in enumerate(shape):
        if not symbols_in(dim) <= known:
            yield (
                f"{source}: input '{name}': dimension {axis} is {dim}. Only a number or the name of one free "
                "dimension can be an input's size. Give it a name of its own."
            )


def _lower_optimizer(
    graph: Graph, parameters: Mapping[str, Value], registry: Registry, findings: list[str]
) -> Procedure:
    """The optimizer works on all trained parameters as one flat tensor, and so on their gradients and moments."""
    trained = [v for v in parameters.values() if v.role is Role.PARAMETER]
    elements = {v.type.element for v in trained} or {ElementType.FLOAT}
    if len(elements) > 1:
        findings.append(
            f"{graph.source}: trained parameters of several types ({', '.join(sorted(e.label for e in elements))}) "
            "cannot share one optimizer. Convert them to one type."
        )
    element = next(iter(elements))
    # Whole vectors of 32 bytes, for which the region has room: optimizers need no loop over a rest.
    count, lanes = sum((product(v.type.shape or ()) for v in trained), 0), 32 // element.size
    assert isinstance(count, int), "a parameter's shape is known"
    flat = TensorType(element, (-(-count // lanes) * lanes,))
    lowering = Lowering(graph, registry, findings)
    roles = (Role.PARAMETER, Role.GRADIENT, Role.MOMENT, Role.MOMENT)
    for i, (name, role) in enumerate(zip(_SEQUENCES, roles, strict=True)):
        if name in graph.sequences:
            lowering.values[name] = Value(name, flat, role, index=max(0, i - 2))
    scalars = {"learning_rate": ElementType.FLOAT, "step": ElementType.INT64}
    for i, (name, element) in enumerate(scalars.items()):
        if name in graph.inputs:
            lowering.values[name] = Value(name, TensorType(element, (1,)), Role.SCALAR, index=i)
    lowering.values |= {name: parameters[name] for name in graph.inputs if name in parameters}  # loss scale
    for name, array in graph.initializers.items():
        lowering.add_constant(name, np.asarray(array))
    for node in graph.nodes:
        lowering.node(node)
    return Procedure(
        "optimize",
        source=graph.source,
        calls=tuple(lowering.calls),
        values=lowering.values,
        inputs=(),
        outputs=(),
        alias=lowering.alias,
    )
