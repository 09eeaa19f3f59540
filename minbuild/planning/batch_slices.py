"""Slices of a batch: the graph that computes one slice, and the sizes of slices that a budget of RAM may choose from.

The loss of a batch must be the mean or the sum of the losses of its slices. A mean over labels that have weights, or
some of them ignored, is made one: each slice adds up the losses of its labels, and multiplies by what the labels
of the whole batch say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import (
    Call,
    ElementType,
    Graph,
    Node,
    Procedure,
    Program,
    Role,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ir.dims import Dim, Poly, symbol, symbols_in
from minbuild.ops import Registry
from minbuild.passes.analysis.effects import Effects
from minbuild.passes.lowering.lower import lower
from minbuild.passes.rewrite.micro_batches import MEAN, ROWS, SAME, SUM, IndexRange, LabelShare, MicroBatches
from minbuild.planning.batch_independence import SAMPLES, ForwardPass, same_gradients
from minbuild.planning.rollback import is_checked, may_be_refused
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, smallest_sizes

_ACCUMULATOR = "com.microsoft:InPlaceAccumulatorV2"
# Losses over labels: the inputs that are labels, weights of classes and the ignored label; gradients have one more.
_LOSSES: Mapping[str, tuple[int, int, int]] = {
    "SoftmaxCrossEntropyLoss": (1, 2, -1),
    "com.microsoft:SoftmaxCrossEntropyLossInternal": (1, 2, 3),
    "NegativeLogLikelihoodLoss": (1, 2, -1),
    "com.microsoft:SoftmaxCrossEntropyLossGrad": (2, 3, -1),
    "com.microsoft:SoftmaxCrossEntropyLossInternalGrad": (2, 3, 4),
    "minbuild:NegativeLogLikelihoodLossGrad": (2, 3, -1),
}
_GRADIENTS = "Grad"


@dataclass(frozen=True, slots=True)
class SlicedStep:
    """A program some of whose procedures compute `size` samples, and their way to the whole batch, by name."""

    size: int
    program: Program  # as lowered
    micro: Mapping[str, MicroBatches]

    def looped(self, program: Program) -> Program:
        """`program`, whose calls are final but for loops, with loops over all slices."""
        procedures = (self.micro[p.name].looped(p) if p.name in self.micro else p for p in program.procedures)
        return replace(program, procedures=tuple(procedures))


@dataclass(frozen=True, slots=True)
class SlicedGraph:
    """The graph of a slice; `outputs` and `shares` are as in `MicroBatches`."""

    graph: Graph
    outputs: tuple[str, ...]
    shares: tuple[LabelShare, ...]

    @property
    def seed(self) -> str:
        """The initial gradient, that of the loss; no graph without gradients has it."""
        name = f"{self.graph.outputs[0]}_grad"
        return name if name in self.graph.initializers and self.outputs[0] == MEAN else ""

    def of(self, rounds: Dim) -> Graph:
        """The graph for `rounds` slices: the initial gradient is 1 divided by them."""
        graph = _with_inputs(self.graph, {s.name: np.zeros((), np.float32) for s in self.shares})
        if not self.seed:
            return graph
        first = graph.initializers[self.seed]
        if not isinstance(rounds, int):
            return _with_inputs(graph, {self.seed: first})
        return replace(
            graph, initializers={**graph.initializers, self.seed: first / first.dtype.type(rounds)}
        )


@dataclass(frozen=True, slots=True)
class BatchSlices:
    """The training step of `artifacts`, lowered as `program`, in slices. `batch` names the dimension that counts
    samples, `count` is its size, `fixed` are those of all dimensions that have one; `free` is the program with a free
    number of samples."""

    artifacts: TrainingArtifacts
    program: Program
    registry: Registry
    fixed: Mapping[str, int]
    batch: str
    count: Dim
    free: Program
    train: SlicedGraph

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples that a slice may have, the most first: of a free number of samples, slices have one each."""
        if not isinstance(self.count, int):
            return (1,)
        return tuple(n for n in range(self.count // 2, 0, -1) if self.count % n == 0)

    def step(self, size: int, evaluation: SlicedGraph | None = None) -> SlicedStep:
        """The training step with slices of `size` samples, and that of `evaluation` if given. Raises Unsupported."""
        rounds = self.count // size if isinstance(self.count, int) else self.count
        artifacts = replace(self.artifacts, training=self.train.of(rounds))
        sliced = {"train": self.train}
        if evaluation is not None:
            artifacts, sliced = (
                replace(artifacts, evaluation=evaluation.of(rounds)),
                {**sliced, "eval": evaluation},
            )
        lowered = lower(artifacts, self.registry, {**self.fixed, self.batch: size})
        own = {p.name: p for p in lowered.procedures if p.name in sliced}
        micro = {
            p.name: _micro_batches(p, own[p.name], sliced[p.name], rounds, self.registry)
            for p in self.program.procedures
            if p.name in sliced
        }
        procedures = tuple(own.get(p.name, p) for p in self.program.procedures)
        return SlicedStep(size, replace(self.program, procedures=procedures), micro)

    @property
    def evaluation(self) -> SlicedGraph | None:
        """The evaluation graph in slices; None where there is none, or samples depend on each other in it."""
        graph = self.artifacts.evaluation
        if graph is None or all(p.name != "eval" for p in self.program.procedures):
            return None
        try:
            return _sliced_graph(self.artifacts, graph, "eval", self.free, self.registry, batch=self.batch)
        except Unsupported:
            return None


def _micro_batches(
    whole: Procedure, one: Procedure, sliced: SlicedGraph, rounds: Dim, registry: Registry
) -> MicroBatches:
    for name in whole.inputs:
        _check_rows(whole, one, name, rounds)
    return MicroBatches(
        whole,
        rounds=rounds,
        outputs=sliced.outputs,
        seed="" if isinstance(rounds, int) else sliced.seed,
        shares=tuple(replace(s, classes=_classes(one, s)) for s in sliced.shares),
        ranges=tuple(_ranges(one, registry)),
    )


def batch_slices(
    artifacts: TrainingArtifacts, program: Program, registry: Registry, fixed: Mapping[str, int]
) -> BatchSlices:
    """The slices of the training step of `artifacts`, lowered as `program` with the operators of `registry` and the
    sizes that are `fixed`. Raises Unsupported where samples depend on each other, naming the operator."""
    graph = artifacts.training
    batch = _batch_of(artifacts)
    free = lower(artifacts, registry, {name: size for name, size in fixed.items() if name != batch})
    if not any(node.title == _ACCUMULATOR for node in graph.nodes):
        raise Unsupported(["the training graph updates parameters itself, and slices would see updated ones"])
    seed = f"{graph.outputs[0]}_grad"
    if seed not in graph.initializers or not np.all(graph.initializers[seed] == 1):
        raise Unsupported([f"{graph.source}: it has no initial gradient '{seed}' of 1"])
    train = _sliced_graph(artifacts, graph, "train", free, registry, batch=batch)
    count = fixed.get(batch, symbol(batch))
    return BatchSlices(
        artifacts,
        program=program,
        registry=registry,
        fixed=fixed,
        batch=batch,
        count=count,
        free=free,
        train=train,
    )


def _sliced_graph(
    artifacts: TrainingArtifacts, graph: Graph, name: str, free: Program, registry: Registry, batch: str
) -> SlicedGraph:
    """The graph of a slice for `graph`, which is procedure `name` of the program `free`. Raises Unsupported."""
    whole = next(p for p in free.procedures if p.name == name)
    sliced, shares = _with_shares(graph, whole.inputs)
    trainer = _trainer(artifacts, registry)
    return SlicedGraph(
        sliced,
        _checked(trainer, (graph, sliced), shares, whole, free, registry=registry, batch=batch),
        shares,
    )


def _trainer(artifacts: TrainingArtifacts, registry: Registry) -> ReferenceTrainer:
    try:
        return ReferenceTrainer(artifacts, registry)
    except BadInput as error:
        raise Unsupported([str(error)]) from error


def _batch_of(artifacts: TrainingArtifacts) -> str:
    """The dimension that counts samples: the first one of the first input."""
    names = {p.name for p in artifacts.checkpoint.parameters}
    inputs = [t for n, t in artifacts.training.inputs.items() if n not in names and t.shape]
    first = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    if isinstance(first, Poly) and len(symbols_in(first)) == 1:
        (name,) = symbols_in(first)
        if first == symbol(name):
            return name
    raise Unsupported(
        [f"{artifacts.training.source}: its first input has a fixed number of samples, {first}"]
    )


def _check_rows(whole: Procedure, one: Procedure, name: str, rounds: Dim) -> None:
    """Raises Unsupported unless slices of an input lie one behind the other."""
    all_of, part = whole.values[name].type.shape or (), one.values[name].type.shape or ()
    if all_of == part:
        return
    if all_of[1:] != part[1:] or part[0] * rounds != all_of[0]:
        shape = ", ".join(map(str, all_of))
        raise Unsupported([f"{whole.source}: samples of input '{name}' [{shape}] do not follow each other"])


# ------------------------------------------------------------------------------------------------ labels of the batch


def _with_shares(graph: Graph, inputs: Iterable[str]) -> tuple[Graph, tuple[LabelShare, ...]]:
    """The graph with sums in the place of means over weighted or ignored labels, which are multiplied by inputs."""
    shares: dict[tuple[str, str, int | None], LabelShare] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        places = _LOSSES.get(node.title)
        key = _weighted(graph, node, places) if places else None
        if key is None:
            nodes.append(node)
            continue
        if key[0] not in inputs:
            raise Unsupported([f"node '{node.name}' ({node.title}) has labels that are no input, '{key[0]}'"])
        share = shares.setdefault(key, LabelShare(f"{key[0]}: share {len(shares)}", *key[:2], 0, key[2]))
        nodes += _summed(node, share.name)
    return replace(graph, nodes=tuple(nodes)), tuple(shares.values())


def _weighted(graph: Graph, node: Node, places: tuple[int, int, int]) -> tuple[str, str, int | None] | None:
    """Labels, weights and the ignored label of a loss that divides by what depends on labels; None for others."""
    given = {i: name for i, name in enumerate(node.inputs) if name}
    ignored = node.attributes.get("ignore_index")
    if places[2] in given:
        content = _constants(graph).get(given[places[2]])
        if content is None:
            raise Unsupported([f"node '{node.name}' ({node.title}) has an ignored label that is computed"])
        ignored = int(content.item())
    weights = given.get(places[1], "")
    if weights and weights not in _constants(graph) and weights not in graph.inputs:
        raise Unsupported([f"node '{node.name}' ({node.title}) has weights of classes that are computed"])
    if node.attributes.get("reduction", "mean") != "mean" or (ignored is None and not weights):
        return None
    return given[places[0]], weights, None if ignored is None else int(ignored)


def _constants(graph: Graph) -> dict[str, np.ndarray]:
    """The values of a graph that are given as numbers."""
    nodes = {
        n.outputs[0]: np.asarray(n.attributes["value"])
        for n in graph.nodes
        if n.op_type == "Constant" and "value" in n.attributes
    }
    return {**graph.initializers, **nodes}


def _summed(node: Node, share: str) -> Iterator[Node]:
    """A loss, or its gradient, that adds up, with its multiplication by `share`."""
    added = replace(node, attributes={**node.attributes, "reduction": "sum"})
    scaled = Node("Mul", "", 14, f"{node.name} share", inputs=(), outputs=())
    if node.op_type.endswith(_GRADIENTS):
        dy = f"{node.outputs[0]} (scaled)"
        yield replace(scaled, inputs=(node.inputs[0], share), outputs=(dy,))
        yield replace(added, inputs=(dy, *node.inputs[1:]))
    else:
        loss = f"{node.outputs[0]} (sum)"
        yield replace(added, outputs=(loss, *node.outputs[1:]))
        yield replace(scaled, inputs=(loss, share), outputs=(node.outputs[0],))


def _with_inputs(graph: Graph, added: Mapping[str, np.ndarray]) -> Graph:
    """The graph with further inputs, of the types and shapes of these arrays, that are no initializers."""
    types = {n: TensorType(ElementType.of(a.dtype) or ElementType.FLOAT, a.shape) for n, a in added.items()}
    kept = {n: a for n, a in graph.initializers.items() if n not in added}
    return replace(graph, inputs={**graph.inputs, **types}, initializers=kept)


def _classes(train: Procedure, share: LabelShare) -> int:
    """The number of classes of the loss that a share belongs to."""
    for call in train.calls:
        places = _LOSSES.get(call.op.lstrip(":"))
        if places and share.labels in call.inputs:
            shape = train.values[call.inputs[places[0] - 1]].type.shape or ()
            if len(shape) > 1 and isinstance(shape[1], int):
                return shape[1]
    raise Unsupported([f"{train.source}: the number of classes of '{share.labels}' is not known"])


def _ranges(train: Procedure, registry: Registry) -> Iterator[IndexRange]:
    """The indices of the user that kernels of a slice may refuse. Raises Unsupported for a kernel that may refuse what
    cannot be checked for the whole batch beforehand."""
    effects, done = Effects(train, registry), set[str]()
    for call in train.calls:
        kernels = registry.ops[call.op].kernels
        if not any(is_checked(arg) for k in kernels for arg in k.args):
            continue
        made = {effects.owner(n) for n in call.outputs if n}
        for i, name in enumerate(call.inputs):
            owner = effects.owner(name) if name else ""
            value = train.values[owner] if owner else None
            if value is None or value.type.element.is_real or not may_be_refused(value) or owner in done:
                continue
            limit = _limit(call, i, train)
            if value.role is not Role.INPUT or limit is None:
                raise Unsupported(
                    [
                        f"node '{call.node}' ({call.op.lstrip(':')}) may refuse values that are computed for a slice"
                    ]
                )
            done.add(owner)
            yield replace(limit, name=owner)
        done |= made


def _limit(call: Call, index: int, train: Procedure) -> IndexRange | None:
    """The numbers that input number `index` of a call may have."""
    places, title = _LOSSES.get(call.op.lstrip(":")), call.op.lstrip(":")
    if places and places[0] == index:
        classes = (train.values[call.inputs[index - 1]].type.shape or (0, 0))[1]
        ignored = call.attributes.get("ignore_index")
        return IndexRange("", 0, classes, ignored) if isinstance(classes, int) else None
    if title == "Gather" and index == 1:
        shape = train.values[call.inputs[0]].type.shape or ()
        size = shape[int(call.attributes.get("axis", 0))]
        return IndexRange("", -size, size) if isinstance(size, int) else None
    return None


# ------------------------------------------------------------------------------------------------ proof by numbers


def _checked(
    trainer: ReferenceTrainer,
    graphs: tuple[Graph, Graph],
    shares: tuple[LabelShare, ...],
    whole: Procedure,
    free: Program,
    registry: Registry,
    batch: str,
) -> tuple[str, ...]:
    """The way in which slices make each output of the procedure `whole`, in double precision on a small batch, whose
    gradients must be the sum of those of slices. `graphs` are those of the batch and of a slice. Raises Unsupported."""
    sizes = {s: smallest_sizes(free) for s in free.symbols} | {batch: SAMPLES}
    arrays = seeded_batch(
        inputs_of(replace(free, procedures=(whole,))), index_limits(free, registry), sizes, seed=1
    )
    for share in shares:
        if share.ignored is not None:
            arrays[share.labels].flat[0] = share.ignored
    kinds, parts = {}, []
    for name in whole.inputs:
        sampled = _is_sampled(whole, name, batch, f"input '{name}'")
        kinds[name] = ROWS if sampled else SAME
        parts.append(np.split(arrays[name], SAMPLES) if sampled else [arrays[name]] * SAMPLES)
    given, slices = [arrays[n] for n in whole.inputs], [list(each) for each in zip(*parts, strict=True)]
    forward = _forward(graphs[0], whole.outputs)
    weighted = frozenset(n.outputs[0] for n in forward.nodes if _is_weighted(forward, n))
    try:
        found = ForwardPass(forward, trainer, weighted).kinds(kinds, given, slices)
        outputs = tuple(found.get(n, SAME) for n in whole.outputs)
        for name, kind in zip(whole.outputs, outputs, strict=True):
            if kind == ROWS:
                _is_sampled(whole, name, batch, f"output '{name}'")
            elif kind not in (MEAN, SUM, SAME):
                raise Unsupported([f"output '{name}' counts samples"])
        if whole.name == "train":
            if outputs[0] not in (MEAN, SUM):
                raise Unsupported([f"the loss, '{whole.outputs[0]}', is no mean or sum over samples"])
            _check_gradients(trainer, graphs[1], shares, outputs[0], (whole.inputs, given, slices))
    except BadInput as error:
        raise Unsupported([str(error)]) from error
    return outputs


def _is_sampled(procedure: Procedure, name: str, batch: str, what: str) -> bool:
    """True if the rows of a value count samples. Raises Unsupported where another axis does, naming `what`."""
    shape = procedure.values[name].type.shape or ()
    if any(batch in symbols_in(d) for d in shape[1:]):
        raise Unsupported([f"samples of {what} do not follow each other"])
    return bool(shape) and batch in symbols_in(shape[0])


def _check_gradients(
    trainer: ReferenceTrainer,
    sliced: Graph,
    shares: tuple[LabelShare, ...],
    kind: str,
    data: tuple[tuple[str, ...], list[np.ndarray], list[list[np.ndarray]]],
) -> None:
    """Raises Unsupported where the gradients of a batch are not the sum of those of its slices."""
    names, whole, slices = data
    trainer.lazy_reset_grad()
    trainer.train_step(*whole)
    expected = dict(trainer.gradients)
    seed = f"{sliced.outputs[0]}_grad"
    first = sliced.initializers[seed].astype(np.float64) / (SAMPLES if kind == MEAN else 1)
    constants = {**sliced.initializers, seed: first}
    for share in shares:
        constants[share.name] = np.asarray(
            _share(share, trainer, dict(zip(names, whole, strict=True)), sliced)
        )
    graph, found = replace(sliced, initializers=constants), []
    for each in slices:
        trainer.lazy_reset_grad()
        trainer.values(graph, each)
        found.append(dict(trainer.gradients))
    if name := same_gradients(trainer, expected, found):
        raise Unsupported([f"gradients of '{name}' are not the sum of those of slices"])


def _share(
    share: LabelShare, trainer: ReferenceTrainer, inputs: Mapping[str, np.ndarray], graph: Graph
) -> float:
    labels = inputs[share.labels]
    counted = np.ones(labels.shape, bool) if share.ignored is None else labels != share.ignored
    weights = trainer.parameters.get(share.weights, _constants(graph).get(share.weights))
    of_label = 1.0 if weights is None else weights.astype(np.float64)[np.where(counted, labels, 0)]
    each = np.where(counted, of_label, 0.0)
    return float(SAMPLES / (each.sum() or 1.0))


def _is_weighted(graph: Graph, node: Node) -> bool:
    places = _LOSSES.get(node.title)
    return places is not None and _weighted(graph, node, places) is not None


def _forward(graph: Graph, outputs: Iterable[str]) -> Graph:
    """The nodes that the outputs of the user depend on."""
    needed, kept = set(outputs), []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return replace(graph, nodes=tuple(kept[::-1]), outputs=tuple(outputs))
