"""The purpose of a library's bytes: forward, loss, backward, optimizer, or no phase of training by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minbuild.errors import BadInput
from minbuild.ir import Graph, Plan, Routine, TrainingArtifacts
from minbuild.ir.size_report import KINDS, Phase, Row
from minbuild.passes.rewrite.copy_elision import ASSIGN
from minbuild.planning.inference_export import default_outputs, prune
from minbuild.toolchain.link_check import instantiation

FORWARD, LOSS, BACKWARD, OPTIMIZER = "forward", "loss", "backward", "optimizer"
EVALUATION, INITIALIZATION, UNUSED = "evaluation", "initialization", "not used by the models"
_TRAINING = (FORWARD, LOSS, BACKWARD, OPTIMIZER)
ORDER = (*_TRAINING, EVALUATION, INITIALIZATION, UNUSED)

Phases = frozenset[str]


@dataclass(frozen=True, slots=True)
class Uses:
    """Kernel file and function with types, as the plans of all models name them -> the phases that run it."""

    stems: Mapping[str, Phases]
    symbols: Mapping[str, Phases]

    def of(self, row: Row, names: Iterable[str]) -> Phases:
        """The phases of bytes of an operator's row: of its kernels among `names`, else of all the row's kernels."""
        found = [self.symbols[key] for name in names if (key := instantiation(name)) in self.symbols]
        return frozenset().union(*found) or self.stems.get(row.name, frozenset())


def step_phases(artifacts: TrainingArtifacts, routine: Routine) -> tuple[str, ...]:
    """The phase of every step. A step of a node that no graph has belongs to what comes before it."""
    if routine.name != "train":
        phase = {"optimize": OPTIMIZER, "eval": EVALUATION}.get(routine.name, INITIALIZATION)
        return (phase,) * len(routine.steps)
    known = _nodes(artifacts)
    found: list[str] = []
    for step in routine.steps:
        found.append(known.get(step.node, found[-1] if found else FORWARD))
    return tuple(found)


def _nodes(artifacts: TrainingArtifacts) -> dict[str, str]:
    """Nodes of the training graph: before the values that the loss is computed from, from there to the loss, and the
    rest; the optimizer is the part that updates parameters in a model that carries its own training."""
    graph = artifacts.training
    phases = dict.fromkeys((node.name for node in graph.nodes), BACKWARD)
    phases.update(dict.fromkeys(_updates(graph), OPTIMIZER))
    if graph.outputs and any(graph.outputs[0] in node.outputs for node in graph.nodes):
        phases.update((node.name, LOSS) for node in prune(graph, graph.outputs[:1]).nodes)
    try:
        outputs = default_outputs(graph, [p.name for p in artifacts.checkpoint.parameters])
        phases.update((node.name, FORWARD) for node in prune(graph, outputs).nodes)
    except (
        BadInput
    ):  # the loss cannot be told from what it is taken of; then only its last node is the loss's
        before = [name for name, phase in phases.items() if phase == LOSS]
        phases.update((name, FORWARD) for name in before[:-1])
    return phases


def _updates(graph: Graph) -> Iterator[str]:
    """Nodes from the assignments to variables back to those that read the variable itself."""
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    for node in graph.nodes:
        if node.domain + ":" + node.op_type != ASSIGN:
            continue
        yield node.name
        variable, value = node.inputs[:2]
        maker = makers.get(value)
        while maker is not None:
            yield maker.name
            if variable in maker.inputs:
                break
            made = [name for name in maker.inputs if name in makers]
            maker = makers[made[0]] if len(made) == 1 else None


def uses_of(models: Iterable[tuple[TrainingArtifacts, Plan]]) -> Uses:
    """The kernels by the steps that run them. Evaluation and initialization count only where training does not run it
    too."""
    stems: dict[str, set[str]] = defaultdict(set)
    symbols: dict[str, set[str]] = defaultdict(set)
    for artifacts, plan in models:
        for routine in plan.routines:
            for step, phase in zip(routine.steps, step_phases(artifacts, routine), strict=True):
                kernel = plan.kernels[step.kernel]
                stems[kernel.stem].add(phase)
                symbols[instantiation(kernel.symbol)].add(phase)
    return Uses(*({name: _counted(found) for name, found in each.items()} for each in (stems, symbols)))


def _counted(phases: set[str]) -> Phases:
    training = phases.intersection(_TRAINING)
    return frozenset(training or phases)


def phases_of(rows: Sequence[Row], uses: Uses) -> tuple[Phase, ...]:
    """The bytes of all rows by phase. What several phases share, and every kind of owner that serves all of them, has
    a row of its own."""
    found: dict[tuple[str, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    rest: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        if row.kind == "operator":
            named = 0
            for symbol in row.symbols:
                found[_sorted(uses.of(row, symbol.names))][row.name] += symbol.bytes
                named += symbol.bytes
            found[_sorted(uses.of(row, ()))][row.name] += row.bytes - named
        elif row.kind == "shared" and row.users:
            together = frozenset().union(*(uses.stems.get(stem, frozenset()) for stem in row.users))
            found[_sorted(_counted(set(together)))][row.name] += row.bytes
        else:
            rest[row.kind][row.name] += row.bytes
    order = sorted(found, key=lambda phases: (len(phases), [ORDER.index(p) for p in phases]))
    return (
        *(_phase(_title(phases), phases, found[phases]) for phases in order if sum(found[phases].values())),
        *(_phase(title, (), rest[kind]) for kind, title in KINDS.items() if sum(rest[kind].values())),
    )


def _sorted(phases: Phases) -> tuple[str, ...]:
    return tuple(sorted(phases, key=ORDER.index)) or (UNUSED,)


def _title(phases: tuple[str, ...]) -> str:
    if len(phases) == 1:
        return phases[0].capitalize()
    return f"Shared by {', '.join(phases[:-1])} and {phases[-1]}"


def _phase(title: str, phases: tuple[str, ...], owners: Mapping[str, int]) -> Phase:
    ranked = sorted((name for name, size in owners.items() if size), key=lambda n: (-owners[n], n))
    return Phase(title, phases, sum(owners.values()), tuple(ranked))
