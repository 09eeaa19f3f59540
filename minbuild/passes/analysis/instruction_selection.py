"""Kernel selection for calls: the kernel of each step, its storage, parameters and features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from minbuild.errors import BadInput, Unsupported
from minbuild.ir import Call, Kernel, Procedure, TensorType, Value
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ops import Registry
from minbuild.ops.core.definition import (
    RULE_ERRORS,
    InvalidDefinition,
    KernelCall,
    Op,
    OpContext,
    UnsupportedUse,
    malformed,
)
from minbuild.passes.analysis.aliases import root


@dataclass(frozen=True, slots=True)
class Selection:
    """One kernel to run. `args` are value names ("" absent) or types of scratch and extents; `op` is the operator."""

    call: Call
    kernel: Kernel
    args: tuple[str | TensorType, ...]
    params: tuple[int, ...]
    features: frozenset[str]  # "stem.feature"
    accumulate: int


def select_kernels(
    procedure: Procedure, registry: Registry, choice: KernelChoice = EVERY_KERNEL
) -> tuple[Selection, ...]:
    """The kernels of all calls of `procedure`, whose operators are in `registry`, in order, of those that
    `choice` has. Raises Unsupported with every call that no kernel serves."""
    known = {name: value.constant for name, value in procedure.values.items() if value.constant is not None}
    findings: list[str] = []
    selections: list[Selection] = []
    for call in procedure.calls:
        try:
            selections += _select(call, procedure, registry, known, choice)
        except (UnsupportedUse, *RULE_ERRORS) as raised:
            error = raised if isinstance(raised, UnsupportedUse) else malformed(raised)
            title = registry.ops[call.op].title
            findings.append(
                f"{procedure.source}: node '{call.node}' ({title}, opset {call.version}): {error}."
            )
    if findings:
        raise Unsupported(findings)
    return tuple(selections)


def _select(
    call: Call,
    procedure: Procedure,
    registry: Registry,
    known: Mapping[str, np.ndarray],
    choice: KernelChoice,
) -> Iterator[Selection]:
    op = registry.ops[call.op]
    if op.lower is None:
        raise UnsupportedUse("this operator must be known when the trainer is built; here it depends on data")
    try:
        context = context_of(call, procedure.values, known, choice)
        kernel_calls = tuple(op.lower(context))
    except InvalidDefinition as error:
        raise BadInput(
            f"ops/{registry.op_stems[op.key]}.py: {op.title}: {error}. Correct the definition."
        ) from error
    for kernel_call in kernel_calls:
        _check_declared(kernel_call, op, registry)
        for equal in registry.lowered(kernel_call, lambda name: procedure.values[name].type.shape or ()):
            _check_data(equal, known)
            yield _selection(call, equal, registry, choice)


def _check_declared(kernel_call: KernelCall, op: Op, registry: Registry) -> None:
    """Raises BadInput for a kernel that the operator does not declare, or that no file lists."""
    function = kernel_call.kernel.function
    problem = ""
    if all(kernel is not kernel_call.kernel for kernel in op.kernels):
        problem = f"calls kernel {function}, which it does not declare. Add it to `kernels=(...)`"
    elif function not in registry.stems:
        problem = f"calls kernel {function}, which no file lists. Add it to KERNELS = (...) of the file that defines it"
    if problem:
        raise BadInput(f"ops/{registry.op_stems[op.key]}.py: {op.title} {problem}.")


def context_of(
    call: Call,
    values: Mapping[str, Value],
    known: Mapping[str, np.ndarray] = MappingProxyType({}),
    kernels: KernelChoice = EVERY_KERNEL,
) -> OpContext:
    """The application of an operator by `call`, with the types of `values` and the contents of inputs that are
    `known`. Its kernels are chosen from `kernels`."""
    return OpContext(
        call.attributes,
        inputs=tuple([values[n].type if n else None for n in call.inputs]),
        known=tuple([known.get(n) for n in call.inputs]),
        version=call.version,
        names=call.inputs,
        results=tuple(values[n].type if n else None for n in call.outputs),
        result_names=call.outputs,
        accumulates=call.accumulate,
        kernels=kernels,
    )


def _check_data(kernel_call: KernelCall, known: Mapping[str, np.ndarray]) -> None:
    """Raises UnsupportedUse where a kernel would read free dimensions as data: the device has them as sizes only."""
    for arg in kernel_call.args:
        content = known.get(arg) if isinstance(arg, str) else None
        if content is not None and content.dtype == object:
            raise UnsupportedUse(
                f"it computes with {content.ravel().tolist()}, which the device has as sizes only. "
                "Give the free dimensions a size with --dim"
            )


def _selection(call: Call, kernel_call: KernelCall, registry: Registry, choice: KernelChoice) -> Selection:
    function = kernel_call.kernel
    for variable, element, offered in zip(
        function.types, kernel_call.types, function.types.values(), strict=True
    ):
        if element not in offered:
            names = ", ".join(e.label for e in offered)
            raise UnsupportedUse(
                f"no kernel for {element.label} ({variable} of {function.function}); has {names}. "
                f"Convert the model, or add {element.label} to ops/{registry.stems[function.function]}.py"
            )
    stem = registry.stems[function.function]
    asked = {f"{stem}.{name}": name in function.hints for name in kernel_call.features}
    features = frozenset(name for name, hint in asked.items() if not hint or choice.has(name))
    kernel = registry.kernel(function, kernel_call.types)
    return Selection(
        call,
        kernel=kernel,
        args=kernel_call.args,
        params=kernel_call.params,
        features=features,
        accumulate=kernel_call.accumulate,
    )


def touched(selection: Selection, procedure: Procedure) -> Iterator[tuple[str, bool]]:
    """Storage roots a selection touches, and whether it writes them."""
    for arg, (_, written, _) in zip(selection.args, selection.kernel.args, strict=True):
        if isinstance(arg, str) and arg:
            yield root(procedure.alias, str(arg)), written  # a View names the same bytes
