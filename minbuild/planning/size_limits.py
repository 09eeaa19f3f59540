"""Limits of sizes: what a device counts in 32 and in 64 bits, checked before anything is built.

Kernels count the elements of a tensor in 32 bits on every target. The bytes of a session are counted in 32 bits where
2 GB suffice, and so are those of its checkpoint; plans for more are wide (`plan_encoding`). A target with 32-bit
addresses has no room for such a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from minbuild.errors import BadInput
from minbuild.ir import Plan, Procedure, Program, Shape, TrainingArtifacts
from minbuild.ir.dims import evaluate, product
from minbuild.planning.arena.peak_memory import arena_peak
from minbuild.planning.plan import FROZEN
from minbuild.planning.plan_encoding import MOST_PERSISTENT

MOST_ELEMENTS = 2**31 - 2  # of a tensor: kernels count in 32 bits
MOST_ARENA = 0x7FFFFFEF  # bytes of temporaries that a narrow plan counts
MOST_CONSTANTS = 0x7F000000  # bytes of a plan's constants, which stand in a flatbuffer
MOST_SAVED = 0x7F000000  # bytes of parameters and optimizer state that a device saves in a checkpoint
_SHOWN = 5  # tensors in a message


def check_elements(program: Program, largest: Mapping[str, int], fixed: Mapping[str, int]) -> None:
    """Raises BadInput naming tensors with more elements than kernels count, at the sizes `largest` of the free
    dimensions; `fixed` are those that the user fixed. `program` is lowered."""
    found = sorted(
        (entry for p in program.procedures for entry in _too_large(p, largest)), key=lambda e: -e[0]
    )
    if not found:
        return
    at = ", ".join(f"{symbol} {size}" for symbol, size in largest.items())
    lines = [
        f"{source}: tensor '{name}' ({', '.join(map(str, shape))}) has {size:,} elements{f' at {at}' if at else ''}"
        for size, source, name, shape in found[:_SHOWN]
    ]
    lines += [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    lines.append(
        f"Kernels count up to {MOST_ELEMENTS:,} elements of a tensor. {_cure(found, largest, fixed)}"
    )
    raise BadInput("\n".join(lines))


def check_constants(artifacts: TrainingArtifacts) -> None:
    """Raises BadInput for graphs whose constants do not fit into a plan."""
    for graph in artifacts.graphs:
        size = sum(array.nbytes for array in graph.initializers.values())
        if size > MOST_CONSTANTS:
            raise _too_many_constants(graph.source, size)


def check_plan_constants(plan: Plan) -> None:
    """Raises BadInput for constants that no `plan` holds: those of all graphs, and what was computed of them."""
    if (size := len(plan.constants)) > MOST_CONSTANTS:
        raise _too_many_constants("all graphs together", size)


def _too_many_constants(where: str, size: int) -> BadInput:
    return BadInput(
        f"{where}: constants take {size:,} bytes, and a plan ends at {MOST_CONSTANTS:,}. Weights of any size fit into "
        "the checkpoint, as parameters that do not train: make the artifacts with --frozen rest, or with the "
        "frozen_params of ONNX Runtime's generate_artifacts."
    )


def check_scratch(plan: Plan, largest: Mapping[str, int], fixed: Mapping[str, int]) -> None:
    """Raises BadInput naming nodes whose scratch memory has more bytes than kernels count, at the sizes `largest` of
    the free dimensions; `fixed` are those that the user fixed. `check_elements` has passed all other tensors of
    `plan`."""
    counts = {i: evaluate(product(t.shape), largest) for i, t in enumerate(plan.tensors)}
    large = {i for i, count in counts.items() if count > MOST_ELEMENTS}
    if not large:
        return
    found = sorted(
        {
            (counts[i], routine.name, step.node, plan.tensors[i].shape)
            for routine in plan.routines
            for step in routine.steps
            for i in large.intersection(step.args)
        },
        key=lambda entry: (-entry[0], *entry[1:3]),
    )
    at = ", ".join(f"{symbol} {size}" for symbol, size in largest.items())
    lines = [
        f"{routine}: node '{node}' needs {size:,} bytes of scratch memory{f' at {at}' if at else ''}"
        for size, routine, node, _ in found[:_SHOWN]
    ]
    lines += [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    lines.append(f"Kernels count up to {MOST_ELEMENTS:,} of them. {_cure(found, largest, fixed)}")
    raise BadInput("\n".join(lines))


_Entry = tuple[int, str, str, Shape]  # elements, file, value, shape


def _too_large(procedure: Procedure, largest: Mapping[str, int]) -> Iterator[_Entry]:
    shapes = {value.type.shape or () for value in procedure.values.values()}
    large = {shape for shape in shapes if evaluate(product(shape), largest) > MOST_ELEMENTS}
    if not large:  # as always, nearly: no look at every call
        return
    used = {name for call in procedure.calls for name in (*call.inputs, *call.outputs) if name}
    for name in sorted(used):
        shape = procedure.values[name].type.shape or ()
        if shape in large:
            yield evaluate(product(shape), largest), procedure.source, name, shape


def _cure(found: Sequence[_Entry], largest: Mapping[str, int], fixed: Mapping[str, int]) -> str:
    """The option with the largest size of one free dimension that makes all tensors small enough, if there is one."""
    counts = [product(shape) for *_, shape in found]
    for symbol, given in largest.items():
        low, high = 0, given
        while high - low > 1:
            middle = (low + high) // 2
            fits = all(evaluate(count, {**largest, symbol: middle}) <= MOST_ELEMENTS for count in counts)
            low, high = (middle, high) if fits else (low, middle)
        if low:
            return f"Build for at most --max-dim {symbol}={low}."
    if fixed:
        return f"Give --dim {' '.join(f'{n}={v}' for n, v in sorted(fixed.items()))} a smaller size."
    return "Split them into smaller tensors."


def needs_64_bits(plan: Plan, largest: Mapping[str, int]) -> str:
    """The reason why a session of this plan, made for these sizes, cannot be counted in 32 bits; "" if it can."""
    # Moments count wherever they are: a narrow library counts the bytes of checkpoints in 32 bits, too.
    if plan.counted_bytes > MOST_PERSISTENT:
        return f"parameters, gradients and optimizer state take {plan.counted_bytes:,} bytes"
    if (frozen := frozen_bytes(plan)) > MOST_ARENA:
        return f"parameters that do not train take {frozen:,} bytes"
    peak, name = max(((arena_peak(r, largest), r.name) for r in plan.routines), default=(0, ""))
    if peak <= MOST_ARENA:
        return ""
    at = ", ".join(f"{symbol} {size}" for symbol, size in largest.items())
    return f"temporaries of {name} take {peak:,} bytes{f' at {at}' if at else ''}"


def needs_wide_plan(plan: Plan, largest: Mapping[str, int]) -> bool:
    """True if a session of this plan, made for these sizes, or its checkpoint cannot be counted in 32 bits. A narrow
    library has no check of a checkpoint's size: it would replace a file by one that nothing reads."""
    return bool(needs_64_bits(plan, largest)) or saved_bytes(plan) > MOST_SAVED


def saved_bytes(plan: Plan) -> int:
    """The bytes of parameters and optimizer state that a session of `plan` saves, as the device counts them
    (checkpoint_write.cc)."""
    return plan.counted_bytes - plan.gradient_bytes + frozen_bytes(plan)


def _saves_parameters(plan: Plan) -> bool:
    """True if a checkpoint holds the parameters of `plan` without optimizer state."""
    return saved_bytes(plan) - plan.moments * plan.trainable_bytes <= MOST_SAVED


def saving_note(plan: Plan) -> str:
    """A sentence on a state of `plan` that is more than a checkpoint holds, "" if it fits."""
    size = saved_bytes(plan)
    if size <= MOST_SAVED:
        return ""
    left = (
        "the device saves parameters alone, and training that goes on from them begins its optimizer state anew"
        if _saves_parameters(plan)
        else "the device saves nothing; read trained parameters with mb_get_parameter"
    )
    return (
        f"Parameters and optimizer state take {size:,} bytes, and a checkpoint holds {MOST_SAVED:,}: {left}."
    )


def state_bytes(plan: Plan) -> int:
    """The bytes of all parameters and constants, and of gradients and optimizer state of what trains."""
    return plan.persistent_bytes + frozen_bytes(plan) + len(plan.constants)


def frozen_bytes(plan: Plan) -> int:
    """The bytes of parameters that a session reads where its checkpoint has them."""
    frozen = (tensor for p in plan.parameters if (tensor := plan.tensors[p.tensor]).region == FROZEN)
    return sum(evaluate(product((t.element.size, *t.shape)), {}) for t in frozen)


def check_address_space(
    plan: Plan, largest: Mapping[str, int], model: str, narrow_targets: Iterable[str]
) -> None:
    """Raises BadInput where a model does not fit into the addresses of a target with 32 bits. `plan` is that of
    `model`, a name for messages, at the sizes `largest` of free dimensions; `narrow_targets` are the names of targets
    with 32 bits."""
    for target in narrow_targets:
        if reason := needs_64_bits(plan, largest):
            sizes = " ".join(f"{symbol}={max(1, size // 4)}" for symbol, size in largest.items())
            persists = plan.counted_bytes > MOST_PERSISTENT or frozen_bytes(plan) > MOST_ARENA
            cure = f"Build for smaller sizes, such as --max-dim {sizes}" if sizes and not persists else ""
            raise BadInput(
                f"--target {target}: {model}: {reason}, more than its 32-bit addresses hold. "
                f"{cure or 'Train fewer parameters, or choose a 64-bit target'}."
            )
