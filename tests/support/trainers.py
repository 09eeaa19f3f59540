"""Trainers made of single operators, and the libraries that run them: shared by tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from shared_library import shared_library

from minbuild.codegen.sources import emit_sources
from minbuild.ir import (
    GRADIENT_SUFFIX,
    RESET_INPUT,
    Checkpoint,
    ElementType,
    Graph,
    Node,
    Parameter,
    Plan,
    TensorType,
    TrainingArtifacts,
)
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ops import Registry
from minbuild.ops.core.definition import Op, TestCase
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.plan import build_plan
from minbuild.planning.plan_encoding import encode_plan
from minbuild.training.library import TRAIN, Library, Session, aligned_copy, arena_size

# A trainer trains something: every plan has a parameter.
TRAINED = Parameter("trained", ElementType.FLOAT, (1,), True, None)
GRADIENT_OF = "gradient of "  # parameters that gather the gradients a case makes


def element_of(array: np.ndarray) -> ElementType:
    """The element type of an array; float64 is double."""
    element = ElementType.of(array.dtype)
    assert element is not None, f"no element type is {array.dtype}"
    return element


def at_precision(array: np.ndarray | None, dtype: type[np.floating]) -> np.ndarray | None:
    """Numbers in float64 stand for reals of any precision: they come in `dtype`, everything else as it is."""
    return array.astype(dtype) if array is not None and array.dtype == np.float64 else array


def _exactly(array: np.ndarray | None) -> np.ndarray | None:
    """Real numbers in float64, everything else as it is."""
    return array.astype(np.float64) if array is not None and element_of(array).is_real else array


def _is_empty(array: np.ndarray | None) -> bool:
    return array is not None and array.size == 0


@dataclass(frozen=True)
class OneNode:
    """A training graph of one operator, and what feeds it. `state` are checkpoint tensors by name."""

    artifacts: TrainingArtifacts
    feeds: tuple[np.ndarray, ...]
    state: Mapping[str, np.ndarray]

    @property
    def training(self) -> Graph:
        return self.artifacts.training


def one_node(op: Op, case: TestCase, dtype: type[np.floating] = np.float32) -> OneNode:
    """Inputs are fed, but for constants (initializers) and what the operator updates (checkpoint tensors)."""
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(case.inputs))
    arrays = {n: at_precision(x, dtype) for n, x in zip(names, case.inputs, strict=True) if x is not None}
    # A view of an input that the graph returns does not exist on the device: views are tested as constants. A
    # session takes no empty inputs; empty constants and temporaries do occur.
    constant = {
        names[i] for i, x in enumerate(case.inputs) if op.is_view or i in case.constant or _is_empty(x)
    }
    state = {
        n: x
        for i, (n, x) in enumerate(zip(names, case.inputs, strict=True))
        if i in op.mutates and x is not None
    }
    state = {n: arrays[n] for n in state if n not in constant}
    outputs = tuple("" if i in case.absent else f"y{i}" for i in range(case.outputs))
    node = Node(op.name, op.domain, max(op.since), case.name, names, outputs, case.attributes)
    fed = {n: x for n, x in arrays.items() if n not in constant and n not in state}
    graph = Graph(
        "training_model.onnx",
        (node,),
        {n: TensorType(element_of(x), x.shape) for n, x in (fed | state).items()},
        {},
        tuple(n for n in outputs if n),
        {n: x for n, x in arrays.items() if n in constant},
    )
    parameters = tuple(Parameter(n, element_of(x), x.shape, False, x) for n, x in state.items())
    return OneNode(
        TrainingArtifacts(graph, None, None, Checkpoint((TRAINED, *parameters)), {}),
        tuple(fed.values()),
        state,
    )


def with_gradients(one: OneNode, shapes: Mapping[str, tuple[int, ...]], element: ElementType) -> OneNode:
    """The same graph with these outputs accumulated as gradients of parameters made for the purpose."""
    graph = one.training
    parameters = [Parameter(GRADIENT_OF + n, element, shape, True, None) for n, shape in shapes.items()]
    inputs = dict(graph.inputs)
    nodes = list(graph.nodes)
    for output, parameter in zip(shapes, parameters, strict=True):
        buffer = parameter.name + GRADIENT_SUFFIX
        inputs |= {n: TensorType(element, parameter.shape) for n in (parameter.name, buffer)}
        names = (buffer, output, RESET_INPUT)
        nodes.append(
            Node(
                "InPlaceAccumulatorV2", "com.microsoft", 1, f"gather {output}", names, (f"{output} done",), {}
            )
        )
    outputs = tuple(n for n in graph.outputs if n not in shapes)
    new = Graph(graph.source, tuple(nodes), inputs, {}, outputs, graph.initializers)
    checkpoint = Checkpoint((*parameters, *one.artifacts.checkpoint.parameters))
    return OneNode(TrainingArtifacts(new, None, None, checkpoint, {}), one.feeds, one.state)


def plan_of(artifacts: TrainingArtifacts, registry: Registry, kernels: KernelChoice = EVERY_KERNEL) -> Plan:
    """All passes and the plan."""
    return build_plan(optimize(lower(artifacts, registry, {}), registry), registry, kernels=kernels)


def contents_of(plans: Iterable[Plan]) -> LibraryContents:
    """What a trimmed library needs to run these plans."""
    plans = tuple(plans)
    kernels = {k for p in plans for k in p.kernels}
    features = frozenset(f for p in plans for f in p.features)
    ordered = tuple(sorted(kernels, key=lambda k: (k.stem, k.function, k.types)))
    return LibraryContents(ordered, features, any(p.symbols for p in plans))


def everything_of(stems: Iterable[str], registry: Registry) -> LibraryContents:
    """Every kernel for every type with every feature, of these stems."""
    chosen = set(stems)
    kernels = tuple(k for k in registry.all_kernels() if k.stem in chosen)
    features = frozenset(f for f in registry.all_features() if f.split(".")[0] in chosen)
    return LibraryContents(kernels, features, symbols=True)


def library_of(contents: LibraryContents, registry: Registry, folder: Path) -> Library:
    """Compiled for this machine (or found in the toolchain's cache), and loaded."""
    shared = shared_library(emit_sources(contents, registry))
    path = folder / f"{hashlib.sha256(shared).hexdigest()[:16]}.so"
    path.write_bytes(shared)
    return Library(path)


GUARD = 64  # bytes behind the memory of a session


def session_of(library: Library, plan: Plan, state: Mapping[str, np.ndarray]) -> Session:
    """A session in memory full of NaN, so that nothing can rely on what it finds there."""
    data = encode_plan(plan, dict.fromkeys(plan.symbols, 32))
    size = arena_size(library, data)
    memory = aligned_copy(b"\xff" * (size + GUARD))
    session = Session(library, data, None, arena=memory[:size])
    session.guard = memory[size:]
    for name, array in state.items():
        session.parameter(name)[...] = array
    return session


def run(library: Library, plan: Plan, one: OneNode) -> dict[str, np.ndarray]:
    """One train step: outputs by name, then updated checkpoint tensors."""
    session = session_of(library, plan, one.state)
    results = dict(zip(session.names(TRAIN, True), session.run(TRAIN, one.feeds), strict=True))
    assert (session.guard == 0xFF).all(), "a kernel wrote behind the memory of its session"
    return results | {name: session.parameter(name).copy() for name in one.state}


def expected(op: Op, case: TestCase, dtype: type[np.floating] = np.float32) -> dict[str, np.ndarray]:
    """What `run` must give, computed in float64 from the inputs as rounded to `dtype`. A reference returns
    the outputs and then the updated inputs that are no output of the node."""
    assert op.reference is not None
    given = [_exactly(at_precision(x, dtype)) for x in case.inputs]
    answer = op.reference(case.attributes, *given)
    answers: Sequence[np.ndarray] = answer if isinstance(answer, tuple) else (answer,)
    silent = [i for i, output in op.mutates.items() if output is None]
    outputs = answers[: len(answers) - len(silent)] if silent else answers
    named = {f"y{i}": np.asarray(y) for i, y in enumerate(outputs[: case.outputs]) if i not in case.absent}
    return named | {f"x{i}": np.asarray(y) for i, y in zip(silent, answers[len(outputs) :], strict=True)}


def disagreement(
    found: np.ndarray, wanted: np.ndarray, ulps: float, between: type[np.floating] = np.float64
) -> str:
    """What is wrong with an array, or nothing. Numbers that are not finite must be the same ones. `between` is the
    precision of what was computed on the way, where that is less than the result's."""
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)}, expected {list(wanted.shape)}"
    if not element_of(found).is_real:
        wrong = np.count_nonzero(found != wanted)
        return f"{wrong} of {found.size} elements differ" if wrong else ""
    with np.errstate(over="ignore"):
        rounded = wanted.astype(found.dtype).astype(np.float64)
    numbers = max((ml_dtypes.finfo(t) for t in (found.dtype, between)), key=lambda n: float(n.eps))
    unit = float(numbers.eps) / 2
    found, wanted, finite = found.astype(np.float64), wanted.astype(np.float64), np.isfinite(rounded)
    if not np.array_equal(found[~finite], rounded[~finite], equal_nan=True):
        return "differs where the result is infinite or no number"
    largest = np.abs(wanted[finite]).max(initial=0)
    error = np.abs(found[finite] - wanted[finite])
    # Rounding the exact result costs half a unit. A double reference has errors of its own; halves are rounded from
    # floats, and once more where an operator is made of others.
    factor, rounding = {16: (1, 1.5), 32: (1, 0.5), 64: (4, 0.5)}[numbers.bits]
    allowed = (ulps * factor + rounding) * unit * max(largest, float(numbers.smallest_normal))
    if np.all(error <= allowed):
        return ""
    return f"worst error {np.nanmax(error) / (unit * largest):.1f} units of {largest:g}, allowed {ulps:g}"
